# SPDX-License-Identifier: Apache-2.0
"""Help by groups: what is asked, where it runs, what is written, and an example with the time that it takes."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from powerprof.cli.examples import EXAMPLES
from powerprof.errors import DataError, UsageError

# What has no group of its own.
_OWN = "Options"
# How click writes the range of a number.
LIMITS = r"(?P<low>[\d.e+-]+)<=x<=(?P<high>[\d.e+-]+)|x>=(?P<least>[\d.e+-]+)|x<=(?P<most>[\d.e+-]+)"


def _grouped(number: str) -> str:
    return f"{int(number):,}" if number.isdigit() and len(number) > 4 else number


def limits(text: str) -> str:
    """`1<=x<=1000` as `1 to 1000`."""

    def in_words(match: re.Match[str]) -> str:
        if match["low"] is not None:
            return f"{_grouped(match['low'])} to {_grouped(match['high'])}"
        return f"from {_grouped(match['least'])}" if match["least"] is not None else f"to {_grouped(match['most'])}"

    return re.sub(LIMITS, in_words, text)


def narrow() -> int | None:
    """The width of a terminal that is narrower than the 50 columns that help is never wrapped below; else None."""
    columns = shutil.get_terminal_size((80, 24)).columns
    return max(30, columns - 2) if columns < 52 else None


# Numbers as people write them; inf and nan are refused with the others that are not finite.
_PLAIN = re.compile(r"\s*[\x21-\x5e\x60-\x7e]+\s*", re.ASCII)
# Where a command's context keeps the options that were typed: option → its values.
_GIVEN = "powerprof.given"


def as_typed(text: str, ctx: Any) -> str:
    """`--step 0.0: must be …` as it was typed, `--step 0: must be …`: a number was read before it was refused."""
    option = text.partition(" ")[0]
    values = ctx.meta.get(_GIVEN, {}).get(option) if ctx else None
    return re.sub(r"^(\S+) \S+: must", rf"{option} {values[-1].strip()}: must", text) if values else text


@contextmanager
def _named(ctx: typer.Context) -> Iterator[None]:
    """A damaged file's error begins with the option that named it, and has a hint."""
    try:
        yield
    except DataError as error:
        for option, values in ctx.meta.get(_GIVEN, {}).items():
            if any(Path(value) == Path(error.path) for value in values) and not error.message.startswith(option):
                error.message = f"{option} {error.message}"
                break
        error.hint = error.hint or f"what it takes: {ctx.command_path} --help"
        raise


class GroupedHelp(TyperCommand):
    """A subcommand whose options are listed in their groups."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Refuse an empty value: `--json "$FILE"` without such a variable would mean this folder; what is no text,
        which no report and no saved run could name; a second value, of which one would be ignored. Raises UsageError.
        """
        for raw in args:
            if "\0" in raw or any("\ud800" <= char <= "\udfff" for char in raw):
                raise UsageError(f"{raw} is not UTF-8", "rename it, or give it another name by a link")
        options = [parameter for parameter in self.get_params(ctx) if parameter.param_type_name == "option"]
        takes = {name: option for option in options if not getattr(option, "is_flag", False) for name in option.opts}
        own = {name for option in options for name in option.opts}
        given: dict[str, list[str]] = {}
        for word, after in pairwise([*args, None]):
            if word is None or word == "--":
                break
            option, equals, value = word.partition("=")
            typed = value if equals else after
            if word == "":
                raise UsageError("an argument is empty", "give it a value, or leave it out")
            if option not in takes:
                continue
            if typed is None:
                raise UsageError(f"{option} has no value", f"{ctx.command_path} --help")
            if not equals and typed in own:
                raise UsageError(f"{option} has no value: {typed} is the next option", f"give {option} its value first")
            if not typed.strip():
                raise UsageError(f"{option} has an empty value", "give it one, or leave it out")
            # Python takes the digits of every script for numbers, and 1_0 for 10: a mistake more often than that.
            if takes[option].type.name.startswith(("int", "float")) and not _PLAIN.fullmatch(typed):
                raise UsageError(f"{option} {typed}: not a number", f"{ctx.command_path} --help")
            if option in given and not getattr(takes[option], "multiple", False):
                raise UsageError(f"{option} {typed}: {option} was given before", "give it once")
            given.setdefault(option, []).append(typed)
        ctx.meta[_GIVEN] = given
        with _named(ctx):
            left = super().parse_args(ctx, args)
        for parameter in options:
            number = ctx.params.get(parameter.name or "")
            if isinstance(number, float) and not math.isfinite(number):
                raise UsageError(f"{parameter.opts[0]} {number}: not a finite number", "give it a number")
        return left

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """As the command runs; a file that is wrong is named with the option that named it."""
        with _named(ctx):
            return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """`[A]`, not `[[A]]`."""
        return [re.sub(r"^\[(\[.*\])\]$", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """The options under the headings of their groups, the command's own first."""
        sections: dict[str, list[tuple[str, str]]] = {_OWN: []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            is_argument = parameter.param_type_name == "argument"
            heading = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or _OWN
            # Some versions of Typer add the type to the name of an argument, and brackets around those that it has.
            sections.setdefault(heading, []).append((re.sub(r" <\w+>$", "", record[0]), limits(record[1])))
        for heading in ("Arguments", *(name for name in sections if name != "Arguments")):
            if sections.get(heading):
                with formatter.section(heading):
                    formatter.write_dl(sections[heading])

    def format_epilog(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """The example, and how long it usually takes."""
        example = EXAMPLES.get(self.name or "")
        if example is not None:
            with formatter.section("Example"):
                formatter.write_text(example.typed)
                formatter.write_text(f"takes {example.takes}")
