# SPDX-License-Identifier: Apache-2.0
"""Profiles for other programs: pprof, OTLP, and a folder with one profile per minute.

pprof files are gzipped protocol buffers. Field numbers are those of proto/profile.proto in github.com/google/pprof.
"""

from __future__ import annotations

import gzip
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from powerprof import __version__
from powerprof.live.intervals import REST, LiveInterval
from powerprof.model.text import Say
from powerprof.report.stacks import Frames
from powerprof.system.caller import as_caller, caller, is_delegated
from powerprof.system.closeable import Closeable
from powerprof.system.errors import PowerprofError
from powerprof.system.files import reason_of
from powerprof.system.folders import Folder, only_root_writes
from powerprof.system.next_steps import system_command

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


# `export --pprof-dir` writes a profile per minute for Pyroscope, Parca, Grafana or `go tool pprof`.
# Its sum is all idle exits and all C0 time of the host, including kernel threads and unattributed exits.

EVERY_S = 60.0
# One day. The profile of a busy host has about 20 KB.
KEPT = 1440
# Names contain the time in UTC, so that their order is the order of time.
_NAME = re.compile(r"powerprof-\d{8}T\d{6}Z\.pb\.gz")
_MODE = 0o640
_TYPES = (("idle_exits", "count"), ("c0", "nanoseconds"))


class ProfileFolder(Closeable):
    """A folder with one profile per minute, of which the newest `kept` stay. Other files in it are not touched."""

    def __init__(self, path: Path, say: Say, *, kept: int = KEPT, every_s: float = EVERY_S) -> None:
        """Raise PowerprofError if the folder is missing, or if other accounts could replace a profile in it."""
        self._path, self._say, self._kept, self._every_s = path, say, kept, every_s
        self._failed: str | None = None
        self._clear()
        try:
            with as_caller():
                self._folder: Folder | None = Folder.open(path)
        except OSError as error:
            raise PowerprofError(
                f"cannot write profiles to {path} ({reason_of(error)})", system_command("mkdir {}", path)
            ) from error
        reason = self._why_not(self._folder)
        if reason is not None:
            self.close()
            raise PowerprofError(
                f"cannot write profiles to {path} ({reason})", "name a folder that only you may write to"
            )

    def close(self) -> None:
        if self._folder is not None:
            os.close(self._folder.handle)
        self._folder = None

    def add(self, interval: LiveInterval) -> None:
        """Add an interval, and write the profile of a full minute.

        A profile that cannot be written is reported and lost.
        """
        for row in interval.rows:
            # A row of the kernel has no stack: its function is its cause.
            frames = tuple(reversed(row.stack)) or (row.key.function,)
            self._add((row.key.process, row.key.thread, *frames), row.exits_count, row.c0_s)
        self._add(
            (REST.process,),
            interval.exits_count - sum(row.exits_count for row in interval.rows),
            interval.c0_s - sum(row.c0_s for row in interval.rows),
        )
        self._window_s += interval.window_s
        if self._window_s >= self._every_s - interval.window_s / 2:
            self._write(interval.ended_at)

    def _add(self, frames: Frames, exits: int, c0_s: float) -> None:
        sums = self._sums.setdefault(frames, [0, 0])
        sums[0] += max(0, exits)
        sums[1] += max(0, round(c0_s * 1e9))

    def _clear(self) -> None:
        self._sums: dict[Frames, list[int]] = {}
        self._window_s = 0.0

    def _why_not(self, folder: Folder) -> str | None:
        if os.geteuid() == 0 and not is_delegated():
            return only_root_writes(self._path)
        # Under sudo the folder belongs to the caller, whose rights write and remove the files.
        info = folder.stat()
        if info.st_uid != caller().uid or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return "it belongs to another user, or others may write to it"
        return None

    def _write(self, ended_at: str) -> None:
        samples = sorted((frames, sums) for frames, sums in self._sums.items() if any(sums))
        ended = datetime.fromisoformat(ended_at).astimezone(UTC)
        data = encode_pprof(
            samples,
            _TYPES,
            time_ns=round((ended.timestamp() - self._window_s) * 1e9),
            duration_ns=round(self._window_s * 1e9),
        )
        self._clear()
        try:
            self._replace(f"powerprof-{ended:%Y%m%dT%H%M%SZ}.pb.gz", data)
            self._failed = None
        except OSError as error:
            # The export continues: a full disk may have room in an hour, and the metrics do not depend on it.
            if reason_of(error) != self._failed:
                self._failed = reason_of(error)
                self._say(f"cannot write a profile to {self._path} ({self._failed})")

    def _replace(self, name: str, data: bytes) -> None:
        if self._folder is None:
            return
        with as_caller():
            # Old files are removed first, so that a full disk has room. Files from the future are the oldest: the clock
            # was set back.
            mine = sorted(filter(_NAME.fullmatch, self._folder.names()), key=lambda old: (old <= name, old))
            for old in mine[: max(0, len(mine) + 1 - self._kept)]:
                self._folder.remove(old)
            self._folder.write(name, data, _MODE)
