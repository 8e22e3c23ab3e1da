"""Energy from samples: exact for any start, wrap point and jitter, never negative, never invented."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerprof.sources.series import (
    CounterSample,
    PowerInterval,
    PowerSample,
    counter_energy,
    counter_units,
    in_window,
    interval_energy,
    power_energy,
)


@settings(max_examples=300, deadline=None)
@given(range_uj=st.integers(1, 1 << 40), start=st.integers(0), steps=st.lists(st.integers(0), min_size=1, max_size=20))
def test_units_are_exact_for_any_start_and_single_wraps(range_uj: int, start: int, steps: list[int]) -> None:
    modulus = range_uj + 1
    steps = [step % modulus for step in steps]  # at most one wrap between two samples
    values = [start % modulus]
    for step in steps:
        values.append((values[-1] + step) % modulus)
    assert counter_units(values, modulus) == sum(steps)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_energy_is_exact_to_one_unit_under_jitter(data: st.DataObject) -> None:
    modulus = data.draw(st.integers(1000, 1 << 38)) + 1
    count = data.draw(st.integers(2, 12))
    jitter = st.floats(-0.04, 0.04)
    times = [float(i) + data.draw(jitter) for i in range(count)]
    # Below 5 kW at 1 µJ a unit, so that no sample looks like a reset.
    steps = [data.draw(st.integers(0, min(modulus - 1, 2_000_000_000))) for _ in range(count - 1)]
    values = [data.draw(st.integers(0, modulus - 1))]
    for step in steps:
        values.append((values[-1] + step) % modulus)
    samples = [CounterSample(t, v) for t, v in zip(times, values, strict=True)]
    energy = counter_energy(samples, 0.0, count - 1.0, joules_per_unit=1e-6, modulus=modulus)
    assert energy.joules is not None
    assert energy.joules >= 0
    assert abs(energy.joules - sum(steps) * 1e-6) <= 1e-6
    assert in_window(energy, 0.0, count - 1.0)[0] == energy.joules


def test_unknown_wrap_point_drops_every_sample_and_says_so() -> None:
    samples = [CounterSample(float(t), None, "no_range") for t in range(3)]
    energy = counter_energy(samples, 0.0, 2.0, joules_per_unit=1e-6, modulus=None)
    assert energy.joules is None
    assert energy.dropped == 3
    assert "wrap point cannot be read" in energy.notes[0]


def test_one_unreadable_sample_is_dropped_and_the_rest_counts() -> None:
    samples = [CounterSample(0.0, 90), CounterSample(1.0, None, "unreadable"), CounterSample(2.0, 20)]
    energy = counter_energy(samples, 0.0, 2.0, joules_per_unit=1.0, modulus=100)
    assert energy.joules == 30
    assert energy.dropped == 1
    assert energy.notes == ("1 of 3 samples could not be read and were dropped",)


def test_an_unplugged_domain_gives_no_joules_even_if_it_comes_back() -> None:
    samples = [CounterSample(0.0, 10), CounterSample(1.0, 20), CounterSample(2.0, None, "gone"), CounterSample(3.0, 5)]
    energy = counter_energy(samples, 0.0, 3.0, joules_per_unit=1.0, modulus=100)
    assert energy.joules is None
    assert energy.notes == ("went away 2.0 s into the window: no joules are given for it",)


def test_a_window_before_the_domain_went_away_is_untouched() -> None:
    samples = [CounterSample(0.0, 10), CounterSample(1.0, 20), CounterSample(2.0, None, "gone")]
    assert counter_energy(samples, 0.0, 1.0, joules_per_unit=1.0, modulus=100).joules == 10


def test_a_step_back_without_a_wrap_point_is_no_energy() -> None:
    energy = counter_energy([CounterSample(0.0, 9), CounterSample(1.0, 3)], 0.0, 1.0, joules_per_unit=1.0, modulus=None)
    assert energy.joules is None
    assert energy.dropped == 1


def test_a_counter_above_its_own_range_is_not_believed() -> None:
    assert counter_units([150, 20], 100) is None


def test_a_reset_counter_is_pointed_out() -> None:
    # 262 kJ in a second: the "wrap" of a counter that began anew.
    energy = counter_energy(
        [CounterSample(0.0, 5_000_000), CounterSample(1.0, 0)], 0.0, 1.0, joules_per_unit=1e-6, modulus=262_143_328_851
    )
    assert any("was reset" in note for note in energy.notes)


def test_long_gaps_between_samples_may_hide_a_wrap() -> None:
    energy = counter_energy(
        [CounterSample(0.0, 0), CounterSample(100.0, 5)], 0.0, 100.0, joules_per_unit=1.0, modulus=1000, max_step_s=30.0
    )
    assert energy.notes == ("100 s without a sample: the counter may have wrapped unseen",)


@settings(max_examples=100, deadline=None)
@given(watts=st.floats(0.1, 1000), times=st.lists(st.floats(0.01, 5), min_size=1, max_size=20))
def test_constant_power_is_power_times_time(watts: float, times: list[float]) -> None:
    moments = [0.0]
    for step in times:
        moments.append(moments[-1] + step)
    energy = power_energy([PowerSample(t, watts) for t in moments], 0.0, moments[-1])
    assert energy.joules is not None
    assert math.isclose(energy.joules, watts * moments[-1], rel_tol=1e-12)


def test_power_is_integrated_by_trapezoids() -> None:
    samples = [PowerSample(0.0, 10.0), PowerSample(2.0, 20.0), PowerSample(3.0, 0.0)]
    assert power_energy(samples, 0.0, 3.0).joules == 30.0 + 10.0


def test_gaps_and_missing_readings_are_reported() -> None:
    samples = [PowerSample(0.0, 10.0), PowerSample(1.0, None), PowerSample(8.0, 10.0)]
    energy = power_energy(samples, 0.0, 8.0, max_gap_s=3.0)
    assert energy.joules == 80.0
    assert energy.dropped == 1
    assert energy.notes == (
        "1 of 3 samples had no reading and were dropped",
        "1 gap of up to 8.0 s between samples, bridged in a straight line",
    )


def test_samples_that_cover_only_part_are_stretched_aloud() -> None:
    energy = power_energy([PowerSample(t / 10, 50.0) for t in range(0, 81)], 0.0, 10.0)
    assert in_window(energy, 0.0, 10.0) == (pytest.approx(500.0), pytest.approx(50.0))
    assert energy.notes == ("covers 8.0 s and its mean power stands for the window of 10.0 s",)


def test_samples_that_cover_less_than_half_give_nothing() -> None:
    energy = power_energy([PowerSample(t / 10, 50.0) for t in range(0, 41)], 0.0, 10.0)
    assert energy.joules is None
    assert energy.notes == ("covers 4.0 s, less than half of the window of 10.0 s",)


def test_intervals_are_never_split() -> None:
    intervals = [PowerInterval(float(t), t + 1.0, 10.0 * (t + 1)) for t in range(5)]
    energy = interval_energy(intervals, 0.9, 3.1)
    assert (energy.start_s, energy.end_s) == (1.0, 3.0)
    assert energy.joules == 50.0
    assert interval_energy(intervals, 7.0, 9.0).joules is None
