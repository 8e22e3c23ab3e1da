# SPDX-License-Identifier: Apache-2.0
"""The typical ratio of pairs by their signed ranks: few disturbed windows do not move it.

F. Wilcoxon, "Individual Comparisons by Ranking Methods", Biometrics Bulletin 1, 1945. J. L. Hodges and E. L. Lehmann,
"Estimates of Location Based on Rank Tests", The Annals of Mathematical Statistics 34, 1963.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from powerprof.statistics.intervals import LEVEL

if TYPE_CHECKING:
    import numpy as np

FEWEST_PAIRS = 7
# The smallest p-value of seven pairs is 1.56 %.
TYPICAL_LEVEL = 0.984
_NORMAL = statistics.NormalDist()


class TypicalRatio(msgspec.Struct, frozen=True):
    """The median of the means of every two pairs' log ratios, as b / a, with its 95 % interval.

    `p_value` is for log ratios that are symmetric around 0, such as those of a condition and itself.
    """

    ratio: float
    low: float
    high: float
    p_value: float


@cache
def rank_probabilities(count: int) -> np.ndarray[Any, Any]:
    """Return P(W ≤ w) for w = 0, 1, …: the sum of the ranks of the negative ones of `count` values.

    Each rank is negative with a probability of one half: the values show no difference.
    """
    import numpy as np

    shares = np.ones(1)
    for rank in range(1, count + 1):
        shares = (np.append(shares, np.zeros(rank)) + np.append(np.zeros(rank), shares)) / 2
    return np.cumsum(shares)


def measure_typical_ratio(
    a: Sequence[float], b: Sequence[float], *, step: float = 0.0, factor: float = 1.0
) -> TypicalRatio | None:
    """Return the typical ratio of positive pairs; None for fewer than FEWEST_PAIRS or values that are not positive.

    Pairs that differ by `step` at most, the resolution of the readings, are equal. `factor` is that of the standard
    error of correlated pairs.
    """
    import numpy as np

    count = len(a)
    if count < FEWEST_PAIRS or min(*a, *b) <= 0:
        return None
    logs = np.array([math.log(y / x) if abs(y - x) > step else 0.0 for x, y in zip(a, b, strict=True)])
    means = np.sort(np.add.outer(logs, logs)[np.triu_indices(count)] / 2)
    # Means of 0 count for both directions, so equal pairs support neither.
    least = min(np.count_nonzero(means <= 0), np.count_nonzero(means >= 0))
    probabilities = rank_probabilities(count)
    # An end leaves out this many means.
    left_out = int(np.searchsorted(probabilities, _narrow_p(1 - LEVEL, factor) / 2, "right"))
    if not left_out:
        return None
    ratio, low, high = (math.exp(value) for value in (np.median(means), means[left_out - 1], means[-left_out]))
    return TypicalRatio(ratio, low, high, _narrow_p(min(2 * float(probabilities[least]), 1.0), 1 / factor))


def _narrow_p(p_value: float, factor: float) -> float:
    """Return the p-value of a standard error that is 1 / `factor` times as large, on the normal scale."""
    if factor == 1.0 or p_value >= 1.0:
        return p_value
    return 2 * _NORMAL.cdf(_NORMAL.inv_cdf(p_value / 2) * factor)
