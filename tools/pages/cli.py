# SPDX-License-Identifier: Apache-2.0
"""The command line as its modules declare it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from powerprof.cli import parameters
from powerprof.cli.app import ModuleCommand
from powerprof.cli.commands import COMMANDS, module_name


@dataclass(frozen=True)
class Parameter:
    """An option (`--name`) or an argument (its word) of a command; `kind` is the type of its value.

    `heading` is the heading of its group in the help.
    """

    name: str
    metavar: str
    help: str
    default: object
    low: float | None
    high: float | None
    takes_value: bool
    required: bool
    kind: str
    heading: str
    unit: str = ""
    repeatable: bool = False


@dataclass(frozen=True)
class Command:
    """A subcommand: its docstring, options and arguments in their order."""

    name: str
    help: str
    options: tuple[Parameter, ...]
    arguments: tuple[Parameter, ...]


def commands() -> dict[str, Command]:
    """Name → command, in the order of `powerprof --help`."""
    return {name: _command(name) for name in COMMANDS}


def example_duration(name: str) -> str:
    """The duration of the example in the help of a command."""
    return ModuleCommand(name, import_module(module_name(name))).example_duration()


def _command(name: str) -> Command:
    module = import_module(module_name(name))
    declared = list(_parameters(module.Options))
    return Command(
        name,
        inspect.cleandoc(module.__doc__ or ""),
        tuple(parameter for parameter in declared if parameter.name.startswith("-")),
        tuple(parameter for parameter in declared if not parameter.name.startswith("-")),
    )


def _parameters(record: type[Any]) -> Iterator[Parameter]:
    types = dict(_types(record))
    for heading, name, declared in parameters.walk_parameters(record):
        yield Parameter(
            declared.flag or declared.metavar.strip("[]"),
            declared.metavar,
            declared.help,
            declared.default,
            declared.low,
            declared.high,
            not declared.is_flag,
            declared.is_required,
            types[name],
            heading,
            declared.unit,
            declared.is_repeatable,
        )


def _types(record: type[Any]) -> Iterator[tuple[str, str]]:
    for one in reversed(record.__mro__):
        yield from ((name, str(kind)) for name, kind in vars(one).get("__annotations__", {}).items())
    for _, declared in parameters._declarations(record):
        if isinstance(declared, type):
            yield from _types(declared)
