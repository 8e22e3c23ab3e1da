# SPDX-License-Identifier: Apache-2.0
"""A saved capture becomes the timeline of what it traced."""

from __future__ import annotations

import numpy as np

from powerprof.attribution.capture import Capture
from powerprof.model.attribution import TargetInfo
from powerprof.model.records import ToolCost
from powerprof.report.stacks import TimelineExit, build_timeline
from powerprof.system.tasks import Task
from powerprof.tracing.bpf.shared_numbers import Flag, WakeEvidence, WakerContext
from powerprof.tracing.captures import CpuEdge
from powerprof.tracing.idle_data import IDLE_EXIT
from tests.unit.report.sample_records import filled

HRTIMER_WAKEUP, TICK_FUNCTION = 0xFFFFFFFF81000100, 0xFFFFFFFF81000200


def captured(rows: list[dict[str, object]]) -> Capture:
    exits = np.zeros(len(rows), dtype=IDLE_EXIT)
    for number, row in enumerate(rows):
        for name, value in row.items():
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


def test_each_exit_has_its_state_its_mechanism_and_who_is_to_blame() -> None:
    found = build_timeline(
        captured(
            [
                {
                    "cpu": 0,
                    "state": 1,
                    "enter_ns": 100,
                    "exit_ns": 500,
                    "next_ns": 700,
                    "evidence": WakeEvidence.LOCAL_TIMER,
                    "flags": Flag.WAKER,
                    "waker_context": WakerContext.TIMER,
                    "waker_timer_function": HRTIMER_WAKEUP,
                    "next_tid": 101,
                },
                {
                    "cpu": 1,
                    "state": 1,
                    "enter_ns": 50,
                    "exit_ns": 400,
                    "next_ns": 450,
                    "evidence": WakeEvidence.RESCHEDULE,
                    "flags": Flag.WAKER,
                    "waker_context": WakerContext.TASK,
                    "waker_tid": 200,
                    "next_tid": 101,
                },
                {
                    "cpu": 0,
                    "state": 0,
                    "enter_ns": 700,
                    "exit_ns": 900,
                    "next_ns": 950,
                    "evidence": WakeEvidence.DEVICE,
                    "flags": Flag.WAKER,
                    "waker_context": WakerContext.DEVICE,
                    "waker_irq": 24,
                    "next_tid": 200,
                },
                {
                    "cpu": 1,
                    "state": 7,
                    "enter_ns": 450,
                    "exit_ns": 9_900,
                    "next_ns": 0,
                    "evidence": WakeEvidence.LOCAL_TIMER,
                    "timer_function": TICK_FUNCTION,
                },
                {"cpu": 0, "state": 1, "enter_ns": 950, "exit_ns": 20_000, "next_ns": 20_100, "next_tid": 14},
            ]
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
