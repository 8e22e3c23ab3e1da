# SPDX-License-Identifier: Apache-2.0
"""Energy counters: their steps, wraps, resets and refresh. Pure.

A step backwards is a wrap if the counter's range allows it and the power is possible and usual for this counter.
Otherwise the counter restarted from 0 (firmware, suspend, a reloaded driver), and the energy since then is unknown. A
single sample far ahead of both its neighbours is a spike.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

import msgspec

Missing = Literal["gone", "unreadable", "no_range"]
# The largest possible power of one package or of its memory: 500 W is the largest on sale (Granite Rapids 6980P, EPYC
# 9965), and boost may double it for moments.
PACKAGE_WATTS = 1000.0
PSYS_WATTS = 5 * PACKAGE_WATTS
# A wrap that implies more than this many times the power of any other step is a reset.
_UNUSUAL = 5.0
# Shorter steps are jitter of two readings: a counter with an update per ms may show two updates in one of them.
_SHORTEST_S = 0.01


class CounterSample(msgspec.Struct, frozen=True):
    """One reading of an energy counter in its own units. If `value` is None, `missing` has the reason."""

    time_s: float
    value: int | None
    missing: Missing | None = None


class CounterStep(msgspec.Struct, frozen=True):
    """The count of a counter between two samples."""

    start_s: float
    end_s: float
    units: int


class Drop(msgspec.Struct, frozen=True):
    """An unused sample, the time that is not counted because of it, and the reason."""

    start_s: float
    end_s: float
    reason: str


class CounterSteps(msgspec.Struct):
    """The steps of a counter in order. There may be gaps between them.

    Attributes:
        late: steps that were joined with a too large one after them or before them. Their `units` are the excess of the
            large step, whose time is uncertain.
    """

    steps: list[CounterStep] = msgspec.field(default_factory=list)
    drops: list[Drop] = msgspec.field(default_factory=list)
    late: list[CounterStep] = msgspec.field(default_factory=list)


def step_units(old: int, new: int, modulus: int | None) -> int | None:
    """Return the units between two readings with at most one wrap. None for a step back without a valid wrap.

    In powercap, modulus = max_energy_range_uj + 1.
    """
    if new >= old:
        return new - old
    if modulus is None or not 0 <= old < modulus or new < 0:
        return None
    return (new - old) % modulus


def count_steps(
    samples: Sequence[CounterSample], joules_per_unit: float, modulus: int | None, limit_watts: float
) -> CounterSteps:
    """Return the steps between the readable samples of one counter, which are ordered by time."""
    counted = CounterSteps()
    readings = [(s.time_s, s.value) for s in samples if s.value is not None]
    readings, counted.late = _join_late_steps(readings, joules_per_unit, limit_watts)
    usual_watts = _find_usual_watts(readings, joules_per_unit, limit_watts)

    def step(old: _Reading, new: _Reading) -> CounterStep | None:
        units = step_units(old[1], new[1], modulus)
        if units is None:
            return None
        watts = units * joules_per_unit / max(new[0] - old[0], _SHORTEST_S)
        is_wrap = new[1] < old[1]
        if watts > limit_watts or (is_wrap and usual_watts is not None and watts > _UNUSUAL * usual_watts):
            return None
        return CounterStep(old[0], new[0], units)

    last: _Reading | None = None
    odd: _Reading | None = None  # a sample that does not continue from `last`
    for reading in readings:
        if last is None:
            last = reading
            continue
        continued = step(last, reading)
        restarted = step(odd, reading) if odd is not None else None
        # If the counter continues from the odd sample, it was reset or jumped ahead. If it returns, that was a spike.
        is_continued = odd is not None and (odd[1] < last[1] or continued is None or reading[1] >= odd[1])
        if odd is not None and restarted is not None and is_continued:
            counted.drops.append(_make_jump(last, odd, joules_per_unit, limit_watts))
            counted.steps.append(restarted)
            last, odd = reading, None
            continue
        if odd is not None:
            reason = f"a sample of {odd[1] * joules_per_unit:.1f} J does not fit the samples around it: dropped"
            counted.drops.append(Drop(odd[0], odd[0], reason))
            odd = None
        if continued is None:
            odd = reading
        else:
            counted.steps.append(continued)
            last = reading
    if odd is not None and last is not None:
        counted.drops.append(_make_jump(last, odd, joules_per_unit, limit_watts))
    return counted


_Reading = tuple[float, int]


def _join_late_steps(
    readings: list[_Reading], joules_per_unit: float, limit_watts: float
) -> tuple[list[_Reading], list[CounterStep]]:
    """Return the readings without those before a late update of the counter, and the steps that are thereby joined.

    One step is then too large by what its neighbour lacks. Joined they are possible, and near the power of the others.
    """
    late: list[CounterStep] = []
    if len(readings) <= 2:
        return readings, late

    def find_watts(old: _Reading, new: _Reading) -> float:
        return (new[1] - old[1]) * joules_per_unit / max(new[0] - old[0], _SHORTEST_S)

    rates = [find_watts(old, new) for old, new in itertools.pairwise(readings)]
    skipped: set[int] = set()
    for number in [n for n, watts in enumerate(rates) if watts > limit_watts]:
        for first, last in ((number - 1, number), (number, number + 1), (number - 2, number)):
            if first < 0 or last >= len(rates) or skipped & set(range(first, last + 2)):
                continue
            # A sample that the next one takes back is a spike.
            low = min(rates[first : last + 2])
            joined = find_watts(readings[first], readings[last + 1])
            others = sorted(w for n, w in enumerate(rates) if not first <= n <= last and 0 <= w <= limit_watts)
            most = _LATE * others[len(others) // 2] if len(others) >= _LEAST_OTHERS else limit_watts
            if low >= 0 and joined <= min(most, limit_watts):
                skipped |= set(range(first + 1, last + 1))
                excess = (rates[number] - low) * (readings[number + 1][0] - readings[number][0])
                late.append(CounterStep(readings[first][0], readings[last + 1][0], round(excess / joules_per_unit)))
                break
    return [reading for n, reading in enumerate(readings) if n not in skipped], late


def _find_usual_watts(readings: Sequence[_Reading], joules_per_unit: float, limit_watts: float) -> float | None:
    """Return the largest possible power of a forward step. None without one."""
    watts = [
        (new - old) * joules_per_unit / max(later - earlier, _SHORTEST_S)
        for (earlier, old), (later, new) in itertools.pairwise(readings)
        if new > old
    ]
    return max((value for value in watts if value <= limit_watts), default=None)


def _make_jump(last: _Reading, odd: _Reading, joules_per_unit: float, limit_watts: float) -> Drop:
    seconds, before, after = odd[0] - last[0], last[1] * joules_per_unit, odd[1] * joules_per_unit
    if after < before:
        reason = (
            f"the counter went back from {before:.1f} to {after:.1f} J, which is a reset, not a wrap "
            f"(or readings in the wrong order): {seconds:.1f} s are not counted"
        )
    else:
        watts = (after - before) / max(seconds, _SHORTEST_S)
        reason = f"a step of {watts:,.0f} W is more than {limit_watts:,.0f} W: {seconds:.1f} s are not counted"
    return Drop(last[0], odd[0], reason)


# A counter that moves within this time is refreshed often enough for exact edges.
_FAST_S = 0.05
_FAST_LOOK_S, _SLOW_LOOK_S = 1.0, 0.2
# Smaller steps are the counter's unit at almost no power.
_LEAST_STEP_JOULES = 0.01
# A counter stands still if it does not move for this many times its longest pause.
_FROZEN = 3.0
# One that moved in every step before stands still after this time.
_STOPPED_S = 0.5
_LEAST_MOVES = 3
# A counter that moved in so many steps, and not in the last one, stopped.
_LEAST_MOVING = 5
_LEAST_STILL = 2
_SLOW_SHARE = 0.2
# A step with this many times the power of any other one is a jump of the counter or a burst.
_JUMP = 4.0
_LEAST_OTHERS = 4
# Steps of a late update have together no more than this many times the power of the other steps.
_LATE = 1.25
_FIRST_SAMPLES = 50


def choose_interval_s(counters: Sequence[Sequence[CounterSample]]) -> float | None:
    """Return the sampling interval within a window. None before the first sample.

    A fast counter is sampled once a second, to detect freezes and jumps. Others are sampled more often, to find their
    steps.
    """
    if not any(counters):
        return None
    is_fast = any(
        b.time_s - a.time_s <= _FAST_S and None not in (a.value, b.value) and a.value != b.value
        for samples in counters
        for a, b in itertools.pairwise(samples[:_FIRST_SAMPLES])
    )
    return _FAST_LOOK_S if is_fast else _SLOW_LOOK_S


class Refresh(msgspec.Struct, frozen=True):
    """The refresh of a counter.

    Attributes:
        samples: those at which it moved.
        period_s: the longest pause between two moves. None if every sample moved.
        frozen_s: the time of its last move, if it does not move any more.
    """

    samples: Sequence[CounterSample]
    period_s: float | None = None
    frozen_s: float | None = None


def detect_refresh(samples: Sequence[CounterSample], joules_per_unit: float) -> Refresh:
    """Return the refresh of a counter. If it is sampled more often than refreshed, only its moves have a known time."""
    pairs = list(itertools.pairwise([s for s in samples if s.value is not None]))
    lengths = [b.time_s - a.time_s for a, b in pairs]
    if (
        len(pairs) > _LEAST_MOVING
        and pairs[-1][0].value == pairs[-1][1].value
        and lengths[-1] > sum(lengths) / len(lengths) / 2 > _FAST_S
        and all(a.value != b.value for a, b in pairs[:-1])
    ):
        return Refresh(samples, frozen_s=pairs[-1][0].time_s)
    moved = [(a, b) for a, b in pairs if a.value != b.value]
    still = [b for a, b in pairs if a.value == b.value and b.time_s - a.time_s > _SHORTEST_S]
    most = max((abs((b.value or 0) - (a.value or 0)) for a, b in moved), default=0)
    if len(moved) >= _LEAST_MOVES and most * joules_per_unit >= _LEAST_STEP_JOULES:
        # It moved in every step, and in none after a certain moment.
        stop_s, end_s = moved[-1][1].time_s, pairs[-1][1].time_s
        if all(sample.time_s > stop_s for sample in still) and end_s - stop_s >= _STOPPED_S:
            return Refresh(samples, frozen_s=stop_s)
    if len(still) < _LEAST_STILL or most * joules_per_unit < _LEAST_STEP_JOULES:
        return Refresh(samples)
    moves = [b for _, b in moved]
    pauses = [b.time_s - a.time_s for a, b in itertools.pairwise(moves)]
    if len(moves) >= _LEAST_MOVES and pairs[-1][1].time_s - moves[-1].time_s > _FROZEN * max(pauses):
        return Refresh(samples, frozen_s=moves[-1].time_s)
    if len(still) < _SLOW_SHARE * len(pairs):
        return Refresh(samples)
    return Refresh(moves, max(pauses) if pauses else pairs[-1][1].time_s - pairs[0][0].time_s)


def find_jump(steps: Sequence[CounterStep], joules_per_unit: float) -> tuple[float, CounterStep] | None:
    """Return the excess joules of one step far above all others, and that step. None without such a step."""
    long = [step for step in steps if step.end_s - step.start_s > _SHORTEST_S]
    if len(long) <= _LEAST_OTHERS:
        return None
    rates = [step.units * joules_per_unit / (step.end_s - step.start_s) for step in long]
    top = max(range(len(long)), key=rates.__getitem__)
    usual = max(rate for index, rate in enumerate(rates) if index != top)
    if usual <= 0 or rates[top] <= _JUMP * usual:
        return None
    return (rates[top] - usual) * (long[top].end_s - long[top].start_s), long[top]
