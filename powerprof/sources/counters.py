# SPDX-License-Identifier: Apache-2.0
"""An energy counter's readings, classified: steps that count, wraps, resets, spikes and samples that say nothing. Pure.

A step backwards is a wrap where the counter's range allows it and where what then was drawn is what the hardware can
draw and usually draws; otherwise the counter started again from 0 (firmware, suspend, a reloaded driver), and what
was drawn since is unknown. A single sample that lies far ahead of both its neighbours is a spike.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Missing = Literal["gone", "unreadable", "no_range"]
# What one package, or its memory, can draw: 500 W is the most that is sold (Granite Rapids 6980P, EPYC 9965), and
# boost may double that for moments.
PACKAGE_WATTS = 1000.0
# A wrap that would mean more than this many times what was drawn in any other step is a reset.
_UNUSUAL = 5.0
# Shorter steps are the jitter of two readings: a counter that is updated every ms may do two updates in one of them.
_SHORTEST_S = 0.01


@dataclass(frozen=True)
class CounterSample:
    """One reading of an energy counter in its own units; `value` None says why in `missing`."""

    time_s: float
    value: int | None
    missing: Missing | None = None


@dataclass(frozen=True)
class CounterStep:
    """What a counter counted between two samples."""

    start_s: float
    end_s: float
    units: int


@dataclass(frozen=True)
class Drop:
    """A sample that was not used, the time that is not counted because of it, and why."""

    start_s: float
    end_s: float
    why: str


@dataclass
class CounterSteps:
    """The steps of a counter, in order; between them may lie gaps."""

    steps: list[CounterStep] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)


def step_units(old: int, new: int, modulus: int | None) -> int | None:
    """Units between two readings with at most one wrap; None where a step back cannot be read.

    (powercap: modulus = max_energy_range_uj + 1.)
    """
    if new >= old:
        return new - old
    if modulus is None or not 0 <= old < modulus or new < 0:
        return None
    return (new - old) % modulus


def count(
    samples: Sequence[CounterSample], joules_per_unit: float, modulus: int | None, limit_watts: float
) -> CounterSteps:
    """The steps between the readable samples of one counter, in order of time."""
    counted = CounterSteps()
    good = [(s.time_s, s.value) for s in samples if s.value is not None]
    usual = _usual_watts(good, joules_per_unit, limit_watts)

    def step(old: _Reading, new: _Reading) -> CounterStep | None:
        units = step_units(old[1], new[1], modulus)
        if units is None:
            return None
        watts = units * joules_per_unit / max(new[0] - old[0], _SHORTEST_S)
        wrapped = new[1] < old[1]
        if watts > limit_watts or (wrapped and usual is not None and watts > _UNUSUAL * usual):
            return None
        return CounterStep(old[0], new[0], units)

    last: _Reading | None = None
    odd: _Reading | None = None  # a sample that does not follow on `last`
    for sample in good:
        if last is None:
            last = sample
            continue
        onward = step(last, sample)
        restarted = step(odd, sample) if odd is not None else None
        # It goes on from there: a reset, or a jump ahead. Back on its course it was a spike.
        goes_on = odd is not None and (odd[1] < last[1] or onward is None or sample[1] >= odd[1])
        if odd is not None and restarted is not None and goes_on:
            counted.drops.append(_jump(last, odd, joules_per_unit, limit_watts))
            counted.steps.append(restarted)
            last, odd = sample, None
            continue
        if odd is not None:
            why = f"a sample of {odd[1] * joules_per_unit:.1f} J does not fit the samples around it: dropped"
            counted.drops.append(Drop(odd[0], odd[0], why))
            odd = None
        if onward is None:
            odd = sample
        else:
            counted.steps.append(onward)
            last = sample
    if odd is not None and last is not None:
        counted.drops.append(_jump(last, odd, joules_per_unit, limit_watts))
    return counted


_Reading = tuple[float, int]


def _usual_watts(good: Sequence[_Reading], joules_per_unit: float, limit_watts: float) -> float | None:
    """The most that was drawn in a step that needs no explanation; None where there is none."""
    watts = [
        (new - old) * joules_per_unit / max(later - earlier, _SHORTEST_S)
        for (earlier, old), (later, new) in itertools.pairwise(good)
        if new > old
    ]
    return max((value for value in watts if value <= limit_watts), default=None)


def _jump(last: _Reading, odd: _Reading, joules_per_unit: float, limit_watts: float) -> Drop:
    seconds, before, after = odd[0] - last[0], last[1] * joules_per_unit, odd[1] * joules_per_unit
    if after < before:
        why = (
            f"the counter went back from {before:.1f} to {after:.1f} J, which is a reset, not a wrap "
            f"(or readings in the wrong order): {seconds:.1f} s are not counted"
        )
    else:
        watts = (after - before) / max(seconds, _SHORTEST_S)
        why = f"a step of {watts:,.0f} W is more than {limit_watts:,.0f} W: {seconds:.1f} s are not counted"
    return Drop(last[0], odd[0], why)


# A counter that is seen to move within so little is refreshed often enough for its edges alone to be exact.
_FAST_S = 0.05
_FAST_LOOK_S, _SLOW_LOOK_S = 1.0, 0.2
# Smaller steps are the counter's own unit, at next to no power.
_LEAST_STEP_JOULES = 0.01
# Without a move for so many times the longest pause between two moves it stands still.
_FROZEN = 3.0
_LEAST_MOVES = 3
_LEAST_STILL = 2
_SLOW_SHARE = 0.2
# So many times what any other step drew is a jump of the counter or a burst.
_JUMP = 4.0
_LEAST_OTHERS = 4


def look_interval_s(counters: Sequence[Sequence[CounterSample]]) -> float | None:
    """How often to sample within a window: once a second what is refreshed quickly, to see it freeze or jump, and more
    often what may be slow, to find its steps. None before the first sample.
    """
    if not any(counters):
        return None
    fast = any(
        b.time_s - a.time_s <= _FAST_S and None not in (a.value, b.value) and a.value != b.value
        for samples in counters
        for a, b in itertools.pairwise(samples[:_FIRST_SAMPLES])
    )
    return _FAST_LOOK_S if fast else _SLOW_LOOK_S


_FIRST_SAMPLES = 50


@dataclass(frozen=True)
class Refresh:
    """How a counter moves: the samples at which it did, and the longest pause between two of them (None: all did).

    `frozen_s`: since when it does not move any more.
    """

    samples: Sequence[CounterSample]
    period_s: float | None = None
    frozen_s: float | None = None


def refresh_of(samples: Sequence[CounterSample], joules_per_unit: float) -> Refresh:
    """Tell a counter that is sampled more often than it is refreshed: only where it moved is its time known."""
    pairs = list(itertools.pairwise([s for s in samples if s.value is not None]))
    moved = [(a, b) for a, b in pairs if a.value != b.value]
    still = [b for a, b in pairs if a.value == b.value and b.time_s - a.time_s > _SHORTEST_S]
    most = max((abs((b.value or 0) - (a.value or 0)) for a, b in moved), default=0)
    if len(still) < _LEAST_STILL or most * joules_per_unit < _LEAST_STEP_JOULES:
        return Refresh(samples)
    moves = [b for _, b in moved]
    pauses = [b.time_s - a.time_s for a, b in itertools.pairwise(moves)]
    if len(moves) >= _LEAST_MOVES and pairs[-1][1].time_s - moves[-1].time_s > _FROZEN * max(pauses):
        return Refresh(samples, frozen_s=moves[-1].time_s)
    if len(still) < _SLOW_SHARE * len(pairs):
        return Refresh(samples)
    return Refresh(moves, max(pauses) if pauses else pairs[-1][1].time_s - pairs[0][0].time_s)


def jump_joules(steps: Sequence[CounterStep], joules_per_unit: float) -> tuple[float, CounterStep] | None:
    """By how much one step exceeds all others, where it does so far beyond what they vary; None where none does."""
    long = [step for step in steps if step.end_s - step.start_s > _SHORTEST_S]
    if len(long) <= _LEAST_OTHERS:
        return None
    rates = [step.units * joules_per_unit / (step.end_s - step.start_s) for step in long]
    top = max(range(len(long)), key=rates.__getitem__)
    usual = max(rate for index, rate in enumerate(rates) if index != top)
    if usual <= 0 or rates[top] <= _JUMP * usual:
        return None
    return (rates[top] - usual) * (long[top].end_s - long[top].start_s), long[top]
