# SPDX-License-Identifier: Apache-2.0
"""How uncertain a mean is beyond what its values show: correlation from window to window, and the step of a reading."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

CORRELATED_FROM = 6  # fewer values cannot show their own correlation
# By their number, for windows in a row: with a correlation of 0.8 from one to the next, 94 % of Welch's intervals so
# much longer cover (a million simulated each). It grows with the number, since Student's own quantile falls faster.
UNKNOWN_FACTORS = {1: 2.0, 2: 2.0, 3: 2.0, 4: 2.4, 5: 2.7}
# Windows of one run in a row are taken to have a correlation of 0.6 from one to the next until they show another: as if
# so many windows had shown that.
_IN_A_ROW = (0.6, 6)
# Pairs that show a correlation: a few show too little of it.
_INTERLEAVED = (0.6, 6)
_MOST_CORRELATED = 0.95
# An estimate over ten values scatters by a third. So many of its standard errors, about 1 / √n, are added: to that of
# pairs as many as bring six and more with a correlation of 0.5 to 93 %.
_MARGIN = 0.75
_INTERLEAVED_MARGIN = 0.6


def serial_factor(values: Sequence[float], *, in_a_row: bool = False) -> float:
    """How many times larger the standard error of the mean is than of independent values; 1 at least.

    An autoregression of order 1. Its estimated coefficient is too small by (1 + 3 r) / n (M. Kendall, Biometrika 41,
    1954), which is put right; a small one is drawn towards what is usual. The variance of the mean follows from it, and
    how much of the variance correlated values show. Fewer than CORRELATED_FROM values have that of UNKNOWN_FACTORS
    where they were measured in a row, else 1.
    """
    count = len(values)
    if count < CORRELATED_FROM:
        return UNKNOWN_FACTORS[count] if in_a_row else 1.0
    longer = _variance_factor(values, in_a_row)
    return math.sqrt(longer * (count - 1) / (count - longer))


def effective_freedom(values: Sequence[float]) -> float:
    """The degrees of freedom of the scatter of windows in a row: as many as independent windows would show as much.

    So rare a chance as a family of rows asks for is decided by how well the scatter itself is known. Below
    CORRELATED_FROM windows it is one less than their number: the factor holds the rest.
    """
    count = len(values)
    if count < CORRELATED_FROM:
        return count - 1.0
    return min(count / _variance_factor(values, in_a_row=True), count - 1.0)


def _variance_factor(values: Sequence[float], in_a_row: bool) -> float:
    """How many times larger the variance of the mean is than of independent values. CORRELATED_FROM values at least."""
    import numpy as np

    count = len(values)
    around = np.asarray(values, dtype=float) - np.mean(values)
    total = float(around @ around)
    if not total or not math.isfinite(total):
        return 1.0
    seen = (count * float(around[1:] @ around[:-1]) / total + 1) / (count - 3)
    seen += (_MARGIN if in_a_row else _INTERLEAVED_MARGIN) / math.sqrt(count)
    if seen <= 0 and not in_a_row:
        return 1.0
    usual, weight = _IN_A_ROW if in_a_row else _INTERLEAVED
    coefficient = min(max(seen, (count * max(seen, 0.0) + weight * usual) / (count + weight)), _MOST_CORRELATED)
    lags = np.arange(1, count)
    return 1 + 2 * float(np.sum((1 - lags / count) * coefficient**lags))


def step_of(*series: Sequence[float]) -> float:
    """The step in which values were read, as far as they show it: the least gap between two that differ, or 0."""
    each = sorted({value for values in series for value in values})
    return min((high - low for low, high in pairwise(each)), default=0.0)


def rounding(step: float) -> float:
    """The standard deviation of one reading that is known to a step."""
    return step / math.sqrt(12)
