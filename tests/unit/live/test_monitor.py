# SPDX-License-Identifier: Apache-2.0
"""The parts of a monitor: its clock, the CPU time of busy processes and of itself, and its heap."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from powerprof.live import monitor
from powerprof.live.intervals import CpuUse
from powerprof.live.monitor import BusyProcesses, HostMonitor, IntervalClock, OwnCpuTime, TargetClock
from powerprof.measure.idle_counters import CpuReading, Snapshot
from powerprof.model.records import StateResidency
from powerprof.system.targets import Target
from powerprof.tracing.bpf.cost_meter import CostMeter, ProgramCost
from powerprof.tracing.captures import CpuEdge
from powerprof.tracing.idle import TracedWindow
from tests.unit.live.intervals import interval, row
from tests.unit.queries.windows import window as host_window


def test_clocks_are_read_while_the_cpus_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    second = 10**9
    readings = iter(
        [
            {1: 0, 2: 5 * second, 3: second},
            {1: 2 * second, 2: 5 * second, 3: 2 * second, 4: second},  # 4 is new, its start is unknown
            {1: 3 * second},
            {1: 4 * second},
        ]
    )
    monkeypatch.setattr(monitor, "_read_clocks", lambda: next(readings))
    monkeypatch.setattr(monitor, "name_of", {1: "cc1", 2: "sshd", 3: "cc1", 4: "new"}.get)
    look = BusyProcesses()
    assert look.measure(0.8, 5.0) == {"cc1": CpuUse(2, 3.0)}
    assert look.measure(0.1, 5.0) is None  # idle: no clock is read
    assert look.measure(0.9, 5.0) is None  # no earlier reading
    assert look.measure(0.9, 5.0) == {"cc1": CpuUse(1, 1.0)}


def _meter(*, is_known: bool = True, spent_s: float = 0.25) -> CostMeter:
    costs = iter([ProgramCost(spent_s, 0.05), ProgramCost(spent_s + 0.1, 0.07)])
    return cast(CostMeter, SimpleNamespace(is_known=is_known, begin=lambda: None, spent=lambda: next(costs)))


def test_the_cost_of_programs_includes_their_entries() -> None:
    own = OwnCpuTime(_meter())
    own.restart()
    assert own.take_programs_s() == pytest.approx(0.3)
    assert own.take_programs_s() == pytest.approx(0.12)


def test_the_cost_of_programs_is_unknown_without_a_count() -> None:
    own = OwnCpuTime(_meter(is_known=False))
    own.restart()
    assert own.take_programs_s() is None


_HOLDS_AND_FREES = """
from powerprof.live.monitor import HeapTrimmer
trim = HeapTrimmer()
before = trim.trim()
held = bytearray(b"x") * (64 << 20)
assert trim.trim() - before > 50 << 20
del held
assert trim.trim() - before < 20 << 20
blocks = [bytes([number % 255 + 1]) * 100_000 for number in range(600)]
full = trim.trim()
assert full - before > 20 << 20
kept = blocks[-1]
del blocks
# It lies between blocks in use, so glibc alone keeps it.
again = bytearray(b"x") * (70 << 20)
trim.trim()
del again
assert full - trim.trim() > 20 << 20
assert len(kept) == 100_000
"""


def test_freed_memory_is_given_back() -> None:
    # A separate process: the kernel reclaims cold pages of a large one.
    subprocess.run([sys.executable, "-c", _HOLDS_AND_FREES], check=True)


def test_the_use_of_a_target_is_in_percent_of_one_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its processes 1 ran for 1.5 s and 2 for 0.5 s in 4 s; 3 is new, and 2 then ends."""
    second = 10**9
    readings = iter(
        [{1: second, 2: 5 * second}, {1: 2.5 * second, 2: 5.5 * second, 3: second}, {1: 3 * second, 3: 2 * second}, {}]
    )
    now_s = [100.0]
    monkeypatch.setattr(monitor, "_read_target_clocks", lambda _: next(readings))
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    target = Target((1, 2), "cc1")
    clock = TargetClock(target)
    shares = []
    for _ in range(3):
        now_s[0] += 4.0
        shares.append(clock.take_percent(target))
    assert shares == [pytest.approx(50.0), pytest.approx(100 * (0.5 + 1.0) / 4), None]


def test_new_processes_of_the_roots_of_a_target_began_in_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    second = 10**9
    readings = iter([{1: second}, {1: 1.5 * second, 3: 2 * second}, {1: 0.5 * second}])
    now_s = [100.0]
    monkeypatch.setattr(monitor, "_read_target_clocks", lambda _: next(readings))
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    target = Target((1,), "cc1", roots=(1,))
    clock = TargetClock(target)
    now_s[0] += 5.0
    assert clock.take_percent(target) == pytest.approx(50.0)
    now_s[0] += 5.0
    assert clock.take_percent(target) == 0.0


def test_processes_below_a_fifth_of_a_percent_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([{1: 0, 2: 0, 3: 7}, {1: 10_000_000, 2: 9_999_999, 4: 10**9}])
    monkeypatch.setattr(monitor, "_read_clocks", lambda: next(readings))
    monkeypatch.setattr(monitor, "name_of", lambda pid: f"p{pid}")
    assert BusyProcesses().measure(0.5, 5.0) == {"p1": CpuUse(1, 0.01)}


def traced_window(*states: StateResidency, cpus: int = 3) -> TracedWindow:
    residency = host_window(states=list(states), window_s=2.0, cpus=cpus)
    edges = {cpu: CpuEdge(cpu, 0, 2_000_000_000, None) for cpu in range(cpus)}
    trace: Any = None
    return TracedWindow(trace, edges, 2.0, residency, {}, 0.0)


def test_without_a_driver_the_idle_time_is_that_of_the_trace() -> None:
    def state(name: str, seconds: float, polling: bool = False) -> StateResidency:
        return StateResidency(
            name=name,
            residency_percent=None,
            average_residency_ms=None,
            entries_hz=None,
            time_us=seconds * 1e6,
            polling=polling,
        )

    span = monitor._measure_counters(traced_window(state("POLL", 0.5, True), state("idle", 4.25)))
    assert (span.window_s, span.cpus, span.exits_count, span.forced_count) == (2.0, 3, None, 0)
    assert span.idle_s == {(-1, "POLL"): 0.5, (-1, "idle"): 4.25}
    assert (span.polling, span.c0_s) == (frozenset({"POLL"}), pytest.approx(3 * 2.0 - 4.25))
    assert monitor._measure_counters(traced_window(state("idle", 9.0))).c0_s == 0.0
    counted = (Snapshot({0: CpuReading(0, 0, (), (), (), (), (), ())}), Snapshot({}))
    assert monitor._has_counters(msgspec.structs.replace(traced_window(), counters=counted)) is False


def test_servers_are_queried_early_if_the_rate_jumps_up_or_down() -> None:
    """A jump is a factor of two and 15 per second; the usual rate follows slowly, and begins anew after a jump."""
    early: list[float] = []
    at = 0.0
    self: Any = SimpleNamespace(_usual_hz=None, _servers=SimpleNamespace(query_early=lambda: early.append(at)))

    def react(hertz: float) -> float | None:
        nonlocal at
        at = hertz
        HostMonitor._react_to_rate(self, interval(row("a", round(hertz * 10))))
        usual: float | None = self._usual_hz
        return usual

    assert react(100.0) == 100.0
    assert react(150.0) == pytest.approx(110.0)
    assert react(235.0) == pytest.approx(135.0)  # 2 × 110 + 15
    assert early == []
    assert react(286.0) == 286.0
    assert react(136.0) == pytest.approx(286 - 0.2 * 150)
    assert react(100.0) == 100.0
    assert early == [286.0, 100.0]
    HostMonitor._react_to_rate(self, interval(window_s=0.0))
    assert self._usual_hz == 100.0


def test_a_late_interval_lasts_half_and_an_early_one_is_not_shortened() -> None:
    pace = IntervalClock(4.0, 0.0)
    assert pace.next_end_s(0.5) == 4.0
    assert pace.next_end_s(5.9) == 8.0
    assert pace.next_end_s(10.1) == pytest.approx(12.1)
    assert pace.next_end_s(12.2) == pytest.approx(16.1)
