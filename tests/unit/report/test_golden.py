# SPDX-License-Identifier: Apache-2.0
"""Compare every form of records with its golden file, and look for figures that no record has."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from powerprof.report.exports import export
from powerprof.report.kinds import KIND_LOADERS
from tests.programs.golden_files import GOLDEN, distinct_files, distinct_text, forms_of, records
from tests.unit.cli.command_lines import FILES
from tests.unit.report.distinct_records import make_kind

RECORDS = records()
DISTINCT = distinct_files()
_REMEDY = "python -m tests.programs.golden_files writes them anew"


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_reads_as_its_golden_files(name: str) -> None:
    made = {f"{name}.{suffix}": text for suffix, text in forms_of(RECORDS[name]())}
    kept = {file: (GOLDEN / file).read_bytes().decode() for file in made if (GOLDEN / file).exists()}
    assert made == kept, _REMEDY


@pytest.mark.parametrize("file", DISTINCT)
def test_distinct_figures_read_as_their_golden_file(file: str) -> None:
    name, known = DISTINCT[file]
    assert distinct_text(name, known=known) == (GOLDEN / file).read_bytes().decode(), _REMEDY


def test_each_golden_file_belongs_to_a_record() -> None:
    files = {path.name for path in GOLDEN.iterdir()}
    assert {name.split(".")[0] for name in files - DISTINCT.keys() - FILES.keys()} == set(RECORDS)
    assert DISTINCT.keys() <= files and len(files) >= 100


# A figure 0, apart from the ticks of a chart.
_ZERO = re.compile(r"(?<![\w.,−/-])[−+]?0(?:\.0+)?(?![\w.,:/\]-])")
# Counts of rows, which are known, and functions without a sample at a value.
_KNOWN_ZEROS = re.compile(
    r"\b0 (of \d|steps measured|not measured)|in 0 s\.|^ *\d+[.\d]* +0\.0 .*function|^ *0\.0 .*function"
    r"|^\| [\d.]+ \|.* `function|CPU 0\b"
)


@pytest.mark.parametrize("name", KIND_LOADERS)
def test_an_unknown_figure_is_never_zero(name: str) -> None:
    text = distinct_text(name, known=False).partition("== page")[0]
    zeros = [line for line in text.splitlines() if _ZERO.search(line) and not _KNOWN_ZEROS.search(line)]
    # A statement that only one of two runs executed used no CPU time in the other.
    assert [line for line in zeros if "0.00 → 0.00" not in line] == []


def _figures(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _figures(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


@pytest.mark.parametrize("name", [name for name, load in KIND_LOADERS.items() if "csv" in load().file_kinds()])
def test_every_figure_of_a_csv_file_is_in_the_record(name: str) -> None:
    record = make_kind(name, known=True)
    in_record = set(_figures(json.loads(msgspec.json.encode(record))))
    rows = list(csv.reader(io.StringIO(export(record, "csv").decode(), newline="")))
    figures = [float(cell) for row in rows[1:] for cell in row if re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", cell)]
    # The share of unexplained CPU time is computed from two figures.
    assert len(set(figures) - in_record) <= (name == "powerprof.queries/1")
    assert len(set(figures)) > 1
