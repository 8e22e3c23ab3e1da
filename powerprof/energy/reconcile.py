# SPDX-License-Identifier: Apache-2.0
"""Notes on the readings of several meters: the watts between tiers, and figures above their containers'. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from powerprof.energy.total import METER_ERROR, find_refuted_psys, host_energy, tier
from powerprof.model.records import EnergyReading


def reconcile(readings: Sequence[EnergyReading]) -> list[str]:
    """Return one line per pair of neighbouring tiers with the watts between them, and lines on contradictions."""
    lines: list[str] = []
    levels: list[tuple[str, float]] = []
    psys = find_refuted_psys(readings)
    if psys is not None:
        lines.append(f"psys {psys.watts:.1f} W is less than the packages: it does not contain them and is not used")
    for names in (("wall",), ("server", "supply"), ("battery",), ("psys",), ("package",)):
        if names == ("psys",) and psys is not None:
            continue
        total = host_energy([r for r in readings if tier(r) in names and r.kind == "measured"])
        if total.watts is not None and total.source is not None:
            title = " + ".join(total.domains)
            levels.append((title if total.source in total.domains else f"{title} ({total.source})", total.watts))
    pairs = list(zip(levels[1:], levels, strict=False))
    if len(levels) > 2:
        pairs.append((levels[-1], levels[0]))
    lines += [_compare_tiers(inner, outer) for inner, outer in pairs]
    # Without any figure the notes on each domain are the reason.
    chosen = host_energy(readings)
    reason = chosen.reason if any(r.joules is not None for r in readings) else None
    lines += [] if reason is None else [f"no total: {reason}"]
    if reason is None and chosen.source is not None:
        flawed = [r for r in readings if r.unsummed is not None and r.domain not in chosen.domains]
        lines += list(dict.fromkeys(f"{tier(r)} by {r.source} is not used: {r.unsummed}" for r in flawed))
    return lines + _note_two_server_meters(readings) + _note_oversized_parts(readings) + _note_repeated(readings)


def _note_two_server_meters(readings: Sequence[EnergyReading]) -> list[str]:
    """Return a line if a server's own meter and its power supplies have figures: only one of them counts."""
    both = [r for r in readings if tier(r) in ("server", "supply") and r.kind == "measured"]
    by_tier = [host_energy([r for r in both if tier(r) == name]) for name in ("server", "supply")]
    chosen = host_energy(both)
    figures = [f"{' + '.join(t.domains)} {t.watts:.1f} W" for t in by_tier if t.watts is not None]
    if len(figures) < 2:
        return []
    return [f"{' and '.join(figures)} both measure this server: {' + '.join(chosen.domains)} counts, never both"]


def _compare_tiers(inner: tuple[str, float], outer: tuple[str, float]) -> str:
    (inner_name, inner_watts), (outer_name, outer_watts) = inner, outer
    gap = outer_watts - inner_watts
    if gap >= 0:
        return f"{inner_name} {inner_watts:.1f} W inside {outer_name} {outer_watts:.1f} W: {gap:.1f} W outside"
    within = "within the meters' error" if -gap <= METER_ERROR * inner_watts else "beyond the meters' error: not used"
    return (
        f"{inner_name} {inner_watts:.1f} W should lie inside {outer_name} {outer_watts:.1f} W: "
        f"they differ by {-gap:.1f} W, {within}"
    )


def _note_oversized_parts(readings: Sequence[EnergyReading]) -> list[str]:
    """Return a line for every domain whose parts, by the same source, draw more than it does."""
    lines = []
    for parent in readings:
        for source in dict.fromkeys(r.source for r in readings):
            parts = [
                r
                for r in readings
                if (r.source, r.contained_in) == (source, parent.domain)
                and r.watts is not None
                and tier(r) in ("rail", "core")
            ]
            drawn = math.fsum(r.watts or 0.0 for r in parts)
            if parent.source != source or parent.watts is None or drawn <= (1 + METER_ERROR) * parent.watts:
                continue
            names = " + ".join(sorted(r.domain for r in parts))
            lines.append(
                f"{source}: {names} {drawn:.1f} W cannot lie inside {parent.domain} {parent.watts:.1f} W: "
                "one of them is wrong"
            )
    return lines


def _note_repeated(readings: Sequence[EnergyReading]) -> list[str]:
    lines = []
    for domain in dict.fromkeys(r.domain for r in readings if tier(r) in ("psys", "package", "core")):
        same = [r for r in readings if r.domain == domain and r.watts is not None]
        if len({r.source for r in same}) > 1:
            figures = ", ".join(f"{r.source} {r.watts:.1f} W" for r in same)
            lines.append(f"{domain} by {figures}: the same counter, counted once")
    return lines
