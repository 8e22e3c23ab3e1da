# SPDX-License-Identifier: Apache-2.0
"""A partial record says so, and why, in every form; an empty part is in none."""

from __future__ import annotations

import csv
import io
from typing import Any

import msgspec
import pytest

from powerprof.model.records import Ended, ended_by_signal
from powerprof.report.document import (
    ALL_ROWS,
    HTML,
    Document,
    Drawing,
    Item,
    Items,
    Part,
    Section,
    Sentence,
    Shown,
    View,
    shown_parts,
)
from powerprof.report.exports import export
from powerprof.report.kinds import KIND_LOADERS, document_of, lines_of
from powerprof.report.render.csv import render_csv
from powerprof.report.render.markdown import escape
from powerprof.report.table import Column, Figure, Table, TableRow
from tests.unit.report.distinct_records import make_kind

KINDS = list(KIND_LOADERS)
FORMS = ("terminal", "markdown", "html", "csv")
_ENDS = (
    (ended_by_signal(True), "Interrupted: partial results."),
    (Ended("failed", "the disk is full"), "Ended early: the disk is full. Partial results."),
    (
        Ended("target_ended", "mysqld (7) ended", after_s=2.08, pid=7),
        "mysqld (7) ended 2.1 s after the window began. The figures end there.",
    ),
)


def write_forms(record: Any) -> dict[str, str]:
    """Return every form of a record."""
    files = {form: export(record, "md" if form == "markdown" else form).decode() for form in FORMS[1:]}
    return {"terminal": "\n".join(lines_of(record, 200)), **files}


@pytest.mark.parametrize("name", KINDS)
def test_every_form_begins_with_the_early_end_of_a_partial_record(name: str) -> None:
    record = make_kind(name, known=True)

    def written(ended: Ended | None) -> dict[str, str]:
        return write_forms(msgspec.structs.replace(record, ended=ended))

    assert [form for form, text in written(None).items() if "artial results" in text] == []
    for ended, why in _ENDS:
        forms = written(ended)
        assert forms["terminal"].startswith(why)
        assert forms["markdown"].startswith(f"> {escape(why)}\n")
        assert why in forms["html"].partition('<h1 id="answer"')[0].partition("<header>")[2]
        head, first = list(csv.reader(io.StringIO(forms["csv"])))[:2]
        assert first[head.index("warning")].startswith(why)


_BLIND = {"idle_exits_count": 0, "idle_percent": 97.0}
_UNKNOWN: dict[str, tuple[str, dict[str, Any], str]] = {
    "total": ("powerprof.energy/1", {"reason": "two meters overlap"}, "two meters overlap"),
    "conservation": ("powerprof.attribution/1", _BLIND, "recorded no idle exits on this host although"),
}


@pytest.mark.parametrize("field", _UNKNOWN)
def test_every_form_says_why_a_total_is_unknown(field: str) -> None:
    name, changes, why = _UNKNOWN[field]
    record = make_kind(name, known=True)
    unknown = msgspec.structs.replace(getattr(record, field), **changes)
    forms = write_forms(msgspec.structs.replace(record, **{field: unknown}))
    assert {form: why in forms[form] for form in FORMS} == dict.fromkeys(FORMS, True)


@pytest.mark.parametrize("name", KINDS)
def test_every_form_has_the_answer_and_the_notes(name: str) -> None:
    record = make_kind(name, known=True)
    document = document_of(record)
    forms = write_forms(record)
    # The early end of these records comes first.
    lines = [line for line in forms["markdown"].splitlines() if not line.startswith(">") and line]
    assert document.answer and escape(document.answer.split()[0]) in lines[0]
    # A short report without notes says how to see them.
    shown = FORMS[1:3] if document.is_brief else FORMS[:3]
    assert not document.is_brief or document.next_step.endswith("--all")
    for note in document.short_notes:
        assert [form for form in shown if note.split()[0] not in forms[form]] == [], note


def test_empty_part_is_in_no_form() -> None:
    empty: list[Part] = [Sentence(""), Items([]), Shown(Table([], [])), Section("Heading", [Sentence("")])]
    for form in FORMS:
        assert shown_parts(empty, form) == []  # type: ignore[arg-type]
    kept: list[Part] = [Sentence("x", forms=HTML), Items([Item("y")])]
    assert [len(shown_parts([Section("", kept)], form)[0].parts) for form in ("html", "terminal")] == [2, 1]  # type: ignore[arg-type,return-value]
    assert Drawing(draw=lambda: None).forms == HTML  # type: ignore[arg-type,return-value]


def test_csv_has_each_figure_with_the_ends_of_its_interval() -> None:
    figure = Figure(1.25, "", ends=(Figure(1.125, ""), Figure(1.5, "")))
    table = Table([Column("watts", interval="95 %"), Column("count")], [TableRow({"watts": figure, "count": figure})])
    document = Document(record=None, answer="", parts=lambda: [Section("", [Shown(table)])])
    assert render_csv(document).splitlines() == ["watts,watts_low,watts_high,count,warning", "1.25,1.125,1.5,1.25,"]


def test_the_whole_view_has_all_rows() -> None:
    views = [Document(record=None, answer="", parts=list, views=names).whole_view for names in (("top",), ())]
    assert views == [View(top=ALL_ROWS), None]
