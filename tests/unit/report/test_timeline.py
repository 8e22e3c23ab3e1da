# SPDX-License-Identifier: Apache-2.0
"""Tests for timelines of captures."""

from __future__ import annotations

import numpy as np
import pytest

from powerprof.attribution.capture import Capture
from powerprof.model.attribution import TargetInfo
from powerprof.model.records import ToolCost
from powerprof.report.html import timeline
from powerprof.report.timeline import TimelineExit, build_timeline
from powerprof.system.tasks import Task
from powerprof.tracing.bpf.shared_numbers import Flag, WakeEvidence, WakerContext
from powerprof.tracing.captures import CpuEdge
from powerprof.tracing.idle_data import IDLE_EXIT
from tests.unit.report.sample_records import filled
from tests.unit.report.test_stacks import HRTIMER_WAKEUP, TICK_FUNCTION

TIMES = ("cpu", "state", "enter_ns", "exit_ns", "next_ns", "next_tid")


def captured(*rows: tuple[tuple[int, ...], dict[str, object]]) -> Capture:
    exits = np.zeros(len(rows), dtype=IDLE_EXIT)
    for number, (times, cause) in enumerate(rows):
        for name, value in {**dict(zip(TIMES, times, strict=True)), **cause}.items():
            exits[number][name] = value
    return filled(
        Capture,
        started_at="2026-11-20T10:00:00+00:00",
        window_s=1.0,
        tool=ToolCost(version="0", cpu_s=0, wakeups_hz=0),
        target=TargetInfo(pid=100, executable=None, build_id=None, label="mariadbd", pids=[100]),
        exits=exits.tobytes(),
        lost_count=0,
        edges=[CpuEdge(0, 0, 10_000, 5), CpuEdge(1, 0, 10_000, 5)],
        states={0: ["POLL", "C1"], 1: ["POLL", "C1"]},
        functions={HRTIMER_WAKEUP: "hrtimer_wakeup"},
        interrupts={24: "virtio0-input.0"},
        tasks=[
            Task(101, 100, "mariadbd", "mariadbd", False),
            Task(200, 200, "sysbench", "sysbench", False),
            Task(14, 14, "rcu_preempt", "kernel", True),
        ],
        server_names={101: "thread/mysys/statement_timer"},
        own_pid=1,
    )


def woken(evidence: WakeEvidence, context: WakerContext, **more: object) -> dict[str, object]:
    return {"evidence": evidence, "flags": Flag.WAKER, "waker_context": context, **more}


def test_each_exit_has_state_mechanism_and_cause() -> None:
    timer, tick = WakeEvidence.LOCAL_TIMER, {"evidence": WakeEvidence.LOCAL_TIMER, "timer_function": TICK_FUNCTION}
    found = build_timeline(
        captured(
            ((0, 1, 100, 500, 700, 101), woken(timer, WakerContext.TIMER, waker_timer_function=HRTIMER_WAKEUP)),
            ((1, 1, 50, 400, 450, 101), woken(WakeEvidence.RESCHEDULE, WakerContext.TASK, waker_tid=200)),
            ((0, 0, 700, 900, 950, 200), woken(WakeEvidence.DEVICE, WakerContext.DEVICE, waker_irq=24)),
            ((1, 7, 450, 9_900, 0, 0), tick),
            ((0, 1, 950, 20_000, 20_100, 14), {}),
        )
    )
    assert found == [
        TimelineExit(1, 50, 400, 450, "C1", "ipi", "sysbench woke mysys/statement_timer", "mysys/statement_timer"),
        TimelineExit(
            0, 100, 500, 700, "C1", "timer", "timer hrtimer_wakeup for mysys/statement_timer", "mysys/statement_timer"
        ),
        TimelineExit(0, 700, 900, 950, "POLL", "device", "virtio0-input.0 for sysbench", "sysbench"),
        TimelineExit(1, 450, 9_900, None, "state 7", "timer", "timer 0xffffffff81000200", None),
    ]


@pytest.mark.parametrize("count", [1, 300, timeline.MAX_KEPT, timeline.MAX_KEPT + 7])
def test_a_page_keeps_the_first_exits_and_counts_the_others(count: int) -> None:
    exits = [TimelineExit(n % 2, n * 1000, n * 1000 + 400, None, "C1", "timer", "a", "t") for n in range(count)]
    drawn = timeline.lanes(exits)
    assert drawn is not None
    assert (drawn.kept_count, drawn.total_count) == (min(count, timeline.MAX_KEPT), count)
    assert drawn.whole_s == pytest.approx(((drawn.kept_count - 1) * 1000 + 400) / 1e9)
