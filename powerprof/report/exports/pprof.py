# SPDX-License-Identifier: Apache-2.0
"""The profile format of pprof: a gzipped protocol buffer, written by hand because it is that small.

Field numbers are those of proto/profile.proto of github.com/google/pprof. `go tool pprof` and its web view open it.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Sequence

from powerprof.report.stacks.samples import Frames

SampleType = tuple[str, str]
"""What a value is and its unit, such as ("c0", "nanoseconds")."""

_MASK = (1 << 64) - 1


def _varint(value: int) -> bytes:
    value &= _MASK  # negative numbers are ten bytes of two's complement
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value) if value else b""


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


class _Strings:
    """The string table: index 0 is the empty string."""

    def __init__(self) -> None:
        self.indexes = {"": 0}

    def __getitem__(self, text: str) -> int:
        return self.indexes.setdefault(text, len(self.indexes))


def encode_pprof(
    samples: Iterable[tuple[Frames, Sequence[int]]],
    types: Sequence[SampleType],
    *,
    time_ns: int | None = None,
    duration_ns: int | None = None,
) -> bytes:
    """The profile. Frames are outermost first; every sample has one value for each of `types`. It began at `time_ns`
    (Unix time).

    Each distinct name is one function with one location: addresses differ from host to host and say less.
    """
    strings, functions = _Strings(), dict[str, int]()
    body = bytearray()
    for kind, unit in types:
        body += _bytes(1, _number(1, strings[kind]) + _number(2, strings[unit]))
    for frames, values in samples:
        places = [functions.setdefault(name, len(functions) + 1) for name in reversed(frames)]
        body += _bytes(2, _bytes(1, b"".join(map(_varint, places))) + _bytes(2, b"".join(map(_varint, values))))
    for name, number in functions.items():
        body += _bytes(4, _number(1, number) + _bytes(4, _number(1, number)))
        body += _bytes(5, _number(1, number) + _number(2, strings[name]) + _number(3, strings[name]))
    body += _number(14, strings[types[0][0]])
    for text in strings.indexes:
        body += _bytes(6, text.encode("utf-8", "replace"))
    if time_ns is not None:
        body += _number(9, time_ns)
    if duration_ns is not None:
        body += _number(10, duration_ns)
    return gzip.compress(bytes(body), mtime=0)
