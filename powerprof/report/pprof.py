# SPDX-License-Identifier: Apache-2.0
"""Profiles for other programs: pprof, OTLP, and the last intervals of the exporter as pprof.

pprof files are gzipped protocol buffers. Field numbers are those of proto/profile.proto in github.com/google/pprof.
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Generic, TypeVar

import msgspec

from powerprof import __version__
from powerprof.live.intervals import REST, LiveInterval
from powerprof.report.stacks import Frames

# The subset of protocol buffers that profiles need is small, so there is no dependency for it.
#
# https://protobuf.dev/programming-guides/encoding/

T = TypeVar("T", str, bytes)
_MASK = (1 << 64) - 1


def varint(value: int) -> bytes:
    """Return a number with seven bits per byte, the lowest bits first."""
    value &= _MASK  # negative numbers have ten bytes, in two's complement
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """Return a field with a whole number; nothing for 0, which is the default of readers."""
    return varint(field << 3) + varint(value) if value else b""


def fixed64(field: int, value: int) -> bytes:
    """Return a field with a whole number in eight bytes; nothing for 0."""
    return varint(field << 3 | 1) + (value & _MASK).to_bytes(8, "little") if value else b""


def block(field: int, data: bytes) -> bytes:
    """Return a field with bytes or a message."""
    return varint(field << 3 | 2) + varint(len(data)) + data


def text(field: int, value: str) -> bytes:
    """Return a field with a string."""
    return block(field, value.encode("utf-8", "replace"))


def packed(field: int, values: Iterable[int]) -> bytes:
    """Return a field with a sequence of whole numbers; nothing for an empty one."""
    data = b"".join(map(varint, values))
    return block(field, data) if data else b""


class _DistinctValues(Generic[T]):
    """Distinct values by index; the first is empty."""

    def __init__(self, empty: T) -> None:
        self.indexes: dict[T, int] = {empty: 0}

    def __getitem__(self, value: T) -> int:
        return self.indexes.setdefault(value, len(self.indexes))


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
    strings, functions = _DistinctValues(""), dict[str, int]()
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


# OTLP: the message ProfilesData, which is also the body of a request to a collector.
# Field numbers are those of opentelemetry/proto/profiles/v1development/profiles.proto with stacks in the dictionary
# (opentelemetry-proto 1.40 and later on PyPI). That format is in development and may change. Attributes have the names
# of the semantic conventions if there is one; other names begin with `powerprof.`.

Attributes = Mapping[str, str | int]
_KERNEL = "_[k]"


class OtlpProfile(msgspec.Struct, frozen=True):
    """The name and the unit of a value, and samples: frames outermost first, attributes of the owner, value."""

    kind: str
    unit: str
    samples: Sequence[tuple[Frames, Attributes, int]]


def _write_messages(field: int, messages: Iterable[bytes]) -> bytes:
    return b"".join(block(field, message) for message in messages)


class _Dictionary:
    """The tables that samples refer to."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules
        self.strings = _DistinctValues("")
        self._mappings, self._locations, self._functions = (_DistinctValues(b"") for _ in range(3))
        self._attributes, self._stacks = _DistinctValues(b""), _DistinctValues(b"")

    def attribute(self, key: str, value: str | int) -> int:
        return self._attributes[number(1, self.strings[key]) + block(2, _any(value))]

    def stack(self, frames: Frames) -> int:
        return self._stacks[packed(1, [self._location(name) for name in reversed(frames)])]

    def _location(self, label: str) -> int:
        module = self._modules.get(label)
        mapping = self._mappings[number(4, self.strings[module])] if module else 0
        name = label.removesuffix(_KERNEL)
        function = self._functions[number(1, self.strings[name])]
        of_kernel = [self.attribute("profile.frame.type", "kernel")] if label.endswith(_KERNEL) else []
        return self._locations[number(1, mapping) + block(3, number(1, function)) + packed(4, of_kernel)]

    def written(self) -> bytes:
        return b"".join(
            (
                _write_messages(1, self._mappings.indexes),
                _write_messages(2, self._locations.indexes),
                _write_messages(3, self._functions.indexes),
                _write_messages(4, [b""]),  # no links to traces
                b"".join(text(5, name) for name in self.strings.indexes),
                _write_messages(6, self._attributes.indexes),
                _write_messages(7, self._stacks.indexes),
            )
        )


def _any(value: str | int) -> bytes:
    # A member of a oneof: 0 is written too.
    return varint(3 << 3) + varint(value) if isinstance(value, int) else text(1, value)


def encode_otlp(
    profiles: Iterable[OtlpProfile],
    resource: Attributes,
    modules: Mapping[str, str],
    *,
    time_ns: int | None,
    duration_ns: int,
) -> bytes:
    """Return the message ProfilesData.

    Samples with the same stack and attributes are added; samples without a value are left out.

    Args:
        profiles: The profiles of one window.
        resource: Attributes of the profiled program and host.
        modules: The file of each frame.
        time_ns: The start of the window, in Unix time.
        duration_ns: The length of the window.
    """
    dictionary = _Dictionary(modules)
    written = b"".join(block(2, _profile(dictionary, profile, time_ns, duration_ns)) for profile in profiles)
    scope = block(1, text(1, "powerprof") + text(2, __version__))
    about = b"".join(block(1, text(1, key) + block(2, _any(value))) for key, value in resource.items())
    return block(1, block(1, about) + block(2, scope + written)) + block(2, dictionary.written())


def _profile(dictionary: _Dictionary, profile: OtlpProfile, time_ns: int | None, duration_ns: int) -> bytes:
    sums: dict[tuple[int, tuple[int, ...]], int] = {}
    for frames, attributes, value in profile.samples:
        if value > 0:
            whose = tuple(dictionary.attribute(key, content) for key, content in attributes.items())
            identity = (dictionary.stack(frames), whose)
            sums[identity] = sums.get(identity, 0) + value
    strings = dictionary.strings
    body = [block(1, number(1, strings[profile.kind]) + number(2, strings[profile.unit]))]
    body += [
        block(2, number(1, stack) + packed(2, whose) + packed(4, [value])) for (stack, whose), value in sums.items()
    ]
    body += fixed64(3, time_ns or 0), number(4, duration_ns)
    # The id is a digest of the content, so that a receiver recognises a run that is sent twice.
    encoded = repr((profile, time_ns)).encode("utf-8", "replace")
    return b"".join(body) + block(7, blake2b(encoded, digest_size=16).digest())


# The last intervals of the exporter, for stores that scrape profiles (Parca, Grafana Alloy, go tool pprof).

PROFILES: Mapping[str, SampleType] = {"wakeups": ("idle_exits", "count"), "c0": ("c0", "nanoseconds")}
_KEPT_S = 300.0
# 10,000 stacks of 20 frames take 4 MB, and one profile of them 0.3 s of CPU time and 0.2 MB.
_MOST_STACKS, _MOST_MADE = 10_000, 4


class _Window(msgspec.Struct, frozen=True):
    """One interval: the values of `PROFILES` by stack, outermost frame first; they add up to the host."""

    ended_at: str
    length_s: float
    sums: Mapping[Frames, Sequence[int]]


class RecentProfiles:
    """The stacks of the last intervals, of bounded number. One thread adds intervals, and another reads profiles."""

    def __init__(self, kept_s: float = _KEPT_S, most_stacks: int = _MOST_STACKS) -> None:
        self._kept_s, self._most_stacks = kept_s, most_stacks
        # The windows, oldest first, and the profiles made of them. They change together, by one assignment.
        self._recent: tuple[tuple[_Window, ...], dict[tuple[str, int], bytes]] = ((), {})

    @property
    def names(self) -> Collection[str]:
        """Return the names of the profiles."""
        return PROFILES

    def add(self, interval: LiveInterval) -> None:
        """Add an interval, and drop the oldest ones beyond the time and the number of stacks that are kept."""
        newest = _Window(interval.ended_at, interval.window_s, _sum_stacks(interval, self._most_stacks))
        windows = [*self._recent[0], newest]
        while len(windows) > 1 and (
            sum(window.length_s for window in windows[1:]) >= self._kept_s
            or sum(len(window.sums) for window in windows) > self._most_stacks
        ):
            del windows[0]
        self._recent = tuple(windows), {}

    def render(self, name: str, seconds: float) -> bytes | None:
        """Return a profile of the last `seconds`, rounded to whole intervals; at least one. None if there is none."""
        windows, made = self._recent
        if not windows:
            return None
        count = _count_windows([window.length_s for window in windows], seconds)
        if (name, count) not in made:
            while len(made) >= _MOST_MADE:
                del made[next(iter(made))]
            made[name, count] = _encode_windows(windows[-count:], name)
        return made[name, count]


def _count_windows(lengths_s: Sequence[float], seconds: float) -> int:
    """Return the number of the last windows whose sum is nearest to `seconds`; at least 1."""
    covered_s, count = lengths_s[-1], 1
    for length_s in reversed(lengths_s[:-1]):
        if covered_s + length_s / 2 > seconds:
            break
        covered_s, count = covered_s + length_s, count + 1
    return count


def _sum_stacks(interval: LiveInterval, most: int) -> dict[Frames, Sequence[int]]:
    sums: dict[Frames, list[int]] = {}
    # A row of the kernel has no stack: its function is its cause.
    by_cost = sorted(interval.rows, key=lambda row: (row.exits_count, row.c0_s), reverse=True)
    for row in by_cost:
        frames = (row.key.process, row.key.thread, *(tuple(reversed(row.stack)) or (row.key.function,)))
        if frames in sums or len(sums) < most - 1:
            values = sums.setdefault(frames, [0, 0])
            values[0] += row.exits_count
            values[1] += round(row.c0_s * 1e9)
    exits, c0_ns = (sum(values[column] for values in sums.values()) for column in (0, 1))
    rest = max(0, interval.exits_count - exits), max(0, round(interval.c0_s * 1e9) - c0_ns)
    return {frames: values for frames, values in [*sums.items(), ((REST.process,), rest)] if any(values)}


def _encode_windows(windows: Sequence[_Window], name: str) -> bytes:
    column = list(PROFILES).index(name)
    sums: Counter[Frames] = Counter()
    for window in windows:
        for frames, values in window.sums.items():
            sums[frames] += values[column]
    length_s = sum(window.length_s for window in windows)
    ended_s = datetime.fromisoformat(windows[-1].ended_at).timestamp()
    return encode_pprof(
        sorted((frames, (value,)) for frames, value in sums.items() if value),
        (PROFILES[name],),
        time_ns=round((ended_s - length_s) * 1e9),
        duration_ns=round(length_s * 1e9),
    )
