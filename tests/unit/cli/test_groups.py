# SPDX-License-Identifier: Apache-2.0
"""A command with groups of options is to Typer a function with one parameter an option."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Annotated, get_args

import pytest
import typer

from powerprof.cli.app import spread

Number = Annotated[int, typer.Option("--number", metavar="N", min=1, help="A number.")]


@dataclass(frozen=True, kw_only=True)
class Inner:
    """A group in a group."""

    left: str = "l"
    right: str | None = None


@dataclass(frozen=True, kw_only=True)
class Outer:
    """A group with an option before and one after another group."""

    number: Number = 3
    inner: Inner
    last: bool = False


calls: list[tuple[str, Outer, int]] = []


def command(word: str, *, outer: Outer, after: Annotated[int, typer.Option("--after")] = 7) -> None:
    """The command of these tests."""
    calls.append((word, outer, after))


def test_fields_stand_where_their_group_stood_with_their_defaults_and_annotations() -> None:
    parameters = inspect.signature(spread(command)).parameters
    assert list(parameters) == ["word", "number", "left", "right", "last", "after"]
    assert [parameters[name].default for name in ("number", "left", "right", "last", "after")] == [
        3, "l", None, False, 7,
    ]  # fmt: skip
    assert parameters["word"].default is inspect.Parameter.empty
    kind, option = get_args(parameters["number"].annotation)
    assert (kind, option.metavar, option.min) == (int, "N", 1)
    assert option.rich_help_panel == "A group with an option before and one after another group"
    # What several commands share is not changed by any of them.
    assert get_args(Number)[1].rich_help_panel is None


def test_typer_hands_the_groups_over_whole() -> None:
    app = typer.Typer(add_completion=False)
    app.command()(spread(command))
    calls.clear()
    app(["w", "--number", "5", "--right", "r", "--last"], standalone_mode=False)
    assert calls == [("w", Outer(number=5, inner=Inner(right="r"), last=True), 7)]


def test_a_range_is_kept() -> None:
    app = typer.Typer(add_completion=False)
    app.command()(spread(command))
    with pytest.raises(typer.BadParameter.__base__, match=r"not in the range|greater than or equal to 1"):  # type: ignore[arg-type]
        app(["w", "--number", "0"], standalone_mode=False)


def test_two_groups_with_one_option_are_refused_at_once() -> None:
    def twice(*, one: Inner, other: Inner) -> None: ...

    with pytest.raises(ValueError, match="duplicate parameter name: 'left'"):
        spread(twice)
