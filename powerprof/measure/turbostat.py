# SPDX-License-Identifier: Apache-2.0
"""turbostat's output.

The output is a table per interval: a header, a row of the whole system and one row per CPU (turbostat(8)). `--show`,
`--hide`, `--Summary` and `--cpu` hide any of them. `turbostat COMMAND` prints one table, and its length as `SECONDS
sec` before the table (Linux 4.13 and later) or after it.

turbostat prints the cells of a row from thread to core to package. It leaves out the core's and the package's cells on
all but their first CPU: a short row is a prefix of the columns, not damage. `C6%` is the kernel's request, `CPU%c6` and
`Pkg%pc6` are the hardware's residency.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from powerprof.measure.idle_counters import is_polling
from powerprof.measure.program_output import parse_number
from powerprof.system.errors import DataError
from powerprof.system.foreign_data import loader

TOPOLOGY = ("Package", "Die", "L3", "Node", "Core", "CPU", "APIC", "X2APIC")
_TIME = "Time_Of_Day_Seconds"
# The built-in columns of turbostat 4.7 (2015) to 2025.
_BUILT_IN = frozenset(
    f"""usec {_TIME} {" ".join(TOPOLOGY)} Avg_MHz Busy% Bzy_MHz TSC_MHz IRQ NMI SMI IPC CPU%c1 CPU%c1e CPU%c3 CPU%c6
    CPU%c7 CPU%LPI Mod%c6 Die%c6 ThreadC CoreThr CoreTmp CoreCnt PkgTmp PkgCnt GFX%rc6 GFXMHz GFXAMHz SAM%mc6 SAMMHz
    SAMAMHz Totl%C0 Any%C0 GFX%C0 CPUGFX% Pkg%pc2 Pkg%pc3 Pkg%pc6 Pkg%pc7 Pkg%pc8 Pkg%pc9 Pk%pc10 Pkg%pc10 SYS%LPI
    PkgWatt CorWatt GFXWatt RAMWatt SysWatt Pkg_J Cor_J GFX_J RAM_J Sys_J PKG_% RAM_% UncMHz LLCkRPS LLC%hit L2MRPS
    L2%hit""".split()
)
_RENAMED = {"%Busy": "Busy%"}  # turbostat 4.7 and earlier
# The kernel's idle states: residency in percent, requests, and requests that were too deep (-) or too shallow (+).
STATE = re.compile(r"(?:POLL|C\d{1,2}(?:E|S|SP|N|P|A|s|ACPI)?)[%+-]?")
_COLUMN = re.compile(r"[A-Za-z][A-Za-z0-9_%.+:/-]*")
_SECONDS = re.compile(r"(\d+\.\d+) sec")
# Columns of which the system row has the sum or the mean of the CPU rows.
_ADDITIVE = re.compile(r"(Pkg|Cor|GFX|RAM)(Watt|_J)|Busy%|IRQ|" + STATE.pattern)
# The remedy for hidden columns.
COMPLETE = "record with turbostat --show Busy%,sysfs or without --show and --hide"
_MAX_COLUMNS = 512
# turbostat's intervals stretch by milliseconds, on a busy host by tenths of a second.
_GAP = 1.5
# The times of the rows of one table are this close to the system row's; intervals are longer.
_SPREAD_S = 0.05
_MAX_LINE = 64 << 10
_MAX_CELL = 40


class TurbostatRow(NamedTuple):
    """One line of a table: its ids (None for `-` or a missing column) and its cells by column.

    `values` lacks columns that the line leaves out or whose figure is not finite. `width` is the number of cells.
    """

    line: int
    package: int | None
    core: int | None
    cpu: int | None
    values: Mapping[str, float]
    is_system: bool = False
    width: int = 0


class TurbostatInterval(msgspec.Struct, frozen=True):
    """One table. `time_s` is the epoch time at its end, `duration_s` its length. None if unknown.

    `cpus` has the other rows: one per CPU unless columns or CPUs are hidden.
    """

    time_s: float | None
    duration_s: float | None
    system: TurbostatRow | None
    cpus: tuple[TurbostatRow, ...]


class TurbostatLog(msgspec.Struct, frozen=True):
    """A whole log. `columns` has the columns of the table in its order. `notes` name the parts left out.

    `idle_driver` is the driver that the header names, `declared` its idle states.
    """

    path: str
    idle_driver: str | None
    columns: tuple[str, ...]
    intervals: tuple[TurbostatInterval, ...]
    notes: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()

    def requested_states(self) -> tuple[str, ...]:
        """Return the idle states that have a `NAME%` column, by turbostat's names for them."""
        names = {*self.columns, *map(_shorten_state, self.declared)}
        return tuple(
            column[:-1]
            for column in self.columns
            if column.endswith("%") and (column[:-1] in names or STATE.fullmatch(column))
        )

    def has_all_states(self, *, polling: bool) -> bool:
        """Return whether the table provably has every idle state: the header lists them (turbostat without `--quiet`).

        Without `polling` the polling states may be missing.
        """
        shown = self.requested_states()
        needed = [name for name in self.declared if polling or not is_polling(name, "")]
        return bool(self.declared) and all(_shorten_state(name) in shown for name in needed)

    def achieved_columns(self) -> tuple[str, ...]:
        """Return the columns of residency that the hardware counted: `CPU%c6`, `Pkg%pc6`, `Mod%c6`, ..."""
        return tuple(c for c in self.columns if re.fullmatch(r"(CPU|Mod|Die|Pkg?)%p?c\d+", c))


def _shorten_state(name: str) -> str:
    """Return turbostat's column name of a kernel's idle state: `C1-HSW` and `C1_ACPI` become `C1` and `C1ACPI`."""
    return name.partition("-")[0].replace("_", "")


def looks_like_turbostat(text: str) -> bool:
    """Return whether the text is turbostat's output: its first line, or a header with a row below it."""
    if text.startswith("turbostat version"):
        return True
    above = False
    for line in text.splitlines():
        words = line.split()
        if above and words:
            if _is_row_start(words[0]):
                return True
            above = False
        above = above or _is_header(words)
    return False


@loader(1)
def parse_turbostat(text: str, path: Path | str) -> TurbostatLog:
    """Return the log of turbostat's stdout. Raise DataError(path, reason, line) for a damaged log.

    An unfinished last interval (turbostat was killed while it printed) is left out with a note.
    """
    lines = text.splitlines()
    lengths = [(number, float(match[1])) for number, line in enumerate(lines, 1) if (match := _SECONDS.fullmatch(line))]
    begin = _find_first_header(lines, path, has_command=bool(lengths))
    columns = _parse_columns(lines[begin], path, begin + 1)
    interval_s = parse_number(_find_in_header(lines[:begin], r"Measurement interval: ([\d.]+) s") or "")
    tables = _split_tables(lines, begin, columns, path, has_command=bool(lengths))
    groups, notes = _split_intervals(tables, columns, path)
    if len(groups) > 1 and _is_unfinished(groups, text):
        groups.pop()
        notes.append("the last interval is cut off and was left out")
    if not groups:
        raise DataError(path, "a table header but no whole interval after it", begin + 1)
    _check_widths(groups, columns, path)
    intervals: list[TurbostatInterval] = []
    before: float | None = None
    for group, length in zip(groups, _match_lengths(groups, lengths), strict=True):
        interval = _make_interval(group, before, length or interval_s, path)
        before = interval.time_s
        intervals.append(interval)
    intervals, gaps = _limit_gaps(intervals, interval_s) if not lengths else (intervals, 0)
    if gaps:
        notes.append(f"{gaps} of its tables follow a gap, in which nothing was metered")
    idle_driver = _find_in_header(lines[:begin], r"current_driver: (\S+)")
    return TurbostatLog(
        str(path), idle_driver, columns, tuple(intervals), tuple(notes), _find_declared_states(lines[:begin])
    )


def _is_known(word: str) -> bool:
    return word in _BUILT_IN or word in _RENAMED or STATE.fullmatch(word) is not None


def _separate(word: str) -> list[str]:
    """Return the columns of a header's word. Some versions print two names without a blank between them.

    A word that cannot be split in exactly one way into known columns is one column.
    """
    if _is_known(word) or len(word) > _MAX_CELL:
        return [word]
    # ways[n] has up to two ways to split the first n characters.
    ways: list[list[list[str]]] = [[[]], *([] for _ in word)]
    for end in range(1, len(word) + 1):
        for begin in range(end):
            if ways[begin] and _is_known(word[begin:end]):
                ways[end] = [*ways[end], *([*way, word[begin:end]] for way in ways[begin])][:2]
    return ways[-1][0] if len(ways[-1]) == 1 else [word]


def _is_header(words: list[str]) -> bool:
    """Return whether the words are a table's header: known columns first, and at least half of them known."""
    if not words or any(word[:1].isdigit() for word in words) or not _is_known(_separate(words[0])[0]):
        return False
    return 2 * sum(_is_known(_separate(word)[0]) for word in words) >= len(words)


def _is_row_start(cell: str) -> bool:
    return cell == "-" or re.fullmatch(r"0x[0-9a-f]+|-?\d+(\.\d+)?|-?nan|-?inf", cell) is not None


def _find_first_header(lines: list[str], path: Path | str, *, has_command: bool) -> int:
    begin = next((i for i, line in enumerate(lines) if _is_header(line.split())), None)
    first_row = next((i for i, line in enumerate(lines) if line.count("\t") >= 3), None)
    # A command may print tabs before turbostat's table.
    if first_row is not None and (begin is None or first_row < begin) and not has_command:
        is_figure = lines[first_row][:1].isdigit()
        reason = "figures before any table header" if is_figure else f"damaged table header ({lines[first_row][:24]!r})"
        raise DataError(path, reason, first_row + 1)
    if begin is None:
        raise DataError(path, "no turbostat table in it")
    return begin


def _split_cells(line: str) -> list[str]:
    line = line.rstrip()
    return [cell.strip() for cell in line.split("\t")] if "\t" in line else line.split()


def _parse_columns(line: str, path: Path | str, number: int) -> tuple[str, ...]:
    columns = [_RENAMED.get(column, column) for word in _split_cells(line) for column in _separate(word)]
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


def _find_declared_states(lines: list[str]) -> tuple[str, ...]:
    """Return the kernel's idle states, which turbostat lists below the governor: `cpu0: C1E: MWAIT 0x01`."""
    states: list[str] = []
    is_listing = False
    for line in lines:
        match = re.match(r"cpu\d+: ((?!MSR_)[^:\s]+): ", line)
        if is_listing and match:
            states.append(match[1])
        else:
            is_listing = line.startswith("current_")
    return tuple(dict.fromkeys(states))


def _split_tables(
    lines: list[str], begin: int, columns: tuple[str, ...], path: Path | str, *, has_command: bool
) -> list[list[TurbostatRow]]:
    """Return the rows below each header. Raise DataError for a line that is no row.

    A command may print above and below the rows: its lines are ignored unless they look like a damaged row.
    """
    tables: list[list[TurbostatRow]] = []
    is_skipping = False
    for number, line in enumerate(lines[begin:], begin + 1):
        if len(line) > _MAX_LINE:
            raise DataError(path, "line too long", number)
        cells = _split_cells(line)
        if not any(cells) or line.startswith("turbostat: ") or (has_command and _SECONDS.fullmatch(line)):
            continue
        if _is_header(cells):
            if _parse_columns(line, path, number) != columns:
                raise DataError(path, "a table with other columns than the first one", number)
            is_skipping = False
            tables.append([])
            continue
        # turbostat was started again with the same file: skip its banner up to the next table.
        is_skipping = is_skipping or line.startswith("turbostat version")
        if has_command and not is_skipping:
            is_whole = len(cells) == len(columns) and all(map(_is_row_start, cells))
            if not tables[-1] and not is_whole:
                continue
            is_skipping = not _is_row_start(cells[0])
        if not is_skipping:
            tables[-1].append(_parse_row(cells, columns, path, number))
    return tables


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
    is_system = bool(ids) and not any(number is not None for number in ids.values())
    return TurbostatRow(number, ids.get("Package"), ids.get("Core"), ids.get("CPU"), values, is_system, len(cells))


def _split_intervals(
    tables: list[list[TurbostatRow]], columns: tuple[str, ...], path: Path | str
) -> tuple[list[list[TurbostatRow]], list[str]]:
    """Return the rows of each interval, and notes. `--Summary` prints one header above many intervals."""
    groups: list[list[TurbostatRow]] = []
    if set(TOPOLOGY) & set(columns):
        for rows in tables:
            cpus: set[int] = set()
            group: list[TurbostatRow] = []
            for row in rows:
                # A system row or a repeated CPU begins the next interval.
                if group and (row.is_system or row.cpu in cpus):
                    groups.append(group)
                    group, cpus = [], set()
                group.append(row)
                cpus |= {row.cpu} if row.cpu is not None else set()
            groups += [group] if group else []
        return groups, []
    # Without ids the first row below a header is the system's, unless the rows are a summary's.
    has_parts = all(_begins_with_system(rows, path) for rows in tables)
    for rows in tables:
        first = [row._replace(is_system=True) for row in (rows[:1] if has_parts else rows)]
        groups += [first + rows[1:]] if has_parts and rows else [[row] for row in first]
    is_assumed = not has_parts and _TIME not in columns
    notes = ["its rows have neither ids nor times: each is read as one interval of --Summary"] if is_assumed else []
    return groups, notes


def _begins_with_system(rows: list[TurbostatRow], path: Path | str) -> bool:
    """Return whether the first of these rows without ids is the sum or the mean of the others.

    The system's time is that of its last CPU; the times of a summary's rows grow.
    """
    if len(rows) < 2:
        return True
    times = [row.values[_TIME] for row in rows if _TIME in row.values]
    if times:
        return max(times) <= times[0] + _SPREAD_S
    system, parts = rows[0].values, [row.values for row in rows[1:]]
    columns = [column for column in system if _ADDITIVE.fullmatch(column) and any(column in part for part in parts)]
    return all(is_sum_or_mean(system[column], [p[column] for p in parts if column in p]) for column in columns)


def is_sum_or_mean(whole: float, parts: Sequence[float]) -> bool:
    """Return whether a figure of the system row is the sum or the mean of the other rows', both rounded to 0.01.

    Counts are sums, in versions of 2017 means.
    """
    total, slack = sum(parts), 0.02 * abs(whole) + 0.01 * (len(parts) + 1)
    return abs(total - whole) <= slack or (bool(parts) and abs(total / len(parts) - whole) <= max(slack, 0.5))


def _is_unfinished(groups: list[list[TurbostatRow]], text: str) -> bool:
    return len(groups[-1]) < len(groups[-2]) or (
        not text.endswith("\n") and len(groups[-1][-1].values) < len(groups[-2][-1].values)
    )


def _check_widths(groups: list[list[TurbostatRow]], columns: tuple[str, ...], path: Path | str) -> None:
    """Raise DataError for a damaged row: a system row has every cell, a CPU the same cells in every interval."""
    width: dict[int | None, int] = {}
    for group in groups:
        for row in group:
            if row.is_system and row.width < len(columns):
                raise DataError(path, f"{row.width} figures under {len(columns)} columns", row.line)
            if row.cpu is None and not row.is_system:
                continue
            expected = width.setdefault(row.cpu, len(row.values))
            # NaN cells (0/0 in IPC) are absent too. A few missing cells are no damage.
            if len(row.values) < expected - 2:
                reason = f"damaged table (a row of {len(row.values)} figures, {expected} in the first one)"
                raise DataError(path, reason, row.line)


def _match_lengths(groups: list[list[TurbostatRow]], lengths: list[tuple[int, float]]) -> list[float | None]:
    """Return the length of each table that turbostat printed for a command. None for others."""
    if len(lengths) != len(groups):
        return [None] * len(groups)
    # Either every length is above its table, or every one is below.
    firsts = [group[0].line for group in groups]
    ordered = [number for pair in zip(firsts, [number for number, _ in lengths], strict=True) for number in pair]
    swapped = [number for pair in zip([number for number, _ in lengths], firsts, strict=True) for number in pair]
    is_paired = ordered == sorted(ordered) or swapped == sorted(swapped)
    return [seconds if is_paired and seconds > 0 else None for _, seconds in lengths]


def _limit_gaps(intervals: Sequence[TurbostatInterval], nominal: float | None) -> tuple[list[TurbostatInterval], int]:
    """Return the intervals, each at most of the usual length, and the number of those after a gap of missing tables."""
    usual = nominal or find_usual_length(intervals)
    if usual is None:
        return list(intervals), 0
    limited = [
        replace(i, duration_s=usual) if i.duration_s is not None and i.duration_s > _GAP * usual else i
        for i in intervals
    ]
    return limited, sum(a is not b for a, b in zip(limited, intervals, strict=True))


def find_usual_length(intervals: Sequence[TurbostatInterval]) -> float | None:
    """Return the median length of the intervals in seconds. None if no length is known."""
    known = sorted(i.duration_s for i in intervals if i.duration_s)
    return known[len(known) // 2] if known else None


def _make_interval(
    group: list[TurbostatRow], before: float | None, nominal: float | None, path: Path | str
) -> TurbostatInterval:
    times = [row.values[_TIME] for row in group if _TIME in row.values]
    time_s = max(times) if times else None
    if time_s is not None and before is not None and time_s <= before:
        raise DataError(path, f"time runs backwards ({time_s:f} after {before:f})", group[0].line)
    duration = time_s - before if time_s is not None and before is not None else nominal
    system = next((row for row in group if row.is_system), None)
    return TurbostatInterval(time_s, duration, system, tuple(row for row in group if not row.is_system))
