# SPDX-License-Identifier: Apache-2.0
"""A process that sleeps at a known rate is found among the causes of a system-wide window, by its name and rate."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from powerprof.attribution import causes
from powerprof.model.records import Cause, Conservation
from powerprof.system.targets import resolve
from powerprof.system.tasks import ENDED, look_up
from powerprof.tracing import idle_program, idle_tables
from powerprof.tracing.bpf.shared_numbers import CpuPhase
from powerprof.tracing.captures import CpuEdge
from powerprof.tracing.idle import IdleTracer, TracedWindow, WindowTracer, trace_exits, trace_on_demand, trace_stacks
from powerprof.tracing.idle_data import aggregate_exits
from powerprof.tracing.idle_tables import FillLimits
from powerprof.tracing.kernel_symbols import find_tick_handler, name_kernel_functions, read_interrupt_names
from tests.programs import injecting
from tests.programs.balance import check_balance

pytestmark = pytest.mark.alone  # judges the idleness or the speed of this host

RATE_HZ = 97
WINDOW_S = 3.0
WINDOWS = 8
# Below this share of running time a CPU is called quiet: it hides at most 1 % of the wake-ups.
QUIET_BUSY = 0.01
ENOUGH_EXITS = 150

# Absolute deadlines without slack: a late wake-up does not shift the next, so that the rate over a window is exact and
# every deadline is known outside. It stays on one CPU and prints the first deadline.
_SOURCE = r"""
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
int main(int argc, char **argv)
{
    struct timespec next;
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(atoi(argv[1]), &cpus);
    sched_setaffinity(0, sizeof cpus, &cpus);
    prctl(PR_SET_TIMERSLACK, 1);
    clock_gettime(CLOCK_MONOTONIC, &next);
    printf("%lld\n", next.tv_sec * 1000000000LL + next.tv_nsec);
    fflush(stdout);
    for (;;) {
        next.tv_nsec += 1000000000 / 97;
        if (next.tv_nsec >= 1000000000) {
            next.tv_nsec -= 1000000000;
            next.tv_sec++;
        }
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, 0);
    }
}
"""


@dataclass(frozen=True)
class Sleeper:
    """The sleeping process, its CPU, and its first deadline on CLOCK_MONOTONIC."""

    pid: int
    cpu: int
    first_ns: int

    def deadlines_ns(self, edge: CpuEdge) -> np.ndarray:
        """Its deadlines in a window."""
        step = 1_000_000_000 // RATE_HZ
        number = np.arange((edge.end_ns - self.first_ns) // step + 1)
        found = self.first_ns + number * step
        return found[(found >= edge.start_ns) & (found <= edge.end_ns)]


@dataclass(frozen=True)
class Traced:
    """One system-wide window."""

    rows: list[Cause]
    balance: Conservation
    exits: np.ndarray
    edges: dict[int, CpuEdge]


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Sleeper]:
    """Its name is that of its file."""
    source, program = tmp_path / "sleeper.c", tmp_path / "ninetyseven"
    source.write_text(_SOURCE)
    subprocess.run(["cc", "-O1", "-o", program, source], check=True, timeout=60)
    cpu = max(os.sched_getaffinity(0))
    process = subprocess.Popen([program, str(cpu)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield Sleeper(process.pid, cpu, int(process.stdout.readline()))
    finally:
        process.kill()
        process.wait()


def system_wide(tracer: IdleTracer, duration_s: float) -> Traced:
    """What woke the CPUs in a window: the steps that `powerprof idle` takes in each phase."""
    with WindowTracer(tracer) as opened:
        window = opened.measure(duration_s)
    summed = window.trace.causes
    found = causes.classify_exits(summed)
    rows = causes.group_causes(
        summed,
        found,
        window.window_s,
        look_up,
        functions=window.trace.addresses,
        interrupts=read_interrupt_names(),
        own_pids=(os.getpid(),),
    )
    balance = causes.build_conservation(summed, found, window.trace.lost_count, window.edges)
    assert (window.trace.sample_1_in, window.trace.sample_lost_count) == (1, 0)
    return Traced(rows, balance, window.trace.sample, window.edges)


def idle_periods(traced: Traced, cpu: int) -> tuple[np.ndarray, float]:
    """The idle periods (from, to) of one CPU, and the share of the window in which it ran."""
    edge, mine = traced.edges[cpu], traced.exits[traced.exits["cpu"] == cpu]
    periods = np.stack([np.maximum(mine["enter_ns"], edge.start_ns), mine["exit_ns"]], axis=1).astype(np.int64)
    return periods, 1.0 - float(np.sum(periods[:, 1] - periods[:, 0])) / (edge.end_ns - edge.start_ns)


def test_a_sleeper_is_named_with_its_rate(root_bpf: None, sleeper: Sleeper) -> None:
    """A wake-up that finds its CPU running ends no idle period, and rightly is none of the causes: on a busy machine
    the rate in the causes is lower than the sleeper's. So two things are held: in every window, whatever else runs,
    the sleeper is blamed for as many exits as it has deadlines that fell into an idle period of its CPU; and in a
    window in which its CPU was quiet, that is 97 a second within 3 %. The machine is given some windows to be quiet in.
    """
    with trace_exits() as tracer:
        for _ in range(WINDOWS):
            traced = system_wide(tracer, WINDOW_S)
            mine = [row for row in traced.rows if row.pid == sleeper.pid]
            count = sum(row.count for row in mine)
            periods, busy = idle_periods(traced, sleeper.cpu)
            due = sleeper.deadlines_ns(traced.edges[sleeper.cpu])
            asleep = sum(bool(np.any((periods[:, 0] < at) & (at <= periods[:, 1]))) for at in due)
            assert len(due) == pytest.approx(RATE_HZ * WINDOW_S, rel=0.05)
            assert count == pytest.approx(asleep, rel=0.03, abs=2)
            if count < 0.1 * len(due):
                continue  # others had its CPU all the time
            first = mine[0]
            assert (first.process, first.thread, first.mechanism) == ("ninetyseven", "ninetyseven", "timer")
            assert first.name == "hrtimer_wakeup"
            assert first.count >= 0.9 * count - 2
            if busy < QUIET_BUSY:
                assert sum(row.wakeups_hz for row in mine) == pytest.approx(RATE_HZ, rel=0.03)
                assert first.period_ms == pytest.approx(1e3 / RATE_HZ, rel=0.01)
                break


def test_every_exit_of_a_system_wide_window_is_accounted_for(root_bpf: None, sleeper: Sleeper) -> None:
    with trace_exits() as tracer:
        balance = system_wide(tracer, 1.0).balance
    check_balance(balance, exits=2 * (os.cpu_count() or 1))
    assert balance.classified_count >= 0.98 * balance.idle_exits_count
    assert balance.lost_count == 0


def test_a_second_window_of_the_same_tracer_begins_at_zero(root_bpf: None) -> None:
    with trace_exits() as tracer:
        first, second = (system_wide(tracer, 0.5) for _ in range(2))
    for traced in (first, second):
        check_balance(traced.balance, exits=2 * (os.cpu_count() or 1))


def burst_of_exits(tracer: IdleTracer, duration_s: float) -> TracedWindow:
    """A window in which the CPUs leave idle some hundred times; the machine is given some windows to do so."""
    burst = subprocess.Popen(["sh", "-c", "while :; do sleep 0.002; done"])
    try:
        with WindowTracer(tracer) as opened:
            for _ in range(WINDOWS):
                window = opened.measure(duration_s)
                if int(window.trace.causes["count"].sum()) + window.trace.lost_count >= ENOUGH_EXITS:
                    break
            return window
    finally:
        burst.kill()
        burst.wait()


def balance_of(window: TracedWindow) -> Conservation:
    summed = window.trace.causes
    return causes.build_conservation(summed, causes.classify_exits(summed), window.trace.lost_count, window.edges)


def test_a_small_buffer_loses_single_periods_and_no_count(root_bpf: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One page of buffer and a reader who does not come: what did not fit is counted, and the sums are whole."""
    monkeypatch.setattr(idle_program, "EXIT_PAGES", 1)
    monkeypatch.setattr(IdleTracer, "wake_descriptor", None)
    with trace_exits() as tracer:
        window = burst_of_exits(tracer, 1.5)
    balance = balance_of(window)
    assert window.trace.sample_lost_count > 0
    assert balance.lost_count == 0
    assert len(window.trace.sample) + window.trace.sample_lost_count == balance.idle_exits_count
    check_balance(balance, share=0.02, exits=2 * (os.cpu_count() or 1))


def test_a_small_table_is_a_count_of_losses(root_bpf: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for three causes and nobody who empties it: exits of all others are lost, counted, and the sum is still what
    cpuidle says."""
    monkeypatch.setattr(idle_program, "CAUSES", 3)
    monkeypatch.setattr(FillLimits, "_limit", lambda self, filling, amount, living: 1 << 62)
    with trace_exits() as tracer:
        window = burst_of_exits(tracer, 1.5)
    balance = balance_of(window)
    assert len(window.trace.causes) <= 3 + (os.cpu_count() or 1)
    assert balance.lost_count > 0
    assert balance.coverage_percent is not None
    assert balance.coverage_percent < 100
    check_balance(balance, share=0.02, exits=2 * (os.cpu_count() or 1))


def test_a_table_that_fills_is_emptied_in_time(root_bpf: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each `sleep` of the burst is a thread that lives for an instant: far more causes than the table has room for."""
    monkeypatch.setattr(idle_program, "CAUSES", 256)
    monkeypatch.setattr(idle_tables, "MOST_CAUSES", 128)
    with trace_exits() as tracer:
        window = burst_of_exits(tracer, 3.0)
    balance = balance_of(window)
    assert balance.lost_count == 0
    check_balance(balance, share=0.02, exits=2 * (os.cpu_count() or 1))
    trace = window.trace
    threads = len(np.unique(trace.sample["next_tid"]))
    assert threads > 256
    folded = trace.causes[trace.causes["next_tid"] >= ENDED]
    assert int(folded["count"].sum()) > threads / 2
    assert len(trace.causes) < threads / 2
    assert b"sleep" in folded["next_comm"].tolist()


def test_a_sample_within_its_limit_is_an_even_one(root_bpf: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_tables, "SAMPLE_LIMIT", 16)
    with trace_exits() as tracer:
        window = burst_of_exits(tracer, 1.5)
    trace, total = window.trace, balance_of(window).idle_exits_count
    assert trace.sample_1_in > 1
    assert len(trace.sample) <= 16 + (os.cpu_count() or 1)
    # Binomial: four standard deviations.
    expected = total / trace.sample_1_in
    assert abs(len(trace.sample) - expected) <= 4 * expected**0.5 + 1


def test_what_the_kernel_summed_is_what_its_records_add_up_to(root_bpf: None) -> None:
    """Where the sample is whole: the same thread, the same figures, but for periods that ended on two CPUs at once."""
    with trace_exits() as tracer:
        trace = burst_of_exits(tracer, 1.5).trace
    assert trace.sample_1_in == 1
    again = aggregate_exits(trace.sample)
    exact = ["evidence", "flags", "timer_function", "next_tid", "waker_tid", "count", "running_ns", "idle_ns"]
    assert sorted(again[exact].tolist()) == sorted(trace.causes[exact].tolist())


def test_the_tick_is_known_by_the_address_that_its_timer_has(root_bpf: None) -> None:
    """The kernel's own list names the function of each timer that waits: this CPU runs, so its tick is among them."""
    listed = set(re.findall(r"^ #\d+: .*, (tick_\w+), S:01$", Path("/proc/timer_list").read_text(), re.MULTILINE))
    assert len(listed) == 1, "no tick by a timer of high resolution"
    assert set(name_kernel_functions({find_tick_handler()}).values()) == listed


# One group of 64 CPUs, a second one, a last one that is not full, and as many as x86-64 can have.
POSSIBLE_CPUS = [2, 64, 65, 1365, 4096, 8192]


def verified(tracer: IdleTracer) -> int:
    """Instructions that the kernel followed of the program that is hardest to verify: it refuses from 1,000,000 on."""
    program = tracer.program
    fields = [
        Path(f"/proc/self/fdinfo/{program.descriptor(one)}").read_text().split()
        for kind in ("btf_tracepoint__", "raw_tracepoint__")
        for name in ("sched_switch", "sched_waking", "sched_wakeup_new", "cpu_idle")
        if program.has(one := kind + name)
    ]
    return max(int(words[words.index("verified_insns:") + 1]) for words in fields)


@pytest.mark.parametrize("cpus", POSSIBLE_CPUS)
def test_programs_load_whatever_number_of_cpus_is_possible(root_bpf: None, cpus: int) -> None:
    with trace_exits({"NR_CPUS": cpus}) as tracer:
        assert tracer.program.slots("cpus") == cpus
        assert verified(tracer) < 100_000


@pytest.mark.parametrize("cpus", POSSIBLE_CPUS)
def test_so_do_those_with_stacks(root_bpf: None, sleeper: Sleeper, cpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_program, "count_possible_cpus", lambda: cpus)
    with trace_stacks(resolve([str(sleeper.pid)])) as (tracer, looks):
        assert tracer.program.slots("cpus") == cpus
        assert set(looks.members.images) == {sleeper.pid}
        assert verified(tracer) < 300_000


@pytest.mark.parametrize("cpus", [2, 8192])
def test_and_those_that_stay(root_bpf: None, cpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_program, "count_possible_cpus", lambda: cpus)
    with trace_on_demand(resolve([], system=True)) as (tracer, _looks):
        assert tracer.program.slots("cpus") == cpus
        assert verified(tracer) < 300_000


def test_that_all_cpus_are_busy_is_seen_among_8192_and_ends_with_one_that_idles(root_bpf: None, tmp_path: Path) -> None:
    """Two threads on each CPU wake each other all the time; a CPU that does not exist goes idle, in the last group."""
    program = injecting.build(tmp_path)
    talk = (
        "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); a, b = os.pipe(), os.pipe(); child = os.fork()\n"
        "if child: os.write(a[1], b'x')\n"
        "r, w = (b[0], a[1]) if child else (a[0], b[1])\n"
        "while os.read(r, 1): os.write(w, b'x')"
    )
    talkers = [
        subprocess.Popen([sys.executable, "-c", talk, str(cpu)], start_new_session=True)
        for cpu in os.sched_getaffinity(0)
    ]
    try:
        with trace_exits({"NR_CPUS": 8192}) as tracer:

            def all_busy() -> bool:
                return any(tracer.program.get("shared", 0))

            until = time.monotonic() + 60
            while not all_busy() and time.monotonic() < until:
                pass
            assert all_busy()
            injecting.idle_once(program, tracer, 8191)
            assert tracer.cpus.states()["phase"][8191] in (CpuPhase.IDLE, CpuPhase.LEFT)
            until = time.monotonic() + 0.5
            while time.monotonic() < until:
                assert not all_busy()
    finally:
        for one in talkers:
            os.killpg(one.pid, signal.SIGKILL)
            one.wait()
