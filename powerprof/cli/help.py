# SPDX-License-Identifier: Apache-2.0
"""Help by groups: what is asked, where it runs, what is written, and an example with the time that it takes."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import typer
from typer.core import TyperCommand

from powerprof.cli.examples import EXAMPLES
from powerprof.errors import UsageError

# What has no group of its own.
_OWN = "Options"
_LIMITS = re.compile(r"(?P<low>[\d.e+-]+)<=x<=(?P<high>[\d.e+-]+)|x>=(?P<least>[\d.e+-]+)|x<=(?P<most>[\d.e+-]+)")


def limits(text: str) -> str:
    """`1<=x<=1000` as `1 to 1000`."""

    def said(match: re.Match[str]) -> str:
        if match["low"] is not None:
            return f"{match['low']} to {match['high']}"
        return f"from {match['least']}" if match["least"] is not None else f"to {match['most']}"

    return _LIMITS.sub(said, text)


class GroupedHelp(TyperCommand):
    """A subcommand whose options are told in their groups."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Refuse an empty value: `--json "$FILE"` without such a variable would mean this folder. Raises UsageError."""
        options = [parameter for parameter in self.get_params(ctx) if parameter.param_type_name == "option"]
        takes = {name for option in options if not getattr(option, "is_flag", False) for name in option.opts}
        for word, after in pairwise([*args, None]):
            if word is None or word == "--":
                break
            option, equals, value = word.partition("=")
            if option in takes and (value if equals else after) == "":
                raise UsageError(f"{option} has an empty value", "give it one, or leave it out")
        return super().parse_args(ctx, args)

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """The options under the headings of their groups, the command's own first."""
        sections: dict[str, list[tuple[str, str]]] = {_OWN: []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            is_argument = parameter.param_type_name == "argument"
            heading = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or _OWN
            sections.setdefault(heading, []).append((record[0], limits(record[1])))
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
