# SPDX-License-Identifier: Apache-2.0
"""A wall meter's CSV log: one column of times, one of power, found by the header.

Times are epoch seconds (or ms, µs, ns by their size) or ISO 8601; those without a zone are this machine's local
time. Loggers end their file with a farewell ("Interrupted, exiting") or half a row: the last line may be no row.
"""

from __future__ import annotations

import csv
import itertools
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from powerprof.energy.meter import DomainEnergy
from powerprof.measure.clock import WallOffset
from powerprof.measure.counters import EnergySeries, PowerSample, power_energy
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
# What a meter logs beside the power that heats: power factor, apparent and reactive power, limits, energy.
_OTHERS = ("factor", "apparent", "reactive", "limit", "max", "min", "energy", "va")
# Smaller ones are seconds since the log began: 1e8 is in 1973.
_EPOCH_S = 1e8
_UNITS = {"mw": 1e-3, "milliwatts": 1e-3, "w": 1.0, "watt": 1.0, "watts": 1.0, "kw": 1e3, "kilowatts": 1e3}
_MAX_WATTS = 1e6
# Loggers that average write once a minute at the least.
_STALE_S = 120.0
_LONGEST = 4096
_DELIMITERS = (";", "\t", ",")


@dataclass(frozen=True)
class MeterLog:
    """Samples in order of time (epoch seconds, watts). `step_s` is their usual distance."""

    path: str
    samples: tuple[PowerSample, ...]
    step_s: float
    notes: tuple[str, ...] = ()

    @property
    def has_epoch(self) -> bool:
        """Whether its times are moments, and not seconds since the log began."""
        return not self.samples or self.samples[0].time_s >= _EPOCH_S


def read_meter_log(path: Path, minimum: int = 2) -> MeterLog:
    """As `parse_meter_log`, from a file. Raises DataError."""
    return parse_meter_log(read_outside_text(path), path, minimum)


def looks_like_meter_log(text: str) -> bool:
    """Whether the first line is a header (or two plain figures) of such a log."""
    first = next((line for line in text[:_LONGEST].splitlines() if line.strip()), "")
    cells = _split(first, _delimiter(first))
    return _columns(cells) is not None or (len(cells) == 2 and all(_number(c) is not None for c in cells))


@loader
def parse_meter_log(text: str, path: Path | str, minimum: int = 2) -> MeterLog:
    """Parse a log of at least `minimum` samples.

    Raises DataError(path, reason, line) on a bad header or row, or on time that runs backwards.
    """
    rows = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not rows:
        raise DataError(path, "empty")
    number, line = rows[0]
    if len(line) > _LONGEST:
        raise DataError(path, "line too long", number)
    delimiter = _delimiter(line)
    cells = _split(line, delimiter)
    columns = _columns(cells)
    if columns is not None:
        rows = rows[1:]
    elif len(cells) == 2 and all(_number(c) is not None for c in cells):
        columns = (0, 1, 1.0)
    else:
        raise DataError(path, "no column of time and power in the header", number, "name them, for example: time,watts")
    samples: list[PowerSample] = []
    notes: list[str] = []
    naive = False
    for index, (number, line) in enumerate(rows):
        if len(line) > _LONGEST:
            raise DataError(path, "line too long", number)
        try:
            when, naive_here, watts = _row(_split(line, delimiter), columns)
        except ValueError as error:
            if index == len(rows) - 1 and samples:
                notes.append(f"the last line is not a sample and was left out: {line.strip()[:40]!r}")
                break
            raise DataError(path, str(error), number) from None
        naive = naive or naive_here
        if samples and when <= samples[-1].time_s:
            raise DataError(path, "time does not advance", number)
        samples.append(PowerSample(when, watts))
    if len(samples) < minimum:
        raise DataError(path, "fewer than two samples")
    if naive:
        notes.append("its times carry no zone and are taken as this machine's local time")
    steps = sorted(b.time_s - a.time_s for a, b in itertools.pairwise(samples)) or [0.0]
    return MeterLog(str(path), tuple(samples), steps[len(steps) // 2], tuple(notes))


def _delimiter(line: str) -> str:
    return next((d for d in _DELIMITERS if d in line), ",")


def _split(line: str, delimiter: str) -> list[str]:
    cells = [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]
    # With ; between cells the decimal sign may be a comma, as European loggers write it.
    return [c.replace(",", ".") if delimiter == ";" else c for c in cells]


def _columns(cells: Sequence[str]) -> tuple[int, int, float] | None:
    """Index of the time, index of the power and its factor to watts, from a header's cells."""
    when = power = None
    factor = 1.0
    for index, cell in enumerate(cells):
        name, unit = _name_and_unit(cell)
        words = name.split()
        if when is None and name in _TIMES:
            when = index
        elif power is None and not set(words) & set(_OTHERS) and (name in _POWERS or name.endswith("power")):
            power = index
            factor = _UNITS.get(unit, _UNITS.get(name, 1.0))
    return None if when is None or power is None else (when, power, factor)


def _name_and_unit(cell: str) -> tuple[str, str]:
    text = re.sub(r"[_\s-]+", " ", cell.strip().lstrip("\ufeff# ").lower())
    match = re.fullmatch(r"(.+?) ?[(\[](.+)[)\]]", text) or re.fullmatch(r"(.+) (mw|w|kw|watts?|s|ms|us|ns|utc)", text)
    return (match[1].strip(), match[2].strip()) if match else (text, "")


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if abs(value) < 1e20 else None  # neither nan nor infinite


def _row(cells: Sequence[str], columns: tuple[int, int, float]) -> tuple[float, bool, float]:
    when_index, power_index, factor = columns
    if len(cells) <= max(when_index, power_index):
        raise ValueError(f"{len(cells)} columns, the header has more")
    power = _number(cells[power_index])
    if power is None or not 0 <= power * factor <= _MAX_WATTS:
        raise ValueError(f"not a power: {cells[power_index][:30]!r}")
    when, naive = _time(cells[when_index])
    return when, naive, power * factor


def _time(cell: str) -> tuple[float, bool]:
    value = _number(cell)
    if value is not None:
        if value < 0:
            raise ValueError(f"not a time: {cell[:30]!r}")
        # Epoch seconds stay below 1e11 until the year 5138; larger figures are ms, µs or ns.
        for limit, divisor in ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6), (1e20, 1e9)):
            if value < limit:
                return value / divisor, False
    try:
        moment = datetime.fromisoformat(cell)
        return moment.timestamp(), moment.tzinfo is None
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"not a time: {cell[:30]!r}") from None


class MeterLogMeter:
    """A log that another program writes while we measure: read again when a window ends."""

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
        # A window was measured: whatever became of the log meanwhile, the rest of it counts.
        try:
            log = read_meter_log(self._path, minimum=0)
        except DataError as error:
            self._notes = [f"meter_log: {error.message}"]
            return [DomainEnergy("wall", "wall", EnergySeries(None, start_s, end_s))]
        self._notes = [f"meter_log: {note}" for note in log.notes]
        offset_s = self._offset.near(end_s)
        local = [PowerSample(s.time_s - offset_s, s.watts) for s in log.samples]
        return [DomainEnergy("wall", "wall", power_energy(local, start_s, end_s, 3 * log.step_s))]

    def drop_samples(self, before_s: float) -> None:
        """The samples are the log's."""

    def notes(self) -> list[str]:
        return self._notes

    def close(self) -> None:
        self._notes = []


def open_meter_log(path: Path | None) -> MeterLogMeter:
    """A wall meter's log. Raises CapabilityError where no file was named, DataError where it is no such log."""
    if path is None:
        raise CapabilityError("meter_log: no log was named", "add --meter-log FILE")
    log = read_meter_log(path, minimum=0)
    if log.samples:
        _check_live(log, path)
    return MeterLogMeter(path)


def _check_live(log: MeterLog, path: Path) -> None:
    """Refuse a log that cannot cover a window that begins now, before the window and not after it."""
    if not log.has_epoch:
        raise CapabilityError(
            f"meter_log: the times of {path} count from 0 and have no place on this machine's clock",
            "let the logger write times of day, or replay it alone: powerprof energy --from FILE",
        )
    age_s = time.time() - log.samples[-1].time_s
    if abs(age_s) > max(_STALE_S, 10 * log.step_s):
        when = f"{age_s:.0f} s old" if age_s > 0 else f"{-age_s:.0f} s ahead of this machine's clock"
        raise CapabilityError(
            f"meter_log: the last sample of {path} is {when}",
            "start the logger; if it runs, set both clocks by the same source",
        )
