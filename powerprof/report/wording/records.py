# SPDX-License-Identifier: Apache-2.0
"""A record with its sentences, as it is saved and shown."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar, get_args

import msgspec

from powerprof.records import Note
from powerprof.report.documents.kinds import kind_of
from powerprof.report.wording.notes import texts

R = TypeVar("R")


def worded(record: R) -> R:
    """The record with every sentence that is not written yet; one of before has its own, which stay."""
    made: R = _with_notes(record)
    kind = kind_of(made)
    if kind is not None and kind.sentences:
        made = kind.load("sentences")(made)
    return made


def _with_notes(value: Any) -> Any:
    """The same with notes in words, wherever its type has some."""
    if isinstance(value, Note):
        return texts([value])[0]
    if isinstance(value, list | tuple):
        made = [_with_notes(each) for each in value]
        return value if all(old is new for old, new in zip(value, made, strict=True)) else made
    if not isinstance(value, msgspec.Struct):
        return value
    changed = {}
    for name in _fields_with_notes(type(value)):
        old = getattr(value, name)
        if (new := _with_notes(old)) is not old:
            changed[name] = new
    return msgspec.structs.replace(value, **changed) if changed else value


@cache
def _fields_with_notes(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(kind) if _holds_notes(field.type, (kind,)))


def _holds_notes(kind: Any, within: tuple[Any, ...]) -> bool:
    if kind is Note:
        return True
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        # A record may hold others of its own type.
        fields = () if kind in within else msgspec.structs.fields(kind)
        return any(_holds_notes(field.type, (*within, kind)) for field in fields)
    return any(_holds_notes(part, within) for part in get_args(kind))
