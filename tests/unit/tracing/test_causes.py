# SPDX-License-Identifier: Apache-2.0
"""What the kernel sums is what single records add up to: the very C, compiled natively, beside the same in Python."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerprof.attribution import causes
from powerprof.attribution.causes import period_ms
from powerprof.system.tasks import Task
from powerprof.tracing import idle_data
from powerprof.tracing.bpf.shared_numbers import Flag, WakerContext

FLAGS = [0, Flag.WAKER, Flag.WAKER | Flag.SITE, Flag.WAKER | Flag.WAKER_SITE | Flag.SITE, Flag.TICK, Flag.NO_TASK]


def summed_by_c(library: ctypes.CDLL, exits: np.ndarray) -> np.ndarray:
    """A table of causes, filled by the kernel's code."""
    table: dict[bytes, ctypes.Array[ctypes.c_char]] = {}
    for one in exits:
        record = ctypes.create_string_buffer(one.tobytes(), idle_data.IDLE_EXIT.itemsize)
        key = ctypes.create_string_buffer(idle_data.CAUSE_KEY.itemsize)
        library.key_of(record, key)
        if key.raw not in table:
            table[key.raw] = ctypes.create_string_buffer(idle_data.CAUSE_SUM.itemsize)
        library.add(table[key.raw], record)
    found = np.zeros(len(table), dtype=idle_data.CAUSE)
    keys = np.frombuffer(b"".join(table), dtype=idle_data.CAUSE_KEY)
    sums = np.frombuffer(b"".join(value.raw for value in table.values()), dtype=idle_data.CAUSE_SUM)
    for part in (keys, sums):
        for name in part.dtype.names or ():
            found[name] = part[name]
    return found


def stream(rows: list[tuple[int, int, int, int, int, int, int]]) -> np.ndarray:
    """Records of (gap µs, slept µs, ran µs, thread, flags, evidence, CPU), one after the other."""
    found = np.zeros(len(rows), dtype=idle_data.IDLE_EXIT)
    at = 10**12
    for one, (gap, slept, ran, thread, flags, evidence, cpu) in zip(found, rows, strict=True):
        at += gap * 1000
        one["enter_ns"], one["exit_ns"], one["next_ns"] = at - slept * 1000, at, at + ran * 1000
        one["next_tid"], one["next_tgid"] = (0, 0) if flags & Flag.NO_TASK else (100 + thread, 100)
        one["woken_tid"], one["evidence"], one["cpu"], one["state"] = 100 + thread, evidence, cpu, thread % 3
        one["flags"] = flags
        one["site_ip"], one["site_sp"], one["site_code"] = 0x1000 + thread, 0x7000, thread
        one["waker_context"] = WakerContext.TASK if thread % 2 else WakerContext.TIMER
        one["waker_tid"], one["waker_tgid"], one["waker_cpu"] = 7 + thread % 2, 7, thread % 2
        one["waker_ip"], one["waker_sp"], one["waker_code"] = 0x2000, 0x8000, thread
        one["next_comm"], one["waker_comm"] = f"t{thread}".encode(), b"waker"
        one["sequence"] = at % 2**31
    return found


ROW = st.tuples(
    st.integers(0, 50_000),
    st.integers(1, 10_000),
    st.integers(0, 5_000),
    st.integers(0, 5),
    st.sampled_from([int(flags) for flags in FLAGS]),
    st.integers(0, 9),
    st.integers(0, 3),
)


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(ROW, max_size=120))
def test_the_kernel_s_sums_and_python_s_are_equal_in_every_field(
    library: ctypes.CDLL, rows: list[tuple[int, int, int, int, int, int, int]]
) -> None:
    exits = stream(rows)
    by_c, by_python = summed_by_c(library, exits), idle_data.aggregate_exits(exits)
    assert by_c.tobytes() == by_python.tobytes()
    assert int(by_c["count"].sum()) == len(exits)


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(ROW, max_size=80), cut=st.integers(0, 80))
def test_records_added_to_sums_are_the_sums_of_all(
    library: ctypes.CDLL, rows: list[tuple[int, int, int, int, int, int, int]], cut: int
) -> None:
    exits = stream(rows)
    begun = idle_data.aggregate_exits(exits[:cut])
    assert idle_data.aggregate_exits(exits[cut:], begun).tobytes() == idle_data.aggregate_exits(exits).tobytes()


def test_records_are_added_to_a_cause_that_has_two_entries() -> None:
    """As after a turn of the double buffer."""
    exits = stream([(10_000, 10, 10, thread, int(Flag.WAKER), 1, 0) for thread in (1, 2, 1, 3)])
    twice = np.concatenate([idle_data.aggregate_exits(exits[:2]), idle_data.aggregate_exits(exits[:2])])
    found = idle_data.aggregate_exits(exits[2:], twice)
    assert len(found) == 5
    counts = {tid: int(found["count"][found["next_tid"] == tid].sum()) for tid in (101, 102, 103)}
    assert counts == {101: 3, 102: 2, 103: 1}


def nobody(tid: int, pid: int | None, comm: str, is_kernel: bool | None = None) -> Task:
    return Task(tid, pid, comm or f"thread {tid}", comm or f"thread {tid}", False)


def regular(gaps_us: list[int]) -> np.ndarray:
    return idle_data.aggregate_exits(stream([(gap, 10, 10, 0, int(Flag.WAKER), 1, 0) for gap in gaps_us]))


@pytest.mark.parametrize(
    ("gaps_us", "expected_ms"),
    [
        ([400_000] * 20, 400.0),
        ([10_000, 10_000, 20_000, 10_000, 30_000, 10_000] * 5, 10.0),
        ([20_000, *[10_000] * 12], 10.0),
        ([10_000, 10_500, 9_600, 10_200] * 6, 10.075),
        ([1_000, 7_000, 31_000, 113_000, 2_500, 64_000, 11_700, 5] * 4, None),
        ([10_000] * 4, None),
    ],
)
def test_a_period_is_found_among_intervals(gaps_us: list[int], expected_ms: float | None) -> None:
    found = period_ms(regular(gaps_us))
    assert found is None if expected_ms is None else found == pytest.approx(expected_ms, rel=0.005)


@pytest.mark.parametrize(("gap", "periods"), [(90, 1), (110, 1), (89, 0), (111, 0), (190, 2), (310, 3), (420, 0)])
def test_how_many_periods_an_interval_is(gap: int, periods: int) -> None:
    assert idle_data.count_periods(gap, 100) == periods


def test_a_window_of_a_cpu_begins_and_ends_at_its_edges(library: ctypes.CDLL) -> None:
    total = np.zeros((), dtype=idle_data.CPU_TOTAL)
    (period,) = stream([(0, 1000, 1000, 1, 0, 1, 0)])

    def inside(start_ns: int, end_ns: int) -> bool:
        total["start_ns"], total["end_ns"] = start_ns, end_ns
        raw = ctypes.create_string_buffer(total.tobytes(), idle_data.CPU_TOTAL.itemsize)
        return bool(library.in_window(raw, ctypes.create_string_buffer(period.tobytes(), idle_data.IDLE_EXIT.itemsize)))

    at, whole = int(period["exit_ns"]), int(period["next_ns"])
    assert [inside(*edges) for edges in ((0, 0), (at, 0), (at + 1, 0))] == [False, True, False]
    # What is whole after the end was open at its edge: there the reader looks at it.
    assert [inside(at, end) for end in (at - 1, at, whole - 1, whole)] == [False, False, False, True]


def test_the_sample_is_the_same_choice_everywhere_and_even(library: ctypes.CDLL) -> None:
    cpus, sequences = np.repeat(np.arange(4, dtype=np.uint32), 5000), np.tile(np.arange(5000, dtype=np.uint32), 4)
    hashed = idle_data.hash_periods(cpus, sequences)
    for place in range(0, len(cpus), 997):
        assert library.chosen(int(cpus[place]), int(sequences[place])) == hashed[place]
    for bits in (1, 3, 6):
        chosen = hashed & np.uint64((1 << bits) - 1) == 0
        # Binomial: four standard deviations.
        expected = len(cpus) / (1 << bits)
        assert abs(np.count_nonzero(chosen) - expected) < 4 * np.sqrt(expected)
        # What a longer mask chooses is part of what a shorter one does.
        assert not np.any(chosen & ~(hashed & np.uint64((1 << bits - 1) - 1) == 0))


def test_a_number_that_is_used_again_is_another_thread_s(library: ctypes.CDLL) -> None:
    """Same number, same process number: told apart by when they began, each with its own name."""
    exits = stream([(10_000, 10, 10, 1, 0, 1, 0)] * 3)
    exits["flags"] = [1 << 20, 2 << 20, 2 << 20]
    exits["next_comm"] = [b"first", b"second", b"second-exec"]
    found = summed_by_c(library, exits)
    assert found.tobytes() == idle_data.aggregate_exits(exits).tobytes()
    rows = causes.group_causes(found, causes.classify_exits(found), 1.0, nobody, functions={}, interrupts={})
    # A thread has the name that it had last.
    assert sorted((row.process, row.count) for row in rows) == [("first", 1), ("second-exec", 2)]


def test_exited_threads_have_their_last_names() -> None:
    """By process, thread and start: another thread with the same id keeps its own name."""
    entries = np.zeros(3, dtype=idle_data.CAUSE)
    entries["next_tid"], entries["next_tgid"], entries["next_comm"] = [11, 11, 12], 10, b"old"
    entries["flags"] = [1 << 20, 2 << 20, 1 << 20]
    entries["waker_tid"], entries["waker_tgid"], entries["waker_comm"] = [12, 11, 13], 10, b"before"
    exited = np.zeros(2, dtype=idle_data.RUN_SLOT)
    exited["exited"], exited["exited_comm"] = [10 << 32 | 12, 10 << 32 | 11], [b"twelve", b"eleven"]
    exited["exited_life"] = 1 << 20
    idle_data.set_last_names(entries, exited)
    assert entries["next_comm"].tolist() == [b"eleven", b"old", b"twelve"]
    assert entries["waker_comm"].tolist() == [b"twelve", b"eleven", b"before"]
    idle_data.set_last_names(entries, exited[:0])
    assert entries["next_comm"].tolist() == [b"eleven", b"old", b"twelve"]
