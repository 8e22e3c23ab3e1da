# SPDX-License-Identifier: Apache-2.0
"""RAPL energy counters by the kernel's perf `power` PMU.

Its type, config, scale, unit and CPUs come from /sys/bus/event_source/devices/power. The kernel widens its counters to
64 bits (arch/x86/events/rapl.c), so they do not wrap. It needs CAP_PERFMON, or kernel.perf_event_paranoid below 1.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from powerprof.energy.layouts import MIRRORED_VENDORS, rapl_scope, read_topology
from powerprof.energy.meters.meter import (
    DomainEnergy,
    SampledMeter,
    UnusableMeterError,
    distinct_names,
    is_any_moving,
    require_this_host,
)
from powerprof.energy.mirrors import DIE, merge_mirrored
from powerprof.measure.counters import PACKAGE_WATTS, PSYS_WATTS, CounterSample, Missing, choose_interval_s
from powerprof.measure.cpuidle import parse_cpu_list
from powerprof.measure.energy_series import counter_energy
from powerprof.measure.perf_events import open_counter, read_counter
from powerprof.model.records import Scope
from powerprof.system import paths
from powerprof.system.errors import CapabilityError, PowerprofError, reason_of
from powerprof.system.files import read_int, read_text, try_int, try_text
from powerprof.system.virtualisation import read_virtualisation

_EVENT_DOMAINS = {
    "energy-pkg": "package",
    "energy-cores": "core",
    "energy-gpu": "uncore",
    "energy-ram": "dram",
    "energy-psys": "psys",
}


class PowerEvent(msgspec.Struct, frozen=True):
    """One event of the PMU, with the scale of its counter."""

    name: str
    config: int
    joules_per_unit: float


class OpenCounter(msgspec.Struct, frozen=True):
    """One event on one CPU. `descriptor` is None if it cannot be opened: its energy and its sums are unknown."""

    descriptor: int | None
    label: str
    scope: Scope
    inside: str | None
    joules_per_unit: float
    package: str = ""


def list_events(root: Path) -> tuple[int, list[PowerEvent], list[int]]:
    """Return the type, the energy events and the CPUs of the PMU in `root`. Raise PowerprofError for damaged files."""
    events = []
    for file in sorted((root / "events").iterdir()):
        match = re.fullmatch(r"event=(0x[0-9a-fA-F]+|\d+)", try_text(file) or "")
        if match is None or not file.name.startswith("energy-"):
            continue
        scale = try_text(file.with_name(file.name + ".scale"))
        unit = try_text(file.with_name(file.name + ".unit"))
        joules_per_unit = _parse_scale(scale)
        if joules_per_unit is None or unit != "Joules":
            continue
        events.append(PowerEvent(file.name, int(match[1], 0), joules_per_unit))
    return read_int(root / "type"), events, parse_cpu_list(read_text(root / "cpumask"), root / "cpumask")


def _parse_scale(text: str | None) -> float | None:
    try:
        scale = float(text or "")
    except ValueError:
        return None
    return scale if 0 < scale < 1 else None


def _scope_of(name: str) -> Scope:
    return "package" if DIE.fullmatch(name) else rapl_scope(name)


def _name_packages(cpus: Sequence[int], vendor: str | None = None) -> dict[int, str]:
    """Return the package of each of the PMU's CPUs, or its die if a package has several CPUs in the list.

    For AMD and Hygon only the first CPU of a package is in it: the others repeat the counter of the socket.
    """
    topology = {cpu: paths.sysfs() / f"devices/system/cpu/cpu{cpu}/topology" for cpu in cpus}
    package = {cpu: max(try_int(folder / "physical_package_id") or 0, 0) for cpu, folder in topology.items()}
    packages = list(package.values())
    if re.fullmatch(MIRRORED_VENDORS, vendor or ""):
        return {cpus[packages.index(number)]: f"package-{number}" for number in dict.fromkeys(packages)}
    dies = {cpu: (package[cpu], try_int(folder / "die_id") or 0) for cpu, folder in topology.items()}
    return {
        cpu: f"package-{number}"
        if packages.count(number) == 1
        else f"package-{number}-die-{die}"
        if list(dies.values()).count((number, die)) == 1
        else f"package-{number}-cpu-{cpu}"
        for cpu, (number, die) in dies.items()
    }


class PerfPowerMeter(SampledMeter[CounterSample]):
    """Open counters of the `power` PMU."""

    name = "perf_power"

    def __init__(self, counters: Sequence[OpenCounter], notes: list[str]) -> None:
        super().__init__(len(counters), notes)
        self._counters = list(counters)

    @property
    def max_interval_s(self) -> float | None:
        return choose_interval_s(self._samples)

    def sample(self, now_s: float) -> None:
        for counter, samples in zip(self._counters, self._samples, strict=True):
            try:
                value = None if counter.descriptor is None else read_counter(counter.descriptor)
            except OSError:
                value = None
            missing: Missing = "unreadable" if counter.descriptor is None else "gone"
            samples.append(CounterSample(now_s, value, missing if value is None else None))

    def is_counting(self) -> bool | None:
        return is_any_moving(self._samples)

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        energies = [
            DomainEnergy(
                counter.label,
                counter.scope,
                counter_energy(
                    samples,
                    start_s,
                    end_s,
                    joules_per_unit=counter.joules_per_unit,
                    modulus=1 << 64,
                    limit_watts=PSYS_WATTS if counter.scope == "psys" else PACKAGE_WATTS,
                ),
                counter.inside,
                f"{counter.label} cannot be opened" if counter.descriptor is None else None,
            )
            for counter, samples in zip(self._counters, self._samples, strict=True)
        ]
        owners = [counter.label if counter.scope == "package" else counter.package for counter in self._counters]
        unit, moduli = self._counters[0].joules_per_unit, [1 << 64] * len(self._counters)
        return merge_mirrored(energies, owners, self._samples, moduli, unit, read_topology(), is_absolute=False)

    def close(self) -> None:
        for counter in self._counters:
            if counter.descriptor is not None:
                os.close(counter.descriptor)
        self._counters, self._samples = [], []


def open_perf_power() -> PerfPowerMeter:
    """Open the `power` PMU's energy events. Raise CapabilityError if it is absent or refuses every event."""
    root = paths.sysfs() / "bus/event_source/devices/power"
    if not (root / "events").is_dir():
        raise CapabilityError(
            f"perf_power: no power PMU in {root} (a virtual machine, or the rapl driver is not loaded)",
            "modprobe rapl; if that fails, use another meter (--meter FILE) or the estimate",
        )
    if read_virtualisation() and not list(paths.sysfs().glob("class/powercap/*rapl*")):
        raise CapabilityError(
            "perf_power: this virtual machine has the power PMU, but not RAPL's registers: its kernel logs a "
            "warning when they are read",
            "use another meter (--meter FILE) or the estimate; or, if the hypervisor has the registers: modprobe "
            "intel_rapl_msr",
        )
    require_this_host("perf_power: perf counters are the running kernel's")
    try:
        kind, events, cpus = list_events(root)
    except PowerprofError as error:
        raise CapabilityError(f"perf_power: {error.message}", "use another meter, or the estimate") from error
    plan = []
    for event in events:
        base = _EVENT_DOMAINS.get(event.name, event.name.removeprefix("energy-"))
        for cpu, package in _name_packages(cpus, read_topology().vendor).items():
            name, parent = (package, None) if base == "package" else (base, package)
            plan.append((event, cpu, name, parent))
    labels = distinct_names([(name, parent) for _, _, name, parent in plan])
    packages = {label for (_, _, name, _), label in zip(plan, labels, strict=True) if name.startswith("package-")}
    counters: list[OpenCounter] = []
    notes: list[str] = []
    refusal: OSError | None = None
    for (event, cpu, name, parent), label in zip(plan, labels, strict=True):
        descriptor: int | None = None
        try:
            descriptor = open_counter(kind, event.config, cpu)
        except OSError as error:
            refusal = error
            notes.append(f"perf_power: {event.name} on CPU {cpu} cannot be opened ({reason_of(error)})")
        inside = parent if name in ("core", "uncore") and parent in packages else None
        counters.append(OpenCounter(descriptor, label, _scope_of(name), inside, event.joules_per_unit, parent or ""))
    if all(counter.descriptor is None for counter in counters):
        reason = reason_of(refusal) if refusal else "no energy events"
        raise UnusableMeterError(
            f"perf_power: the power PMU cannot be opened ({reason})",
            "run as root, or: sysctl kernel.perf_event_paranoid=0",
        )
    return PerfPowerMeter(counters, notes)
