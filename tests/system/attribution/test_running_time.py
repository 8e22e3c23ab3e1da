# SPDX-License-Identifier: Apache-2.0
"""A row has what its threads ran, whatever else its CPU does: the same beside a busy host as on a quiet one."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from powerprof.attribution.attribute import trace_target as capture
from powerprof.attribution.blame import build_attribution as blame
from powerprof.attribution.capture import Capture
from powerprof.attribution.requests import AttributeRequest
from powerprof.attribution.sites import SiteStacks
from powerprof.measure.procfs import process_cpu_ns, read_stat
from powerprof.measure.window import WindowPart, run_window
from powerprof.model.attribution import Attribution
from powerprof.system.targets import resolve
from powerprof.tracing.idle import WindowTracer, trace_stacks
from tests.system.attribution.conftest import compile_c, running

WINDOW_S = 2.5


@pytest.fixture(scope="module")
def program(programs_dir: Path) -> Path:
    """poller.c, compiled."""
    return compile_c("poller", programs_dir)


@dataclass(frozen=True)
class Polled:
    """One window of a poller: what was said of it, and what it noted of itself."""

    record: Attribution
    taken: Capture
    own_ms: float

    @property
    def c0_ms(self) -> float:
        """Of all its rows."""
        return sum(row.c0_ms for row in self.record.wakeups)

    @property
    def said_ms(self) -> float:
        """Its own running time in all its rows."""
        without = self.record.wakings_without_exit
        return sum(row.own_ms or 0.0 for row in [*self.record.wakeups, *without])

    @property
    def joules(self) -> float:
        """What its own running time drew above the floor. To end an idle period costs the kernel more on a quiet host:
        50 µs each in a guest here, which is half of a light poller's own work."""
        split = self.record.energy_split
        assert split is not None
        own_ms = sum(row.own_ms or 0.0 for row in self.record.wakeups)
        kernel_ms = sum(row.c0_ms for row in self.record.wakeups) - own_ms
        return split.parts[0].joules * self.said_ms / (self.said_ms + kernel_ms)


def noted_ms(notes: Path, from_ns: int, to_ns: int) -> float:
    """What a poller used between two moments, by its own clock."""
    found = np.fromfile(notes, dtype="<i8").reshape(-1, 2)
    inside = found[(found[:, 0] >= from_ns) & (found[:, 0] <= to_ns)]
    return float(inside[-1, 1] - inside[0, 1]) / 1e6


def polled(program: Path, notes: Path, rate: int, work_us: int, spinners: int) -> Polled:
    """A poller on the last CPU, with so many spinners beside it there."""
    cpu = max(os.sched_getaffinity(0))
    with ExitStack() as stack:
        pid = stack.enter_context(running(program, notes, cpu, rate, work_us))["pid"]
        for _ in range(spinners):
            stack.enter_context(running(program, notes, cpu, 0, 0))
        taken = capture(resolve((str(pid),)), AttributeRequest(duration_s=WINDOW_S), dict, lambda _: None)
    record = blame(taken, SiteStacks(taken))
    return Polled(record, taken, noted_ms(notes, taken.counted_from_ns, taken.counted_to_ns))


@pytest.mark.parametrize(
    ("rate", "work_us"), [(499, 100), (23, 5000), pytest.param(97, 400, marks=pytest.mark.nightly)]
)
def test_running_time_is_independent_of_other_load(
    root_bpf: None, program: Path, tmp_path: Path, rate: int, work_us: int
) -> None:
    quiet, busy = (polled(program, tmp_path / f"notes-{spun}", rate, work_us, spun) for spun in (0, 2))
    for found in (quiet, busy):
        # One waking's work may lie on the other side of each edge.
        apart = 2.5 * work_us / 1e3 + 0.03 * found.own_ms
        assert found.said_ms == pytest.approx(found.own_ms, abs=apart)
        assert found.record.running is not None
        assert found.record.running.target_ms == pytest.approx(found.own_ms, abs=apart + 0.2 * found.own_ms)
        assert balances(found.record)
    # What spinners ran after an exit that the poller ended was its own before.
    assert busy.c0_ms < 1.2 * busy.own_ms + 2.5 * work_us / 1e3
    # Of the same work: a poller that others keep from its CPU does less of it.
    assert busy.joules / busy.own_ms == pytest.approx(quiet.joules / quiet.own_ms, rel=0.2)


def balances(record: Attribution) -> bool:
    """All running time of the host is somebody's, or said to be nobody's; and so are its joules."""
    ran, split = record.running, record.energy_split
    assert ran is not None
    assert split is not None
    assert ran.c0_ms is not None
    assert ran.rest_ms is not None
    parts = (ran.target_ms, ran.tool_ms, ran.others_ms, ran.kernel_ms)
    assert sum(parts) + ran.rest_ms == pytest.approx(ran.c0_ms)
    # Going idle and interrupts: never less than nothing, but for the clocks of the kernel's that are read beside.
    assert -0.01 * ran.c0_ms - 1 <= ran.rest_ms <= 0.15 * ran.c0_ms + 50
    named = sum(row.c0_ms for row in record.wakeups)
    assert named <= ran.target_ms * 1.0001 + 0.001
    blamed = sum(cause.c0_ms or 0.0 for cause in record.other_causes)
    assert blamed <= (ran.tool_ms + ran.others_ms + ran.kernel_ms) * 1.0001 + 0.001
    whole = math.fsum([split.idle_joules or 0.0, *(part.joules for part in split.parts), split.residual_joules])
    return whole == pytest.approx(split.total_joules, abs=1e-9)


def _stolen_ms() -> float:
    """Return the time that the hypervisor took since the start, of all CPUs, in steps of 10 ms."""
    return 1e3 * sum(cpu.get("steal", 0.0) for cpu in read_stat().cpus.values())


class Clock(WindowPart):
    """What a process used between the edges of a window, by the kernel's own clock of it."""

    def __init__(self, pid: int) -> None:
        self._pid, self.used_ms = pid, 0.0
        self.from_ns = self.to_ns = 0

    def begin(self) -> None:
        self.used_ms, self.from_ns = -float(process_cpu_ns(self._pid) or 0) / 1e6, time.monotonic_ns()

    def end(self) -> None:
        self.used_ms, self.to_ns = self.used_ms + float(process_cpu_ns(self._pid) or 0) / 1e6, time.monotonic_ns()


@pytest.mark.parametrize("modes", [("many=5",), ("born=300",), ("pairs=500",), ("twins=89", "fast=700")])
def test_running_time_matches_the_kernels_clock(
    root_bpf: None, wakes: Callable[..., Any], modes: tuple[str, ...]
) -> None:
    """Also of threads that live for an instant, and of those that never end an idle period.

    The clock begins some instructions before the trace of a switch does. A hypervisor that takes the CPU there, for
    4 ms and more, makes them differ by this time. It does so in few windows: the median of three does not differ.
    """
    differing = []
    for _ in range(3):
        stolen_ms = -_stolen_ms()
        with (
            wakes(*modes) as program,
            trace_stacks(resolve((str(program.pid),))) as (tracer, _),
            WindowTracer(tracer) as opened,
        ):
            clock = Clock(program.pid)
            window = opened.collect(run_window(1.2, *opened.parts, clock))
        stolen_ms += _stolen_ms()
        ran = window.trace.ran
        mine = ran.threads[ran.threads["pid"] == program.pid]
        said_ms = (float(mine["ns"].sum()) + ran.target_ns) / 1e6
        causes = window.trace.causes
        assert np.all(causes["own_ns"] + causes["kernel_ns"] <= causes["running_ns"] * 1.01 + 100_000)
        # A thread's way from its exit to its last switch is on no clock of its process.
        off_clock_ms = 0.04 * 2 * 300 if modes == ("born=300",) else 0.0
        # Between an edge of the trace and the clock's reading others may have the CPU.
        edges = window.edges.values()
        apart_ns = max(abs(clock.from_ns - edge.start_ns) + abs(clock.to_ns - edge.end_ns) for edge in edges)
        apart_ms = 1 + 2 * clock.used_ms * apart_ns / (clock.to_ns - clock.from_ns)
        low_ms, high_ms = 0.97 * clock.used_ms - apart_ms, 1.03 * clock.used_ms + apart_ms + off_clock_ms
        differing.append((max(low_ms - said_ms, said_ms - high_ms), stolen_ms, said_ms, clock.used_ms, apart_ms))
    what = "ms beyond the tolerance, stolen, traced, by the kernel's clock, tolerance"
    assert all(beyond_ms <= max(0.0, stolen_ms) for beyond_ms, stolen_ms, *_ in differing), f"{what}: {differing}"
    assert sorted(differing)[1][0] <= 0, f"{what}: {differing}"
