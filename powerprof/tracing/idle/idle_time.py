# SPDX-License-Identifier: Apache-2.0
"""Pure: residency from traced idle periods, where no cpuidle driver counts them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from powerprof.records import StateResidency, Window
from powerprof.tracing.captures.edges import Array, CpuEdge

# What the idle loop says to the cpu_idle tracepoint without a driver: 0 from cpu_idle_poll() (idle=poll), 1 from
# default_idle_call() (kernel/sched/idle.c).
DRIVERLESS_STATES = ("poll", "idle")
_POLLING = frozenset({0})


def traced_residency(
    totals: Array, edges: Mapping[int, CpuEdge], *, stat_idle_percent: float | None, own_pid: int, started_at: str
) -> Window:
    """The idle time of a window from its CPUs' sums (layout.CPU_TOTAL). No idle period is open at a CPU's edges: those
    that our own coming onto a CPU ended at the last edge (`own_pid` ran there) are in no rate.
    """
    mine = totals[sorted(edges)]
    wall_ns = sum(edge.end_ns - edge.start_ns for edge in edges.values())
    window_s = wall_ns / len(edges) / 1e9 if edges else None
    forced = int(np.count_nonzero(mine["last_tgid"] == own_pid))
    exits = int(mine["count"].sum())
    states = _states(mine, wall_ns, window_s) if window_s else []
    idle = sum(state.residency_percent or 0.0 for state in states) if exits else stat_idle_percent
    notes = ["no cpuidle driver: idle states are unknown, idle time and wake-ups are traced"]
    if exits and stat_idle_percent is not None:
        notes.append(f"/proc/stat reports {stat_idle_percent:.2f} % idle, the trace {idle:.2f} %")
    return Window(
        started_at=started_at,
        window_s=window_s,
        cpus=len(edges),
        c0_percent=None if idle is None else max(0.0, 100.0 - idle),
        idle_percent=idle,
        wakeups_hz=(exits - forced) / window_s if window_s else None,
        states=states,
        residual_percent=None if idle is None else max(0.0, idle - 100.0),
        edge_exits_count=forced,
        residency_source="trace",
        notes=notes,
    )


def _states(totals: Array, wall_ns: int, window_s: float) -> list[StateResidency]:
    states = []
    for number in np.flatnonzero(totals["count"].sum(axis=0)).tolist():
        entries, idle_ns = int(totals["count"][:, number].sum()), int(totals["idle_ns"][:, number].sum())
        percent, polling = 100.0 * idle_ns / wall_ns, number in _POLLING
        states.append(
            StateResidency(
                name=DRIVERLESS_STATES[number] if number < len(DRIVERLESS_STATES) else f"state {number}",
                residency_percent=0.0 if polling else percent,
                average_residency_ms=idle_ns / entries / 1e6,
                entries_hz=entries / window_s,
                time_us=idle_ns / 1e3,
                entries_count=entries,
                polling=polling,
                polling_percent=percent if polling else None,
            )
        )
    return states
