# SPDX-License-Identifier: Apache-2.0
"""Judged metrics, claims and functions: by hand and by their laws."""

from __future__ import annotations

import math
import random
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from powerprof.attribution.profile import FunctionShare
from powerprof.experiment.claims import (
    answer_for,
    claim_of,
    describe_direction,
    find_answer_metrics,
    is_worse,
    percent_base,
)
from powerprof.experiment.metrics import Compared
from powerprof.experiment.records import Arm, Difference, Metric, Range, Ratio, Side
from powerprof.experiment.sweep_functions import (
    FunctionWindow,
    SampledFunction,
    build_function_window,
    compare_sweep_functions,
    mean_shares,
)
from powerprof.experiment.verdict import (
    SampledWindow,
    compare_functions,
    control_from_blocks,
    control_from_run,
    count_missing_pairs,
    half_width_percent,
    judge_metrics,
    judge_saved,
)
from powerprof.model.records import Figures, Kind
from powerprof.statistics.pairs import pool_noise
from powerprof.statistics.verdicts import Verdict, compare_pairs, count_deciding_pairs

OTHER: dict[Verdict, Verdict] = {"b_lower": "b_higher", "b_higher": "b_lower", "inconclusive": "inconclusive"}
VALUES = st.lists(st.floats(0.5, 90.0), min_size=4, max_size=4, unique=True)


def figures(values: list[float | None], name: str = "wakeups_per_query", kind: Kind = "measured") -> Figures:
    return Figures(name=name, unit="1", kind=kind, values=values, source="model" if kind == "estimated" else None)


def metric(
    mean: float = 8.0,
    ends: Range | None = (-3.0, 5.0),
    *,
    verdict: Verdict = "inconclusive",
    name: str = "joules_per_query",
    own: Range | None = (7.0, 9.0),
    ratio: Range | None = None,
    **of_difference: Any,
) -> Metric:
    """A metric whose A, B, difference and interval are unequal; the percentage is of A."""
    return Metric(
        name=name,
        unit="J",
        kind="measured",
        a=Side(mean=mean, ci95=own, values=[mean - 1, mean + 1, mean, mean, mean]),
        b=Side(mean=mean + 1, ci95=None, values=[mean + 1.5, mean + 0.5, mean + 1, mean + 1, mean + 1]),
        difference=Difference(b_minus_a=1.0, ci95=ends, percent=100 / mean if mean else None, **of_difference),
        ratio=None if ratio is None else Ratio(b_over_a=1 + 1 / mean, ci95=ratio),
        verdict=verdict,
        minimum_detectable_percent=61.0,
    )


@given(a=VALUES, b=VALUES, other=VALUES, scale=st.floats(0.1, 40.0))
@settings(max_examples=25, deadline=None)
def test_a_comparison_obeys_its_laws(a: list[float], b: list[float], other: list[float], scale: float) -> None:
    def judged(left: list[float], right: list[float], *, paired: bool = True) -> Metric:
        rows = [
            Compared(figures([*left, 3.0, None]), figures([*right, None, 4.0]), 0.0),
            Compared(figures([*other], "latency_p50_ms"), figures([*other[::-1]], "latency_p50_ms"), 0.0),
        ]
        return judge_metrics(rows, "wakeups_per_query", 1, paired=paired)[0]

    there, back = judged(a, b), judged(b, a)
    assert (there.a.mean, there.b.mean) == (pytest.approx(fmean(a)), pytest.approx(fmean(b)))
    assert there.a.values == [*a, 3.0, None] and there.b.values == [*b, None, 4.0]
    assert (back.a.ci95, back.b.ci95) == (there.b.ci95, there.a.ci95)
    assert (back.verdict, back.difference.b_minus_a) == (
        OTHER[there.verdict],
        pytest.approx(-(there.difference.b_minus_a or 0.0)),
    )
    assert back.hint == (None if there.hint is None else OTHER[there.hint])
    if there.ratio is not None and back.ratio is not None:
        assert there.ratio.b_over_a * back.ratio.b_over_a == pytest.approx(1.0)
    for each in (there, back):
        ends, mean = each.difference.ci95, each.difference.b_minus_a
        if ends is None:
            assert (each.verdict, each.ratio and each.ratio.ci95) == ("inconclusive", None)
            continue
        assert mean is not None and ends[0] <= mean <= ends[1]
        assert each.a.ci95 is None or ends[0] >= -each.a.ci95[1]
        assert each.difference.less_than in (None, max(abs(end) for end in ends))
        assert each.verdict == "inconclusive" or (each.verdict == "b_lower") == (ends[1] < 0)
    scaled = judged([scale * x for x in a], [scale * x for x in b])
    assert scaled.difference.percent == pytest.approx(there.difference.percent)
    unpaired = judged(a, b, paired=False)
    assert unpaired.a.mean == pytest.approx(fmean([*a, 3.0])) and unpaired.b.mean == pytest.approx(fmean([*b, 4.0]))


@pytest.mark.parametrize(("unit", "mirrored"), [("J", False), ("%", False), ("%", True)])
def test_a_difference_ends_where_b_is_impossible(unit: str, mirrored: bool) -> None:
    a, b = [4.0, 6.0, 5.0, 5.5], [0.0, 100.0, 40.0, 1.0]
    if mirrored:
        a, b = ([100 - value for value in values] for values in (a, b))
    plain = compare_pairs(a, b, seed=1, step=0.0).difference_interval
    row = Compared(*(replace(figures([*values]), unit=unit) for values in (a, b)), 0.0)
    found = judge_metrics([row], row.a.name, 1)[0]
    own, ends = found.a.ci95, found.difference.ci95
    assert plain is not None and own is not None and ends is not None
    assert plain.low < -own[1] or mirrored
    high = plain.high if unit == "J" else 100 - own[0]
    assert ends == (max(plain.low, -own[1]), min(plain.high, high))


def test_a_metric_holds_the_figures_of_its_pairs() -> None:
    a, b = [2.3, 2.9, 2.1, 2.6], [3.4, 3.1, 3.9, 3.3]
    rows = [Compared(figures([*a]), figures([*b]), 0.01), Compared(figures([*b], "x_ms"), figures([*a], "x_ms"), 0.01)]
    found = judge_metrics(rows, "wakeups_per_query", 1)[0]
    expected = compare_pairs(a, b, seed=1, step=0.01, noise=pool_noise([(a, b), (b, a)]))
    assert expected.ratio_interval and expected.difference_interval and expected.a_interval and expected.b_interval
    for ends, interval in (
        (found.a.ci95, expected.a_interval),
        (found.b.ci95, expected.b_interval),
        (found.difference.ci95, expected.difference_interval),
        (found.ratio and found.ratio.ci95, expected.ratio_interval),
    ):
        assert ends == (interval.low, interval.high)
    assert found.minimum_detectable_percent == expected.minimum_detectable_percent
    assert (found.difference.percent, found.difference.sampling_ci95) == (expected.percent, None)


def test_an_incomplete_pair_is_in_no_interval() -> None:
    """Student's interval of A begins below 0 and bends towards it, around the mean of the complete pairs."""
    a, b = [0.4, 2.9, 0.9, 0.7], [1.4, 1.9, 1.1, 1.3]
    whole, more = (
        judge_metrics([Compared(figures([*a, *late]), figures([*b, *(None for _ in late)]))], "wakeups_per_query", 1)[0]
        for late in ([], [50.0])
    )
    assert whole.a.mean == more.a.mean and whole.a.ci95 == more.a.ci95
    assert more.a.ci95 is not None and 0 < more.a.ci95[0] < fmean(a) < more.a.ci95[1] < 50


def test_a_skewed_tail_does_not_move_the_end_at_the_limit() -> None:
    """The lognormal interval ends at 270: half of it from the mean, on logarithms, would end at 6e56."""
    values: list[float | None] = [0.1, 2.9, 0.2, 0.1]
    ends = judge_metrics([Compared(figures(values), figures([1.4, 1.9, 1.1, 1.3]))], "wakeups_per_query", 1)[0].a.ci95
    assert ends is not None and 0 < ends[0] < 0.1 and 200 < ends[1] < 1000


def test_the_model_widens_the_interval_of_an_estimate_to_both_sides() -> None:
    a, b = [10.1, 9.8, 10.3, 9.9, 10.0], [10.2, 9.9, 10.0, 10.1, 10.3]
    row = Compared(figures([*a], kind="estimated"), figures([*b], kind="estimated"))
    low = Compared(figures([*a], kind="estimated"), figures([x - 1 for x in b], kind="estimated"))
    high = Compared(figures([*a], kind="estimated"), figures([x + 3 for x in b], kind="estimated"))
    plain = judge_metrics([row], "wakeups_per_query", 1)[0]
    one, other = (judge_metrics([each], "wakeups_per_query", 1)[0] for each in (low, high))
    wide = judge_metrics([row], "wakeups_per_query", 1, by_model=[[low], [high]])[0]
    assert plain.difference.ci95 and one.difference.ci95 and other.difference.ci95 and wide.difference.ci95
    assert wide.difference.sampling_ci95 == plain.difference.ci95
    # The other models are judged with the noise of this report's rows, so the ends are about those.
    assert wide.difference.ci95 == pytest.approx((one.difference.ci95[0], other.difference.ci95[1]), rel=0.05)
    assert wide.ratio and wide.ratio.ci95 and plain.ratio and plain.ratio.ci95
    assert wide.ratio.ci95[0] < plain.ratio.ci95[0] and plain.ratio.ci95[1] < wide.ratio.ci95[1]
    further = max(
        plain.difference.ci95[0] - wide.difference.ci95[0], wide.difference.ci95[1] - plain.difference.ci95[1]
    )
    assert wide.minimum_detectable_percent == pytest.approx(
        (plain.minimum_detectable_percent or 0.0) + 100 * further / fmean(a)
    )
    assert (wide.verdict, plain.difference.percent) == ("inconclusive", wide.difference.percent)


def test_saved_metrics_are_compared_by_name_kind_and_source() -> None:
    a = [figures([1.0, 1.1, 1.2]), figures([4.0, 4.1], "only_a"), figures([2.0, 2.1, 2.2], "watts", "estimated")]
    b = [figures([2.0, 2.2, 2.1], "watts"), figures([3.0, 3.3, 3.1]), figures([4.0], "only_b")]
    (found,) = judge_saved(a, b, "wakeups_per_query", 1, paired=False)
    assert (found.name, found.a.mean, found.b.mean) == ("wakeups_per_query", pytest.approx(1.1), pytest.approx(9.4 / 3))
    assert found.ratio is not None and found.ratio.ci95 is None


def test_a_control_alternates_within_its_pairs() -> None:
    """Eight windows of A and a missing one: (1, 2), (4, 3), (5, 6) and (8, 7); a drift alone would differ by 1."""
    side = Side(mean=4.5, ci95=None, values=[1.0, 2.0, None, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    found = control_from_blocks(replace(metric(), a=side), 1)
    expected = compare_pairs([1.0, 4.0, 5.0, 8.0], [2.0, 3.0, 6.0, 7.0], seed=1)
    assert found is not None and expected.difference_interval is not None
    assert (found.kind, found.pairs_count, found.sound) == ("own_blocks", 4, True)
    assert found.difference_percent == pytest.approx(0.0)
    assert found.half_width_percent == pytest.approx(100 * expected.difference_interval.half_width / 4.5)
    assert control_from_blocks(replace(metric(), a=replace(side, values=[1.0] * 5)), 1) is None


def test_a_separate_control_is_of_the_primary_metric() -> None:
    again = [
        Compared(figures([1.0, 1.1, 1.2]), figures([9.0, 9.1, 9.2])),
        Compared(figures([10.0, 10.4, None, 9.9], "watts"), figures([10.3, 10.1, 9.0, 10.2], "watts")),
    ]
    found = control_from_run(again, "watts", 1)
    assert found is not None and (found.kind, found.pairs_count, found.sound) == ("run", 3, True)
    assert found.difference_percent == pytest.approx(100 * (30.6 - 30.3) / 30.3)
    assert control_from_run(again, "c0_percent", 1) is None


def test_the_precision_is_half_of_the_interval_in_percent_of_a() -> None:
    assert half_width_percent(metric(8.0, (-3.0, 5.0))) == pytest.approx(50.0)
    assert half_width_percent(metric(-8.0, (-3.0, 5.0))) == pytest.approx(50.0)
    assert half_width_percent(metric(0.0)) is None and half_width_percent(metric(8.0, None)) is None


@pytest.mark.parametrize(
    ("one", "wanted", "done", "most", "more", "words"),
    [
        (metric(), None, 8, 20, 0, []),
        (metric(), 50.0, 8, 20, 0, ["50 %", "8 pairs"]),
        (metric(), 49.0, 8, 20, 4, []),
        (metric(), 49.0, 16, 20, 4, []),
        # (50 ÷ 20)² times as many: 6.25 × 18.
        (metric(), 20.0, 18, 20, 0, ["20 %", "18 pairs", "50 %", "112 pairs"]),
        (None, 20.0, 18, 20, 0, ["20 %", "18 pairs", "unknown"]),
        (None, 20.0, 8, 20, 4, []),
    ],
)
def test_pairs_are_added_until_the_interval_is_narrow(
    one: Metric | None, wanted: float | None, done: int, most: int, more: int, words: list[str]
) -> None:
    notes: list[str] = []
    assert count_missing_pairs(one, wanted, done, most, notes) == more
    assert len(notes) == bool(words) and all(word in notes[0] for word in words)


# Claims.


@pytest.mark.parametrize(
    ("one", "base"),
    [
        (metric(8.0, (-3.0, 5.0)), 8.0),
        (metric(8.0, (-8.1, 5.0)), None),
        (metric(8.0, (-3.0, 5.0), own=(-0.1, 17.0)), None),
        (metric(8.0, (-3.0, 5.0), own=(-0.1, 17.0), ratio=(0.6, 1.6)), 8.0),
        (metric(-8.0), None),
        (metric(8.0, None), 8.0),
    ],
)
def test_percentages_need_a_base_above_nought(one: Metric, base: float | None) -> None:
    assert percent_base(one) == base


def test_a_bound_is_no_wider_than_the_figure() -> None:
    assert claim_of(metric(8.0, (-3.0, 5.0))).bound == 5.0
    assert claim_of(metric(8.0, (-3.0, 8.1))).bound is None
    # A figure that may be 0 is bounded by ten times itself.
    near = (-0.1, 17.0)
    assert [claim_of(metric(8.0, (-3.0, high), own=near)).bound for high in (79.0, 81.0)] == [79.0, None]
    assert claim_of(metric(8.0, (-1e-9, 7e-9))).bound == 0.0
    assert claim_of(metric(8.0, (2.0, 5.0), verdict="b_higher", ratio=(1.2, 1.7))).times == (1.2, 1.7)
    assert claim_of(metric(8.0, (2.0, 5.0))).hint == "b_higher"


def test_the_deciding_pairs_are_counted_from_those_of_a() -> None:
    found = answer_for([metric(8.0, (-3.0, 5.0))], "joules_per_query")
    assert found.deciding_pairs_count == count_deciding_pairs(5, 61.0, 12.5) is not None
    for decided in (
        metric(8.0, (0.5, 5.0), verdict="b_higher"),
        metric(8.0, None),
        metric(8.0, (-3.0, 5.0), sampling_ci95=(-2.0, 4.0)),
        metric(8.0, (-8.1, 5.0)),
        replace(metric(), minimum_detectable_percent=None),
        replace(metric(), b=Side(mean=9.0, ci95=None, values=[9.0, None])),
    ):
        assert answer_for([decided], "joules_per_query").deciding_pairs_count is None
    assert (answer_for([metric()], "watts").metric, answer_for([metric()], "watts").asked) == (None, "watts")


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("joules_per_query", "less"),
        ("queries_hz", "more"),
        ("commits_hz:primary", None),
        ("residency_percent:C6", None),
        ("watts:replica-1", "less"),
    ],
)
def test_less_is_better_except_of_throughput(name: str, better: str | None) -> None:
    names = {"less": ("better", "worse"), "more": ("worse", "better"), None: ("lower", "higher")}[better]
    assert (describe_direction(name, "b_lower"), describe_direction(name, "b_higher")) == names
    drawn = [
        metric(name=name, verdict="b_lower", ends=(-5.0, -0.5)),
        metric(name=name, verdict="b_higher", ends=(0.5, 5.0)),
        metric(name=name, verdict="inconclusive", ends=(-3.0, 5.0)),
    ]
    assert [is_worse([each], name) for each in drawn] == [better == "more", better == "less", False]
    typical = [replace(drawn[2], typical=Ratio(b_over_a=ratio, ci95=(ratio - 0.1, ratio + 0.1))) for ratio in (0.5, 2)]
    assert [is_worse([each], name) for each in typical] == [better == "more", better == "less"]


def test_an_answer_rests_on_cpu_time_or_energy_and_has_a_speed_and_a_power() -> None:
    decided, unsure, hinted = ({"ends": (0.5, 5.0), "verdict": "b_higher"}, {"ends": (-3.0, 5.0)}, {"ends": (0.5, 5.0)})
    metrics = [
        metric(name="joules_per_query", **unsure),  # type: ignore[arg-type]
        metric(name="c0_ms_per_query", **decided),  # type: ignore[arg-type]
        metric(name="c0_percent", **decided),  # type: ignore[arg-type]
        metric(name="latency_p50_ms", **decided),  # type: ignore[arg-type]
        metric(name="latency_p95_ms", **unsure),  # type: ignore[arg-type]
    ]

    def names(asked: str, every: list[Metric]) -> list[str | None]:
        found = find_answer_metrics(every, asked)
        return [each and each.name for each in (found.chosen, found.ground, found.speed, found.power)]

    assert names("joules_per_query", metrics) == ["joules_per_query", "c0_ms_per_query", "latency_p50_ms", "c0_percent"]
    assert names("c0_ms_per_query", metrics)[1] == "joules_per_query"
    assert names("watts", metrics) == [None] * 4
    with_watts = [*metrics[:-1], metric(name="watts", **decided), metric(name="latency_p95_ms", **decided)]  # type: ignore[arg-type]
    assert names("joules_per_query", with_watts)[2:] == ["latency_p95_ms", "watts"]
    # p95 permits a hint, the median no verdict.
    hints = [*metrics[:3], metric(name="latency_p50_ms", **hinted), metric(name="latency_p95_ms", **hinted)]  # type: ignore[arg-type]
    assert names("joules_per_query", hints)[2] == "latency_p95_ms"
    only = [*metrics[:3], metric(name="latency_p50_ms", **hinted), metric(name="latency_p95_ms", **unsure)]  # type: ignore[arg-type]
    assert names("joules_per_query", only)[2] == "latency_p50_ms"
    timed = [*metrics, metric(name="time_to_solution_s", **unsure)]  # type: ignore[arg-type]
    assert names("joules_per_query", timed)[2] == "time_to_solution_s"


# Functions.


def share(name: str, own: int, total: int, ms: float | None = 2.5) -> FunctionShare:
    return FunctionShare(
        function=name,
        module="mariadbd",
        kernel=False,
        self_count=own,
        self_percent=0.1 * own,
        low_percent=None,
        high_percent=None,
        self_ms=None if ms is None else ms * own,
        total_count=total,
        total_percent=0.1 * total,
    )


def test_functions_are_in_percent_of_one_cpu() -> None:
    """Windows of 2.0 s in A and 1.6 s in B, one sample is 2.5 ms: 0.125 and 0.15625 % of one CPU."""
    counts: dict[Arm, list[tuple[int, int]]] = {
        "a": [(40, 90), (44, 80), (36, 85)],
        "b": [(81, 160), (79, 150), (84, 170)],
    }
    windows = [
        SampledWindow(arm, 2.0 if arm == "a" else 1.6, [share("scan", *counts[arm][n]), share("rare", 1, 2)])
        for n in range(3)
        for arm in ("a", "b")
    ]
    found = compare_functions(windows, seed=1)
    scan, rare = found.functions
    assert (scan.function, rare.function) == ("scan", "rare")
    assert scan.a_percent == pytest.approx(40 * 0.125)
    assert scan.b_percent == pytest.approx(fmean([81, 79, 84]) * 0.15625)
    assert scan.b_minus_a_percent == pytest.approx(scan.b_percent - scan.a_percent)
    assert (scan.a_total_percent, scan.b_total_percent) == pytest.approx((85 * 0.125, 160 * 0.15625))
    assert scan.ci95 is not None and scan.ci95[0] < scan.b_minus_a_percent < scan.ci95[1]
    assert (found.windows_count, found.window_s) == (3, pytest.approx(1.8))
    assert found.samples_count == 40 + 44 + 36 + 81 + 79 + 84 + 6
    turned = compare_functions([replace(w, arm="b" if w.arm == "a" else "a") for w in windows], seed=1).functions[0]
    assert (turned.a_percent, turned.b_total_percent) == (scan.b_percent, scan.a_total_percent)
    assert turned.verdict == OTHER[scan.verdict]
    assert compare_functions([], seed=1).window_s is None


def test_a_saved_window_holds_shares_of_its_samples() -> None:
    found = build_function_window([share("few", 3, 90), share("many", 50, 60), share("same", 3, 95)], 1.7)
    assert (found.window_s, found.samples_count) == (1.7, 56)
    assert [one.function for one in found.functions] == ["many", "same", "few"]
    assert (found.functions[1].percent, found.functions[1].total_percent) == pytest.approx((0.3, 9.5))


def shares(percent: float, total: float, samples: int = 400, name: str = "lock") -> FunctionWindow:
    one = SampledFunction(function=name, module="m", kernel=False, percent=percent, total_percent=total)
    return FunctionWindow(window_s=1.5, samples_count=samples, functions=[one])


def test_shares_are_means_over_values_and_rounds() -> None:
    assert mean_shares([shares(4.0, 9.0), shares(5.0, 7.0), shares(6.0, 1.0, name="scan")]) == {
        ("lock", "m", False): pytest.approx(3.0),
        ("scan", "m", False): pytest.approx(2.0),
    }
    here = (
        [shares(4.0, 9.0), shares(5.0, 8.0), shares(4.4, 8.5)],
        [shares(14.0, 29.0), shares(15.5, 31.0), shares(14.4, 28.0)],
    )
    more = (
        [shares(2.0, 3.0), shares(2.2, 4.0), shares(2.6, 3.5)],
        [shares(6.0, 9.0), shares(6.8, 9.9), shares(7.6, 8.4)],
    )
    calm = ([shares(3.0, 9.0)] * 3, [shares(3.7, 9.0)] * 3)
    (found,) = compare_sweep_functions([here, more], [calm], 1)
    assert (found.a_percent, found.b_percent) == pytest.approx((fmean([3.0, 3.6, 3.5]), fmean([10.0, 11.15, 11.0])))
    assert (found.a_total_percent, found.b_total_percent) == pytest.approx((6.0, (38.0 + 40.9 + 36.4) / 6))
    assert found.elsewhere_percent == pytest.approx(0.7)
    (none,) = compare_sweep_functions([here, more], [], 1)
    assert none.elsewhere_percent is None
    assert compare_sweep_functions([([shares(0.05, 9.0)] * 3, [shares(0.07, 9.0)] * 3)], [], 1) == []
    assert not math.isnan(found.b_minus_a_percent)


ARMS: tuple[Arm, Arm] = ("a", "b")


def share_of(name: str, own: int, total: int, *, kernel: bool = False) -> FunctionShare:
    return replace(share(name, own, total, 2.0), kernel=kernel, module="vmlinux" if kernel else "mariadbd")


def sampled_windows(draw: random.Random, faults: int) -> list[SampledWindow]:
    """Eight pairs of 2 s: `scan` is the same in both, `clear_page` is in B only."""
    found = []
    for _ in range(8):
        for arm in ARMS:
            shares = [share_of("scan", 100 + draw.randint(-8, 8), 300)]
            if arm == "b":
                shares.append(share_of("clear_page", faults + draw.randint(-3, 3), faults, kernel=True))
            found.append(SampledWindow(arm, 2.0, shares))
    return found


def test_functions_of_one_condition_only_have_grown() -> None:
    windows = sampled_windows(random.Random(3), 50)
    of_one_start = compare_functions(windows, seed=1, own_servers=True).functions
    assert {change.verdict for change in of_one_start} == {"inconclusive"}
    found = compare_functions(windows, seed=1)
    first, second = found.functions
    assert (first.function, first.kernel, first.verdict) == ("clear_page", True, "b_higher")
    # 50 samples of 2 ms in 2 s are 5 % of one CPU.
    assert first.a_percent == 0.0
    assert first.b_percent == pytest.approx(5.0, abs=0.15)
    assert first.ci95 is not None
    assert 4.5 < first.ci95[0] < first.b_minus_a_percent < first.ci95[1] < 5.5
    assert (second.function, second.verdict) == ("scan", "inconclusive")
    assert second.a_percent == pytest.approx(10.0, abs=0.5)
    assert second.a_total_percent == pytest.approx(30.0)
    assert found.windows_count == 8


def test_functions_with_too_few_samples_are_left_out() -> None:
    function_windows = [
        SampledWindow("a", 1.0, [share_of("rare", 1, 1)]),
        SampledWindow("b", 1.0, [share_of("rare", 2, 2)]),
    ]
    assert compare_functions(function_windows, seed=1).functions == []


def function_window(seed: int, **percents: float) -> FunctionWindow:
    """A window in which these functions of the server ran, each with 0.3 points of chance."""
    chance = random.Random(seed)
    return FunctionWindow(
        window_s=1.5,
        samples_count=3000,
        functions=[
            SampledFunction(
                function=name, module="mariadbd", kernel=False, percent=p + chance.gauss(0, 0.3), total_percent=2 * p
            )
            for name, p in percents.items()
        ],
    )


def function_windows(first: int, **percents: float) -> list[FunctionWindow]:
    return [function_window(first + number, **percents) for number in range(5)]


def test_a_grown_function_is_found_with_its_difference() -> None:
    few = (function_windows(0, lock=2.0, scan=30.0), function_windows(10, lock=2.0, scan=30.0))
    many = (function_windows(20, lock=5.0, scan=30.0), function_windows(30, lock=15.0, scan=30.0))
    more = (function_windows(40, lock=7.0, scan=30.0), function_windows(50, lock=21.0, scan=30.0))
    first, second = compare_sweep_functions([many, more], [few], 1)
    assert (first.function, first.verdict) == ("lock", "b_higher")
    assert (first.a_percent, first.b_percent) == pytest.approx((6.0, 18.0), abs=0.5)
    assert first.b_minus_a_percent == pytest.approx(12.0, abs=0.7)
    assert first.ci95 is not None and first.ci95[0] < 12.0 < first.ci95[1]
    assert first.elsewhere_percent == pytest.approx(0.0, abs=0.5)
    assert (first.a_total_percent, first.b_total_percent) == pytest.approx((12.0, 36.0))
    assert (second.function, second.verdict) == ("scan", "inconclusive")


def test_no_functions_without_samples_or_divergence() -> None:
    assert compare_sweep_functions([], [(function_windows(0, scan=1.0), function_windows(1, scan=1.0))], 1) == []
    assert compare_sweep_functions([([], function_windows(0, scan=1.0))], [], 1) == []
