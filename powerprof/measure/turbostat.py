# SPDX-License-Identifier: Apache-2.0
"""turbostat's output, and its run as a residency source.

The output is a header, and one table of system, package and CPU rows per interval.

turbostat prints the cells of a row from thread to core to package. It leaves out the core's and the package's cells on
all but their first CPU: a short row is a prefix of the columns, not damage. `C6%` is the kernel's request, `CPU%c6` and
`Pkg%pc6` are the hardware's residency (turbostat(8)).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from powerprof.measure.program_output import OUTPUT, Outcome, TimedProgram, parse_number
from powerprof.measure.window import is_polling
from powerprof.model.records import AchievedResidency, StateResidency, Window
from powerprof.system.errors import CapabilityError, DataError
from powerprof.system.files import loader

TOPOLOGY = ("Package", "Die", "L3", "Node", "Core", "CPU", "APIC", "X2APIC")
_TIME = "Time_Of_Day_Seconds"
_FIRST = frozenset({"usec", _TIME, *TOPOLOGY, "Avg_MHz", "Busy%", "Bzy_MHz", "PkgWatt", "CorWatt", "RAMWatt", "Pkg_J"})
_COLUMN = re.compile(r"[A-Za-z][A-Za-z0-9_%.+:/-]*")
_MAX_COLUMNS = 512
# turbostat's intervals stretch by milliseconds, on a busy host by tenths of a second.
_GAP = 1.5
_MAX_LINE = 64 << 10
_MAX_CELL = 40


@dataclass(frozen=True)
class TurbostatRow:
    """One line of a table: its ids (None for `-` or a missing column) and its cells by column.

    `values` lacks columns that the line leaves out or whose figure is not finite.
    """

    line: int
    package: int | None
    core: int | None
    cpu: int | None
    values: Mapping[str, float]


@dataclass(frozen=True)
class TurbostatInterval:
    """One table. `time_s` is the epoch time at its end, `duration_s` its length. None if unknown."""

    time_s: float | None
    duration_s: float | None
    system: TurbostatRow | None
    cpus: tuple[TurbostatRow, ...]


@dataclass(frozen=True)
class TurbostatLog:
    """A whole log. `columns` has the columns of the table in its order. `notes` name the parts left out.

    `idle_driver` is the driver that the header names.
    """

    path: str
    idle_driver: str | None
    columns: tuple[str, ...]
    intervals: tuple[TurbostatInterval, ...]
    notes: tuple[str, ...] = ()

    def requested_states(self) -> tuple[str, ...]:
        """Return the idle states by the kernel's names: each has a `NAME%` and a `NAME` count column."""
        names = set(self.columns)
        return tuple(c[:-1] for c in self.columns if c.endswith("%") and c[:-1] in names)

    def achieved_columns(self) -> tuple[str, ...]:
        """Return the columns of residency that the hardware counted: `CPU%c6`, `Pkg%pc6`, `Mod%c6`, ..."""
        return tuple(c for c in self.columns if re.fullmatch(r"(CPU|Mod|Die|Pkg?)%p?c\d+", c))


def looks_like_turbostat(text: str) -> bool:
    """Return whether the text begins like turbostat's output."""
    head = text[:20000]
    if head.startswith("turbostat version"):
        return True
    return any(_is_header(line.split()) for line in head.splitlines()[:200])


@loader
def parse_turbostat(text: str, path: Path | str) -> TurbostatLog:
    """Return the log of turbostat's stdout. Raise DataError(path, reason, line) for a damaged log.

    An unfinished last interval (turbostat was killed while it printed) is left out with a note.
    """
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if _is_header(line.split())), None)
    first_row = next((i for i, line in enumerate(lines) if line.count("\t") >= 3), None)
    if first_row is not None and (begin is None or first_row < begin):
        is_figure = lines[first_row][:1].isdigit()
        reason = "figures before any table header" if is_figure else f"damaged table header ({lines[first_row][:24]!r})"
        raise DataError(path, reason, first_row + 1)
    if begin is None:
        raise DataError(path, "no turbostat table in it")
    columns = _parse_columns(lines[begin], path, begin + 1)
    idle_driver = _find_in_header(lines[:begin], r"current_driver: (\S+)")
    interval_s = parse_number(_find_in_header(lines[:begin], r"Measurement interval: ([\d.]+) s") or "")
    groups = list(_split_intervals(lines, begin, columns, path))
    notes: list[str] = []
    if groups and _is_unfinished(groups, text):
        groups.pop()
        notes.append("the last interval is cut off and was left out")
    if not groups:
        raise DataError(path, "a table header but no whole interval after it", begin + 1)
    _check_widths(groups, path)
    intervals: list[TurbostatInterval] = []
    before: float | None = None
    for group in groups:
        interval = _make_interval(group, before, interval_s, path)
        before = interval.time_s
        intervals.append(interval)
    intervals, gaps = _limit_gaps(intervals, interval_s)
    if gaps:
        notes.append(f"{gaps} of its tables follow a gap, in which nothing was metered")
    return TurbostatLog(str(path), idle_driver, columns, tuple(intervals), tuple(notes))


def _is_header(words: list[str]) -> bool:
    return bool(words) and words[0] in _FIRST and not any(word[:1].isdigit() for word in words)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.rstrip("\r\n").split("\t")] if "\t" in line else line.split()


def _parse_columns(line: str, path: Path | str, number: int) -> tuple[str, ...]:
    columns = _cells(line)
    if len(columns) > _MAX_COLUMNS:
        raise DataError(path, f"damaged table header ({len(columns)} columns)", number)
    for index, column in enumerate(columns):
        if not _COLUMN.fullmatch(column):
            raise DataError(path, f"damaged table header (column {column[:30]!r})", number)
        if column in columns[:index]:
            raise DataError(path, f"damaged table header (column {column} twice)", number)
    return tuple(columns)


def _find_in_header(lines: list[str], pattern: str) -> str | None:
    """Return the group of the first line of a header that begins with a pattern. A run with `--quiet` has no header."""
    return next((match[1] for line in lines if (match := re.match(pattern, line))), None)


def _split_intervals(
    lines: list[str], begin: int, columns: tuple[str, ...], path: Path | str
) -> Iterator[list[TurbostatRow]]:
    """Yield the rows of one interval at a time. A header, a system row or a repeated CPU begins the next interval."""
    group: list[TurbostatRow] = []
    cpus: set[int | None] = set()
    is_restarted = False
    for number, line in enumerate(lines[begin:], begin + 1):
        # turbostat was started again with the same file: skip its banner up to the next table.
        is_restarted = (is_restarted or line.startswith("turbostat version")) and tuple(_cells(line)) != columns
        if is_restarted:
            continue
        if len(line) > _MAX_LINE:
            raise DataError(path, "line too long", number)
        cells = _cells(line)
        if not any(cells):
            continue
        is_header = tuple(cells) == columns
        row = None if is_header else _parse_row(cells, columns, path, number)
        if group and (row is None or row.cpu is None or row.cpu in cpus):
            yield group
            group, cpus = [], set()
        if row is not None:
            group.append(row)
            cpus.add(row.cpu)
    if group:
        yield group


def _parse_row(cells: list[str], columns: tuple[str, ...], path: Path | str, number: int) -> TurbostatRow:
    if len(cells) > len(columns):
        raise DataError(path, f"{len(cells)} figures under {len(columns)} columns", number)
    ids: dict[str, int | None] = {}
    values: dict[str, float] = {}
    for column, cell in zip(columns, cells, strict=False):
        if column in TOPOLOGY:
            if cell != "-" and not re.fullmatch(r"\d{1,6}", cell):
                raise DataError(path, f"damaged table (column {column} says {cell[:30]!r})", number)
            ids[column] = None if cell == "-" else int(cell)
            continue
        if cell in ("", "-"):
            continue
        try:
            value = float(int(cell, 16)) if cell.startswith("0x") and len(cell) <= _MAX_CELL else float(cell)
        except ValueError:
            raise DataError(path, f"damaged table (column {column} says {cell[:30]!r})", number) from None
        if math.isfinite(value):
            values[column] = value
    return TurbostatRow(number, ids.get("Package"), ids.get("Core"), ids.get("CPU"), values)


def _is_unfinished(groups: list[list[TurbostatRow]], text: str) -> bool:
    return len(groups) > 1 and (
        len(groups[-1]) < len(groups[-2])
        or (not text.endswith("\n") and len(groups[-1][-1].values) < len(groups[-2][-1].values))
    )


def _check_widths(groups: list[list[TurbostatRow]], path: Path | str) -> None:
    """Raise DataError for a damaged row: the same CPU has the same cells in every interval."""
    width: dict[int | None, int] = {}
    for group in groups:
        for row in group:
            expected = width.setdefault(row.cpu, len(row.values))
            # NaN cells (0/0 in IPC) are absent too. A few missing cells are no damage.
            if len(row.values) < expected - 2:
                reason = f"damaged table (a row of {len(row.values)} figures, {expected} in the first one)"
                raise DataError(path, reason, row.line)


def _limit_gaps(intervals: Sequence[TurbostatInterval], nominal: float | None) -> tuple[list[TurbostatInterval], int]:
    """Return the intervals, each at most of the usual length, and the number of those after a gap of missing tables."""
    known = sorted(i.duration_s for i in intervals if i.duration_s)
    usual = nominal or (known[len(known) // 2] if known else None)
    if usual is None:
        return list(intervals), 0
    limited = [
        replace(i, duration_s=usual) if i.duration_s is not None and i.duration_s > _GAP * usual else i
        for i in intervals
    ]
    return limited, sum(a is not b for a, b in zip(limited, intervals, strict=True))


def _make_interval(
    group: list[TurbostatRow], before: float | None, nominal: float | None, path: Path | str
) -> TurbostatInterval:
    system = group[0] if group[0].cpu is None else None
    times = [row.values[_TIME] for row in group if _TIME in row.values]
    time_s = max(times) if times else None
    if time_s is not None and before is not None and time_s <= before:
        raise DataError(path, f"time runs backwards ({time_s:f} after {before:f})", group[0].line)
    duration = time_s - before if time_s is not None and before is not None else nominal
    return TurbostatInterval(time_s, duration, system, tuple(row for row in group if row.cpu is not None))


# turbostat as a residency source: run it for one window, and convert its tables to a window.
#
# `C6%` is the kernel's request: these are the states, and with C0 they sum to 100. `Busy%`, `CPU%c6` and `Pkg%pc6` are
# the hardware's (turbostat(8)): they become the achieved residencies.


def _mean(log: TurbostatLog, column: str) -> float | None:
    """Return the column's mean over the intervals, weighted by their length. None if no interval has it."""
    total = weights = 0.0
    for interval in log.intervals:
        value = _system_value(interval, column)
        if value is not None:
            weight = interval.duration_s or 1.0
            total += weight * value
            weights += weight
    return total / weights if weights else None


def _system_value(interval: TurbostatInterval, column: str) -> float | None:
    if interval.system is not None:
        return interval.system.values.get(column)
    values = [row.values[column] for row in interval.cpus if column in row.values]
    return sum(values) / len(values) if values else None


def _make_states(log: TurbostatLog, cpus: int) -> list[StateResidency]:
    states = []
    for name in log.requested_states():
        percent, entries = _mean(log, f"{name}%"), _entries_hz(log, name)
        polling = is_polling(name, "")
        busy_ms = None if percent is None else percent / 100.0 * cpus * 1e3  # per second, over all CPUs
        states.append(
            StateResidency(
                name=name,
                polling=polling,
                residency_percent=0.0 if polling and percent is not None else percent,
                polling_percent=percent if polling else None,
                entries_hz=entries,
                average_residency_ms=busy_ms / entries if busy_ms and entries else None,
            )
        )
    return states


def _entries_hz(log: TurbostatLog, name: str) -> float | None:
    """Return entries per second over all CPUs.

    The system row's count is a sum or, in other versions, a mean: it is not used.
    """
    count = seconds = 0.0
    for interval in log.intervals:
        values = [row.values[name] for row in interval.cpus if name in row.values]
        if not values or not interval.duration_s:
            continue
        count += sum(values)
        seconds += interval.duration_s
    return count / seconds if seconds else None


def make_turbostat_window(log: TurbostatLog, started_at: str) -> Window:
    """Return the whole log as one window. C0 is the time that the requested states leave."""
    cpus = max((len(interval.cpus) for interval in log.intervals), default=0)
    lengths = [interval.duration_s for interval in log.intervals]
    window_s = sum(length for length in lengths if length) if all(lengths) else None
    states = _make_states(log, cpus)
    shares = [state.residency_percent for state in states if not state.polling]
    idle = sum(share for share in shares if share is not None)
    is_known = bool(shares) and None not in shares
    rates = [state.entries_hz for state in states]
    scopes: dict[str, Literal["cpu", "core", "package"]] = {"Busy%": "cpu"}
    scopes |= {column: "package" if column.startswith("P") else "core" for column in log.achieved_columns()}
    achieved = [
        AchievedResidency(scope=scope, name=column, residency_percent=mean)
        for column, scope in scopes.items()
        if (mean := _mean(log, column)) is not None
    ]
    note = "states are what the kernel requested (C6%), achieved ones the hardware's (CPU%c6, Pkg%pc6)"
    return Window(
        started_at=started_at,
        window_s=window_s,
        cpus=cpus,
        states=states,
        achieved=achieved,
        c0_percent=max(0.0, 100.0 - idle) if is_known else None,
        idle_percent=min(100.0, idle) if is_known else None,
        residual_percent=max(0.0, idle - 100.0) if is_known else None,
        wakeups_hz=sum(rate or 0.0 for rate in rates) if rates and None not in rates else None,
        frequency_mhz=_mean(log, "Bzy_MHz"),
        residency_source="turbostat",
        notes=[*log.notes, note],
    )


class TurbostatResidency:
    """Runs turbostat for one interval as long as the window. Raises CapabilityError if it cannot run here."""

    def __init__(self) -> None:
        self._program = TimedProgram("turbostat", "linux-cpupower")
        self._outcome: Outcome | None = None

    def start(self, duration_s: float | None) -> None:
        if duration_s is None:
            raise RuntimeError("turbostat must know the length of the window in advance")
        self._program.launch(
            [
                "--enable",
                "Time_Of_Day_Seconds",
                "--interval",
                f"{max(0.1, duration_s):.3f}",
                "--num_iterations",
                "1",
                "--out",
                OUTPUT,
            ],
            duration_s,
        )

    def stop(self) -> None:
        self._outcome = self._program.outcome()

    def finish(self, started_at: str) -> Window:
        outcome = self._outcome
        if outcome is None:
            return self._program.unknown_window(started_at)
        table = self._program.report()
        if outcome.returncode != 0 or not table:
            message = outcome.messages[-1] if outcome.messages else f"exit {outcome.returncode}"
            reason = message.removeprefix("turbostat: ")[:200]
            hint = "it needs root and /dev/cpu/*/msr; or use --residency-source cpuidle"
            raise CapabilityError(f"turbostat cannot run here: {reason}", hint)
        return make_turbostat_window(parse_turbostat(table, "turbostat's output"), started_at)

    def close(self) -> None:
        self._program.close()
