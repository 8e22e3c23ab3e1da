"""Pure: repeated windows put together into a phase, and the differences between phases with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from powerprof.records import Cause, Conservation, Delta, EnergyReading, Estimate, Phase, Window
from powerprof.windows.residency import merge_notes
from powerprof.windows.summary import phase_of

COMPARED = ("c0_percent", "wakeups_hz")


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean; None where any value is unknown, or there is none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def difference(before: Sequence[float], after: Sequence[float]) -> Estimate:
    """mean(after) − mean(before) with Welch's 95 % interval (unequal variances; Welch 1947)."""
    mean = sum(after) / len(after) - sum(before) / len(before)
    if len(before) < 2 or len(after) < 2:
        return Estimate(mean=mean, low=None, high=None)
    from scipy import stats

    # By hand: scipy's test warns on stderr where windows are nearly alike, and calls that an unreliable result.
    variances = [_variance_of_mean(values) for values in (before, after)]
    total = sum(variances)
    spread = sum(variance**2 / (len(values) - 1) for variance, values in zip(variances, (before, after), strict=True))
    if spread == 0:  # windows that are all alike
        return Estimate(mean=mean, low=mean, high=mean)
    freedom = total**2 / spread
    half = float(stats.t.ppf(0.975, freedom)) * total**0.5
    return Estimate(mean=mean, low=mean - half, high=mean + half)


def _variance_of_mean(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)


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
