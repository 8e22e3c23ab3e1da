# SPDX-License-Identifier: Apache-2.0
"""Pure: repeated windows put together into a phase, and the differences between phases with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from powerprof.energy.domains import HostMeters, host_energy, host_meters, unmetered
from powerprof.records import (
    Cause,
    Conservation,
    Delta,
    EnergyReading,
    Estimate,
    Note,
    Phase,
    ServerExits,
    Window,
    metric_of,
)
from powerprof.statistics import welch_interval
from powerprof.windows.residency import merge_notes
from powerprof.windows.summary import phase_of

COMPARED = ("c0_percent", "wakeups_hz")


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean; None where any value is unknown, or there is none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def difference(before: Sequence[float], after: Sequence[float]) -> Estimate:
    """mean(after) − mean(before) with Welch's 95 % interval."""
    mean = sum(after) / len(after) - sum(before) / len(before)
    interval = welch_interval(before, after)
    return Estimate(mean=mean, low=interval.low if interval else None, high=interval.high if interval else None)


def _energy(windows: Sequence[Window]) -> list[EnergyReading]:
    """Every domain over all windows: joules add up, watts are their mean; both unknown where a window lacks them.

    An estimate that stood in for some windows only is left out: it is none of the phase.
    """
    by_domain: dict[tuple[str, str, str], list[EnergyReading]] = {}
    for reading in (reading for window in windows for reading in window.energy):
        by_domain.setdefault((reading.source, reading.domain, reading.kind), []).append(reading)
    energies = []
    for same in by_domain.values():
        whole = len(same) == len(windows)
        if not whole and same[0].kind == "estimated":
            continue
        joules = [other.joules for other in same if other.joules is not None]
        energies.append(
            msgspec.structs.replace(
                same[0],
                joules=sum(joules) if len(joules) == len(windows) else None,
                watts=_mean([other.watts for other in same]) if whole else None,
                low_watts=_mean([other.low_watts for other in same]),
                high_watts=_mean([other.high_watts for other in same]),
                dropped_samples_count=sum(other.dropped_samples_count for other in same),
            )
        )
    return energies


def values(windows: Sequence[Window], metric: str) -> list[float]:
    """A figure of every window; empty where any does not know it."""
    numbers: list[Any] = [getattr(window, metric) for window in windows]
    return [] if None in numbers else numbers


def watts_of(windows: Sequence[Window], source: str, domain: str) -> list[float]:
    """Watts of one domain in every window; empty where any does not know it."""
    watts_each = [
        next((r.watts for r in window.energy if r.source == source and r.domain == domain), None) for window in windows
    ]
    return [watts for watts in watts_each if watts is not None] if None not in watts_each else []


def combine(
    name: str,
    windows: Sequence[Window],
    *,
    causes: Sequence[Cause] = (),
    conservation: Conservation | None = None,
    traced_window_s: float | None = None,
    server_exits: ServerExits | None = None,
) -> Phase:
    """One phase from at least one window, with the energy of all of them."""
    phase = phase_of(name, windows)
    notes: list[str | Note] = []
    if phase.wakeups_hz is None and conservation is not None and conservation.idle_exits_count and traced_window_s:
        rate = conservation.idle_exits_count / traced_window_s
        phase = msgspec.structs.replace(phase, wakeups_hz=rate)
        notes = [Note("wakeups_of_traced_window")]
    combined: Phase = msgspec.structs.replace(
        phase,
        energy=_energy(windows),
        causes=list(causes),
        conservation=conservation,
        traced_window_s=traced_window_s,
        server_exits=server_exits,
        notes=merge_notes(phase.notes, notes),
    )
    return combined


def deltas(before: Phase, after: Phase, meters: HostMeters | None = None) -> list[Delta]:
    """What changed from one phase to another: C0, wake-ups, every common idle state, and watts.

    `watts` are the host's by the run's `meters`, over the windows that have them; then every meter's own.
    """
    changes = []

    def add(metric: str, old: Sequence[float], new: Sequence[float]) -> None:
        if old and new:
            changes.append(
                Delta(metric=metric, from_phase=before.name, to_phase=after.name, difference=difference(old, new))
            )

    for metric in COMPARED:
        add(metric, values(before.windows, metric), values(after.windows, metric))
    for state in after.states:
        if not state.polling:
            add(metric_of("residency_percent", state.name), *(_residencies(p, state.name) for p in (before, after)))
    add("watts", *([w for w in host_watts(p, meters) if w is not None] for p in (before, after)))
    for reading in after.energy:
        metric = metric_of("watts", reading.source, reading.domain)
        add(metric, *(watts_of(p.windows, reading.source, reading.domain) for p in (before, after)))
    return changes


def host_watts(phase: Phase, meters: HostMeters | None) -> list[float | None]:
    """The host's watts in every window by the run's meters; None where a window lacks them."""
    return [host_energy(window.energy, meters).watts for window in phase.windows]


def run_meters(phases: Sequence[Phase]) -> HostMeters | None:
    """The one set of meters that stands for the host in all windows of these phases."""
    return host_meters(_windows(phases))


def unmetered_in(phases: Sequence[Phase], meters: HostMeters | None) -> list[str]:
    """A note where windows lack the run's meters."""
    return unmetered(_windows(phases), meters)


def _windows(phases: Sequence[Phase]) -> list[list[EnergyReading]]:
    return [window.energy for phase in phases for window in phase.windows]


def _residencies(phase: Phase, name: str) -> list[float]:
    percents = [
        next((state.residency_percent for state in window.states if state.name == name), None)
        for window in phase.windows
    ]
    return [value for value in percents if value is not None] if None not in percents else []
