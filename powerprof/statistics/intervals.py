# SPDX-License-Identifier: Apache-2.0
"""Intervals over repeated or paired values: the widened BCa bootstrap, never narrower than Student's.

With 10 to 12 pairs the plain BCa interval covers about 90 % instead of 95 %. It resamples a spread that is too small by
(n − 1)/n, and it uses normal quantiles instead of Student's. Requesting a higher level corrects both (T. Hesterberg,
"What Teachers Should Know About the Bootstrap", The American Statistician 69, 2015). Outliers of a busy host still
mislead it (90 %), and Student's interval does not cover skewed data (86 %). The union of both covers 95 to 97 % of the
former and 92 % of the latter. docs/dev/experiments.md has the table of coverage.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    import numpy as np


# Uncertainty of a mean from the correlation of windows and the resolution of readings.

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


RESAMPLES = 9_999
LEVEL = 0.95
MINIMUM_RESAMPLED = 6  # fewer values have too few distinct resamples for these tails


class Interval(msgspec.Struct, frozen=True):
    """A confidence interval; `method` is the name of its method."""

    low: float
    high: float
    method: str

    def stretched(self, centre: float, factor: float) -> Interval:
        """Return the interval with both distances from `centre` multiplied."""
        return replace(self, low=centre - factor * (centre - self.low), high=centre + factor * (self.high - centre))

    def with_ends(self, other: Interval | None) -> Interval:
        """Return the shortest interval that contains both."""
        return self if other is None else replace(self, low=min(self.low, other.low), high=max(self.high, other.high))

    def excludes(self, value: float) -> bool:
        """Return whether `value` is outside."""
        return value < self.low or value > self.high

    @property
    def half_width(self) -> float:
        """Half of the length, in the unit of the values."""
        return (self.high - self.low) / 2


def interval_ends(interval: Interval | None) -> tuple[float, float] | None:
    """Return both ends of an interval; None if there is none."""
    return None if interval is None else (interval.low, interval.high)


def widened_level(count: int) -> float:
    """Return the level of a bootstrap over `count` values whose interval covers LEVEL.

    It is 1 − 2·Φ(−√(n/(n−1))·t), with Student's quantile t for n − 1 degrees of freedom.
    """
    from scipy import special

    if count < 2:
        raise ValueError("an interval needs two values")
    return 1 - 2 * float(special.ndtr(-math.sqrt(count / (count - 1)) * student_quantile(LEVEL, count - 1)))


def student_quantile(level: float, freedom: float) -> float:
    """Return the half width of an interval of this level in standard errors."""
    from scipy import special  # scipy.stats has the same function, but its import takes a second of CPU time more

    return float(special.stdtrit(freedom, (1 + level) / 2))


def student_p(ratio: float, freedom: float) -> float:
    """Return the two-sided probability of an estimate that exceeds this many standard errors by chance."""
    from scipy import special

    return 2 * float(special.stdtr(freedom, -abs(ratio)))


def _bca(values: np.ndarray[Any, Any], seed: int) -> Interval | None:
    """Return SciPy's BCa interval of a mean; None if the bootstrap distribution is degenerate."""
    import numpy as np
    from scipy import stats

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SciPy warns of a degenerate distribution and returns NaN
        bounds = stats.bootstrap(
            (values,),
            np.mean,
            n_resamples=RESAMPLES,
            vectorized=True,
            confidence_level=widened_level(values.size),
            method="BCa",
            random_state=np.random.default_rng(seed),
        ).confidence_interval
    low, high = float(bounds.low), float(bounds.high)
    return Interval(low, high, "bca") if math.isfinite(low) and math.isfinite(high) else None


def student_interval(values: Sequence[float]) -> Interval | None:
    """Return Student's interval of the mean; None for a single value, a point for equal values."""
    if len(values) < 2:
        return None
    centre = fmean(values)
    reach = student_quantile(LEVEL, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Interval(centre - reach, centre + reach, "student" if reach else "constant")


def _bounded_exp(power: float) -> float:
    """Return e^power within the range of a float. A mean next to its bound exceeds it."""
    return math.exp(min(power, 300.0))


def bounded_interval(
    values: Sequence[float], floor: float | None = None, ceiling: float | None = None, reach: float | None = None
) -> Interval | None:
    """Return Student's interval of a figure with bounds, such as a rate or a residency; `reach` replaces Student's.

    If the plain interval exceeds a bound, it is computed on the logarithm of the distance from that bound by the delta
    method. If it exceeds both bounds, then on the logarithm of the ratio of both distances. So it bends towards the
    bound and is not cut there.
    """
    plain = student_interval(values)
    if plain is None:
        return None
    if reach is not None:
        plain = Interval(fmean(values) - reach, fmean(values) + reach, plain.method)
    below, above = floor is not None and plain.low < floor, ceiling is not None and plain.high > ceiling
    if not (below or above):
        return plain
    centre = fmean(values)
    if (floor is not None and centre <= floor) or (ceiling is not None and centre >= ceiling):
        return Interval(centre, centre, "constant")
    reach = plain.half_width
    if not above and floor is not None:
        low, factor = centre - floor, _bounded_exp(reach / (centre - floor))
        if ceiling is None or floor + low * factor <= ceiling:
            return Interval(floor + low / factor, floor + low * factor, "student-log")
    if not below and ceiling is not None:
        high, factor = ceiling - centre, _bounded_exp(reach / (ceiling - centre))
        if floor is None or ceiling - high * factor >= floor:
            return Interval(ceiling - high * factor, ceiling - high / factor, "student-log")
    assert floor is not None  # noqa: S101  for the type checker: it leaves both bounds
    assert ceiling is not None  # noqa: S101
    low, high = centre - floor, ceiling - centre
    odds, spread = low / high, _bounded_exp(reach * (1 / low + 1 / high))
    ends = [floor + (ceiling - floor) * ratio / (1 + ratio) for ratio in (odds / spread, odds * spread)]
    return Interval(ends[0], ends[1], "student-logit")


def welch_error(
    a: Sequence[float], b: Sequence[float], levels: float = 0.0, step: float | None = None
) -> tuple[float, float]:
    """Return the standard error of mean(b) − mean(a) and its degrees of freedom, with separate scatters.

    Windows of one run are consecutive. Each side's error includes their correlation, and at least the resolution of the
    readings, `step` (None estimates it from the values). `levels` is the deviation of a run's level relative to that of
    its windows, which do not show it. The degrees of freedom are those of the smaller side, which is valid for any two
    scatters (P. L. Hsu, 1938; H. Scheffé, 1970). B. L. Welch's are more, too many for a few values. Each side needs two
    values.
    """
    least = rounding(step_of(a, b) if step is None else step)
    errors = []
    for values in (a, b):
        deviation = max(stdev(values), least)
        errors.append(deviation * math.hypot(serial_factor(values) / math.sqrt(len(values)), levels))
    return math.hypot(*errors), min(len(a), len(b)) - 1


def welch_interval(
    a: Sequence[float], b: Sequence[float], levels: float = 0.0, step: float | None = None
) -> Interval | None:
    """Return the interval of mean(b) − mean(a) for unpaired values with different scatters.

    None if one side has a single value. `levels` and `step` are those of `welch_error`.
    """
    if len(a) < 2 or len(b) < 2:
        return None
    (error, freedom), centre = welch_error(a, b, levels, step), fmean(b) - fmean(a)
    if not error:
        return Interval(centre, centre, "constant")
    reach = student_quantile(LEVEL, freedom) * error
    return Interval(centre - reach, centre + reach, "welch")


def _lognormal(logs: np.ndarray[Any, Any], centre: float) -> Interval:
    """Return D. R. Cox's interval of a mean of lognormal values.

    It includes the long tail that a few skewed values have not shown. The uncertainty of the variance of the logarithms
    counts twice as much as in Cox's formula, which is too small for five values. The interval contains `centre`, the
    observed mean.
    """
    import numpy as np

    count, variance = logs.size, float(np.var(logs, ddof=1))
    reach = student_quantile(LEVEL, count - 1) * math.sqrt(variance / count + variance**2 / (count - 1))
    middle = float(logs.mean()) + variance / 2
    low, high = _bounded_exp(min(middle - reach, math.log(centre))), _bounded_exp(max(middle + reach, math.log(centre)))
    return Interval(low, high, "lognormal")


def mean_interval(values: Sequence[float], *, seed: int, least: float = 0.0) -> Interval | None:
    """Return the interval of the mean of consecutive windows; None for fewer than three values, a point for equal ones.

    The bootstrap and Student's interval are joined from MINIMUM_RESAMPLED values. Both are longer by the serial factor.
    For positive values the interval includes the lognormal one. `least` is the smallest credible deviation of a window.
    """
    import numpy as np

    data = np.asarray(values, dtype=float)
    if data.size < 3 or not np.isfinite(data).all():
        return None
    centre, equal = float(data.mean()), bool(np.ptp(data) == 0)
    if equal and not least:
        return Interval(float(data[0]), float(data[0]), "constant")
    factor = serial_factor(values)
    reach = student_quantile(LEVEL, data.size - 1) * factor * max(float(data.std(ddof=1)), least) / math.sqrt(data.size)
    found = Interval(centre - reach, centre + reach, "student")
    if equal:
        return found
    if data.size >= MINIMUM_RESAMPLED:
        resampled = _bca(data, seed)
        if resampled is not None:
            found = replace(found.with_ends(resampled.stretched(centre, factor)), method="bca+student")
    return found.with_ends(_lognormal(np.log(data), centre)) if (data > 0).all() else found


# Student's t without SciPy, for whole degrees of freedom: a process that runs all day must not load 20 MB for it.
# Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.


def probability_within(t: float, freedom: int) -> float:
    """Return the probability that |T| < t, for t ≥ 0."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, is_odd = math.cos(angle), freedom % 2
    term = cosine if is_odd else 1.0
    total = 0.0 if freedom == 1 else term
    for step in range(3 if is_odd else 2, freedom - 1, 2):
        term *= (step - 1) / step * cosine**2
        total += term
    product = math.sin(angle) * total
    return 2 / math.pi * (angle + product) if is_odd else product


@cache
def two_sided_quantile(share: float, freedom: int) -> float:
    """Return the t with probability `share` within ±t, to within 1e-12 of it."""
    low, high = 0.0, 1.0
    while probability_within(high, freedom) < share:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if probability_within(middle, freedom) < share else (low, middle)
    return (low + high) / 2


# Compute intervals of counted rates, pooled differences and proportions.

# Blocks of a window. A regular timer scatters only by its position in a block, which has more weight in many short
# blocks.
BLOCKS = 10
# With less than this the scatter of the blocks is unknown.
_FEW_EVENTS, _FEW_BLOCKS = 10, 6
# The variance of a regular event's count is at most 1/4, that of two edges anywhere in a block 1/6.
_EDGES = 1 / 6


def rate_interval(count: int, blocks: Sequence[float], window_s: float) -> Interval:
    """Return the interval of the rate, per second, of `count` events in `window_s` with equal `blocks`.

    Regular timers are more precise than Poisson's law, bursts less: the scatter and the correlation of the blocks show
    that. Fewer than ten events get Poisson's exact interval (F. Garwood, Biometrika 28, 1936).
    """
    if count < _FEW_EVENTS or len(blocks) < _FEW_BLOCKS:
        return _poisson(count, window_s)
    mean = sum(blocks) / len(blocks)
    variance = sum((block - mean) ** 2 for block in blocks) / (len(blocks) - 1)
    error = math.sqrt(max(variance, _EDGES) / len(blocks)) * serial_factor(blocks)
    reach = student_quantile(LEVEL, len(blocks) - 1) * error * len(blocks) / window_s
    rate = count / window_s
    return Interval(max(0.0, rate - reach), rate + reach, "blocks")


def _poisson(count: int, window_s: float) -> Interval:
    from scipy import special

    tail = (1 - LEVEL) / 2
    low = float(special.gammaincinv(count, tail)) if count else 0.0
    return Interval(low / window_s, float(special.gammaincinv(count + 1, 1 - tail)) / window_s, "poisson")


def difference_of_rates(a: float, of_a: Interval, b: float, of_b: Interval) -> Interval:
    """Return the interval of b − a from the intervals of both, which can be asymmetrical.

    G. Zou and A. Donner, Statistics in Medicine 27, 2008.
    """
    low = b - a - math.hypot(b - of_b.low, of_a.high - a)
    return Interval(low, b - a + math.hypot(of_b.high - b, a - of_a.low), "rates")


# Two conditions over several settings with a few windows each: the common difference.

_MOST = 200.0
Stratum = tuple[Sequence[float], Sequence[float]]


class Pooled(msgspec.Struct, frozen=True):
    """The mean of b − a over the settings, in percent of the mean of both; `p_value` is for no difference."""

    a_mean: float
    b_mean: float
    percent: float
    interval: Interval | None
    p_value: float | None


def pool_differences(strata: Sequence[Stratum]) -> Pooled | None:
    """Pool 200 (b − a) / (a + b), from −200 to 200, over the settings with equal weight.

    Unlike a ratio, that is defined if one of the two is 0. A setting with 0 in both counts as 0. The error is that of a
    mean of independent differences, with the degrees of freedom of Welch and Satterthwaite over all settings. None if
    no setting has values of both.
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
            spread_of = max(statistics.stdev(values) * serial_factor(values), least)
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


# Shares of samples: a percentage and its interval.

_Z95 = 1.959964


class Proportion(NamedTuple):
    """A share and its 95 % interval in percent: `low_percent` <= `percent` <= `high_percent` <= 100."""

    percent: float
    low_percent: float
    high_percent: float


def proportion(count: int, whole: int, of: int | None = None) -> Proportion:
    """Return the share of `count` in `of`; `count` was found among `whole` samples, which are a part of `of`.

    The interval is the score interval (E. B. Wilson, JASA 22, 1927), which is valid near 0 and 100 too. For all or none
    of the samples, the share is exactly the end of the interval. Without samples the result is 0, from 0 to 100.
    """
    among = whole if of is None else of
    if not whole:
        return Proportion(0.0, 0.0, 100.0)
    share, square = count / whole, _Z95 * _Z95 / whole
    middle = (share + square / 2) / (1 + square)
    half = _Z95 * math.sqrt((share * (1 - share) + square / 4) / whole) / (1 + square)
    percent, most = 100 * count / among, 100 * whole / among
    return Proportion(
        percent, min(max(middle - half, 0.0) * most, percent), max(min(middle + half, 1.0) * most, percent)
    )
