# SPDX-License-Identifier: Apache-2.0
"""How uncertain a mean is beyond what its values show: correlation from window to window, and the step of a reading."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

CORRELATED_FROM = 6  # fewer values cannot show their own correlation
# Windows of one run in a row are taken to have a correlation of 0.6 from one to the next until they show another: as if
# so many windows had shown that. Its factor on an error, (1 + r) / (1 − r) under a root, is 2.
UNKNOWN_FACTOR = 2.0
_IN_A_ROW = (0.6, 6)
# Pairs that show a correlation: a few show too little of it.
_INTERLEAVED = (0.5, 4)
_MOST_CORRELATED = 0.95
# An estimate over ten values in a row scatters by a third. So many of its standard errors, about 1 / √n, are added.
_MARGIN = 0.75


def serial_factor(values: Sequence[float], *, in_a_row: bool = False) -> float:
    """How many times larger the standard error of the mean is than of independent values; 1 at least.

    An autoregression of order 1. Its estimated coefficient is too small by (1 + 3 r) / n (M. Kendall, Biometrika 41,
    1954), which is put right; a small one is drawn towards what is usual. The variance of the mean follows from it, and
    how much of the variance correlated values show. For fewer than CORRELATED_FROM values it is UNKNOWN_FACTOR where
    they were measured in a row, else 1.
    """
    import numpy as np

    count = len(values)
    if count < CORRELATED_FROM:
        return UNKNOWN_FACTOR if in_a_row else 1.0
    around = np.asarray(values, dtype=float) - np.mean(values)
    total = float(around @ around)
    if not total or not math.isfinite(total):
        return 1.0
    seen = (count * float(around[1:] @ around[:-1]) / total + 1) / (count - 3)
    if in_a_row:
        seen += _MARGIN / math.sqrt(count)
    elif seen <= 0:
        return 1.0
    usual, weight = _IN_A_ROW if in_a_row else _INTERLEAVED
    coefficient = min(max(seen, (count * max(seen, 0.0) + weight * usual) / (count + weight)), _MOST_CORRELATED)
    lags = np.arange(1, count)
    longer = 1 + 2 * float(np.sum((1 - lags / count) * coefficient**lags))
    return math.sqrt(longer * (count - 1) / (count - longer))


def step_of(*series: Sequence[float]) -> float:
    """The step in which values were read, as far as they show it: the least gap between two that differ, or 0."""
    each = sorted({value for values in series for value in values})
    return min((high - low for low, high in pairwise(each)), default=0.0)


def rounding(step: float) -> float:
    """The standard deviation of one reading that is known to a step."""
    return step / math.sqrt(12)
