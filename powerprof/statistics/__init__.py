# SPDX-License-Identifier: Apache-2.0
"""Intervals, verdicts and controls: pure functions over recorded values; SciPy is loaded on first use."""

from __future__ import annotations

from powerprof.statistics.controls import (
    DRIFT_FLOOR_POINTS,
    Control,
    Drift,
    MonotonicTrend,
    baseline_drift,
    block_trend,
    judge_control,
)
from powerprof.statistics.intervals import (
    Interval,
    bounded_interval,
    difference_interval,
    mean_interval,
    ratio_interval,
    student_interval,
    welch_interval,
)
from powerprof.statistics.rates import BLOCKS, difference_of_rates, rate_interval
from powerprof.statistics.rounds import FEWEST_ROUNDS, PointPair, compare_points, which_differ
from powerprof.statistics.strata import Pooled, Stratum, pool
from powerprof.statistics.verdicts import (
    FAMILY_LEVEL,
    FUNCTIONS_LEVEL,
    PRIMARY_LEVEL,
    PairedResult,
    Verdict,
    compare_pairs,
    compare_unpaired,
    minimum_detectable_percent,
    primary_verdict,
    survivors,
    verdict_of,
)

__all__ = [
    "BLOCKS",
    "DRIFT_FLOOR_POINTS",
    "FAMILY_LEVEL",
    "FEWEST_ROUNDS",
    "FUNCTIONS_LEVEL",
    "PRIMARY_LEVEL",
    "Control",
    "Drift",
    "Interval",
    "MonotonicTrend",
    "PairedResult",
    "PointPair",
    "Pooled",
    "Stratum",
    "Verdict",
    "baseline_drift",
    "block_trend",
    "bounded_interval",
    "compare_pairs",
    "compare_points",
    "compare_unpaired",
    "difference_interval",
    "difference_of_rates",
    "judge_control",
    "mean_interval",
    "minimum_detectable_percent",
    "pool",
    "primary_verdict",
    "rate_interval",
    "ratio_interval",
    "student_interval",
    "survivors",
    "verdict_of",
    "welch_interval",
    "which_differ",
]
