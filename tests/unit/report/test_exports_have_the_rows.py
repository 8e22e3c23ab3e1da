# SPDX-License-Identifier: Apache-2.0
"""Every file of a record has the rows of its screen: drawn records, in which drawn lists are empty."""

from __future__ import annotations

import csv
import gzip
import io
import random
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pytest

from powerprof.model.runs import encode_record
from powerprof.report.document import ALL_ROWS, Part, Section, Shown, View, shown_parts
from powerprof.report.exports import export
from powerprof.report.kinds import KIND_LOADERS, document_of, kind_of
from powerprof.report.table import Path, TableRow, Words
from tests.unit.report.distinct_records import make_kind

_SEEDS = 6
# A name in these records is the name of its field and a number that is in no other name.
_NAME = re.compile(r"\b[a-z_]+ \d+\b")
# Lists that are never empty, or never without another one.
_KEPT = ("phases", "notes", "functions", "points", "rows")
# Words of a row that a form leaves out, although the row is there: parts of its name, its waker, its states.
_LEFT_OUT: dict[tuple[str, str], set[str]] = {
    ("attribution", "csv"): {"source", "process", "server_name"},
    ("attribution", "md"): {"server_name", "process", "detail"},
    ("queries", "csv"): {"user", "host"},
    ("queries", "md"): {"user", "host", "id", "schema_name"},
    ("study", "md"): {"metric"},
}
CASES = [(name, seed) for name in KIND_LOADERS for seed in range(_SEEDS)]


def draw_record(name: str, seed: int) -> Any:
    """Return a record of a kind with known or unknown values; from the second seed on, some lists are empty."""
    draw = random.Random(f"{name} {seed}")
    record = make_kind(name, known=seed % 2 == 0)
    lists = [field for field in record.__struct_fields__ if isinstance(getattr(record, field), list | tuple)]
    empty = [field for field in lists if seed and field not in _KEPT and draw.random() < 0.4]
    return msgspec.structs.replace(record, ended=None, **{field: [] for field in empty})


def list_tables(parts: Iterable[Part]) -> Iterator[Shown]:
    """Yield the tables of a screen."""
    for part in parts:
        if isinstance(part, Shown):
            yield part
        elif isinstance(part, Section):
            yield from list_tables(part.parts)


def list_names(value: Any) -> set[str]:
    """Return the names in the texts of a value."""
    if isinstance(value, str):
        return set(_NAME.findall(value))
    if isinstance(value, dict):
        return {name for pair in value.items() for each in pair for name in list_names(each)}
    return {name for each in value for name in list_names(each)} if isinstance(value, list | tuple) else set()


def words_of(row: TableRow) -> str:
    """Return the texts and stacks of a row."""
    cells = row.cells.values()
    texts = [cell.text for cell in cells if isinstance(cell, Words)]
    return " ".join([*texts, *(frame for cell in cells if isinstance(cell, Path) for frame in cell.frames)])


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_every_form_has_each_row_of_the_screen(name: str, seed: int) -> None:
    record = draw_record(name, seed)
    known = list_names(msgspec.to_builtins(record))
    screen = shown_parts(document_of(record, View(everything=True, top=ALL_ROWS)).parts(), "terminal")
    rows = [row for shown in list_tables(screen) for row in shown.table.of("terminal").rows]
    forms = {form: export(record, form).decode() for form in ("csv", "md", "html")}
    forms["json"] = encode_record(record).decode()
    for form, text in forms.items():
        left_out = _LEFT_OUT.get((name.partition(".")[2].partition("/")[0], form), set())
        names = {word for row in rows for word in list_names(words_of(row)) & known}
        missing = {word for word in names if word not in text and word.partition(" ")[0] not in left_out}
        assert missing == set(), form
    lines = [line for line in csv.reader(io.StringIO(forms["csv"])) if any(line)]
    assert len(lines) > 1 or not any(list_names(words_of(row)) for row in rows)


@pytest.mark.parametrize("seed", range(_SEEDS))
@pytest.mark.parametrize("busy", [False, True], ids=["exits", "busy host"])
def test_stacks_of_wakeups_have_the_rows_of_the_screen(seed: int, busy: bool) -> None:
    """On a busy host no idle period has a cause, and the screen shows the wakings that a quieter host would have."""
    record = make_kind("powerprof.attribution/1", known=seed % 2 == 0)
    draw = random.Random(seed)
    wakeups = [] if busy else draw.sample(record.wakeups, draw.randint(1, len(record.wakeups)))
    wakings = draw.sample(record.wakings_without_exit, draw.randint(1, len(record.wakings_without_exit)))
    record = msgspec.structs.replace(record, wakeups=wakeups, wakings_without_exit=wakings, ended=None)
    kind = kind_of(record)
    assert kind is not None and kind.stacks is not None
    stack_set = kind.stacks(record)
    expected = [row.wakings_count for row in wakings] if busy else [row.count for row in wakeups]
    assert [weight for _, weight in stack_set.stacks] == expected
    assert stack_set.unit == ("wakings" if busy else "idle exits")
    folded = export(record, "folded").decode().splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in folded) == sum(expected)
    labels = {row.thread.label for row in (wakings if busy else wakeups)}
    assert {line.partition(";")[0] for line in folded} == labels
    data = {form: export(record, form) for form in ("flame", "pprof", "otlp", "html", "csv")}
    texts = {**data, "pprof": gzip.decompress(data["pprof"])}
    for form, text in texts.items():
        assert [label for label in labels if label.encode() not in text] == [], form


def test_csv_of_a_busy_host_has_its_wakings() -> None:
    record = make_kind("powerprof.attribution/1", known=True)
    record = msgspec.structs.replace(record, wakeups=[], deep=None, ended=None)
    lines = list(csv.DictReader(io.StringIO(export(record, "csv").decode())))
    assert {(line["count"], line["rate_hz"]) for line in lines} == {("", "")}
    counts = [(int(line["wakings_count"]), float(line["wakings_hz"])) for line in lines]
    assert counts == [(row.wakings_count, row.wakings_hz) for row in record.wakings_without_exit]


def test_further_tables_of_csv_begin_after_an_empty_line() -> None:
    record = msgspec.structs.replace(make_kind("powerprof.syscalls/1", known=True), ended=None)
    lines = list(csv.reader(io.StringIO(export(record, "csv").decode())))
    heads = [lines[at + 1][:3] for at, line in enumerate(lines) if not any(line)]
    assert heads == [["path", "kind", "pid"], ["pid", "tid", "thread"]]
