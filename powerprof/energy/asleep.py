# SPDX-License-Identifier: Apache-2.0
"""Energy of a window in which the host was suspended: that of the time it was awake. Pure.

What a counter shows after a suspend is no window's. Suspended to idle a package draws on, and RAPL counts it; suspended
to RAM it has lost its power, and its registers begin at 0 (the driver of powercap brings back the limits alone:
intel_rapl_common.c, rapl_pm_callback). Either way that step lies in no time that CLOCK_MONOTONIC knows.
"""

from __future__ import annotations

from collections.abc import Sequence

from powerprof.records import Scope
from powerprof.sources.meter import DomainEnergy
from powerprof.sources.series import EnergySeries, in_window

# From the last sample before a suspend to the first one after it.
Gap = tuple[float, float]
Span = tuple[float, float]


def awake(start_s: float, end_s: float, gaps: Sequence[Gap]) -> list[Span]:
    """The window without the gaps; `gaps` are in order."""
    spans, begin_s = [], start_s
    for gap_start_s, gap_end_s in gaps:
        if gap_end_s <= begin_s or gap_start_s >= end_s:
            continue
        spans.append((begin_s, gap_start_s))
        begin_s = gap_end_s
    return [(a, b) for a, b in [*spans, (begin_s, end_s)] if b > a]


def joined(
    domains: Sequence[tuple[str, Scope, str | None]],
    parts: Sequence[tuple[Span, Sequence[DomainEnergy]]],
    start_s: float,
    end_s: float,
) -> list[DomainEnergy]:
    """The energy of each domain (with its scope and what includes it) from those of the spans awake: their mean power
    stands for the window, as for any gap. Less than half of the window awake between samples gives no figure.
    """
    window_s = end_s - start_s
    result = []
    for domain, scope, inside in domains:
        known_s = joules = edge_joules = 0.0
        dropped, notes = 0, list[str]()
        for (a, b), items in parts:
            energy = next((item.energy for item in items if item.domain == domain), None)
            if energy is None:
                continue
            dropped += energy.dropped
            notes += energy.notes
            counted = in_window(energy, a, b)[0]
            if counted is not None:
                known_s, joules, edge_joules = known_s + b - a, joules + counted, edge_joules + energy.edge_joules
        if known_s < window_s / 2:
            notes.append(
                f"the host was suspended, and samples cover {known_s:.1f} s of the {window_s:.1f} s awake: no figure"
            )
            energy = EnergySeries(None, start_s, end_s, dropped, tuple(dict.fromkeys(notes)))
        else:
            notes.append(f"{window_s - known_s:.1f} s around a suspend are left out: filled with the mean power")
            share = window_s / known_s
            distinct_notes = tuple(dict.fromkeys(notes))
            energy = EnergySeries(joules * share, start_s, end_s, dropped, distinct_notes, edge_joules * share)
        result.append(DomainEnergy(domain, scope, energy, inside))
    return result
