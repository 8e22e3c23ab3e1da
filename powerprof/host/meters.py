# SPDX-License-Identifier: Apache-2.0
"""Which meters of energy this host has, and whether they can be read and count."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from powerprof import paths, programs
from powerprof.errors import CapabilityError
from powerprof.files import try_text
from powerprof.host import kernel
from powerprof.host.capability import Capability, limited, missing, none, ok
from powerprof.host.describe import virtualisation
from powerprof.sources.hwmon import find_channels
from powerprof.sources.perf_power import open_perf_power

_LOOK_S = 0.1  # RAPL counters move every millisecond


def _readable(path: Path) -> bool:
    """Whether a reading can really be taken: modes do not tell for root in a container."""
    return try_text(path) is not None


def rapl() -> Capability:
    """RAPL by the powercap interface. `energy_uj` is for root only since Linux 5.10 (CVE-2020-8694)."""
    zones = sorted((paths.sysfs() / "class/powercap").glob("*/energy_uj"))
    if not zones:
        if virtualisation():
            return none("rapl", "no RAPL in this guest")
        if not paths.is_this_host():
            return none("rapl", "no powercap zone with a counter")
        return missing("rapl", "no powercap zone with a counter", "modprobe intel_rapl_msr")
    names = sorted({try_text(zone.parent / "name") or zone.parent.name for zone in zones})
    if not all(_readable(zone) for zone in zones):
        return limited("rapl", f"only root may read {', '.join(names)}", kernel.run_as_root())
    return ok("rapl", f"powercap: {', '.join(names)}")


def perf_power() -> Capability:
    """RAPL by perf. Present is not enough: some guests offer an event that opens and never counts."""
    name = "perf_power"
    events = (paths.sysfs() / "bus/event_source/devices/power/events").glob("energy-*")
    names = ", ".join(sorted(path.name for path in events if not path.suffix))
    if not names:
        return none(name, f"no PMU named power {'in this guest' if virtualisation() else 'on this host'}")
    if not paths.is_this_host():
        return kernel.not_this_host(name)
    try:
        meter = open_perf_power()
    except CapabilityError as error:
        if not kernel.is_privileged():
            return limited(name, f"only root may open {names}", kernel.run_as_root())
        return limited(name, error.message.removeprefix(f"{name}: "))
    try:
        meter.sample(time.monotonic())
        time.sleep(_LOOK_S)
        meter.sample(time.monotonic())
        if not meter.is_counting():
            return limited(name, f"{names}: present but does not count")
    finally:
        meter.close()
    return ok(name, names)


def hwmon() -> Capability:
    """Sensors of power (µW) or energy (µJ) on boards and power supplies, of which it is known what they measure."""
    channels = find_channels(paths.sysfs() / "class/hwmon")
    host = [channel.chip for channel in channels if channel.is_host]
    if host:
        return ok("hwmon", ", ".join(dict.fromkeys(host)))
    others = ", ".join(dict.fromkeys(channel.chip for channel in channels))
    return none("hwmon", f"{others}: not the host's, or unknown" if others else "no sensor of power or energy")


def battery() -> Capability:
    """A battery measures the whole machine, while it discharges."""
    supplies = sorted((paths.sysfs() / "class/power_supply").glob("*/type"))
    batteries = [path.parent for path in supplies if try_text(path) == "Battery"]
    if not batteries:
        return none("battery", "no battery")
    states = {try_text(folder / "status") or "unknown" for folder in batteries}
    names = ", ".join(folder.name for folder in batteries)
    if "Discharging" in states:
        return ok("battery", f"{names}, discharging")
    return limited("battery", f"{names} counts only while it discharges", "unplug the power supply")


def ipmi() -> Capability:
    """Watts of the whole server by the management controller (DCMI)."""
    devices = [path for path in map(Path, ("/dev/ipmi0", "/dev/ipmi/0", "/dev/ipmidev/0")) if path.exists()]
    if not paths.is_this_host():
        return kernel.not_this_host("ipmi")
    if not devices and virtualisation():
        return none("ipmi", "no management controller in this guest")
    if not devices:
        return none("ipmi", "no management controller that the kernel knows (modprobe ipmi_devintf ipmi_si)")
    if programs.which("ipmitool") is None:
        return missing("ipmi", f"optional: {devices[0]} is there, ipmitool is not", "apt install ipmitool")
    if not kernel.is_privileged():
        return limited("ipmi", f"only root may use {devices[0]}", kernel.run_as_root())
    return ok("ipmi", f"{devices[0]}; seconds old when it is read")


def energy(meters: Sequence[Capability]) -> Capability:
    """What an energy figure of this host will be: measured, or estimated."""
    working = [meter.name for meter in meters if meter.status == "ok"]
    if working:
        return ok("energy", f"measured by {', '.join(working)}")
    mendable = next((meter for meter in meters if meter.status == "limited" and meter.remedy), None)
    if mendable is not None:
        return limited("energy", f"{mendable.name}: {mendable.detail}", mendable.remedy)
    where = "in this guest" if virtualisation() else "on this host"
    return none("energy", f"no meter {where}; estimates only")
