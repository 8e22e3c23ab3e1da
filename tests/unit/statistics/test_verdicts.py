# SPDX-License-Identifier: Apache-2.0
"""Verdicts, controls, families and points in rounds: by hand and by their laws."""

from __future__ import annotations

import math
import random
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from powerprof.statistics.intervals import WIDEST_FACTOR, Interval, mean_interval, welch_error
from powerprof.statistics.pairs import INDEPENDENT, Noise, measure_difference
from powerprof.statistics.scatter import effective_freedom
from powerprof.statistics.verdicts import (
    Claim,
    Verdict,
    compare_pairs,
    compare_unpaired,
    count_deciding_pairs,
    judge_claim,
    survivors,
    verdict_of,
)


@pytest.mark.parametrize(
    ("low", "high", "equal", "verdict"),
    [
        (0.1, 0.2, 0.0, "b_higher"),
        (-0.2, -0.1, 0.0, "b_lower"),
        (-0.1, 0.1, 0.0, "inconclusive"),
        (0.0, 0.1, 0.0, "inconclusive"),
        (1.1, 1.4, 1.0, "b_higher"),
        (0.7, 0.9, 1.0, "b_lower"),
        (0.9, 1.1, 1.0, "inconclusive"),
    ],
)
def test_the_verdict_is_where_the_interval_lies(low: float, high: float, equal: float, verdict: str) -> None:
    assert verdict_of(Interval(low, high, "test"), equal) == verdict
    assert verdict_of(None) == "inconclusive"


def _noisy(mean: float, spread: float, count: int, seed: int) -> list[float]:
    generator = random.Random(seed)
    return [generator.gauss(mean, spread) for _ in range(count)]


def test_three_pairs_show_a_tenfold_effect_though_the_windows_are_noisy() -> None:
    result = compare_pairs([0.22, 0.31, 0.25], [2.1, 3.4, 2.6], seed=1)
    assert result.verdict == "b_higher"
    assert result.difference_interval is not None
    assert result.difference_interval.method == "student-log"
    assert result.difference_interval.low < result.difference < result.difference_interval.high
    below_zero = compare_pairs([-0.1, 0.2, 0.1], [0.3, 0.1, 0.2], seed=1)
    assert below_zero.difference_interval is not None
    assert below_zero.difference_interval.method == "student"


def test_the_minimum_detectable_effect_follows_the_formula() -> None:
    a, b = [10.0] * 10, [10.0, 11.0] * 5
    # s of the logarithms = log(1.1) × 0.52705, t(0.9925, 9) + t(0.8, 9) = 2.99820 + 0.88340
    expected = 100 * math.expm1((2.99820 + 0.88340) * math.log(1.1) * 0.527046 / math.sqrt(10))
    assert compare_pairs(a, b, seed=1).minimum_detectable_percent == pytest.approx(expected, rel=1e-4)
    assert compare_pairs([0.0] * 4, [1.0] * 4, seed=1).minimum_detectable_percent is None


def test_pairs_need_partners() -> None:
    with pytest.raises(ValueError, match="as many values"):
        compare_pairs([1.0, 2.0], [1.0], seed=1)


def test_rows_are_claimed_together_by_holms_steps() -> None:
    # 0.005/4, 0.005/3, 0.005/2 and 0.005: the third is too large, and what comes after it goes with it.
    assert survivors([0.0012, 0.0016, 0.0026, 0.0049]) == [True, True, False, False]
    assert survivors([0.0049]) == [True]
    assert survivors([None, 1e-9, None]) == [False, True, False]
    assert survivors([]) == []


def test_a_condition_compared_with_itself_has_few_false_verdicts() -> None:
    """Twenty rows of which each by itself errs at 5 %: at least one does in half of the comparisons. Together, 1 %."""
    generator = random.Random(11)
    false_words = unadjusted = 0
    for _ in range(200):
        shared = [generator.gauss(0, 1) for _ in range(4)]
        rows = [
            compare_pairs([100.0] * 4, [100 + one / 2 + generator.gauss(0, 0.9) for one in shared], seed=1)
            for _ in range(20)
        ]
        kept = survivors([row.p_value for row in rows])
        unadjusted += any(row.verdict != "inconclusive" for row in rows)
        false_words += any(keeps and row.verdict != "inconclusive" for keeps, row in zip(kept, rows, strict=True))
    # Binomial, 200 trials at 1 %: more than 7 come once in 400 such tests.
    assert false_words <= 7
    assert unadjusted > 50


A, B = [2.3, 2.9, 2.1, 2.6], [3.4, 3.1, 3.9, 3.3]
OTHER: dict[Verdict, Verdict] = {"b_lower": "b_higher", "b_higher": "b_lower", "inconclusive": "inconclusive"}
SIDE = st.lists(st.floats(0.5, 90.0), min_size=4, max_size=4, unique=True)


def t(level: float, freedom: float) -> float:
    return float(stats.t.ppf((1 + level) / 2, freedom))


@given(a=SIDE, b=SIDE, scale=st.floats(0.01, 900.0))
@settings(max_examples=40, deadline=None)
def test_a_result_of_pairs_obeys_its_laws(a: list[float], b: list[float], scale: float) -> None:
    noise = Noise(-0.2, 9, 0.1, 0.05)
    there, back = (compare_pairs(*sides, seed=1, step=0.0, noise=noise) for sides in ((a, b), (b, a)))
    assert (there.pairs_count, there.a_mean, there.b_mean) == (4, pytest.approx(fmean(a)), pytest.approx(fmean(b)))
    assert there.difference == pytest.approx(there.b_mean - there.a_mean)
    assert there.ratio is not None and there.percent == pytest.approx(100 * (there.ratio - 1))
    assert there.ratio == pytest.approx(fmean(b) / fmean(a))
    assert (back.difference, back.verdict) == (pytest.approx(-there.difference), OTHER[there.verdict])
    assert (back.a_interval, back.b_interval) == (there.b_interval, there.a_interval)
    ends, ratios = there.difference_interval, there.ratio_interval
    if ends is None:
        assert (there.verdict, ratios, back.difference_interval) == ("inconclusive", None, None)
        return
    assert ends.low <= there.difference <= ends.high
    if ratios is not None:
        assert ratios.high < WIDEST_FACTOR * there.ratio
        assert (ends.low, ends.high) == pytest.approx(
            (there.a_mean * (ratios.low - 1), there.a_mean * (ratios.high - 1)), rel=1e-6, abs=1e-9
        )
        turned = back.ratio_interval
        assert turned is not None and ratios.low <= there.ratio <= ratios.high
        assert (1 / turned.high, 1 / turned.low) == pytest.approx((ratios.low, ratios.high), rel=1e-6)
        scaled = compare_pairs([scale * x for x in a], [scale * x for x in b], seed=1, step=0.0, noise=noise)
        if scaled.ratio_interval is not None and scaled.difference_interval is not None:
            assert (scaled.percent, scaled.p_value) == pytest.approx((there.percent, there.p_value), rel=1e-6, abs=1e-9)
            assert (scaled.difference_interval.low, scaled.difference_interval.high) == pytest.approx(
                (scale * ends.low, scale * ends.high), rel=1e-6, abs=1e-9
            )


def test_a_result_of_pairs_holds_the_figures_of_its_test() -> None:
    noise = Noise(math.nan, 3, 0.2, 0.4)
    found, tested = compare_pairs(A, B, seed=1, step=0.01, noise=noise), measure_difference(A, B, 0.01, noise)
    ends, ratio = tested.interval, fmean(B) / fmean(A)
    assert found.ratio_interval is not None and found.p_value == tested.p_value
    assert found.ratio_interval.low == pytest.approx(min(math.exp(ends.low), ratio))
    assert found.ratio_interval.high == pytest.approx(max(math.exp(ends.high), ratio))
    # Each side has at least the typical scatter of a side, relative to its own mean: 0.4 × √(0.36 / 3).
    assert found.a_interval == mean_interval(A, seed=1, least=0.4 * math.sqrt(0.12) * fmean(A))
    assert found.b_interval == mean_interval(B, seed=1, least=0.4 * math.sqrt(0.12) * fmean(B))
    steady = ([7.0] * 4, [9.0] * 4)
    narrow, wide = (
        compare_pairs(*sides, seed=1, step=0.01, noise=noise).b_interval for sides in (steady, steady[::-1])
    )
    assert narrow is not None and wide is not None
    assert narrow.half_width == pytest.approx(wide.half_width * 9 / 7)


def test_the_detectable_difference_is_in_percent_of_a() -> None:
    a, b = [0.0, 1.7, 0.4, 0.9], [2.2, 2.9, 1.1, 3.6]
    found = compare_pairs(a, b, seed=1, step=0.01, noise=INDEPENDENT)
    error = stdev([y - x for x, y in zip(a, b, strict=True)]) / 2
    expected = 100 * (t(0.985, 3) + t(0.6, 3)) * error / fmean(a)
    assert found.minimum_detectable_percent == pytest.approx(expected)
    assert (found.ratio, found.percent) == (pytest.approx(9.8 / 3), pytest.approx(100 * 6.8 / 3))


@pytest.mark.parametrize("percent", [14.0, -14.0, 31.0, -31.0])
def test_the_deciding_number_of_pairs_detects_the_difference(percent: float) -> None:
    """Search with scipy's quantiles: five pairs detect 40 %."""

    def reach(count: int) -> float:
        return (t(0.985, count - 1) + t(0.6, count - 1)) / math.sqrt(count)

    scatter = math.log(1.4) / reach(5)
    expected = next(n for n in range(6, 51) if scatter * reach(n) <= abs(math.log(1 + percent / 100)))
    assert count_deciding_pairs(5, 40.0, percent) == expected
    assert [count_deciding_pairs(*given) for given in ((5, 40.0, 0.1), (2, 40.0, 30.0), (5, 40.0, -100.0))] == [
        None
    ] * 3


@pytest.mark.parametrize(
    ("verdict", "ends", "ratios", "widest", "claim"),
    [
        ("b_lower", (-5.0, -2.0), (0.4, 0.8), math.inf, Claim("b_lower", times=(0.4, 0.8), ends=(-5.0, -2.0))),
        ("b_lower", (-5.0, -2.0), (0.4, 1.1), math.inf, Claim("b_lower", ends=(-5.0, -2.0))),
        ("b_higher", (2.0, 5.0), (1.2, 3.0), math.inf, Claim("b_higher", times=(1.2, 3.0), ends=(2.0, 5.0))),
        ("b_higher", (2.0, 5.0), (0.0, 3.0), math.inf, Claim("b_higher", ends=(2.0, 5.0))),
        ("inconclusive", (2.0, 5.0), (1.2, 3.0), math.inf, Claim(hint="b_higher", ends=(2.0, 5.0))),
        ("inconclusive", (-5.0, -2.0), None, math.inf, Claim(hint="b_lower", ends=(-5.0, -2.0))),
        ("inconclusive", (-5.0, 2.0), None, 5.0, Claim(bound=5.0, ends=(-5.0, 2.0))),
        ("inconclusive", (-2.0, 5.0), None, 4.9, Claim(ends=(-2.0, 5.0))),
        ("b_higher", None, (1.2, 3.0), math.inf, Claim(unknown=True)),
    ],
)
def test_a_claim_is_what_the_intervals_permit(
    verdict: Verdict, ends: tuple[float, float] | None, ratios: tuple[float, float] | None, widest: float, claim: Claim
) -> None:
    assert judge_claim(verdict, ends, ratios, widest=widest) == claim


def test_runs_are_compared_beyond_their_levels() -> None:
    a, b = [5.1, 5.9, 4.7, 5.5, 6.2, 5.0, 5.3], [71.0, 64.0, 68.0, 75.0]
    found, (error, freedom) = compare_unpaired(a, b, seed=1), welch_error(a, b, 2.0)
    apart = fmean(b) - fmean(a)
    assert found.difference_interval is not None and freedom == 3
    assert (found.difference_interval.low, found.difference_interval.high) == pytest.approx(
        (apart - t(0.95, 3) * error, apart + t(0.95, 3) * error)
    )
    assert effective_freedom(a) != effective_freedom(b)
    least = min(effective_freedom(a), effective_freedom(b))
    assert found.p_value == pytest.approx(2 * stats.t.sf(apart / error, least))
    back = compare_unpaired(b, a, seed=1)
    assert (back.difference, back.p_value, back.verdict) == (-found.difference, found.p_value, OTHER[found.verdict])
    assert (found.pairs_count, found.percent) == (0, pytest.approx(100 * apart / fmean(a)))
    few = compare_unpaired(a, b[:2], seed=1)
    assert (few.difference_interval, few.p_value) == (None, None)


def test_holms_steps_are_counted_over_the_known_p_values() -> None:
    # 0.01 / 3 = 0.0033, 0.01 / 2 = 0.005 and 0.01.
    assert survivors([0.0049, None, 0.0033, 0.0099], 0.99) == [True, False, True, True]
    assert survivors([0.0051, None, 0.0033, 0.0099], 0.99) == [False, False, True, False]
    assert survivors([0.0034, 0.0034, 0.0034], 0.99) == [False] * 3
