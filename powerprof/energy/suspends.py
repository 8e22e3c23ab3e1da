# SPDX-License-Identifier: Apache-2.0
"""The energy of a window in which the host was suspended: that of its time awake. Pure.

The step of a counter across a suspend belongs to no window. In suspend-to-idle a package still draws power, and RAPL
counts it. In suspend-to-RAM it loses power, and its registers restart at 0 (powercap's driver restores only the
limits: intel_rapl_common.c, rapl_pm_callback). Either way CLOCK_MONOTONIC does not count that time.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from powerprof.energy.meters.meter import DomainEnergy
from powerprof.measure.energy_series import EnergySeries, scale_to_window

# From the last sample before a suspend to the first one after it.
Gap = tuple[float, float]
Span = tuple[float, float]


def subtract_gaps(start_s: float, end_s: float, gaps: Sequence[Gap]) -> list[Span]:
    """Return the window without the gaps, which are ordered."""
    spans, begin_s = [], start_s
    for gap_start_s, gap_end_s in gaps:
        if gap_end_s <= begin_s or gap_start_s >= end_s:
            continue
        spans.append((begin_s, gap_start_s))
        begin_s = gap_end_s
    return [(a, b) for a, b in [*spans, (begin_s, end_s)] if b > a]


def join_spans(
    whole: Sequence[DomainEnergy], parts: Sequence[tuple[Span, Sequence[DomainEnergy]]], start_s: float, end_s: float
) -> list[DomainEnergy]:
    """Return the energy of each domain of `whole` from the spans in which the host was awake.

    Their mean power fills the window, as for any gap. The figure is None without samples over half of the window.
    """
    window_s = end_s - start_s
    joined = []
    for domain in whole:
        absent = next(
            (i.energy for _, items in parts for i in items if i.domain == domain.domain and i.energy.is_absent), None
        )
        if absent is not None:
            joined.append(replace(domain, energy=replace(absent, start_s=start_s, end_s=end_s)))
            continue
        known_s = joules = edge_joules = 0.0
        dropped, notes = 0, list[str]()
        for (a, b), items in parts:
            energy = next((item.energy for item in items if item.domain == domain.domain), None)
            if energy is None:
                continue
            dropped += energy.dropped
            notes += energy.notes
            counted = scale_to_window(energy, a, b)[0]
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
        joined.append(replace(domain, energy=energy))
    return joined
