# SPDX-License-Identifier: Apache-2.0
"""Opens the meters that a person chose, or the best that this host has, and turns their samples to readings."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from powerprof import paths
from powerprof.closeable import Closeable
from powerprof.energy.asleep import Gap, awake, joined
from powerprof.energy.domains import contained
from powerprof.energy.reconcile import reconcile
from powerprof.errors import CapabilityError, UsageError
from powerprof.records import EnergyReading
from powerprof.sources.clock import Suspended
from powerprof.sources.meter import DomainEnergy, Meter
from powerprof.sources.series import in_window

# What `auto` tries, and in this order: exact counters of the CPUs first, then wider and coarser meters. turbostat
# reads the same registers as RAPL's two others and disturbs more; IPMI needs windows of half a minute.
_QUICK = ("rapl", "perf_power")
_AUTO = ("rapl", "perf_power", "turbostat", "hwmon", "battery", "ipmi")
NAMES = (*_AUTO, "powertop", "meter_log")
_HOST = "host:"
# RAPL counters move every millisecond; some firmwares and hypervisors take longer, none that count take this long.
_PROBE_S = 0.4
_SHORT_S = 0.1
# Samples from longer before a window are let go: what runs all day takes no more memory in the evening.
_KEPT_S = 3600.0


def _openers(meter_log: Path | None, auto: bool) -> dict[str, Callable[[], Meter]]:
    from powerprof.sources.battery import open_battery
    from powerprof.sources.hwmon import open_hwmon
    from powerprof.sources.ipmi import open_ipmi
    from powerprof.sources.meter_log import open_meter_log
    from powerprof.sources.perf_power import open_perf_power
    from powerprof.sources.powertop_meter import open_powertop
    from powerprof.sources.rapl import open_rapl
    from powerprof.sources.turbostat_meter import open_turbostat

    return {
        "rapl": open_rapl,
        "perf_power": open_perf_power,
        "turbostat": open_turbostat,
        # Of its own accord powerprof takes a chip only where it knows what it measures.
        "hwmon": lambda: open_hwmon(host_only=auto),
        "battery": open_battery,
        "ipmi": open_ipmi,
        "powertop": open_powertop,
        "meter_log": lambda: open_meter_log(meter_log),
    }


class MeterSet(Closeable):
    """The open meters of a measurement; a context manager that closes them. `names` is empty where none is there.

    `sample` is to be called at both edges of every window and, within, at least every `max_interval_s`.
    """

    def __init__(self, meters: list[Meter], why: str) -> None:
        self._meters = meters
        self.why = why
        self._notes: list[str] = []
        self._notes_by_source: dict[str, list[str]] = {}
        self._suspended = Suspended()
        self._sampled_s: dict[int, float] = {}
        self._gaps: dict[int, list[Gap]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The sources that are read."""
        return tuple(meter.name for meter in self._meters)

    @property
    def quick(self) -> bool:
        """Whether it can measure windows of a fifth of a second: RAPL counts every ms, the others lag behind."""
        return all(name in _QUICK for name in self.names)

    @property
    def max_interval_s(self) -> float | None:
        """The longest time between two samples that loses nothing; None where only the edges matter."""
        limits = [meter.max_interval_s for meter in self._meters if meter.max_interval_s is not None]
        return min(limits) if limits else None

    def sample(self, now_s: float | None = None) -> None:
        """Read every meter once, now (`now_s` stands in for the clock)."""
        slept = self._suspended.since_s() > 0
        for number, meter in enumerate(self._meters):
            at_s = time.monotonic() if now_s is None else now_s
            if slept and number in self._sampled_s:
                self._gaps.setdefault(number, []).append((self._sampled_s[number], at_s))
            self._sampled_s[number] = at_s
            meter.sample(at_s)

    def readings(self, start_s: float, end_s: float) -> list[EnergyReading]:
        """Energy by domain between two moments of CLOCK_MONOTONIC, from the samples nearest to them.

        A figure that is not available is None and `notes` says why; a counter that stood still is not 0 W.
        """
        self._notes = []
        result: list[EnergyReading] = []
        for number, meter in enumerate(self._meters):
            meter.forget(start_s - _KEPT_S)
            energies = self._energies(number, start_s, end_s)
            made, notes = make_readings(meter.name, energies, start_s, end_s)
            result += made
            self._notes_by_source[meter.name] = mine = [*notes, *meter.notes()]
            self._notes += mine
            if end_s - start_s < _SHORT_S and meter.name in _QUICK:
                self._notes.append(f"{meter.name}: windows under 100 ms are mostly noise")
        result = contained(result)
        self._notes += reconcile(result)
        return result

    def _energies(self, number: int, start_s: float, end_s: float) -> list[DomainEnergy]:
        """Of one meter; where the host was suspended within the window, of the time that it was awake."""
        meter, gaps = self._meters[number], self._gaps.get(number, [])
        whole = meter.energies(start_s, end_s)
        if all(end <= start_s or begin >= end_s for begin, end in gaps):
            return whole
        parts = [(span, meter.energies(*span)) for span in awake(start_s, end_s, gaps)]
        return joined([(item.domain, item.scope, item.inside) for item in whole], parts, start_s, end_s)

    def notes(self) -> list[str]:
        """What is to be known of the last `readings`: dropped samples, gaps, what contains what."""
        return list(dict.fromkeys(self._notes))

    def notes_of(self, source: str) -> list[str]:
        """Those of the last `readings` on one source, which may say why it gave no figure."""
        return self._notes_by_source.get(source, [])

    def close(self) -> None:
        """Close all meters; harmless twice."""
        while self._meters:
            self._meters.pop().close()


def make_readings(
    source: str, energies: list[DomainEnergy], start_s: float, end_s: float
) -> tuple[list[EnergyReading], list[str]]:
    """Readings of one source in a window, and their notes. A domain that read 0 throughout has no figure."""
    readings, notes = [], []
    for item in energies:
        joules, watts = in_window(item.energy, start_s, end_s)
        if joules == 0:
            joules = watts = None
            notes.append(f"{source}: {item.domain} is present but does not count (reads 0): no figure")
        else:
            notes += [f"{source}: {item.domain} {note}" for note in item.energy.notes]
        # What samples at the edges leave open belongs to the figure.
        edge = item.energy.edge_joules / (end_s - start_s) if watts is not None and item.energy.edge_joules else None
        readings.append(
            EnergyReading(
                source=source,
                domain=item.domain,
                kind="estimated" if source == "powertop" else "measured",
                joules=joules,
                watts=watts,
                low_watts=None if watts is None or edge is None else max(watts - edge, 0.0),
                high_watts=None if watts is None or edge is None else watts + edge,
                contained_in=item.inside,
                scope=item.scope,
                dropped_samples_count=item.energy.dropped,
            )
        )
    return readings, notes


def words_of(choice: str) -> list[str]:
    """The names in `--energy-source`. Raises UsageError for one that there is not, and for what excludes others."""
    words = [word.strip() for word in choice.split(",")]
    known = (*NAMES, "auto", "none", "model")
    unknown = [word for word in words if word not in known and not word.startswith(_HOST)]
    twice = next((word for word in words if words.count(word) > 1), None)
    if twice:
        raise UsageError(f"--energy-source {choice} names {twice} twice", "name each meter once")
    alone = len(words) > 1 and {"auto", "none", "model"} & set(words)
    if unknown or alone:
        reason = f"{min(alone)} stands alone" if alone else f"{unknown[0] or 'an empty name'} is not a choice"
        raise UsageError(
            f"--energy-source {choice}: {reason}",
            f"auto, none, model, or one or more of {', '.join(NAMES)}, host:URL, host:FOLDER (a comma between)",
        )
    return words


def open_meters(choice: str, *, meter_log: Path | None = None) -> MeterSet:
    """Open the meters of `--energy-source`: `auto`, `none`, or NAME[,NAME]; a named log is read in any case.

    Raises UsageError on an unknown name, CapabilityError where a named meter is missing or does not count.
    """
    words = words_of(choice)
    openers = _openers(meter_log, auto=words == ["auto"])
    meters: list[Meter] = []
    try:
        if words == ["auto"]:
            why = _open_best(openers, meters)
        elif words in (["none"], ["model"]):
            why = "no meter was requested"
        else:
            for name in dict.fromkeys(words):
                meters.append(_open_counting(name, openers))
            why = f"{', '.join(m.name for m in meters)} as asked"
        if meter_log is not None and all(m.name != "meter_log" for m in meters):
            meters.append(openers["meter_log"]())
            why += f"; meter_log: {meter_log}"
    except BaseException:
        for meter in meters:
            meter.close()
        raise
    return MeterSet(meters, why)


def _open_best(openers: dict[str, Callable[[], Meter]], meters: list[Meter]) -> str:
    reasons: list[str] = []
    for name in _AUTO:
        try:
            meters.append(_open_counting(name, openers))
        except CapabilityError as error:
            message = error.message
            reasons.append(message if message.startswith(f"{name}:") else f"{name}: {message}")
            continue
        passed = f" (passed over: {'; '.join(reasons)})" if reasons else ""
        return f"{name} is the most exact meter that counts here{passed}"
    return f"no meter on this host: {'; '.join(reasons)}"


def _open_counting(name: str, openers: dict[str, Callable[[], Meter]]) -> Meter:
    """Open a meter and see that it moves while a CPU works; a moved sysfs is another machine's and is not tried."""
    if name.startswith(_HOST):
        from powerprof.sources.host_export import open_host

        return open_host(name.removeprefix(_HOST))
    meter = openers[name]()
    if not paths.is_this_host() or name in ("meter_log", "powertop"):
        return meter
    try:
        if not _moves(meter):
            raise CapabilityError(
                f"{name}: present but does not count (reads 0)",
                "use another meter (--meter-log FILE), or the estimate (--energy-source model)",
            )
    except BaseException:
        meter.close()
        raise
    return meter


def _moves(meter: Meter) -> bool:
    end = time.monotonic() + _PROBE_S
    meter.sample(time.monotonic())
    while time.monotonic() < end:
        if meter.is_counting():
            return True
        sum(range(20_000))  # some half a millisecond of work: an idle package may be too slow to show
        meter.sample(time.monotonic())
    return bool(meter.is_counting())
