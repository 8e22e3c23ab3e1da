# SPDX-License-Identifier: Apache-2.0
"""Notes and answers are values until a record is saved or shown; here they become sentences."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pkgutil import resolve_name
from typing import Any, TypeVar, get_args

import msgspec

from powerprof.model.records import Note
from powerprof.report.notes import word_notes

R = TypeVar("R")

# Schema → the function that returns a record with its answer in words. Names, so that no report is loaded for another.
_ANSWERS: Mapping[str, str] = {
    "powerprof.comparison/1": "report.comparison_words:word_comparison",
    "powerprof.sweepcomparison/1": "report.sweep_comparison:word_sweep_comparison",
    "powerprof.cure/1": "report.cure:word_cure",
    "powerprof.trend/1": "report.trend:word_trend",
}


def word_record(record: R) -> R:
    """Return the record with its notes and its answer in words; sentences of a saved record stay."""
    worded: R = _with_notes(record)
    return word_answer(worded)


def word_answer(record: R) -> R:
    """Return the record with its answer in words, if its kind has an answer."""
    name = _ANSWERS.get(getattr(record, "schema", ""))
    if name is None:
        return record
    worded: R = resolve_name(f"powerprof.{name}")(record)
    return worded


def _with_notes(value: Any) -> Any:
    """Return the same value with every note in words."""
    if isinstance(value, Note):
        return word_notes([value])[0]
    if isinstance(value, list | tuple):
        worded = [_with_notes(each) for each in value]
        return value if all(old is new for old, new in zip(value, worded, strict=True)) else worded
    if not isinstance(value, msgspec.Struct):
        return value
    changed = {}
    for name in _fields_with_notes(type(value)):
        old = getattr(value, name)
        if (new := _with_notes(old)) is not old:
            changed[name] = new
    return msgspec.structs.replace(value, **changed) if changed else value


@cache
def _fields_with_notes(record: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(record) if _holds_notes(field.type, (record,)))


def _holds_notes(annotation: Any, outer: tuple[Any, ...]) -> bool:
    if annotation is Note:
        return True
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        # A record may hold others of its own type.
        fields = () if annotation in outer else msgspec.structs.fields(annotation)
        return any(_holds_notes(field.type, (*outer, annotation)) for field in fields)
    return any(_holds_notes(part, outer) for part in get_args(annotation))
