# SPDX-License-Identifier: Apache-2.0
"""The answer of an attribution: which function on which thread; and one cause for one thread at one place."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from powerprof.model import text
from powerprof.model.attribution import Attribution, StackFrame
from powerprof.report import attribution
from powerprof.report.wakeups import answer_of, function_of, group_exits, period_of
from tests.unit.report import sample_records


def frames(*names: str | None, module: str = "mariadbd") -> list[StackFrame]:
    return [
        StackFrame(
            function=name,
            module="libc.so.6" if (name or "").startswith(("pthread_", "__futex")) else module,
            address="0x10",
            function_start="0x10",
        )
        for name in names
    ]


def test_the_first_sentence_names_function_and_thread() -> None:
    assert answer_of(sample_records.attribution()).startswith(
        "mariadbd (8123) wakes the CPUs 6.8 times a second (17.8 % of all idle exits): "
        "2.5 by mysys/statement_timer in timer_handler, every 400 ms; 2.0 by innodb/thread_pool_thread in "
    )


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
def test_the_function_is_the_programs_own_and_not_its_wrapper_of_a_wait(
    stack: list[StackFrame], name: str | None
) -> None:
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
    assert period_of(causes[0]) is None  # one row in six comes otherwise


def test_of_several_processes_each_thread_says_whose_it_is() -> None:
    record = rows()
    several = [
        replace(row, thread=replace(row.thread, process=name))
        for row, name in zip(record.wakeups, ("redis", "mariadbd", "redis", "nginx", "nginx", "redis"), strict=False)
    ]
    whole = replace(record, wakeups=several, target=replace(record.target, system=True, label="the host", pid=None))
    assert answer_of(whole).startswith("The host wakes the CPUs ")
    assert "by redis: mysys/statement_timer in " in answer_of(whole)


def test_a_target_that_woke_nothing_says_so() -> None:
    assert answer_of(replace(sample_records.attribution(), wakeups=[])) == "mariadbd (8123) woke no idle CPU in 10.0 s."


def test_stacks_of_one_function_are_one_in_the_first_sentence() -> None:
    """Two ways to wait in one function of one thread, 3.0/s and 2.0/s: 5.0 by that function."""
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
def test_parameters_are_left_out_and_nothing_else(name: str, short: str) -> None:
    assert text.without_parameters(name) == short


def deep(count: int) -> list[StackFrame]:
    return frames(*(f"a_function_with_a_long_name_{number:02}" for number in range(count)))


def test_a_deep_stack_ends_in_the_count_of_the_rest() -> None:
    record = sample_records.attribution()
    row = replace(record.wakeups[0], stack=deep(60), waker=None)
    shown = attribution.render_terminal(replace(record, wakeups=[row]), 80)
    stack = [line for line in shown[3:] if "a_function_with_a_long_name" in line]
    assert len(stack) == 8 and stack[-1].endswith("_07 ← 52 more") and max(map(len, stack)) <= 80
    few = attribution.render_terminal(replace(record, wakeups=[replace(row, stack=deep(8))]), 80)
    assert sum(line.endswith("a_function_with_a_long_name_07") for line in few) == 1  # the outermost of eight is shown


def test_evidence_is_a_foot_of_three_lines() -> None:
    shown = attribution.render_terminal(sample_records.attribution(), 80)
    at = next(number for number, line in enumerate(shown) if " classified + " in line)
    assert shown[at + 1].startswith("Complete stacks: ") and shown[at + 2].startswith("powerprof itself: ")
    assert not any(" 0 ms" in line or " 0.000 J" in line for line in shown)
