# SPDX-License-Identifier: Apache-2.0
"""Opening of the chosen meters, or of the best of this host, and readings from their samples."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from powerprof.energy.domains import (
    METER_ERROR,
    DomainEnergy,
    Meter,
    UnusableMeterError,
    fill_containers,
    find_refuted_psys,
    host_energy,
    tier,
)
from powerprof.energy.layouts import SUMMED, UNKNOWN_TOPOLOGY, Topology, find_flaws, read_topology
from powerprof.measure.counters import EnergySeries, scale_to_window
from powerprof.measure.window import SuspendClock
from powerprof.model.records import EnergyReading, Scope
from powerprof.system import paths
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError

# The energy of a window in which the host was suspended: that of its time awake. Pure.
#
# The step of a counter across a suspend belongs to no window. In suspend-to-idle a package still draws power, and RAPL
# counts it. In suspend-to-RAM it loses power, and its registers restart at 0 (powercap's driver restores only the
# limits: intel_rapl_common.c, rapl_pm_callback). Either way CLOCK_MONOTONIC does not count that time.

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


# Containment and the watts between tiers, and every figure above that of its container. Pure.


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
    reason = host_energy(readings).reason if any(r.joules is not None for r in readings) else None
    lines += [] if reason is None else [f"no total: {reason}"]
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


# The order of `auto`: exact counters of the CPUs first, then wider and coarser meters. turbostat reads the same
# registers as the two RAPL meters and disturbs more. IPMI needs windows of half a minute.
_QUICK = ("rapl", "perf_power")
_AUTO = ("rapl", "perf_power", "turbostat", "hwmon", "battery", "ipmi")
NAMES = (*_AUTO, "meter_log")
# Meters with the same domains from opening on. Others show them in their first samples.
_CHECKED = ("rapl", "perf_power", "hwmon", "battery")
_HOST = "host:"
# RAPL counters move every millisecond. Some firmware and hypervisors take longer, but a working counter moves in this
# time.
_PROBE_S = 0.4
_SHORT_S = 0.1
# Older samples before a window are dropped, so that a run of a day needs no more memory than one of an hour.
_KEPT_S = 3600.0


def _list_openers(meter_log: Path | None, is_auto: bool) -> dict[str, Callable[[], Meter]]:
    from powerprof.energy.meter_log import open_meter_log
    from powerprof.energy.program_meters import open_ipmi, open_turbostat
    from powerprof.energy.rapl import open_perf_power, open_rapl
    from powerprof.energy.sensors import open_battery, open_hwmon

    return {
        "rapl": open_rapl,
        "perf_power": open_perf_power,
        "turbostat": open_turbostat,
        # The automatic choice takes only chips with a known meaning.
        "hwmon": lambda: open_hwmon(host_only=is_auto),
        "battery": open_battery,
        "ipmi": open_ipmi,
        "meter_log": lambda: open_meter_log(meter_log),
    }


class MeterSet(Closeable):
    """The open meters of a measurement. A context manager that closes them. `names` is empty without a meter.

    Call `sample` at both edges of every window and, within it, at least every `max_interval_s`.
    """

    def __init__(self, meters: list[Meter], why: str, selected: Mapping[str, Sequence[str]] | None = None) -> None:
        self._meters = meters
        self.why = why
        # The domains that the user named as the whole machine, by meter.
        self._selected = selected or {}
        self._notes: list[str] = []
        self._notes_by_source: dict[str, list[str]] = {}
        self._suspended = SuspendClock()
        self._sampled_s: dict[int, float] = {}
        self._gaps: dict[int, list[Gap]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The sources of the open meters."""
        return tuple(meter.name for meter in self._meters)

    @property
    def quick(self) -> bool:
        """Whether all meters suit windows of a fifth of a second: RAPL counts every ms, others lag behind."""
        return all(name in _QUICK for name in self.names)

    @property
    def max_interval_s(self) -> float | None:
        """The longest time between two samples without a loss. None if only the edges matter."""
        limits = [meter.max_interval_s for meter in self._meters if meter.max_interval_s is not None]
        return min(limits) if limits else None

    def sample(self, now_s: float | None = None) -> None:
        """Read every meter once, now (`now_s` replaces the clock)."""
        was_suspended = self._suspended.since_s() > 0
        for number, meter in enumerate(self._meters):
            at_s = time.monotonic() if now_s is None else now_s
            if was_suspended and number in self._sampled_s:
                self._gaps.setdefault(number, []).append((self._sampled_s[number], at_s))
            self._sampled_s[number] = at_s
            meter.sample(at_s)

    def readings(self, start_s: float, end_s: float) -> list[EnergyReading]:
        """Return the energy by domain between two moments of CLOCK_MONOTONIC, from the nearest samples.

        An unavailable figure is None and `notes` gives the reason. A counter without movement is not 0 W.
        """
        self._notes = []
        readings: list[EnergyReading] = []
        for number, meter in enumerate(self._meters):
            meter.drop_samples(start_s - _KEPT_S)
            energies = self._sum_awake(number, start_s, end_s)
            own_readings, notes = make_readings(meter.name, energies, start_s, end_s, read_topology())
            readings += _select_named(own_readings, self._selected.get(meter.name, ()))
            self._notes_by_source[meter.name] = own_notes = [*notes, *meter.notes()]
            self._notes += own_notes
            if end_s - start_s < _SHORT_S and meter.name in _QUICK:
                self._notes.append(f"{meter.name}: windows under 100 ms are mostly noise")
        readings = fill_containers(readings)
        self._notes += reconcile(readings)
        return readings

    def _sum_awake(self, number: int, start_s: float, end_s: float) -> list[DomainEnergy]:
        """Return the energy of one meter; if the host was suspended in the window, only for its time awake."""
        meter, gaps = self._meters[number], self._gaps.get(number, [])
        whole = meter.energies(start_s, end_s)
        if all(end <= start_s or begin >= end_s for begin, end in gaps):
            return whole
        parts = [(span, meter.energies(*span)) for span in subtract_gaps(start_s, end_s, gaps)]
        return join_spans(whole, parts, start_s, end_s)

    def notes(self) -> list[str]:
        """Return notes on the last `readings`: dropped samples, gaps, containment."""
        return list(dict.fromkeys(self._notes))

    def notes_of(self, source: str) -> list[str]:
        """Return the notes on one source's last `readings`, such as the reason for a missing figure."""
        return self._notes_by_source.get(source, [])

    def close(self) -> None:
        """Close all meters. A second call has no effect."""
        while self._meters:
            self._meters.pop().close()


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
                kind="measured",
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


def _select_named(readings: list[EnergyReading], domains: Sequence[str]) -> list[EnergyReading]:
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
    return {**find_flaws(source, [(item.domain, item.scope) for item in outer], topology), **flaws}


def parse_sources(choice: str) -> list[str]:
    """Return the names in `--meter`. Raise UsageError for an unknown name or one that must be alone."""
    return list(_parse_choice(choice))


def _parse_choice(choice: str) -> dict[str, tuple[str, ...]]:
    """Return the named meters, and for each the domains that stand for the machine (none: the recognised layout)."""
    words = [word.strip() for word in choice.split(",")]
    names: dict[str, tuple[str, ...]] = {}
    known = (*NAMES, "auto", "none", "model")
    twice = unknown = None
    for word in words:
        name, colon, domains = word.partition(":")
        if word.startswith(_HOST) or name not in NAMES:
            name, domains = word, ""
        is_known = name.startswith(_HOST) or (name in known and bool(domains) == bool(colon))
        unknown = unknown if is_known or unknown else word or "an empty name"
        twice = name if name in names else twice
        names[name] = tuple(domain.strip() for domain in domains.split("+") if domain.strip())
    if twice:
        raise UsageError(f"--meter {choice} names {twice} twice", "name each meter once")
    alone = len(words) > 1 and {"auto", "none", "model"} & set(words)
    if unknown or alone:
        reason = f"{min(alone)} stands alone" if alone else f"{unknown} is not a choice"
        raise UsageError(
            f"--meter {choice}: {reason}",
            f"auto, none, model, or one or more of {', '.join(NAMES)}, host:URL, the CSV log of a meter "
            "(a comma between); NAME:DOMAIN+DOMAIN sums these domains",
        )
    return names


def open_meters(choice: str, *, meter_log: Path | None = None) -> MeterSet:
    """Open the meters of `--meter`: `auto`, `none`, or NAME[:DOMAIN+…][,NAME]. A meter log is always opened.

    Raise UsageError for an unknown name, CapabilityError if a named meter is missing or does not count.
    """
    selected = _parse_choice(choice)
    words = list(selected)
    openers = _list_openers(meter_log, is_auto=words == ["auto"])
    meters: list[Meter] = []
    try:
        if words == ["auto"]:
            why = _open_best(openers, meters)
        elif words in (["none"], ["model"]):
            why = "no meter was requested"
        else:
            for name, domains in selected.items():
                meters.append(_open_counting(name, openers))
                _require_domains(meters[-1], domains)
            why = f"{', '.join(m.name for m in meters)} as asked"
        if meter_log is not None and all(m.name != "meter_log" for m in meters):
            meters.append(openers["meter_log"]())
            why += f"; meter_log: {meter_log}"
    except BaseException:
        for meter in meters:
            meter.close()
        raise
    return MeterSet(meters, why, selected)


def _require_domains(meter: Meter, domains: Sequence[str]) -> None:
    """Raise CapabilityError if a meter whose domains are known lacks a named one."""
    if not domains or meter.name not in _CHECKED:
        return
    now_s = time.monotonic()
    shown = [item.domain for item in meter.energies(now_s, now_s + _SHORT_S)]
    missing = next((domain for domain in domains if domain not in shown), None)
    if missing is not None:
        raise CapabilityError(f"{meter.name}: it has no domain {missing!r}", f"it has {', '.join(shown)}")


def _open_best(openers: dict[str, Callable[[], Meter]], meters: list[Meter]) -> str:
    """Open the first meter that counts and is a recognised layout; without one, the first that counts."""
    reasons: list[str] = []
    remedies: list[str] = []
    flawed: Meter | None = None
    for name in _AUTO:
        try:
            meter = _open_counting(name, openers)
        except PowerprofError as error:
            message = error.message
            reasons.append(message if message.startswith(f"{name}:") else f"{name}: {message}")
            if isinstance(error, UnusableMeterError) and error.hint:
                remedies.append(f"{name}: {error.hint}")
            continue
        flaw, is_host = find_open_flaw(meter)
        if flaw is not None:
            reasons.append(f"{name}: {flaw}")
            if flawed is None and is_host:
                flawed = meter
            else:
                meter.close()
            continue
        meters.append(meter)
        if flawed is not None:
            flawed.close()
        passed = f" (passed over: {'; '.join(reasons)})" if reasons else ""
        return f"{name} is the most exact meter that counts here{passed}"
    if flawed is not None:
        meters.append(flawed)
        flaw = next(reason for reason in reasons if reason.startswith(f"{flawed.name}:"))
        return f"{flawed.name}, which has no total ({flaw}), as no better meter counts here"
    remedy = f". To use one: {'; '.join(remedies)}" if remedies else ""
    return f"no meter on this host: {'; '.join(reasons)}{remedy}"


def find_open_flaw(meter: Meter) -> tuple[str | None, bool]:
    """Return why the domains of an open meter can have no total (None if they can), and if any is of the machine."""
    if meter.name not in _CHECKED:
        return None, True
    now_s = time.monotonic()
    domains = meter.energies(now_s, now_s + _SHORT_S)
    if all(item.scope not in SUMMED for item in domains):
        return "it shows no package, supply or other part that covers the whole machine", False
    flaws = find_energy_flaws(meter.name, domains, read_topology())
    return next(iter(flaws.values()), None), True


def _open_counting(name: str, openers: dict[str, Callable[[], Meter]]) -> Meter:
    """Open a meter and check that it moves while a CPU works. Files of another host are not probed."""
    if name.startswith(_HOST):
        from powerprof.energy.host_export import open_host

        return open_host(name.removeprefix(_HOST))
    meter = openers[name]()
    if not paths.is_this_host() or name == "meter_log":
        return meter
    try:
        start_s = time.monotonic()
        if not _probe(meter):
            unread = next((i for i in meter.energies(start_s, time.monotonic()) if i.energy.notes), None)
            reason = "present but does not count (reads 0)"
            if unread is not None and unread.energy.joules is None:
                reason = f"{unread.domain} {unread.energy.notes[0]}"
            raise CapabilityError(
                f"{name}: {reason}", "use another meter (--meter FILE), or the estimate (--meter model)"
            )
    except BaseException:
        meter.close()
        raise
    return meter


def _probe(meter: Meter) -> bool:
    end = time.monotonic() + _PROBE_S
    meter.sample(time.monotonic())
    while time.monotonic() < end:
        if meter.is_counting():
            return True
        sum(range(20_000))  # about half a millisecond of work: an idle package may move too slowly
        meter.sample(time.monotonic())
    return bool(meter.is_counting())
