# SPDX-License-Identifier: Apache-2.0
"""Uncertainty of a mean from the correlation of consecutive windows and the resolution of readings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

CORRELATED_FROM = 6  # fewer consecutive windows cannot show a correlation
# Factors by number of consecutive windows. With a correlation of 0.8, 94 % of Welch's intervals cover if they are this
# much longer (a million simulated each). The factor grows with the number, because Student's quantile falls faster.
UNKNOWN_FACTORS = {1: 2.0, 2: 2.0, 3: 2.0, 4: 2.4, 5: 2.7}
# Prior for consecutive windows: a correlation of 0.6 with the weight of 6 windows.
_USUAL, _WEIGHT = 0.6, 6
_MOST_CORRELATED = 0.95
# An estimate over ten windows scatters by a third. Add this many standard errors, about 1 / √n.
_MARGIN = 0.75


def serial_factor(values: Sequence[float]) -> float:
    """Return the standard error of the mean of consecutive windows relative to independent ones; at least 1.

    The model is an autoregression of order 1. Its estimated coefficient is too small by (1 + 3 r) / n (M. Kendall,
    Biometrika 41, 1954), which is corrected; a small one is shrunk towards the prior. The variance of the mean follows,
    and the share of the variance that correlated values show. Fewer than CORRELATED_FROM windows get UNKNOWN_FACTORS.
    """
    count = len(values)
    if count < CORRELATED_FROM:
        return UNKNOWN_FACTORS[count]
    longer = _variance_factor(values)
    return math.sqrt(longer * (count - 1) / (count - longer))


def effective_freedom(values: Sequence[float]) -> float:
    """Return the degrees of freedom of the scatter of consecutive windows.

    They equal the number of independent windows with the same information, minus one at most. The tails of a family
    depend on the precision of the scatter. Below CORRELATED_FROM windows it is their number minus one: the factor
    contains the rest.
    """
    count = len(values)
    if count < CORRELATED_FROM:
        return count - 1.0
    return min(count / _variance_factor(values), count - 1.0)


def _variance_factor(values: Sequence[float]) -> float:
    """Return the variance of the mean relative to independent values, for at least CORRELATED_FROM windows."""
    import numpy as np

    count = len(values)
    seen = lag_of(values)
    if math.isnan(seen):
        return 1.0
    seen = (count * seen + 1) / (count - 3) + _MARGIN / math.sqrt(count)
    coefficient = min(max(seen, (count * max(seen, 0.0) + _WEIGHT * _USUAL) / (count + _WEIGHT)), _MOST_CORRELATED)
    lags = np.arange(1, count)
    return 1 + 2 * float(np.sum((1 - lags / count) * coefficient**lags))


def lag_of(values: Sequence[float]) -> float:
    """Return the sample correlation of neighbouring values; NaN for equal values."""
    centre = fmean(values)
    around = [value - centre for value in values]
    total = math.fsum(each * each for each in around)
    if not total or not math.isfinite(total):
        return math.nan
    return math.fsum(x * y for x, y in pairwise(around)) / total


def step_of(*series: Sequence[float]) -> float:
    """Return the apparent resolution of the values: the smallest gap between two different ones, or 0.

    The gap of only two different values can be their difference. Readings are multiples of their step, so it is at most
    the smaller value.
    """
    each = sorted({value for values in series for value in values})
    step = min((high - low for low, high in pairwise(each)), default=0.0)
    return min([step, *(abs(value) for value in each if value)]) if len(each) == 2 else step


def rounding(step: float) -> float:
    """Return the standard deviation of one reading of this resolution."""
    return step / math.sqrt(12)
