# SPDX-License-Identifier: Apache-2.0
"""The last minute of a monitor: what a screen draws lines of. As many intervals as it was made for, the newest last."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from powerprof.live.intervals import IntervalRow, LiveInterval, RowKey
from powerprof.live.totals import merged

POINTS = 12


@dataclass(frozen=True)
class Line:
    """A row of the newest interval with its rates before; `new_s` is how long ago it came, None where it was there all
    along."""

    row: IntervalRow
    rate_hz: float
    c0_percent: float
    rates_hz: tuple[float, ...]
    new_s: float | None


class RowHistory:
    """Intervals as they come."""

    def __init__(self, points: int = POINTS) -> None:
        self.intervals: deque[LiveInterval] = deque(maxlen=points)
        self._rates: deque[dict[RowKey, float]] = deque(maxlen=points)
        self._seen = 0

    def add(self, interval: LiveInterval) -> None:
        """One more."""
        self._seen += 1
        self.intervals.append(interval)
        seconds = interval.window_s or 1.0
        self._rates.append({row.key: row.exits_count / seconds for row in merged(interval.rows)})

    @property
    def last(self) -> LiveInterval | None:
        """The newest."""
        return self.intervals[-1] if self.intervals else None

    def series(self, value: Callable[[LiveInterval], float | None]) -> list[float | None]:
        """One figure of each interval."""
        return [value(interval) for interval in self.intervals]

    def lines(self) -> list[Line]:
        """Every row of the newest interval, the most exits first."""
        newest = self.last
        if newest is None:
            return []
        seconds = newest.window_s or 1.0
        return [
            Line(
                row=row,
                rate_hz=row.exits_count / seconds,
                c0_percent=100.0 * row.c0_s / (seconds * max(1, newest.cpus)),
                rates_hz=tuple(rates.get(row.key, 0.0) for rates in self._rates),
                new_s=self._age(row.key),
            )
            for row in merged(newest.rows)
        ]

    def _age(self, key: RowKey) -> float | None:
        """Seconds since it came; None for what was there at the first look, or at the oldest that is remembered."""
        first = next((number for number, rates in enumerate(self._rates) if rates.get(key)), 0)
        if first == 0:
            return None
        return sum(interval.window_s for interval in list(self.intervals)[first:])
