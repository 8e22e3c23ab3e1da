# SPDX-License-Identifier: Apache-2.0
"""The profile format of pprof: a gzipped protocol buffer.

Field numbers are those of proto/profile.proto of github.com/google/pprof. `go tool pprof` and its web view open it.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Sequence

from powerprof.report.exports.protobuf import Strings, block, number, packed, text
from powerprof.report.stacks.samples import Frames

SampleType = tuple[str, str]
"""What a value is and its unit, such as ("c0", "nanoseconds")."""


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
    strings, functions = Strings(), dict[str, int]()
    body = bytearray()
    for kind, unit in types:
        body += block(1, number(1, strings[kind]) + number(2, strings[unit]))
    for frames, values in samples:
        places = [functions.setdefault(name, len(functions) + 1) for name in reversed(frames)]
        body += block(2, packed(1, places) + packed(2, values))
    for name, place in functions.items():
        body += block(4, number(1, place) + block(4, number(1, place)))
        body += block(5, number(1, place) + number(2, strings[name]) + number(3, strings[name]))
    body += number(14, strings[types[0][0]])
    for name in strings.indexes:
        body += text(6, name)
    if time_ns is not None:
        body += number(9, time_ns)
    if duration_ns is not None:
        body += number(10, duration_ns)
    return gzip.compress(bytes(body), mtime=0)
