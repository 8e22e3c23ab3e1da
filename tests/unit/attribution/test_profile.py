# SPDX-License-Identifier: Apache-2.0
"""Samples of running code and counted calls as records: each figure is computed by hand from the counts."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.attribution.profile import build_function_profile, build_on_cpu_profile
from powerprof.model.records import Note
from powerprof.tracing.bpf.probe_cost import ProbeCost
from powerprof.tracing.captures import FunctionCounts, FunctionTrace, OnCpuCapture, SampleRow, UserStack

# Three kernel functions, and the paths of samples by hash, innermost first. Path 3 is recursive, path 9 is lost.
READ, COPY, CALL = 0xFFFFFFFF81000040, 0xFFFFFFFF81000300, 0xFFFFFFFF81000777
NAMES = {
    READ: ("vfs_read", "vmlinux", READ - 0x10),
    COPY: ("copy_page", "xfs", COPY - 0x20),
    CALL: ("do_syscall_64", "vmlinux", CALL - 0x30),
}
PATHS = {1: [COPY, READ, CALL], 2: [READ, CALL], 3: [READ, COPY, READ], 4: [0xFFFFFFFF82000000]}
NO_STACK = UserStack(77, 70, 71, None, b"", b"")


def sample(kernel: int, count: int, tid: int = 71, user: int = 0, pid: int = 70) -> SampleRow:
    return SampleRow(user, kernel, pid, tid, count)


def capture(rows: list[SampleRow], **more: Any) -> OnCpuCapture:
    """900 events, 300 of them idle; the process's clock and its samples differ, and so do the CPUs' times."""
    values: dict[str, Any] = {
        "event": "cpu-clock",
        "pids": [70],
        "window_s": 4.0,
        "cpus": 3,
        "period_ms": 10.0,
        "users": [NO_STACK],
        "images": [],
        "kernel": PATHS,
        "kernel_names": NAMES,
        "comms": {71: "mariadbd"},
        "events_count": 900,
        "idle_count": 300,
        "target_count": sum(row.count for row in rows),
        "missed_count": 8,
        "stacks_count": 21,
        "lost_stacks_count": 2,
        "lost_rows_count": 5,
        "notes": [],
        "tool_cpu_s": 0.25,
        "bpf_s": 0.0625,
        "process_cpu_ms": 2_200.0,
        "sampled_ms": 12_000.0,
        "unseen_cpu_ms": 70.0,
    }
    return OnCpuCapture(rows=rows, **(values | more))


ROWS = [sample(1, 90), sample(2, 60, tid=72), sample(3, 40), sample(0, 6, user=77), sample(0, 4, user=9)]


def test_figures_of_samples() -> None:
    captured = capture(ROWS)
    record = build_on_cpu_profile(captured, {72: "thread/sql/main"})
    assert (record.event, record.percent_of, record.cpus, record.window_s) == ("cpu-clock", "target", 3, 4.0)
    # 1,200 samples were due in 12 s of CPUs, of which 900 came and 600 met a running CPU.
    assert record.c0_percent == pytest.approx(100 * 600 / 1200)
    assert record.target_count == 200 and record.target_percent == pytest.approx(100 * 200 / 600)
    assert record.target_hz == pytest.approx(200 / 4.0)
    assert (record.clock_c0_ms, record.target_c0_ms, record.sampled_c0_ms) == (2_200.0, 2_200.0, pytest.approx(2_000))
    assert record.low_c0_ms is not None and record.high_c0_ms is not None
    assert 1_700 < record.low_c0_ms < 2_000 < record.high_c0_ms < 2_300
    assert (record.complete_count, record.truncated_count, record.failed_count, record.lost_count) == (190, 0, 6, 9)
    assert (record.missed_count, record.copied_stacks_count, record.unseen_c0_ms) == (8, 21, 70.0)
    assert (record.copied_stacks_count, record.unseen_c0_ms) == (captured.stacks_count, captured.unseen_cpu_ms)
    assert captured.target_count <= captured.events_count - captured.idle_count
    assert (record.tool_cpu_s, record.bpf_s, record.ended, record.pids) == (0.25, 0.0625, None, [70])
    assert [
        (row.tid, row.comm, row.server_name, row.count, row.percent, row.c0_ms, row.stack_state)
        for row in record.stacks
    ] == [
        (71, "mariadbd", None, 90, pytest.approx(45), pytest.approx(990), "kernel"),
        (72, "thread 72", "thread/sql/main", 60, pytest.approx(30), pytest.approx(660), "kernel"),
        (71, "mariadbd", None, 40, pytest.approx(20), pytest.approx(440), "kernel"),
        (71, "mariadbd", None, 6, pytest.approx(3), pytest.approx(66), "failed"),
        (71, "mariadbd", None, 4, pytest.approx(2), pytest.approx(44), "lost"),
    ]


def test_functions_have_own_samples_and_those_of_callees() -> None:
    """A recursive function counts once per sample, and its own samples are those in which it is innermost."""
    record = build_on_cpu_profile(capture(ROWS))
    assert [
        (row.function, row.module, row.kernel, row.self_count, row.total_count, row.self_percent, row.total_percent)
        for row in record.functions
    ] == [
        ("vfs_read", "vmlinux", True, 100, 190, pytest.approx(50), pytest.approx(95)),
        ("copy_page", "xfs", True, 90, 130, pytest.approx(45), pytest.approx(65)),
        ("[unknown]", "", False, 10, 10, pytest.approx(5), pytest.approx(5)),
        ("do_syscall_64", "vmlinux", True, 0, 150, 0.0, pytest.approx(75)),
    ]
    assert [row.self_ms for row in record.functions] == [pytest.approx(each) for each in (1_100, 990, 110, 0)]
    first = record.functions[0]
    # The score interval of 100 of 200 samples (Wilson).
    z = 1.959964
    half = 100 * z * math.sqrt(0.25 / 200 + z * z / 4 / 200**2) / (1 + z * z / 200)
    assert (first.low_percent, first.high_percent) == (pytest.approx(50 - half), pytest.approx(50 + half))


def test_frames_of_the_kernel_have_offsets() -> None:
    (row,) = build_on_cpu_profile(capture([sample(1, 5)])).stacks
    assert [(frame.function, frame.module, frame.offset, frame.kernel) for frame in row.stack] == [
        ("copy_page", "xfs", 0x20, True),
        ("vfs_read", "vmlinux", 0x10, True),
        ("do_syscall_64", "vmlinux", 0x30, True),
    ]
    (row,) = build_on_cpu_profile(capture([sample(4, 5)])).stacks
    (frame,) = row.stack
    assert (frame.function, frame.module, frame.offset, frame.address) == (None, "vmlinux", None, "0xffffffff82000000")


def test_kernel_frames_are_inside_of_the_program() -> None:
    """The path of the kernel precedes that of the program, which has its own state."""
    (row,) = build_on_cpu_profile(capture([sample(2, 5, user=77)])).stacks
    assert row.stack_state == "failed" and [frame.function for frame in row.stack] == ["vfs_read", "do_syscall_64"]


def test_equal_paths_of_a_thread_are_one_row() -> None:
    """Two hashes of one path by names, and another thread with the same path."""
    rows = [sample(1, 9), sample(5, 4), sample(1, 3, tid=72)]
    record = build_on_cpu_profile(capture(rows, kernel={**PATHS, 5: PATHS[1]}))
    assert [(row.tid, row.count) for row in record.stacks] == [(71, 13), (72, 3)]


@pytest.mark.parametrize(
    ("more", "used_ms", "sampled_ms"),
    [
        ({"process_cpu_ms": 2_200.0}, 2_200.0, 2_000.0),
        ({"process_cpu_ms": None}, 2_000.0, 2_000.0),  # the whole system, or a target that ended
        ({"period_ms": None}, None, None),
        ({"event": "page-faults", "period_ms": None, "process_cpu_ms": 2_200.0}, None, None),
    ],
)
def test_time_of_samples(more: dict[str, Any], used_ms: float | None, sampled_ms: float | None) -> None:
    """The process's clock is preferred to samples. Without a period, and for faults, times are unknown."""
    record = build_on_cpu_profile(capture(ROWS, **more))
    assert record.target_c0_ms == (None if used_ms is None else pytest.approx(used_ms))
    assert record.sampled_c0_ms == (None if sampled_ms is None else pytest.approx(sampled_ms))
    assert (record.low_c0_ms is None) == (record.high_c0_ms is None) == (sampled_ms is None)
    first = record.functions[0]
    assert (first.low_percent is None) == (first.high_percent is None) == (used_ms is None)
    assert first.self_ms == (None if used_ms is None else pytest.approx(used_ms / 2))
    assert record.stacks[0].c0_ms == (None if used_ms is None else pytest.approx(0.45 * used_ms))


def test_page_faults_have_no_time_and_no_share_of_the_host() -> None:
    record = build_on_cpu_profile(capture(ROWS, event="page-faults", period_ms=None))
    assert (record.percent_of, record.c0_percent, record.target_percent) == ("page_faults", None, None)
    assert (record.clock_c0_ms, record.unseen_c0_ms, record.target_hz) == (None, 0.0, 50.0)


def test_windows_without_samples() -> None:
    record = build_on_cpu_profile(capture([], events_count=0, idle_count=0))
    assert (record.c0_percent, record.target_percent, record.functions, record.stacks) == (None, None, [], [])
    assert record.target_c0_ms == 2_200.0
    # All samples of a host met idle CPUs.
    record = build_on_cpu_profile(capture([], events_count=900, idle_count=900))
    assert (record.c0_percent, record.target_percent) == (0.0, None)


@pytest.mark.parametrize(
    ("clock_ms", "noted"), [(2_500.0, True), (2_380.0, False), (1_720.0, False), (1_500.0, True), (None, False)]
)
def test_samples_that_contradict_the_clock_have_a_note(clock_ms: float | None, noted: bool) -> None:
    """The interval of 200 of 1,200 samples is 1,758 to 2,268 ms; a twentieth and 20 ms more are not a contradiction."""
    notes = build_on_cpu_profile(capture(ROWS, process_cpu_ms=clock_ms)).notes
    values = [note.values for note in notes if isinstance(note, Note) and note.name == "samples_miss_clock"]
    assert bool(values) is noted
    if noted:
        assert (values[0]["sampled_ms"], values[0]["clock_ms"]) == (pytest.approx(2_000), clock_ms)
        assert float(values[0]["low_ms"]) < 2_000 < float(values[0]["high_ms"])


@given(
    rows=st.lists(
        st.builds(
            sample,
            st.sampled_from([0, 1, 2, 3, 4]),
            st.integers(1, 10**6),
            st.integers(1, 3),
            st.sampled_from([0, 9, 77]),
        ),
        min_size=1,
        max_size=8,
    ),
    window_s=st.floats(0.1, 1e3),
    clock_ms=st.none() | st.floats(1.0, 1e9),
)
def test_law_of_samples(rows: list[SampleRow], window_s: float, clock_ms: float | None) -> None:
    """Rows, states and own samples sum to the target's; shares and times are of the target's whole."""
    whole = sum(row.count for row in rows)
    record = build_on_cpu_profile(
        capture(rows, window_s=window_s, process_cpu_ms=clock_ms, events_count=2 * whole, idle_count=whole // 3)
    )
    assert record.target_hz * window_s == pytest.approx(whole)
    assert record.target_percent == pytest.approx(100 * whole / (2 * whole - whole // 3))
    states = record.complete_count + record.truncated_count + record.failed_count + record.lost_count
    assert states == whole + 5
    for parts in (record.stacks, record.functions):
        counts = [part.count if hasattr(part, "count") else part.self_count for part in parts]
        assert sum(counts) == whole
    assert sum(row.percent for row in record.stacks) == pytest.approx(100)
    assert sum(row.self_percent for row in record.functions) == pytest.approx(100)
    assert record.target_c0_ms == pytest.approx(clock_ms if clock_ms is not None else 10.0 * whole)
    assert sum(row.c0_ms or 0.0 for row in record.stacks) == pytest.approx(record.target_c0_ms)
    assert sum(row.self_ms or 0.0 for row in record.functions) == pytest.approx(record.target_c0_ms)
    for row in record.functions:
        assert row.self_count <= row.total_count <= whole
        assert row.total_percent == pytest.approx(100 * row.total_count / whole)
        assert row.low_percent is not None and row.high_percent is not None
        assert row.low_percent <= row.self_percent <= row.high_percent


# Counted calls.

COST, STEPPED_COST = ProbeCost(call_ns=900.0, inside_ns=400.0), ProbeCost(call_ns=2_500.0, inside_ns=1_600.0)


def counts(name: str = "handler", **more: Any) -> FunctionCounts:
    """2,000 calls with 3,000 calls of probed functions, 1,000 of them stepped; no two times are equal."""
    values: dict[str, Any] = {
        "module": "mariadbd",
        "vaddr": 0x1000,
        "calls": 2_000,
        "returns": 1_990,
        "abandoned": 7,
        "unfinished": 3,
        "wall_ns": 90_000_000,
        "cpu_ns": 60_000_000,
        "self_wall_ns": 40_000_000,
        "self_cpu_ns": 25_000_000,
        "children": 3_000,
        "stepped_children": 1_000,
        "stepped": False,
    }
    return FunctionCounts(name=name, **(values | more))


def trace(*functions: FunctionCounts, **more: Any) -> FunctionTrace:
    values: dict[str, Any] = {
        "pattern": "handler*",
        "pids": [70],
        "window_s": 4.0,
        "hits_count": 4_321,
        "cost": COST,
        "stepped_cost": STEPPED_COST,
        "process_cpu_s": 0.5,
        "unmatched_count": 11,
        "too_deep_count": 12,
        "lost_count": 13,
        "refused": [("setjmp", "why")],
        "notes": ["a note"],
        "method": "uprobe_multi",
        "tool_cpu_s": 0.21,
    }
    return FunctionTrace(functions=list(functions), **(values | more))


def test_figures_of_a_function() -> None:
    """Its probes cost 0.4 µs inside of each call; a child's cost 0.5 or, if stepped, 0.9 µs outside of its own time."""
    record = build_function_profile(trace(counts(), counts("never", calls=0)))
    (row,) = record.functions
    probes_ms = (2_000 * 400 + 2_000 * 500 + 1_000 * 900) / 1e6
    assert row.calls_hz == pytest.approx(500) and row.calls_count == 2_000
    assert row.self_cpu_ms == pytest.approx(25 - probes_ms) and row.self_wall_ms == pytest.approx(40 - probes_ms)
    assert row.self_cpu_percent == pytest.approx(100 * (25 - probes_ms) / 500)
    assert row.self_cpu_mean_us == pytest.approx((25 - probes_ms) * 1e3 / 2_000)
    assert (row.cpu_ms, row.wall_ms, row.probe_ms) == (pytest.approx(60), pytest.approx(90), pytest.approx(1.8))
    assert (row.abandoned_count, row.unfinished_count, row.module) == (7, 3, "mariadbd")
    assert (record.never_called_count, record.hits_count, record.window_s) == (1, 4_321, 4.0)
    assert record.probe_cost_ms == pytest.approx(1.8)
    assert record.probe_cost_percent == pytest.approx(100 * 0.0018 / 4)
    assert (record.probe_call_us, record.probe_stepped_call_us) == (pytest.approx(0.9), pytest.approx(2.5))
    assert record.process_cpu_ms == pytest.approx(500)
    assert (record.unmatched_returns_count, record.too_deep_count, record.lost_count) == (11, 12, 13)
    assert (record.refused, record.notes, record.tool_cpu_s) == ([("setjmp", "why")], ["a note"], 0.21)


def test_stepped_function_pays_for_its_own_probe() -> None:
    (row,) = build_function_profile(trace(counts(stepped=True))).functions
    probes_ms = (2_000 * 1_600 + 2_000 * 500 + 1_000 * 900) / 1e6
    assert row.self_cpu_ms == pytest.approx(25 - probes_ms)
    assert row.probe_ms == pytest.approx(2_000 * 2.5 / 1e3)


def test_times_end_at_zero_and_at_the_process_time() -> None:
    cheap, dear = counts("cheap", self_cpu_ns=1_000), counts("dear", self_cpu_ns=900_000_000)
    first, last = build_function_profile(trace(cheap, dear)).functions
    assert (first.function, first.self_cpu_percent) == ("dear", 100.0)
    assert (last.function, last.self_cpu_ms, last.self_cpu_percent) == ("cheap", 0.0, 0.0)


def test_unknown_figures_of_functions_stay_unknown() -> None:
    """DTrace measures neither costs nor times with inner calls, and a process may have ended."""
    unknown = counts(abandoned=None, wall_ns=None, cpu_ns=None, self_wall_ns=None, self_cpu_ns=None)
    record = build_function_profile(trace(unknown, cost=None, stepped_cost=None, process_cpu_s=None, method="dtrace"))
    (row,) = record.functions
    assert (row.self_cpu_ms, row.self_cpu_percent, row.self_cpu_mean_us, row.self_wall_ms) == (None,) * 4
    assert (row.cpu_ms, row.wall_ms, row.probe_ms, row.abandoned_count) == (None,) * 4
    assert (record.probe_cost_ms, record.probe_cost_percent, record.process_cpu_ms) == (None, None, None)
    assert (record.probe_call_us, record.probe_stepped_call_us) == (None, None)
    (row,) = build_function_profile(trace(counts(), cost=None, stepped_cost=None)).functions
    assert (row.self_cpu_ms, row.self_wall_ms, row.probe_ms) == (pytest.approx(25), pytest.approx(40), None)
    (row,) = build_function_profile(trace(counts(), process_cpu_s=None)).functions
    assert row.self_cpu_percent is None and row.self_cpu_ms == pytest.approx(22.3)


@pytest.mark.parametrize("method", ["uprobe_multi", "uprobe PMU, at exits", "dtrace"])
def test_limits_are_those_of_the_method(method: str) -> None:
    first = build_function_profile(trace(method=method)).limits[0]
    assert ("DTrace" in first, "jump leaves" in first) == (method == "dtrace", method.endswith("exits"))


FUNCTIONS = st.builds(
    counts,
    st.sampled_from("abc"),
    calls=st.integers(0, 10**5),
    children=st.integers(500, 10**5),
    stepped_children=st.integers(0, 500),
    stepped=st.booleans(),
    self_cpu_ns=st.none() | st.integers(0, 10**12),
)


@given(functions=st.lists(FUNCTIONS, max_size=5), window_s=st.floats(0.1, 1e3), cpu_s=st.floats(0.001, 1e3))
def test_law_of_functions(functions: list[FunctionCounts], window_s: float, cpu_s: float) -> None:
    """Rates are calls by the window, means times calls are the self time, and probe costs sum to the whole."""
    record = build_function_profile(trace(*functions, window_s=window_s, process_cpu_s=cpu_s))
    assert len(record.functions) + record.never_called_count == len(functions)
    assert sum(row.calls_count for row in record.functions) == sum(each.calls for each in functions)
    costs = [(STEPPED_COST if each.stepped else COST).call_ns * each.calls / 1e6 for each in functions]
    assert record.probe_cost_ms == pytest.approx(sum(costs))
    assert sum(row.probe_ms or 0.0 for row in record.functions) == pytest.approx(sum(costs))
    assert record.probe_cost_percent == pytest.approx(100 * sum(costs) / 1e3 / window_s)
    for row in record.functions:
        assert row.calls_hz * window_s == pytest.approx(row.calls_count)
        if row.self_cpu_ms is None:
            assert row.self_cpu_percent is None and row.self_cpu_mean_us is None
            continue
        assert row.self_cpu_mean_us is not None and row.self_cpu_percent is not None
        assert row.self_cpu_mean_us * row.calls_count / 1e3 == pytest.approx(row.self_cpu_ms)
        assert row.self_cpu_percent == pytest.approx(min(100.0, 100 * row.self_cpu_ms / 1e3 / cpu_s))
