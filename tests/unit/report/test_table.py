# SPDX-License-Identifier: Apache-2.0
"""Tests for tables and lines: figures of the record, in each form and on terminals of any width."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from powerprof.model import text
from powerprof.model.records import Note
from powerprof.report import labels
from powerprof.report.document import View
from powerprof.report.exports import render_markdown
from powerprof.report.html.tables import table_html as html_table
from powerprof.report.kinds import KIND_LOADERS, document_of, lines_of
from powerprof.report.notes import word_notes, wrap_note
from powerprof.report.render.markdown import draw_table
from powerprof.report.table import Column, Figure, Places, Table, TableRow, Words
from powerprof.report.wording import word_record
from powerprof.system.errors import UsageError
from tests.programs.golden_files import records
from tests.unit.report.distinct_records import make_kind
from tests.unit.report.sample_records import HOSTILE, comparison, idle_run


@pytest.mark.parametrize("name", KIND_LOADERS)
def test_every_kind_loads_and_has_a_frozen_record(name: str) -> None:
    kind = KIND_LOADERS[name]()
    assert kind.record.__struct_config__.frozen
    views = kind.document(make_kind(name, known=True), View()).views
    assert set(views) <= set(View.__struct_fields__)


def test_loading_a_kind_imports_only_its_code() -> None:
    code = """
import sys
from powerprof.report.kinds import KIND_LOADERS, document_of, lines_of
KIND_LOADERS["powerprof.energy/1"]()
loaded = [name for name in sys.modules if name.startswith("powerprof.report.")]
assert "powerprof.report.energy" in loaded and "powerprof.report.attribution" not in loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_record_without_a_report_has_no_files() -> None:
    with pytest.raises(UsageError, match=r"^this record has no report$"):
        render_markdown(Words("x"))


def test_doubt_is_not_the_context() -> None:
    record = comparison()
    doubtful = replace(record, verdict=replace(record.verdict, doubts=["steal was high"]))
    assert document_of(doubtful).context == document_of(record).context
    assert document_of(record).context.startswith("12 pairs, ABBA")


def test_figure_is_rounded_scaled_and_signed() -> None:
    ends = (Figure(0.00131, "/low", 2, "mJ", 1e3, True), Figure(-0.0001, "/high", 2, "mJ", 1e3, True))
    figure = Figure(0.00127, "/mean", 2, "mJ", 1e3, True, ends)
    assert (figure.text, figure.whole) == ("+1.27", "+1.27 mJ")
    assert [end.text for end in ends] == ["+1.31", "−0.10"]
    assert figure.exact == (0.00127, 0.00131, -0.0001)
    assert (Figure(None, "/x", 2, "W").whole, Figure(3, "/n", None).text) == ("?", "3")
    assert Figure(44.7, "/x", 1, "/s").whole == "44.7/s"


def test_missing_place_is_unknown() -> None:
    places = Places(idle_run())
    assert places.figure("/phases/99/c0_percent", 2).value is None
    assert places.figure("/host/hostname", 2).value is None
    assert places.figure("/phases/0/c0_percent", 2, ends="/phases/0/intervals/nothing").ends is None


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_do_not_change_tables(name: str) -> None:
    columns = [Column("name", left=True), Column("x", name=name)]
    table = Table(columns, [TableRow({"name": Words(name), "x": Figure(1, "/x", 0)})], "t")
    page = str(html_table(table))
    assert set(re.findall(r"<(\w+)", page)) == {"div", "table", "thead", "tbody", "tr", "th", "td", "data"}
    lines = draw_table(table)
    assert len(lines) == 4 and all("\n" not in line for line in lines)
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in lines[1:])


def test_different_values_are_printed_differently() -> None:
    assert labels.separate(2, [1.0, 1.003, 1.006]) == 3
    assert labels.separate(0, [99.6, 100.0]) == 1
    assert labels.separate(2, [1.0, 0.4, 1.6]) == 2
    assert labels.separate(1, [5.0, 5.0000001]) == 1


_RECORDS = records()
_FIGURE = re.compile(r"(?<![\w.+#?:/-])[−+]?\d[\d,]*(?:\.\d+)?(?![\w.]*[+_]|:\w|\w{3})")


def _lines(record: Any, width: int) -> list[str]:
    return [line for printed in lines_of(record, width) for line in printed.split("\n")]


def _figures(lines: list[str]) -> Counter[str]:
    shown = " ".join(" ".join(lines).split())
    # A name may be cut, with the figures in its type arguments.
    while (plain := re.sub(r"<[^<>]*>", "", shown)) != shown:
        shown = plain
    return Counter(_FIGURE.findall(shown))


@pytest.mark.parametrize("name", _RECORDS)
def test_a_report_fits_the_terminal_and_keeps_its_figures(name: str) -> None:
    record = word_record(_RECORDS[name]())
    whole = _figures(_lines(record, 200))
    for width in (40, 60, 80, 200):
        lines = _lines(record, width)
        assert [line for line in lines if len(line) > width] == []
        assert whole - _figures(lines) == Counter(), width


@pytest.mark.parametrize("width", [20, 33, 40, 60, 79])
@pytest.mark.parametrize("cells", [2, 4, 9])
def test_aligned_columns_keep_every_cell(width: int, cells: int) -> None:
    rows = [[f"name of row {row}", *(f"{row}{at},{at}00.5" for at in range(cells))] for row in range(3)]
    lines = text.fit_columns(rows, width)
    assert max(map(len, lines)) <= width
    shown = Counter(" ".join(lines).split())
    assert all(shown[cell] == 1 for row in rows for cell in row[1:])


@pytest.mark.parametrize("width", [20, 33, 40, 60, 79])
@pytest.mark.parametrize("cells", [0, 1, 3, 9])
def test_rows_with_names_keep_every_cell(width: int, cells: int) -> None:
    heads = [*(f"head{at}" for at in range(cells)), "name"]
    rows = [[*(f"{row}{at}.5" for at in range(cells)), f"innodb/page_cleaner_{row} · timer"] for row in range(3)]
    entries, indent = text.name_rows([heads, *rows], width)
    lines = [line for entry in entries for line in entry]
    assert (len(entries), max(map(len, lines)) <= width, indent < width) == (4, True, True)
    shown = Counter(" ".join(lines).split())
    assert all(shown[cell] == 1 for row in rows for cell in row[:-1])


def test_a_column_without_cells_is_left_out() -> None:
    assert text.name_rows([["/s", "every", "who"], ["1.0", "", "a"]], 80)[0] == [[" /s  who"], ["1.0  a"]]


@pytest.mark.parametrize(
    ("sentence", "lines"),
    [
        ("std::thread::_State_impl<x>", ["std::thread::", "_State_impl<x>"]),
        ("see /usr/lib/x86_64-linux-gnu/libc.so.6", ["see /usr/lib/", "x86_64-linux-gnu/", "libc.so.6"]),
        ("a" * 45, ["a" * 20, "a" * 20, "a" * 5]),
        ("10.11.19 is short", ["10.11.19 is short"]),
    ],
)
def test_a_word_is_broken_only_if_it_is_longer_than_a_line(sentence: str, lines: list[str]) -> None:
    assert text.wrap(sentence, 20) == lines


def test_a_command_is_never_broken_within_a_word() -> None:
    lines = text.wrap("to try it: powerprof report /a/folder/that/is/longer/than/the/line", 30)
    assert lines[-1] == "/a/folder/that/is/longer/than/the/line"


def test_lines_of_any_source_are_wrapped_with_their_indent() -> None:
    assert text.fit_lines(["  one two three", "four"], 10) == ["  one two", "  three", "four"]


COMMAND = "DEBUGINFOD_URLS=https://debuginfod.debian.net powerprof doctor --pid 123456 --fetch"


def test_note_keeps_its_command_on_one_line() -> None:
    (text,) = word_notes([Note("names_missing", {"percent": 43.2, "files": "mariadbd", "command": COMMAND})])
    printed = wrap_note(text, 40)
    assert printed[-1] == f"  {COMMAND}"
    assert " ".join(printed[:-1]) == (
        "Note: 43 % of the frames have no name, in mariadbd: these files are stripped. To get the names:"
    )
    assert wrap_note("plain", 40) == ["Note: plain."]
