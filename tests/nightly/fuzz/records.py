# SPDX-License-Identifier: Apache-2.0
"""Sound records made from their own types, for the mutations to begin with: a new field is in them at once."""

from __future__ import annotations

import random
import typing
from typing import Any

import msgspec

_WORDS = ("timer", "hrtimer_wakeup", "mariadbd", "innodb/page_cleaner_thread", "C6", "idle-0001", "", "café")


def made(kind: Any, chance: random.Random, depth: int = 0) -> Any:
    """A value of the type, as JSON has it: every field filled, lists and mappings with one or two entries."""
    info = msgspec.inspect.type_info(kind)
    return _made(info, chance, depth)


def _made(info: msgspec.inspect.Type, chance: random.Random, depth: int) -> Any:
    i = msgspec.inspect
    match info:
        case i.StructType():
            fields = [f for f in info.fields if f.required or (depth < 7 and chance.random() < 0.8)]
            if info.array_like:
                return [_made(f.type, chance, depth + 1) for f in info.fields]
            return {f.encode_name: _made(f.type, chance, depth + 1) for f in fields}
        case i.UnionType():
            kinds = [one for one in info.types if depth < 8 or isinstance(one, i.NoneType)]
            return _made(chance.choice(kinds or list(info.types)), chance, depth + 1)
        case i.ListType() | i.VarTupleType() | i.SetType() | i.CollectionType():
            count = 0 if depth > 8 else chance.randint(info.min_length or 1, max(info.min_length or 1, 2))
            return [_made(info.item_type, chance, depth + 1) for _ in range(count)]
        case i.TupleType():
            return [_made(one, chance, depth + 1) for one in info.item_types]
        case i.DictType():
            return {_made(info.key_type, chance, depth): _made(info.value_type, chance, depth + 1) for _ in range(2)}
        case i.LiteralType():
            return chance.choice(list(info.values))
        case i.IntType():
            return chance.choice((1, 2, 7, 16, 400, 1 << 40))
        case i.FloatType():
            return chance.choice((0.5, 1.0, 2.5, 99.0))
        case i.BoolType():
            return chance.random() < 0.5
        case i.BytesType():
            return bytes(chance.choice((0, 8, 168)))
        case i.StrType():
            return chance.choice(_WORDS)
        case i.NoneType():
            return None
        case _:
            return chance.choice((None, 1, "x", [], {"a": 1.0}))


def several(kind: type, count: int = 3, **fixed: Any) -> list[bytes]:
    """Some records of one struct as JSON; `fixed` are top-level fields that stay as they are."""
    return [
        msgspec.json.encode({**typing.cast(dict, made(kind, random.Random(seed))), **fixed}) for seed in range(count)
    ]
