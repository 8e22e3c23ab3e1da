# SPDX-License-Identifier: Apache-2.0
"""Recorded cpuidle trees: text dumps of `/sys/devices/system/cpu`, in either of the two layouts that are
about.

    /sys/…/cpu0/cpuidle/state1/time:        /sys/…/cpu0/cpuidle/state1/time|1253058
    1253058

They come from outside: whatever is missing, no number or out of order is refused with its line. Other files
of the tree may be in the dump too and are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from powerprof.errors import DataError
from powerprof.files import read_outside_text
from powerprof.sources.base import CpuReading, Snapshot, StateInfo, is_polling
from powerprof.untrusted import loader

_FILE = re.compile(r"/\S*?/cpu(\d{1,6})/cpuidle/state(\d{1,3})/([a-z_]+)")
_DRIVER = re.compile(r"/\S*?/cpu/cpuidle/(current_driver|current_governor_ro)")
_NUMBER = re.compile(r"\d{1,20}")
_COUNTERS = ("time", "usage", "above", "below", "rejected")
_NEEDED = ("name", "time", "usage")
_LONGEST = 4096

Cell = tuple[str, int]  # a value and the line it stands on


@dataclass(frozen=True)
class Dump:
    """One dump. `lines` maps (cpu, state index, counter) to the line of its value."""

    path: Path
    snapshot: Snapshot
    lines: Mapping[tuple[int, int, str], int]
    driver: str | None = None
    governor: str | None = None


def _cells(lines: list[str], path: Path) -> Iterator[tuple[str, str | None, int]]:
    """(file, value or None where it is missing, line) of either layout."""
    number = 0
    while number < len(lines):
        line = lines[number].strip()
        number += 1
        if not line:
            continue
        if len(line) > _LONGEST:
            raise DataError(path, "line too long", number)
        name, bar, value = line.partition("|")
        if bar and name.startswith("/"):
            yield name, value.strip() or None, number
        elif line.startswith("/") and line.endswith(":"):
            following = lines[number].strip() if number < len(lines) else ""
            if not following or (following.startswith("/") and following.endswith(":")):
                yield line[:-1], None, number
            else:
                yield line[:-1], following[:_LONGEST], number + 1
                number += 1
        elif not line.startswith("/"):
            # A multi-line value of a file that is not ours would look like this; a cpuidle file never does.
            raise DataError(path, f"neither a sysfs path nor its value ({line[:40]!r})", number)
        else:
            raise DataError(path, f"a path without a value ({line[-60:]!r})", number)


def _collect(text: str, path: Path) -> tuple[dict[int, dict[int, dict[str, Cell]]], dict[str, str]]:
    cpus: dict[int, dict[int, dict[str, Cell]]] = {}
    about: dict[str, str] = {}
    for name, value, line in _cells(text.splitlines(), path):
        head = _DRIVER.fullmatch(name)
        if head and value:
            about[head[1]] = value
        match = _FILE.fullmatch(name)
        if match is None:
            continue
        cpu, state, leaf = int(match[1]), int(match[2]), match[3]
        short = f"cpu{cpu}/cpuidle/state{state}/{leaf}"
        if value is None:
            if leaf in _COUNTERS or leaf == "name":
                raise DataError(path, f"{short} has no value", line)
            continue
        if leaf in _COUNTERS and (not _NUMBER.fullmatch(value) or int(value) >= 1 << 64):
            raise DataError(path, f"{short} is not a counter ({value[:30]!r})", line)
        if not value.isprintable():
            raise DataError(path, f"{short} is not text ({value[:30]!r})", line)
        files = cpus.setdefault(cpu, {}).setdefault(state, {})
        if leaf in files:
            raise DataError(path, f"{short} appears twice, first on line {files[leaf][1]}", line)
        files[leaf] = (value, line)
    return cpus, about


@loader
def parse_dump(text: str, path: Path) -> Dump:
    """Parse a dump. Raises DataError(path, reason, line)."""
    cpus, about = _collect(text, path)
    if not cpus:
        hint = "a dump has lines like …/cpu0/cpuidle/state1/time"
        raise DataError(path, "no cpuidle counters in it", hint=hint)
    readings: dict[int, CpuReading] = {}
    lines: dict[tuple[int, int, str], int] = {}
    for cpu, states in sorted(cpus.items()):
        infos: list[StateInfo] = []
        for position, (state, files) in enumerate(sorted(states.items())):
            for leaf in _NEEDED:
                if leaf not in files:
                    first = min(line for _, line in files.values())
                    raise DataError(path, f"cpu{cpu}/cpuidle/state{state} has no {leaf}", first)
            name = files["name"][0]
            disabled = files.get("disable", ("0", 0))[0] != "0"
            infos.append(StateInfo(name, is_polling(name, files.get("desc", ("", 0))[0]), disabled))
            lines.update({(cpu, position, leaf): cell[1] for leaf, cell in files.items()})
        ordered = [files for _, files in sorted(states.items())]
        rows = [tuple(int(files[leaf][0]) if leaf in files else None for files in ordered) for leaf in _COUNTERS]
        time_us, usage = (tuple(value or 0 for value in row) for row in rows[:2])
        readings[cpu] = CpuReading(cpu, None, tuple(infos), time_us, usage, rows[2], rows[3], rows[4])
    governor = about.get("current_governor_ro")
    return Dump(path, Snapshot(readings), lines, about.get("current_driver"), governor)


def read_dump(path: Path) -> Dump:
    """As `parse_dump`, from a file of at most 64 MiB."""
    return parse_dump(read_outside_text(path, 64 << 20), path)


def check_pair(before: Dump, after: Dump) -> None:
    """Refuse two dumps that are not two moments of one machine. Raises DataError with the line of `after`."""
    old_cpus, new_cpus = before.snapshot.cpus, after.snapshot.cpus
    missing = sorted(set(old_cpus) ^ set(new_cpus))
    if missing:
        inside, outside = (before, after) if missing[0] in old_cpus else (after, before)
        raise DataError(outside.path, f"CPU {missing[0]} is missing, but {inside.path.name} has it")
    for cpu, old in old_cpus.items():
        new = new_cpus[cpu]
        if [state.name for state in old.states] != [state.name for state in new.states]:
            names = [", ".join(state.name for state in reading.states) for reading in (old, new)]
            line = min(line for (number, _, _), line in after.lines.items() if number == cpu)
            reason = f"CPU {cpu} has other idle states ({names[1]}) than before ({names[0]})"
            raise DataError(after.path, reason, line)
        for leaf in _COUNTERS:
            rows = [getattr(reading, "time_us" if leaf == "time" else leaf) for reading in (old, new)]
            for position, (then, now) in enumerate(zip(*rows, strict=True)):
                if then is not None and now is not None and now < then:
                    what = f"cpu{cpu}/cpuidle/{new.states[position].name}/{leaf}"
                    line = after.lines[cpu, position, leaf]
                    raise DataError(
                        after.path,
                        f"{what} went backwards ({now} after {then})",
                        line,
                        hint="are the two dumps in order, and from one boot of one machine?",
                    )


def since_boot(dump: Dump) -> Snapshot:
    """The same CPUs with all counters at 0: what a single dump is compared with."""

    def zero(counters: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return tuple(None if value is None else 0 for value in counters)

    zeros = {}
    for cpu, reading in dump.snapshot.cpus.items():
        none = (0,) * len(reading.states)
        zeros[cpu] = replace(
            reading,
            time_us=none,
            usage=none,
            above=zero(reading.above),
            below=zero(reading.below),
            rejected=zero(reading.rejected),
        )
    return Snapshot(zeros)
