# SPDX-License-Identifier: Apache-2.0
"""The CPU time of programs by the cost of their first events."""

from __future__ import annotations

import threading
import time
from typing import cast

import pytest

from powerprof.system.errors import Interrupted
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.run_time_meter import ENOUGH, RunTimeMeter


class Runs:
    """Programs of which each run takes 2 µs, while anybody looks."""

    def __init__(self) -> None:
        self.events, self.counted, self.is_on = 0, 0, False
        self.is_refused = False

    def happen(self, count: int) -> None:
        self.events += count
        self.counted += count if self.is_on else 0

    def count_run_time(self) -> None:
        self.is_on = True

    @property
    def is_counting(self) -> bool:
        return self.is_on and not self.is_refused

    def stop_counting(self) -> None:
        self.is_on = False

    def run_time_s(self) -> float | None:
        return 2e-6 * self.counted


def _price(runs: Runs, every_s: float) -> RunTimeMeter:
    price = RunTimeMeter(cast(LoadedProgram, runs), lambda: runs.events, every_s=every_s)
    price.begin()
    return price


def test_few_events_are_timed_one_by_one() -> None:
    runs = Runs()
    runs.happen(7)
    with _price(runs, 0.01) as price:
        runs.happen(ENOUGH - 1)
        time.sleep(0.05)
        assert runs.is_on
        assert price.spent_s() == pytest.approx(2e-6 * (ENOUGH - 1))


def test_many_events_are_reckoned_by_the_price_of_the_first() -> None:
    """Events before the window have no share in it."""
    runs = Runs()
    runs.happen(3 * ENOUGH)
    with _price(runs, 0.01) as price:
        runs.happen(ENOUGH)
        limit = time.monotonic() + 10
        while runs.is_on and time.monotonic() < limit:
            time.sleep(0.01)
        runs.happen(9 * ENOUGH)
        assert runs.counted == ENOUGH
        assert price.spent_s() == pytest.approx(2e-6 * 10 * ENOUGH)


def test_a_clock_that_is_refused_is_no_time_of_none() -> None:
    runs = Runs()
    runs.is_refused = True
    with _price(runs, 60.0) as price:
        runs.happen(100)
        assert price.spent_s() is None


def test_an_interrupt_while_its_thread_starts_leaves_nothing_to_join(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise Interrupted("interrupted")

    monkeypatch.setattr(threading.Thread, "start", start)
    price = RunTimeMeter(cast(LoadedProgram, Runs()), lambda: 0, every_s=60.0)
    with pytest.raises(Interrupted):
        price.begin()
    price.close()
