# SPDX-License-Identifier: Apache-2.0
"""Estimate counts of a window of which only slices were observed.

Each slice stands for its stratum. A total over all strata is known from another counter, so the unseen part of a count
is a share of the unseen part of that total (a ratio estimator). The counts within the slices are exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from powerprof.statistics.distributions import gamma_quantile, student_quantile
from powerprof.statistics.intervals import LEVEL, Z95

Array = npt.NDArray[Any]
# With fewer slices their scatter is unknown: each one counts as an independent cluster.
_FEW_SLICES = 5
# A gamma distribution of a larger shape is a normal distribution. One of a smaller shape has no useful quantiles.
_SMALL_SHAPE, _LARGE_SHAPE = 0.05, 1e4
_TAIL = (1 - LEVEL) / 2


class Estimate(msgspec.Struct, frozen=True):
    """An estimated count and its 95 % interval, which begins at the number of observed events or above."""

    count: float
    low: float
    high: float


class SlicedCounts:
    """The estimator of one window."""

    def __init__(
        self, weights: Sequence[float], lengths_s: Sequence[float], totals: Sequence[int], whole: float | None
    ) -> None:
        """Set up the estimator.

        `weights`: the length of each stratum in lengths of its slice. `lengths_s`: the lengths of the slices in
        seconds. `totals`: all events that each slice saw. `whole`: all events of the window, by an independent counter
        of the same events; None without one.
        """
        self._totals = np.asarray(totals, dtype=np.float64)
        unseen = np.asarray(weights, dtype=np.float64) - 1.0
        expected = float(unseen @ self._totals)
        self._whole_unseen = expected if whole is None else max(0.0, whole - float(self._totals.sum()))
        scale = self._whole_unseen / expected if expected > 0 else 1.0
        self._unseen = unseen * scale
        self._sliced = unseen > 1e-6
        lengths = np.asarray(lengths_s, dtype=np.float64)
        # A stratum without a slice is longer: its counts are reduced to the length of a slice.
        typical_s = float(lengths[self._sliced].mean()) if self._sliced.any() else 0.0
        self._reduced = np.minimum(1.0, typical_s / np.maximum(lengths, 1e-9))

    @property
    def weights(self) -> Array:
        """The number of events that each observed event stands for, by slice."""
        return 1.0 + self._unseen

    def estimate(self, counts: Sequence[float] | Array) -> Estimate:
        """Return the estimate of the events of one kind, from their number in each slice."""
        seen = np.asarray(counts, dtype=np.float64)
        observed, mean = float(seen.sum()), float(self._unseen @ seen)
        if not self._sliced.any():
            return Estimate(observed, observed, observed)
        size = self._burst_size(seen)
        variance = max(self._scatter(seen, mean), size * float((self._unseen * (1.0 + self._unseen)) @ seen))
        low, high = _gamma_interval(mean, variance, size * float(self._unseen[self._sliced].max()))
        high = min(high, self._whole_unseen) if self._totals.any() else high
        return Estimate(observed + mean, observed + min(low, mean), observed + max(high, mean))

    def _burst_size(self, seen: Array) -> float:
        """Return the number of events that come together: 1 for independent events, more for bursts."""
        reduced = self._reduced * seen
        whole = float(reduced.sum())
        return max(1.0, float(reduced @ reduced) / whole - float(reduced.mean())) if whole else 1.0

    def _scatter(self, seen: Array, mean: float) -> float:
        """Return the variance of the unseen part by the differences between neighbouring slices.

        Neighbours, because loads change slowly (W. G. Cochran, Sampling Techniques, 5A.12).
        """
        weights = np.sqrt(self._unseen * (1.0 + self._unseen))[self._sliced]
        of_kind, all_kinds = seen[self._sliced], self._totals[self._sliced]
        count = len(weights)
        if count < _FEW_SLICES:
            return float((weights * of_kind) @ (weights * of_kind))
        share = mean / self._whole_unseen if self._whole_unseen else 0.0
        residuals = weights * (of_kind - share * all_kinds)
        steps = np.diff(residuals)
        variance = float(steps @ steps) * count / (2.0 * (count - 1))
        return variance * (student_quantile(LEVEL, count - 1) / Z95) ** 2


def _gamma_interval(mean: float, variance: float, most: float) -> tuple[float, float]:
    """Return the interval of a weighted sum of counts; `most` is the largest weight.

    It holds for few events and for none (M. P. Fay and E. J. Feuer, Statistics in Medicine 16, 1997).
    """
    low = _quantile(mean, variance, _TAIL) if mean > 0 else 0.0
    return low, _quantile(mean + most, variance + most * most, 1 - _TAIL)


def _quantile(mean: float, variance: float, level: float) -> float:
    if variance <= 0:
        return mean
    shape = mean * mean / variance
    if not _SMALL_SHAPE <= shape <= _LARGE_SHAPE:
        return max(0.0, mean + math.copysign(Z95, level - 0.5) * math.sqrt(variance))
    return variance / mean * gamma_quantile(shape, level)


def bound_of_unseen(traced_s: float) -> float:
    """Return the largest rate, per second, of events of which none was seen in this time, with 95 % certainty.

    The rule of three (J. A. Hanley and A. Lippman-Hand, JAMA 249, 1983).
    """
    return math.inf if traced_s <= 0 else -math.log(1 - LEVEL) / traced_s
