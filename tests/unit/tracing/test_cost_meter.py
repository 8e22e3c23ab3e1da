# SPDX-License-Identifier: Apache-2.0
"""The cost of a program: its time, its entries, and the price of an event."""

from __future__ import annotations

from typing import cast

import pytest

from powerprof.tracing.bpf.cost_meter import CLOCK_S, ENOUGH, ENTRY_S, CostMeter, EventCounter
from powerprof.tracing.bpf.loaded import LoadedProgram

# Each event starts four programs, which take 2 µs together.
RUNS, RUN_S = 4, 2e-6


class Host:
    """Events, and a program that runs for them while it is attached."""

    def __init__(self, *, is_reported: bool = True) -> None:
        self.events, self.seen, self.is_counting, self.is_attached = 0, 0, False, True
        self._is_reported = is_reported

    def happen(self, count: int) -> None:
        self.events += count
        self.seen += count if self.is_counting and self.is_attached else 0

    def count_run_time(self) -> None:
        self.is_counting = self._is_reported

    def stop_counting(self) -> None:
        self.is_counting = False

    def read_runs(self) -> tuple[float, int] | None:
        return RUN_S * self.seen, RUNS * self.seen


def _meter(host: Host) -> CostMeter:
    meter = CostMeter(cast(LoadedProgram, host), lambda: float(host.events))
    host.happen(1000)
    meter.begin()
    return meter


def test_few_events_are_timed() -> None:
    host = Host()
    meter = _meter(host)
    host.happen(ENOUGH - 1)
    cost = meter.collect()
    assert cost is not None
    assert cost.run_s == pytest.approx(RUN_S * (ENOUGH - 1))
    assert cost.entry_s == pytest.approx(RUNS * (ENOUGH - 1) * (ENTRY_S + CLOCK_S))


def test_many_events_have_the_price_of_the_first() -> None:
    host = Host()
    meter = _meter(host)
    host.happen(2 * ENOUGH)
    meter.read()
    assert not host.is_counting
    host.happen(1_000_000)
    cost = meter.collect()
    assert cost is not None
    assert cost.run_s == pytest.approx(RUN_S * (2 * ENOUGH + 1_000_000))
    assert cost.entry_s == pytest.approx(RUNS * ENTRY_S * 1_000_000 + RUNS * 2 * ENOUGH * (ENTRY_S + CLOCK_S))


@pytest.mark.parametrize("is_priced", [False, True])
def test_events_between_slices_cost_nothing(is_priced: bool) -> None:
    host = Host()
    meter = _meter(host)
    host.happen(2 * ENOUGH if is_priced else 100)
    before = meter.spent()
    host.is_attached = False
    meter.pause()
    host.happen(500_000)
    assert meter.spent() == before
    host.is_attached = True
    meter.resume()
    host.happen(100)
    assert meter.spent().run_s == pytest.approx(before.run_s + 100 * RUN_S)


def test_without_the_kernels_clock_the_cost_is_predicted_and_not_reported() -> None:
    host = Host(is_reported=False)
    meter = _meter(host)
    host.happen(100_000)
    assert 0.01 < meter.spent().whole_s < 0.1
    assert meter.collect() is None


def test_the_kernel_counts_events() -> None:
    with EventCounter() as counter:
        first, second = counter.read(), counter.read()
    assert 0 < first <= second
