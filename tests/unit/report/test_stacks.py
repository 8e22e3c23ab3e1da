# SPDX-License-Identifier: Apache-2.0
"""Flame graphs and timelines: places, differences, limits and causes."""

from __future__ import annotations

import numpy as np
import pytest

from powerprof.attribution.capture import Capture
from powerprof.model.attribution import TargetInfo
from powerprof.model.records import ToolCost
from powerprof.report.flame import MAX_DEPTH, MAX_FRAMES, build_flame, build_flame_difference
from powerprof.report.timeline import TimelineExit, build_timeline
from powerprof.system.tasks import Task
from powerprof.tracing.bpf.shared_numbers import Flag, WakeEvidence, WakerContext
from powerprof.tracing.captures import CpuEdge
from powerprof.tracing.idle_data import IDLE_EXIT
from tests.unit.report.sample_records import filled


def test_frame_width_is_its_share_below_its_caller() -> None:
    graph = build_flame([(("t", "a", "b"), 3), (("t", "a"), 1), (("u",), 4)], unit="exits")
    found = {frame.label: frame for frame in graph.frames}
    assert (found["all"].value, found["all"].width, found["all"].depth) == (8, 1.0, 0)
    assert (found["a"].value, found["a"].own, found["a"].width, found["a"].depth) == (4, 1, 0.5, 2)
    assert (found["b"].value, found["b"].own, found["b"].width) == (3, 3, 0.375)
    assert found["b"].start == found["a"].start == found["t"].start
    assert sum(frame.own for frame in graph.frames) == 8
    assert [frame.label for frame in graph.frames] == ["all", "t", "a", "b", "u"]


def test_recursion_keeps_its_levels() -> None:
    graph = build_flame([(("f", "f", "f"), 2)], unit="exits")
    found = [(frame.label, frame.depth, frame.value) for frame in graph.frames[1:]]
    assert found == [("f", 1, 2), ("f", 2, 2), ("f", 3, 2)]


def test_difference_keeps_frames_of_one_side() -> None:
    a, b = [(("t", "gone"), 6.0), (("t", "same"), 2.0)], [(("t", "same"), 2.0), (("t", "new"), 4.0)]
    graph = build_flame_difference(a, b, unit="1/s")
    found = {frame.label: frame for frame in graph.frames}
    assert (found["gone"].a, found["gone"].value) == (6, 0)
    assert (found["new"].a, found["new"].value) == (0, 4)
    assert found["gone"].width == pytest.approx(6 / 12)
    assert (found["all"].a, found["all"].value) == (8, 6)


def test_hidden_frames_are_counted() -> None:
    deep = tuple(f"f{number}" for number in range(MAX_DEPTH + 50))
    graph = build_flame([(deep, 1)], unit="exits")
    assert graph.depth == MAX_DEPTH + 1 and graph.hidden_count == 1
    wide = build_flame([((f"f{number}",), 1) for number in range(1500)], unit="exits")
    assert len(wide.frames) == 1501 and wide.hidden_count == 0
    bushy = build_flame([((f"f{n}", f"g{n}", f"h{n}", f"i{n}"), 1) for n in range(1500)], unit="exits")
    assert len(bushy.frames) == MAX_FRAMES and bushy.hidden_count > 0
    narrow = build_flame([(("big",), 1_000_000), (("small",), 1)], unit="exits")
    assert [frame.label for frame in narrow.frames] == ["all", "big"] and narrow.hidden_count == 1


def test_order_of_stacks_does_not_change_the_graph() -> None:
    stacks = [(("a", "x"), 1.0), (("b",), 1.0), (("a", "y"), 1.0)]
    assert build_flame(stacks, unit="exits") == build_flame(reversed(stacks), unit="exits")


HRTIMER_WAKEUP, TICK_FUNCTION = 0xFFFFFFFF81000100, 0xFFFFFFFF81000200


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
