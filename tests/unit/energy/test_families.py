# SPDX-License-Identifier: Apache-2.0
"""Kinds of CPU by name, the predictions from published results, and the intervals of differences and ratios."""

from __future__ import annotations

import math
import re
from statistics import fmean, median, stdev

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.energy import families
from powerprof.energy import results as predictions
from powerprof.energy.cpu_kinds import find_kind, identify_kind
from powerprof.energy.families import delivered_excess, delivered_ratio, model_kind, published_results, shipped_models
from powerprof.energy.model import choose_model, estimate, estimate_active_share
from powerprof.energy.models_file import CpuIdentity
from powerprof.energy.results import (
    PowerResult,
    compute_deviations,
    parse_results,
    predict_known_kind,
    predict_new_kind,
)
from powerprof.energy.uncertainty import bound_over_range, bound_ratio, find_corners
from powerprof.statistics.distributions import student_quantile
from powerprof.system.errors import UsageError

SHIPPED = shipped_models()
MILAN = CpuIdentity("AuthenticAMD", 25, 1, 1, "AMD EPYC-Milan Processor")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("EPYC 7763", "7763"),
        ("amd epyc 7763 64-core processor", "7763"),
        ("7763", "7763"),
        ("AMD EPYC 9654P 96-Core Processor", "9654P"),
        ("Xeon E5-2699 v4", "E5-2699v4"),
        ("Intel(R) Xeon(R) CPU E5-2699 v4 @ 2.20GHz", "E5-2699v4"),
        ("Intel(R) Xeon(R) CPU E5-2660 0 @ 2.20GHz", "E5-2660"),
        ("Intel(R) Xeon(R) Platinum 8280 CPU @ 2.70GHz", "8280"),
        ("INTEL(R) XEON(R) PLATINUM 8592+", "8592+"),
        ("Intel(R) Xeon(R) E-2288G CPU @ 3.70GHz", "E-2288G"),
        ("Intel(R) Core(TM) i5-4570 CPU @ 3.20GHz", "i5-4570"),
        ("Intel(R) Core(TM) Ultra 7 255H", "255H"),
        ("Intel(R) Xeon(R) 6787P", "6787P"),
        ("Ampere Altra Max M128-30", "M128-30"),
    ],
)
def test_a_name_as_it_is_written(text: str, name: str) -> None:
    assert find_kind(text).name == name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("EPYC 7764", "EPYC 7763"),
        ("EPYC 9354", "EPYC 9"),
        ("Xeon E5-2699 v5", "Xeon E5-2699v"),
        ("Xeon 7763", "write the CPU's number|near are Xeon"),
        ("EPYC 8280", "near are EPYC|write"),
        ("Milan", "near are EPYC 7763"),
        ("", "write the CPU's number"),
        ("EPYC", "near are EPYC"),
        ("\x1b[31mEPYC\n7", "write|near"),
        ("7" * 100_000, "write|near"),
        ("7763:255", "256"),
        ("7763:", "256"),
        ("7763:-1", "256"),
        ("7763:\u0662\u0665\u0666", "256"),
        ("7763:256:256", "write|near"),
    ],
)
def test_an_unknown_name_gets_similar_names(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_kind(text)
    assert caught.value.hint is not None
    assert re.search(said, caught.value.hint)
    assert caught.value.message.startswith('--meter "model:')
    assert len(caught.value.message) < 250
    assert caught.value.message.isprintable()
    assert caught.value.hint.isprintable()


@pytest.mark.parametrize(
    "name",
    [
        None,
        "",
        "AMD EPYC",
        "AMD EPYC-Milan Processor",
        "Intel(R) Xeon(R) Processor",
        "Intel Xeon Processor (Skylake, IBRS)",
    ],
)
def test_a_hidden_name_identifies_no_kind(name: str | None) -> None:
    assert identify_kind(CpuIdentity("AuthenticAMD", 25, 1, 1, name)) is None


def test_a_host_that_shows_its_name_needs_no_option() -> None:
    shown = CpuIdentity("AuthenticAMD", 25, 1, 1, "AMD EPYC 7763 64-Core Processor")
    assert choose_model(SHIPPED, shown).title == "EPYC 7763 (AMD EPYC Milan)"
    # A number that another generation has is somebody else's.
    assert choose_model(SHIPPED, CpuIdentity("AuthenticAMD", 25, 17, 1, shown.name)).title == "AMD EPYC Genoa"


def test_the_name_and_the_size_narrow_the_interval() -> None:
    def fold(cpu_model: str | None, vcpu: str | None = "thread") -> float:
        chosen = choose_model(SHIPPED, MILAN, smt=False, cpu_model=cpu_model, vcpu=vcpu)  # type: ignore[arg-type]
        reading = estimate(chosen, 2, 1.0, 0.0, [])
        assert reading.low_watts and reading.watts and reading.high_watts
        assert reading.low_watts < reading.watts < reading.high_watts
        return reading.high_watts / reading.low_watts

    assert fold("EPYC 7763:128") < fold("EPYC 7763") < 6
    assert fold("EPYC 7763", None) == pytest.approx(2 * fold("EPYC 7763"), rel=0.01)
    assert fold(None) < 25


def test_a_core_is_as_many_threads() -> None:
    thread, core = (
        estimate(choose_model(SHIPPED, MILAN, smt=False, cpu_model="EPYC 7763", vcpu=vcpu), 2, 1.0, 30.0, [])
        for vcpu in ("thread", "core")
    )
    for end in ("watts", "low_watts", "high_watts"):
        assert getattr(core, end) == pytest.approx(2 * getattr(thread, end))
    # One thread a core: nothing to tell apart.
    altra = choose_model(SHIPPED, CpuIdentity("0x41", None, 0xD0C, 1), cpu_model="Altra Q80-30", vcpu="core")
    assert altra.scale == 1.0


def test_a_name_that_contradicts_the_host_is_doubted() -> None:
    chosen = choose_model(SHIPPED, CpuIdentity("GenuineIntel", 6, 85, 4), cpu_model="EPYC 7763")
    assert chosen.doubts[0].startswith("this host shows a CPU of Intel Skylake")


UNNAMED_MILAN = CpuIdentity("AuthenticAMD", 25, 1, 1)
SPAN = choose_model(shipped_models(), UNNAMED_MILAN, cpu_model="EPYC 7763").span(2)


def test_a_ratio_is_known_better_than_the_watts() -> None:
    a, b = (SPAN.idle_watts + SPAN.slope_watts * share for share in (0.05, 0.2))
    found = bound_ratio(a, b, SPAN)
    assert found is not None
    low, high = found
    assert low < b / a < high
    watts = [bound_over_range(SPAN, lambda idle, slope, share=share: idle + slope * share) for share in (0.05, 0.2)]
    apart = (watts[1][1] / watts[0][0]) / (watts[1][0] / watts[0][1])
    # By the ends of both for themselves it would lie within a factor of ten; by one model for both within two.
    assert apart > 10
    assert high / low < 1.6


@given(low=st.floats(1e-6, 1e6), factor=st.floats(1, 1e6))
def test_any_interval_leaves_corners(low: float, factor: float) -> None:
    span = msgspec.structs.replace(SPAN, odds_low=low, odds_high=low * factor)
    found = find_corners(span)
    assert found
    assert all(math.isfinite(value) for pair in found for value in pair)


def test_the_share_above_idle_has_one_model_too() -> None:
    chosen = choose_model(shipped_models(), UNNAMED_MILAN, cpu_model="EPYC 7763")
    typical, low, high = estimate_active_share(chosen, 20.0)
    assert low < typical < high
    model = chosen.model
    assert model.odds_range is not None
    assert (low, high) == (
        pytest.approx(0.2 / (0.2 + model.odds_range[1]), rel=0.01),
        pytest.approx(0.2 / (0.2 + model.odds_range[0]), rel=0.01),
    )
    assert find_kind("7763").model().idle_watts == model.idle_watts


RESULTS = """# comment
[AMD Odd]
a1 24 2: 50/310 61.5/300
b2 16 1: 40/170
c3 64 2: 90/700 95/640 88.5/655
[Intel Odd]
d4 8 2: 30/90
"""


def odd_results() -> dict[str, list[PowerResult]]:
    return parse_results(RESULTS, "results.txt")


def test_a_line_of_results_counts_logical_cpus() -> None:
    odd = odd_results()
    assert odd["AMD Odd"][:3] == [
        PowerResult("a1", 48, 50.0, 310.0, 2),
        PowerResult("a1", 48, 61.5, 300.0, 2),
        PowerResult("b2", 16, 40.0, 170.0, 1),
    ]
    assert odd["Intel Odd"] == [PowerResult("d4", 16, 30.0, 90.0, 2)]
    first = odd["AMD Odd"][0]
    assert first.per_cpu("idle") == pytest.approx(50 / 48)
    assert first.per_cpu("full") == pytest.approx(310 / 48)
    assert first.per_cpu("slope") == pytest.approx(260 / 48)
    assert first.per_cpu("odds") == pytest.approx(50 / 260)


KINDS = {
    "idle": [[50 / 48, 61.5 / 48], [40 / 16], [90 / 128, 95 / 128, 88.5 / 128]],
    "odds": [[50 / 260, 61.5 / 238.5], [40 / 130], [90 / 610, 95 / 545, 88.5 / 566.5]],
}


@pytest.mark.parametrize("what", KINDS)
def test_predictions_pool_the_variances_by_hand(what: str) -> None:
    known = compute_deviations(odd_results().values())
    logs = [[math.log(value) for value in kind] for kind in KINDS[what]]
    means = [fmean(kind) for kind in logs]
    assert known.between[what] == pytest.approx(median([stdev(means)]))
    squares = sum((x - m) ** 2 for kind, m in zip(logs, means, strict=True) for x in kind)
    # Six results of three kinds, and one of a fourth kind: three degrees of freedom.
    assert known.within[what] == pytest.approx(math.sqrt(squares / 3))
    results, all_logs = odd_results()["AMD Odd"], [x for kind in logs for x in kind]
    spread = predict_new_kind(results, what, known)
    freedom = 6 + 3 - 1
    pooled = (6 * known.between[what] ** 2 + sum((m - fmean(means)) ** 2 for m in means)) / freedom
    half = student_quantile(0.95, freedom) * math.sqrt(pooled * (1 + 1 / 3) + known.within[what] ** 2)
    assert spread.typical == pytest.approx(math.exp(fmean(all_logs)))
    assert spread.low == pytest.approx(math.exp(fmean(all_logs) - half))
    assert spread.high == pytest.approx(math.exp(fmean(all_logs) + half))
    same = predict_known_kind(results[3:], what, known)
    freedom = 4 + 3 - 1
    pooled = (4 * known.within[what] ** 2 + sum((x - means[2]) ** 2 for x in logs[2])) / freedom
    half = student_quantile(0.95, freedom) * math.sqrt(pooled * (1 + 1 / 3))
    assert (same.typical, same.low) == (pytest.approx(math.exp(means[2])), pytest.approx(math.exp(means[2] - half)))
    assert same.high == pytest.approx(math.exp(means[2] + half))


def test_an_interval_holds_the_middle_nine_tenths_of_the_results() -> None:
    """One result far above and one far below 18 equal ones: the interval ends at their 5 % and 95 % quantiles."""
    logs = [0.0] * 18 + [-3.0, 4.0]
    spread = predictions._widen(logs, 0.01)
    # Type 7: position 0.05 · 19 = 0.95 between the first and second value, and 18.05 between the last two.
    assert spread.low == pytest.approx(math.exp(-3.0 * 0.05))
    assert spread.high == pytest.approx(math.exp(4.0 * 0.05))
    assert predictions._find_quantile([1.0, 2.0, 4.0, 8.0, 16.0], 0.3) == pytest.approx(2.4)
    assert predictions._find_quantile([7.0], 0.95) == 7.0
    wide = predictions._widen([1.0, 2.0], 5.0)
    assert (wide.low, wide.high) == (pytest.approx(math.exp(-3.5)), pytest.approx(math.exp(6.5)))


def test_delivered_servers_set_the_largest_ratios() -> None:
    delivered, results = families._load_families().delivered, published_results()
    assert len(delivered) > 1
    typical = {name: math.exp(fmean(math.log(r.idle_watts / r.cpus) for r in results[name])) for name in results}
    ratios = [server.idle_watts / server.cpus / typical[server.family] for server in delivered]
    assert delivered_ratio.__wrapped__() == pytest.approx(max(ratios)) and min(ratios) < max(ratios)
    every = [r for generation in results.values() for r in generation]
    excess = [
        server.idle_watts / math.exp(fmean(math.log(r.idle_watts) for r in every if (r.cpu, r.cpus) == server.beside))
        for server in delivered
    ]
    assert delivered_excess.__wrapped__() == pytest.approx(max(excess)) and min(excess) < max(excess)


def test_the_generic_model_has_the_widest_intervals_and_median_watts() -> None:
    *models, _ = shipped_models()
    generic = families._model_unknown_cpu(models)
    assert generic.idle_watts == median(m.idle_watts for m in models)
    assert generic.full_watts == median(m.full_watts for m in models)
    for name in ("idle_range_watts", "full_range_watts", "slope_range_watts", "odds_range"):
        ranges = [getattr(m, name) for m in models]
        assert getattr(generic, name) == (min(low for low, _ in ranges), max(high for _, high in ranges)), name
        assert all(low < high for low, high in ranges)


def test_the_model_of_a_kind_allows_for_tuning_on_the_upper_side() -> None:
    results, known = published_results()["AMD EPYC Milan"], families.published_deviations()
    kind = [r for r in results if r.cpu == "7763"]
    model, idle = model_kind("odd", kind), predict_known_kind(kind, "idle", known)
    slope = predict_known_kind(kind, "slope", known)
    assert (model.idle_watts, model.idle_range_watts[0]) == (pytest.approx(idle.typical), pytest.approx(idle.low))
    doubt = math.hypot(math.log(idle.high / idle.typical), math.log(delivered_excess()))
    assert model.idle_range_watts[1] == pytest.approx(idle.typical * math.exp(doubt))
    assert model.full_watts == pytest.approx(idle.typical + slope.typical)
    assert model.slope_range_watts == pytest.approx((slope.low, slope.high))
    assert (model.results_count, model.threads_per_core) == (len(kind), 2)
