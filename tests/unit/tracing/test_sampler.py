# SPDX-License-Identifier: Apache-2.0
"""Samples at random moments against work of any rhythm, CPUs that go and come back, and the check by the CPU clock."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from powerprof.model.records import Note
from powerprof.report.notes import word_notes
from powerprof.tracing.bpf import sampler
from powerprof.tracing.bpf.sampler import Sampler, draw_periods_ns
from powerprof.tracing.captures import estimate_cpu_time

RATE_HZ, WINDOW_S = 99, 5.0
# Work in step with the sampler, with a divisor or multiple of it, with its mean timer, and of no relation.
RHYTHMS = [
    (1 / 99, 0.002),
    (1.0005 / 99, 0.002),
    (1 / 99, 0.005),
    (1 / 49.5, 0.002),
    (1 / 198, 0.001),
    (1 / 33, 0.004),
    (5 / 99, 0.010),
    (10 / 99, 0.020),
    (0.01, 0.002),
    (0.05, 0.002),
    (0.2, 0.040),
    (1.0, 0.2),
    (0.0131, 0.0042),
]


def sample_rhythm(period_s: float, work_s: float, start_s: float) -> tuple[int, int]:
    """The samples that met the work, and all samples."""
    met = made = 0
    for timer_ns in draw_periods_ns(RATE_HZ):
        count = int(WINDOW_S * 1e9 / timer_ns)
        moments = [number * timer_ns / 1e9 for number in range(1, count + 1)]
        met += sum((moment - start_s) % period_s < work_s for moment in moments)
        made += count
    return met, made


@pytest.mark.parametrize(("period_s", "work_s"), RHYTHMS)
def test_the_interval_contains_work_of_any_rhythm(period_s: float, work_s: float) -> None:
    drawn = random.Random(1)
    truth_ms, inside, windows = 1e3 * WINDOW_S * work_s / period_s, 0, 200
    for _ in range(windows):
        met, made = sample_rhythm(period_s, work_s, drawn.uniform(0, period_s))
        estimate = estimate_cpu_time(met, 1e3 / RATE_HZ, 1e3 * WINDOW_S)
        inside += estimate.low_ms <= truth_ms <= estimate.high_ms
        assert 0.96 * RATE_HZ * WINDOW_S < made <= RATE_HZ * WINDOW_S
    assert inside >= 0.88 * windows  # 95 %, less four deviations of 200 windows, and a point for its coarse counts


def test_periods_give_the_rate_and_differ() -> None:
    for rate_hz in (1, 99, 149, 997, 10_000):
        periods = draw_periods_ns(rate_hz)
        assert sum(1e9 / period for period in periods) == pytest.approx(rate_hz, rel=1e-3)
        assert len(set(periods)) == len(periods)
        assert max(periods) / min(periods) < 1.4 / 0.6 + 0.01


class FakeKernel:
    """CPUs with a clock each. An event dies with its CPU and keeps its count."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.online = {0, 1}
        self.may_open = True
        self.born = {0: 0, 1: 0}  # when each CPU came
        self.events: dict[int, tuple[int, int, int]] = {}  # descriptor → CPU, time of opening, birth of the CPU
        self.frozen: dict[int, int] = {}
        self.next = 100

    def open(self, kind: int, config: int, cpu: int, period: int = 0) -> int:
        if cpu not in self.online or not self.may_open:
            raise OSError(13, "Permission denied") if not self.may_open else OSError(19, "No such device")
        self.next += 1
        self.events[self.next] = cpu, self.now_ns, self.born[cpu]
        return self.next

    def read(self, descriptor: int, size: int) -> bytes:
        cpu, opened_ns, born_ns = self.events[descriptor]
        if cpu in self.online and self.born[cpu] == born_ns:
            self.frozen[descriptor] = self.now_ns - opened_ns
        return self.frozen.get(descriptor, 0).to_bytes(8, "little")

    def pass_s(self, seconds: float) -> None:
        for descriptor in self.events:
            self.read(descriptor, 8)
        self.now_ns += round(seconds * 1e9)
        for descriptor in self.events:
            self.read(descriptor, 8)

    def switch(self, cpu: int, on: bool) -> None:
        if on:
            self.online.add(cpu)
            self.born[cpu] = self.now_ns + 1
        else:
            self.online.discard(cpu)

    def close(self, descriptor: int) -> None:
        del self.events[descriptor]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKernel]:
    fake = FakeKernel()
    real_read, real_close = os.read, os.close
    with monkeypatch.context() as patched:
        patched.setattr(sampler, "open_sampler", fake.open)
        patched.setattr(sampler, "open_counter", fake.open)
        patched.setattr(sampler, "set_program", lambda descriptor, program: None)
        patched.setattr(sampler, "online_cpus", lambda: sorted(fake.online))
        patched.setattr(sampler.time, "monotonic_ns", lambda: fake.now_ns)
        patched.setattr(os, "read", lambda fd, size: fake.read(fd, size) if fd in fake.events else real_read(fd, size))
        patched.setattr(os, "close", lambda fd: fake.close(fd) if fd in fake.events else real_close(fd))
        yield fake


def sample_window(kernel: FakeKernel, changes: dict[int, tuple[int, bool]], steps: int = 20) -> Sampler:
    """A window of 0.2 s a step, with a CPU switched before some steps."""
    made = Sampler(3)
    made.open_clock(99)
    made.begin()
    for step in range(steps):
        if step in changes:
            kernel.switch(*changes[step])
        kernel.pass_s(0.2)
        made.renew()
    made.end()
    assert not kernel.events, "every descriptor is closed"
    return made


@pytest.mark.parametrize("away", [1, 2, 7])
def test_a_cpu_that_comes_back_is_sampled_again(kernel: FakeKernel, away: int) -> None:
    made = sample_window(kernel, {3: (1, False), 3 + away: (1, True)})
    # Both CPUs for 4 s, less the time away, less the step in which the kernel had no events of the CPU.
    assert made.sampled_ns / 1e9 == pytest.approx(8.0 - 0.2 * away - 0.2)
    assert set(made.missed_ns) == {1}
    assert made.missed_ns[1] / 1e9 == pytest.approx(0.4)
    assert made.notes() == [Note("cpus_not_sampled", {"cpus": "1", "seconds": pytest.approx(0.4)})]
    assert "CPU 1 went offline or came back during the window" in word_notes(made.notes())[0]


def test_a_cpu_that_goes_and_comes_between_two_looks(kernel: FakeKernel) -> None:
    made = Sampler(3)
    made.open_clock(99)
    made.begin()
    kernel.pass_s(0.1)
    kernel.switch(1, False)
    kernel.pass_s(0.05)
    kernel.switch(1, True)
    kernel.pass_s(0.05)
    made.renew()
    kernel.pass_s(0.2)
    made.end()
    assert made.sampled_ns / 1e9 == pytest.approx(0.7)
    assert made.missed_ns[1] / 1e9 == pytest.approx(0.1)


def test_a_cpu_that_comes_first_within_the_window(kernel: FakeKernel) -> None:
    kernel.online = {0}
    made = sample_window(kernel, {5: (1, True)})
    assert made.missed_ns[1] / 1e9 == pytest.approx(0.2)
    assert made.sampled_ns / 1e9 == pytest.approx(4.0 + 4.0 - 1.2)


def test_a_cpu_that_stays_away_was_not_missed(kernel: FakeKernel) -> None:
    made = sample_window(kernel, {10: (1, False)})
    assert made.sampled_ns / 1e9 == pytest.approx(6.0)
    assert made.missed_ns[1] / 1e9 == pytest.approx(0.2)


def test_without_the_right_to_open_the_missing_time_is_stated(kernel: FakeKernel) -> None:
    made = Sampler(3)
    made.open_faults()
    made.begin()
    kernel.may_open = False
    kernel.switch(1, False)
    kernel.pass_s(0.2)
    made.renew()
    kernel.switch(1, True)
    for _ in range(10):
        kernel.pass_s(0.2)
        made.renew()
    made.end()
    assert made.missed_ns[1] / 1e9 == pytest.approx(2.2)


def test_a_steady_window_has_no_note(kernel: FakeKernel) -> None:
    made = sample_window(kernel, {})
    assert made.notes() == []
    assert made.sampled_ns / 1e9 == pytest.approx(8.0)


def test_events_of_cpus_that_left_stay_counted() -> None:
    made = Sampler(3)
    made._closed_count = 5
    made._cpus = {0: SimpleNamespace(counted=lambda: 70), 2: SimpleNamespace(counted=lambda: 900)}  # type: ignore[dict-item]
    assert made.counted() == 975
    made._cpus = {}
    assert made.counted() == 5
