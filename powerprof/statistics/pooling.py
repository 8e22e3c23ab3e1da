# SPDX-License-Identifier: Apache-2.0
"""Pool the difference of two conditions over several settings with a few windows each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

import msgspec

from powerprof.statistics.distributions import student_p, student_quantile
from powerprof.statistics.intervals import LEVEL, Interval
from powerprof.statistics.scatter import effective_freedom, rounding, serial_factor, step_of

_MOST = 200.0
Stratum = tuple[Sequence[float], Sequence[float]]


class Pooled(msgspec.Struct, frozen=True):
    """The mean of b − a over the settings, in percent of the mean of both; `p_value` is for no difference."""

    a_mean: float
    b_mean: float
    percent: float
    interval: Interval | None
    p_value: float | None


def pool_differences(strata: Sequence[Stratum], *, levels: float) -> Pooled | None:
    """Pool 200 (b − a) / (a + b), from −200 to 200, over the settings with equal weight.

    Unlike a ratio, that is defined if one of the two is 0. A setting with 0 in both counts as 0. The error is that of a
    mean of independent differences, with the degrees of freedom of Welch and Satterthwaite over all settings. `levels`
    is the deviation of a run's level relative to that of its windows. All settings of a run share its level, so their
    number does not reduce that part. None if no setting has values of both.
    """
    known = [(list(a), list(b)) for a, b in strata if a and b]
    if not known:
        return None
    each, variance, spread, sparse = [], 0.0, 0.0, 0.0
    for a, b in known:
        centre = (fmean(a) + fmean(b)) / 2
        each.append(100 * (fmean(b) - fmean(a)) / centre if centre else 0.0)
        least = rounding(step_of(a, b))
        for values in (a, b):
            if len(values) < 2 or not centre:
                continue
            deviation = max(stdev(values), least)
            of_windows = max(deviation * serial_factor(values), least) ** 2 / len(values)
            part = (100 / centre) ** 2 * (of_windows + len(known) * (levels * deviation) ** 2)
            variance += part
            spread += part**2 / (len(values) - 1)
            sparse += part**2 / effective_freedom(values)
    count = len(known)
    mean, error = fmean(each), math.sqrt(variance) / count
    interval, p_value = None, None
    if all(min(len(a), len(b)) >= 2 for a, b in known):
        if error == 0:
            interval, p_value = Interval(mean, mean, "constant"), 1.0
        else:
            freedom = variance**2 / spread
            reach = student_quantile(LEVEL, freedom) * error
            interval = Interval(max(mean - reach, -_MOST), min(mean + reach, _MOST), "welch")
            p_value = student_p(mean / error, variance**2 / sparse)
    return Pooled(
        a_mean=fmean(fmean(a) for a, _ in known),
        b_mean=fmean(fmean(b) for _, b in known),
        percent=mean,
        interval=interval,
        p_value=p_value,
    )
