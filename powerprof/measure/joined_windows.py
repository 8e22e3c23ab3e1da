# SPDX-License-Identifier: Apache-2.0
"""Consecutive windows as one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import msgspec

from powerprof.measure import oslayer
from powerprof.model.records import Window

_RATES = (
    *("c0_percent", "idle_percent", "wakeups_hz", "steal_percent", "user_percent", "system_percent", "irq_percent"),
    *("interrupts_hz", "context_switches_hz", "residual_percent"),
)


def join_windows(windows: Sequence[Window]) -> Window:
    """Return consecutive windows, at least one, as one."""
    return reduce(join_two_windows, windows)


def join_two_windows(first: Window, second: Window) -> Window:
    """Return two consecutive windows as one. Rates and shares are weighted by time, energies are summed."""
    first_s, second_s = first.window_s or 0.0, second.window_s or 0.0
    total = first_s + second_s
    if not total:
        return first

    def mean(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else (a * first_s + b * second_s) / total

    later = {(reading.source, reading.domain): reading for reading in second.energy}
    energy = []
    for reading in first.energy:
        other = later.get((reading.source, reading.domain))
        joules = None
        if other is not None and other.joules is not None and reading.joules is not None:
            joules = reading.joules + other.joules
        energy.append(msgspec.structs.replace(reading, joules=joules, watts=None if joules is None else joules / total))
    cpu_s_of = {process.name: process.cpu_s for process in second.processes}
    processes = []
    for process in first.processes:
        cpu_s = process.cpu_s + cpu_s_of.get(process.name, 0.0)
        share = 100 * cpu_s / (total * first.cpus) if first.cpus else None
        processes.append(msgspec.structs.replace(process, cpu_s=cpu_s, percent=share))
    others = {state.name: state for state in second.states}
    states = []
    for state in first.states:
        same = others.get(state.name)
        if same is None:
            continue
        time_us, entries = state.time_us + same.time_us, state.entries_count + same.entries_count
        states.append(
            msgspec.structs.replace(
                state,
                time_us=time_us,
                entries_count=entries,
                entries_hz=entries / total,
                residency_percent=mean(state.residency_percent, same.residency_percent),
                average_residency_ms=time_us / entries / 1e3 if entries else None,
                above_hz=mean(state.above_hz, same.above_hz),
                below_hz=mean(state.below_hz, same.below_hz),
                rejected_hz=mean(state.rejected_hz, same.rejected_hz),
            )
        )

    def summed(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else a + b

    system = None
    if first.system is not None and second.system is not None:
        system = oslayer.join_os_rates(first.system, first_s, second.system, second_s)
    wakeups = summed(first.tool_wakeups_count, second.tool_wakeups_count)
    return msgspec.structs.replace(
        first,
        window_s=total,
        energy=energy,
        processes=processes,
        states=states,
        edge_exits_count=first.edge_exits_count + second.edge_exits_count,
        tool_cpu_s=summed(first.tool_cpu_s, second.tool_cpu_s),
        tool_wakeups_count=None if wakeups is None else int(wakeups),
        system=system,
        notes=list(dict.fromkeys([*first.notes, *second.notes])),
        **{name: mean(getattr(first, name), getattr(second, name)) for name in _RATES},
    )
