# SPDX-License-Identifier: Apache-2.0
"""Kinds of CPU by name, and the intervals of differences and ratios between two loads of one model."""

from __future__ import annotations

import math
import random
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.energy.domains import EnergyRequest
from powerprof.energy.families import find_kind, identify_kind, shipped_models
from powerprof.energy.model import bound_ratio, choose_model, estimate, estimate_active_share
from powerprof.energy.models_file import CpuIdentity, bound_over_range, find_corners
from powerprof.energy.windows import WindowEnergy
from powerprof.model.records import EstimateRange
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
    assert caught.value.message.startswith("--cpu-model")
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


def test_a_name_without_an_estimate_is_refused() -> None:
    with pytest.raises(UsageError, match="no effect"):
        WindowEnergy(EnergyRequest(source="none", cpu_model="EPYC 7763"))
    with pytest.raises(UsageError, match="no effect"):
        WindowEnergy(EnergyRequest(source="none", vcpu="core"))


UNNAMED_MILAN = CpuIdentity("AuthenticAMD", 25, 1, 1)
SPAN = choose_model(shipped_models(), UNNAMED_MILAN, cpu_model="EPYC 7763").span(2)


def possible(span: EstimateRange, trials: int = 4000) -> list[tuple[float, float]]:
    """Pairs drawn at random from all that is possible."""
    rng = random.Random(7)
    assert span.odds_low is not None and span.odds_high is not None
    drawn = [
        (
            rng.uniform(span.idle_low_watts, span.idle_high_watts),
            rng.uniform(span.slope_low_watts, span.slope_high_watts),
        )
        for _ in range(trials)
    ]
    return [(idle, slope) for idle, slope in drawn if span.odds_low <= idle / slope <= span.odds_high]


@pytest.mark.parametrize(("before", "after"), [(0.0, 0.1), (0.02, 0.5), (0.9, 0.1)])
def test_the_corners_hold_every_possible_pair(before: float, after: float) -> None:
    pairs = possible(SPAN)
    assert len(pairs) > 1000
    for of in (
        lambda idle, slope: idle + slope * after,
        lambda idle, slope: slope * (after - before),
        lambda idle, slope: (idle + slope * after) / (idle + slope * before),
        # Joules of a query where B did half as much in the same time.
        lambda idle, slope: (idle + slope * after) / 50 - (idle + slope * before) / 100,
    ):
        low, high = bound_over_range(SPAN, of)
        values = [of(idle, slope) for idle, slope in pairs]
        assert low - 1e-9 <= min(values) and max(values) <= high + 1e-9
        # And no more than that: the ends are nearly reached.
        assert max(values) - min(values) > 0.85 * (high - low)


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


def test_without_an_interval_of_the_ratio_the_box_is_left() -> None:
    old = msgspec.structs.replace(SPAN, odds_low=None, odds_high=None)
    assert len(find_corners(old)) == 4
    assert len(find_corners(SPAN)) > 4


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
