"""From samples of a meter to joules in a window: three kinds of meter, one answer. Pure.

A counter adds up (RAPL, hwmon energy); a power channel says watts now (battery, IPMI, wall meter); an interval
says the mean watts since the one before (turbostat). None of them is stretched silently: `Energy` says which
span of time its figure really covers.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# A span that differs from the window by less is the jitter of the caller's clock, not a gap (RAPL itself is
# updated about every millisecond).
_SPAN_TOLERANCE = 0.02
_EDGE_S = 0.05
# No domain of a server draws more: beyond it a wrap is more likely a counter that was reset.
PLAUSIBLE_WATTS = 5000.0

Missing = Literal["gone", "unreadable", "no_range"]


@dataclass(frozen=True)
class CounterSample:
    """One reading of an energy counter in its own units; `value` None says why in `missing`."""

    time_s: float
    value: int | None
    missing: Missing | None = None


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
class Energy:
    """Joules of one domain between `start_s` and `end_s`, which may differ from the window that was asked for."""

    joules: float | None
    start_s: float
    end_s: float
    dropped: int = 0
    notes: tuple[str, ...] = ()

    @property
    def watts(self) -> float | None:
        """Mean watts over the covered span."""
        span = self.end_s - self.start_s
        return None if self.joules is None or span <= 0 else self.joules / span


def counter_units(values: Sequence[int], modulus: int | None) -> int | None:
    """Units counted over readings in order: each step is (new − old) mod `modulus`, so one wrap a step is exact.

    Without a modulus a step backwards cannot be read: None. (powercap: modulus = max_energy_range_uj + 1.)
    """
    total = 0
    for old, new in itertools.pairwise(values):
        step = new - old
        if step < 0:
            if modulus is None or not 0 <= old < modulus or new < 0:
                return None
            step %= modulus
        total += step
    return total


def counter_energy(
    samples: Sequence[CounterSample],
    start_s: float,
    end_s: float,
    *,
    joules_per_unit: float,
    modulus: int | None,
    max_step_s: float | None = None,
) -> Energy:
    """Energy of a counter between the samples nearest to the two edges.

    A domain that went away within the window gives no joules: what it drew until then is not the window's. A
    sample that could not be read is dropped and counted. `max_step_s`: samples further apart may hide a wrap.
    """
    first, last = _edges([s.time_s for s in samples], start_s, end_s)
    inside = samples[first : last + 1]
    dropped = sum(1 for s in inside if s.value is None)
    gone = [s for s in inside if s.missing == "gone"]
    if gone:
        return Energy(
            None,
            start_s,
            end_s,
            dropped,
            (f"went away {max(0.0, gone[0].time_s - start_s):.1f} s into the window: no joules are given for it",),
        )
    if any(s.missing == "no_range" for s in inside):
        return Energy(
            None,
            start_s,
            end_s,
            dropped,
            (f"its wrap point cannot be read, so {dropped} of {len(inside)} samples were dropped",),
        )
    good = [s for s in inside if s.value is not None]
    notes = [f"{dropped} of {len(inside)} samples could not be read and were dropped"] if dropped else []
    if len(good) < 2:
        return Energy(None, start_s, end_s, dropped, (*notes, "fewer than two samples in the window"))
    units = counter_units([s.value for s in good if s.value is not None], modulus)
    if units is None:
        return Energy(None, start_s, end_s, dropped + 1, (*notes, "the counter went backwards: no joules are given"))
    steps = [b.time_s - a.time_s for a, b in itertools.pairwise(good)]
    if max_step_s is not None and max(steps) > 2 * max_step_s:
        notes.append(f"{max(steps):.0f} s without a sample: the counter may have wrapped unseen")
    joules = units * joules_per_unit
    if joules > PLAUSIBLE_WATTS * max(good[-1].time_s - good[0].time_s, 1e-3):
        notes.append(f"more than {PLAUSIBLE_WATTS:.0f} W: a counter that was reset looks like one that wrapped")
    return _fitted(Energy(joules, good[0].time_s, good[-1].time_s, dropped, tuple(notes)), start_s, end_s)


def power_energy(
    samples: Sequence[PowerSample], start_s: float, end_s: float, max_gap_s: float | None = None
) -> Energy:
    """Energy of a power channel by the trapezoid rule between the samples nearest to the two edges.

    Gaps longer than `max_gap_s` are counted in the notes; an unreadable sample is dropped and counted.
    """
    first, last = _edges([s.time_s for s in samples], start_s, end_s)
    inside = samples[first : last + 1]
    good = [(s.time_s, s.watts) for s in inside if s.watts is not None]
    dropped = len(inside) - len(good)
    notes = [f"{dropped} of {len(inside)} samples had no reading and were dropped"] if dropped else []
    if len(good) < 2:
        return Energy(None, start_s, end_s, dropped, (*notes, "fewer than two samples in the window"))
    pairs = list(itertools.pairwise(good))
    joules = sum((a[1] + b[1]) / 2 * (b[0] - a[0]) for a, b in pairs)
    gaps = [b[0] - a[0] for a, b in pairs if max_gap_s is not None and b[0] - a[0] > max_gap_s]
    if gaps:
        plural = "s" if len(gaps) > 1 else ""
        notes.append(f"{len(gaps)} gap{plural} of up to {max(gaps):.1f} s between samples, bridged in a straight line")
    return _fitted(Energy(joules, good[0][0], good[-1][0], dropped, tuple(notes)), start_s, end_s)


def interval_energy(intervals: Sequence[PowerInterval], start_s: float, end_s: float) -> Energy:
    """Energy of whole intervals whose middle lies in the window: an interval is never split."""
    inside = [i for i in intervals if start_s <= (i.start_s + i.end_s) / 2 <= end_s and i.end_s > i.start_s]
    if not inside:
        return Energy(None, start_s, end_s, 0, ("no whole interval in the window",))
    covered = sum(i.end_s - i.start_s for i in inside)
    joules = sum(i.watts * (i.end_s - i.start_s) for i in inside)
    span = inside[-1].end_s - inside[0].start_s
    notes: tuple[str, ...] = ()
    if span - covered > max(_EDGE_S, _SPAN_TOLERANCE * span):
        notes = (f"{span - covered:.1f} s between its intervals are not covered",)
        joules *= span / covered
    return _fitted(Energy(joules, inside[0].start_s, inside[-1].end_s, 0, notes), start_s, end_s)


def in_window(energy: Energy, start_s: float, end_s: float) -> tuple[float | None, float | None]:
    """Joules and watts for the window itself: the covered span's mean power over the whole window.

    Where the span is the window (the usual case for counters) the joules are those counted, untouched.
    """
    watts = energy.watts
    if energy.joules is None or watts is None:
        return None, None
    if _covers(energy, start_s, end_s):
        return energy.joules, watts
    return watts * (end_s - start_s), watts


def _edges(times: Sequence[float], start_s: float, end_s: float) -> tuple[int, int]:
    """Indices of the samples nearest to both edges."""
    return _nearest(times, start_s), _nearest(times, end_s)


def _nearest(times: Sequence[float], when: float) -> int:
    right = bisect_left(times, when)
    if right == 0:
        return 0
    if right == len(times):
        return len(times) - 1
    return right if times[right] - when < when - times[right - 1] else right - 1


def _covers(energy: Energy, start_s: float, end_s: float) -> bool:
    allowed = max(_EDGE_S, _SPAN_TOLERANCE * (end_s - start_s))
    return abs(energy.start_s - start_s) <= allowed and abs(energy.end_s - end_s) <= allowed


def _fitted(energy: Energy, start_s: float, end_s: float) -> Energy:
    """Say so where the span is not the window; give no figure where it covers less than half of it."""
    if _covers(energy, start_s, end_s):
        return energy
    span, window = energy.end_s - energy.start_s, end_s - start_s
    if min(energy.end_s, end_s) - max(energy.start_s, start_s) < window / 2:
        note = f"covers {max(span, 0):.1f} s, less than half of the window of {window:.1f} s"
        return Energy(None, start_s, end_s, energy.dropped, (*energy.notes, note))
    note = f"covers {span:.1f} s and its mean power stands for the window of {window:.1f} s"
    return Energy(energy.joules, energy.start_s, energy.end_s, energy.dropped, (*energy.notes, note))
