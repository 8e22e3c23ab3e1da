# SPDX-License-Identifier: Apache-2.0
"""Made-up idle exits, wakings and running times with their attribution; no two figures of a capture are equal."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from powerprof.attribution import blame
from powerprof.attribution.capture import Capture
from powerprof.attribution.sites import SiteStacks
from powerprof.model.attribution import Attribution, TargetInfo
from powerprof.model.records import ToolCost
from powerprof.stacks.store import TableStore
from powerprof.system.tasks import Task
from powerprof.tracing.bpf.shared_numbers import Flag, WakeEvidence, WakerContext
from powerprof.tracing.captures import CpuEdge, select_in_window
from powerprof.tracing.idle_data import IDLE_EXIT, RUN_TIME, SiteWakings, aggregate_exits

PID, OTHER = 100, 200
HRTIMER, NETWORK = 0xFFFFFFFF81000010, 3
MS = 1_000_000
# The windows of idle exits and of wakings differ.
WINDOW_S, WAKINGS_S = 2.5, 3.2


def exits(*rows: dict[str, Any]) -> np.ndarray:
    """One exit every 10 ms, each of 1 ms idle and 0.2 ms running."""
    found = np.zeros(len(rows), dtype=IDLE_EXIT)
    for number, row in enumerate(rows):
        one = found[number]
        at = (number + 1) * 10 * MS
        one["enter_ns"], one["exit_ns"], one["next_ns"] = at - MS, at, at + MS // 5
        one["flags"] = Flag.WAKER | Flag.SITE
        for name, value in row.items():
            one[name] = value
    return found


def own_timer(tid: int, **more: Any) -> dict[str, Any]:
    return {
        "next_tid": tid,
        "next_tgid": PID,
        "evidence": WakeEvidence.LOCAL_TIMER,
        "waker_context": WakerContext.TIMER,
        "waker_timer_function": HRTIMER,
        "timer_function": HRTIMER,
        **more,
    }


def woken_by(tid: int, waker: int, pid: int, **more: Any) -> dict[str, Any]:
    return {
        "next_tid": tid,
        "next_tgid": PID,
        "evidence": WakeEvidence.RESCHEDULE,
        "waker_context": WakerContext.TASK,
        "waker_tid": waker,
        "waker_tgid": pid,
        **more,
    }


def summed(records: np.ndarray) -> np.ndarray:
    """Return the kernel's sums: threads run half of the time until their CPU idles, the kernel three tenths."""
    causes = aggregate_exits(select_in_window(records, {0: CpuEdge(0, 0, 10_000 * MS, None)}))
    causes["own_ns"], causes["kernel_ns"] = causes["running_ns"] // 2, 3 * causes["running_ns"] // 10
    return causes


def capture(records: np.ndarray, wakings: list[SiteWakings] | None = None, **more: Any) -> Capture:
    made = Capture(
        started_at="2026-01-01T00:00:00Z",
        window_s=WINDOW_S,
        target=TargetInfo(pid=PID, executable="/bin/x", build_id=None, label="x", pids=[PID]),
        host={},
        tool=ToolCost(version="0", cpu_s=0.0, wakeups_hz=0.0),
        exits=records.tobytes(),
        causes=summed(records).tobytes(),
        lost_count=0,
        edges=[CpuEdge(0, 0, 10_000 * MS, None)],
        states={0: ["POLL", "C1"]},
        functions={HRTIMER: "hrtimer_wakeup"},
        interrupts={NETWORK: "eth0"},
        tasks=[Task(tid, PID, f"t{tid}", "x", False) for tid in (101, 102)]
        + [Task(OTHER, OTHER, "client", "client", False), Task(9, 9, "ksoftirqd/0", "kernel", True)],
        server_names={},
        sites=[],
        sleeping=[],
        images=[],
        wakings=wakings or [],
        stacks_lost_count=0,
        unsent_count=0,
        loaded_count=0,
        uncounted_count=0,
        counted_from_ns=700 * MS,
        counted_to_ns=3900 * MS,
        own_pid=1,
    )
    return msgspec.structs.replace(made, **more)


def attribution(records: np.ndarray, wakings: list[SiteWakings] | None = None, **more: Any) -> Attribution:
    made = capture(records, wakings, **more)
    return blame.build_attribution(made, SiteStacks(made, TableStore(use_cache=False, downloads=False)))


def waking(tid: int, count: int, context: int = WakerContext.TIMER, **more: Any) -> SiteWakings:
    values = {
        "tid": tid,
        "pid": PID,
        "ip": 0,
        "sp": 0,
        "code": 0,
        "context": context,
        "timer_function": 0,
        "irq": 0,
        "waker_tid": 0,
        "waker_pid": 0,
        "count": count,
    }
    if context == WakerContext.TIMER:
        values["timer_function"] = HRTIMER
    return SiteWakings(**(values | more))


def ran(*threads: tuple[int, int, int, float]) -> bytes:
    """Thread, process, kind and how long it ran in ms."""
    found = np.zeros(len(threads), dtype=RUN_TIME)
    for one, (tid, pid, kind, ms) in zip(found, threads, strict=True):
        one["tid"], one["pid"], one["kind"], one["ns"] = tid, pid, kind, round(ms * MS)
    return found.tobytes()
