# SPDX-License-Identifier: Apache-2.0
"""Validity of an experiment: the A/A control, and drift of the idle baseline and over the blocks."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import msgspec

from powerprof.statistics.distributions import kendall_tau
from powerprof.statistics.intervals import welch_interval
from powerprof.statistics.verdicts import PairedResult

# An idle machine's C0 varies by some tenths of a point, which interleaving cancels. A drift counts if it is
# significant, exceeds this, and exceeds a quarter of the effect.
DRIFT_FLOOR_POINTS = 0.5
DRIFT_SHARE_OF_EFFECT = 0.25


class Control(msgspec.Struct, frozen=True):
    """A comparison of a condition with itself. `sound` if it found no difference."""

    sound: bool
    difference_percent: float | None
    half_width_percent: float | None


def judge_control(result: PairedResult) -> Control:
    """Judge an A/A run: it must be inconclusive; the half width of its interval is the resolution."""
    interval, base = result.difference_interval, abs(result.a_mean)
    if interval is None or not base:
        return Control(False, None, None)
    is_sound = result.verdict == "inconclusive"
    return Control(is_sound, 100 * result.difference / base, 100 * interval.half_width / base)


class Drift(msgspec.Struct, frozen=True):
    """The change of the idle baseline from start to end, in points of C0."""

    points: float
    low: float | None
    high: float | None
    failed: bool


def baseline_drift(before: Sequence[float], after: Sequence[float], effect_points: float | None) -> Drift | None:
    """Compare idle C0 percentages before and after; None if one of them is missing.

    It fails if Welch's interval excludes 0 and the drift exceeds both DRIFT_FLOOR_POINTS and DRIFT_SHARE_OF_EFFECT of
    the difference in C0 between the conditions (`effect_points`).
    """
    if not before or not after:
        return None
    moved = fmean(after) - fmean(before)
    tolerance = max(DRIFT_FLOOR_POINTS, DRIFT_SHARE_OF_EFFECT * abs(effect_points or 0.0))
    interval = welch_interval(before, after)
    if interval is None:
        return Drift(moved, None, None, abs(moved) > tolerance)
    return Drift(moved, interval.low, interval.high, interval.excludes(0.0) and abs(moved) > tolerance)


class MonotonicTrend(msgspec.Struct, frozen=True):
    """A monotonic trend over the blocks: Kendall's tau and its two-sided p-value."""

    tau: float
    p_value: float

    @property
    def present(self) -> bool:
        """Whether the p-value is below 1 %: with several metrics, 5 % would give false alarms."""
        return self.p_value < 0.01


def block_trend(values: Sequence[float]) -> MonotonicTrend | None:
    """Return Kendall's test of values in the order of time; None for fewer than six or equal values."""
    if len(values) < 6 or max(values) == min(values):
        return None
    return MonotonicTrend(*kendall_tau(values))
