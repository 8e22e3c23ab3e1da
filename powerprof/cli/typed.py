# SPDX-License-Identifier: Apache-2.0
"""What was typed, as against what holds by default: an option that changes nothing here is refused."""

from __future__ import annotations

from collections.abc import Collection

import typer

from powerprof.errors import UsageError
from powerprof.text import listed


def typed(context: typer.Context) -> dict[str, str]:
    """The options that stand on the command line: the parameter's name → the option as it is documented."""
    given = {}
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.param_type_name == "option" and source is not None and source.name == "COMMANDLINE":
            given[parameter.name or ""] = parameter.opts[0]
    return given


def typed_command(context: typer.Context) -> tuple[str, ...]:
    """The words after --, as the table of commands put them aside; empty where there are none."""
    given = context.obj
    return given if isinstance(given, tuple) else ()


def refuse_without_effect(
    context: typer.Context, where: str, names: Collection[str] | None = None, *, but: Collection[str] = ()
) -> None:
    """Refuse those of the options `names` (None: all) that were typed, `but` some. Raises UsageError.

    `where` says in what they have no effect: somebody who gives an option expects that it changes something.
    """
    options = [
        option for name, option in typed(context).items() if (names is None or name in names) and name not in but
    ]
    if options:
        verb, those = ("has", "it") if len(options) == 1 else ("have", "them")
        raise UsageError(f"{listed(options)} {verb} no effect {where}", f"leave {those} out")


def refuse_too_few(option: str, number: int, least: int) -> None:
    """Refuse so few windows that no interval can be had from them. Raises UsageError."""
    if number < least:
        raise UsageError(f"{option} {number}: no interval can be had from fewer than {least}", f"{option} {least}")
