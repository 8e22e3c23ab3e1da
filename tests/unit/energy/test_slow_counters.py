# SPDX-License-Identifier: Apache-2.0
"""Counters that are refreshed seldom, freeze, jump or appear: within one step of the truth, or refused with a note."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerprof.energy.domains import host_energy
from powerprof.energy.meters import open_meters
from powerprof.measure.counters import CounterSample, EnergySeries, choose_interval_s, counter_energy
from powerprof.model.records import EnergyReading
from tests.unit.energy.meter_trees import Tree

WATTS = 50.0
FULL_WATTS = 700.0  # a step of 5 s is 3.5 kJ, which no package draws in a fifth of a second


def metered(
    joules_at: Callable[[float], float], start_s: float, length_s: float, step_s: float = 0.2, limit_watts: float = 1e3
) -> EnergySeries:
    """A window of a counter, sampled every `step_s`."""
    count = round(length_s / step_s)
    times = [start_s + number * step_s for number in range(count)] + [start_s + length_s]
    samples = [CounterSample(when, round(joules_at(when) * 1e6)) for when in times]
    return counter_energy(
        samples, start_s, start_s + length_s, joules_per_unit=1e-6, modulus=1 << 48, limit_watts=limit_watts
    )


@settings(max_examples=150, deadline=None)
@given(
    period_s=st.floats(1.0, 5.0),
    length_s=st.floats(2.0, 60.0),
    phase_s=st.floats(0.0, 5.0),
    watts=st.floats(WATTS, FULL_WATTS),
)
def test_a_slow_counter_is_within_its_interval_or_has_no_figure(
    period_s: float, length_s: float, phase_s: float, watts: float
) -> None:
    energy = metered(lambda t: watts * period_s * ((t - phase_s) // period_s), 100.0, length_s)
    if energy.joules is None or energy.joules == 0:
        assert length_s < 4 * period_s
        assert any("or more is needed" in note for note in energy.notes) or energy.joules == 0
        return
    assert energy.watts is not None
    assert energy.edge_joules >= watts * period_s * 0.99
    error = abs(energy.watts - watts) * length_s
    assert error <= energy.edge_joules
    assert any("is refreshed every" in note for note in energy.notes)


def test_how_often_a_counter_is_looked_at() -> None:
    fast = [CounterSample(n * 0.004, n * 1000) for n in range(10)]
    slow = [CounterSample(n * 0.004, n // 8) for n in range(3)]
    assert choose_interval_s([[]]) is None
    assert choose_interval_s([slow]) == 0.2
    assert choose_interval_s([slow, fast]) == 1.0


@pytest.mark.parametrize("step_s", [0.2, 1.0])
def test_a_counter_that_freezes_gives_no_figure(step_s: float) -> None:
    energy = metered(lambda t: WATTS * min(t, 105.0), 100.0, 10.0, step_s)
    assert energy.joules is None
    assert energy.notes[-1] == "counted for 5.0 s of the window and then stood still: no figure"


def test_a_jump_is_more_than_can_be_drawn_or_lies_in_the_interval() -> None:
    def jumped(t: float) -> float:
        return WATTS * t + (300.0 if t >= 104.5 else 0.0)

    dense = metered(jumped, 100.0, 10.0, 0.2)
    assert dense.watts == pytest.approx(WATTS)
    assert dense.dropped == 1
    coarse = metered(jumped, 100.0, 10.0, 1.0)
    assert coarse.joules == pytest.approx(800.0)
    assert coarse.edge_joules == pytest.approx(300.0)
    assert any("a jump or a burst, and the interval holds both" in note for note in coarse.notes)
    stated = metered(jumped, 100.0, 10.0, 1.0, limit_watts=65 * 4.5)
    assert stated.watts == pytest.approx(WATTS)


def test_a_tiny_counter_is_not_taken_for_a_slow_one() -> None:
    energy = metered(lambda t: 0.001 * (t // 0.7), 100.0, 10.0)
    assert energy.joules == pytest.approx(0.014, abs=0.0011)
    assert not any("refreshed" in note for note in energy.notes)


def measured(
    tree: Tree, name: str, change: Callable[[], object], length_s: float = 2.0
) -> tuple[list[EnergyReading], str]:
    with open_meters(name) as meters:
        meters.sample(100.0)
        change()
        meters.sample(100.0 + length_s)
        readings = meters.readings(100.0, 100.0 + length_s)
        return readings, "\n".join(meters.notes())


def test_a_package_that_appears_makes_the_sum_unknown(tree: Tree) -> None:
    tree.zone("intel-rapl:0", "package-0", 0)

    def change() -> None:
        tree.count("intel-rapl:0", 100_000_000)
        tree.zone("intel-rapl:1", "package-1", 0)

    readings, notes = measured(tree, "rapl", change)
    assert "rapl: package-1 appeared after measuring began: no figure" in notes
    assert host_energy(readings).joules is None
    assert host_energy(readings).domains == ["package-0", "package-1"]


def test_a_platform_of_four_kilowatts_around_one_package_is_not_believed(tree: Tree) -> None:
    tree.zone("intel-rapl:0", "package-0", 0)
    tree.zone("intel-rapl:1", "psys", 0)

    def change() -> None:
        tree.count("intel-rapl:0", 200_000_000)
        tree.count("intel-rapl:1", 8_000_000_000)

    readings, notes = measured(tree, "rapl", change)
    assert "psys a step of 4,000 W is more than 1,700 W" in notes
    assert host_energy(readings).domains == ["package-0"]
    assert host_energy(readings).watts == pytest.approx(100.0)


@pytest.mark.parametrize(("length_s", "watts"), [(2.0, None), (599.0, None), (600.0, 250.0)])
def test_the_time_that_an_acpi_meter_averages_over(tree: Tree, length_s: float, watts: float | None) -> None:
    tree.write("class/hwmon/hwmon0/name", "power_meter")
    tree.write("class/hwmon/hwmon0/power1_average", 240_000_000)
    tree.write("class/hwmon/hwmon0/power1_average_interval", 300_000)
    readings, notes = measured(
        tree, "hwmon", lambda: tree.write("class/hwmon/hwmon0/power1_average", 260_000_000), length_s
    )
    assert host_energy(readings).watts == watts
    assert ("server is a mean over 300 s: a window of 600 s or more is needed" in notes) == (watts is None)
    if watts is not None:
        assert (readings[0].low_watts, readings[0].high_watts) == (pytest.approx(240.0), pytest.approx(260.0))
