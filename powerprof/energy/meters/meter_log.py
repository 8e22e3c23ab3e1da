# SPDX-License-Identifier: Apache-2.0
"""A wall meter's CSV log: one column of times and one of power, found by the header or named by the user.

Times are epoch seconds (or ms, µs, ns by their size) or ISO 8601. Times without a zone are this machine's local time.
A log with several columns of power, or with one of a part of the machine, needs the name of its column: `FILE#COLUMN`,
or `FILE#COLUMN+COLUMN` for the sum. Loggers may end their file with a message ("Interrupted, exiting") or half a row:
the last line may be damaged.
"""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from powerprof.energy.meters.meter import DomainEnergy
from powerprof.measure.clock import WallOffset
from powerprof.measure.energy_series import EnergySeries, PowerSample, power_energy
from powerprof.measure.program_output import median_step_s, numbered_lines, parse_number
from powerprof.system.errors import CapabilityError, DataError
from powerprof.system.foreign_data import loader
from powerprof.system.next_steps import command_line
from powerprof.system.outside_files import read_outside_table

_TIMES = (
    *("t", "time", "timestamp", "epoch", "date", "datetime", "date time", "ts", "unix", "unixtime", "unix time"),
    "seconds",
)
_POWERS = ("power", "watts", "watt", "wattage", "pwr")
_SHORT_POWERS = re.compile(r"p( \d+)?|k?w|mw")
# Words of one figure of the whole machine. A column with any other word may be a part of it.
_WHOLE = {*_POWERS, "p", "w", "kw", "mw", "total", "wall", "ac", "mains", "plug", "active", "real", "input", "draw"}
_WHOLE |= {"instantaneous", "current", "average", "avg", "mean", "meter", "system", "server", "host", "machine"}
# Words of a part, which is never the whole machine.
_PARTS = {"cpu", "gpu", "igpu", "package", "pkg", "core", "cores", "uncore", "dram", "ram", "memory", "soc", "rapl"}
_PARTS |= {"disk", "ssd", "nvme", "fan", "fans", "nic"}
# Columns other than active power: power factor, apparent and reactive power, limits, energy.
_OTHERS = {"factor", "apparent", "reactive", "limit", "max", "min", "energy", "va", "state", "status"}
# Cells of loggers for a time without a reading.
_NO_READING = {"", "-", "unavailable", "unknown", "none", "null", "n/a", "na"}
# The heading of Home Assistant's history, which has one row per state of any of its sensors.
_HISTORY = {"entity id", "state"}
# Smaller times are seconds since the log began: 1e8 is in 1973.
_EPOCH_S = 1e8
_UNITS = {"mw": 1e-3, "milliwatts": 1e-3, "w": 1.0, "watt": 1.0, "watts": 1.0, "kw": 1e3, "kilowatts": 1e3}
_MAX_WATTS = 1e6
# Averaging loggers write at least once a minute.
_STALE_S = 120.0
_LONGEST = 4096
_DELIMITERS = (";", "\t", ",")


class MeterLog(msgspec.Struct, frozen=True):
    """Samples ordered by time (epoch seconds, watts), and their median distance."""

    path: str
    samples: tuple[PowerSample, ...]
    step_s: float
    notes: tuple[str, ...] = ()

    @property
    def has_epoch(self) -> bool:
        """Whether its times are moments, not seconds since the log began."""
        return not self.samples or self.samples[0].time_s >= _EPOCH_S


class Columns(msgspec.Struct, frozen=True):
    """The columns of a log by index.

    Attributes:
        powers: each column and its factor to watts. Their sum is the power.
    """

    time: int
    powers: tuple[tuple[int, float], ...]

    @property
    def count(self) -> int:
        """The least number of cells in a row."""
        return 1 + max(self.time, *(n for n, _ in self.powers))


def split_column(path: Path) -> tuple[Path, str | None]:
    """Return the file and the column of `FILE#COLUMN`. An existing file may have a # in its name."""
    name, mark, column = str(path).rpartition("#")
    return (path, None) if not mark or path.exists() else (Path(name), column)


def read_meter_log(path: Path) -> MeterLog:
    """Return the log of `FILE` or `FILE#COLUMN`, which may have no sample yet. Raise DataError."""
    file, column = split_column(path)
    return parse_meter_log(read_outside_table(file), file, 0, column)


def looks_like_meter_log(text: str) -> bool:
    """Return whether the first line has a time and a power, or names of columns with a time, or two plain figures."""
    first = next((line for line in text[:_LONGEST].splitlines() if line.strip()), "")
    cells = _split(first, _find_delimiter(first))
    names = [_split_unit(cell)[0] for cell in cells]
    if set(names) >= _HISTORY:
        return True
    has_power = any(_is_power(cell) for cell in cells)
    return _has_no_header(cells) or (has_power and any(name in _TIMES for name in names))


@loader(1)
def parse_meter_log(text: str, path: Path | str, minimum: int = 2, column: str | None = None) -> MeterLog:
    """Return the log of a text of at least `minimum` samples. `column` names one or more columns, joined by `+`.

    Raise DataError(path, reason, line) for a damaged header or row, if time runs backwards, or if it is unknown which
    column is the power of the whole machine.
    """
    rows = [(number, line) for number, line in numbered_lines(text, path, _LONGEST) if line.strip()]
    if not rows:
        raise DataError(path, "empty")
    number, line = rows[0]
    delimiter = _find_delimiter(line)
    cells = _split(line, delimiter)
    has_header = not _has_no_header(cells)
    rows = rows[has_header:]
    try:
        columns = _find_columns(cells, column) if has_header else Columns(0, ((1, 1.0),))
    except _AmbiguousError as error:
        raise DataError(path, str(error), number, error.hint.replace("FILE", str(path))) from None
    samples: list[PowerSample] = []
    notes: list[str] = []
    has_local_times = False
    silent_count, silent_s, silent_from_s = 0, 0.0, None
    for index, (number, line) in enumerate(rows):
        try:
            row = _split(line, delimiter)
            time_s, is_local, watts = _parse_row(row, columns)
        except (ValueError, IndexError) as error:
            if index == len(rows) - 1 and samples:
                notes.append(f"the last line is not a sample and was left out: {line.strip()[:40]!r}")
                break
            hint = _TIME_FORMS if isinstance(error, _NoTimeError) else None
            raise DataError(path, str(error), number, hint) from None
        has_local_times = has_local_times or is_local
        if samples and time_s <= samples[-1].time_s:
            raise DataError(path, "time does not advance", number)
        if watts is None:
            silent_count += 1
            silent_from_s = time_s if silent_from_s is None else silent_from_s
        else:
            silent_s += 0.0 if silent_from_s is None or not samples else time_s - silent_from_s
            silent_from_s = None
            samples.append(PowerSample(time_s, watts))
    if len(samples) < minimum:
        raise DataError(path, "fewer than two samples")
    span_s = samples[-1].time_s - samples[0].time_s if samples else 0.0
    if minimum and silent_s > span_s / 2:
        raise DataError(path, f"no reading for {silent_s:.0f} of {span_s:.0f} s: its mean power is unknown")
    if has_local_times:
        notes.append("its times carry no zone and are taken as this machine's local time")
    if silent_count:
        rows_have = "row has" if silent_count == 1 else "rows have"
        bridged = f": {silent_s:.0f} s are a gap, bridged in a straight line" if silent_s else ""
        notes.append(f"{silent_count} {rows_have} no reading{bridged}")
    if column is not None:
        notes.append(f"the power of the whole machine is {column}, as named")
    step_s = median_step_s([sample.time_s for sample in samples])
    return MeterLog(str(path), tuple(samples), step_s, tuple(notes))


def _find_delimiter(line: str) -> str:
    return next((d for d in _DELIMITERS if d in line), ",")


def _split(line: str, delimiter: str) -> list[str]:
    cells = [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]
    # With ; between cells, European loggers write a decimal comma.
    return [c.replace(",", ".") if delimiter == ";" else c for c in cells]


class _AmbiguousError(ValueError):
    """A header that does not show the power or the times. `hint` is the remedy."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


_NAME_ONE = "name the power of the whole machine: FILE#COLUMN, or FILE#COLUMN+COLUMN for a sum (two power supplies)"


def _has_no_header(cells: Sequence[str]) -> bool:
    return len(cells) == 2 and all(_parse_figure(cell) is not None for cell in cells)


def _find_columns(cells: Sequence[str], column: str | None) -> Columns:
    """Return the columns of a header. Raise _AmbiguousError without a time, or without one power of the machine."""
    names = [_split_unit(cell)[0] for cell in cells]
    if set(names) >= _HISTORY:
        raise _AmbiguousError(
            "a history of Home Assistant, which powerprof does not read",
            "export the sensor of the machine's power as a CSV log with the columns time,watts",
        )
    times = [index for index, name in enumerate(names) if name in _TIMES]
    if not times:
        raise _AmbiguousError("no column of time and power in the header", "name them, for example: time,watts")
    powers = [index for index, cell in enumerate(cells) if _is_power(cell)]
    if column is not None:
        powers = [_find_named(cells, name) for name in column.split("+")]
    elif not powers:
        raise _AmbiguousError("no column of time and power in the header", _NAME_ONE)
    elif len(powers) > 1:
        listed = ", ".join(cells[index] for index in powers)
        raise _AmbiguousError(f"{len(powers)} columns of power ({listed}): powerprof does not choose one", _NAME_ONE)
    elif not set(names[powers[0]].split()) <= _WHOLE:
        raise _AmbiguousError(f"{cells[powers[0]]} may be the power of a part of the machine", _NAME_ONE)
    return Columns(times[0], tuple((index, _factor_of(cells[index])) for index in powers))


def _find_named(cells: Sequence[str], name: str) -> int:
    """Return the index of a column by its heading, with or without its unit. Raise _AmbiguousError."""
    wanted = name.strip().lower()
    matches = [index for index, cell in enumerate(cells) if cell.lstrip("\ufeff# ").lower() == wanted]
    matches = matches or [index for index, cell in enumerate(cells) if _split_unit(cell)[0] == _split_unit(name)[0]]
    if len(matches) > 1:
        raise _AmbiguousError(f"{len(matches)} columns are called {name.strip()!r}", "give each column its own heading")
    if not matches:
        raise _AmbiguousError(f"it has no column {name.strip()!r}", f"name one of its columns: {', '.join(cells)}")
    heading, unit = _split_unit(cells[matches[0]])
    if set(heading.split()) & _PARTS:
        raise _AmbiguousError(f"{name.strip()} is the power of a part, not of the machine", _NAME_ONE)
    if unit and unit not in _UNITS:
        raise _AmbiguousError(f"{name.strip()} has the unit {unit}, which is not a power", _NAME_ONE)
    return matches[0]


def _is_power(cell: str) -> bool:
    """Return whether a heading is one of an active power."""
    name, unit = _split_unit(cell)
    words = set(name.split())
    if words & _OTHERS or (unit and unit not in _UNITS):
        return False
    return unit in _UNITS or bool(words & set(_POWERS)) or _SHORT_POWERS.fullmatch(name) is not None


def _factor_of(cell: str) -> float:
    name, unit = _split_unit(cell)
    return _UNITS.get(unit, _UNITS.get(name, 1.0))


def _split_unit(cell: str) -> tuple[str, str]:
    """Return the name and the unit of a column's heading, in lower case. The unit MW stays: it is no server's."""
    spaced = re.sub(r"(?<=[a-z]{2})(?=[A-Z])|(?<=[A-Za-z])(?=\d)", " ", cell.strip().lstrip("\ufeff# "))
    text = re.sub(r"[_\s-]+", " ", spaced).strip()
    match = re.fullmatch(r"(.+?) ?[(\[](.+)[)\]]", text)
    match = match or re.fullmatch(r"(.+) (mw|w|kw|watts?|wh|kwh|va|var|s|ms|us|ns|utc)", text, re.I)
    if match is None:
        return text.lower(), ""
    unit = match[2].strip().replace(" ", "")
    return match[1].strip().lower(), unit if unit == "MW" else unit.lower()


def _parse_figure(cell: str) -> float | None:
    value = parse_number(cell, -1e20, 1e20)
    return None if value is None or abs(value) == 1e20 else value


def _parse_row(cells: Sequence[str], columns: Columns) -> tuple[float, bool, float | None]:
    """Return the epoch time, whether it is local time, and watts (None: no reading). Raise ValueError."""
    if len(cells) < columns.count:
        raise ValueError(f"{len(cells)} columns, the header has more")
    watts: float | None = 0.0
    for index, factor in columns.powers:
        power = _parse_figure(cells[index])
        if power is None and cells[index].lower() in _NO_READING:
            watts = None
        elif power is None or not 0 <= power * factor <= _MAX_WATTS:
            raise ValueError(f"not a power: {cells[index][:30]!r}")
        elif watts is not None:
            watts += power * factor
    return *_parse_time(cells[columns.time]), watts


_TIME_FORMS = "write times as epoch seconds or in ISO 8601, such as 2026-11-24T16:00:00+01:00, in one column"
_DATE_LENGTH = len("2026-11-24")


class _NoTimeError(ValueError):
    """A cell that is no time of a known form."""


def _parse_time(cell: str) -> tuple[float, bool]:
    """Return epoch seconds, and whether they are of the local zone. Raise _NoTimeError."""
    value = _parse_figure(cell)
    if value is not None and value >= 0:
        # Epoch seconds stay below 1e11 until the year 5138. Larger figures are ms, µs or ns.
        for limit, divisor in ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6), (1e20, 1e9)):
            if value < limit:
                return value / divisor, False
    try:
        moment = datetime.fromisoformat(cell)
        if len(cell) > _DATE_LENGTH:  # a date alone would be midnight
            return moment.timestamp(), moment.tzinfo is None
    except (ValueError, OverflowError, OSError):
        pass
    raise _NoTimeError(f"not a time: {cell[:30]!r}")


class MeterLogMeter:
    """A log that another program writes during the window. The meter reads it when the window ends."""

    name = "meter_log"
    max_interval_s: float | None = None

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = WallOffset()
        self.notes: list[str] = []

    def sample(self, now_s: float) -> None:
        self._offset.note(now_s)

    def is_counting(self) -> bool | None:
        return None

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        # A damaged log must not lose the rest of a measured window.
        try:
            log = read_meter_log(self._path)
        except DataError as error:
            self.notes = [f"meter_log: {error.message}"]
            return [DomainEnergy("wall", "wall", EnergySeries(None, start_s, end_s))]
        self.notes = [f"meter_log: {note}" for note in log.notes]
        offset_s = self._offset.near(end_s)
        samples = [PowerSample(s.time_s - offset_s, s.watts) for s in log.samples]
        return [DomainEnergy("wall", "wall", power_energy(samples, start_s, end_s, 3 * log.step_s))]

    def drop_samples(self, before_s: float) -> None:
        """Keep everything: the samples are in the log."""

    def close(self) -> None:
        """Do nothing: the log is read as a whole, and closed then."""


def open_meter_log(path: Path | None) -> MeterLogMeter:
    """Open a wall meter's log.

    Raise CapabilityError without a file or if the log cannot cover a window that begins now. Raise DataError for a
    damaged log.
    """
    if path is None:
        raise CapabilityError("meter_log: no log was named", "add --meter FILE")
    log = read_meter_log(path)
    if not log.has_epoch:
        raise CapabilityError(
            f"meter_log: the times of {path} count from 0 and cannot be matched to this machine's clock",
            f"let the logger write times of day, or replay it alone: {command_line('energy --from FILE')}",
        )
    age_s = time.time() - log.samples[-1].time_s if log.samples else 0.0
    if abs(age_s) > max(_STALE_S, 10 * log.step_s):
        age = f"{age_s:.0f} s old" if age_s > 0 else f"{-age_s:.0f} s ahead of this machine's clock"
        raise CapabilityError(
            f"meter_log: the last sample of {path} is {age}",
            "start the logger; if it runs, set both clocks by the same source",
        )
    return MeterLogMeter(path)
