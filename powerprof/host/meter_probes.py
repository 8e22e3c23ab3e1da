# SPDX-License-Identifier: Apache-2.0
"""Probes of energy meters."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from powerprof.energy.choice import find_meter_flaw
from powerprof.energy.meters.battery import find_batteries, open_battery
from powerprof.energy.meters.hwmon import find_channels, open_hwmon
from powerprof.energy.meters.ipmi import open_ipmi
from powerprof.energy.meters.meter import Meter
from powerprof.energy.meters.perf_power import open_perf_power
from powerprof.energy.meters.rapl import open_rapl
from powerprof.host.capabilities import Capability, is_root, limited, missing, none, ok, other_host
from powerprof.host.describe import read_virtualisation
from powerprof.system import paths, program_search
from powerprof.system.errors import CapabilityError
from powerprof.system.files import try_text
from powerprof.system.next_steps import command_line

_METER_TRIAL_S = 0.1  # RAPL counters move every millisecond


def probe_rapl() -> Capability:
    """Return whether powercap has RAPL. `energy_uj` is for root only since Linux 5.10 (CVE-2020-8694)."""
    zones = sorted((paths.sysfs() / "class/powercap").glob("*/energy_uj"))
    if not zones:
        if read_virtualisation():
            return none("rapl", "no RAPL in this guest")
        if not paths.is_this_host():
            return none("rapl", "no powercap zone with a counter")
        return missing("rapl", "no powercap zone with a counter", "modprobe intel_rapl_msr")
    names = ", ".join(sorted({try_text(zone.parent / "name") or zone.parent.name for zone in zones}))
    return _judge_total("rapl", f"powercap: {names}", open_rapl)


def _judge_total(name: str, detail: str, open_meter: Callable[[], Meter]) -> Capability:
    """Return whether a meter with figures has a total, or the reason that `energy` gives too."""
    try:
        flaw, _ = find_meter_flaw(open_meter)
    except CapabilityError as error:
        return limited(name, error.message.removeprefix(f"{name}: "), error.hint)
    return ok(name, detail) if flaw is None else limited(name, f"{detail}: no total, {flaw}")


def probe_perf_power() -> Capability:
    """Return whether perf has RAPL that counts: some guests offer an event that opens and never counts."""
    name = "perf_power"
    events = (paths.sysfs() / "bus/event_source/devices/power/events").glob("energy-*")
    names = ", ".join(sorted(path.name for path in events if not path.suffix))
    if not names:
        return none(name, f"no PMU named power {'in this guest' if read_virtualisation() else 'on this host'}")
    if not paths.is_this_host():
        return other_host(name)
    try:
        meter = open_perf_power()
    except CapabilityError as error:
        if not is_root():
            return limited(name, f"only root may open {names}", command_line("doctor"))
        return limited(name, error.message.removeprefix(f"{name}: "))
    try:
        meter.sample(time.monotonic())
        time.sleep(_METER_TRIAL_S)
        meter.sample(time.monotonic())
        if not meter.is_counting():
            return limited(name, f"{names}: present but does not count")
    finally:
        meter.close()
    return ok(name, names)


def probe_hwmon() -> Capability:
    """Return whether a sensor of power (µW) or energy (µJ) measures the host."""
    channels = find_channels(paths.sysfs() / "class/hwmon")
    chips = dict.fromkeys(channel.chip for channel in channels if channel.is_host)
    if chips:
        return _judge_total("hwmon", ", ".join(chips), open_hwmon)
    others = ", ".join(dict.fromkeys(channel.chip for channel in channels))
    return none("hwmon", f"{others}: not the host's, or unknown" if others else "no sensor of power or energy")


def probe_battery() -> Capability:
    """Return whether a battery discharges: only then it measures the whole machine."""
    batteries = find_batteries(paths.sysfs() / "class/power_supply")
    if not batteries:
        return none("battery", "no battery")
    names = ", ".join(folder.name for folder in batteries)
    return _judge_total("battery", f"{names}, discharging", open_battery)


def probe_ipmi() -> Capability:
    """Return whether the management controller reports the watts of the server (DCMI)."""
    devices = [path for path in map(Path, ("/dev/ipmi0", "/dev/ipmi/0", "/dev/ipmidev/0")) if path.exists()]
    if not paths.is_this_host():
        return other_host("ipmi")
    if not devices and read_virtualisation():
        return none("ipmi", "no management controller in this guest")
    if not devices:
        return none("ipmi", "no management controller that the kernel knows (modprobe ipmi_devintf ipmi_si)")
    if all(program_search.which(name) is None for name in ("ipmitool", "ipmi-dcmi")):
        return missing("ipmi", f"optional: {devices[0]} is there, ipmitool is not", "apt install ipmitool")
    if not is_root():
        return limited("ipmi", f"only root may use {devices[0]}", command_line("doctor"))
    return _judge_total("ipmi", f"{devices[0]}; seconds old when it is read", open_ipmi)


def judge_energy(meters: Sequence[Capability]) -> Capability:
    """Return whether energy is measured on this host, or estimated."""
    working = [meter.name for meter in meters if meter.status == "ok"]
    if working:
        return ok("energy", f"measured by {', '.join(working)}")
    fixable = next((meter for meter in meters if meter.status == "limited" and meter.remedy), None)
    if fixable is not None:
        return limited("energy", f"{fixable.name}: {fixable.detail}", fixable.remedy)
    place = "in this guest" if read_virtualisation() else "on this host"
    return none("energy", f"no meter {place}; estimates only")
