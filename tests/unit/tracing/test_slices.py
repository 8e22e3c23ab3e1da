# SPDX-License-Identifier: Apache-2.0
"""Sums over the slices of a window, and the state of the program between slices."""

from __future__ import annotations

import mmap
import os
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.system.targets import Target
from powerprof.tracing import slices
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.shared_numbers import CpuPhase
from powerprof.tracing.budget import Stratum
from powerprof.tracing.captures import Array, CpuEdge
from powerprof.tracing.idle_data import CPU_STATE, WOKEN, WOKEN_KEY
from powerprof.tracing.slices import SLICE_COUNT, SliceSums, UseClock, make_slice, prepare_slice, sum_edges
from tests.unit.tracing.programs import FakeProgram

SLICES = st.lists(st.dictionaries(st.integers(1, 6), st.integers(1, 1000), max_size=6), min_size=1, max_size=8)


def _entries(rows: dict[int, int]) -> Array:
    entries = np.zeros(len(rows), dtype=WOKEN)
    entries["tid"], entries["count"] = list(rows), list(rows.values())
    return entries


@given(SLICES, st.integers(0, 8))
def test_sums_over_slices_keep_every_count(slices: list[dict[int, int]], folded_every: int) -> None:
    sums = SliceSums(WOKEN_KEY.names or (), ("count",), "count")
    for number, rows in enumerate(slices):
        sums.add(_entries(rows))
        if folded_every and number % folded_every == 0:
            sums._fold()
    whole, counts = sums.finish()
    of_thread = dict(zip(whole["tid"].tolist(), whole["count"].tolist(), strict=True))
    expected: dict[int, int] = {}
    for rows in slices:
        for tid, count in rows.items():
            expected[tid] = expected.get(tid, 0) + count
    assert of_thread == expected
    by_slice = {
        (int(whole["tid"][entry]), part): count for entry, part, count in counts[["entry", "slice", "count"]].tolist()
    }
    assert by_slice == {(tid, part): count for part, rows in enumerate(slices) for tid, count in rows.items()}
    assert counts.dtype == SLICE_COUNT


def test_edges_are_summed_by_cpu() -> None:
    first = {0: CpuEdge(0, 10, 20, 5, None, 5), 1: CpuEdge(1, 11, 21, 7, None, 7)}
    second = {0: CpuEdge(0, 50, 70, 2, None, 2), 1: CpuEdge(1, 51, 71, None, None, 1)}
    assert sum_edges([first, second]) == {0: CpuEdge(0, 10, 70, 7, None, 7), 1: CpuEdge(1, 11, 71, None, None, 8)}


def test_the_length_of_a_slice_is_that_of_its_edges() -> None:
    edges = {0: CpuEdge(0, 1_000_000_000, 1_300_000_000, 30, None, 30), 1: CpuEdge(1, 1_000_000_000, 1_500_000_000, 9)}
    part = make_slice(Stratum(2.0, 6.0, 3.0, 3.5), edges, 40)
    assert (part.start_s, part.traced_s, part.stratum_s) == (3.0, pytest.approx(0.4), 4.0)
    assert (part.exits_count, part.reference_count, part.weight) == (40, 39, pytest.approx(10.0))


def test_a_slice_begins_without_states_of_the_time_before() -> None:
    """A CPU may have idled since, and a thread may have been woken and may sleep at another place."""
    states = np.zeros(2, dtype=CPU_STATE)
    for state in states:
        state["phase"], state["hardirq"], state["running_tid"] = CpuPhase.IDLE, 4, 77
        state["was_loaded"], state["period"]["sequence"] = 1, 9
    threads = mmap.mmap(-1, 4 * 128)
    words = np.frombuffer(threads, dtype="<u4").reshape(-1, 32)
    words[1] = np.arange(32)
    words[1, 2] = 1

    class Program(FakeProgram):
        def map_array(self, name: str) -> mmap.mmap:
            assert name == "threads"
            return threads

    program = Program({"cpus": [state.tobytes() for state in states]})
    prepare_slice(cast(LoadedProgram, program), [0, 1])
    for row in program.arrays["cpus"]:
        after = np.frombuffer(row, dtype=CPU_STATE)[0]
        assert (after["phase"], after["hardirq"], after["running_tid"]) == (CpuPhase.UNKNOWN, 0, 0)
        assert (after["was_loaded"], after["period"]["sequence"]) == (1, 9) and after["meter_start_ns"] > 0
    assert words[1].tolist() == [*range(2), 0, *range(3, 32)]


def test_the_clock_of_a_process_counts_its_cpu_time() -> None:
    clock = UseClock(Target((os.getpid(),), "this"))
    clock.begin()
    sum(range(3_000_000))
    clock.end()
    assert 0.001 < clock.used_s < 10


def test_the_clock_of_the_system_counts_busy_time_only() -> None:
    clock = UseClock(Target((), "this system", system=True))
    clock.begin()
    clock.end()
    assert 0.0 <= clock.used_s < 5


def test_the_time_of_processes_that_ended_stays_in_the_sum_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process 8 ends, and its number becomes another process's. A target may start processes all day."""
    times_ns = {7: 100, 8: 50}
    monkeypatch.setattr(slices, "process_cpu_ns", times_ns.get)
    clock = UseClock(Target((7, 8), "two"))
    monkeypatch.setattr(Target, "members", lambda self: (7, 8))
    assert clock.read_s() == pytest.approx(150e-9)
    times_ns.update({7: 110, 8: 20})
    assert clock.read_s() == pytest.approx(160e-9)
    times_ns[7] = 130
    assert clock.read_s() == pytest.approx(180e-9)
    del times_ns[7]
    assert clock.read_s() == pytest.approx(180e-9)
    assert clock._seen == {}
