# SPDX-License-Identifier: Apache-2.0
"""Made-up idle periods of CPUs with known bursts, as captures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from powerprof.attribution.capture import Capture, IdleCpu
from powerprof.measure.idle_counters import StateInfo
from powerprof.model.attribution import TargetInfo
from powerprof.model.records import ToolCost
from powerprof.system.tasks import Task
from powerprof.tracing.bpf.shared_numbers import Flag, WakeEvidence, WakerContext
from powerprof.tracing.captures import CpuEdge
from powerprof.tracing.idle_data import IDLE_EXIT

US, MS, S = 1_000, 1_000_000, 1_000_000_000
START = 5 * S
STATES = [
    StateInfo("POLL", True, False, 0, 0),
    StateInfo("C1", False, False, 2, 2),
    StateInfo("C6", False, False, 100, 600),
]
Burst = tuple[int, int, int]  # start and end from the start of the window in ns, thread


def records(cpu: int, bursts: Sequence[Burst], window_ns: int, state: int = 1, **more: Any) -> np.ndarray:
    """Return the periods of one CPU that ran in these bursts; the end of the window wakes it if it idles."""
    if bursts and bursts[-1][1] < window_ns:
        bursts = [*bursts, (window_ns, window_ns, 9)]
    made = np.zeros(len(bursts), dtype=IDLE_EXIT)
    before = -MS
    for number, (start, end, tid) in enumerate(bursts):
        row = made[number]
        row["enter_ns"], row["exit_ns"], row["next_ns"] = START + before, START + start, START + end
        row["cpu"], row["state"], row["sequence"], row["next_tid"], row["next_tgid"] = cpu, state, number + 7, tid, 100
        row["evidence"], row["waker_context"] = WakeEvidence.LOCAL_TIMER, WakerContext.TIMER
        row["flags"], row["next_comm"] = Flag.WAKER, f"t{tid}".encode()
        if end >= window_ns:
            row["flags"] |= Flag.OPEN
            row["next_ns"] = 0
        for name, value in more.items():
            row[name] = value
        before = end
    return made


def capture(
    periods: Sequence[np.ndarray],
    window_ns: int,
    *,
    packages: Sequence[int] = (0, 0),
    states: Any = STATES,
    **more: Any,
) -> Capture:
    counts = [len(rows) for rows in periods]
    made = Capture(
        started_at="2026-01-01T00:00:00Z",
        window_s=window_ns / S,
        target=TargetInfo(pid=None, executable=None, build_id=None, label="this system", system=True),
        host={},
        tool=ToolCost(version="0", cpu_s=0.0, wakeups_hz=0.0),
        exits=np.concatenate(periods).tobytes(),
        lost_count=0,
        edges=[CpuEdge(cpu, START, START + window_ns, None, None, count) for cpu, count in enumerate(counts)],
        states={cpu: [state.name for state in states] for cpu in range(len(periods))},
        functions={},
        interrupts={},
        tasks=[Task(tid, 100, f"t{tid}", "server", False) for tid in (1, 2, 3)],
        server_names={3: "thread/innodb/page_cleaner_thread"},
        sites=[],
        sleeping=[],
        images=[],
        wakings=[],
        stacks_lost_count=0,
        unsent_count=0,
        loaded_count=0,
        uncounted_count=0,
        counted_from_ns=0,
        counted_to_ns=window_ns,
        own_pid=1,
        idle_cpus=[
            IdleCpu(
                cpu, package, True, list(states), [3 * cpu + 1 + n for n in rows], [30 * cpu + 11 + n for n in rows]
            )
            for rows in [range(len(states))]
            for cpu, package in zip(range(len(periods)), packages, strict=False)
        ],
    )
    return msgspec.structs.replace(made, **more)


def timer(period_ns: int, run_ns: int, tid: int, window_ns: int, first_ns: int = 0) -> list[Burst]:
    """Return the bursts of a thread that sleeps for a period after the start of each run."""
    starts = range(first_ns or period_ns, window_ns, period_ns)
    return [(start, min(start + run_ns, window_ns), tid) for start in starts]


WINDOW = S
# Runs of 1 ms every 10 ms, and of 2 ms every 25 ms from 5 ms on.
FAST, SLOW = timer(10 * MS, MS, 1, WINDOW), timer(25 * MS, 2 * MS, 2, WINDOW, 5 * MS)
