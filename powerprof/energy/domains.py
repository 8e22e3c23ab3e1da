"""Which meter contains which, what may be summed, and the gap between them. Pure.

wall ⊇ server (IPMI) ⊇ psys ⊇ package + dram, package ⊇ core + uncore; dram is beside package. A battery that
discharges feeds the whole machine. Graphics cards and disks are devices: shown, never summed with the CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from powerprof.records import EnergyReading, Kind

# From the outside in. Readings of one tier lie beside each other and may be summed.
_TIERS = ("wall", "server", "battery", "psys", "package", "rail", "core")
# The same counters by three ways: one of them is enough, the most exact first.
_PREFERENCE = ("rapl", "perf_power", "turbostat", "hwmon", "battery", "ipmi", "meter_log", "powertop", "model")
# psys of some boards sees one socket or nothing of it: then it does not contain the packages, whatever its name.
_CONTAINS_AT_LEAST = 0.98
_METER_ERROR = 0.05


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """The host's energy as far as it was metered: which domains of which source were summed."""

    source: str | None
    domains: list[str]
    joules: float | None
    watts: float | None
    kind: Kind | None
    low_watts: float | None = None
    high_watts: float | None = None


def tier(reading: EnergyReading) -> str:
    """wall, server, battery, psys, package, core, rail, device or model."""
    name = reading.domain.rsplit("/", 1)[-1].split("@", 1)[0]
    if reading.source in ("model", "powertop"):
        return "model"
    if reading.domain.startswith("device/"):
        return "device"
    if reading.source == "meter_log":
        return "wall"
    if reading.source == "ipmi" or name == "server":
        return "server"
    if reading.source == "battery":
        return "battery"
    if name == "psys":
        return "psys"
    if name.startswith("package") or name == "dram":
        return "package"
    if name == "uncore" or name.startswith("core"):
        return "core"
    return "rail"


def contained(readings: Sequence[EnergyReading]) -> list[EnergyReading]:
    """The readings from the outside in, with `contained_in` filled in: the nearest metered domain around each."""
    order = (*_TIERS, "device", "model")
    return [
        reading
        if reading.contained_in is not None
        else msgspec.structs.replace(reading, contained_in=_container(reading, readings))
        for reading in sorted(readings, key=lambda r: order.index(tier(r)))
    ]


def _container(reading: EnergyReading, readings: Sequence[EnergyReading]) -> str | None:
    mine = tier(reading)
    if mine in ("model", "wall"):
        return None
    outer = _TIERS[: _TIERS.index(mine)] if mine in _TIERS else ("wall", "server")
    for name in reversed(outer):
        if name in ("rail", "core") or (name == "package" and mine != "core"):
            continue
        if name == "psys" and not _psys_holds(readings):
            continue
        if name == "battery" and mine == "server":
            continue
        around = [r for r in readings if tier(r) == name and r.watts is not None and not r.domain.endswith("dram")]
        if len(around) == 1 or (around and name != "package"):
            return around[0].domain
    return None


def _psys_holds(readings: Sequence[EnergyReading]) -> bool:
    psys = sum(r.watts or 0.0 for r in readings if tier(r) == "psys")
    inner = sum(r.watts or 0.0 for r in _one_source([r for r in readings if tier(r) == "package"]))
    return psys >= _CONTAINS_AT_LEAST * inner


def _one_source(readings: Sequence[EnergyReading]) -> list[EnergyReading]:
    """Of readings of one tier those of the most exact source that has a figure: others repeat it."""
    for source in _PREFERENCE:
        chosen = [r for r in readings if r.source == source and (r.joules is not None or r.dropped_samples_count)]
        if chosen:
            return chosen
    return []


def total(readings: Sequence[EnergyReading]) -> Total:
    """The outermost tier that was metered, summed over its own domains only: nothing is counted twice.

    A domain of it that lost its figure (unplugged, unreadable) makes the sum unknown: None, not a smaller sum.
    Measured figures go before estimated ones and are never added to them.
    """
    for name in _TIERS:
        if name == "psys" and not _psys_holds(readings):
            continue
        mine = [r for r in readings if tier(r) == name and r.kind == "measured"]
        if name in ("rail", "core"):
            metered = {r.domain for r in readings}
            mine = [r for r in mine if r.contained_in not in metered]
        mine = _one_source(mine)
        if name == "package" and not any(r.domain.split("/")[-1].startswith("package") for r in mine):
            continue
        if any(r.joules is not None for r in mine):
            return _sum(mine)
    estimates = [r for r in readings if r.kind == "estimated" and r.joules is not None]
    return _sum(_one_source(estimates)[:1])


def _sum(readings: Sequence[EnergyReading]) -> Total:
    if not readings:
        return Total(source=None, domains=[], joules=None, watts=None, kind=None)
    lost = any(r.joules is None for r in readings)
    bounds = readings[0] if len(readings) == 1 else None
    return Total(
        source=readings[0].source,
        domains=[r.domain for r in readings],
        kind=readings[0].kind,
        joules=None if lost else sum(r.joules or 0.0 for r in readings),
        watts=None if lost else sum(r.watts or 0.0 for r in readings),
        low_watts=bounds.low_watts if bounds else None,
        high_watts=bounds.high_watts if bounds else None,
    )


def reconcile(readings: Sequence[EnergyReading]) -> list[str]:
    """One line for each pair of neighbouring tiers: what lies inside what, and the watts between them."""
    lines: list[str] = []
    levels: list[tuple[str, float]] = []
    for name in ("wall", "server", "battery", "psys", "package"):
        mine = _one_source([r for r in readings if tier(r) == name and r.kind == "measured"])
        mine = [r for r in mine if r.watts is not None]
        if mine and not (name == "psys" and not _psys_holds(readings)):
            levels.append((_title(mine), sum(r.watts or 0.0 for r in mine)))
        elif mine:
            inner = "less than the packages: it does not contain them"
            lines.append(f"psys {sum(r.watts or 0.0 for r in mine):.1f} W is {inner} and is not used")
    pairs = list(zip(levels[1:], levels, strict=False))
    if len(levels) > 2:
        pairs.append((levels[-1], levels[0]))
    for (inner_name, inner_watts), (outer_name, outer_watts) in pairs:
        gap = outer_watts - inner_watts
        text = f"{inner_name} {inner_watts:.1f} W inside {outer_name} {outer_watts:.1f} W: {gap:.1f} W outside"
        if gap < 0:
            within = "within" if -gap <= _METER_ERROR * inner_watts else "beyond"
            text = (
                f"{inner_name} {inner_watts:.1f} W should lie inside {outer_name} {outer_watts:.1f} W: "
                f"they differ by {-gap:.1f} W, {within} the meters' error"
            )
        lines.append(text)
    return lines + _repeated(readings)


def _title(readings: Sequence[EnergyReading]) -> str:
    names = [r.domain for r in readings]
    source = readings[0].source
    return f"{' + '.join(names)} ({source})" if source not in names else " + ".join(names)


def _repeated(readings: Sequence[EnergyReading]) -> list[str]:
    lines = []
    for domain in dict.fromkeys(r.domain for r in readings if tier(r) in ("psys", "package", "core")):
        same = [r for r in readings if r.domain == domain and r.watts is not None]
        if len({r.source for r in same}) > 1:
            figures = ", ".join(f"{r.source} {r.watts:.1f} W" for r in same)
            lines.append(f"{domain} by {figures}: the same counter, counted once")
    return lines
