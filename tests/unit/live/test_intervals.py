# SPDX-License-Identifier: Apache-2.0
"""The sums of an interval: the kernel's counters, the trace and the rows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.energy.total import HostMeters
from powerprof.live import intervals
from powerprof.measure.idle_counters import CpuReading, Snapshot, StateInfo
from powerprof.model.attribution import Attribution, StackFrame, TargetInfo, Thread, Wakeup
from powerprof.model.records import EnergyReading
from tests.unit.live.intervals import interval, row, served
from tests.unit.live.records import attribution, cause, wakeup, waking

STATES = (StateInfo("POLL", True), StateInfo("C1", False))


def reading(cpu: int, at_s: float, poll_s: float, c1_s: float, usage: int) -> CpuReading:
    nothing = (None, None)
    times = (int(poll_s * 1e6), int(c1_s * 1e6))
    return CpuReading(cpu, int(at_s * 1e9), STATES, times, (0, usage), nothing, nothing, nothing, resolved=True)


def test_idle_time_exits_and_c0_of_all_cpus() -> None:
    before = Snapshot({0: reading(0, 10, 0, 5, 100), 1: reading(1, 10, 0, 7, 50)})
    after = Snapshot({0: reading(0, 20, 0.5, 13, 180), 1: reading(1, 20, 0, 17, 60)})
    span = intervals.measure_span(before, after)
    assert (span.window_s, span.cpus, span.exits_count) == (10.0, 2, 90)
    assert span.idle_s[0, "C1"] == pytest.approx(8.0)
    assert span.c0_s == pytest.approx(2.0)  # polling is running
    assert span.polling == {"POLL"}
    assert span.idle_counts[0, "C1"] == intervals.IdleCounts(80, None, None, None)
    assert [state.name for state in span.idle_states] == ["POLL", "C1"]


def test_a_new_cpu_is_left_out_with_a_note() -> None:
    before = Snapshot({0: reading(0, 10, 0, 5, 100)})
    after = Snapshot({0: reading(0, 20, 0, 13, 180), 1: reading(1, 20, 0, 17, 60)})
    span = intervals.measure_span(before, after)
    assert (span.cpus, span.exits_count) == (1, 80)
    assert span.notes == ("CPU 1 came or went: left out of this interval",)


def test_reset_counters_are_left_out() -> None:
    span = intervals.measure_span(Snapshot({0: reading(0, 10, 0, 5, 100)}), Snapshot({0: reading(0, 20, 0, 1, 10)}))
    assert (span.cpus, span.exits_count, span.c0_s) == (0, None, 0.0)
    assert "went backwards" in span.notes[0]


def test_untraced_exits_are_in_the_sum() -> None:
    assert intervals.count_mechanisms([row("a", 70), row("b", 20)], 100) == ({"timer": 90, "untraced": 10}, 100)
    assert intervals.count_mechanisms([row("a", 70)], None) == ({"timer": 70, "untraced": 0}, 70)


def test_exits_ahead_of_the_counters_are_counted_once() -> None:
    """The trace is read some milliseconds after the counters, so it has exits that they lack."""
    leads, ahead, total, kernel = [0, 12, 0, 7, 7, 30, 0, 3], 0, 0, 0
    for before, lead in pairwise(leads):
        counted = 1500
        _, exits = intervals.count_mechanisms([row("a", counted + lead - before)], counted, ahead)
        ahead = intervals.count_ahead_exits(exits, counted, ahead)
        total, kernel = total + exits, kernel + counted
        assert total == kernel + lead


def test_rejected_entries_do_not_accumulate_as_ahead() -> None:
    # The kernel never counts them. If they accumulated, they would hide lost exits.
    ahead = 0
    for _ in range(100):
        _, exits = intervals.count_mechanisms([row("a", 1100)], 1000, ahead)
        ahead = intervals.count_ahead_exits(exits, 1000, ahead)
        assert exits == 1100
    assert ahead == 22
    assert intervals.count_mechanisms([row("a", 500)], 1000, ahead) == ({"timer": 500, "untraced": 478}, 978)


def test_running_time_is_limited_to_the_interval() -> None:
    # A CPU was busy for 4 s until now, of which 1.5 s are in this interval.
    rows = intervals.limit_running_time([row("a", 1, c0_s=4.0), row("b", 10, c0_s=1.0)], 1.5)
    assert [one.c0_s for one in rows] == pytest.approx([1.2, 0.3])
    assert [one.exits_count for one in rows] == [1, 10]
    kept = [row("a", 1, c0_s=0.5)]
    assert intervals.limit_running_time(kept, 1.5) == kept


def stack_of(*stack: tuple[str | None, str]) -> Wakeup:
    frames = [StackFrame(function=name, module=module, address="0x1234") for name, module in stack]
    return msgspec.structs.replace(wakeup(1), stack=frames)


def test_the_function_is_of_the_program_and_not_an_address() -> None:
    assert intervals.name_function(stack_of(("futex_wait", "libc.so.6"), ("srv_master", "mariadbd"))) == "srv_master"
    assert intervals.name_function(stack_of(("nanosleep", "libc.so.6"))) == "nanosleep"
    assert intervals.name_function(stack_of((None, "[unknown]"))) == "[unknown]"
    assert intervals.name_function(stack_of()) == "[no user stack]"


def test_counters_of_a_cpu_are_its_own_and_unknown_misses_stay_unknown() -> None:
    """CPU 1 lacks the counter of misses; CPU 2 was read for a shorter time, and CPU 3 was reset.

    The counters of CPU 1 are ahead of the clock by 2 ms: it did not run for less than 0 s.
    """

    def cpu(
        number: int, at_s: float, c1_s: float, usage: int, above: int | None, below: int | None, **more: Any
    ) -> CpuReading:
        lacks = (None, None)
        return CpuReading(
            number,
            int(at_s * 1e9),
            STATES,
            (500_000, int(c1_s * 1e6)),
            (7, usage),
            lacks if above is None else (3, above),
            lacks if below is None else (4, below),
            more.get("rejected", lacks),
            resolved=True,
            forced=more.get("forced", (0, 0)),
        )

    before = Snapshot(
        {
            0: cpu(0, 10, 5, 100, 20, 30, rejected=(0, 50)),
            1: cpu(1, 10, 7, 50, None, 9),
            2: cpu(2, 11, 1, 5, 2, 2),
            3: cpu(3, 10, 9, 900, 5, 5),
        }
    )
    after = Snapshot(
        {
            0: cpu(0, 20, 13, 180, 25, 42, rejected=(0, 53), forced=(1, 2)),
            1: cpu(1, 20, 17.002, 60, None, 13, forced=(0, 4)),
            2: cpu(2, 18, 5, 25, 6, 9),
            3: cpu(3, 20, 1, 10, 5, 5),
        }
    )
    span = intervals.measure_span(before, after)
    assert (span.cpus, span.window_s) == (3, pytest.approx((10 + 10 + 7) / 3))
    assert span.idle_counts[0, "C1"] == intervals.IdleCounts(entries=80, above=5, below=12, rejected=3)
    assert span.idle_counts[1, "C1"] == intervals.IdleCounts(entries=10, above=None, below=4, rejected=None)
    assert span.idle_counts[2, "C1"] == intervals.IdleCounts(entries=20, above=4, below=7, rejected=None)
    assert (span.exits_count, span.forced_count) == (110, 7)
    assert span.c0_s == pytest.approx(2.0 + 0.0 + 3.0)
    assert {key: round(value, 6) for key, value in span.idle_s.items() if key[1] == "C1"} == {
        (0, "C1"): 8.0,
        (1, "C1"): 10.002,
        (2, "C1"): 4.0,
    }
    assert len(span.notes) == 1 and span.notes[0].startswith("CPU 3: ")
    nothing = CpuReading(0, 10**9, (), (), (), (), (), (), resolved=True)
    uncounted = intervals.measure_span(
        Snapshot({0: nothing}), Snapshot({0: msgspec.structs.replace(nothing, at_ns=3 * 10**9)})
    )
    assert (uncounted.exits_count, uncounted.window_s, uncounted.c0_s) == (None, 2.0, 2.0)


def test_rates_of_an_interval_are_by_its_window_and_its_cpus() -> None:
    other = msgspec.structs.replace(row("b", 24), is_other=True)
    statements = served(window_s=5.0, calls_count=35)
    one = interval(
        row("a", 60), other, untraced=16, window_s=8.0, cpus=5, c0_s=3.0, host_joules=36.0, statements=statements
    )
    assert (one.c0_percent, one.exits_hz, one.target_exits_hz) == (7.5, 12.5, 7.5)
    assert one.statements_hz == 7.0
    assert one.host_watts == (4.5, "measured")
    assert interval(host_joules=36.0, host_kind="estimated", window_s=9.0).host_watts == (4.0, "estimated")
    none = interval(window_s=0.0, host_joules=None)
    assert (none.c0_percent, none.exits_hz, none.target_exits_hz, none.host_watts) == (None, None, 0.0, None)
    assert (none.statements_hz, interval(statements=served()).statements_hz) == (None, None)
    assert interval(cpus=0).c0_percent is None


@pytest.mark.parametrize(
    ("traced", "kernel", "error"), [(90, 100, 0.1), (120, 100, 0.2), (7, 0, 1.0), (0, 0, 0.0), (50, None, None)]
)
def test_the_balance_is_a_share_of_the_kernels_count(traced: int, kernel: int | None, error: float | None) -> None:
    assert intervals.compute_balance_error(traced, kernel) == (None if error is None else pytest.approx(error))


def test_rows_have_the_time_of_their_threads_and_the_target_its_mark() -> None:
    record = attribution(
        wakeups=[
            wakeup(30, "poll", "page_cleaner"),
            wakeup(5, mechanism="ipi", thread=Thread(tid=4, comm="x", pid=99)),
        ],
        wakings_without_exit=[waking(), waking(own_ms=None), waking(own_ms=0.0)],
        other_causes=[cause(50), cause(3, process=None, name=None, mechanism="no_ipi", c0_ms=None, pid=None)],
        target=TargetInfo(pid=70, executable=None, build_id=None, label="mariadbd"),
    )
    rows = intervals.build_rows(record, {70: "mariadbd", 99: "pid 99", 73: "worker"})
    assert [(one.key.process, one.key.thread, one.key.function) for one in rows] == [
        ("mariadbd", "innodb/page_cleaner", "poll"),
        ("x", "x", "poll"),
        ("worker", "worker", "futex_wait"),
        ("sshd", "sshd", "nvme0q1"),
        ("kernel", "kernel", "no-ipi"),
    ]
    assert [one.c0_s for one in rows] == pytest.approx([3.25e-3, 3.25e-3, 12e-3, 7.5e-3, 0.0])
    assert [one.exits_count for one in rows] == [30, 5, 0, 50, 3]
    assert [one.mechanism for one in rows] == ["timer", "ipi", "untraced", "device", "no_ipi"]
    assert [one.is_other for one in rows] == [False, False, False, True, True]
    assert (rows[0].period_ms, rows[0].pid, rows[0].unit, rows[0].stack) == (
        12.5,
        70,
        "db.service",
        ("poll", "page_cleaner"),
    )
    assert (rows[3].period_ms, rows[3].pid, rows[2].pid) == (80.0, 9, 73)
    assert not any(one.is_other for one in intervals.build_rows(attribution(other_causes=[cause()]), {}))


def span_of(**more: Any) -> intervals.Span:
    given: dict[str, Any] = {
        "window_s": 5.0,
        "cpus": 2,
        "idle_s": {(0, "C1"): 4.0},
        "polling": frozenset({"POLL"}),
        "exits_count": 150,
        "forced_count": 6,
        "c0_s": 0.75,
        "notes": ("a note of the counters",),
    }
    return intervals.Span(**{**given, **more})


def build(record: Attribution, span: intervals.Span, **more: Any) -> intervals.LiveInterval:
    given: dict[str, Any] = {
        "ended_at": "2026-01-01T00:00:05Z",
        "processes": {70: "mariadbd", 73: "worker", 9: "powerprof"},
        "meters": HostMeters("rapl", ("package-0", "dram"), "measured"),
        "own_cpu_s": 0.04,
        "own_bpf_s": 0.0125,
        "own_memory_bytes": 71_000_000,
        "suspended_s": 1.5,
        "ahead_count": 10,
    }
    return intervals.build_interval(record, span, **{**given, **more})


def meter(domain: str, joules: float | None, **more: Any) -> EnergyReading:
    watts = None if joules is None else joules / 4.0
    return EnergyReading(
        **{
            "scope": "package",
            "source": "rapl",
            "domain": domain,
            "kind": "measured",
            "joules": joules,
            "watts": watts,
            **more,
        }
    )


def test_an_interval_has_the_kernels_counters_and_the_energy_of_its_whole_time() -> None:
    """4 of 5 s were traced: the energy is larger by a quarter. 10 of 150 exits were counted before."""
    record = attribution(
        wakeups=[wakeup(40), wakeup(8, thread=Thread(tid=1, comm="powerprof", pid=1))],
        wakings_without_exit=[waking()],
        other_causes=[cause(50)],
        energy=[
            meter("package-0", 32.0, scope="package"),
            meter("dram", 8.0, scope="dram"),
            meter("core", None, scope="core", contained_in="package-0"),
        ],
        notes=["a note of the trace"],
    )
    one = build(record, span_of(), processes={70: "mariadbd", 73: "worker", 1: "powerprof"})
    assert (one.exits_count, one.mechanisms) == (140, {"timer": 48, "device": 50, "untraced": 42})
    assert (one.window_s, one.cpus, one.c0_s, one.ahead_count) == (5.0, 2, 0.75, 0)
    assert [(reading.domain, reading.joules) for reading in one.energy] == [
        ("package-0", 40.0),
        ("dram", 10.0),
        ("core", None),
    ]
    assert (one.host_joules, one.host_kind) == (50.0, "measured")
    assert one.own == intervals.OwnCost(cpu_s=0.04, wakeups_count=8 + 6, bpf_s=0.0125, memory_bytes=71_000_000)
    assert (one.lost_count, one.unknown_count, one.lost_stacks_count) == (7, 13, 5)
    assert one.balance_error == pytest.approx(10 / 200)
    assert (one.stacks_complete_percent, one.suspended_s) == (62.5, 1.5)
    assert one.notes == ("a note of the counters", "a note of the trace")
    assert sum(one.c0_s for one in one.rows) == pytest.approx(2 * 3.25e-3 + 12e-3 + 7.5e-3)
    # The rows are limited to the running time of the CPUs.
    assert sum(one.c0_s for one in build(record, span_of(c0_s=0.01)).rows) == pytest.approx(0.01)
    lacking = msgspec.structs.replace(record, energy=[meter("package-0", 32.0), meter("dram", None)])
    assert build(lacking, span_of()).host_joules is None


def test_without_counters_an_interval_has_the_figures_of_the_trace() -> None:
    record = attribution(wakeups=[wakeup(40)])
    one = build(record, span_of(window_s=0.0, cpus=0, exits_count=None, c0_s=9.0), ahead_count=0)
    assert (one.window_s, one.cpus, one.exits_count, one.ahead_count) == (4.0, 3, 40, 0)
    # The trace is ahead: of 40 exits, at most a fiftieth is carried over.
    many = build(attribution(wakeups=[wakeup(1000)]), span_of(exits_count=995), ahead_count=10)
    assert (many.exits_count, many.ahead_count) == (1000, 15)
    most = build(attribution(wakeups=[wakeup(1000)]), span_of(exits_count=500), ahead_count=10)
    assert (most.exits_count, most.ahead_count) == (1000, 20)


COUNTS = st.integers(0, 500)


@given(st.lists(st.tuples(st.sampled_from("abc"), COUNTS, st.floats(0.0, 3.0)), max_size=9))
def test_merged_rows_have_all_exits_and_seconds_and_the_stack_of_the_largest(
    rows: list[tuple[str, int, float]],
) -> None:
    made = [msgspec.structs.replace(row(name, exits, c0_s), stack=(str(exits),)) for name, exits, c0_s in rows]
    merged = intervals.merge_rows([*made, msgspec.structs.replace(row("x", 99), key=intervals.REST)])
    assert sum(one.exits_count for one in merged) == sum(exits for _, exits, _ in rows)
    assert sum(one.c0_s for one in merged) == pytest.approx(sum(c0_s for _, _, c0_s in rows))
    assert len(merged) == len({name for name, _, _ in rows})
    for one in merged:
        own = [exits for name, exits, _ in rows if name == one.key.function]
        assert (one.exits_count, one.stack) == (sum(own), (str(max(own)),))
    assert [one.exits_count for one in merged] == sorted((one.exits_count for one in merged), reverse=True)


def test_a_trend_is_by_the_window_of_each_interval_and_an_age_by_those_with_the_row() -> None:
    history = intervals.RowHistory()
    assert (history.last, history.lines()) == (None, [])
    for window_s, rows in (
        (2.0, [row("a", 8)]),
        (4.0, [row("a", 4), row("b", 6)]),
        (5.0, [row("a", 10, 1.5), row("b", 5)]),
    ):
        history.add(interval(*rows, window_s=window_s, cpus=3))
    first, second = history.lines()
    assert (first.row.key.function, first.rate_hz, first.rates_hz, first.new_s) == ("a", 2.0, (4.0, 1.0, 2.0), None)
    assert first.c0_percent == pytest.approx(10.0)
    assert (second.rate_hz, second.rates_hz, second.new_s) == (1.0, (0.0, 1.5, 1.0), 9.0)
    assert history.series(lambda one: one.exits_hz) == [4.0, 2.5, 3.0]
    for _ in range(intervals.POINTS):
        history.add(interval(row("a", 1)))
    assert len(history.series(lambda one: one.c0_s)) == intervals.POINTS
