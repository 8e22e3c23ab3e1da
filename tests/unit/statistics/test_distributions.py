# SPDX-License-Identifier: Apache-2.0
"""Quantiles and probabilities agree with SciPy's for generated arguments."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy import special, stats

from powerprof.statistics.distributions import gamma_quantile, kendall_tau, student_p, student_quantile

PRECISION = 1e-9
COUNT = 1_000


def levels(draw: random.Random) -> float:
    """Return a probability that is often next to 0 or 1."""
    small = 10 ** draw.uniform(-14, -0.01)
    return draw.choice([small, 1 - small, draw.random()])


def freedoms(draw: random.Random) -> float:
    """Return whole and fractional degrees of freedom from 1 to 1e6."""
    return draw.choice([draw.randint(1, 200), 10 ** draw.uniform(0, 6)])


def scipy_quantile(level: float, freedom: float) -> float:
    """Return the quantile of |T| by the function of SciPy that keeps the digits of this tail."""
    if level > 0.5:
        return float(stats.t.isf((1 - level) / 2, freedom))
    share = float(special.betaincinv(0.5, freedom / 2, level))
    return math.sqrt(freedom * share / (1 - share))


def test_student_quantiles_are_scipys() -> None:
    draw = random.Random(1)
    for _ in range(COUNT):
        level, freedom = levels(draw), freedoms(draw)
        assert student_quantile(level, freedom) == pytest.approx(scipy_quantile(level, freedom), rel=PRECISION), (
            level,
            freedom,
        )


def test_student_probabilities_are_scipys() -> None:
    draw = random.Random(2)
    for _ in range(COUNT):
        ratio, freedom = draw.choice((-1, 1)) * 10 ** draw.uniform(-8, 2), freedoms(draw)
        expected = float(2 * stats.t.sf(abs(ratio), freedom))
        assert student_p(ratio, freedom) == pytest.approx(expected, rel=PRECISION, abs=1e-290), (ratio, freedom)


def test_edges_of_students_t() -> None:
    assert student_p(0.0, 5) == 1.0 and student_quantile(0.0, 5) == 0.0
    assert student_p(math.inf, 5) == student_p(-math.inf, 5) == 0.0
    # One degree of freedom: P(|T| > t) = 2/pi · atan(1/t), also beyond the square root of the largest float.
    assert student_p(1e200, 1) == pytest.approx(2 / math.pi * 1e-200, rel=PRECISION)
    assert student_quantile(math.nextafter(1.0, 0.0), 1) == pytest.approx(2 / math.pi / 2**-53, rel=PRECISION)


def test_the_quantile_is_the_inverse_of_the_probability() -> None:
    draw = random.Random(3)
    for _ in range(COUNT):
        level, freedom = draw.uniform(0.5, 0.9999), 10 ** draw.uniform(-0.5, 6)
        assert student_p(student_quantile(level, freedom), freedom) == pytest.approx(1 - level, rel=PRECISION)


def test_gamma_quantiles_are_scipys() -> None:
    draw = random.Random(4)
    for _ in range(COUNT):
        shape, level = draw.choice([draw.randint(1, 20), draw.randint(1, 10**5)]), levels(draw)
        expected = stats.gamma.isf(1 - level, shape) if level > 0.5 else special.gammaincinv(shape, level)
        assert gamma_quantile(shape, level) == pytest.approx(float(expected), rel=PRECISION), (shape, level)


def test_kendalls_tau_is_scipys() -> None:
    draw = random.Random(5)
    for _ in range(COUNT):
        count, spread, drift = draw.randint(6, 60), draw.choice([3, 50, 10**6]), draw.choice([0, 0.1, 3, -(10**7)])
        values = [draw.randint(0, spread) + drift * place for place in range(count)]
        if len(set(values)) < 2:
            continue
        expected = stats.kendalltau(np.arange(count), values)
        assert kendall_tau(values) == pytest.approx((expected.statistic, expected.pvalue), rel=PRECISION), values
