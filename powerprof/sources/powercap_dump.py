# SPDX-License-Identifier: Apache-2.0
"""Recorded powercap zones: dumps of sysfs as `path|value` lines, `path:` blocks, or `path:value` lines of grep.

A file may hold several dumps one after the other: each begins at a line `Timestamp | EPOCH`, or where a path comes
again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from powerprof.errors import DataError
from powerprof.sources.rapl import Zone, zone_of
from powerprof.untrusted import loader, whole

_LEAVES = r"name|energy_uj|max_energy_range_uj|constraint_\d+_(?:max_power|power_limit)_uw"
_FILE = re.compile(rf"(?:.*/)?(intel-rapl[^/]*)/({_LEAVES})")
_STAMP = re.compile(r"Timestamp\s*\|\s*([\d.]+)\s*")
_COUNTS = ("energy_uj", "max_energy_range_uj")
_LONGEST = 4096


@dataclass(frozen=True)
class PowercapDump:
    """One dump: zones by id with their counters in µJ. `time_s` is its epoch time, None where it says none."""

    path: str
    line: int
    time_s: float | None
    zones: dict[str, Zone]
    energy_uj: dict[str, int | None]


def looks_like_powercap(text: str) -> bool:
    """Whether the text has RAPL zones' files in it."""
    lines = text[:200_000].splitlines()[:2000]
    return any("intel-rapl" in line and _FILE.search(line[:_LONGEST]) for line in lines)


@loader
def parse_powercap(text: str, path: Path | str) -> list[PowercapDump]:
    """The dumps of a text, in its order. Raises DataError(path, reason, line)."""
    dumps: list[PowercapDump] = []
    files: dict[str, tuple[str, int]] = {}
    begin, when = 1, None
    for name, value, line in _cells(text, path):
        stamp = name == "Timestamp"
        if files and (stamp or name in files):
            dumps.append(_dump(files, when, begin, path))
            files, begin, when = {}, line, None
        if stamp:
            when, begin = float(value), line
        else:
            files[name] = (value, line)
    if files:
        dumps.append(_dump(files, when, begin, path))
    if not dumps or not any(dump.zones for dump in dumps):
        raise DataError(path, "no RAPL energy counters in it", hint="a dump has lines like …/intel-rapl:0/energy_uj")
    return dumps


def _cells(text: str, path: Path | str) -> Iterator[tuple[str, str, int]]:
    """(path, value, line) of every file that matters here, and the time stamps."""
    pending: str | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if len(line) > _LONGEST:
            raise DataError(path, "line too long", number)
        stamp = _STAMP.fullmatch(line)
        if stamp:
            pending = None
            try:
                yield "Timestamp", str(float(stamp[1])), number
            except ValueError:
                raise DataError(path, f"not an epoch time: {stamp[1][:30]!r}", number) from None
            continue
        if pending is not None and line and not _is_path(line):
            yield pending, line, number
            pending = None
            continue
        pending = None
        name, bar, value = line.partition("|")
        if bar and _FILE.fullmatch(name):
            yield name, value, number
        elif line.endswith(":") and _FILE.fullmatch(line[:-1]):
            pending = line[:-1]
        elif not bar:
            match = re.fullmatch(rf"(\S*/(?:{_LEAVES})):(.*)", line)
            if match and _FILE.fullmatch(match[1]):
                yield match[1], match[2], number


def _is_path(line: str) -> bool:
    return line.startswith("/") or _FILE.match(line) is not None


def _dump(files: dict[str, tuple[str, int]], when: float | None, begin: int, path: Path | str) -> PowercapDump:
    by_zone: dict[str, dict[str, str]] = {}
    energy: dict[str, int | None] = {}
    for name, (value, line) in files.items():
        match = _FILE.fullmatch(name)
        if match is None:
            continue
        zone_id, leaf = match[1], match[2]
        text = value.strip()
        if leaf in _COUNTS and text and whole(text) is None:
            raise DataError(path, f"{zone_id}/{leaf} is not a counter ({text[:30]!r})", line)
        by_zone.setdefault(zone_id, {})[leaf] = text
        if leaf == "energy_uj":
            energy[zone_id] = int(text) if text else None
    zones = {zone_id: zone for zone_id, leaves in by_zone.items() if (zone := zone_of(zone_id, leaves)) is not None}
    return PowercapDump(str(path), begin, when, zones, energy)
