# SPDX-License-Identifier: Apache-2.0
"""A phase's joules, split onto the processes whose CPU time was read and the rest of C0."""

from __future__ import annotations

import msgspec

from powerprof.energy.domains import HostMeters, mean_host_energy
from powerprof.energy.split import Consumer
from powerprof.energy.windows import WindowEnergy
from powerprof.records import Phase


def with_energy_split(
    phase: Phase, energy: WindowEnergy, meters: HostMeters | None, baseline: Phase | None = None
) -> Phase:
    """The phase with its joules split onto the groups of processes whose CPU time was read, and the rest of C0.

    `baseline`: the host idle, whose measured power is the floor.
    """
    window_s = sum(window.window_s or 0.0 for window in phase.windows)
    used: dict[str, float] = {}
    for window in phase.windows:
        for group in window.processes:
            if group.name != "rest":
                used[group.name] = used.get(group.name, 0.0) + group.cpu_s
    c0_s = (phase.c0_percent or 0.0) / 100 * phase.cpus * window_s
    stolen_s = (phase.steal_percent or 0.0) / 100 * phase.cpus * window_s
    # Process clocks and idle counters are read at slightly different moments: the rest is never negative.
    rest = max(0.0, c0_s - stolen_s - sum(used.values()))
    consumers = [Consumer(name=name, c0_s=cpu_s) for name, cpu_s in used.items()]
    consumers.append(Consumer(name="rest of the system", c0_s=rest))
    whole = mean_host_energy([window.energy for window in phase.windows], meters)
    idle = None if baseline is None else mean_host_energy([window.energy for window in baseline.windows], meters)
    split = energy.split(
        whole,
        window_s,
        phase.cpus,
        phase.c0_percent,
        consumers,
        steal_percent=phase.steal_percent,
        idle_watts=idle.watts if idle is not None and idle.kind == "measured" else None,
    )
    return msgspec.structs.replace(phase, energy_split=split)
