# SPDX-License-Identifier: Apache-2.0
"""The joules of a window from the samples of three kinds of meters. Pure.

A counter accumulates (RAPL, hwmon energy). A power channel gives watts now (battery, IPMI, wall meter). An interval
gives mean watts since the one before (turbostat). All become pieces of time with their power, and the window takes
its share. A piece across an edge gives a part, and its uncertainty belongs to the result. `EnergySeries` names the
time that its figure covers.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from powerprof.measure.counters import PACKAGE_WATTS, CounterSample, count_steps, detect_refresh, find_jump

# A sample within this distance is at the edge: reading some files one after the other takes as long.
AT_EDGE_S = 0.005
# Samples before a window that serve to judge its own.
_HISTORY = 50
# A slow counter needs this many steps in a window.
_LEAST_STEPS = 2
# Smaller gaps are jitter of the meter's clock.
_GAP_SHARE = 0.02
_GAP_S = 0.05
# Errors at the edges below this share of the figure get no note.
_EDGE_ERROR_SHARE = 0.001
# No machine behind one meter draws more, not even a rack of blades.
_METER_WATTS = 50_000.0
# A single sample this many times above both neighbours and above the median is a fault of the meter.
_SPIKE = 20.0


class PowerSample(msgspec.Struct, frozen=True):
    """Watts at one moment. None if the channel was unreadable or does not count now (mains plugged in).

    `is_gone`: the channel no longer exists.
    """

    time_s: float
    watts: float | None
    is_gone: bool = False


class PowerInterval(msgspec.Struct, frozen=True):
    """Mean watts from `start_s` to `end_s`."""

    start_s: float
    end_s: float
    watts: float


class EnergySeries(msgspec.Struct, frozen=True):
    """Joules of one domain between `start_s` and `end_s`, which may differ from the requested window.

    Attributes:
        dropped: the number of unused samples.
        edge_joules: the uncertainty from samples across the window's edges.
        is_count: the joules are whole steps of a counter, exact to one unit.
        is_absent: the channel went away or came within the window.
    """

    joules: float | None
    start_s: float
    end_s: float
    dropped: int = 0
    notes: tuple[str, ...] = ()
    edge_joules: float = 0.0
    is_count: bool = False
    is_absent: bool = False

    @property
    def watts(self) -> float | None:
        """The mean watts over the covered time. None if they are unknown."""
        span = self.end_s - self.start_s
        return None if self.joules is None or span <= 0 else self.joules / span


class _Piece(msgspec.Struct, frozen=True):
    """A piece of time with its joules, and the power at both ends (equal if only the mean is known)."""

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
        """Return the joules between two moments."""
        if start_s <= self.start_s and self.end_s <= end_s:
            return self.joules
        length = self.end_s - self.start_s
        a, b = (max(start_s, self.start_s) - self.start_s) / length, (min(end_s, self.end_s) - self.start_s) / length
        rise = self.last_watts - self.first_watts
        return (self.first_watts * (b - a) + rise * (b * b - a * a) / 2) * length


def find_absence(samples: Sequence[tuple[float, bool, bool]], start_s: float) -> str | None:
    """Return a note if a channel went away or came within the window. None if it was there.

    A sample has its time, whether it is missing, and whether the channel is known to be gone. If one supply, battery or
    package is removed, the others take over its load: neither the mean of its readings nor the sum is the host's. A
    single missing reading between two others is a fault of the reading.
    """
    gone = next((time_s for time_s, _, is_gone in samples if is_gone), None)
    missing = [is_missing for _, is_missing, _ in samples]
    if gone is None and all(missing):
        return None
    runs = [(n, n + 1) for n, pair in enumerate(itertools.pairwise(missing)) if all(pair)]
    if gone is None and missing[-1]:
        last = max(n for n, is_missing in enumerate(missing) if not is_missing)
        gone = samples[last + 1][0]
    elif gone is None and missing[0]:
        came = samples[missing.index(False)][0]
        return f"came {max(0.0, came - start_s):.1f} s into the window: no joules are given for it"
    elif gone is None and runs:
        gone = samples[runs[0][0]][0]
    if gone is None:
        return None
    return f"went away {max(0.0, gone - start_s):.1f} s into the window: no joules are given for it"


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
    """Return the energy of a counter in a window.

    A domain that disappears or appears within the window has no joules (`find_absence`), and neither has one with
    samples further apart than `max_step_s`: the counter may have wrapped unseen. Samples that are unreadable or
    impossible (above `limit_watts`) are dropped, counted and noted.
    """
    first, last = _find_enclosing_samples([s.time_s for s in samples], start_s, end_s)
    inside = samples[first : last + 1]
    unreadable = sum(1 for s in inside if s.value is None)
    if any(s.missing == "no_range" for s in inside):
        note = f"its wrap point cannot be read, so {unreadable} of {len(inside)} samples were dropped"
        return EnergySeries(None, start_s, end_s, unreadable, (note,))
    absence = find_absence([(s.time_s, s.value is None, s.missing == "gone") for s in inside], start_s)
    if absence is not None:
        return EnergySeries(None, start_s, end_s, unreadable, (absence,), is_absent=True)
    # Some earlier samples show the usual behaviour of this counter.
    refresh = detect_refresh(samples[max(first - _HISTORY, 0) : last + 1], joules_per_unit)
    counted = count_steps(refresh.samples, joules_per_unit, modulus, limit_watts)
    begin = inside[0].time_s if inside else start_s
    drops = [drop for drop in counted.drops if drop.end_s > begin]
    notes = [f"{unreadable} of {len(inside)} samples could not be read and were dropped"] if unreadable else []
    notes += [drop.reason for drop in drops]
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
    late = [step for step in counted.late if step.end_s > begin]
    if late:
        late_joules = max(step.units for step in late) * joules_per_unit
        step_joules += late_joules
        notes.append(f"is updated late: {late_joules:.0f} J came with a later sample, and the interval holds them")
    jump = find_jump(steps, joules_per_unit)
    if jump is not None:
        excess, step = jump
        step_joules += excess
        notes.append(
            f"counted {step.units * joules_per_unit:.0f} J in {step.end_s - step.start_s:.1f} s, far more than in any "
            "other step: a jump or a burst, and the interval holds both"
        )
    longest = max(step.end_s - step.start_s for step in steps)
    if max_step_s is not None and longest > max_step_s:
        notes.append(
            f"{longest:.0f} s without a sample, and the counter may wrap within {max_step_s:.0f} s: no figure; "
            "sample it more often"
        )
        return EnergySeries(None, start_s, end_s, dropped, tuple(notes))
    # Whole units are summed before scaling: a window between samples is exact to one unit.
    exact = sum(step.units for step in steps) * joules_per_unit
    pieces = [_make_uniform(step.start_s, step.end_s, step.units * joules_per_unit) for step in steps]
    energy = _integrate(pieces, start_s, end_s, dropped, notes, exact)
    return replace(energy, edge_joules=energy.edge_joules + step_joules) if step_joules else energy


def power_energy(
    samples: Sequence[PowerSample], start_s: float, end_s: float, max_gap_s: float | None = None
) -> EnergySeries:
    """Return the energy of a power channel by the trapezoid rule, up to the edges if samples enclose them.

    Gaps above `max_gap_s` are noted. Unreadable, negative and impossible samples are dropped and counted.
    """
    first, last = _find_enclosing_samples([s.time_s for s in samples], start_s, end_s)
    inside = samples[first : last + 1]
    absence = find_absence([(s.time_s, s.watts is None, s.is_gone) for s in inside], start_s)
    if absence is not None:
        unread = sum(s.watts is None for s in inside)
        return EnergySeries(None, start_s, end_s, unread, (absence,), is_absent=True)
    known = [(s.time_s, s.watts) for s in inside if s.watts is not None]
    good = _drop_impossible(known)
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
    return _integrate(pieces, start_s, end_s, dropped, notes)


def interval_energy(intervals: Sequence[PowerInterval], start_s: float, end_s: float) -> EnergySeries:
    """Return the energy of intervals with a known mean. One across an edge gives its share of time."""
    inside = [i for i in intervals if i.end_s > i.start_s and i.end_s > start_s and i.start_s < end_s]
    good = [i for i in inside if 0 <= i.watts <= _METER_WATTS]
    notes = []
    if len(good) < len(inside):
        notes.append(f"{len(inside) - len(good)} of {len(inside)} intervals are impossible and were dropped")
    if not good:
        return EnergySeries(None, start_s, end_s, len(inside), (*notes, "no interval in the window"))
    pieces = [_make_uniform(i.start_s, i.end_s, i.watts * (i.end_s - i.start_s)) for i in good]
    return _integrate(pieces, start_s, end_s, len(inside) - len(good), notes)


def drop_old_samples(samples: list[CounterSample] | list[PowerSample], before_s: float) -> None:
    """Drop the samples before `before_s`, except those needed to judge later ones."""
    del samples[: max(0, bisect_left(samples, before_s, key=lambda sample: sample.time_s) - _HISTORY)]


def scale_to_window(energy: EnergySeries, start_s: float, end_s: float) -> tuple[float | None, float | None]:
    """Return the joules and watts of the window itself: the mean power of the covered time over the whole window.

    If a counter's samples are at the edges, the joules are the counted ones.
    """
    watts = energy.watts
    if energy.joules is None or watts is None:
        return None, None
    if energy.is_count and abs(energy.start_s - start_s) <= AT_EDGE_S >= abs(energy.end_s - end_s):
        return energy.joules, energy.joules / (end_s - start_s)
    return watts * (end_s - start_s), watts


def _make_uniform(start_s: float, end_s: float, joules: float) -> _Piece:
    watts = joules / (end_s - start_s)
    return _Piece(start_s, end_s, joules, watts, watts)


def _drop_impossible(samples: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the samples without negative figures and without single ones far above neighbours and median."""
    good = [sample for sample in samples if 0 <= sample[1] <= _METER_WATTS]
    if len(good) < 3:
        return good
    from statistics import median  # loads fractions and decimal

    usual = median(watts for _, watts in good)
    kept = []
    for index, sample in enumerate(good):
        around = [good[i][1] for i in (index - 1, index + 1) if 0 <= i < len(good)]
        if usual <= 0 or sample[1] <= _SPIKE * max(usual, *around):
            kept.append(sample)
    return kept


def _find_enclosing_samples(times: Sequence[float], start_s: float, end_s: float) -> tuple[int, int]:
    """Return the indices of the samples that enclose the window, as far as they exist."""
    first, last = _find_nearest(times, start_s), _find_nearest(times, end_s)
    if times and times[first] > start_s + AT_EDGE_S:
        first = max(first - 1, 0)
    if times and times[last] < end_s - AT_EDGE_S:
        last = min(last + 1, len(times) - 1)
    return first, max(last, first)


def _find_nearest(times: Sequence[float], when: float) -> int:
    right = bisect_left(times, when)
    around = [index for index in (right - 1, right) if 0 <= index < len(times)]
    return min(around, key=lambda index: abs(times[index] - when), default=0)


def _integrate(
    pieces: Sequence[_Piece],
    start_s: float,
    end_s: float,
    dropped: int,
    notes: Sequence[str],
    exact_joules: float | None = None,
) -> EnergySeries:
    """Return the window's share of the pieces. Uncovered time is noted; below half of the window the figure is None."""
    near = AT_EDGE_S if exact_joules is not None else 0.0
    begin = pieces[0].start_s if abs(pieces[0].start_s - start_s) <= near else max(start_s, pieces[0].start_s)
    end = pieces[-1].end_s if abs(pieces[-1].end_s - end_s) <= near else min(end_s, pieces[-1].end_s)
    inside = [piece for piece in pieces if piece.end_s > begin and piece.start_s < end]
    all_notes = list(notes)
    covered = sum(min(piece.end_s, end) - max(piece.start_s, begin) for piece in inside)
    window = end_s - start_s
    if covered < window / 2:
        all_notes.append(f"covers {max(covered, 0.0):.1f} s, less than half of the window of {window:.1f} s")
        return EnergySeries(None, start_s, end_s, dropped, tuple(all_notes))
    is_exact = exact_joules is not None and begin == pieces[0].start_s and end == pieces[-1].end_s
    joules = exact_joules if is_exact and exact_joules is not None else sum(p.within(begin, end) for p in inside)
    gap = (end - begin) - covered
    if gap > max(_GAP_S, _GAP_SHARE * (end - begin)):
        all_notes.append(f"{gap:.1f} s between its samples are not covered: filled with the mean power of the rest")
    if gap > 0:
        joules *= (end - begin) / covered
    if (end - begin) < window - max(_GAP_S, _GAP_SHARE * window):
        all_notes.append(f"covers {end - begin:.1f} s and its mean power stands for the window of {window:.1f} s")
    return EnergySeries(
        joules, begin, end, dropped, tuple(all_notes), _sum_edge_errors(inside, begin, end, joules), is_exact
    )


def _sum_edge_errors(pieces: Sequence[_Piece], begin: float, end: float, joules: float) -> float:
    """Return the uncertainty of the pieces across the edges, within the power that this meter showed in the window."""
    watts = [piece.watts for piece in pieces]
    low, high = (min(watts), max(watts)) if len(watts) > 1 else (0.0, 2 * watts[0])
    error = 0.0
    for piece in pieces:
        outside = max(begin - piece.start_s, 0.0) + max(piece.end_s - end, 0.0)
        if outside > 0 and not piece.is_course:
            error += outside * max(piece.watts - low, high - piece.watts)
    return error if error > _EDGE_ERROR_SHARE * joules else 0.0
