"""Figures over time: reads sources on a fixed grid of deadlines into columns, and says where samples are
missing.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from powerprof.errors import PowerprofError
from powerprof.sources.base import Column, Source
from powerprof.sources.edges import suspend_clock_ns

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_FIRST_ROWS = 256
_SUSPENDED_S = 0.01


class Clock(Protocol):
    """Where the sampler's time comes from: the kernel, or a recording."""

    def now_s(self) -> float: ...

    def suspended_s(self) -> float: ...

    def sleep_until(self, when_s: float, stop: threading.Event | None) -> bool:
        """Sleep; True where it ended early because `stop` was set or the recording is over."""
        ...


class MonotonicClock:
    """CLOCK_MONOTONIC. One wake-up a sleep; it stands still while the host is suspended."""

    def now_s(self) -> float:
        return time.monotonic()

    def suspended_s(self) -> float:
        return suspend_clock_ns() / 1e9

    def sleep_until(self, when_s: float, stop: threading.Event | None) -> bool:
        left_s = when_s - time.monotonic()
        if stop is not None:
            return stop.wait(max(0.0, left_s))
        if left_s > 0:
            time.sleep(left_s)
        return False


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch without samples: deadlines were missed by a busy host, or the host was suspended."""

    start_s: float
    end_s: float
    reason: Literal["late", "suspended"]
    missed_count: int


@dataclass(frozen=True)
class Timeline:
    """Samples as columns by `source.column`, all as long as `time_s` (seconds since the first). NaN is
    unknown.

    `cumulative` names the counters; `rate` makes them figures a second.
    """

    period_s: float
    time_s: NDArray[np.float64]
    columns: Mapping[str, NDArray[np.float64]]
    cumulative: frozenset[str] = frozenset()
    gaps: tuple[Gap, ...] = ()
    notes: tuple[str, ...] = ()

    def rate(self, name: str) -> NDArray[np.float64]:
        """A counter's increase a second from each sample to the next; NaN where it went backwards or is
        unknown.

        One shorter than `time_s`. Gaps need no care: the increase is over the time that really passed.
        """
        import numpy as np

        steps = np.diff(self.columns[name])
        steps[steps < 0] = np.nan
        rates: NDArray[np.float64] = steps / np.diff(self.time_s)
        return rates


@dataclass
class _Rows:
    """A table of floats that doubles when it is full."""

    width: int
    used: int = 0
    table: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        import numpy as np

        self.table = np.full((_FIRST_ROWS, self.width), np.nan)

    def append(self, row: Sequence[float]) -> None:
        import numpy as np

        if self.used == len(self.table):
            self.table = np.concatenate([self.table, np.full_like(self.table, np.nan)])
        self.table[self.used] = row
        self.used += 1


class Sampler:
    """Reads every source once a period. A source that fails is unknown from then on, which `notes` say.

    Beside other work run it in a thread of its own and end it by `stop`: signals reach the main thread only.
    """

    def __init__(self, sources: Sequence[Source], period_s: float, clock: Clock | None = None) -> None:
        self._sources = list(sources)
        self._period_s = period_s
        self._clock = clock or MonotonicClock()
        self._failed: dict[int, str] = {}

    def _read(self) -> list[float]:
        row: list[float] = []
        for index, source in enumerate(self._sources):
            values: Sequence[float] = [math.nan] * len(source.columns)
            if index not in self._failed:
                try:
                    values = source.read()
                except PowerprofError as error:
                    self._failed[index] = f"{source.name} stopped: {error.message}"
            row.extend(values)
        return row

    def run(self, duration_s: float | None, stop: threading.Event | None = None) -> Timeline:
        """Sample until `duration_s` is over or `stop` is set: a sample at the start, and one a deadline.

        Deadlines lie on a fixed grid, so that lateness does not add up; those that were missed are a gap.
        """
        names: list[tuple[str, Column]] = [
            (f"{source.name}.{column.name}" if source.name else column.name, column)
            for source in self._sources
            for column in source.columns
        ]
        rows = _Rows(len(names) + 1)
        gaps: list[Gap] = []
        origin_s, suspended_s = self._clock.now_s(), self._clock.suspended_s()
        last_s, tick = 0.0, 0
        while True:
            now_s = self._clock.now_s() - origin_s
            asleep_s = self._clock.suspended_s() - suspended_s
            due = int((now_s + 1e-9) / self._period_s)
            if asleep_s > _SUSPENDED_S:
                gaps.append(Gap(last_s, now_s, "suspended", int(asleep_s / self._period_s)))
                suspended_s += asleep_s
            elif due > tick:
                gaps.append(Gap(last_s, now_s, "late", due - tick))
            rows.append([now_s, *self._read()])
            last_s, tick = now_s, max(tick, due) + 1
            if duration_s is not None and tick * self._period_s > duration_s + 1e-9:
                break
            if self._clock.sleep_until(origin_s + tick * self._period_s, stop):
                break
        table = rows.table[: rows.used]
        return Timeline(
            self._period_s,
            table[:, 0].copy(),
            {name: table[:, index].copy() for index, (name, _) in enumerate(names, 1)},
            frozenset(name for name, column in names if column.cumulative),
            tuple(gaps),
            tuple(self._failed.values()),
        )
