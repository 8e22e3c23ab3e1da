# SPDX-License-Identifier: Apache-2.0
"""What woke the CPUs, as a person counts it: one thread is one row, and its name is whole on 80 columns."""

from __future__ import annotations

from msgspec.structs import replace

from powerprof.model.records import Cause, IdleRun, Mechanism
from powerprof.report.idle import render_terminal
from powerprof.report.table import Places
from powerprof.report.wakeups import causes_table, same_sleepers
from tests.unit.report import sample_records


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


def test_what_ended_the_sleep_of_one_thread_is_one_row() -> None:
    assert [len(group) for group in same_sleepers(CAUSES)] == [3, 1, 1, 1]
    run = _run()
    index = next(number for number, phase in enumerate(run.phases) if phase.name == "clients")
    table = causes_table(CAUSES, Places(run), f"/phases/{index}/causes", 2)
    first, second = table.rows
    assert [first.words(key).text for key in ("rate", "percent", "why", "who")] == [
        "6.3",
        "6.3",
        "timer, ipi, tick",
        "kernel",
    ]
    assert first.words("c0").text == "6.30"
    assert second.words("rate").text == "2.0"
    assert table.left_count == 2


def test_names_are_whole_where_a_period_stands_beside_them() -> None:
    sleeper = replace(
        _cause("timer", 9.0, None, "hrtimer_wakeup", "a_process_of_16c"), process="mariadbd:worker12", period_ms=50.2
    )
    printed = render_terminal(_run(sleeper, *CAUSES), 80)
    row = next(line for line in printed if "mariadbd:worker12" in line)
    assert row.split() == ["9.0", "9.0", "timer", "mariadbd:worker12", "50.2", "ms"]
    heading = next(line for line in printed if line.split()[:1] == ["/s"])
    assert heading.split() == ["/s", "%", "why", "who", "every"]
    assert any("device virtio1-req.0  kernel  kworker ext4_end_io" in line for line in printed)
    assert max(map(len, printed)) <= 80


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
