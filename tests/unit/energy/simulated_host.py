# SPDX-License-Identifier: Apache-2.0
"""Simulates the sysfs of a host second by second, and judges the figures that are read from it.

A host has files whose content depends on the time, and a truth: the watts of each part that a figure may describe.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from powerprof.energy.choice import open_meters
from powerprof.energy.meter_set import MeterSet
from powerprof.energy.meters import perf_power
from powerprof.energy.total import host_energy, tier
from powerprof.model.records import EnergyReading
from powerprof.system.errors import CapabilityError

# Seconds of a window. All loads have their mean over it, because it is twice their period.
WINDOW_S = 10
_PERIOD_S = 5.0
_RANGE_UJ = 262_143_328_850
# A figure may differ from the truth by this share.
_TOLERANCE = 0.02
# The same for a steady power.
_EXACT = 2e-3

# A file's content at a time after the start of the window. None: the file is absent.
Signal = Callable[[float], str | None]
# What a correct program gives. `figure`: a right figure. `either`: a right figure, or none. `unknown`: none.
Demand = Literal["figure", "either", "unknown"]
# The content of a file that exists and cannot be read.
UNREADABLE = "<unreadable>"


@dataclass(frozen=True)
class Load:
    """A power that swings around its mean."""

    watts: float
    swing: float = 0.02

    @property
    def _phase(self) -> float:
        return 7 * self.watts

    def power(self, time_s: float) -> float:
        return self.watts * (1 + self.swing * math.sin(2 * math.pi * time_s / _PERIOD_S + self._phase))

    def joules(self, time_s: float) -> float:
        """Return the energy since the start of the window."""
        turn = 2 * math.pi / _PERIOD_S
        swung = (math.cos(self._phase) - math.cos(turn * time_s + self._phase)) / turn
        return self.watts * (time_s + self.swing * swung)


def constant(text: object) -> Signal:
    return lambda time_s: str(text)


def counter(load: Load, start_uj: int = 0, range_uj: int | None = _RANGE_UJ, skew_s: float = 0.0) -> Signal:
    """Return a counter in microjoules. `skew_s` is the delay of its reading."""
    return lambda time_s: str(
        (start_uj + round(load.joules(time_s + skew_s) * 1e6)) % (range_uj + 1 if range_uj else 1 << 64)
    )


def between(signal: Signal, since_s: float = 0.0, until_s: float = math.inf, outside: str | None = None) -> Signal:
    """Return a signal with another content (by default: no file) before `since_s` and from `until_s` on."""
    return lambda time_s: signal(time_s) if since_s <= time_s < until_s else outside


@dataclass
class Host:
    """A host under simulation.

    Attributes:
        truth: watts by tier (`package`, `dram`, `psys`, `server`, `supply`, `battery`, `rail`). A tier that is absent
            has no right figure.
        whole: the exact watts of the machine by any tier. It replaces `truth`.
        is_breakable: a fault of a channel leaves the truth right. A lost sample at the moment of a step does not.
        source: the public listing of a real host.
        sensors: counters of the perf `power` PMU in joules, by event and CPU. None: the event cannot be opened.
    """

    name: str
    family: str
    demand: Demand = "either"
    truth: dict[str, float] = field(default_factory=dict)
    whole: float | None = None
    files: dict[str, Signal] = field(default_factory=dict)
    processes: dict[str, str] = field(default_factory=dict)
    is_breakable: bool = True
    sensors: dict[tuple[str, int], Callable[[float], float] | None] = field(default_factory=dict)
    source: str = ""

    def is_steady(self) -> bool:
        """Return whether a fault may be added: all files exist during the whole window."""
        return self.is_breakable and all(
            signal(float(t)) is not None for signal in self.files.values() for t in range(WINDOW_S + 1)
        )

    def put(self, path: str, text: object) -> None:
        self.files[path] = constant(text)

    def cpus(self, vendor: str, family: int, model: int, name: str, *, sockets: int = 1, dies: int = 1) -> None:
        """Add the topology and /proc/cpuinfo: two CPUs per die."""
        lines = []
        for number in range(sockets * dies * 2):
            socket, die = number // (2 * dies), number // 2 % dies
            topology = f"devices/system/cpu/cpu{number}/topology"
            self.put(f"{topology}/physical_package_id", socket)
            self.put(f"{topology}/die_id", die)
            self.put(f"{topology}/core_id", number % (2 * dies))
            lines += [f"processor\t: {number}", f"vendor_id\t: {vendor}", f"cpu family\t: {family}"]
            lines += [f"model\t\t: {model}", f"model name\t: {name}", f"physical id\t: {socket}", ""]
        last = sockets * dies * 2 - 1
        for file in ("online", "present", "possible"):
            self.put(f"devices/system/cpu/{file}", f"0-{last}")
        self.processes["cpuinfo"] = "\n".join(lines)

    def arm_cpus(self, implementer: str, part: str, *, sockets: int = 1, compatible: str = "") -> None:
        """Add the topology and /proc/cpuinfo of an Arm host, and the `compatible` names of its device tree."""
        self.cpus("", 0, 0, "", sockets=sockets)
        count = 2 * sockets
        self.processes["cpuinfo"] = "\n".join(
            f"processor\t: {n}\nCPU implementer\t: {implementer}\nCPU part\t: {part}\n" for n in range(count)
        )
        if compatible:
            self.put("firmware/devicetree/base/compatible", compatible.replace(" ", "\0") + "\0")

    def perf(self, events: Mapping[str, Mapping[int, Load | None]], scale: float = 2.0**-32) -> None:
        """Add the perf `power` PMU with these events by CPU."""
        root = "bus/event_source/devices/power"
        cpus = sorted({cpu for loads in events.values() for cpu in loads})
        self.put(f"{root}/type", 9)
        self.put(f"{root}/cpumask", ",".join(map(str, cpus)))
        for number, (event, loads) in enumerate(events.items(), 1):
            self.put(f"{root}/events/{event}", f"event=0x{number:02x}")
            self.put(f"{root}/events/{event}.scale", f"{scale:.14e}")
            self.put(f"{root}/events/{event}.unit", "Joules")
            for cpu, load in loads.items():
                self.sensors[f"{number}", cpu] = None if load is None else load.joules


class _Files:
    """The files of a host on disk, rewritten only where they change."""

    def __init__(self, root: Path, host: Host) -> None:
        self._root = root
        self._signals = dict(host.files)
        self._texts: dict[str, str | None] = dict.fromkeys(host.files)

    def move(self, time_s: float) -> None:
        for name, signal in self._signals.items():
            text = signal(time_s)
            if text != self._texts[name]:
                self._texts[name] = text
                self._write(self._root / name, text)

    def _write(self, path: Path, text: str | None) -> None:
        if path.is_dir():
            shutil.rmtree(path)
        if text == UNREADABLE:
            path.unlink(missing_ok=True)
            path.mkdir(parents=True)
        elif text is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        else:
            path.unlink(missing_ok=True)
            if path.parent.is_dir() and not any(path.parent.iterdir()):
                path.parent.rmdir()


Word = Literal["right", "part", "packages", "unknown", "wrong", "silent"]


@dataclass(frozen=True)
class Verdict:
    """The judgement of one meter's total.

    Attributes:
        word: `part`: a labelled part of the host, with its right figure. `packages`: no total, and the right figure of
            the packages. `wrong`: a figure that is off, or none where one is demanded. `silent`: no figure and no
            reason.
    """

    word: Word
    meter: str
    watts: float | None
    domains: tuple[str, ...]
    text: str = ""


_CHOICES = ("auto", "rapl", "perf_power", "hwmon", "battery", "rapl,hwmon", "hwmon,battery")


def judge_host(host: Host, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Verdict]:
    """Run the window of a host and return a verdict for each choice of meters that can be opened."""
    sysfs, procfs = folder / "sys", folder / "proc"
    sysfs.mkdir(parents=True)
    procfs.mkdir()
    for name, text in host.processes.items():
        (procfs / name).write_text(text)
    monkeypatch.setenv("POWERPROF_SYSFS", str(sysfs))
    monkeypatch.setenv("POWERPROF_PROCFS", str(procfs))
    clock = stub_perf(host, monkeypatch)
    files = _Files(sysfs, host)
    files.move(0.0)
    with ExitStack() as stack:
        verdicts, opened = [], dict[str, MeterSet]()
        for choice in _CHOICES:
            if choice == "perf_power" and not host.sensors:
                continue
            try:
                opened[choice] = stack.enter_context(open_meters(choice))
            except CapabilityError as error:
                if choice == "auto":
                    verdicts.append(Verdict("unknown", choice, None, (), error.message))
        for second in range(WINDOW_S + 1):
            clock[0] = float(second)
            files.move(float(second))
            for meters in opened.values():
                meters.sample(100.0 + second)
        for choice, meters in opened.items():
            readings = meters.readings(100.0, 100.0 + WINDOW_S)
            verdicts.append(_judge(host, choice, readings, meters.notes if meters.names else [meters.why]))
    return verdicts


def _judge(host: Host, choice: str, readings: Sequence[EnergyReading], notes: Sequence[str]) -> Verdict:
    total = host_energy(readings)
    is_demanded = host.demand == "figure" and choice == "auto"
    packages = total.packages
    if packages is not None:
        right = host.truth.get("package", math.inf)
        is_wrong = is_demanded or total.watts is not None or abs(packages.watts - right) > _TOLERANCE * right
        return Verdict("wrong" if is_wrong else "packages", choice, packages.watts, tuple(packages.domains))
    if total.watts is None:
        word: Word = "wrong" if is_demanded else "unknown" if any(notes) else "silent"
        return Verdict(word, choice, None, tuple(total.domains), "; ".join(notes))
    summed = [r for r in readings if r.source == total.source and r.domain in total.domains]
    tiers = {"dram" if r.scope == "dram" else tier(r) for r in summed}
    if tiers == {"supply"} and all("out" in r.domain for r in summed):
        tiers = {"supply output"}
    expected = math.fsum(host.truth.get(name, math.inf) for name in tiers) if host.whole is None else host.whole
    tolerance = _TOLERANCE if host.whole is None else _EXACT
    if host.demand == "unknown" or abs(total.watts - expected) > tolerance * expected:
        word = "wrong"
    else:
        word = "part" if "dram" in host.truth and tiers == {"package"} else "right"
    return Verdict(word, choice, total.watts, tuple(total.domains))


def stub_perf(host: Host, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace the kernel's perf counters by those of the host. Return the cell of the time."""
    clock = [0.0]
    if not host.sensors:
        return clock
    opened: dict[int, Callable[[float], float]] = {}

    def open_counter(kind: int, config: int, cpu: int) -> int:
        load = host.sensors[f"{config}", cpu]
        if load is None:
            raise OSError(19, "No such device")
        descriptor = os.open(os.devnull, os.O_RDONLY)
        opened[descriptor] = load
        return descriptor

    monkeypatch.setattr(perf_power, "require_this_host", lambda reason: None)
    monkeypatch.setattr(perf_power, "open_counter", open_counter)
    monkeypatch.setattr(perf_power, "read_counter", lambda descriptor: round(opened[descriptor](clock[0]) * 2**32))
    return clock
