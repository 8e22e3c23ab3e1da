# SPDX-License-Identifier: Apache-2.0
"""Options as fields of structs."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import pytest

from powerprof.cli.parameters import (
    argument,
    flag,
    group,
    number,
    option,
    read_options,
    time_span,
    walk_parameters,
    whole_number,
)
from powerprof.system.errors import UsageError


class Inner(msgspec.Struct, frozen=True, kw_only=True):
    """A group in a group."""

    HEADING: ClassVar[str] = "Inner"

    left: str = option("--left", "L", "Left.", default="l")
    right: list[str] | None = option("--right", "R", "Right.", is_repeatable=True)


class Outer(msgspec.Struct, frozen=True, kw_only=True):
    """A group with an option before and one after another group."""

    HEADING: ClassVar[str] = "Outer"

    count: int = whole_number("--count", "N", "Count.", default=3, low=1, high=20_000)
    inner: Inner = group(Inner)
    last: bool = flag("--last", "Last.")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a command."""

    word: str = argument("WORD", "Word.", is_required=True)
    outer: Outer = group(Outer)
    size: float | None = number("--size", "S", "Size.", low=0.5)
    wait: float = time_span("--wait", "Wait.", default=5.0, low=0.05, high=3600)


TEXTS: dict[str, Any] = dict.fromkeys(("count", "left", "right", "last", "size", "wait")) | {"word": "w"}


def read(**texts: object) -> Options:
    return read_options(Options, TEXTS | texts, "x")


def test_options_of_groups_keep_their_order_and_headings() -> None:
    rows = [(heading, name) for heading, name, _ in walk_parameters(Options)]
    assert rows == [
        ("Options", "word"), ("Outer", "count"), ("Inner", "left"), ("Inner", "right"), ("Outer", "last"),
        ("Options", "size"), ("Options", "wait"),
    ]  # fmt: skip


def test_the_help_shows_defaults_and_limits() -> None:
    rows = {name: parameter.help_row for _, name, parameter in walk_parameters(Options)}
    assert rows["count"] == ("--count N", "Count.  [default: 3; 1 to 20,000]")
    assert rows["size"] == ("--size S", "Size.  [from 0.5]")
    assert rows["wait"] == ("--wait TIME", "Wait.  [default: 5 s; 0.05 to 3600 s]")
    assert rows["last"] == ("--last", "Last.")


def test_values_are_converted_and_groups_are_filled() -> None:
    assert read() == Options(word="w")
    read_values = read(count="5", right=("a", "b"), last=True, size=" 1e1 ")
    assert read_values == Options(word="w", outer=Outer(count=5, inner=Inner(right=["a", "b"]), last=True), size=10.0)


@pytest.mark.parametrize(
    ("name", "text", "message", "hint"),
    [
        ("count", "0", "--count 0: must be at least 1", "--count N takes 1 to 20,000; default 3"),
        ("count", "20001", "--count 20001: must be at most 20,000", "--count N takes 1 to 20,000; default 3"),
        ("count", "1.5", "--count 1.5: not a whole number", "--count N takes 1 to 20,000; default 3"),
        ("count", "1_0", "--count 1_0: not a whole number", "--count N takes 1 to 20,000; default 3"),
        ("size", "٣", "--size ٣: not a number", "--size S takes from 0.5"),
        ("size", "nan", "--size nan: not a finite number", "--size S takes from 0.5"),
        ("word", None, "missing argument 'WORD'", "powerprof x --help"),
    ],
)
def test_a_wrong_value_is_named_as_typed(name: str, text: str | None, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(**{name: text})
    assert (caught.value.message, caught.value.hint) == (message, hint)


@pytest.mark.parametrize(("typed", "seconds"), [("5", 5.0), ("500ms", 0.5), ("2 min", 120.0), ("1e1", 10.0)])
def test_a_time_has_a_unit_or_that_of_its_option(typed: str, seconds: float) -> None:
    assert read(wait=typed).wait == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("typed", ["5x", "1h30m", "nan", "٣", "5,5", "1e999"])
def test_what_is_no_time_names_the_units(typed: str) -> None:
    with pytest.raises(UsageError, match=r"not a time: a number with us, ms, s, m, h or d, such as 5s.* is in s$"):
        read(wait=typed)


@pytest.mark.parametrize(("typed", "reason"), [("1ms", "least 0.05 s"), ("-5", "least 0.05 s"), ("61m", "most 3600 s")])
def test_a_time_out_of_range_names_the_limit(typed: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"--wait {typed}: must be at {reason}$"):
        read(wait=typed)
