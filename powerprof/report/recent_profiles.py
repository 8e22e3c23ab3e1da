# SPDX-License-Identifier: Apache-2.0
"""The last intervals of the exporter as pprof, for programs that scrape it: Parca, Grafana Alloy, go tool pprof."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

import msgspec

from powerprof.live.intervals import REST, LiveInterval
from powerprof.report.pprof import SampleType, encode_pprof
from powerprof.report.stacks import Frames

PROFILES: Mapping[str, SampleType] = {"wakeups": ("idle_exits", "count"), "c0": ("c0", "nanoseconds")}
_KEPT_S = 300.0
# 10,000 stacks of 20 frames take 4 MB, and one profile of them 0.3 s of CPU time and 0.2 MB.
_MOST_STACKS, _MOST_MADE = 10_000, 4


class _Window(msgspec.Struct, frozen=True):
    """One interval: the values of `PROFILES` by stack, outermost frame first; they add up to the host."""

    ended_at: str
    length_s: float
    sums: Mapping[Frames, Sequence[int]]


class RecentProfiles:
    """The stacks of the last intervals, of bounded number. One thread adds intervals, and another reads profiles."""

    def __init__(self, kept_s: float = _KEPT_S, most_stacks: int = _MOST_STACKS) -> None:
        self._kept_s, self._most_stacks = kept_s, most_stacks
        # The windows, oldest first, and the profiles made of them. They change together, by one assignment.
        self._recent: tuple[tuple[_Window, ...], dict[tuple[str, int], bytes]] = ((), {})

    @property
    def names(self) -> Collection[str]:
        """Return the names of the profiles."""
        return PROFILES

    def add(self, interval: LiveInterval) -> None:
        """Add an interval, and drop the oldest ones beyond the time and the number of stacks that are kept."""
        newest = _Window(interval.ended_at, interval.window_s, _sum_stacks(interval, self._most_stacks))
        windows = [*self._recent[0], newest]
        while len(windows) > 1 and (
            sum(window.length_s for window in windows[1:]) >= self._kept_s
            or sum(len(window.sums) for window in windows) > self._most_stacks
        ):
            del windows[0]
        self._recent = tuple(windows), {}

    def render(self, name: str, seconds: float) -> bytes | None:
        """Return a profile of the last `seconds`, rounded to whole intervals; at least one. None if there is none."""
        windows, made = self._recent
        if not windows:
            return None
        count = _count_windows([window.length_s for window in windows], seconds)
        if (name, count) not in made:
            while len(made) >= _MOST_MADE:
                del made[next(iter(made))]
            made[name, count] = _encode_windows(windows[-count:], name)
        return made[name, count]


def _count_windows(lengths_s: Sequence[float], seconds: float) -> int:
    """Return the number of the last windows whose sum is nearest to `seconds`; at least 1."""
    covered_s, count = lengths_s[-1], 1
    for length_s in reversed(lengths_s[:-1]):
        if covered_s + length_s / 2 > seconds:
            break
        covered_s, count = covered_s + length_s, count + 1
    return count


def _sum_stacks(interval: LiveInterval, most: int) -> dict[Frames, Sequence[int]]:
    sums: dict[Frames, list[int]] = {}
    # A row of the kernel has no stack: its function is its cause.
    by_cost = sorted(interval.rows, key=lambda row: (row.exits_count, row.c0_s), reverse=True)
    for row in by_cost:
        frames = (row.key.process, row.key.thread, *(tuple(reversed(row.stack)) or (row.key.function,)))
        if frames in sums or len(sums) < most - 1:
            values = sums.setdefault(frames, [0, 0])
            values[0] += row.exits_count
            values[1] += round(row.c0_s * 1e9)
    exits, c0_ns = (sum(values[column] for values in sums.values()) for column in (0, 1))
    rest = max(0, interval.exits_count - exits), max(0, round(interval.c0_s * 1e9) - c0_ns)
    return {frames: values for frames, values in [*sums.items(), ((REST.process,), rest)] if any(values)}


def _encode_windows(windows: Sequence[_Window], name: str) -> bytes:
    column = list(PROFILES).index(name)
    sums: Counter[Frames] = Counter()
    for window in windows:
        for frames, values in window.sums.items():
            sums[frames] += values[column]
    length_s = sum(window.length_s for window in windows)
    ended_s = datetime.fromisoformat(windows[-1].ended_at).timestamp()
    return encode_pprof(
        sorted((frames, (value,)) for frames, value in sums.items() if value),
        (PROFILES[name],),
        time_ns=round((ended_s - length_s) * 1e9),
        duration_ns=round(length_s * 1e9),
    )
