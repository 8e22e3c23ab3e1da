"""Pure: repeated windows put together into a phase, and the differences between phases with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from powerprof.records import Cause, Conservation, Delta, EnergyReading, Estimate, Phase, Window
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
    found = welch_interval(before, after)
    return Estimate(mean=mean, low=found.low if found else None, high=found.high if found else None)


def _energy(windows: Sequence[Window]) -> list[EnergyReading]:
    """Joules add up over the windows; watts are their mean. A domain missing in one window is left out."""
    found = []
    for reading in windows[0].energy:
        same = [
            other
            for window in windows
            for other in window.energy
            if (other.source, other.domain, other.kind) == (reading.source, reading.domain, reading.kind)
        ]
        if len(same) != len(windows):
            continue
        joules = [other.joules for other in same]
        found.append(
            msgspec.structs.replace(
                reading,
                joules=None if None in joules else sum(value for value in joules if value is not None),
                watts=_mean([other.watts for other in same]),
                low_watts=_mean([other.low_watts for other in same]),
                high_watts=_mean([other.high_watts for other in same]),
                dropped_samples_count=sum(other.dropped_samples_count for other in same),
            )
        )
    return found


def values(windows: Sequence[Window], metric: str) -> list[float]:
    """A figure of every window; empty where any does not know it."""
    found: list[Any] = [getattr(window, metric) for window in windows]
    return [] if None in found else found


def watts_of(windows: Sequence[Window], source: str, domain: str) -> list[float]:
    """Watts of one domain in every window; empty where any does not know it."""
    found = [
        next((r.watts for r in window.energy if r.source == source and r.domain == domain), None) for window in windows
    ]
    return [watts for watts in found if watts is not None] if None not in found else []


def combine(
    name: str,
    windows: Sequence[Window],
    *,
    causes: Sequence[Cause] = (),
    conservation: Conservation | None = None,
    traced_window_s: float | None = None,
    notes: Sequence[str] = (),
) -> Phase:
    """One phase from at least one window, with the energy of all of them."""
    phase = phase_of(name, windows)
    combined: Phase = msgspec.structs.replace(
        phase,
        energy=_energy(windows),
        causes=list(causes),
        conservation=conservation,
        traced_window_s=traced_window_s,
        notes=merge_notes(phase.notes, notes),
    )
    return combined


def deltas(before: Phase, after: Phase) -> list[Delta]:
    """What changed from one phase to another: C0, wake-ups, every common idle state, and watts of every meter."""
    found = []

    def add(metric: str, old: Sequence[float], new: Sequence[float]) -> None:
        if old and new:
            found.append(
                Delta(metric=metric, from_phase=before.name, to_phase=after.name, difference=difference(old, new))
            )

    for metric in COMPARED:
        add(metric, values(before.windows, metric), values(after.windows, metric))
    for state in after.states:
        if not state.polling:
            add(f"{state.name} residency_percent", *(_residencies(p, state.name) for p in (before, after)))
    for reading in after.energy:
        metric = f"{reading.source} {reading.domain} watts"
        add(metric, *(watts_of(p.windows, reading.source, reading.domain) for p in (before, after)))
    return found


def _residencies(phase: Phase, name: str) -> list[float]:
    found = [
        next((state.residency_percent for state in window.states if state.name == name), None)
        for window in phase.windows
    ]
    return [value for value in found if value is not None] if None not in found else []
