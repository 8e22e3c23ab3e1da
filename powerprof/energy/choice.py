# SPDX-License-Identifier: Apache-2.0
"""The meters of `--meter`, opened, or the best of this host."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from powerprof.energy.layouts import SUMMED, read_topology
from powerprof.energy.meter_set import MeterSet
from powerprof.energy.meters.meter import Meter, UnusableMeterError
from powerprof.energy.readings import find_energy_flaws, make_readings
from powerprof.energy.request import AUTO, HOST_PREFIX, parse_choice
from powerprof.model.records import Scope
from powerprof.system import paths
from powerprof.system.errors import CapabilityError, PowerprofError

# Meters with the same domains from opening on. Others show them in their first samples.
_CHECKED = ("rapl", "perf_power", "hwmon", "battery", "ipmi")
# RAPL counters move every millisecond. Some firmware and hypervisors take longer, but a working counter moves in this
# time.
_PROBE_S = 0.4
# A window that shows the domains of an open meter.
_CHECK_S = 0.1
# The scopes of which one alone stands for the machine.
_WHOLE_SCOPES = tuple(scope for scope in SUMMED if scope != "dram")


def list_openers(meter_log: Path | None = None, *, is_auto: bool = True) -> dict[str, Callable[[], Meter]]:
    """Return how to open each meter. The automatic choice takes only chips with a known meaning."""
    from powerprof.energy.meters.battery import open_battery
    from powerprof.energy.meters.hwmon import open_hwmon
    from powerprof.energy.meters.ipmi import open_ipmi
    from powerprof.energy.meters.meter_log import open_meter_log
    from powerprof.energy.meters.perf_power import open_perf_power
    from powerprof.energy.meters.rapl import open_rapl
    from powerprof.energy.meters.turbostat import open_turbostat

    return {
        "rapl": open_rapl,
        "perf_power": open_perf_power,
        "turbostat": open_turbostat,
        "hwmon": lambda: open_hwmon(host_only=is_auto),
        "battery": open_battery,
        "ipmi": open_ipmi,
        "meter_log": lambda: open_meter_log(meter_log),
    }


def open_meters(choice: str, *, meter_log: Path | None = None) -> MeterSet:
    """Open the meters of `--meter`: `auto`, `none`, or NAME[:DOMAIN+…][,NAME]. A meter log is always opened.

    Raise UsageError for an unknown name, CapabilityError if a named meter is missing or does not count.
    """
    selected = parse_choice(choice)
    words = list(selected)
    openers = list_openers(meter_log, is_auto=words == ["auto"])
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
    shown = [item.domain for item in meter.energies(now_s, now_s + _CHECK_S)]
    missing = next((domain for domain in domains if domain not in shown), None)
    if missing is not None:
        raise CapabilityError(f"{meter.name}: it has no domain {missing!r}", f"it has {', '.join(shown)}")


def _open_best(openers: dict[str, Callable[[], Meter]], meters: list[Meter]) -> str:
    """Open the first meter that counts and is a recognised layout; without one, the first that counts."""
    reasons: list[str] = []
    remedies: list[str] = []
    flawed: Meter | None = None
    for name in AUTO:
        trial = try_meter(name, openers)
        meter = trial.meter
        if trial.reason is not None:
            reasons.append(f"{name}: {trial.reason}")
            if trial.remedy:
                remedies.append(f"{name}: {trial.remedy}")
            if meter is not None and flawed is None and trial.is_host:
                flawed = meter
            elif meter is not None:
                meter.close()
            continue
        assert meter is not None  # noqa: S101
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


class MeterTrial(NamedTuple):
    """One meter of `auto`, opened, or the reason why it is not used.

    Attributes:
        meter: also one without a total.
        remedy: for a meter of this host without a figure now.
        is_host: any of its domains is of the machine.
    """

    meter: Meter | None
    reason: str | None = None
    remedy: str | None = None
    is_host: bool = True


def try_meter(name: str, openers: Mapping[str, Callable[[], Meter]]) -> MeterTrial:
    """Open a meter and decide whether `auto` may use it. The caller closes it."""
    flaw, is_host = None, True
    try:
        if name in _CHECKED:
            flaw, is_host = _find_meter_flaw(openers[name])
        return MeterTrial(_open_counting(name, openers), flaw, None, is_host)
    except PowerprofError as error:
        remedy = error.hint if isinstance(error, UnusableMeterError) else None
        return MeterTrial(None, flaw or error.message.removeprefix(f"{name}: "), remedy)


def _find_meter_flaw(open_meter: Callable[[], Meter]) -> tuple[str | None, bool]:
    """Return why a meter can have no total (None if it can), and if any of its domains is of the machine.

    Two samples show whether its power readings are possible. Whether counters move is not tested.
    """
    meter = open_meter()
    try:
        now_s = time.monotonic()
        meter.sample(now_s)
        meter.sample(now_s + _CHECK_S)
        domains = meter.energies(now_s, now_s + _CHECK_S)
    finally:
        meter.close()
    outer = [item for item in domains if item.scope in SUMMED and item.inside is None]
    if not outer:
        return "it shows no package, supply or other part that covers the whole machine", False
    flaws: dict[Scope, str] = dict(find_energy_flaws(meter.name, domains, read_topology()))
    readings, _ = make_readings(meter.name, domains, now_s, now_s + _CHECK_S, read_topology())
    for item, reading in zip(domains, readings, strict=True):
        if item in outer and not item.energy.is_count:
            lost = [*item.energy.notes, "reads 0"][0] if reading.watts is None else None
            flaw = reading.unsummed or (lost and f"{item.domain} {lost}")
            if flaw:
                flaws.setdefault(item.scope, flaw)
    # The packages' total includes their memory.
    if "dram" in flaws:
        flaws.setdefault("package", flaws["dram"])
    if any(item.scope in _WHOLE_SCOPES and item.scope not in flaws for item in outer):
        return None, True
    return next((flaws[item.scope] for item in outer if item.scope in flaws), None), True


def _open_counting(name: str, openers: Mapping[str, Callable[[], Meter]]) -> Meter:
    """Open a meter and check that it moves while a CPU works. Files of another host are not probed."""
    if name.startswith(HOST_PREFIX):
        from powerprof.energy.meters.host import open_host

        return open_host(name.removeprefix(HOST_PREFIX))
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
