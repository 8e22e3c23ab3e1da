# SPDX-License-Identifier: Apache-2.0
"""Which meter contains which, and the one sum that stands for the host. Pure.

wall ⊇ server (IPMI, ACPI's meter) ⊇ psys ⊇ package + dram, package ⊇ core + uncore; dram is beside package. Power
supplies together are the server's input once more. A battery that discharges feeds the whole machine. Graphics cards,
disks and what nobody knows are shown and never summed: only what its reader knows to be a part of the host is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from powerprof.energy.meter import rapl_scope
from powerprof.model.records import EnergyReading, Kind, Notes, Scope

# From the outside in. Readings of one tier lie beside each other and may be summed.
TIERS = ("wall", "server", "supply", "battery", "psys", "package", "rail", "core")
# The same counters by several ways: one of them is enough, the most exact first.
_PREFERENCE = ("rapl", "perf_power", "turbostat", "hwmon", "battery", "ipmi", "host", "meter_log", "powertop", "model")
# psys of some boards sees one socket or nothing of it: then it does not contain the packages, whatever its name.
# Counters of one machine agree closely; meters of different makes differ by more.
_COUNTER_ERROR = 0.02
METER_ERROR = 0.05
# What a power supply loses at the most: a server's own meter may lie behind it.
_SUPPLY_LOSS = 0.25
# Rails of the chips that recordings before the field `scope` may have.
_OLD_RAILS = re.compile(r"SVI2_P_(Core|SoC)|(CPU|IO) power|(Core|SoC|RCA) VRD|DIMM VRD[12]")


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """The host's energy as far as it was metered: which domains of which source were summed."""

    source: str | None
    domains: list[str]
    joules: float | None
    watts: float | None
    kind: Kind | None
    low_watts: float | None = None
    high_watts: float | None = None


class HostMeters(NamedTuple):
    """The set of domains that stands for the host in all windows of a run."""

    source: str
    domains: tuple[str, ...]
    kind: Kind

    def __str__(self) -> str:
        return f"{' + '.join(self.domains)} by {self.source}"


Windows = Sequence[Sequence[EnergyReading]]


def tier(reading: EnergyReading) -> str:
    """wall, server, supply, battery, psys, package (with dram), core, rail, device, other (in no sum) or model."""
    scope = reading.scope or _old_scope(reading)
    return "package" if scope == "dram" else scope


def _old_scope(reading: EnergyReading) -> Scope:
    """That of a record from before it was written down: by names of those meters, and other where they leave doubt."""
    by_source: dict[str, Scope] = {
        "model": "model",
        "powertop": "model",
        "meter_log": "wall",
        "ipmi": "server",
        "host": "server",
        "battery": "battery",
    }
    if reading.source in by_source:
        return by_source[reading.source]
    name = reading.domain.rsplit("/", 1)[-1].split("@", 1)[0]
    if reading.source != "hwmon":
        return rapl_scope(name)
    if "device/" in reading.domain or "other/" in reading.domain:
        return "other"
    if name == "server":
        return "server"
    known = rapl_scope(name)
    return "rail" if known == "other" and (reading.contained_in or _OLD_RAILS.fullmatch(name)) else known


def host_energy(readings: Sequence[EnergyReading], meters: HostMeters | None = None) -> Total:
    """The host's energy in one window: what every command shows, sums, compares and splits.

    `meters` are those of the run (`host_meters`); a window alone is a run of one. A domain of theirs that lost its
    figure makes the sum unknown: None, not a smaller sum, and not another meter's.
    """
    if meters is None and readings:
        meters = host_meters([readings])
    if meters is None:
        return Total(source=None, domains=[], joules=None, watts=None, kind=None)
    mine = _of(readings, meters)
    lost = any(reading is None or reading.joules is None for reading in mine)
    known = [reading for reading in mine if reading is not None]
    doubtful = any(reading.low_watts is not None and reading.high_watts is not None for reading in known)
    return Total(
        source=meters.source,
        domains=list(meters.domains),
        kind=meters.kind,
        joules=None if lost else math.fsum(reading.joules or 0.0 for reading in known),
        watts=None if lost else math.fsum(reading.watts or 0.0 for reading in known),
        low_watts=_bound(known, "low_watts") if doubtful and not lost else None,
        high_watts=_bound(known, "high_watts") if doubtful and not lost else None,
    )


def _bound(readings: Sequence[EnergyReading], end: str) -> float:
    """The sum of one end of the intervals; a reading without one is taken as it is."""
    ends = [getattr(reading, end) for reading in readings]
    return math.fsum((r.watts or 0.0) if value is None else value for r, value in zip(readings, ends, strict=True))


def mean_host_energy(windows: Windows, meters: HostMeters | None) -> Total:
    """The host's energy over several windows: mean watts of those that have the run's meters.

    The joules are their sum, and unknown where any window lacks them.
    """
    each = [host_energy(window, meters) for window in windows]
    known = [total for total in each if total.joules is not None]
    if not known:
        return msgspec.structs.replace(each[0], joules=None, watts=None) if each else host_energy([])
    lows = [total.low_watts for total in known if total.low_watts is not None]
    highs = [total.high_watts for total in known if total.high_watts is not None]
    return msgspec.structs.replace(
        known[0],
        joules=math.fsum(total.joules or 0.0 for total in known) if len(known) == len(each) else None,
        watts=math.fsum(total.watts or 0.0 for total in known) / len(known),
        low_watts=math.fsum(lows) / len(lows) if len(lows) == len(known) else None,
        high_watts=math.fsum(highs) / len(highs) if len(highs) == len(known) else None,
    )


def host_meters(windows: Windows) -> HostMeters | None:
    """The one set of meters that stands for the host in all of the windows; None where nothing has a figure.

    Of the sets that have a figure in more than half of the windows it is the outermost, which no other contains;
    failing that the one with figures in most. One that draws less than what it should contain is not believed.
    Measured figures go before estimated ones and are never added to them.
    """
    # Cores without their package are no host: AMD's zone of that name counts a single one.
    sets = {name: meters for name in TIERS[:-1] if (meters := _set_of(name, windows)) is not None}
    believed = [meters for name, meters in sets.items() if not _refuted(name, sets, windows)]
    if not believed:
        return _estimated(windows)
    counts = [sum(_any_figure(window, meters) for window in windows) for meters in believed]
    return next(
        (meters for meters, count in zip(believed, counts, strict=True) if 2 * count > len(windows)),
        believed[counts.index(max(counts))],
    )


def note_unmetered_windows(windows: Windows, meters: HostMeters | None) -> list[str]:
    """A note where some windows lack the run's meters: they are marked, and no other meter stands in."""
    missing = sum(host_energy(window, meters).joules is None for window in windows) if meters else 0
    if not missing:
        return []
    have = "window has" if missing == 1 else f"of {len(windows)} windows have"
    return [f"{missing} {have} no figure of {meters}, the run's meter: their energy is unknown, no other stands in"]


def find_refuted_psys(readings: Sequence[EnergyReading]) -> EnergyReading | None:
    """A psys that draws less than the packages: it does not contain them, whatever its name."""
    sets = {name: meters for name in ("psys", "package") if (meters := _set_of(name, [readings])) is not None}
    if len(sets) == 2 and _refuted("psys", sets, [readings]):
        return _of(readings, sets["psys"])[0]
    return None


def _of(readings: Sequence[EnergyReading], meters: HostMeters) -> list[EnergyReading | None]:
    by_domain = {r.domain: r for r in reversed(readings) if (r.source, r.kind) == (meters.source, meters.kind)}
    return [by_domain.get(domain) for domain in meters.domains]


def _any_figure(window: Sequence[EnergyReading], meters: HostMeters) -> bool:
    return any(reading is not None and reading.joules is not None for reading in _of(window, meters))


def _complete(window: Sequence[EnergyReading], meters: HostMeters) -> bool:
    return all(reading is not None and reading.joules is not None for reading in _of(window, meters))


def _set_of(name: str, windows: Windows) -> HostMeters | None:
    """The set of one tier: of the source that has it whole in most windows, the most exact one among equals."""
    metered = {reading.domain for window in windows for reading in window}
    best: tuple[int, HostMeters] | None = None
    for source in _PREFERENCE:
        mine = [r for window in windows for r in window if (r.source, r.kind) == (source, "measured")]
        mine = [r for r in mine if tier(r) == name and not (name in ("rail", "core") and r.contained_in in metered)]
        domains = sorted({r.domain for r in mine if not _is_dead_dram(r.domain, mine)}, key=_natural)
        if name == "package" and all(_is_dram(r) for r in mine):
            continue
        if all(r.joules is None for r in mine):
            continue
        candidate = HostMeters(source, tuple(domains), "measured")
        whole = sum(_complete(window, candidate) for window in windows)
        if best is None or whole > best[0]:
            best = whole, candidate
    return best[1] if best else None


def _is_dead_dram(domain: str, readings: Sequence[EnergyReading]) -> bool:
    """Whether it is a dram that never counted: many CPUs show one that reads 0, and that is no loss.

    A package that reads 0 beside one that counts is a loss: the sum over fewer sockets would look like a saving.
    """
    same = [r for r in readings if r.domain == domain]
    return all(_is_dram(r) for r in same) and all(r.joules is None and not r.dropped_samples_count for r in same)


def _is_dram(reading: EnergyReading) -> bool:
    return (reading.scope or _old_scope(reading)) == "dram"


def _refuted(name: str, sets: Mapping[str, HostMeters], windows: Windows) -> bool:
    """Whether the set of that tier draws less than one that lies inside it, over the windows that have both whole."""
    if name in ("battery", "package", "rail", "core"):
        return False
    for inner_name in TIERS[TIERS.index(name) + 1 :]:
        inner = sets.get(inner_name)
        if inner is None or inner_name in ("battery", "rail", "core"):
            continue
        error = _COUNTER_ERROR if name == "psys" else METER_ERROR
        error = _SUPPLY_LOSS if (name, inner_name) == ("server", "supply") else error
        both = [(host_energy(w, sets[name]), host_energy(w, inner)) for w in windows]
        pairs = [(a.watts, b.watts) for a, b in both if a.watts is not None and b.watts is not None]
        if pairs and sum(a for a, _ in pairs) < (1 - error) * sum(b for _, b in pairs):
            return True
    return False


def _estimated(windows: Windows) -> HostMeters | None:
    readings = [r for window in windows for r in window if r.kind == "estimated" and r.joules is not None]
    readings.sort(key=lambda r: (_PREFERENCE.index(r.source) if r.source in _PREFERENCE else 99, r.domain))
    return HostMeters(readings[0].source, (readings[0].domain,), "estimated") if readings else None


def _natural(domain: str) -> list[int | str]:
    """package-2 before package-10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", domain)]


def fill_containers(readings: Sequence[EnergyReading]) -> list[EnergyReading]:
    """The readings from the outside in, with `contained_in` filled in: the nearest metered domain around each."""
    order = (*TIERS, "device", "other", "model")
    return [
        reading
        if reading.contained_in is not None
        else msgspec.structs.replace(reading, contained_in=_container(reading, readings))
        for reading in sorted(readings, key=lambda r: order.index(tier(r)))
    ]


def _container(reading: EnergyReading, readings: Sequence[EnergyReading]) -> str | None:
    mine = tier(reading)
    # Cards may be fed from outside the board that is metered, and nobody knows where an unknown chip is.
    if mine in ("model", "wall", "device", "other"):
        return None
    outer = TIERS[: TIERS.index(mine)]
    no_psys = find_refuted_psys(readings) is not None
    for name in reversed(outer):
        if name in ("rail", "core") or (name == "package" and mine != "core"):
            continue
        if (name == "psys" and no_psys) or (name == "battery" and mine == "server"):
            continue
        around = {r.domain for r in readings if tier(r) == name and r.watts is not None}
        around -= {r.domain for r in readings if _is_dram(r)}
        if len(around) == 1 or (around and name not in ("package", "supply")):
            return min(around, key=_natural)
    return None


# What `powerprof energy` finds: the JSON of `powerprof.energy/1`.


class EnergyResult(msgspec.Struct, frozen=True, kw_only=True):
    """Every domain of every meter in one window, what was summed, and what is to be known of it."""

    schema: Literal["powerprof.energy/1"] = "powerprof.energy/1"
    window_s: float | None
    meters: list[EnergyReading]
    total: Total
    notes: Notes = []


# What a caller asks of energy: which meters, and facts for the estimate that this host does not show.

Vcpu = Literal["thread", "core"]


@dataclass(frozen=True, kw_only=True)
class EnergyRequest:
    """`source` is that of `--energy-source`, `meter_log` the CSV that an external meter writes.

    `cpu_model` names the CPU under a guest that hides it, as `named.result_of` reads it; `vcpu` says whether one of
    this host's CPUs is a hardware thread or a whole core. None: what can be seen here is gone by.
    """

    source: str = "auto"
    meter_log: Path | None = None
    cpu_model: str | None = None
    vcpu: Vcpu | None = None


# The best meter, and what can be seen.
DEFAULT_REQUEST = EnergyRequest()
NO_METER = EnergyRequest(source="none")
