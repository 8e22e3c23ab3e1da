# SPDX-License-Identifier: Apache-2.0
"""The one sum of domains for the host, from readings of all meters, and the record of `energy` with it. Pure.

wall ⊇ server (IPMI, ACPI's meter) ⊇ psys ⊇ package + dram, package ⊇ core + uncore; dram is next to package. All
power supplies together are the server's input too. A discharging battery feeds the whole machine. Graphics cards,
disks and unknown parts are shown and never summed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from powerprof.model.records import EnergyReading, Kind, Record, sum_known
from powerprof.model.text import join_words

# From the outside in. Readings of one tier are next to each other and may be summed.
TIERS = ("wall", "server", "supply", "battery", "psys", "package", "rail", "core")
# Several ways to read the same counters: one is enough. The most exact is first.
_PREFERENCE = ("rapl", "perf_power", "turbostat", "hwmon", "battery", "ipmi", "host", "meter_log", "model")
# psys of some boards measures one socket or none of it. Then it does not contain the packages. Counters of one machine
# agree closely; meters of different makes differ by more.
_COUNTER_ERROR = 0.02
METER_ERROR = 0.05
# The largest loss of a power supply: a server's own meter may be behind it.
_SUPPLY_LOSS = 0.25


class PackagesEnergy(msgspec.Struct, frozen=True, kw_only=True):
    """The energy of all CPU packages without their memory, which has no figure. Less than the host's."""

    source: str
    domains: list[str]
    joules: float
    watts: float
    low_watts: float | None = None
    high_watts: float | None = None


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """The host's metered energy, and the summed domains.

    Attributes:
        reason: why joules and watts are unknown.
        packages: the packages, if only their memory has no figure. In no sum, split or comparison.
    """

    source: str | None
    domains: list[str]
    joules: float | None
    watts: float | None
    kind: Kind | None
    low_watts: float | None = None
    high_watts: float | None = None
    reason: str | None = None
    packages: PackagesEnergy | None = None


class HostMeters(NamedTuple):
    """The set of domains that represents the host in all windows of a run."""

    source: str
    domains: tuple[str, ...]
    kind: Kind

    def __str__(self) -> str:
        return f"{' + '.join(self.domains)} by {self.source}"


Windows = Sequence[Sequence[EnergyReading]]


def tier(reading: EnergyReading) -> str:
    """Return the tier of a reading: one of TIERS (dram counts as package), `device`, `other` (in no sum) or `model`."""
    return "package" if reading.scope == "dram" else reading.scope


def host_energy(readings: Sequence[EnergyReading], meters: HostMeters | None = None) -> Total:
    """Return the host's energy in one window. Every command shows, sums, compares and splits this figure.

    `meters` are the run's (`host_meters`); None chooses the set for this window. If one of their domains has no
    figure, or if they are no recognised layout, the sum is None: a smaller sum or another meter would mislead.
    """
    if meters is None and readings:
        meters = host_meters([readings])
    if meters is None:
        return Total(
            source=None, domains=[], joules=None, watts=None, kind=None, reason=_find_reason_without_meters(readings)
        )
    selected = _select_readings(readings, meters)
    reason = _find_reason(selected, meters)
    is_lost = reason is not None
    known = [reading for reading in selected if reading is not None]
    has_range = any(reading.low_watts is not None and reading.high_watts is not None for reading in known)
    return Total(
        source=meters.source,
        domains=list(meters.domains),
        kind=meters.kind,
        joules=None if is_lost else math.fsum(reading.joules or 0.0 for reading in known),
        watts=None if is_lost else math.fsum(reading.watts or 0.0 for reading in known),
        low_watts=_sum_bounds(known, "low_watts") if has_range and not is_lost else None,
        high_watts=_sum_bounds(known, "high_watts") if has_range and not is_lost else None,
        reason=reason,
        packages=_sum_packages(readings, meters) if is_lost else None,
    )


def _sum_packages(readings: Sequence[EnergyReading], meters: HostMeters) -> PackagesEnergy | None:
    """Return the energy of the packages of a set with memory. None if a package has no figure, too."""
    by_domain = dict(zip(meters.domains, _select_readings(readings, meters), strict=True))
    packages = [domain for domain, r in by_domain.items() if r is not None and r.scope == "package"]
    # A domain without a reading may be a package.
    if not packages or len(packages) == len(by_domain) or None in by_domain.values():
        return None
    total = host_energy(readings, HostMeters(meters.source, tuple(packages), meters.kind))
    if total.joules is None or total.watts is None:
        return None
    return PackagesEnergy(
        source=meters.source,
        domains=packages,
        joules=total.joules,
        watts=total.watts,
        low_watts=total.low_watts,
        high_watts=total.high_watts,
    )


def _find_reason(readings: Sequence[EnergyReading | None], meters: HostMeters) -> str | None:
    """Return the reason why the readings of the host's meters have no sum. None if they have one."""
    flaw = next((r.unsummed for r in readings if r is not None and r.unsummed is not None), None)
    lost = [domain for domain, r in zip(meters.domains, readings, strict=True) if r is None or r.joules is None]
    if flaw is None and lost:
        flaw = f"{join_words(lost)} by {meters.source} {'has' if len(lost) == 1 else 'have'} no figure"
    return flaw


def _find_reason_without_meters(readings: Sequence[EnergyReading]) -> str | None:
    """Return why readings without any set of the host have no total. None without readings of a meter."""
    measured = [r for r in readings if r.kind == "measured"]
    lost = sorted((TIERS.index(tier(r)), r.domain, r.source) for r in measured if tier(r) in TIERS[:-1])
    if lost:
        return f"{lost[0][1]} by {lost[0][2]} has no figure"
    sources = sorted({r.source for r in measured if r.joules is not None})
    return f"{join_words(sources)} measures cards or single parts, not the machine" if sources else None


def _sum_bounds(readings: Sequence[EnergyReading], end: str) -> float:
    """Return the sum of one end of the intervals. A reading without an interval counts with its watts."""
    ends = [getattr(reading, end) for reading in readings]
    return math.fsum((r.watts or 0.0) if value is None else value for r, value in zip(readings, ends, strict=True))


def mean_host_energy(windows: Windows, meters: HostMeters | None) -> Total:
    """Return the host's energy over several windows: mean watts of those with the run's meters, and summed joules.

    The joules are None if any window lacks these meters.
    """
    totals = [host_energy(window, meters) for window in windows]
    known = [total for total in totals if total.joules is not None]
    if not known:
        return msgspec.structs.replace(totals[0], packages=None) if totals else host_energy([])
    lows = [total.low_watts for total in known if total.low_watts is not None]
    highs = [total.high_watts for total in known if total.high_watts is not None]
    return msgspec.structs.replace(
        known[0],
        joules=math.fsum(total.joules or 0.0 for total in known) if len(known) == len(totals) else None,
        watts=math.fsum(total.watts or 0.0 for total in known) / len(known),
        low_watts=math.fsum(lows) / len(lows) if len(lows) == len(known) else None,
        high_watts=math.fsum(highs) / len(highs) if len(highs) == len(known) else None,
        reason=next((total.reason for total in totals if total.reason is not None), None),
    )


def host_meters(windows: Windows) -> HostMeters | None:
    """Return the one set of meters that represents the host in all of the windows.

    None without any figure.

    Of the sets that are complete in more than half of the windows, take the outermost: an incomplete layer does not
    hide a complete one inside it. Without a complete set take the outermost with figures, whose flaw is the reason for
    no total. A set that draws less than its content is not believed. Measured figures are preferred to estimated ones
    and never added to them.
    """
    # Cores without their package do not stand for a host: AMD's zone of that name counts a single core.
    sets = {name: meters for name in TIERS[:-1] if (meters := _choose_tier_meters(name, windows)) is not None}
    believed = [meters for name, meters in sets.items() if not _is_refuted(name, sets, windows)]
    if not believed:
        return _choose_estimate(windows)
    # Rails are parts of a socket. They stand for a host without any outer meter only.
    if "rail" in sets and len(believed) > 1 and believed[-1] is sets["rail"]:
        believed.pop()
    for is_usable in (_is_complete, _has_figure):
        counts = [sum(is_usable(window, meters) for window in windows) for meters in believed]
        for meters, count in zip(believed, counts, strict=True):
            if 2 * count > len(windows):
                return meters
    return believed[counts.index(max(counts))]


def note_unmetered_windows(windows: Windows, meters: HostMeters | None) -> list[str]:
    """Return a note if some windows lack the run's meters: their energy is unknown."""
    totals = [host_energy(window, meters) for window in windows] if meters else []
    reasons = [total.reason for total in totals if total.joules is None]
    if not reasons:
        return []
    which = "1 window" if len(reasons) == 1 else f"{len(reasons)} of {len(windows)} windows"
    return [f"the energy of {which} is unknown: {reasons[0]}"]


def find_refuted_psys(readings: Sequence[EnergyReading]) -> EnergyReading | None:
    """Return the psys reading if it is less than the packages: then it does not contain them."""
    sets = {
        name: meters for name in ("psys", "package") if (meters := _choose_tier_meters(name, [readings])) is not None
    }
    if len(sets) == 2 and _is_refuted("psys", sets, [readings]):
        return _select_readings(readings, sets["psys"])[0]
    return None


def _select_readings(readings: Sequence[EnergyReading], meters: HostMeters) -> list[EnergyReading | None]:
    by_domain = {r.domain: r for r in reversed(readings) if (r.source, r.kind) == (meters.source, meters.kind)}
    return [by_domain.get(domain) for domain in meters.domains]


def _has_figure(window: Sequence[EnergyReading], meters: HostMeters) -> bool:
    return any(reading is not None and reading.joules is not None for reading in _select_readings(window, meters))


def _is_complete(window: Sequence[EnergyReading], meters: HostMeters) -> bool:
    return _find_reason(_select_readings(window, meters), meters) is None


def _choose_tier_meters(name: str, windows: Windows) -> HostMeters | None:
    """Return the set of one tier: of the source that is complete in most windows; among equals the most exact one."""
    metered = {reading.domain for window in windows for reading in window}
    best: tuple[int, HostMeters] | None = None
    for source in _PREFERENCE:
        readings = [
            r
            for window in windows
            for r in window
            if (r.source, r.kind) == (source, "measured")
            and tier(r) == name
            and not (name in ("rail", "core") and r.contained_in in metered)
        ]
        if (name == "package" and all(_is_dram(r) for r in readings)) or all(r.joules is None for r in readings):
            continue
        is_dram_dead = all(_is_dead(r) for r in readings if _is_dram(r))
        domains = sorted({r.domain for r in readings if not (is_dram_dead and _is_dram(r))}, key=_make_natural_key)
        candidate = HostMeters(source, tuple(domains), "measured")
        complete_count = sum(_is_complete(window, candidate) for window in windows)
        if best is None or complete_count > best[0]:
            best = complete_count, candidate
    return best[1] if best else None


def _is_dead(reading: EnergyReading) -> bool:
    """Return whether a domain never counted.

    Many CPUs show a dram that reads 0, and the sum is complete without it. One dead dram next to one that counts is a
    loss, and so is a package that reads 0: the sum over fewer sockets looks like a saving.
    """
    return reading.joules is None and not reading.dropped_samples_count


def _is_dram(reading: EnergyReading) -> bool:
    return reading.scope == "dram"


def _is_refuted(name: str, sets: Mapping[str, HostMeters], windows: Windows) -> bool:
    """Return whether a tier's set draws less than a set inside it, over the windows with complete figures of both."""
    if name in ("battery", "package", "rail", "core"):
        return False
    for inner_name in TIERS[TIERS.index(name) + 1 :]:
        inner = sets.get(inner_name)
        if inner is None or inner_name in ("battery", "rail", "core"):
            continue
        error = _COUNTER_ERROR if name == "psys" else METER_ERROR
        error = _SUPPLY_LOSS if (name, inner_name) == ("server", "supply") else error
        both = [(_sum_watts(w, sets[name]), _find_least_watts(w, inner)) for w in windows]
        pairs = [(a, b) for a, b in both if a is not None and b is not None]
        if pairs and sum(a for a, _ in pairs) < (1 - error) * sum(b for _, b in pairs):
            return True
    return False


def _sum_watts(window: Sequence[EnergyReading], meters: HostMeters) -> float | None:
    """Return the watts of a set, of a recognised layout or not. None if one of them has no figure."""
    return sum_known(None if reading is None else reading.watts for reading in _select_readings(window, meters))


def _find_least_watts(window: Sequence[EnergyReading], meters: HostMeters) -> float | None:
    """Return what the domains of a set draw at least: their sum, that of the packages, or the largest domain.

    Domains of a set with a flaw may repeat one counter.
    """
    if _is_complete(window, meters):
        return _sum_watts(window, meters)
    packages = _sum_packages(window, meters)
    if packages is not None:
        return packages.watts
    watts = [r.watts for r in _select_readings(window, meters) if r is not None and r.watts is not None]
    return max(watts, default=None)


def _choose_estimate(windows: Windows) -> HostMeters | None:
    readings = [r for window in windows for r in window if r.kind == "estimated" and r.joules is not None]
    readings.sort(key=lambda r: (_PREFERENCE.index(r.source) if r.source in _PREFERENCE else 99, r.domain))
    return HostMeters(readings[0].source, (readings[0].domain,), "estimated") if readings else None


def _make_natural_key(domain: str) -> list[int | str]:
    """Return a sort key that orders package-2 before package-10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", domain)]


def fill_containers(readings: Sequence[EnergyReading]) -> list[EnergyReading]:
    """Return the readings from the outside in, with `contained_in` filled: the nearest metered domain around each."""
    order = (*TIERS, "device", "other", "model")
    return [
        reading
        if reading.contained_in is not None
        else msgspec.structs.replace(reading, contained_in=_find_container(reading, readings))
        for reading in sorted(readings, key=lambda r: order.index(tier(r)))
    ]


def _find_container(reading: EnergyReading, readings: Sequence[EnergyReading]) -> str | None:
    own_tier = tier(reading)
    # Cards may be fed from outside the metered board, and the place of an unknown chip is unknown.
    if own_tier in ("model", "wall", "device", "other"):
        return None
    outer = TIERS[: TIERS.index(own_tier)]
    is_psys_refuted = find_refuted_psys(readings) is not None
    for name in reversed(outer):
        if name in ("rail", "core") or (name == "package" and own_tier != "core"):
            continue
        if (name == "psys" and is_psys_refuted) or (name == "battery" and own_tier == "server"):
            continue
        around = {r.domain for r in readings if tier(r) == name and r.watts is not None}
        around -= {r.domain for r in readings if _is_dram(r)}
        if len(around) == 1 or (around and name not in ("package", "supply")):
            return min(around, key=_make_natural_key)
    return None


class EnergyResult(Record, frozen=True, kw_only=True):
    """The record of `energy`: every domain of every meter in one window, and the sum."""

    schema: Literal["powerprof.energy/1"] = "powerprof.energy/1"
    command: str = "energy"
    window_s: float | None
    meters: list[EnergyReading]
    total: Total
