# SPDX-License-Identifier: Apache-2.0
"""Profiles in the format of pprof: gzipped protocol buffers.

Field numbers are those of proto/profile.proto in github.com/google/pprof.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Sequence

from powerprof.report.protobuf import DistinctValues, block, number, packed, text
from powerprof.report.stacks import Frames

SampleType = tuple[str, str]
"""The name and the unit of a value, such as ("c0", "nanoseconds")."""


def encode_pprof(
    samples: Iterable[tuple[Frames, Sequence[int]]],
    types: Sequence[SampleType],
    *,
    time_ns: int | None = None,
    duration_ns: int | None = None,
) -> bytes:
    """Return a profile in the format of pprof.

    Each distinct name is one function with one location: addresses would differ from host to host.

    Args:
        samples: Frames outermost first, and one value for each of `types`.
        types: The name and the unit of each value.
        time_ns: The start of the window, in Unix time.
        duration_ns: The length of the window.
    """
    strings, functions = DistinctValues(""), dict[str, int]()
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
    # Parca names a profile by its sample type and its period.
    body += block(11, number(1, strings[types[0][0]]) + number(2, strings[types[0][1]])) + number(12, 1)
    for name in strings.indexes:
        body += text(6, name)
    if time_ns is not None:
        body += number(9, time_ns)
    if duration_ns is not None:
        body += number(10, duration_ns)
    return gzip.compress(bytes(body), mtime=0)
