# SPDX-License-Identifier: Apache-2.0
"""Pure: residency from traced idle periods, where no cpuidle driver counts them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from powerprof.records import StateResidency, Window
from powerprof.tracing.edge import CpuEdge

# What the idle loop says to the cpu_idle tracepoint without a driver: 0 from cpu_idle_poll() (idle=poll), 1 from
# default_idle_call() (kernel/sched/idle.c).
DRIVERLESS_STATES = ("poll", "idle")
_POLLING = frozenset({0})


def traced_residency(
    exits: npt.NDArray[Any],
    edges: Mapping[int, CpuEdge],
    *,
    lost_count: int,
    stat_idle_percent: float | None,
    own_pid: int,
    started_at: str,
) -> Window:
    """The idle time of a window from the exits in it (see `in_window`). No idle period is open at a CPU's edges: those
    that our own coming onto a CPU ended at the last edge (`own_pid` ran there) are in no rate.

    Where records were lost their idle time is unknown, and with it the residency; /proc/stat's is C0 then.
    """
    spans = {cpu: edge.end_ns - edge.start_ns for cpu, edge in edges.items()}
    wall_ns = sum(spans.values())
    notes = ["no cpuidle driver: idle states are unknown, idle time and wake-ups are traced"]
    states = [] if lost_count or not wall_ns else _states(exits, edges, wall_ns, own_pid)
    idle: float | None = sum(state.residency_percent or 0.0 for state in states) if states else stat_idle_percent
    if lost_count and idle is not None:
        notes.append(f"{lost_count} idle exits were lost: C0 is /proc/stat's")
    elif states and stat_idle_percent is not None:
        notes.append(f"/proc/stat says {stat_idle_percent:.2f} % idle beside the traced {idle:.2f} %")
    window_s = wall_ns / len(spans) / 1e9 if spans else None
    forced = _forced(exits, own_pid)
    return Window(
        started_at=started_at,
        window_s=window_s,
        cpus=len(spans),
        c0_percent=None if idle is None else max(0.0, 100.0 - idle),
        idle_percent=idle,
        wakeups_hz=(len(exits) - int(forced.sum()) + lost_count) / window_s if window_s else None,
        states=states,
        residual_percent=None if idle is None else max(0.0, idle - 100.0),
        edge_exits_count=int(forced.sum()),
        residency_source="trace",
        notes=notes,
    )


def _forced(exits: npt.NDArray[Any], own_pid: int) -> npt.NDArray[Any]:
    """Which exits the window's end itself caused: the last one of a CPU, where it was for us."""
    last = np.zeros(len(exits), dtype=bool)
    order = np.lexsort((exits["exit_ns"], exits["cpu"]))
    cpus = exits["cpu"][order]
    if len(order):
        last[order[np.flatnonzero(np.append(cpus[1:] != cpus[:-1], True))]] = True
    mine: npt.NDArray[Any] = last & (exits["next_tgid"] == own_pid)
    return mine


def _states(exits: npt.NDArray[Any], edges: Mapping[int, CpuEdge], wall_ns: int, own_pid: int) -> list[StateResidency]:
    starts = np.zeros(max(edges, default=0) + 1, dtype=np.uint64)
    for cpu, edge in edges.items():
        starts[cpu] = edge.start_ns
    slept = exits["exit_ns"] - np.maximum(exits["enter_ns"], starts[exits["cpu"]])
    window_s = wall_ns / len(edges) / 1e9
    forced = _forced(exits, own_pid)
    found = []
    for number in np.unique(exits["state"]).tolist():
        rows = exits["state"] == number
        total_ns, polling = int(slept[rows].sum()), number in _POLLING
        entries = int(np.count_nonzero(rows & ~forced))
        percent = 100.0 * total_ns / wall_ns
        found.append(
            StateResidency(
                name=DRIVERLESS_STATES[number] if number < len(DRIVERLESS_STATES) else f"state {number}",
                residency_percent=0.0 if polling else percent,
                average_residency_ms=total_ns / entries / 1e6 if entries else None,
                entries_hz=entries / window_s,
                time_us=total_ns / 1e3,
                entries_count=entries,
                polling=polling,
                polling_percent=percent if polling else None,
            )
        )
    return found
