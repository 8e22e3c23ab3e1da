# SPDX-License-Identifier: Apache-2.0
"""Recorded cpuidle trees: text dumps of `/sys/devices/system/cpu` by `grep`, `cat`, `head`, `tail` or `more`.

`grep -r .` and `grep -H` print `PATH:VALUE`, `grep -n` prints `PATH:1:VALUE`. Some tools print `PATH|VALUE`,
`PATH=VALUE` or `PATH VALUE`. Above the value, `tail -n +1` and `head` print `==> PATH <==`, `find -print -exec cat`
prints `PATH`, and others print `PATH:`.

Dumps come from other machines: a missing value, a wrong number or a wrong order is an error with its line. Other
files of the tree are ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from powerprof.measure.cpuidle import COUNTERS
from powerprof.measure.idle_counters import CpuReading, Snapshot, StateInfo, is_polling
from powerprof.measure.program_output import numbered_lines
from powerprof.system.errors import DataError, UnknownNameError
from powerprof.system.foreign_data import loader, parse_toml
from powerprof.system.foreign_text import whole
from powerprof.system.outside_files import read_outside_table

_HEADING = re.compile(r"==>\s*(.+?)\s*<==")
_SEPARATOR = r"(?:\s*[|=]|\s*:(?:1:)?|\s)\s*"


class DumpCell(NamedTuple):
    """One file of a dump: its path, its value (None: empty or missing), and the line of the value from 1."""

    path: str
    value: str | None
    line: int


def read_dump_cells(text: str, path: Path | str, file: re.Pattern[str]) -> Iterator[DumpCell]:
    """Yield the files of a dump whose whole path matches `file`.

    Other files and lines are ignored. Raise DataError(path, reason, line) for a line that is too long.
    """
    one_line = re.compile(rf"({file.pattern}){_SEPARATOR}(\S.*)")
    header: tuple[str, int] | None = None
    for number, raw in numbered_lines(text, path):
        line = raw.removeprefix("\ufeff").strip()
        if line and set(line) == {":"}:
            continue  # `more` frames a path by two such lines
        heading = _HEADING.fullmatch(line)
        name = heading[1] if heading else line.rstrip(":|= \t")
        cell = one_line.fullmatch(line)
        is_header = file.fullmatch(name) is not None
        if header is not None:
            is_value = bool(line) and not (heading or cell or is_header or line.startswith(("/", "./")))
            yield DumpCell(header[0], line if is_value else None, number if is_value else header[1])
            header = None
        if is_header:
            header = name, number
        elif cell:
            yield DumpCell(cell[1], cell[cell.re.groups], number)
    if header is not None:
        yield DumpCell(header[0], None, header[1])


_STATE_TABLES = Path(__file__).with_name("idle_states.toml")
_FILE = re.compile(r"(?:\S*/)?cpu(\d{1,6})/cpuidle/state(\d{1,3})/([a-z_]+)")
_DRIVER = re.compile(r"(?:\S*/)?cpuidle/(current_driver|current_governor_ro)")
_DUMPED = re.compile(rf"(?:{_FILE.pattern}|{_DRIVER.pattern})")
_NUMBER = re.compile(r"\d{1,20}")
_NEEDED = ("name", "time", "usage")
Cell = tuple[str, int]  # a value and its line


class Dump(msgspec.Struct, frozen=True):
    """One dump. `lines` maps (cpu, state index, counter) to the line of its value."""

    path: Path
    snapshot: Snapshot
    lines: Mapping[tuple[int, int, str], int]
    driver: str | None = None
    governor: str | None = None


def _collect(text: str, path: Path) -> tuple[dict[int, dict[int, dict[str, Cell]]], dict[str, str]]:
    cpus: dict[int, dict[int, dict[str, Cell]]] = {}
    about: dict[str, str] = {}
    for name, value, line in read_dump_cells(text, path, _DUMPED):
        head = _DRIVER.fullmatch(name)
        if head and value:
            about[head[1]] = value
        match = _FILE.fullmatch(name)
        if match is None:
            continue
        cpu, state, leaf = int(match[1]), int(match[2]), match[3]
        short = f"cpu{cpu}/cpuidle/state{state}/{leaf}"
        if value is None:
            if leaf in COUNTERS or leaf == "name":
                raise DataError(path, f"{short} has no value", line)
            continue
        if leaf in COUNTERS and (not _NUMBER.fullmatch(value) or int(value) >= 1 << 64):
            raise DataError(path, f"{short} is not a counter ({value[:30]!r})", line)
        if not value.isprintable():
            raise DataError(path, f"{short} is not text ({value[:30]!r})", line)
        leaves = cpus.setdefault(cpu, {}).setdefault(state, {})
        if leaf in leaves:
            raise DataError(path, f"{short} appears twice, first on line {leaves[leaf][1]}", line)
        leaves[leaf] = (value, line)
    return cpus, about


@loader(1)
def parse_dump(text: str, path: Path) -> Dump:
    """Return the dump of a text. Raise DataError(path, reason, line) for a damaged text."""
    cpus, about = _collect(text, path)
    if not cpus:
        hint = "a dump has lines like …/cpu0/cpuidle/state1/time"
        raise DataError(path, "no cpuidle counters in it", hint=hint)
    readings: dict[int, CpuReading] = {}
    lines: dict[tuple[int, int, str], int] = {}
    for cpu, states in sorted(cpus.items()):
        infos: list[StateInfo] = []
        for position, (state, leaves) in enumerate(sorted(states.items())):
            for leaf in _NEEDED:
                if leaf not in leaves:
                    first = min(line for _, line in leaves.values())
                    raise DataError(path, f"cpu{cpu}/cpuidle/state{state} has no {leaf}", first)
            name = leaves["name"][0]
            disabled = leaves.get("disable", ("0", 0))[0] != "0"
            latency_us, target_us = (whole(leaves.get(leaf, ("", 0))[0]) for leaf in ("latency", "residency"))
            is_poll = is_polling(name, leaves.get("desc", ("", 0))[0])
            infos.append(StateInfo(name, is_poll, disabled, latency_us, target_us))
            lines.update({(cpu, position, leaf): cell[1] for leaf, cell in leaves.items()})
        ordered = [leaves for _, leaves in sorted(states.items())]
        rows = [tuple(int(leaves[leaf][0]) if leaf in leaves else None for leaves in ordered) for leaf in COUNTERS]
        time_us, usage = (tuple(value or 0 for value in row) for row in rows[:2])
        readings[cpu] = CpuReading(cpu, None, tuple(infos), time_us, usage, rows[2], rows[3], rows[4])
    governor = about.get("current_governor_ro")
    return Dump(path, Snapshot(readings), lines, about.get("current_driver"), governor)


def read_dump(path: Path) -> Dump:
    """Return the dump of a file of at most 64 MiB."""
    return parse_dump(read_outside_table(path, 64 << 20), path)


def check_pair(before: Dump, after: Dump) -> None:
    """Raise DataError with the line of `after` if two dumps are not two moments of one machine."""
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
        for leaf in COUNTERS:
            rows = [getattr(reading, "time_us" if leaf == "time" else leaf) for reading in (old, new)]
            for position, (then, now) in enumerate(zip(*rows, strict=True)):
                if then is not None and now is not None and now < then:
                    name = f"cpu{cpu}/cpuidle/{new.states[position].name}/{leaf}"
                    line = after.lines[cpu, position, leaf]
                    raise DataError(
                        after.path,
                        f"{name} went backwards ({now} after {then})",
                        line,
                        hint="are the two dumps in order, and from one boot of one machine?",
                    )


def zero_counters(dump: Dump) -> Snapshot:
    """Return the same CPUs with all counters at 0, for the comparison with a single dump."""

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


def read_state_table(cpu: str) -> tuple[StateInfo, ...]:
    """Return the idle states of a CPU in idle_states.toml, or of the CPUs in a dump of another host's cpuidle files.

    Raise UsageError for an unknown name, DataError for a damaged file and for one whose CPUs have different states.
    """
    known = parse_toml(_STATE_TABLES.read_text("utf-8"), _STATE_TABLES)
    if cpu.lower() in known:
        rows = known[cpu.lower()]["states"]
        return tuple(StateInfo(name, False, False, latency_us, target_us) for name, latency_us, target_us in rows)
    path = Path(cpu)
    if not cpu or not os.path.exists(path):  # noqa: PTH110  Path's raises for a long name
        raise UnknownNameError(
            f"--as {cpu[:60]!r}: no such CPU and no such file",
            cpu,
            known,
            f"{', '.join(known)}, or a dump of cpuidle's files",
        )
    readings = read_dump(path).snapshot.cpus
    first, states = next((number, reading.states) for number, reading in readings.items())
    if all(state.target_us is None for state in states if not state.polling):
        raise DataError(path, "no target residency in it (cpuidle/state*/residency)")
    plain = [replace(state, disabled=False) for state in states]
    for number, reading in readings.items():
        if [replace(state, disabled=False) for state in reading.states] != plain:
            reason = f"CPU {number} has other idle states than CPU {first}"
            raise DataError(path, reason, hint="keep the lines of the CPUs of one kind")
    return states
