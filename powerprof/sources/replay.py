"""Plays a recorded timeline back through the sampler, at once instead of in its own time.

A timeline is saved as CSV: `time_s` and one column a figure, `*` after the name of a counter, empty where
unknown.
"""

from __future__ import annotations

import csv
import io
import math
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from powerprof.errors import DataError
from powerprof.files import read_outside_text
from powerprof.sources.base import Column

if TYPE_CHECKING:
    from powerprof.timeline import Timeline

_MAX_COLUMNS = 100_000


def timeline_csv(timeline: Timeline) -> str:
    """A timeline as CSV text; `read_replay` gives the same figures back."""
    names = list(timeline.columns)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["time_s", *(f"{name}*" if name in timeline.cumulative else name for name in names)])
    for index, at_s in enumerate(timeline.time_s):
        values = (float(timeline.columns[name][index]) for name in names)
        writer.writerow([repr(float(at_s)), *("" if math.isnan(value) else repr(value) for value in values)])
    return out.getvalue()


class Replay:
    """A recorded timeline as a source and as the clock that goes with it: `Sampler([replay], period,
    replay)`.

    Its columns keep their full names, without a source's before them.
    """

    name = ""

    def __init__(self, columns: tuple[Column, ...], times_s: list[float], rows: list[list[float]]) -> None:
        self.columns = columns
        self._times_s = times_s
        self._rows = rows
        self._at = 0

    def read(self) -> list[float]:
        """The row of the moment that the clock has reached."""
        return self._rows[self._at]

    def now_s(self) -> float:
        return self._times_s[self._at]

    def suspended_s(self) -> float:
        return 0.0

    def sleep_until(self, when_s: float, stop: threading.Event | None) -> bool:
        """Go to the first row at or after that moment; True where the recording ends before it."""
        later = self._at + 1
        while later < len(self._times_s) and self._times_s[later] < when_s - 1e-6:
            later += 1
        if later == len(self._times_s) or (stop is not None and stop.is_set()):
            return True
        self._at = later
        return False


def read_replay(path: Path) -> Replay:
    """Read a timeline's CSV. Raises DataError with line and reason."""
    reader = csv.reader(io.StringIO(read_outside_text(path)))
    try:
        rows = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise DataError(path, f"not a CSV file ({error})", reader.line_num) from None
    if not rows or rows[0][1][0] != "time_s" or not 1 < len(rows[0][1]) <= _MAX_COLUMNS:
        raise DataError(path, "not a timeline (its first column is not time_s)", 1)
    names = rows[0][1][1:]
    if len(set(names)) != len(names):
        raise DataError(path, "a column is there twice", 1)
    times_s: list[float] = []
    figures: list[list[float]] = []
    for line, row in rows[1:]:
        if len(row) != len(names) + 1:
            raise DataError(path, f"{len(row)} figures under {len(names) + 1} columns", line)
        at_s, *values = (_figure(cell, path, line) for cell in row)
        if math.isnan(at_s) or (times_s and at_s <= times_s[-1]):
            raise DataError(path, f"time does not go forward ({row[0][:30]!r})", line)
        times_s.append(at_s)
        figures.append(values)
    if not times_s:
        raise DataError(path, "no samples in it")
    columns = tuple(Column(name.removesuffix("*"), name.endswith("*")) for name in names)
    return Replay(columns, times_s, figures)


def _figure(cell: str, path: Path, line: int) -> float:
    if not cell:
        return math.nan
    try:
        value = float(cell)
    except ValueError:
        value = math.inf
    if math.isinf(value):
        raise DataError(path, f"not a figure ({cell[:30]!r})", line)
    return value
