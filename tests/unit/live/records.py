# SPDX-License-Identifier: Apache-2.0
"""Builders of an attribution and its rows for tests. All figures differ from each other and from 0."""

from __future__ import annotations

from typing import Any

from powerprof.model.attribution import Attribution, StackCounts, StackFrame, TargetInfo, Thread, Wakeup, Waking
from powerprof.model.records import Cause, Conservation, ToolCost


def frames(*functions: str) -> list[StackFrame]:
    return [StackFrame(function=name, module="mariadbd", address="0x1234") for name in functions]


def wakeup(count: int = 30, *stack: str, **more: Any) -> Wakeup:
    given: dict[str, Any] = {
        "mechanism": "timer",
        "origin": "own_timer",
        "rate_hz": count / 4.0,
        "wakings_count": 3 * count,
        "period_ms": 12.5,
        "c0_ms": 3.25,
        "own_ms": 2.5,
        "thread": Thread(tid=71, comm="ib_pg", server_name="thread/innodb/page_cleaner", pid=70, unit="db.service"),
        "waker": None,
        "stack": frames(*stack) or frames("poll", "page_cleaner"),
        "stack_complete": True,
    }
    return Wakeup(count=count, **{**given, **more})


def waking(**more: Any) -> Waking:
    given: dict[str, Any] = {
        "origin": "other_thread",
        "wakings_count": 22,
        "wakings_hz": 5.5,
        "thread": Thread(tid=72, comm="worker", pid=73),
        "waker": None,
        "stack": frames("futex_wait"),
        "stack_complete": True,
        "own_ms": 12.0,
    }
    return Waking(**{**given, **more})


def cause(count: int = 50, **more: Any) -> Cause:
    given: dict[str, Any] = {
        "mechanism": "device",
        "name": "nvme0q1",
        "process": "sshd",
        "pid": 9,
        "thread": None,
        "wakeups_hz": count / 4.0,
        "percent": 5.0,
        "c0_ms": 7.5,
        "period_ms": 80.0,
    }
    return Cause(count=count, **{**given, **more})


def attribution(**more: Any) -> Attribution:
    """Return a window of 4 s on 3 CPUs."""
    given: dict[str, Any] = {
        "id": None,
        "started_at": "2026-01-01T00:00:00Z",
        "target": TargetInfo(pid=None, executable=None, build_id=None, label="all", system=True),
        "window_s": 4.0,
        "cpus": 3,
        "conservation": Conservation(
            idle_exits_count=190,
            cpuidle_usage_delta_count=200,
            classified_count=170,
            unknown_count=13,
            lost_count=7,
            coverage_percent=89.0,
            reference_count=200,
        ),
        "wakeups": [],
        "stacks": StackCounts(
            captured_count=41,
            complete_count=31,
            truncated_count=6,
            failed_count=4,
            lost_count=5,
            exits_complete_percent=62.5,
        ),
        "tool": ToolCost(version="0", cpu_s=0.25, wakeups_hz=1.5),
    }
    return Attribution(**{**given, **more})
