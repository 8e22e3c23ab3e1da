# SPDX-License-Identifier: Apache-2.0
"""An energy counter's readings, classified: steps that count, wraps, resets, spikes and samples that say nothing. Pure.

A step backwards is a wrap where the counter's range allows it and where what then was drawn is what the hardware can
draw and usually draws; otherwise the counter started again from 0 (firmware, suspend, a reloaded driver), and what
was drawn since is unknown. A single sample that lies far ahead of both its neighbours is a spike.
"""

from __future__ import annotations

import itertools
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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


def count_steps(
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


def choose_interval_s(counters: Sequence[Sequence[CounterSample]]) -> float | None:
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


def detect_refresh(samples: Sequence[CounterSample], joules_per_unit: float) -> Refresh:
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


def find_jump(steps: Sequence[CounterStep], joules_per_unit: float) -> tuple[float, CounterStep] | None:
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


# From samples of a meter to joules in a window: three kinds of meter, one answer. Pure.
#
# A counter adds up (RAPL, hwmon energy); a power channel says watts now (battery, IPMI, wall meter); an interval
# says the mean watts since the one before (turbostat). All become pieces of time with their power, and the window takes
# its share of them: a piece that straddles an edge gives its part, and how far off that may be is part of the answer.
# Nothing is stretched silently: `EnergySeries` says which span of time its figure really covers.

# A sample that is this near to an edge is at it: reading some files one after the other takes as long.
_AT_EDGE_S = 0.005
# Samples from before a window by which its own are judged.
_HISTORY = 50
# A counter that is refreshed seldom must have made so many steps in a window.
_LEAST_STEPS = 2
# Gaps of less are the jitter of the meter's own clock.
_GAP_SHARE = 0.02
_GAP_S = 0.05
# Errors at the edges below this share of the figure are not worth a word.
_EDGE_ERROR_SHARE = 0.001
# No machine that one meter feeds draws more; a rack of blades does not either.
_METER_WATTS = 50_000.0
# One sample that is so many times as high as both beside it, and as all usual ones, is a fault of the meter's.
_SPIKE = 20.0


@dataclass(frozen=True)
class PowerSample:
    """Watts at one moment; None where the channel could not be read or does not count now (mains plugged in)."""

    time_s: float
    watts: float | None


@dataclass(frozen=True)
class PowerInterval:
    """Mean watts from `start_s` to `end_s`."""

    start_s: float
    end_s: float
    watts: float


@dataclass(frozen=True)
class EnergySeries:
    """Joules of one domain between `start_s` and `end_s`, which may differ from the window that was asked for.

    `edge_joules`: how far off they may be, because samples straddle the window's edges. `is_count`: they are the whole
    steps of a counter, exact to one unit.
    """

    joules: float | None
    start_s: float
    end_s: float
    dropped: int = 0
    notes: tuple[str, ...] = ()
    edge_joules: float = 0.0
    is_count: bool = False

    @property
    def watts(self) -> float | None:
        """Mean watts over the covered span."""
        span = self.end_s - self.start_s
        return None if self.joules is None or span <= 0 else self.joules / span


@dataclass(frozen=True)
class _Piece:
    """A stretch of time with its joules, and the power at both ends (equal where only the mean is known)."""

    start_s: float
    end_s: float
    joules: float
    first_watts: float
    last_watts: float
    is_course: bool = False

    @property
    def watts(self) -> float:
        return self.joules / (self.end_s - self.start_s)

    def within(self, start_s: float, end_s: float) -> float:
        """Joules between two moments of it."""
        if start_s <= self.start_s and self.end_s <= end_s:
            return self.joules
        length = self.end_s - self.start_s
        a, b = (max(start_s, self.start_s) - self.start_s) / length, (min(end_s, self.end_s) - self.start_s) / length
        rise = self.last_watts - self.first_watts
        return (self.first_watts * (b - a) + rise * (b * b - a * a) / 2) * length


def counter_energy(
    samples: Sequence[CounterSample],
    start_s: float,
    end_s: float,
    *,
    joules_per_unit: float,
    modulus: int | None,
    max_step_s: float | None = None,
    limit_watts: float = PACKAGE_WATTS,
) -> EnergySeries:
    """Energy of a counter in a window.

    A domain that went away within the window gives no joules: what it drew until then is not the window's. Samples
    that could not be read, and those that cannot be true (`counters`), are dropped, counted and noted; more than
    `limit_watts` is impossible. `max_step_s`: samples further apart may hide a wrap.
    """
    first, last = _around([s.time_s for s in samples], start_s, end_s)
    inside = samples[first : last + 1]
    unreadable = sum(1 for s in inside if s.value is None)
    gone = next((s for s in inside if s.missing == "gone"), None)
    if gone is not None:
        note = f"went away {max(0.0, gone.time_s - start_s):.1f} s into the window: no joules are given for it"
        return EnergySeries(None, start_s, end_s, unreadable, (note,))
    if any(s.missing == "no_range" for s in inside):
        note = f"its wrap point cannot be read, so {unreadable} of {len(inside)} samples were dropped"
        return EnergySeries(None, start_s, end_s, unreadable, (note,))
    # Some samples from before tell what is usual for this counter.
    refresh = detect_refresh(samples[max(first - _HISTORY, 0) : last + 1], joules_per_unit)
    counted = count_steps(refresh.samples, joules_per_unit, modulus, limit_watts)
    begin = inside[0].time_s if inside else start_s
    drops = [drop for drop in counted.drops if drop.end_s > begin]
    notes = [f"{unreadable} of {len(inside)} samples could not be read and were dropped"] if unreadable else []
    notes += [drop.why for drop in drops]
    dropped = unreadable + len(drops)
    steps = [step for step in counted.steps if step.end_s > begin and step.end_s > step.start_s]
    if refresh.frozen_s is not None and refresh.frozen_s > start_s:
        notes.append(f"counted for {refresh.frozen_s - start_s:.1f} s of the window and then stood still: no figure")
        return EnergySeries(None, start_s, end_s, dropped, tuple(notes))
    if refresh.period_s is not None and len(steps) < _LEAST_STEPS:
        need_s = (_LEAST_STEPS + 1) * refresh.period_s
        notes.append(f"is refreshed every {refresh.period_s:.1f} s: a window of {need_s:.0f} s or more is needed")
        return EnergySeries(None, start_s, end_s, dropped, tuple(notes))
    if not steps:
        few = [] if drops else ["fewer than two samples in the window"]
        return EnergySeries(None, start_s, end_s, dropped, (*notes, *few))
    step_joules = 0.0
    if refresh.period_s is not None:
        step_joules = max(step.units for step in steps) * joules_per_unit
        notes.append(
            f"is refreshed every {refresh.period_s:.1f} s: its figure is known to one step, {step_joules:.1f} J"
        )
    jump = find_jump(steps, joules_per_unit)
    if jump is not None:
        excess, step = jump
        step_joules += excess
        notes.append(
            f"counted {step.units * joules_per_unit:.0f} J in {step.end_s - step.start_s:.1f} s, far more than in any "
            "other step: a jump or a burst, and the interval holds both"
        )
    longest = max(step.end_s - step.start_s for step in steps)
    if max_step_s is not None and longest > 2 * max_step_s:
        notes.append(f"{longest:.0f} s without a sample: the counter may have wrapped unseen")
    # Whole units are added up before they are scaled, so that a window between samples is exact to one.
    exact = sum(step.units for step in steps) * joules_per_unit
    pieces = [_uniform(step.start_s, step.end_s, step.units * joules_per_unit) for step in steps]
    energy = _share_of(pieces, start_s, end_s, dropped, notes, exact)
    return replace(energy, edge_joules=energy.edge_joules + step_joules) if step_joules else energy


def power_energy(
    samples: Sequence[PowerSample], start_s: float, end_s: float, max_gap_s: float | None = None
) -> EnergySeries:
    """Energy of a power channel by the trapezoid rule, to the very edges where samples lie on both sides of them.

    Gaps longer than `max_gap_s` are counted in the notes; a sample that is unreadable, negative or out of all
    proportion is dropped and counted.
    """
    first, last = _around([s.time_s for s in samples], start_s, end_s)
    inside = samples[first : last + 1]
    known = [(s.time_s, s.watts) for s in inside if s.watts is not None]
    good = _possible(known)
    notes, dropped = [], len(inside) - len(good)
    if len(known) < len(inside):
        notes.append(f"{len(inside) - len(known)} of {len(inside)} samples had no reading and were dropped")
    if len(good) < len(known):
        worst = max((watts for _, watts in set(known) - set(good)), key=abs)
        notes.append(
            f"{len(known) - len(good)} of {len(inside)} samples are impossible ({worst:,.0f} W) and were dropped"
        )
    if len(good) < 2:
        return EnergySeries(None, start_s, end_s, dropped, (*notes, "fewer than two samples in the window"))
    pairs = [(a, b) for a, b in itertools.pairwise(good) if b[0] > a[0]]
    gaps = [b[0] - a[0] for a, b in pairs if max_gap_s is not None and b[0] - a[0] > max_gap_s]
    if gaps:
        plural = "s" if len(gaps) > 1 else ""
        notes.append(f"{len(gaps)} gap{plural} of up to {max(gaps):.1f} s between samples, bridged in a straight line")
    pieces = [_Piece(a[0], b[0], (a[1] + b[1]) / 2 * (b[0] - a[0]), a[1], b[1], True) for a, b in pairs]
    return _share_of(pieces, start_s, end_s, dropped, notes)


def interval_energy(intervals: Sequence[PowerInterval], start_s: float, end_s: float) -> EnergySeries:
    """Energy of intervals of which only the mean is known; one that straddles an edge gives its share of time."""
    inside = [i for i in intervals if i.end_s > i.start_s and i.end_s > start_s and i.start_s < end_s]
    good = [i for i in inside if 0 <= i.watts <= _METER_WATTS]
    notes = []
    if len(good) < len(inside):
        notes.append(f"{len(inside) - len(good)} of {len(inside)} intervals are impossible and were dropped")
    if not good:
        return EnergySeries(None, start_s, end_s, len(inside), (*notes, "no interval in the window"))
    pieces = [_uniform(i.start_s, i.end_s, i.watts * (i.end_s - i.start_s)) for i in good]
    return _share_of(pieces, start_s, end_s, len(inside) - len(good), notes)


def drop_old_samples(samples: list[CounterSample] | list[PowerSample], before_s: float) -> None:
    """Let go of samples from before that, all but those by which later ones are judged."""
    del samples[: max(0, bisect_left(samples, before_s, key=lambda sample: sample.time_s) - _HISTORY)]


def scale_to_window(energy: EnergySeries, start_s: float, end_s: float) -> tuple[float | None, float | None]:
    """Joules and watts for the window itself: the covered span's mean power over the whole window.

    Where a counter's samples are at the edges the joules are those counted, untouched. In any case they are the watts
    times the window.
    """
    watts = energy.watts
    if energy.joules is None or watts is None:
        return None, None
    if energy.is_count and abs(energy.start_s - start_s) <= _AT_EDGE_S >= abs(energy.end_s - end_s):
        return energy.joules, energy.joules / (end_s - start_s)
    return watts * (end_s - start_s), watts


def _uniform(start_s: float, end_s: float, joules: float) -> _Piece:
    watts = joules / (end_s - start_s)
    return _Piece(start_s, end_s, joules, watts, watts)


def _possible(samples: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without negative figures, and without single ones far above those on both sides and above all usual ones."""
    good = [sample for sample in samples if 0 <= sample[1] <= _METER_WATTS]
    if len(good) < 3:
        return good
    usual = statistics.median(watts for _, watts in good)
    kept = []
    for index, sample in enumerate(good):
        around = [good[i][1] for i in (index - 1, index + 1) if 0 <= i < len(good)]
        if usual <= 0 or sample[1] <= _SPIKE * max(usual, *around):
            kept.append(sample)
    return kept


def _around(times: Sequence[float], start_s: float, end_s: float) -> tuple[int, int]:
    """Indices of the samples that hold the window: those at or before its start and at or after its end, if any."""
    first, last = _nearest(times, start_s), _nearest(times, end_s)
    if times and times[first] > start_s + _AT_EDGE_S:
        first = max(first - 1, 0)
    if times and times[last] < end_s - _AT_EDGE_S:
        last = min(last + 1, len(times) - 1)
    return first, max(last, first)


def _nearest(times: Sequence[float], when: float) -> int:
    right = bisect_left(times, when)
    around = [index for index in (right - 1, right) if 0 <= index < len(times)]
    return min(around, key=lambda index: abs(times[index] - when), default=0)


def _share_of(
    pieces: Sequence[_Piece],
    start_s: float,
    end_s: float,
    dropped: int,
    notes: Sequence[str],
    exact_joules: float | None = None,
) -> EnergySeries:
    """The window's share of the pieces; with a note where they do not cover all of it, unknown below half."""
    near = _AT_EDGE_S if exact_joules is not None else 0.0
    begin = pieces[0].start_s if abs(pieces[0].start_s - start_s) <= near else max(start_s, pieces[0].start_s)
    end = pieces[-1].end_s if abs(pieces[-1].end_s - end_s) <= near else min(end_s, pieces[-1].end_s)
    inside = [piece for piece in pieces if piece.end_s > begin and piece.start_s < end]
    all_notes = list(notes)
    covered = sum(min(piece.end_s, end) - max(piece.start_s, begin) for piece in inside)
    window = end_s - start_s
    if covered < window / 2:
        all_notes.append(f"covers {max(covered, 0.0):.1f} s, less than half of the window of {window:.1f} s")
        return EnergySeries(None, start_s, end_s, dropped, tuple(all_notes))
    whole = exact_joules is not None and begin == pieces[0].start_s and end == pieces[-1].end_s
    joules = exact_joules if whole and exact_joules is not None else sum(p.within(begin, end) for p in inside)
    gap = (end - begin) - covered
    if gap > max(_GAP_S, _GAP_SHARE * (end - begin)):
        all_notes.append(f"{gap:.1f} s between its samples are not covered: filled with the mean power of the rest")
    if gap > 0:
        joules *= (end - begin) / covered
    if (end - begin) < window - max(_GAP_S, _GAP_SHARE * window):
        all_notes.append(f"covers {end - begin:.1f} s and its mean power stands for the window of {window:.1f} s")
    return EnergySeries(joules, begin, end, dropped, tuple(all_notes), _edge_error(inside, begin, end, joules), whole)


def _edge_error(pieces: Sequence[_Piece], begin: float, end: float, joules: float) -> float:
    """How far off the parts of straddling pieces may be, within what this meter showed in the window."""
    seen = [piece.watts for piece in pieces]
    low, high = (min(seen), max(seen)) if len(seen) > 1 else (0.0, 2 * seen[0])
    error = 0.0
    for piece in pieces:
        outside = max(begin - piece.start_s, 0.0) + max(piece.end_s - end, 0.0)
        if outside > 0 and not piece.is_course:
            error += outside * max(piece.watts - low, high - piece.watts)
    return error if error > _EDGE_ERROR_SHARE * joules else 0.0
