# SPDX-License-Identifier: Apache-2.0
"""CPU time of a server and its statements at the edges of a window, and samples of statements, by hand."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest

from powerprof.tracing import server_processes, statement_definitions, statements
from powerprof.tracing.bpf.btf import Btf
from powerprof.tracing.bpf.shared_numbers import COM_QUERY, MomentCount, StatementCount
from powerprof.tracing.captures import ThreadUse
from powerprof.tracing.server_processes import ServerProcesses, read_run_ns
from powerprof.tracing.statement_samples import MomentSampler, SampledThread
from powerprof.tracing.statement_tables import TEXT_BYTES, ThreadCounters
from powerprof.tracing.statements import QueryTracer
from tests.conftest import Tree
from tests.unit.tracing.programs import FakeProgram

MS = 1_000_000


def counters(size: int, *values: tuple[int, int]) -> list[int]:
    made = [0] * size
    for place, value in values:
        made[place] = value
    return made


def thread(**fields: Any) -> bytes:
    """Return struct thread of a thread that ran from 1 to 6 ms and executed nothing."""
    plain = dict.fromkeys(ThreadCounters._fields, 0) | {"first_ns": MS, "last_ns": 6 * MS, "waits": bytes(72)}
    packed = struct.pack("<12Q72s5QI4x64xQ96x5I8xI4B2x3B", *ThreadCounters(**{**plain, **fields}))
    return packed + bytes(TEXT_BYTES)


def query_tracer(**more: Any) -> Any:
    """Return a tracer between `begin` and `collect`: 11 dispatches, 7 endings, and a trap of 2 µs for each."""
    moved = [
        (StatementCount.DISPATCHES, 11),
        (StatementCount.NO_ROOM, 12),
        (StatementCount.UNREADABLE, 13),
        (StatementCount.CUT, 14),
        (StatementCount.ENDINGS, 7),
    ]
    now = [100 + value for value in counters(len(StatementCount), *moved)]
    total = struct.pack("<4Qq9QQ", 3, 2, 1, 900, 500, *range(9), 77)
    program = FakeProgram(
        arrays={"exited_totals": [bytes(120)], "off_clock": [struct.pack("<32xQ", 5 * MS)]},
        hashes={"threads": {struct.pack("<I", 42): thread()}, "totals": {struct.pack("<2Q", 0x1F00, 42): total}},
        counters={"counters": now},
    )
    made = QueryTracer.__new__(QueryTracer)
    values: dict[str, Any] = {
        "program": program,
        "pid": 70,
        "family": "mysql",
        "members": SimpleNamespace(is_family=False, cpu_ns=lambda: 90 * MS),
        "dispatch": SimpleNamespace(symbol="dispatch", is_sure=True, waits=(), event_address=None),
        "_has_run_queue": True,
        "_has_send": True,
        "_before": [100] * len(StatementCount),
        "_base": {42: 300, 43: 1_000, 44: 2_000, 45: 3_000},
        "_ran": {42: 900, 43: 1_750, 44: 2_000},
        "_started_ns": 1_000 * MS,
        "_ended_ns": 3_500 * MS,
        "_cpu_ns": 40 * MS,
        "_price": None,
        "_run_s": 0.125,
        "_trap_ns": 2_000.0,
    }
    for name, value in (values | more).items():
        setattr(made, name, value)
    return made


def test_trace_of_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "read_comm", lambda tid: f"comm{tid}")
    trace = query_tracer().collect()
    assert trace.window_s == pytest.approx(2.5) and trace.process_cpu_ns == 40 * MS
    assert (trace.dispatches_count, trace.lost_count, trace.unreadable_count, trace.cut_count) == (11, 12, 13, 14)
    assert (trace.cost.bpf_s, trace.cost.trap_ns) == (0.125, 2_000.0 * 18)
    (use,) = trace.uses
    assert (use.calls, use.wakeups, use.faults, use.wall_ns, use.cpu_ns, use.squares) == (3, 2, 1, 900, 500, 77)
    # Thread 42 was switched; 43 ran all the time, 44 not at all, and 45 has ended.
    assert trace.threads == [ThreadUse(42, "comm42", 5 * MS, 0, 0, 0), ThreadUse(43, "comm43", 750, 0, 0, 0)]
    assert (trace.ends_by, trace.tells_locks, trace.has_run_queue) == ("send", False, True)
    assert query_tracer(_has_send=False).collect().ends_by == "do_command"


def at_end(monkeypatch: pytest.MonkeyPatch, cpu_ms: tuple[float | None, float | None], **more: Any) -> int | None:
    """Return the CPU time if the clock is read from 3,000 to 3,400 ms, and counting stops at 3,100 ms."""
    clock, readings = iter([3_000 * MS, 3_100 * MS, 3_400 * MS]), iter(cpu_ms)
    monkeypatch.setattr(statements, "kernel_ns", lambda: next(clock))
    monkeypatch.setattr(statements, "read_run_ns", lambda tid: None if tid == 45 else tid * 1_000)

    def cpu_ns() -> int | None:
        value = next(readings)
        return None if value is None else round(value * MS)

    members = SimpleNamespace(is_family=more.get("is_family", False), cpu_ns=cpu_ns)
    made = query_tracer(members=members, **{name: value for name, value in more.items() if name != "is_family"})
    made.end()
    assert made._ended_ns == 3_100 * MS and made._ran == {42: 42_000, 43: 43_000, 44: 44_000}
    return made._cpu_ns


def test_time_between_two_readings_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the 8 ms between the readings is in the window, and 5 ms were off the process's clock."""
    assert at_end(monkeypatch, (100.0, 108.0)) == (100 + 2 - 40 + 5) * MS
    assert at_end(monkeypatch, (100.0, 108.0), is_family=True) == (100 + 2 - 40) * MS


@pytest.mark.parametrize(("before", "cpu_ms"), [(None, (100.0, 108.0)), (40, (None, 108.0)), (40, (100.0, None))])
def test_time_without_a_reading_is_unknown(
    monkeypatch: pytest.MonkeyPatch, before: int | None, cpu_ms: tuple[float | None, float | None]
) -> None:
    assert at_end(monkeypatch, cpu_ms, _cpu_ns=None if before is None else before * MS) is None


def test_run_time_of_a_thread(fake_tree: Tree) -> None:
    """/proc/TID/schedstat: running time, waiting time, and the number of time slices."""
    fake_tree({"proc/42/schedstat": "123456 789 12\n", "proc/43/schedstat": "\n"})
    assert [read_run_ns(tid) for tid in (42, 43, 44)] == [123_456, None, None]


def test_time_of_a_family_includes_its_ended_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    children = {70: [71, 72], 71: [73]}
    monkeypatch.setattr(server_processes, "list_children", lambda pid: children.get(pid, []))
    monkeypatch.setattr(server_processes, "process_cpu_ns", lambda pid: {70: 5, 71: 70, 73: 900}.get(pid))
    monkeypatch.setattr(server_processes, "reaped_cpu_ns", lambda pid: {70: 10_000, 71: 2_000}.get(pid, 0))
    family = ServerProcesses(70, is_family=True)
    assert family.pids() == [70, 71, 72, 73] and family.cpu_ns() == 12_975
    assert ServerProcesses(70, is_family=False).cpu_ns() == 5
    assert ServerProcesses(72, is_family=True).cpu_ns() is None


@pytest.mark.parametrize(
    ("version", "portal", "fastpath"),
    [
        ("9.6", 48, 4),
        ("13.1", 48, 4),
        ("14.0", 56, 4),
        ("17.9", 56, 4),
        ("18beta1", 56, 5),
        (None, 0, 4),
        ("dev", 0, 4),
    ],
)
def test_layout_of_postgresql_by_version(version: str | None, portal: int, fastpath: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statement_definitions, "build_argument_definitions", lambda *rest: {})
        layout = statement_definitions._of_postgresql(cast(Btf, None), version)
    assert (layout["PORTAL_TEXT"], layout["STATE_FASTPATH"]) == (portal, fastpath)


def moments(sample_ns: float | None, run_s: float | None = 0.5) -> Any:
    moved = [(MomentCount.EVENTS, 400), (MomentCount.NO_ROOM, 12), (MomentCount.UNREADABLE, 13), (MomentCount.CUT, 14)]
    now = [100 + value for value in counters(len(MomentCount), *moved)]
    key, value = struct.pack("<Q2I", 0x1F00, 42, 1), struct.pack("<Q16s", 9, b"worker")
    text = struct.pack("<4I2Q", COM_QUERY, 8, 8, 8, 0, 0) + b"SELECT 1".ljust(TEXT_BYTES, b"\0")
    program = FakeProgram(
        hashes={"moments": {key: value}, "texts": {struct.pack("<Q", 0x1F00): text}},
        counters={"counters": now},
        run_s=run_s,
    )
    made = MomentSampler.__new__(MomentSampler)
    made.family, made.program, made._sample_ns = "mysql", program.as_loaded(), sample_ns
    made._before, made._run_s = [100] * len(MomentCount), 0.2
    made._sampler = SimpleNamespace(sampled_ns=7_500_000, notes=lambda: [])  # type: ignore[assignment]
    return made


def test_samples_of_a_window() -> None:
    found = moments(2_500.0).collect()
    assert found.met == [SampledThread(0x1F00, 42, True, 9, "worker")]
    assert [(text.id, text.text) for text in found.texts] == [(0x1F00, b"SELECT 1")]
    assert (found.events_count, found.lost_count, found.unreadable_count, found.cut_count) == (400, 12, 13, 14)
    assert found.bpf_s == pytest.approx(0.3) and found.sampled_ms == 7.5
    assert found.cost_s == pytest.approx(0.3 + 400 * 2_500 / 1e9)


def test_cost_of_samples_is_unknown_without_one_of_its_parts() -> None:
    found = moments(None).collect()
    assert (found.bpf_s, found.cost_s) == (pytest.approx(0.3), None)
    found = moments(2_500.0, run_s=None).collect()
    assert (found.bpf_s, found.cost_s) == (None, None)
