# SPDX-License-Identifier: Apache-2.0
"""Figures as people read them: digits, signs, units and unknown values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.model.text import (
    approximate_time,
    columns,
    count,
    fit_columns,
    join_words,
    number,
    parse_time,
    period,
    plural,
    shorten,
    signed,
    wrap,
)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (None, 2, "?"),
        (0.0, 2, "0.00"),
        (-0.004, 2, "0.00"),
        (-0.006, 2, "−0.01"),
        (-1234.56, 1, "−1,234.6"),
        (1234567.0, 0, "1,234,567"),
        (9.99e14, 0, "999,000,000,000,000"),
        (-1e15, 2, "-1e+15"),
    ],
)
def test_a_number_has_its_sign_and_its_digits(value: float | None, digits: int, text: str) -> None:
    assert number(value, digits) == text
    assert number(value, digits, " W") == (text if value is None else f"{text} W")


@given(st.floats(-1e12, 1e12), st.integers(0, 4))
def test_a_number_reads_back_as_itself(value: float, digits: int) -> None:
    text = number(value, digits)
    assert float(text.replace(",", "").replace("−", "-")) == pytest.approx(value, abs=0.5000001 * 10.0**-digits)
    assert ("−" in text) == (round(value, digits) < 0)
    assert signed(value, digits) == (text if text.startswith("−") else f"+{text}")


def test_counts_are_whole_or_unknown() -> None:
    assert (count(None), count(0), count(-1234), count(10**15), count(7_000_000)) == (
        "?",
        "0",
        "−1,234",
        "?",
        "7,000,000",
    )
    assert (signed(None), signed(0.0, 1), signed(2.55, 1)) == ("?", "+0.0", "+2.5")
    assert (plural(1, "stack"), plural(0, "stack"), plural(2000, "stack")) == ("1 stack", "0 stacks", "2,000 stacks")


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (None, ""),
        (0.0404, "every 40.4 µs"),
        (0.999, "every 999 µs"),
        (1.0, "every 1 ms"),
        (400.0, "every 400 ms"),
        (999.0, "every 999 ms"),
        (1000.0, "every 1 s"),
        (60_000.0, "every 60 s"),
    ],
)
def test_a_period_has_the_right_unit(milliseconds: float | None, text: str) -> None:
    assert period(milliseconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "10 s"), (31, "40 s"), (89.9, "90 s"), (90, "2 min"), (5399, "90 min"), (5400, "1.5 h"), (9000, "2.5 h")],
)
def test_a_time_is_round(seconds: float, text: str) -> None:
    assert approximate_time(seconds) == f"about {text}"


@pytest.mark.parametrize(
    ("typed", "unit", "seconds"),
    [
        ("5s", "", 5.0),
        ("500ms", "", 0.5),
        ("2m", "", 120.0),
        ("3min", "", 180.0),
        ("1.5h", "", 5400.0),
        ("2d", "", 172_800.0),
        ("40us", "", 40e-6),
        ("40µs", "", 40e-6),
        ("7ns", "", 7e-9),
        (" 2 S ", "", 2.0),
        ("25e-1s", "", 2.5),
        ("1e2ms", "", 0.1),
        (".5s", "", 0.5),
        ("-3s", "", -3.0),
        ("7", "ms", 0.007),
        ("7s", "ms", 7.0),
        ("5 days", "", 432_000.0),
        ("2minutes", "", 120.0),
    ],
)
def test_a_typed_time_is_in_seconds(typed: str, unit: str, seconds: float) -> None:
    assert parse_time(typed, unit) == pytest.approx(seconds)


@pytest.mark.parametrize("typed", ["", "7", "s", "5 weeks", "1_000s", "5s5", "1e999s", "--5s"])
def test_what_is_no_time_is_refused(typed: str) -> None:
    with pytest.raises(ValueError, match="not a time"):
        parse_time(typed)


@given(st.text(max_size=30), st.integers(1, 40))
def test_a_shortened_text_is_at_most_as_wide(text: str, width: int) -> None:
    short = shorten(text, width)
    assert len(short) <= width
    assert short == text if len(text) <= width else short == f"{text[: width - 1]}…"


def test_figures_are_flush_right_and_names_flush_left() -> None:
    rows = [["state", "percent", "hz"], ["C1", "7.5", "1,200"], ["POLL idle", "0"]]
    assert columns(rows) == ["state      percent     hz", "C1             7.5  1,200", "POLL idle        0"]
    assert columns(rows, left=2, gap=1)[1] == "C1        7.5     1,200"
    assert fit_columns(rows, 80) == columns(rows)
    narrow = fit_columns(rows, 18)
    assert max(map(len, narrow)) <= 18
    assert [line.split() for line in narrow if line] == [
        ["state", "percent"],
        ["C1", "7.5"],
        ["POLL", "idle", "0"],
        ["state", "hz"],
        ["C1", "1,200"],
    ]


def test_words_are_joined() -> None:
    assert [join_words(list("abc")[:length]) for length in range(4)] == ["", "a", "a and b", "a, b and c"]
    assert join_words(["a", "b"], "or") == "a or b"


@given(
    st.integers(20, 200), st.integers(0, 300), st.lists(st.sampled_from(["plan:", "city", "ALL,", "20,395", "rows"]))
)
def test_an_indent_leaves_room_for_words(width: int, indent: int, words: list[str]) -> None:
    """A plan below a wide table had one letter per line."""
    lines = wrap(" ".join(words), width, " " * indent)
    room = min(width // 2, 24) - 8
    assert all(len(line.strip()) >= room for line in lines[:-1])
    assert " ".join(line.strip() for line in lines) == " ".join(words)
