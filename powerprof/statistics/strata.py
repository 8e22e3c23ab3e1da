# SPDX-License-Identifier: Apache-2.0
"""Two conditions over several settings, a few windows at each: what they have in common over all of the settings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from powerprof.statistics.intervals import LEVEL, Interval, student_p, student_quantile
from powerprof.statistics.scatter import effective_freedom, rounding, serial_factor, step_of

_MOST = 200.0
Stratum = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class Pooled:
    """The mean of b − a over the settings, in percent of the mean of both; `p_value` is for none."""

    a_mean: float
    b_mean: float
    percent: float
    interval: Interval | None
    p_value: float | None


def pool(strata: Sequence[Stratum]) -> Pooled | None:
    """Each setting counts alike, whatever the size of its figures: 200 (b − a) / (a + b), from −200 to 200.

    That form is known where one of the two is nought, which a ratio is not. The error is that of a mean of independent
    differences, with the degrees of freedom of Welch and Satterthwaite over all settings. Settings at which both are
    nought say 0. None where no setting has values of both.
    """
    known = [(list(a), list(b)) for a, b in strata if a and b]
    if not known:
        return None
    each, variance, spread, sparse = [], 0.0, 0.0, 0.0
    for a, b in known:
        centre = (statistics.fmean(a) + statistics.fmean(b)) / 2
        each.append(100 * (statistics.fmean(b) - statistics.fmean(a)) / centre if centre else 0.0)
        least = rounding(step_of(a, b))
        for values in (a, b):
            if len(values) < 2 or not centre:
                continue
            spread_of = max(statistics.stdev(values) * serial_factor(values, in_a_row=True), least)
            part = (spread_of * 100 / centre) ** 2 / len(values)
            variance += part
            spread += part**2 / (len(values) - 1)
            sparse += part**2 / effective_freedom(values)
    count = len(known)
    mean, error = statistics.fmean(each), math.sqrt(variance) / count
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
        a_mean=statistics.fmean(statistics.fmean(a) for a, _ in known),
        b_mean=statistics.fmean(statistics.fmean(b) for _, b in known),
        percent=mean,
        interval=interval,
        p_value=p_value,
    )
