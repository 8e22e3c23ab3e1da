# SPDX-License-Identifier: Apache-2.0
"""Every report fits the terminal and keeps its figures: no line is too long, no figure is cut or dropped."""

import re
from collections import Counter
from typing import Any

import pytest

from powerprof.model import text
from powerprof.report.kinds import kind_of, word_record
from tests.programs.golden_files import records

_RECORDS = records()
_FIGURE = re.compile(r"(?<![\w.+#?:/-])[−+]?\d[\d,]*(?:\.\d+)?(?![\w.]*[+_]|:\w|\w{3})")


def _lines(record: Any, width: int) -> list[str]:
    kind = kind_of(record)
    assert kind is not None
    return [line for printed in kind.lines(record, width) for line in printed.split("\n")]


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
