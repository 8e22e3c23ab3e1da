# SPDX-License-Identifier: Apache-2.0
"""Records whose figures are all different and not 0, so that a swapped or forgotten field shows."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from itertools import count
from typing import Any, TypeVar

import msgspec

RecordT = TypeVar("RecordT", bound=msgspec.Struct)


def odd(record: type[RecordT], start: float = 1.0, /, **fixed: Any) -> RecordT:
    """Return a record with the `fixed` fields and a different number in every other figure, from `start` on."""
    numbers = (start + 1.37 * number for number in count())
    return _fill(record, numbers, fixed)


def _fill(kind: Any, numbers: Iterator[float], fixed: dict[str, Any]) -> Any:
    hints = typing.get_type_hints(kind)
    values = dict(fixed)
    for field in msgspec.structs.fields(kind):
        if field.name not in values and (field.required or _figure_of(hints[field.name]) is not None):
            values[field.name] = _value(hints[field.name], field.name, numbers)
    return kind(**values)


def _figure_of(hint: Any) -> type | None:
    """Return float or int for a figure's type, also if it may be None."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return next((kind for kind in kinds if kind in (float, int)), None)


def _value(hint: Any, name: str, numbers: Iterator[float]) -> Any:
    figure = _figure_of(hint)
    if figure is not None:
        return figure(round(next(numbers), 3) if figure is float else next(numbers) * 7)
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)[0]
    return [] if typing.get_origin(hint) in (list, tuple) else name


def figures(record: msgspec.Struct) -> dict[str, float]:
    """Return the figures of a record by name, without bool and None."""
    values = {name: getattr(record, name) for name in record.__struct_fields__}
    return {name: value for name, value in values.items() if type(value) in (int, float)}
