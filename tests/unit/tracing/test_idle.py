# SPDX-License-Identifier: Apache-2.0
"""The trace of a window: each CPU's edges and sums, open periods, samples, losses and running time, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from powerprof.measure.idle_counters import CpuReading, Snapshot, StateInfo
from powerprof.measure.window import PassedWindow
from powerprof.model.records import Note
from powerprof.stacks.registers import X86_64
from powerprof.tracing import idle_data, idle_tables
from powerprof.tracing.bpf.shared_numbers import CAUSE_STATES, Count, CpuPhase, FilledTable, Flag, RunKind, Shared
from powerprof.tracing.captures import CpuEdge, select_in_window
from powerprof.tracing.idle import IdleTracer, WindowTracer, _compute_edges, _Edge
from powerprof.tracing.idle_tables import CpuWindows, FillLimits, IdleSums, PeriodSample, RunTimeReader
from powerprof.tracing.monitor import TraceMonitor, _prevent_decrease
from tests.unit.tracing.programs import FakeProgram

MS, S = 1_000_000, 1_000_000_000
STATES = (StateInfo("POLL", True), StateInfo("C1", False))


def total(start_ms: int = 0, end_ms: int = 0, **sums: Any) -> bytes:
    """Return the sums of one CPU: counts and idle ms by state, and unplaced running ms of others and the target."""
    made = np.zeros((), dtype=idle_data.CPU_TOTAL)
    made["start_ns"], made["end_ns"] = start_ms * MS, end_ms * MS
    made["count"][:2], made["idle_ns"][:2] = sums.get("count", (0, 0)), [ms * MS for ms in sums.get("idle_ms", (0, 0))]
    made["unplaced_ns"] = [ms * MS for ms in sums.get("unplaced_ms", (0, 0))]
    return made.tobytes()


def state(phase: CpuPhase, enter_ms: int, exit_ms: int = 0, number: int = 1, **more: int) -> bytes:
    made = np.zeros((), dtype=idle_data.CPU_STATE)
    made["phase"] = phase
    made["period"]["enter_ns"], made["period"]["exit_ns"], made["period"]["state"] = enter_ms * MS, exit_ms * MS, number
    for name, value in more.items():
        made["period"][name] = value
    return made.tobytes()


def windows(totals: list[bytes], states: list[bytes]) -> CpuWindows:
    return CpuWindows(FakeProgram({"totals": totals, "cpus": states}).as_loaded())


def test_growth_of_the_sums_is_since_the_last_call() -> None:
    program = FakeProgram({"totals": [total(), total()], "cpus": [state(CpuPhase.IDLE, 0)] * 2})
    cpus = CpuWindows(program.as_loaded())
    program.arrays["totals"] = [total(5, count=(1, 9), idle_ms=(2, 30), unplaced_ms=(4, 7)), total(6, count=(0, 3))]
    cpus.read_totals()
    first, open_periods = cpus.take(with_open=False)
    assert len(open_periods) == 0 and first["count"][:, :2].tolist() == [[1, 9], [0, 3]]
    program.arrays["totals"] = [total(5, count=(4, 11), idle_ms=(5, 90), unplaced_ms=(6, 20)), total(6, count=(0, 8))]
    cpus.read_totals()
    growth, _ = cpus.take(with_open=False)
    assert growth["count"][:, :2].tolist() == [[3, 2], [0, 5]]
    assert growth["idle_ns"][0][:2].tolist() == [3 * MS, 60 * MS]
    assert growth["unplaced_ns"].tolist() == [[2 * MS, 13 * MS], [0, 0]]
    assert growth["start_ns"].tolist() == [5 * MS, 6 * MS]


@pytest.mark.parametrize(
    ("phase", "enter_ms", "exit_ms", "idle_ms"),
    [
        (CpuPhase.RUNNING, 40, 70, 30),
        (CpuPhase.LEFT, 4, 70, 60),  # the part before the window of 10 to 90 ms counts on no CPU
        (CpuPhase.RUNNING, 40, 95, None),
        (CpuPhase.RUNNING, 2, 9, None),
        (CpuPhase.IDLE, 40, 70, None),
    ],
)
def test_periods_that_are_open_at_the_end(phase: CpuPhase, enter_ms: int, exit_ms: int, idle_ms: int | None) -> None:
    program = FakeProgram({"totals": [total(), total()], "cpus": [state(phase, enter_ms, exit_ms, next_tgid=77)] * 2})
    cpus = CpuWindows(program.as_loaded())
    cpus.open(0, 10 * MS)
    program.arrays["totals"][0] = total(10, count=(1, 6), idle_ms=(3, 20))
    cpus.close(0, 90 * MS)
    cpus.close(1, 90 * MS)  # of which no window was opened
    cpus.read_totals()
    sums, open_periods = cpus.take(with_open=True)
    assert len(open_periods) == (idle_ms is not None)
    assert sums["count"][0][:2].tolist() == [1, 6 + (idle_ms is not None)]
    assert sums["idle_ns"][0][:2].tolist() == [3 * MS, (20 + (idle_ms or 0)) * MS]
    assert (sums["start_ns"].tolist(), sums["end_ns"].tolist()) == ([10 * MS, 0], [90 * MS, 0])
    if idle_ms is not None:
        assert (open_periods["flags"][0] & Flag.OPEN, open_periods["next_ns"][0]) == (Flag.OPEN, 0)
        assert sums["last_tgid"][0] == 77


def test_idle_time_until_now_includes_the_open_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_tables, "kernel_ns", lambda: 100 * MS)
    states = [
        state(CpuPhase.IDLE, 60),
        state(CpuPhase.RUNNING, 30, 45),
        state(CpuPhase.IDLE, 2),
        state(CpuPhase.UNKNOWN, 60),
    ]
    sums = [total(5, idle_ms=(1, 20)), total(5, idle_ms=(1, 10)), total(8), total(5)]
    found, at_ns = windows(sums, states).read_idle_until_now()
    assert found["idle_ns"][:, 1].tolist() == [60 * MS, 25 * MS, 92 * MS, 0]
    assert found["idle_ns"][0][0] == MS and at_ns.tolist() == [100 * MS] * 4


def test_state_numbers_beyond_the_table_count_in_its_last_place() -> None:
    program = FakeProgram({"totals": [total()], "cpus": [state(CpuPhase.RUNNING, 40, 70, CAUSE_STATES + 3)]})
    cpus = CpuWindows(program.as_loaded())
    cpus.open(0, 10 * MS)
    cpus.read_totals()
    sums, open_periods = cpus.take(with_open=True)
    assert sums["count"][0].tolist() == [0] * (CAUSE_STATES - 1) + [1]
    assert idle_data.aggregate_exits(open_periods)["states"][0].tolist() == [0] * (CAUSE_STATES - 1) + [1]


# Samples.


def periods(count: int, first: int = 0) -> np.ndarray:
    made = np.zeros(count, dtype=idle_data.IDLE_EXIT)
    made["sequence"] = np.arange(first, first + count)
    made["exit_ns"] = 1_000 * np.arange(count, 0, -1)
    return made


def sampler(**more: bool) -> tuple[FakeProgram, PeriodSample]:
    program = FakeProgram({"shared": [bytes(8)] * len(Shared)})
    return program, PeriodSample(program.as_loaded(), **more)


def test_sample_is_halved_until_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_tables, "SAMPLE_LIMIT", 100)
    program, sample = sampler()
    program.pending = [("exits", periods(330).tobytes())]
    program.consume()
    sample.limit()
    mask = int.from_bytes(program.arrays["shared"][Shared.SAMPLE_MASK], "little")
    opened = periods(1)
    opened["flags"], opened["exit_ns"] = Flag.OPEN, 1
    kept, one_in = sample.take(opened)
    assert one_in == mask + 1 in (4, 8) and 330 / one_in * 0.5 < len(kept) <= 100
    assert kept["exit_ns"].tolist()[:-1] == sorted(kept["exit_ns"].tolist()[:-1])
    assert sample.take(opened[:0])[0].tolist() == [] and sample.dropped_count == 0
    sample.reset_rate()
    assert sample.take(opened)[1] == 1


def test_every_period_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_tables, "EVERY_PERIOD_LIMIT", 5)
    program, sample = sampler(keeps_all=True)
    for first in (0, 6):
        program.pending = [("exits", periods(6, first).tobytes())]
        program.consume()
        sample.limit()
    kept, one_in = sample.take(periods(0))
    assert (sorted(kept["sequence"].tolist()), one_in, sample.dropped_count) == ([0, 1, 2, 3, 4], 1, 7)
    sample.clear()
    assert sample.dropped_count == 0


@pytest.mark.parametrize(("living", "limit"), [(0, 250), (100, 350), (900, 750)])
def test_tables_wake_the_reader_at_a_quarter_of_dead_entries(living: int, limit: int) -> None:
    program = FakeProgram({"fill_levels": [bytes(idle_data.FILL_LEVEL.itemsize)] * len(FilledTable)})
    counts = {FilledTable.CAUSES: living, FilledTable.EXITS: 0}
    limits = FillLimits(program.as_loaded(), lambda: counts)
    levels = np.frombuffer(program.table_bytes("fill_levels"), dtype=idle_data.FILL_LEVEL)
    assert levels["limit"].tolist() == [limit, 1 << 62, 250, 1 << 62]
    gathered: list[int] = []
    levels = levels.copy()
    levels["amount"] = limit, 0, 400, 0
    program.arrays["fill_levels"] = [level.tobytes() for level in levels]
    limits.drain(lambda: gathered.append(1))
    levels = np.frombuffer(program.table_bytes("fill_levels"), dtype=idle_data.FILL_LEVEL)
    # A ring buffer is emptied, so its limit is a quarter above its present level.
    assert gathered == [1] and levels["limit"].tolist()[2] == 250 + int(levels["amount"][2])


def slot(tid: int, pid: int, ms: float, kind: int = RunKind.OTHER) -> bytes:
    made = np.zeros((), dtype=idle_data.RUN_SLOT)
    made["who"], made["ns"], made["kind"] = pid << 32 | tid, round(ms * MS), kind
    return made.tobytes()


def test_running_time_is_since_the_last_call() -> None:
    """A thread ran on, another ended and its slot was given to a third; sums of ended ones include the past."""
    empty = bytes(idle_data.RUN_SLOT.itemsize)
    program = FakeProgram({"run_times": [slot(71, 70, 9, RunKind.TARGET), slot(81, 80, 5), slot(91, 90, 7), empty]})
    reader = RunTimeReader(program.as_loaded())
    sums = np.zeros(2, dtype=idle_data.CPU_TOTAL)
    first = reader.since(sums)
    assert first.threads["ns"].tolist() == [9 * MS, 5 * MS, 7 * MS]
    program.arrays["run_times"] = [slot(71, 70, 13, RunKind.TARGET), slot(82, 85, 3), slot(91, 90, 7), empty]
    sums["unplaced_ns"] = [[6 * MS, 2 * MS], [3 * MS, 1 * MS]]
    later = reader.since(sums)
    assert later.threads[["tid", "pid", "ns", "kind"]].tolist() == [
        (71, 70, 4 * MS, RunKind.TARGET),
        (82, 85, 3 * MS, RunKind.OTHER),
    ]
    # Of the 9 ms of ended threads of others, 5 ms were counted before.
    assert (later.others_ns, later.target_ns) == (4 * MS, 3 * MS)
    reader.clear()
    assert program.arrays["run_times"] == [empty] * 4


# The trace of a window.


def cause(count: int, thread: int = 71) -> tuple[bytes, bytes]:
    key, sums = np.zeros((), dtype=idle_data.CAUSE_KEY), np.zeros((), dtype=idle_data.CAUSE_SUM)
    key["next_tid"], sums["count"] = thread, count
    return key.tobytes(), sums.tobytes()


def test_losses_of_a_trace_are_those_of_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_tables, "EVERY_PERIOD_LIMIT", 2)
    counters = list(range(100, 100 + len(Count)))
    program = FakeProgram(
        {
            "totals": [total()],
            "cpus": [state(CpuPhase.RUNNING, 40, 70)],
            "run_times": [bytes(idle_data.RUN_SLOT.itemsize)],
            "fill_levels": [bytes(idle_data.FILL_LEVEL.itemsize)] * len(FilledTable),
            "shared": [bytes(8)] * len(Shared),
        },
        counters={"counters": counters},
    )
    loaded = program.as_loaded()
    tracer = IdleTracer(loaded, IdleSums(loaded), PeriodSample(loaded, keeps_all=True))
    tracer.cpus.open(0, 10 * MS)
    program.hashes["causes"] = dict([cause(9)])
    program.counters["counters"] = [value + 7 * (number + 1) for number, value in enumerate(counters)]
    program.pending = [("exits", periods(3, 5).tobytes())]
    trace = tracer.finish()
    assert trace.lost_count == 7 * (Count.LOST_EXITS + 1)
    assert trace.sample_lost_count == 7 * (Count.LOST_SAMPLES + 1) + 1
    assert (trace.run_time_s, trace.sample_1_in) == (0.5, 1)
    # The kernel's nine exits, and the one that was open.
    assert sorted(trace.causes["count"].tolist()) == [1, 9] and trace.totals["count"][0].sum() == 1
    assert tracer.snapshot().lost_count == 0


def reading(cpu: int, at_ms: int | None, usage: tuple[int, int], rejected: int = 0, **more: Any) -> CpuReading:
    at_ns = None if at_ms is None else at_ms * MS
    values = {"states": STATES, "time_us": (7, 900)} | more
    return CpuReading(cpu, at_ns, usage=usage, above=(0, 0), below=(0, 0), rejected=(rejected, 0), **values)


# CPU 0 counts; CPU 1's counters were reset, CPU 2 went offline, CPU 3 has no time, and CPU 4 has no idle states.
BEFORE = _Edge(
    Snapshot(
        {
            0: reading(0, 100, (3, 40), 2),
            1: reading(1, 110, (3, 40)),
            2: reading(2, 120, (3, 40)),
            3: reading(3, None, (3, 40)),
            4: reading(4, 130, (), states=(), time_us=()),
        }
    ),
    {0: 30, 1: 31, 4: 35},
)
AFTER = _Edge(
    Snapshot(
        {
            0: reading(0, 1_100, (8, 61), 5),
            1: reading(1, 1_210, (1, 2)),
            3: reading(3, 1_300, (8, 61)),
            4: reading(4, 1_190, (), states=(), time_us=()),
        }
    ),
    {0: 57, 4: 99},
)


def cpu_totals() -> np.ndarray:
    sums = np.zeros(5, dtype=idle_data.CPU_TOTAL)
    sums["count"][:, 1] = 21, 22, 23, 24, 25
    return sums


def test_edges_of_each_cpu() -> None:
    edges = _compute_edges(BEFORE, AFTER, cpu_totals())
    assert edges == {
        0: CpuEdge(0, 100 * MS, 1_100 * MS, 5 + 21 + 3, 27, 21),
        1: CpuEdge(1, 110 * MS, 1_210 * MS, None, None, 22),
        2: CpuEdge(2, 120 * MS, 1_300 * MS, None, None, 23),
        4: CpuEdge(4, 130 * MS, 1_190 * MS, None, 64, 25),
    }


def collected(unseen: int, exits: int = 115, *, knows_tick: bool = True) -> Any:
    """Return the window between both edges, of a host whose driver counts, with `exits` of CPU 0 to 4."""
    sums = cpu_totals()
    sums["count"][0][1] += exits - 115
    trace = SimpleNamespace(totals=sums)
    tracer = WindowTracer.__new__(WindowTracer)
    tracer._tracer = SimpleNamespace(finish=lambda: trace, knows_tick=knows_tick)  # type: ignore[assignment]
    tracer._slicer, tracer._slices = None, []
    tracer._meters = SimpleNamespace(collect=lambda: ([], []))  # type: ignore[assignment]
    tracer._edges = SimpleNamespace(  # type: ignore[assignment]
        before=BEFORE,
        after=AFTER,
        started_at="2026-01-01T00:00:00Z",
        stat_idle_percent=66.5,
        reader=SimpleNamespace(cpus=(0, 1, 2, 3), state_names=lambda: {0: ["POLL", "C1"]}),
        unseen={"nmi": unseen},
    )
    return tracer.collect(PassedWindow(9.0, 0.25, 5, ["a note"]))


def test_window_is_the_mean_of_the_cpus() -> None:
    window = collected(3)
    assert window.window_s == pytest.approx((1_000 + 1_100 + 1_180 + 1_060) / 4 / 1e3)
    assert (window.tool_cpu_s, window.stat_idle_percent, window.ended) == (0.25, 66.5, None)
    assert "a note" in window.residency.notes
    assert any("CPU 1-2,4" in str(note) for note in window.residency.notes)


@pytest.mark.parametrize(
    ("unseen", "exits", "noted"), [(9, 115, False), (10, 115, True), (49, 5_000, False), (50, 5_000, True)]
)
def test_interrupts_without_a_tracepoint_have_a_note(unseen: int, exits: int, noted: bool) -> None:
    notes = [note.values["count"] for note in collected(unseen, exits).residency.notes if isinstance(note, Note)]
    assert notes == ([unseen] if noted else [])


def test_hidden_addresses_of_the_kernel_have_a_note() -> None:
    notes = [note.name for note in collected(0, knows_tick=False).residency.notes if isinstance(note, Note)]
    assert notes == ["tick_hidden"]


def test_exits_of_a_window_are_within_both_edges() -> None:
    made = np.zeros(5, dtype=idle_data.IDLE_EXIT)
    made["exit_ns"] = 99, 100, 150, 200, 201
    assert select_in_window(made, {0: CpuEdge(0, 100, 200, None)})["exit_ns"].tolist() == [100, 150, 200]


# Monitors.


def test_counters_of_a_monitor_never_decrease() -> None:
    old, new = reading(0, 100, (3, 40), time_us=(9, 700)), reading(0, 200, (3, 41), time_us=(7, 900))
    assert _prevent_decrease(old, new).time_us == (9, 900)
    assert _prevent_decrease(None, new).time_us == (7, 900)
    assert _prevent_decrease(replace(old, time_us=(9,)), new).time_us == (7, 900)


def test_each_interval_of_a_monitor_has_its_own_program_time() -> None:
    run_s = iter([0.75, 2.0, None, 5.0])
    trace = SimpleNamespace(totals=np.zeros(1, dtype=idle_data.CPU_TOTAL), causes=np.zeros(0, dtype=idle_data.CAUSE))
    monitor = TraceMonitor.__new__(TraceMonitor)
    monitor._reader = SimpleNamespace(cpus=(0,), state_names=lambda: {})  # type: ignore[assignment]
    ends = iter([2_100, 3_600, 4_100, 4_600])

    def snapshot() -> Any:
        from powerprof.tracing.idle import IdleTrace
        from powerprof.tracing.idle_data import RunTimes

        empty = np.zeros(0, dtype=idle_data.IDLE_EXIT)
        return IdleTrace(trace.causes, 0, empty, 1, 0, trace.totals, RunTimes(empty), next(run_s))

    monitor._tracer = SimpleNamespace(snapshot=snapshot, program=FakeProgram().as_loaded())  # type: ignore[assignment]
    monitor._pieces, monitor._on_ns, monitor.traced_share = [], 0, 1.0
    monitor._read_counters = lambda: Snapshot({0: reading(0, next(ends), (4, 50))})  # type: ignore[method-assign]
    monitor._snapshot, monitor._edges = Snapshot({0: reading(0, 1_100, (3, 40))}), {0: 1_100 * MS}
    monitor._started_at, monitor._run_time_s, monitor._read_ns = "2026-01-01T00:00:00Z", 0.25, 0
    from powerprof.measure.procfs import read_stat
    from powerprof.system.own_processes import read_own_cost

    monitor._stat, monitor._cost = read_stat(), read_own_cost()
    first, second, unknown, last = (monitor.read() for _ in range(4))
    assert (first.trace.run_time_s, second.trace.run_time_s) == (pytest.approx(0.5), pytest.approx(1.25))
    assert unknown.trace.run_time_s is None and last.trace.run_time_s == pytest.approx(5.0)
    assert [each.window_s for each in (first, second, unknown)] == [pytest.approx(part) for part in (1.0, 1.5, 0.5)]
    assert first.edges[0].usage_delta_count == 11 and second.edges[0].usage_delta_count == 0


# Records of the ring buffer.


def test_record_of_a_stack() -> None:
    header = np.zeros((), dtype=idle_data.STACK_HEADER)
    for number, name in enumerate(("at_ns", "ip", "sp", "code", "tid", "tgid", "kind", "space"), 21):
        header[name] = number
    header["bytes"] = 5
    registers = bytes(range(X86_64.register_bytes))
    data = header.tobytes() + registers + b"stack and more"
    site = idle_data.decode_site(data, X86_64.register_bytes)
    assert (site.at_ns, site.ip, site.sp, site.code) == (21, 22, 23, 24)
    assert (site.tid, site.pid, site.kind, site.space) == (25, 26, 27, 28)
    assert (site.registers, site.stack) == (registers, b"stack")
