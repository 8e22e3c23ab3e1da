# SPDX-License-Identifier: Apache-2.0
"""Readings of one meter in a window, with the reason if they have no total. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from powerprof.energy.layout_flaws import find_flaws
from powerprof.energy.layouts import SUMMED, UNKNOWN_TOPOLOGY, Topology
from powerprof.energy.meters.meter import DomainEnergy
from powerprof.measure.energy_series import scale_to_window
from powerprof.model.records import EnergyReading, Scope


def make_readings(
    source: str, energies: list[DomainEnergy], start_s: float, end_s: float, topology: Topology = UNKNOWN_TOPOLOGY
) -> tuple[list[EnergyReading], list[str]]:
    """Return the readings of one source in a window, and notes. A domain that read 0 throughout has no figure.

    Readings that are no recognised layout on CPUs of this topology have the reason in `unsummed`.
    """
    readings, notes = [], []
    flaws = find_energy_flaws(source, energies, topology)
    for item in energies:
        joules, watts = scale_to_window(item.energy, start_s, end_s)
        if joules == 0:
            joules = watts = None
            notes.append(f"{source}: {item.domain} is present but does not count (reads 0): no figure")
        else:
            notes += [f"{source}: {item.domain} {note}" for note in item.energy.notes]
        # The uncertainty of samples at the edges is part of the figure.
        edge = item.energy.edge_joules / (end_s - start_s) if watts is not None and item.energy.edge_joules else None
        readings.append(
            EnergyReading(
                source=source,
                domain=item.domain,
                kind=item.kind,
                joules=joules,
                watts=watts,
                low_watts=None if watts is None or edge is None else max(watts - edge, 0.0),
                high_watts=None if watts is None or edge is None else watts + edge,
                contained_in=item.inside,
                scope=item.scope,
                dropped_samples_count=item.energy.dropped,
                unsummed=flaws.get(item.scope) if item.inside is None else None,
            )
        )
    return [_refuse_contradiction(reading, readings) for reading in readings], notes


# Less than any machine draws. A meter with such a figure has other units.
_LEAST_MACHINE_WATTS = 0.5
# A part may show more than its container by the errors of both at a light load.
_PART_ERROR = 0.25


def _refuse_contradiction(reading: EnergyReading, readings: Sequence[EnergyReading]) -> EnergyReading:
    """Return a reading without a total if its figure is impossible for a machine, or smaller than one of its parts."""
    if reading.unsummed is not None or reading.watts is None or reading.scope not in SUMMED:
        return reading
    is_machine = reading.scope in ("wall", "server", "supply") and reading.source != "host"
    if is_machine and reading.watts < _LEAST_MACHINE_WATTS:
        flaw = f"{reading.domain} shows {reading.watts:.3g} W, less than a machine draws"
        return msgspec.structs.replace(reading, unsummed=flaw)
    inside = [r for r in readings if r.contained_in == reading.domain and r.watts is not None]
    part = max(inside, key=lambda r: r.watts or 0.0, default=None)
    if part is not None and (part.watts or 0.0) > (1 + _PART_ERROR) * reading.watts:
        flaw = f"{part.domain} shows {part.watts:.1f} W inside {reading.domain} of {reading.watts:.1f} W"
        return msgspec.structs.replace(reading, unsummed=flaw)
    return reading


def select_named(readings: list[EnergyReading], domains: Sequence[str]) -> list[EnergyReading]:
    """Return the readings with the named domains as the machine's, and the others of its parts in no sum."""
    if not domains:
        return readings
    scopes = {reading.scope for reading in readings if reading.domain in domains}
    scope: Scope | None = next(iter(scopes)) if len(scopes) == 1 and scopes <= set(SUMMED) else None
    scope = scope or ("server" if len(domains) == 1 else "supply")
    return [
        msgspec.structs.replace(reading, scope=scope, unsummed=None, contained_in=None)
        if reading.domain in domains
        else msgspec.structs.replace(
            reading, scope="other" if reading.scope in SUMMED else reading.scope, unsummed=None
        )
        for reading in readings
    ]


def find_energy_flaws(source: str, energies: Sequence[DomainEnergy], topology: Topology) -> dict[Scope, str]:
    """Return by scope why these domains have no total: the meter's own reasons, or a set that is in no layout."""
    outer = [item for item in energies if item.inside is None]
    flaws = {item.scope: item.flaw for item in reversed(outer) if item.flaw is not None}
    # A psys that repeats another one is no second platform.
    names = [
        (name, item.scope) for item in outer for name in (item.domain, *(() if item.scope == "psys" else item.repeats))
    ]
    return {**find_flaws(source, names, topology), **flaws}
