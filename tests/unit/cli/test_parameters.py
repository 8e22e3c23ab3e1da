# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: RUF009 - options are declared by calls that return fields
"""Options as fields of dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from powerprof.cli.parameters import argument, flag, group, number, option, read_options, walk_parameters, whole_number
from powerprof.system.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Inner:
    """A group in a group."""

    HEADING: ClassVar[str] = "Inner"

    left: str = option("--left", "L", "Left.", default="l")
    right: list[str] | None = option("--right", "R", "Right.", is_repeatable=True)


@dataclass(frozen=True, kw_only=True)
class Outer:
    """A group with an option before and one after another group."""

    HEADING: ClassVar[str] = "Outer"

    count: int = whole_number("--count", "N", "Count.", default=3, low=1, high=20_000)
    inner: Inner = group(Inner)
    last: bool = flag("--last", "Last.")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a command."""

    word: str = argument("WORD", "Word.", is_required=True)
    outer: Outer = group(Outer)
    size: float | None = number("--size", "S", "Size.", low=0.5)


TEXTS: dict[str, Any] = dict.fromkeys(("count", "left", "right", "last", "size")) | {"word": "w"}


def read(**texts: object) -> Options:
    return read_options(Options, TEXTS | texts, "powerprof x")


def test_options_of_groups_keep_their_order_and_headings() -> None:
    rows = [(heading, name) for heading, name, _ in walk_parameters(Options)]
    assert rows == [
        ("Options", "word"), ("Outer", "count"), ("Inner", "left"), ("Inner", "right"), ("Outer", "last"),
        ("Options", "size"),
    ]  # fmt: skip


def test_the_help_shows_defaults_and_limits() -> None:
    rows = {name: parameter.help_row for _, name, parameter in walk_parameters(Options)}
    assert rows["count"] == ("--count N", "Count.  [default: 3; 1 to 20,000]")
    assert rows["size"] == ("--size S", "Size.  [from 0.5]")
    assert rows["last"] == ("--last", "Last.")


def test_values_are_converted_and_groups_are_filled() -> None:
    assert read() == Options(word="w")
    read_values = read(count="5", right=("a", "b"), last=True, size=" 1e1 ")
    assert read_values == Options(word="w", outer=Outer(count=5, inner=Inner(right=["a", "b"]), last=True), size=10.0)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("count", "0", "--count 0: must be at least 1"),
        ("count", "20001", "--count 20001: must be at most 20000"),
        ("count", "1.5", "--count 1.5: not a whole number"),
        ("count", "1_0", "--count 1_0: not a whole number"),
        ("size", "٣", "--size ٣: not a number"),
        ("size", "nan", "--size nan: not a finite number"),
        ("word", None, "missing argument 'WORD'"),
    ],
)
def test_a_wrong_value_is_named_as_typed(name: str, text: str | None, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(**{name: text})
    assert (caught.value.message, caught.value.hint) == (message, "powerprof x --help")
