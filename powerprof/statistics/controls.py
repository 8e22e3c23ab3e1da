# SPDX-License-Identifier: Apache-2.0
"""Is the experiment itself sound: the A/A control, and drift of the idle baseline and over the blocks."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from powerprof.statistics.intervals import welch_interval
from powerprof.statistics.verdicts import PairedResult

# An idle machine's C0 wanders by some tenths of a point for reasons that interleaving cancels; a drift
# counts when it is statistically there, exceeds this, and could be taken for a quarter of the effect.
DRIFT_FLOOR_POINTS = 0.5
DRIFT_SHARE_OF_EFFECT = 0.25


@dataclass(frozen=True)
class Control:
    """An A/A comparison: the same condition under two names. `sound` where it found no difference."""

    sound: bool
    difference_percent: float | None
    half_width_percent: float | None


def judge_control(result: PairedResult) -> Control:
    """An A/A run must be inconclusive; its interval's half width is what the apparatus can resolve."""
    interval = result.difference_interval
    if interval is None or result.percent is None:
        return Control(False, None, None)
    width = 100 * interval.half_width / abs(result.a_mean)
    return Control(result.verdict == "inconclusive", result.percent, width)


@dataclass(frozen=True)
class Drift:
    """How far the idle baseline moved between the beginning and the end, in points of C0."""

    points: float
    low: float | None
    high: float | None
    failed: bool


def baseline_drift(before: Sequence[float], after: Sequence[float], effect_points: float | None) -> Drift | None:
    """Compare idle C0 percentages before and after. None where one of them is missing.

    It fails where Welch's interval excludes 0 and the drift is larger than both DRIFT_FLOOR_POINTS and
    DRIFT_SHARE_OF_EFFECT of the difference in C0 between the conditions (`effect_points`).
    """
    if not before or not after:
        return None
    moved = statistics.fmean(after) - statistics.fmean(before)
    tolerance = max(DRIFT_FLOOR_POINTS, DRIFT_SHARE_OF_EFFECT * abs(effect_points or 0.0))
    interval = welch_interval(before, after)
    if interval is None:
        return Drift(moved, None, None, abs(moved) > tolerance)
    return Drift(moved, interval.low, interval.high, interval.excludes(0.0) and abs(moved) > tolerance)


@dataclass(frozen=True)
class MonotonicTrend:
    """A monotonic trend over the blocks: Kendall's tau and its two-sided p value."""

    tau: float
    p_value: float

    @property
    def present(self) -> bool:
        """True below 1 %: with several metrics looked at, 5 % would cry wolf."""
        return self.p_value < 0.01


def block_trend(values: Sequence[float]) -> MonotonicTrend | None:
    """Kendall's test of values in the order of time. None for fewer than six or constant ones."""
    if len(values) < 6 or max(values) == min(values):
        return None
    from scipy import stats

    test = stats.kendalltau(range(len(values)), values)
    return MonotonicTrend(float(test.statistic), float(test.pvalue))
