# SPDX-License-Identifier: Apache-2.0
"""The command line as its modules declare it, whatever version of Typer is installed."""

from __future__ import annotations

import inspect
import typing
from dataclasses import dataclass

import typer
from typer.models import ArgumentInfo, OptionInfo

from powerprof.cli.app import build_app


@dataclass(frozen=True)
class Parameter:
    """An option (`--name`) or an argument (its word) of a command."""

    name: str
    metavar: str | None
    help: str
    default: object
    low: float | None
    high: float | None
    takes_value: bool
    required: bool
    kind: object


@dataclass(frozen=True)
class Command:
    """A subcommand: its docstring, options and arguments in their order."""

    name: str
    help: str
    options: tuple[Parameter, ...]
    arguments: tuple[Parameter, ...]


def commands() -> dict[str, Command]:
    """Name → command, in the order of `powerprof --help`."""
    found = {}
    for registered in build_app().registered_commands:
        assert registered.name is not None
        assert registered.callback is not None
        parameters = list(_parameters(registered.callback))
        found[registered.name] = Command(
            registered.name,
            inspect.cleandoc(registered.help or ""),
            tuple(one for one in parameters if one.name.startswith("-")),
            tuple(one for one in parameters if not one.name.startswith("-")),
        )
    return found


def _parameters(function: typing.Callable[..., object]) -> typing.Iterator[Parameter]:
    hints = typing.get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        if hints[name] is typer.Context:
            continue
        kind, *extras = typing.get_args(hints[name])
        (info,) = [one for one in extras if isinstance(one, OptionInfo | ArgumentInfo)]
        required = parameter.default is inspect.Parameter.empty
        yield Parameter(
            _word(info, name),
            info.metavar,
            " ".join((info.help or "").split()),
            None if required else parameter.default,
            info.min,
            info.max,
            isinstance(info, ArgumentInfo) or kind is not bool,
            required,
            kind,
        )


def _word(info: OptionInfo | ArgumentInfo, name: str) -> str:
    if isinstance(info, ArgumentInfo):
        return (info.metavar or name.upper()).strip("[]")
    # Inside Annotated the first positional argument of typer.Option is the option's name, not its default.
    words = [word for word in (info.default, *(info.param_decls or ())) if isinstance(word, str)]
    return next((word for word in words if word.startswith("--")), f"--{name.replace('_', '-')}")
