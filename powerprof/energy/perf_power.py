# SPDX-License-Identifier: Apache-2.0
"""RAPL through the kernel's perf `power` PMU: system-wide counters by perf_event_open(2).

Type, config, scale, unit and the CPUs to open on come from /sys/bus/event_source/devices/power. The kernel widens
the counters to 64 bits itself (arch/x86/events/rapl.c), so they do not wrap here. It needs CAP_PERFMON, or
kernel.perf_event_paranoid below 1.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from powerprof.energy.meter import DomainEnergy, distinct_names, rapl_scope
from powerprof.measure.counters import (
    PACKAGE_WATTS,
    CounterSample,
    Missing,
    choose_interval_s,
    counter_energy,
    drop_old_samples,
)
from powerprof.measure.perf_events import open_counter, read_counter
from powerprof.model.records import Scope
from powerprof.system import paths
from powerprof.system.errors import CapabilityError
from powerprof.system.files import read_int, read_text, reason_of, try_int, try_text

_MODULUS = 1 << 64
_PSYS_WATTS = 5 * PACKAGE_WATTS  # as powercap's
_NAMES = {
    "energy-pkg": "package",
    "energy-cores": "core",
    "energy-gpu": "uncore",
    "energy-ram": "dram",
    "energy-psys": "psys",
}


@dataclass(frozen=True)
class PowerEvent:
    """One event of the PMU: `joules_per_unit` from its scale file."""

    name: str
    config: int
    joules_per_unit: float


@dataclass(frozen=True)
class OpenCounter:
    """`descriptor` None: it could not be opened. What it counts is unknown then, and so is a sum that it belongs to."""

    descriptor: int | None
    label: str
    scope: Scope
    inside: str | None
    joules_per_unit: float


def list_events(root: Path) -> tuple[int, list[PowerEvent], list[int]]:
    """Type number, energy events and CPUs of the PMU in `root`. Raises PowerprofError where files are odd."""
    events = []
    for file in sorted((root / "events").iterdir()):
        match = re.fullmatch(r"event=(0x[0-9a-fA-F]+|\d+)", try_text(file) or "")
        if match is None or not file.name.startswith("energy-"):
            continue
        scale = try_text(file.with_name(file.name + ".scale"))
        unit = try_text(file.with_name(file.name + ".unit"))
        if scale is None or unit != "Joules":
            continue
        events.append(PowerEvent(file.name, int(match[1], 0), float(scale)))
    return read_int(root / "type"), events, parse_cpu_list(read_text(root / "cpumask"))


def parse_cpu_list(text: str) -> list[int]:
    """CPUs of a sysfs list such as `0,28-30`."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        cpus.extend(range(int(low), int(high or low) + 1))
    return cpus


def _packages_of(cpus: Sequence[int]) -> dict[int, str]:
    """Whose counter each of the PMU's CPUs reads: a package's, or a die's where a package has several."""
    topology = {cpu: paths.sysfs() / f"devices/system/cpu/cpu{cpu}/topology" for cpu in cpus}
    package = {cpu: max(try_int(folder / "physical_package_id") or 0, 0) for cpu, folder in topology.items()}
    whole = list(package.values())
    return {
        cpu: f"package-{package[cpu]}"
        if whole.count(package[cpu]) == 1
        else f"package-{package[cpu]}-die-{try_int(folder / 'die_id') or 0}"
        for cpu, folder in topology.items()
    }


class PerfPowerMeter:
    """Open counters of the `power` PMU; the descriptors are closed by `close`."""

    name = "perf_power"

    def __init__(self, counters: Sequence[OpenCounter], notes: list[str]) -> None:
        self._counters = list(counters)
        self._samples: list[list[CounterSample]] = [[] for _ in counters]
        self._notes = notes

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
        if not self._samples or len(self._samples[0]) < 2:
            return None
        return any(len({s.value for s in samples if s.value is not None}) > 1 for samples in self._samples)

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        return [
            DomainEnergy(
                counter.label,
                counter.scope,
                counter_energy(
                    samples,
                    start_s,
                    end_s,
                    joules_per_unit=counter.joules_per_unit,
                    modulus=_MODULUS,
                    limit_watts=_PSYS_WATTS if counter.scope == "psys" else PACKAGE_WATTS,
                ),
                counter.inside,
            )
            for counter, samples in zip(self._counters, self._samples, strict=True)
        ]

    def drop_samples(self, before_s: float) -> None:
        for samples in self._samples:
            drop_old_samples(samples, before_s)

    def notes(self) -> list[str]:
        return list(self._notes)

    def close(self) -> None:
        for counter in self._counters:
            if counter.descriptor is not None:
                os.close(counter.descriptor)
        self._counters, self._samples = [], []


def open_perf_power() -> PerfPowerMeter:
    """The `power` PMU's energy events. Raises CapabilityError where it is absent or may not be opened."""
    root = paths.sysfs() / "bus/event_source/devices/power"
    if not (root / "events").is_dir():
        raise CapabilityError(
            f"perf_power: no power PMU in {root} (a virtual machine, or the rapl driver is not loaded)",
            "modprobe rapl; where that fails use another meter (--meter-log FILE) or the estimate",
        )
    if not paths.is_this_host():
        raise CapabilityError(
            "perf_power: perf counters are the running kernel's, and POWERPROF_SYSFS or POWERPROF_PROCFS is set",
            "unset POWERPROF_SYSFS POWERPROF_PROCFS",
        )
    kind, events, cpus = list_events(root)
    plan = []
    packages = _packages_of(cpus)
    for event in events:
        base = _NAMES.get(event.name, event.name.removeprefix("energy-"))
        for cpu, package in packages.items():
            name, parent = (package, None) if base == "package" else (base, package)
            plan.append((event, cpu, name, parent))
    labels = distinct_names([(name, parent) for _, _, name, parent in plan])
    measured = {label for (_, _, name, _), label in zip(plan, labels, strict=True) if name.startswith("package-")}
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
        inside = parent if name in ("core", "uncore") and parent in measured else None
        counters.append(OpenCounter(descriptor, label, rapl_scope(name), inside, event.joules_per_unit))
    if all(counter.descriptor is None for counter in counters):
        reason = reason_of(refusal) if refusal else "no energy events"
        raise CapabilityError(
            f"perf_power: the power PMU cannot be opened ({reason})",
            "run as root, or: setcap cap_perfmon+ep on python, or: sysctl kernel.perf_event_paranoid=0",
        )
    return PerfPowerMeter(counters, notes)
