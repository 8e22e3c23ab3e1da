# SPDX-License-Identifier: Apache-2.0
"""Text and numbers from outside: one printable line, no formula, at most 64 bits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.system.foreign_text import escape_formulas, printable, printable_lines, whole


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (7, 7),
        ("007", 7),
        (b"7", 7),
        (2**64 - 1, 2**64 - 1),
        (str(2**64 - 1), 2**64 - 1),
        *[(value, None) for value in (2**64, str(2**64), "1" * 21, -1, "-1", "+1", "1_0", "²", "7 ", "", b"\xb2")],
        *[(value, None) for value in (True, False, 7.0, None, [7])],
    ],
)
def test_whole_numbers_have_64_bits(value: object, number: int | None) -> None:
    assert whole(value) == number


@pytest.mark.parametrize(
    ("text", "cell"),
    [("=1+1", "'=1+1"), ("a;=1", "a;'=1"), ("a\t @x", "a\t '@x"), ("-7", "'-7"), ("a=1", "a=1"), ("7", "7")],
)
def test_a_formula_in_a_cell_is_text(text: str, cell: str) -> None:
    assert escape_formulas(text) == cell


@given(st.text())
def test_printable_text_is_one_line_of_the_same_length(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text) and "\n" not in shown and "\x1b" not in shown
    assert printable(shown) == shown
    assert printable_lines(text).count("\n") == text.count("\n")
