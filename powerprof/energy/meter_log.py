# SPDX-License-Identifier: Apache-2.0
"""A wall meter's CSV log: one column of times and one of power, found by the header.

Times are epoch seconds (or ms, µs, ns by their size) or ISO 8601. Times without a zone are this machine's local time.
Loggers may end their file with a message ("Interrupted, exiting") or half a row: the last line may be damaged.
"""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from powerprof.energy.domains import DomainEnergy
from powerprof.measure.counters import EnergySeries, PowerSample, power_energy
from powerprof.measure.program_output import median_step_s, numbered_lines, parse_number
from powerprof.measure.window import WallOffset
from powerprof.system.errors import CapabilityError, DataError
from powerprof.system.files import loader, read_outside_text

_TIMES = (
    "t",
    "time",
    "timestamp",
    "epoch",
    "date",
    "datetime",
    "date time",
    "ts",
    "unix",
    "unixtime",
    "unix time",
    "seconds",
)
_POWERS = ("p", "w", "kw", "mw", "watt", "watts", "wattage", "pwr", "power", "consumption", "load", "draw")
# Columns other than active power: power factor, apparent and reactive power, limits, energy.
_OTHERS = ("factor", "apparent", "reactive", "limit", "max", "min", "energy", "va")
# Smaller times are seconds since the log began: 1e8 is in 1973.
_EPOCH_S = 1e8
_UNITS = {"mw": 1e-3, "milliwatts": 1e-3, "w": 1.0, "watt": 1.0, "watts": 1.0, "kw": 1e3, "kilowatts": 1e3}
_MAX_WATTS = 1e6
# Averaging loggers write at least once a minute.
_STALE_S = 120.0
_LONGEST = 4096
_DELIMITERS = (";", "\t", ",")


@dataclass(frozen=True)
class MeterLog:
    """Samples ordered by time (epoch seconds, watts), and their median distance."""

    path: str
    samples: tuple[PowerSample, ...]
    step_s: float
    notes: tuple[str, ...] = ()

    @property
    def has_epoch(self) -> bool:
        """Whether its times are moments, not seconds since the log began."""
        return not self.samples or self.samples[0].time_s >= _EPOCH_S


def read_meter_log(path: Path, minimum: int = 2) -> MeterLog:
    """Return the log of a file of at least `minimum` samples. Raise DataError."""
    return parse_meter_log(read_outside_text(path), path, minimum)


def looks_like_meter_log(text: str) -> bool:
    """Return whether the first line is the header of such a log, or two plain figures."""
    first = next((line for line in text[:_LONGEST].splitlines() if line.strip()), "")
    return _find_columns(_split(first, _find_delimiter(first)))[0] is not None


@loader
def parse_meter_log(text: str, path: Path | str, minimum: int = 2) -> MeterLog:
    """Return the log of a text of at least `minimum` samples.

    Raise DataError(path, reason, line) for a damaged header or row, or if time runs backwards.
    """
    rows = [(number, line) for number, line in numbered_lines(text, path, _LONGEST) if line.strip()]
    if not rows:
        raise DataError(path, "empty")
    number, line = rows[0]
    delimiter = _find_delimiter(line)
    columns, has_header = _find_columns(_split(line, delimiter))
    if columns is None:
        raise DataError(path, "no column of time and power in the header", number, "name them, for example: time,watts")
    samples: list[PowerSample] = []
    notes: list[str] = []
    has_local_times = False
    rows = rows[has_header:]
    for index, (number, line) in enumerate(rows):
        try:
            time_s, is_local, watts = _parse_row(_split(line, delimiter), columns)
        except ValueError as error:
            if index == len(rows) - 1 and samples:
                notes.append(f"the last line is not a sample and was left out: {line.strip()[:40]!r}")
                break
            raise DataError(path, str(error), number) from None
        has_local_times = has_local_times or is_local
        if samples and time_s <= samples[-1].time_s:
            raise DataError(path, "time does not advance", number)
        samples.append(PowerSample(time_s, watts))
    if len(samples) < minimum:
        raise DataError(path, "fewer than two samples")
    if has_local_times:
        notes.append("its times carry no zone and are taken as this machine's local time")
    return MeterLog(str(path), tuple(samples), median_step_s([sample.time_s for sample in samples]), tuple(notes))


def _find_delimiter(line: str) -> str:
    return next((d for d in _DELIMITERS if d in line), ",")


def _split(line: str, delimiter: str) -> list[str]:
    cells = [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]
    # With ; between cells, European loggers write a decimal comma.
    return [c.replace(",", ".") if delimiter == ";" else c for c in cells]


def _find_columns(cells: Sequence[str]) -> tuple[tuple[int, int, float] | None, bool]:
    """Return the index of the time, the index of the power and its factor to watts, and whether this is a header."""
    time_index = power_index = None
    factor = 1.0
    for index, cell in enumerate(cells):
        name, unit = _split_unit(cell)
        if time_index is None and name in _TIMES:
            time_index = index
        elif (
            power_index is None and not set(name.split()) & set(_OTHERS) and (name in _POWERS or name.endswith("power"))
        ):
            power_index = index
            factor = _UNITS.get(unit, _UNITS.get(name, 1.0))
    if time_index is not None and power_index is not None:
        return (time_index, power_index, factor), True
    if len(cells) == 2 and all(_parse_figure(cell) is not None for cell in cells):
        return (0, 1, 1.0), False
    return None, False


def _split_unit(cell: str) -> tuple[str, str]:
    """Return the name and the unit of a column's heading, in lower case."""
    text = re.sub(r"[_\s-]+", " ", cell.strip().lstrip("\ufeff# ").lower())
    match = re.fullmatch(r"(.+?) ?[(\[](.+)[)\]]", text) or re.fullmatch(r"(.+) (mw|w|kw|watts?|s|ms|us|ns|utc)", text)
    return (match[1].strip(), match[2].strip()) if match else (text, "")


def _parse_figure(cell: str) -> float | None:
    value = parse_number(cell, -1e20, 1e20)
    return None if value is None or abs(value) == 1e20 else value


def _parse_row(cells: Sequence[str], columns: tuple[int, int, float]) -> tuple[float, bool, float]:
    """Return the epoch time, whether it is local time, and watts. Raise ValueError with the reason."""
    time_index, power_index, factor = columns
    if len(cells) <= max(time_index, power_index):
        raise ValueError(f"{len(cells)} columns, the header has more")
    power = _parse_figure(cells[power_index])
    if power is None or not 0 <= power * factor <= _MAX_WATTS:
        raise ValueError(f"not a power: {cells[power_index][:30]!r}")
    time_s, is_local = _parse_time(cells[time_index])
    return time_s, is_local, power * factor


def _parse_time(cell: str) -> tuple[float, bool]:
    value = _parse_figure(cell)
    if value is not None:
        if value < 0:
            raise ValueError(f"not a time: {cell[:30]!r}")
        # Epoch seconds stay below 1e11 until the year 5138. Larger figures are ms, µs or ns.
        for limit, divisor in ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6), (1e20, 1e9)):
            if value < limit:
                return value / divisor, False
    try:
        moment = datetime.fromisoformat(cell)
        return moment.timestamp(), moment.tzinfo is None
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"not a time: {cell[:30]!r}") from None


class MeterLogMeter:
    """A log that another program writes during the window. The meter reads it when the window ends."""

    name = "meter_log"
    max_interval_s: float | None = None

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = WallOffset()
        self._notes: list[str] = []

    def sample(self, now_s: float) -> None:
        self._offset.note(now_s)

    def is_counting(self) -> bool | None:
        return None

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        # A damaged log must not lose the rest of a measured window.
        try:
            log = read_meter_log(self._path, minimum=0)
        except DataError as error:
            self._notes = [f"meter_log: {error.message}"]
            return [DomainEnergy("wall", "wall", EnergySeries(None, start_s, end_s))]
        self._notes = [f"meter_log: {note}" for note in log.notes]
        offset_s = self._offset.near(end_s)
        samples = [PowerSample(s.time_s - offset_s, s.watts) for s in log.samples]
        return [DomainEnergy("wall", "wall", power_energy(samples, start_s, end_s, 3 * log.step_s))]

    def drop_samples(self, before_s: float) -> None:
        """Keep everything: the samples are in the log."""

    def notes(self) -> list[str]:
        return self._notes

    def close(self) -> None:
        self._notes = []


def open_meter_log(path: Path | None) -> MeterLogMeter:
    """Open a wall meter's log.

    Raise CapabilityError without a file or if the log cannot cover a window that begins now. Raise DataError for a
    damaged log.
    """
    if path is None:
        raise CapabilityError("meter_log: no log was named", "add --meter-log FILE")
    log = read_meter_log(path, minimum=0)
    if not log.has_epoch:
        raise CapabilityError(
            f"meter_log: the times of {path} count from 0 and have no place on this machine's clock",
            "let the logger write times of day, or replay it alone: powerprof energy --from FILE",
        )
    age_s = time.time() - log.samples[-1].time_s if log.samples else 0.0
    if abs(age_s) > max(_STALE_S, 10 * log.step_s):
        age = f"{age_s:.0f} s old" if age_s > 0 else f"{-age_s:.0f} s ahead of this machine's clock"
        raise CapabilityError(
            f"meter_log: the last sample of {path} is {age}",
            "start the logger; if it runs, set both clocks by the same source",
        )
    return MeterLogMeter(path)
