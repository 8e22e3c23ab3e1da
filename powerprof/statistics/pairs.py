# SPDX-License-Identifier: Apache-2.0
"""Test pairs of windows by one rule for every number of pairs, with the noise of all rows of their report."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from powerprof.statistics.distributions import student_p, student_quantile
from powerprof.statistics.intervals import LEVEL, Interval
from powerprof.statistics.scatter import CORRELATED_FROM, lag_of, rounding, step_of

if TYPE_CHECKING:
    import numpy as np

_MOST_REACH = 30.0  # in logarithms to either side: thirteen powers of ten

Pairs = tuple[Sequence[float], Sequence[float]]
# A report without correlation counts as this many pairs.
_PRIOR = 5
# The sum of squares of a row counts as at least this multiple of the squared typical deviation of the report's rows.
# Three windows can be alike by chance.
_TYPICAL, _TYPICAL_SIDE = 2.0, 0.36
# The typical deviation has this many degrees of freedom more than pairs.
_TYPICAL_FREEDOM = 5
# The correlations of rows differ only if their variance is more than this multiple of chance.
_CHANCE = 1.25
_MANY = 60
_COEFFICIENTS = tuple(0.05 * step for step in range(20))


def _variance(values: Sequence[float]) -> float:
    """Return the sample variance; the standard library's exact fractions take ten times as long."""
    centre = fmean(values)
    return math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1)


def _deviation(values: Sequence[float]) -> float:
    return math.sqrt(_variance(values))


class Noise(msgspec.Struct, frozen=True):
    """The noise of all rows of a report of pairs, which a few pairs of one row do not show.

    `lag` is the correlation of neighbouring pairs that `rows` rows show; NaN if it is unknown. `scatter` is the typical
    deviation of b − a and `side` that of one side's windows, relative to the figure.
    """

    lag: float
    rows: int
    scatter: float
    side: float

    def serial(self, count: int) -> tuple[float, float]:
        """Return the factor of the standard error of a mean of pairs, at least 1, and the degrees of freedom."""
        if count < 3 or math.isnan(self.lag):
            return 1.0, count - 1.0
        shown = self.rows * count
        return _factor_and_freedom(count, self.lag, shown / (shown + _PRIOR))

    def least(self, count: int) -> float:
        """Return the smallest credible deviation of b − a over `count` pairs, relative to the figure."""
        return self.scatter * math.sqrt(_TYPICAL / (count - 1)) if count > 1 else 0.0

    def side_least(self, count: int) -> float:
        """Return the smallest credible deviation of a side over `count` windows, relative to the figure."""
        return self.side * math.sqrt(_TYPICAL_SIDE / (count - 1)) if count > 1 else 0.0


INDEPENDENT = Noise(math.nan, 0, 0.0, 0.0)


def pool_noise(rows: Sequence[Pairs]) -> Noise:
    """Return the noise of the rows of a report; rows with fewer pairs than the others show none.

    The correlation is the mean of all rows. From CORRELATED_FROM pairs on, it is the nearer to the largest the more the
    rows differ beyond chance: a few pairs do not show which rows have it.
    """
    most = max((len(a) for a, _ in rows), default=0)
    lags, scatters, sides = [], [], []
    for a, b in rows:
        if len(a) < max(most, 3):
            continue
        on_logs = min(*a, *b) > 0
        each = [math.log(y) - math.log(x) if on_logs else y - x for x, y in zip(a, b, strict=True)]
        lag, level = lag_of(each), 1.0 if on_logs else abs(fmean(a) + fmean(b)) / 2
        if math.isnan(lag) or not level:
            continue
        lags.append(lag)
        scatters.append(_deviation(each) / level)
        sides += [
            _deviation(values) / abs(fmean(values)) for values in (a, b) if fmean(values) and max(values) > min(values)
        ]
    if not lags:
        return INDEPENDENT
    lag = fmean(lags)
    if len(lags) > 2 and most >= CORRELATED_FROM:
        # The variance of the correlation of independent values.
        chance = _CHANCE * (most - 2) ** 2 / (most**2 * (most - 1))
        variance = _variance(lags)
        lag += max(1 - chance / variance, 0.0) * (max(lags) - lag) if variance else 0.0
    return Noise(lag, len(lags), statistics.median(scatters), statistics.median(sides or [0.0]))


# Functions with fewer samples per window show hardly more than the chance of sampling.
_SHOWING_SAMPLES = 10


def pool_sampling_noise(rows: Sequence[Pairs], step: float) -> list[Noise]:
    """Return the noise of each row of a table of sampled functions; `step` is one sample in the unit of the values.

    The variance of a row is the chance of sampling, known from its samples, and that of the server, pooled over the
    rows. A function with two modes is alike in a few windows by chance.
    """
    seen, chances, levels = [], [], []
    for a, b in rows:
        chance, variance, level = math.inf, math.nan, fmean([*a, *b])
        if level > 0 and len(a) > 2:
            if min(*a, *b) > 0:
                chance = step * fmean([1 / x + 1 / y for x, y in zip(a, b, strict=True)])
                variance = _variance([math.log(y) - math.log(x) for x, y in zip(a, b, strict=True)])
            else:
                chance = 2 * step / level
                variance = _variance([y - x for x, y in zip(a, b, strict=True)]) / level**2
        seen.append(variance - chance)
        chances.append(chance)
        levels.append(level)
    known = [value for value in seen if not math.isnan(value)]
    showing = [
        value
        for value, level in zip(seen, levels, strict=True)
        if level >= _SHOWING_SAMPLES * step and not math.isnan(value)
    ]
    shared = max(statistics.median(showing or known or [0.0]), 0.0)
    # Many functions need small p-values, and more than six pairs are hardly alike by chance.
    shared *= min((5 / max(len(rows[0][0]) - 1, 1)) ** 2, 1.0) if rows else 1.0
    return [
        replace(pool_noise([row]), scatter=0.0 if math.isinf(chance) else math.sqrt(shared + chance))
        for row, chance in zip(rows, chances, strict=True)
    ]


def _factor_and_freedom(count: int, lag: float, weight: float) -> tuple[float, float]:
    """Return the factor of the standard error and the degrees of freedom for pairs with this mean correlation.

    The coefficient of the autoregression is the one whose expected sample correlation is `lag`, times `weight`.
    """
    import numpy as np

    if lag <= _expected_lags(count)[0]:
        return 1.0, count - 1.0
    coefficient = weight * float(np.interp(lag, _expected_lags(count), _COEFFICIENTS))
    return _serial_of(count, round(coefficient, 3))


@cache
def _serial_of(count: int, coefficient: float) -> tuple[float, float]:
    """Return the factor and the degrees of freedom (F. Satterthwaite, 1946) of an autoregression's sample variance."""
    import numpy as np

    correlations, around = _autoregression(count, coefficient)
    trace = float(np.trace(around))
    return math.sqrt(correlations.sum() / count * (count - 1) / trace), trace**2 / float(np.sum(around * around))


def _autoregression(count: int, coefficient: float) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the covariances of an autoregression of variance 1 and those of its deviations from the sample mean."""
    import numpy as np

    places = np.arange(count)
    covariances = np.where(places[:, None] == places, 1.0, coefficient ** np.abs(places[:, None] - places))
    centring = np.eye(count) - 1 / count
    return covariances, centring @ covariances @ centring


@cache
def _expected_lags(count: int) -> tuple[float, ...]:
    """Return the expected sample correlation of neighbours for each of _COEFFICIENTS.

    It is the mean of a ratio of quadratic forms in normal variables, as an integral (T. Sawa, Econometrica 46, 1978).
    Three values with a coefficient of 0.8 show −0.26 on average; three independent values −0.33. Above _MANY values M.
    Kendall's approximation (Biometrika 41, 1954) is as good.
    """
    import numpy as np

    if count > _MANY:
        return tuple(coefficient - (1 + 3 * coefficient) / count for coefficient in _COEFFICIENTS)
    nodes, weights = np.polynomial.legendre.leggauss(80)
    share = (nodes + 1) / 2
    times, lengths = (share / (1 - share)) ** 2, share / (1 - share) ** 3 * weights
    neighbours = (np.eye(count, k=1) + np.eye(count, k=-1)) / 2
    expected = []
    for coefficient in _COEFFICIENTS:
        sizes, vectors = np.linalg.eigh(_autoregression(count, coefficient)[1])
        sizes, vectors = sizes[1:] / sizes[1:].mean(), vectors[:, 1:]
        shares = np.einsum("ij,ik,kj->j", vectors, neighbours, vectors)
        under = 1 + 2 * np.outer(times, sizes)
        expected.append(float(np.sum(lengths * np.exp(-np.log(under).sum(1) / 2) * (shares * sizes / under).sum(1))))
    return tuple(expected)


class PairedTest(msgspec.Struct, frozen=True):
    """The mean of b − a or, `on_logs`, of log(b / a), with its standard error and degrees of freedom.

    `typical` is the standard error by the typical scatter of the report, with its degrees of freedom.
    `lognormal` is log(mean(b) / mean(a)) of lognormal values and its standard error; the mean of logarithms compares
    medians.
    """

    mean: float
    error: float
    freedom: float
    on_logs: bool
    lognormal: tuple[float, float] | None = None
    typical: tuple[float, float] = (0.0, 1.0)

    def reach(self, level: float) -> float:
        """Return the half width of an interval of this level: of both errors the larger one."""
        typical, freedom = self.typical
        return max(student_quantile(level, self.freedom) * self.error, student_quantile(level, freedom) * typical)

    @property
    def p_value(self) -> float:
        """The probability of this difference between equal conditions; on logarithms of both kinds of mean."""
        if not self.error:
            return 1.0
        p_value = student_p(self.mean / self.error, self.freedom)
        if self.typical[0]:
            p_value = max(p_value, student_p(self.mean / self.typical[0], self.typical[1]))
        if self.lognormal is None:
            return p_value
        centre, error = self.lognormal
        return max(p_value, student_p(centre / error, self.freedom)) if centre * self.mean > 0 else 1.0

    @property
    def interval(self) -> Interval:
        """The interval of the mean on its scale."""
        reach = self.reach(LEVEL)
        low, high = self.mean - reach, self.mean + reach
        if self.lognormal is not None:
            centre, error = self.lognormal
            reach = student_quantile(LEVEL, self.freedom) * error
            low, high = min(low, centre - reach), max(high, centre + reach)
        method = ("student-log" if self.on_logs else "student") if self.error else "constant"
        return Interval(low, high, method)


def measure_difference(a: Sequence[float], b: Sequence[float], step: float | None, noise: Noise) -> PairedTest:
    """Test at least two pairs: on logarithms if all values are positive, else on differences.

    The noise of a window is proportional to its figure, and a common drift cancels in ratios. `step` is the resolution
    of the readings; None estimates it from the values. A value far below its resolution has no logarithm.
    """
    count, each_step = len(a), rounding(step_of(a, b) if step is None else step)
    if min(*a, *b) > 0:
        logs = [math.log(y) - math.log(x) for x, y in zip(a, b, strict=True)]
        step_least = each_step * math.sqrt(fmean([1 / x**2 + 1 / y**2 for x, y in zip(a, b, strict=True)]))
        factor, freedom = noise.serial(count)
        error = max(factor * _deviation(logs), step_least) / math.sqrt(count)
        typical = factor * noise.least(count) / math.sqrt(count), float(count + _TYPICAL_FREEDOM)
        if student_quantile(LEVEL, count - 1) * error <= _MOST_REACH:
            variances = [_variance([math.log(value) for value in side]) for side in (a, b)]
            mean = fmean(logs)
            # D. R. Cox's mean of lognormal values. Twice his uncertainty of the variance covers five values.
            further = math.sqrt(error**2 + sum(variance**2 for variance in variances) / (count - 1))
            lognormal = mean + (variances[1] - variances[0]) / 2, further
            return PairedTest(mean, error, freedom, on_logs=True, lognormal=lognormal, typical=typical)
    differences = [y - x for x, y in zip(a, b, strict=True)]
    factor, freedom = noise.serial(count)
    level = abs(fmean(a) + fmean(b)) / 2
    error = max(factor * _deviation(differences), math.sqrt(2) * each_step) / math.sqrt(count)
    typical = factor * noise.least(count) * level / math.sqrt(count), float(count + _TYPICAL_FREEDOM)
    return PairedTest(fmean(differences), error, freedom, on_logs=False, typical=typical)
