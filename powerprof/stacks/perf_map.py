# SPDX-License-Identifier: Apache-2.0
"""Perf maps: the names that a just-in-time compiler writes for its code, read as untrusted text.

Format (Linux tools/perf/Documentation/jit-interface.txt): `START SIZE name` per line, with hexadecimal numbers.
The file belongs to the profiled process, which can change it at any time.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from itertools import pairwise

import msgspec

from powerprof.stacks.image import ProcessImage
from powerprof.system.files import try_text
from powerprof.system.foreign_text import printable
from powerprof.system.paths import procfs
from powerprof.system.process_stat import read_process_stat
from powerprof.system.reader_process import Opened, shared
from powerprof.system.tasks import process_folder

# Several times as many as large JIT programs write. A hostile map of overlapping entries takes about 1 s and 60 MB.
MAX_ENTRIES = 150_000
MAX_BYTES = 32 << 20
MAX_SECONDS = 1.0
MAX_LINE_BYTES = 4096
MAX_NAMES_BYTES = 16 << 20
_CHUNK_BYTES = 256 << 10


class PerfMap(msgspec.Struct, frozen=True):
    """Disjoint [start, end) → name, sorted. `notes` are the reasons for omissions."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    names: tuple[str, ...]
    notes: tuple[str, ...]

    def lookup(self, address: int) -> tuple[str, int] | None:
        """Return (name, start) of the code at an address."""
        at = bisect_right(self.starts, address) - 1
        if at >= 0 and address < self.ends[at]:
            return self.names[at], self.starts[at]
        return None


NO_PERF_MAP = PerfMap((), (), (), ())


def read_perf_map(image: ProcessImage) -> PerfMap:
    """Return the perf map of a living process; NO_PERF_MAP if there is none, with a note if it may not be used."""
    base = process_folder(image.pid)
    path = f"/tmp/perf-{image.namespace_pid or image.pid}.map"  # noqa: S108 - the name is the interface
    opened = shared().open_in_root(image.pid, base / "root", path, follow=False)
    if not isinstance(opened, Opened):
        absent = opened == "no such file"
        return NO_PERF_MAP if absent else PerfMap((), (), (), (f"{path}: not read ({opened})",))
    with opened:
        try:
            # The /proc folder of a process that changed its account belongs to root.
            owner = base.stat().st_uid if image.uid is None else image.uid
        except OSError:
            return NO_PERF_MAP
        stat = read_process_stat(image.pid)
        if stat is None or stat.started_ticks != image.started_ticks:
            return NO_PERF_MAP  # The pid was reused, so the map belongs to another process.
        refusal = find_owner_refusal(opened.uid, owner) or _find_refusal(opened, image)
        if refusal:
            return PerfMap((), (), (), (f"{path}: not read ({refusal})",))
        return _parse(opened.fd, path)


def find_owner_refusal(file_uid: int, process_uid: int) -> str | None:
    """Return why a map's owner is refused: any account can create the name in /tmp before the process does."""
    return None if file_uid in (0, process_uid) else f"owned by user {file_uid}, the process is of user {process_uid}"


def _find_refusal(opened: Opened, image: ProcessImage) -> str | None:
    """Return why a file of the right owner is refused."""
    if opened.mode & 0o002:
        return "anybody may write it: chmod o-w"
    booted = next((line.split()[1] for line in (try_text(procfs() / "stat") or "").splitlines() if "btime" in line), "")
    if booted.isdecimal():
        started_s = int(booted) + image.started_ticks / os.sysconf("SC_CLK_TCK")
        # The kernel reports the boot time in whole seconds.
        if opened.mtime_ns / 1e9 < started_s - 2:
            return "older than the process: an earlier one of the same number wrote it"
    return None


def _parse(fd: int, path: str) -> PerfMap:
    entries: list[tuple[int, int, str]] = []
    malformed = total = names = 0
    notes: list[str] = []
    rest = b""
    skipping = False
    deadline = time.monotonic() + MAX_SECONDS
    while True:
        try:
            chunk = os.read(fd, _CHUNK_BYTES)
        except OSError as error:
            notes.append(f"{path}: cannot be read further ({error.strerror})")
            break
        if not chunk:
            break
        total += len(chunk)
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        for line in lines:
            if skipping:
                skipping = False
                continue
            entry = _parse_entry(line)
            if entry is None:
                malformed += bool(line.strip())
                continue
            names += len(entry[2])
            entries.append(entry)
        if len(rest) > MAX_LINE_BYTES:
            malformed += not skipping
            rest, skipping = b"", True
        over = (
            f"{MAX_BYTES >> 20} MiB"
            if total >= MAX_BYTES
            else f"{MAX_ENTRIES:,} entries"
            if len(entries) >= MAX_ENTRIES
            else f"{MAX_NAMES_BYTES >> 20} MiB of names"
            if names >= MAX_NAMES_BYTES
            else f"{MAX_SECONDS:g} s"
            if time.monotonic() > deadline
            else None
        )
        if over:
            notes.append(f"{path}: read only the first {over}; later code has no names")
            rest = b""
            break
    last = None if skipping else _parse_entry(rest)
    if last is not None:
        entries.append(last)
    if malformed:
        notes.append(f"{path}: {malformed:,} malformed lines were skipped")
    return _make_disjoint(entries[:MAX_ENTRIES], notes)


def _parse_entry(line: bytes) -> tuple[int, int, str] | None:
    if len(line) > MAX_LINE_BYTES:
        return None
    parts = line.split(None, 2)
    if len(parts) != 3 or len(parts[0]) > 18 or len(parts[1]) > 18:
        return None
    try:
        start, size = int(parts[0], 16), int(parts[1], 16)
    except ValueError:
        return None
    if not 0 < size <= 1 << 32 or not 0 <= start < 1 << 63:
        return None
    name = printable(parts[2].strip().decode("utf-8", "replace"))
    return (start, start + size, name) if name else None


def _make_disjoint(entries: list[tuple[int, int, str]], notes: list[str]) -> PerfMap:
    """Return disjoint entries; later lines win, because a compiler reuses memory and appends the new entry."""
    ordered = sorted(range(len(entries)), key=lambda index: entries[index][0])
    if all(entries[a][1] <= entries[b][0] for a, b in pairwise(ordered)):
        kept = [entries[index] for index in ordered]
    else:
        kept = _sweep(entries)
    return PerfMap(
        tuple(entry[0] for entry in kept),
        tuple(entry[1] for entry in kept),
        tuple(entry[2] for entry in kept),
        tuple(notes),
    )


def _sweep(entries: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    # Over all edges in order, the youngest open entry owns the range up to the next edge.
    import heapq

    edges = sorted({edge for start, end, _ in entries for edge in (start, end)})
    by_start = sorted(range(len(entries)), key=lambda index: entries[index][0])
    kept: list[tuple[int, int, str]] = []
    live: list[int] = []
    coming = 0
    owner = -1
    for low, high in pairwise(edges):
        while coming < len(by_start) and entries[by_start[coming]][0] <= low:
            heapq.heappush(live, -by_start[coming])
            coming += 1
        while live and entries[-live[0]][1] <= low:
            heapq.heappop(live)
        if not live:
            owner = -1
            continue
        if -live[0] == owner and kept and kept[-1][1] == low:
            kept[-1] = (kept[-1][0], high, kept[-1][2])
        else:
            owner = -live[0]
            kept.append((low, high, entries[owner][2]))
    return kept
