# SPDX-License-Identifier: Apache-2.0
"""Groups of options: a dataclass in a command's signature stands for one option a field.

Typer knows no dataclasses, but it reads a command's options from its signature. So a command is declared with whole
groups, and Typer is given a function with the groups' fields in their places, which puts the groups together again.
A field may be a group itself.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """The command as Typer wants it: every group replaced by its fields, in their order, with their defaults."""
    hints = get_type_hints(command, include_extras=True)
    parameters = inspect.signature(command).parameters
    kinds = {name: hints[name] for name in parameters}
    spread_out = list(_options(kinds, {name: parameter.default for name, parameter in parameters.items()}))

    def call(**given: Any) -> None:
        command(**_gathered(kinds, given))

    # A signature refuses two options of one name: a command with two groups that share one is found at once.
    call.__signature__ = inspect.Signature(spread_out)  # type: ignore[attr-defined]
    call.__annotations__ = {option.name: option.annotation for option in spread_out}
    return call


def _options(kinds: dict[str, Any], defaults: dict[str, Any]) -> Iterator[inspect.Parameter]:
    for name, kind in kinds.items():
        if is_dataclass(kind):
            own = {f.name: inspect.Parameter.empty if f.default is MISSING else f.default for f in fields(kind)}
            yield from (_under(heading_of(kind), option) for option in _options(_kinds(kind), own))
        else:
            # Typer gives a command its context where it asks for one; that has no default.
            default = inspect.Parameter.empty if kind is typer.Context else defaults.get(name)
            yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)


def heading_of(group: Any) -> str:
    """What a group's options stand under in the help: the first sentence of its docstring."""
    return re.split(r"[.:;]", inspect.getdoc(group) or "")[0]


def _under(heading: str, option: inspect.Parameter) -> inspect.Parameter:
    """The option with that heading, unless a group within the group gave it one."""
    if get_origin(option.annotation) is not Annotated:
        return option
    kind, *extras = get_args(option.annotation)
    headed = [copy(extra) if isinstance(extra, OptionInfo) else extra for extra in extras]
    for extra in headed:
        if isinstance(extra, OptionInfo):
            extra.rich_help_panel = extra.rich_help_panel or heading
    return option.replace(annotation=Annotated[(kind, *headed)])


def _kinds(group: Any) -> dict[str, Any]:
    hints = get_type_hints(group, include_extras=True)
    return {field.name: hints[field.name] for field in fields(group)}


def _gathered(kinds: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    gathered = {}
    for name, kind in kinds.items():
        group: Any = kind if is_dataclass(kind) else None
        gathered[name] = group(**_gathered(_kinds(group), given)) if group else given[name]
    return gathered
