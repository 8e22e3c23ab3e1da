# SPDX-License-Identifier: Apache-2.0
"""Energy from samples: exact for any start, wrap point and jitter, never negative, never invented."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from powerprof.measure.counters import CounterSample, choose_interval_s, count_steps, step_units
from powerprof.measure.energy_series import (
    EnergySeries,
    PowerInterval,
    PowerSample,
    counter_energy,
    interval_energy,
    power_energy,
    scale_to_window,
)


@settings(max_examples=300, deadline=None)
@given(range_uj=st.integers(1, 1 << 40), start=st.integers(0), steps=st.lists(st.integers(0), min_size=1, max_size=20))
def test_units_are_exact_for_any_start_and_single_wraps(range_uj: int, start: int, steps: list[int]) -> None:
    modulus = range_uj + 1
    steps = [step % modulus for step in steps]  # at most one wrap between two samples
    values = [start % modulus]
    for step in steps:
        values.append((values[-1] + step) % modulus)
    assert [step_units(a, b, modulus) for a, b in itertools.pairwise(values)] == steps


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_energy_is_exact_to_one_unit_under_jitter(data: st.DataObject) -> None:
    modulus = data.draw(st.integers(1000, 1 << 38)) + 1
    count = data.draw(st.integers(2, 12))
    jitter = st.floats(-0.004, 0.004)
    times = [float(i) + data.draw(jitter) for i in range(count)]
    # 200 to 900 W, so that no wrap looks like a reset.
    modulus += 1_000_000_000
    steps = [data.draw(st.integers(200_000_000, 900_000_000)) for _ in range(count - 1)]
    values = [data.draw(st.integers(0, modulus - 1))]
    for step in steps:
        values.append((values[-1] + step) % modulus)
    samples = [CounterSample(t, v) for t, v in zip(times, values, strict=True)]
    energy = counter_energy(samples, 0.0, count - 1.0, joules_per_unit=1e-6, modulus=modulus)
    assert energy.joules is not None
    assert energy.joules >= 0
    assert abs(energy.joules - sum(steps) * 1e-6) <= 1e-6
    assert scale_to_window(energy, 0.0, count - 1.0)[0] == energy.joules


def test_an_unknown_wrap_point_drops_every_sample_with_a_note() -> None:
    samples = [CounterSample(float(t), None, "no_range") for t in range(3)]
    energy = counter_energy(samples, 0.0, 2.0, joules_per_unit=1e-6, modulus=None)
    assert energy.joules is None
    assert energy.dropped == 3
    assert "wrap point cannot be read" in energy.notes[0]


def counted(
    values: list[int | None], *, modulus: int | None = 262_143_328_851, limit_watts: float = 1000.0, step_s: float = 1.0
) -> EnergySeries:
    """Readings of a counter in µJ, one every `step_s`."""
    samples = [CounterSample(i * step_s, v, None if v is not None else "unreadable") for i, v in enumerate(values)]
    end_s = (len(values) - 1) * step_s
    return counter_energy(samples, 0.0, end_s, joules_per_unit=1e-6, modulus=modulus, limit_watts=limit_watts)


def test_one_unreadable_sample_is_dropped_and_the_rest_counts() -> None:
    samples = [CounterSample(0.0, 90), CounterSample(1.0, None, "unreadable"), CounterSample(2.0, 20)]
    energy = counter_energy(samples, 0.0, 2.0, joules_per_unit=1.0, modulus=100)
    assert energy.joules == 30
    assert energy.dropped == 1
    assert energy.notes == ("1 of 3 samples could not be read and were dropped",)


def test_a_wrap_counts_and_a_reset_does_not() -> None:
    wrapped = counted([262_100_000_000, 262_140_000_000, 36_671_149, 76_671_149])
    assert wrapped.joules == pytest.approx(40.0 + 40.0 + 40.0, rel=1e-6)
    assert wrapped.dropped == 0
    # The same course, but the counter begins anew in the middle: 262 kW would be a wrap's.
    reset = counted([40_000_000, 80_000_000, 120_000_000, 0, 40_000_000, 80_000_000])
    assert reset.joules == pytest.approx(40.0 * 5)  # 4 s of 5 were counted, and their mean stands for the fifth
    assert reset.dropped == 1
    assert "the counter went back from 120.0 to 0.0 J, which is a reset, not a wrap" in reset.notes[0]


def test_two_dumps_in_the_wrong_order_have_no_energy() -> None:
    energy = counted([240_425_000_000, 240_422_000_000], modulus=262_143_328_851)
    assert energy.joules is None
    assert energy.dropped == 1
    assert "readings in the wrong order" in energy.notes[0]


def test_a_spike_is_dropped_and_bridged() -> None:
    energy = counted([0, 50_000_000, 99_000_000_000, 150_000_000, 200_000_000])
    assert energy.joules == pytest.approx(200.0)
    assert energy.dropped == 1
    assert "does not fit the samples around it" in energy.notes[0]


def test_impossible_power_gives_no_figure() -> None:
    assert counted([0, 99_000_000, 198_000_000], limit_watts=100.0).watts == pytest.approx(99.0)
    refused = counted([0, 120_000_000], limit_watts=100.0)
    assert refused.joules is None
    assert refused.notes[0].startswith("a step of 120 W is more than 100 W")


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_no_course_of_readings_gives_an_impossible_watt(data: st.DataObject) -> None:
    values: list[int | None] = [data.draw(st.integers(0, 1 << 36))]
    for _ in range(data.draw(st.integers(1, 15))):
        kind = data.draw(st.sampled_from(["count", "reset", "spike", "unreadable"]))
        last = next(v for v in reversed(values) if v is not None)
        value = {"count": (last + data.draw(st.integers(0, 900_000_000))) % (1 << 37), "reset": 0, "spike": 1 << 37}
        values.append(None if kind == "unreadable" else min(value[kind], (1 << 37) - 1))
    energy = counted(values, modulus=1 << 37)
    if energy.joules is not None:
        assert 0 <= (energy.watts or 0.0) <= 1000.0
    # What was dropped is said, and nothing else is.
    assert (energy.dropped > 0) <= bool(energy.notes)


def test_an_unplugged_domain_gives_no_joules_even_if_it_comes_back() -> None:
    samples = [CounterSample(0.0, 10), CounterSample(1.0, 20), CounterSample(2.0, None, "gone"), CounterSample(3.0, 5)]
    energy = counter_energy(samples, 0.0, 3.0, joules_per_unit=1.0, modulus=100)
    assert energy.joules is None
    assert energy.notes == ("went away 2.0 s into the window: no joules are given for it",)


def test_a_window_before_the_domain_went_away_is_untouched() -> None:
    samples = [CounterSample(0.0, 10), CounterSample(1.0, 20), CounterSample(2.0, None, "gone")]
    assert counter_energy(samples, 0.0, 1.0, joules_per_unit=1.0, modulus=100).joules == 10


def test_a_step_back_without_a_wrap_point_has_no_energy() -> None:
    energy = counter_energy([CounterSample(0.0, 9), CounterSample(1.0, 3)], 0.0, 1.0, joules_per_unit=1.0, modulus=None)
    assert energy.joules is None
    assert energy.dropped == 1


def test_a_value_above_the_range_is_dropped() -> None:
    assert step_units(150, 20, 100) is None


def test_gaps_and_missing_readings_are_reported() -> None:
    samples = [PowerSample(0.0, 10.0), PowerSample(1.0, None), PowerSample(8.0, 10.0)]
    energy = power_energy(samples, 0.0, 8.0, max_gap_s=3.0)
    assert energy.joules == 80.0
    assert energy.dropped == 1
    assert energy.notes == (
        "1 of 3 samples had no reading and were dropped",
        "1 gap of up to 8.0 s between samples, bridged in a straight line",
    )


def test_a_spike_in_a_log_and_negative_watts_are_dropped() -> None:
    watts = [100.0, 101.0, 178_993.0, 99.0, -40.0, 100.0, 9_000.0, 100.0]
    energy = power_energy([PowerSample(float(t), w) for t, w in enumerate(watts)], 0.0, 7.0)
    assert energy.watts == pytest.approx(100.0, abs=0.5)
    assert energy.dropped == 3
    assert energy.notes == ("3 of 8 samples are impossible (178,993 W) and were dropped",)


def test_the_begin_of_a_load_is_not_a_spike() -> None:
    watts = [5.0, 5.0, 5.0, 90.0, 95.0, 90.0, 5.0]
    energy = power_energy([PowerSample(float(t), w) for t, w in enumerate(watts)], 0.0, 6.0)
    assert energy.dropped == 0


def test_intervals_give_their_share_of_time() -> None:
    intervals = [PowerInterval(float(t), t + 1.0, 10.0 * (t + 1)) for t in range(5)]
    energy = interval_energy(intervals, 0.9, 3.1)
    assert (energy.start_s, energy.end_s) == (0.9, 3.1)
    assert energy.joules == pytest.approx(0.1 * 10 + 20 + 30 + 0.1 * 40)
    assert energy.edge_joules == pytest.approx(0.9 * 30 + 0.9 * 30)
    assert interval_energy(intervals, 7.0, 9.0).joules is None


# Samples of 1 s steps: 90, 110, 95, 105 W, then others. The numbers of joules are sums of these by hand.


def counting(*watts: float, step_s: float = 1.0, start_s: float = 0.0) -> list[CounterSample]:
    """Return the samples of a counter in µJ with this power in each step."""
    values = itertools.accumulate((round(w * step_s * 1e6) for w in watts), initial=7_000_000)
    return [CounterSample(start_s + n * step_s, value) for n, value in enumerate(values)]


def energy_of(samples: Sequence[CounterSample], start_s: float, end_s: float, **how: Any) -> EnergySeries:
    return counter_energy(samples, start_s, end_s, **{"joules_per_unit": 1e-6, "modulus": 1 << 48, **how})


def test_a_window_across_steps_takes_its_share_and_both_edges_are_uncertain() -> None:
    samples = counting(90.0, 110.0, 95.0, 105.0, 80.0, 120.0)
    energy = energy_of(samples, 0.25, 5.5)
    assert energy.joules == pytest.approx(0.75 * 90 + 110 + 95 + 105 + 80 + 0.5 * 120)
    assert (energy.start_s, energy.end_s, energy.is_count) == (0.25, 5.5, False)
    # A quarter second of a 90 W step and half a second of a 120 W one, between 80 and 120 W.
    assert energy.edge_joules == pytest.approx(0.25 * max(90 - 80, 120 - 90) + 0.5 * max(120 - 80, 0))
    exact = energy_of(samples, 1.0, 4.0)
    assert (exact.joules, exact.edge_joules, exact.is_count) == (pytest.approx(310.0), 0.0, True)
    assert energy_of(samples, 1.002, 3.998).joules == pytest.approx(310.0)
    only_one = energy_of(counting(90.0), 0.0, 0.8)
    assert (only_one.joules, only_one.edge_joules) == (pytest.approx(72.0), pytest.approx(0.2 * 90))


def test_a_jump_above_all_other_steps_is_in_the_interval() -> None:
    watts = [90.0, 110.0, 95.0, 105.0, 700.0, 80.0, 120.0]
    energy = energy_of(counting(*watts), 0.0, 7.0)
    assert energy.joules == pytest.approx(sum(watts))
    # The excess is above the largest other step.
    assert energy.edge_joules == pytest.approx(700 - 120)
    assert energy.notes == (
        "counted 700 J in 1.0 s, far more than in any other step: a jump or a burst, and the interval holds both",
    )
    assert energy_of(counting(*watts[:4], 439.0, *watts[5:]), 0.0, 7.0).edge_joules == 0.0


def test_a_slow_counter_is_known_to_its_largest_step() -> None:
    """It moves every 2 s, by 150, 250, 180 and 210 J."""
    value, samples = 7_000_000, []
    for number in range(21):
        if number and number % 5 == 0:
            value += {5: 150, 10: 250, 15: 180, 20: 210}[number] * 1_000_000
        samples.append(CounterSample(number * 0.4, value))
    energy = energy_of(samples, 0.0, 8.0)
    assert energy.notes[0] == "is refreshed every 2.0 s: its figure is known to one step, 250.0 J"
    assert energy.joules == pytest.approx((250 + 180 + 210) / 6 * 6.0)
    assert energy.edge_joules == pytest.approx(250.0)
    short = energy_of(samples, 0.0, 5.0)
    assert short.joules is None
    assert "a window of 6 s or more is needed" in short.notes[-1]


def test_the_usual_power_is_that_of_possible_steps() -> None:
    """Steps of 40 W, a spike of 350 W above the limit, and a wrap that implies 250 W: six times the usual power."""
    values = [2_600, 2_640, 2_990, 2_700, 2_740, 2_780, 30]
    samples = [CounterSample(float(n), value * 1_000_000) for n, value in enumerate(values)]
    counted = count_steps(samples, 1e-6, 3_000_000_000, 300.0)
    assert [step.units for step in counted.steps] == [40_000_000, 60_000_000, 40_000_000, 40_000_000]
    assert [drop.start_s for drop in counted.drops] == [2.0, 5.0]
    # 190 W are within five times the usual 40 W.
    within = [*samples[:6], CounterSample(6.0, 2_970_000_000), CounterSample(7.0, 160_000_000)]
    assert count_steps(within, 1e-6, 3_000_000_000, 300.0).steps[-1].units == 190_000_000


@pytest.mark.parametrize(
    ("interval_s", "values", "expected"),
    [(0.01, [1, 2, 3], 1.0), (0.04, [1, 1, 1, 2], 1.0), (0.04, [1, 1, 1, 1], 0.2), (0.06, [1, 2, 3], 0.2)],
)
def test_a_fast_counter_is_sampled_once_a_second(interval_s: float, values: list[int], expected: float) -> None:
    samples = [CounterSample(n * interval_s, value) for n, value in enumerate(values)]
    assert choose_interval_s([[], samples]) == expected
    assert choose_interval_s([[], []]) is None


def test_the_time_of_an_absence_is_within_the_window() -> None:
    """The window begins at 100 s; a sample every second, the third and later ones are missing, or the first two."""
    samples = counting(90.0, 110.0, 95.0, 105.0, start_s=100.0)
    gone = [
        CounterSample(s.time_s, s.value if n < 2 else None, None if n < 2 else "gone") for n, s in enumerate(samples)
    ]
    came = [
        CounterSample(s.time_s, s.value if n > 2 else None, None if n > 2 else "gone") for n, s in enumerate(samples)
    ]
    silent = [replace(s, value=None, missing="unreadable") if n < 2 else s for n, s in enumerate(samples)]
    assert energy_of(gone, 100.0, 104.0).notes == ("went away 2.0 s into the window: no joules are given for it",)
    assert energy_of(came, 100.0, 104.0).is_absent
    assert energy_of(silent, 100.0, 104.0).notes == ("came 2.0 s into the window: no joules are given for it",)
    powers = [PowerSample(100.0 + n, None if n < 3 else 20.0) for n in range(6)]
    assert power_energy(powers, 100.0, 105.0).notes == ("came 3.0 s into the window: no joules are given for it",)


def test_the_longest_step_decides_whether_a_wrap_may_be_unseen() -> None:
    samples = [CounterSample(time_s, round(time_s * 90e6)) for time_s in (0.0, 1.0, 2.0, 50.0, 51.0)]
    assert energy_of(samples, 0.0, 51.0, max_step_s=48.5).joules == pytest.approx(51 * 90.0)
    lost = energy_of(samples, 0.0, 51.0, max_step_s=47.5)
    assert lost.joules is None
    assert lost.notes[-1].startswith("48 s without a sample, and the counter may wrap within 48 s")


def test_a_course_of_power_is_integrated_to_the_edges() -> None:
    """20 W at 0 s, 50 W at 4 s, 10 W at 6 s."""
    samples = [PowerSample(0.0, 20.0), PowerSample(4.0, 50.0), PowerSample(6.0, 10.0)]
    assert power_energy(samples, 0.0, 6.0).joules == pytest.approx(4 * 35 + 2 * 30)
    # From 1 s (27.5 W) to 5 s (30 W).
    assert power_energy(samples, 1.0, 5.0).joules == pytest.approx(3 * (27.5 + 50) / 2 + 1 * (50 + 30) / 2)


@given(st.lists(st.tuples(st.floats(0.1, 5.0), st.floats(20.0, 300.0)), min_size=3, max_size=12), st.floats(0.05, 0.95))
def test_a_window_is_the_sum_of_its_parts_and_scales(steps: list[tuple[float, float]], share: float) -> None:
    times = [0.0, *itertools.accumulate(length for length, _ in steps)]
    middle, end = share * times[-1], times[-1]
    intervals = [PowerInterval(a, b, watts) for a, b, (_, watts) in zip(times, times[1:], steps, strict=False)]
    powers = [PowerSample(time_s, watts) for time_s, (_, watts) in zip(times, [*steps, steps[0]], strict=True)]
    for make, samples in ((interval_energy, intervals), (power_energy, powers)):
        whole = make(samples, 0.0, end)  # type: ignore[operator]
        parts = [make(samples, 0.0, middle).joules, make(samples, middle, end).joules]  # type: ignore[operator]
        # A sample within 5 ms of an edge is the edge: 300 W at most, at either side.
        assert whole.joules == pytest.approx(sum(part or 0.0 for part in parts), rel=1e-6, abs=2 * 300 * 0.005)
        doubled = make([replace(s, watts=2 * s.watts) for s in samples], 0.0, end)  # type: ignore[operator,attr-defined,type-var]
        assert doubled.joules == pytest.approx(2 * whole.joules)
        joules, watts = scale_to_window(whole, 0.0, end)
        assert joules == pytest.approx((watts or 0.0) * end)


def test_the_mean_power_of_the_covered_time_fills_the_window() -> None:
    """Intervals of 30 W over 2 s and of 60 W over 4 s, 1 s apart, in a window of 10 s."""
    energy = interval_energy([PowerInterval(1.0, 3.0, 30.0), PowerInterval(4.0, 8.0, 60.0)], 0.0, 10.0)
    mean = (2 * 30 + 4 * 60) / 6
    assert (energy.start_s, energy.end_s) == (1.0, 8.0)
    assert (energy.joules, energy.watts) == (pytest.approx(7 * mean), pytest.approx(mean))
    assert scale_to_window(energy, 0.0, 10.0) == (pytest.approx(10 * mean), pytest.approx(mean))
    assert energy.notes == (
        "1.0 s between its samples are not covered: filled with the mean power of the rest",
        "covers 7.0 s and its mean power stands for the window of 10.0 s",
    )
    assert scale_to_window(EnergySeries(None, 0.0, 10.0), 0.0, 10.0) == (None, None)
    # 4.9 of 10 s are less than half.
    assert interval_energy([PowerInterval(1.0, 5.9, 30.0)], 0.0, 10.0).joules is None
    assert interval_energy([PowerInterval(1.0, 6.1, 30.0)], 0.0, 10.0).watts == pytest.approx(30.0)
