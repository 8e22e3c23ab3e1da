# SPDX-License-Identifier: Apache-2.0
"""Tests for wake-up causes: grouping by thread and place, the answer, and the table of causes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from powerprof.model import text
from powerprof.model.attribution import Attribution, StackFrame
from powerprof.model.records import Cause, IdleRun, Mechanism
from powerprof.report.causes import causes_table, same_sleepers
from powerprof.report.table import Places
from powerprof.report.wakeups import answer_of, count_leading, function_of, group_exits, period_of
from tests.unit.report import sample_records


def frames(*names: str | None) -> list[StackFrame]:
    return [
        StackFrame(
            function=name,
            module="libc.so.6" if (name or "").startswith(("pthread_", "__futex")) else "mariadbd",
            address="0x10",
            function_start="0x10",
        )
        for name in names
    ]


@pytest.mark.parametrize(
    ("counts", "leading"),
    [
        ([], 0),
        ([1], 1),
        ([1, 1, 1], 3),
        ([100, *[1] * 50], 5),
        ([1000, 20, 10.5, 10, 9, 9, 9, 9], 5),
        ([1000, 500, 400, 300, 200, 100, 26, 24, 1], 7),
        ([1] * 99, 20),
        ([1] * 101, 5),
    ],
)
def test_rows_with_a_hundredth_of_the_wakeups_lead(counts: list[float], leading: int) -> None:
    assert count_leading(counts) == leading
    assert count_leading(counts, 2) == min(2, len(counts))
    assert all(count < 0.01 * sum(counts) for count in counts[max(leading, 5) : 20])


@pytest.mark.parametrize(
    ("stack", "name"),
    [
        (
            frames("__futex_abstimed_wait", "pthread_cond_timedwait", "psi_cond_timedwait", "page_cleaner"),
            "page_cleaner",
        ),
        (frames("pthread_cond_wait", "std::condition_variable::wait", None, "worker"), "worker"),
        (frames("pthread_cond_timedwait", "psi_cond_timedwait", None, None), "psi_cond_timedwait"),
        (frames("pthread_cond_timedwait", None, None), None),
        (frames(), None),
    ],
)
def test_function_belongs_to_the_program_and_does_not_only_wait(stack: list[StackFrame], name: str | None) -> None:
    assert function_of(stack) == name


def rows() -> Attribution:
    record = sample_records.attribution()
    first = record.wakeups[0]
    twin = replace(first, mechanism="ipi", origin="device", detail="virtio0", count=5, rate_hz=0.5, period_ms=None)
    return replace(record, wakeups=[first, *record.wakeups[1:], twin])


def test_rows_of_one_thread_and_stack_are_one_cause() -> None:
    record = rows()
    causes = group_exits(record.wakeups)
    assert len(causes) == len(record.wakeups) - 1
    assert sum(cause.count for cause in causes) == sum(row.count for row in record.wakeups)
    assert causes[0].count == 30
    assert causes[0].why == "its own timer 83 %, a device: virtio0 17 %"
    assert period_of(causes[0]) is None  # one row in six has another origin


def test_threads_of_several_processes_are_named_with_their_process() -> None:
    record = rows()
    several = [
        replace(row, thread=replace(row.thread, process=name))
        for row, name in zip(record.wakeups, ("redis", "mariadbd", "redis", "nginx", "nginx", "redis"), strict=False)
    ]
    whole = replace(record, wakeups=several, target=replace(record.target, system=True, label="the host", pid=None))
    assert answer_of(whole).startswith("The host wakes the CPUs ")
    assert "by redis: mysys/statement_timer in " in answer_of(whole)


def test_answer_without_idle_exits() -> None:
    assert answer_of(replace(sample_records.attribution(), wakeups=[])) == "mariadbd (8123) woke no idle CPU in 10.0 s."


def test_stacks_of_one_function_are_summed_in_the_answer() -> None:
    """Two waits in one function of one thread, 3.0/s and 2.0/s, are 5.0/s by that function."""
    record = sample_records.attribution()
    first = record.wakeups[0]
    rows = [
        replace(first, stack=frames(wait, "ha_commit_trans(THD*, bool)", "main"), rate_hz=rate, count=int(10 * rate))
        for wait, rate in (("__futex_a", 3.0), ("__futex_b", 2.0))
    ]
    said = answer_of(replace(record, wakeups=rows))
    assert ": 5.0 by mysys/statement_timer in ha_commit_trans" in said and "THD" not in said


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("ha_commit_trans(THD*, bool)", "ha_commit_trans"),
        ("Item_func_eq::val_bool() const", "Item_func_eq::val_bool"),
        ("void f<int (*)(char)>(int (*)(char))", "void f<int (*)(char)>"),
        ("run(T)::{lambda(int)#1}::operator()(int)", "run(T)::{lambda(int)#1}::operator()"),
        ("f(int)::operator()", "f(int)::operator()"),
        ("client (server.py:22)", "client (server.py:22)"),
        ("(anonymous namespace)", "(anonymous namespace)"),
        ("std::rt::lang_start::<()>::{closure#0}", "std::rt::lang_start::<()>::{closure#0}"),
        ("main", "main"),
        (")", ")"),
    ],
)
def test_parameters_are_removed_from_function_names(name: str, short: str) -> None:
    assert text.without_parameters(name) == short


def _cause(mechanism: Mechanism, rate: float, thread: str | None, name: str | None, process: str = "kernel") -> Cause:
    return Cause(
        mechanism=mechanism,
        name=name,
        process=process,
        pid=0,
        thread=thread,
        wakeups_hz=rate,
        percent=rate,
        count=int(10 * rate),
        c0_ms=rate,
    )


CAUSES = [
    _cause("timer", 3.6, "rcu_preempt", "process_timeout"),
    _cause("device", 2.0, "kworker ext4_end_io_rsv_work", "virtio1-req.0"),
    _cause("ipi", 1.6, "rcu_preempt", "function call"),
    _cause("tick", 1.1, "rcu_preempt", None),
    _cause("timer", 0.5, None, "blk_stat_timer_fn"),
    _cause("timer", 0.4, None, "kdamond_fn"),
]


def test_causes_of_one_thread_are_one_row() -> None:
    assert [len(group) for group in same_sleepers(CAUSES)] == [3, 1, 1, 1]
    run = _run()
    index = next(number for number, phase in enumerate(run.phases) if phase.name == "clients")
    table = causes_table(CAUSES, Places(run), f"/phases/{index}/causes", 2)
    first, second = table.rows
    cells = [first.words(key).text for key in ("rate", "percent", "why", "who", "c0")]
    assert cells == ["6.3", "6.3", "timer, ipi, tick", "kernel", "6.30"]
    assert second.words("rate").text == "2.0"
    assert table.left_count == 2
    # A sum with an unknown part is unknown.
    partly = [replace(CAUSES[0], c0_ms=None), *CAUSES[1:]]
    unknown = causes_table(partly, Places(run), f"/phases/{index}/causes", 2).rows[0]
    assert unknown.words("c0").text == "" and "c0" not in unknown.cells


def _run(*causes: Cause) -> IdleRun:
    run = sample_records.idle_run()
    traced = next(phase for phase in run.phases if phase.causes)
    phases = [
        replace(phase, causes=list(causes or CAUSES), conservation=traced.conservation)
        if phase.name == "clients"
        else phase
        for phase in run.phases
    ]
    return replace(run, phases=phases)
