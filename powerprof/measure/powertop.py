# SPDX-License-Identifier: Apache-2.0
"""PowerTOP's CSV report.

The report is a text of sections for people (src/report/report-formatter-csv.cpp): blocks of `Package;0`, `;Core 0`,
`CPU;0;CPU;2`, followed by `STATE;percent;average ms` for each CPU side by side. Up to PowerTOP 2.15 a section begins
with `* * * TITLE * * *` and cells end with semicolons; from 2.16 on it begins with `# TITLE`, and cells end with
commas. States of CPUs are the kernel's requests; `C6 (pc6)` and `C7 (cc7)` are the hardware's residency.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from powerprof.measure.program_output import numbered_lines, parse_number
from powerprof.system.errors import DataError
from powerprof.system.foreign_data import loader

Scope = Literal["package", "core"]
_LONGEST = 64 << 10
# Up to PowerTOP 2.15 the decimal point is that of the caller's language.
_PERCENT = re.compile(r"\s*(-?[\d.,]+|-?nan|-?inf)\s*%\s*", re.I)
_MS = re.compile(r"\s*([\d.,]+)\s*ms\s*")
_WAKEUPS = re.compile(r"System:\s*,?\s*([\d.,]+)\s+wakeup/s")
_OLD_TITLE, _NEW_TITLE = re.compile(r" \*  \*  \*\s*(.*?)\s*\*  \*  \*\s*"), re.compile(r"# (\S.*?)\s*")
# PowerTOP's pages for a browser and, from 2.16 on, in Markdown.
_OTHER_FORMS = (("HTML", re.compile(r"\s*<")), ("Markdown", re.compile(r"[\s_]*# PowerTOP")))
_HARDWARE = re.compile(r".*\((?:pc|cc)\d+\)")


class CpuStates(msgspec.Struct):
    """One CPU's column: percent and average residency in ms (None if not printed) by state, and PowerTOP's own C0."""

    active_percent: float | None = None
    states: dict[str, tuple[float, float | None]] = msgspec.field(default_factory=dict)


class PowertopReport(msgspec.Struct, frozen=True):
    """A whole report. `hardware` is by (package or core, id), then by state."""

    path: str
    version: str | None
    wakeups_hz: float | None
    cpus: dict[int, CpuStates]
    hardware: dict[tuple[Scope, str], dict[str, float]]


@loader(1)
def parse_powertop(text: str, path: Path | str) -> PowertopReport:
    """Return the report of PowerTOP's CSV. Raise DataError(path, reason, line) for another or a damaged text."""
    _check_csv(text, path)
    version: str | None = None
    wakeups: float | None = None
    idle: list[tuple[int, list[str]]] = []
    section = ""
    title = _NEW_TITLE if _is_new_form(text) else _OLD_TITLE
    for number, cells in _read_rows(text, path):
        line = ";".join(cells)
        if len(cells) == 1 and (match := title.fullmatch(line)):
            section = match[1]
        elif cells[0] == "PowerTOP Version" and len(cells) > 1:
            version = cells[1].split(" ran at ")[0].strip()
        elif section == "Processor Idle State Report":
            idle.append((number, cells))
        elif (
            wakeups is None
            and (cells[0].startswith(("Target:", "System:")))
            and (match := _WAKEUPS.search(",".join(cells)))
        ):
            wakeups = _parse_figure(match[1], path, number)
    if not idle:
        raise DataError(path, "no PowerTOP idle state report in it")
    cpus, hardware = _parse_idle_states(idle, path)
    if not cpus:
        raise DataError(path, "no CPU in PowerTOP's idle state report", idle[0][0])
    return PowertopReport(str(path), version, wakeups, cpus, hardware)


def looks_like_powertop(text: str) -> bool:
    """Return whether the text is a report of PowerTOP, in any form."""
    head = text[:4096]
    return "P o w e r T O P" in head or "PowerTOP Version" in head or "<title>PowerTOP" in head


def _check_csv(text: str, path: Path | str) -> None:
    """Raise DataError for a report of PowerTOP in another form than CSV."""
    for name, form in _OTHER_FORMS:
        if form.match(text.removeprefix("\ufeff")):
            raise DataError(path, f"PowerTOP's {name} report", hint="write its report with powertop --csv=FILE")


def _is_new_form(text: str) -> bool:
    """Return whether sections begin with `# TITLE` and cells end with commas (PowerTOP 2.16 and later)."""
    return re.search(r"^# ", text, re.M) is not None and _OLD_TITLE.search(text) is None


def _read_rows(text: str, path: Path | str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of each row with any. A quoted cell may have several lines."""
    if not _is_new_form(text):
        for number, line in numbered_lines(text, path, _LONGEST):
            if line.strip("; _"):
                yield number, line.split(";")
        return
    rows = csv.reader((line for _, line in numbered_lines(text, path, _LONGEST)), strict=True)
    try:
        yield from ((rows.line_num, cells) for cells in rows if any(cell.strip() for cell in cells))
    except csv.Error as error:
        raise DataError(path, f"damaged ({error})", rows.line_num) from None


def is_hardware_state(name: str) -> bool:
    """Return whether the hardware counts a state: `C6 (pc6)`, `C7 (cc7)`. A guest's package block repeats requests."""
    return _HARDWARE.fullmatch(name) is not None


def _parse_figure(text: str, path: Path | str, line: int, most: float = 1e9) -> float:
    value = parse_number(text.replace(",", "."), 0.0, most)
    if value is None:
        raise DataError(path, f"not a figure from 0 to {most:g} ({text.strip()[:30]!r})", line)
    return value


def _parse_state_name(cell: str, path: Path | str, line: int) -> str:
    name = cell.strip()
    if not name or len(name) > 64 or not name.isprintable():
        raise DataError(path, f"not the name of a state ({cell[:30]!r})", line)
    return name


def _parse_percent(cell: str, path: Path | str, line: int) -> float:
    match = _PERCENT.fullmatch(cell)
    if match is None:
        raise DataError(path, f"not a percentage ({cell.strip()[:30]!r})", line)
    # PowerTOP overshoots by the difference of its clocks. A larger excess is damage.
    return _parse_figure(match[1], path, line, most=110.0)


def _parse_idle_states(
    lines: list[tuple[int, list[str]]], path: Path | str
) -> tuple[dict[int, CpuStates], dict[tuple[Scope, str], dict[str, float]]]:
    cpus: dict[int, CpuStates] = {}
    hardware: dict[tuple[Scope, str], dict[str, float]] = {}
    columns: list[CpuStates] = []
    block: dict[str, float] | None = None
    package = "0"
    for number, cells in lines:
        if not any(cell.strip("_ ") for cell in cells):
            continue
        # PowerTOP 2.16 keeps the empty cell above the names of the states.
        header = cells[1:] if cells[0].strip() == "" and cells[1].strip() == "CPU" else cells
        if header[0] == "CPU":
            columns, block = _parse_cpu_header(header, cpus, path, number), None
        elif cells[0] == "Package" and len(cells) > 1:
            package = cells[1].strip()[:16]
            columns, block = [], hardware.setdefault(("package", package), {})
        elif cells[0] == "" and cells[1].startswith("Core "):
            columns, block = [], hardware.setdefault(("core", f"{package}:{cells[1][5:].strip()[:16]}"), {})
        elif cells[0] == "" and cells[1].startswith("GPU"):
            columns, block = [], None
        elif columns:
            _parse_state_row(cells, columns, path, number)
        elif block is not None and len(cells) > 1:
            block[_parse_state_name(cells[0], path, number)] = _parse_percent(cells[1], path, number)
    return cpus, hardware


def _parse_cpu_header(cells: list[str], cpus: dict[int, CpuStates], path: Path | str, line: int) -> list[CpuStates]:
    columns = []
    for word, cell in zip(cells[::2], cells[1::2], strict=False):
        if word.strip() != "CPU" or not re.fullmatch(r"\s*\d{1,6}\s*", cell):
            raise DataError(path, f"damaged CPU header ({word[:10]};{cell[:20]})", line)
        if int(cell) in cpus:
            raise DataError(path, f"CPU {int(cell)} appears twice", line)
        columns.append(cpus.setdefault(int(cell), CpuStates()))
    return columns


def _parse_state_row(cells: list[str], columns: list[CpuStates], path: Path | str, line: int) -> None:
    name, figures = _parse_state_name(cells[0], path, line), cells[1:]
    if name == "C0 active":
        # PowerTOP 2.16 keeps an empty cell below each average.
        if len(figures) >= 2 * len(columns) and not any(cell.strip() for cell in figures[1::2]):
            figures = figures[::2]
        if len(figures) < len(columns):
            raise DataError(path, f"{name}: {len(figures)} figures for {len(columns)} CPUs", line)
        for column, cell in zip(columns, figures, strict=False):
            column.active_percent = _parse_percent(cell, path, line)
        return
    if len(figures) < 2 * len(columns):
        raise DataError(path, f"{name}: {len(figures)} figures for {len(columns)} CPUs", line)
    for column, percent, average in zip(columns, figures[::2], figures[1::2], strict=False):
        match = _MS.fullmatch(average)
        ms = _parse_figure(match[1], path, line) if match else None
        if name in column.states:
            raise DataError(path, f"state {name} appears twice", line)
        column.states[name] = (_parse_percent(percent, path, line), ms)
