# SPDX-License-Identifier: Apache-2.0
"""Reads the made-up hosts of tests/fixtures/energy-hosts.txt, whose head describes the notation."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from tests.conftest import REPOSITORY
from tests.unit.energy.simulated_host import UNREADABLE, Demand, Host, Load, Signal, between, constant, counter

TABLE = REPOSITORY / "tests/fixtures/energy-hosts.txt"
_RANGES_UJ = {"15": 65_532_610_987, "61": 262_143_328_850, "0": None}
# (vendor, family, model, name) as /proc/cpuinfo shows them.
_CPUS = {
    "Skylake": ("GenuineIntel", 6, 94, "Intel(R) Core(TM) i7-6700K CPU @ 4.00GHz"),
    "Alder-Lake": ("GenuineIntel", 6, 154, "12th Gen Intel(R) Core(TM) i7-1260P"),
    "Ice-Lake-SP": ("GenuineIntel", 6, 106, "Intel(R) Xeon(R) Platinum 8360Y CPU @ 2.40GHz"),
    "Sapphire-Rapids": ("GenuineIntel", 6, 143, "Intel(R) Xeon(R) Platinum 8480+"),
    "Granite-Rapids": ("GenuineIntel", 6, 173, "Intel(R) Xeon(R) 6980P"),
    "Cascade-Lake-AP": ("GenuineIntel", 6, 85, "Intel(R) Xeon(R) Platinum 9242 CPU @ 2.30GHz"),
    "Skylake-SP": ("GenuineIntel", 6, 85, "Intel(R) Xeon(R) Platinum 8180 CPU @ 2.50GHz"),
    "Milan": ("AuthenticAMD", 25, 1, "AMD EPYC 7763 64-Core Processor"),
    "Genoa": ("AuthenticAMD", 25, 17, "AMD EPYC 9654 96-Core Processor"),
    "Threadripper": ("AuthenticAMD", 23, 1, "AMD Ryzen Threadripper 1950X 16-Core Processor"),
    "Ryzen": ("AuthenticAMD", 25, 33, "AMD Ryzen 9 5950X 16-Core Processor"),
    "Bulldozer": ("AuthenticAMD", 21, 2, "AMD Opteron(tm) Processor 6386 SE"),
    "Hygon": ("HygonGenuine", 24, 1, "Hygon C86 7185 32-core Processor"),
}
_COUNTER = re.compile(r"([\d.]+)(?::([\d.]+):(\d+))?J(-?[\d.]+)?(?:/(\d+))?(?:\+([\d.]+))?")
# The files of an ACPI power meter and of a PMBus supply.
_ACPI = {
    "power1_average_interval": "=1000",
    "power1_average_interval_min": "=50",
    "power1_average_interval_max": "=1000",
    "power1_accuracy": "=100%",
    "power1_is_battery": "=0",
    "power1_model_number": "=",
    "power1_serial_number": "=",
    "power1_oem_info": "=",
}


def read_signal(text: str, *, is_steady: bool = False) -> Signal | None:
    """Return the content of a file over time, None for a file that does not exist."""
    first, *changes = text.split(">")
    signal = _read_base(first, is_steady)
    for at_s, later in zip(changes[::2], changes[1::2], strict=True):
        signal = _joined(signal or _absent, float(at_s), _read_base(later, is_steady) or _absent)
    return signal


def _absent(time_s: float) -> str | None:
    return None


def _joined(before: Signal, at_s: float, after: Signal) -> Signal:
    return lambda time_s: before(time_s) if time_s < at_s else after(time_s)


def _read_base(text: str, is_steady: bool) -> Signal | None:
    if text in ("-", "!") or text.startswith("="):
        return None if text == "-" else constant(UNREADABLE if text == "!" else text[1:])
    text, _, stop = text.partition("^")
    swing = {"swing": 0.0} if is_steady else {}
    signal: Signal
    if (found := _COUNTER.fullmatch(text)) is not None:
        watts, later, at_s, start, unit, late_us = found.groups()
        range_uj, start_uj = _RANGES_UJ[unit or "61"], round(float(start or 0) * 1e6)
        if later is None:
            signal = counter(Load(float(watts), **swing), start_uj, range_uj, float(late_us or 0) * 1e-6)
        else:
            signal = _stepped(float(watts), float(later), int(at_s), start_uj, range_uj or 1 << 63)
    elif text.endswith("w"):
        signal = constant(round(float(text[:-1]) * 1e6))
    else:
        load = Load(float(text), **swing)
        signal = lambda time_s: str(round(load.power(time_s) * 1e6))  # noqa: E731
    return (lambda time_s: signal(min(time_s, float(stop)))) if stop else signal


def _stepped(first: float, second: float, at_s: int, start_uj: int, range_uj: int) -> Signal:
    return lambda t: str((start_uj + round((first * min(t, at_s) + second * max(t - at_s, 0)) * 1e6)) % (range_uj + 1))


class _Builder:
    """Adds the parts of one host."""

    def __init__(self, host: Host, *, is_steady: bool) -> None:
        self._is_steady = is_steady
        self._host = host
        self._span: tuple[float, float] | None = None

    def add(self, words: Sequence[str]) -> None:
        self._span = None
        if words[0].startswith("@"):
            since, _, until = words[0][1:].partition("..")
            self._span, words = (float(since or 0), float(until or 1e9)), words[1:]
        kind, *rest = words
        build: Callable[..., None] = getattr(self, f"_{kind}")
        build(*rest)

    def _put(self, path: str, text: str) -> None:
        signal = read_signal(text, is_steady=self._is_steady)
        if signal is None:
            self._host.files.pop(path, None)
        else:
            self._host.files[path] = signal if self._span is None else between(signal, *self._span)

    def _files(self, folder: str, files: Sequence[str]) -> None:
        for file in files:
            name, _, text = file.partition("=")
            self._put(f"{folder}/{name}", text)

    def _cpu(self, name: str, count: str = "1x1") -> None:
        sockets, dies = map(int, count.split("x"))
        self._host.cpus(*_CPUS[name], sockets=sockets, dies=dies)

    def _arm(self, part: str, sockets: str = "1", compatible: str = "") -> None:
        self._host.arm_cpus("0x41", part, sockets=int(sockets), compatible=compatible)

    def _dies(self, *packages: str) -> None:
        numbers = [package for one in packages for package, _, count in [one.partition(":")] for _ in range(int(count))]
        for cpu, package in enumerate(numbers):
            self._put(f"devices/system/cpu/cpu{cpu}/topology/physical_package_id", f"={package}")
            self._put(f"devices/system/cpu/cpu{cpu}/topology/die_id", f"={numbers[:cpu].count(package)}")

    def _vendor(self, name: str) -> None:
        self._host.processes = {} if name == "-" else {"cpuinfo": f"processor\t: 0\nvendor_id\t: {name}\n"}

    def _zone(self, zone_id: str, name: str, energy: str, *files: str) -> None:
        folder = f"class/powercap/{'intel-rapl:' + zone_id if zone_id[0].isdigit() else zone_id}"
        unit = found[5] if (found := _COUNTER.match(energy)) and found[5] else "61"
        made = [f"name={'-' if name == '-' else '=' + name}", f"energy_uj={energy}", "enabled==1"]
        made.append(f"max_energy_range_uj=={_RANGES_UJ[unit]}")
        for file in files:
            if file.startswith("max="):
                watts = file[4:]
                made += ["constraint_0_name==long_term", f"constraint_0_max_power_uw={watts}w"]
                made.append(f"constraint_0_power_limit_uw={watts}w")
            else:
                made.append(file)
        self._files(folder, made)

    def _perf(self, *events: str) -> None:
        loads: dict[str, dict[int, Load | None]] = {}
        for one in events:
            event, cpu, watts = one.split(":")
            loads.setdefault(event, {})[int(cpu)] = None if watts == "-" else Load(float(watts))
        self._host.perf(loads)

    def _chip(self, number: str, name: str, *channels: str) -> None:
        """Add a chip: `pin:150` is power, `card%150` a counter, `VDD_IN&8` volts and amperes, `file=TEXT` a file."""
        counts = {"power": 0, "energy": 0, "in": 0}
        files = [f"name=={name}"]
        for channel in channels:
            found = re.fullmatch(r"([^=:%&/]*)([:%&])(.+)", channel)
            if found is None:
                files.append(channel)
                continue
            label, mark, text = found.groups()
            kind = {":": "power", "%": "energy", "&": "in"}[mark]
            counts[kind] += 1
            channel = f"{kind}{counts[kind]}"
            files += [f"{channel}_label=={label}"] if label else []
            if mark == "&":
                files += [f"in{counts[kind]}_input==5000", f"curr{counts[kind]}_input=={round(float(text) * 200)}"]
            else:
                is_mean = name == "power_meter" or (name == "amdgpu" and mark == ":")
                files.append(f"{channel}_{'average' if is_mean else 'input'}={text}")
        self._files(f"class/hwmon/hwmon{number}", files)

    def _acpi(self, number: str, power: str, *files: str) -> None:
        made = [f"{name}={text}" for name, text in {"name": "=power_meter", **_ACPI, "power1_average": power}.items()]
        self._files(f"class/hwmon/hwmon{number}", [*made, *files])

    def _psu(self, number: str, name: str, watts: str, *files: str) -> None:
        power = float(watts)
        self._chip(number, name, f"pin:{watts}", f"pout1:{power * 0.92}", "in1_label==vin", "in1_input==230000",
                   "curr1_label==iin", f"curr1_input=={round(power / 0.23)}", *files)  # fmt: skip

    def _supply(self, name: str, kind: str, *files: str) -> None:
        self._files(f"class/power_supply/{name}", [f"type=={kind}", *files])

    def _mains(self, name: str, online: str) -> None:
        self._supply(name, "Mains", f"online={online}")

    def _cell(self, name: str, power: str, status: str = "=Discharging", *files: str) -> None:
        self._supply(name, "Battery", f"status={status}", "present==1", f"power_now={power}", *files)

    def _pack(self, name: str, power: str, status: str = "=Discharging", *files: str) -> None:
        """Add a battery with all files of its driver."""
        made = ["scope==System", "voltage_now==11400000", f"serial_number=={name} 00412", "energy_now==40000000"]
        self._cell(name, power, status, *made, *files)

    def _from(self, *words: str) -> None:
        self._host.source = " ".join(words)

    def _file(self, path: str, text: str) -> None:
        self._put(path, text)


def list_families(table: Path = TABLE) -> list[str]:
    """Return the headings of the table."""
    return re.findall(r"^\[(\w+)\]$", table.read_text(encoding="utf-8"), re.MULTILINE)


def read_hosts(family: str, table: Path = TABLE) -> list[Host]:
    """Return the hosts below a heading, in order."""
    rows = table.read_text(encoding="utf-8").partition(f"\n[{family}]\n")[2].partition("\n[")[0]
    rows = re.sub(r"^#.*\n", "", rows, flags=re.MULTILINE)
    return [_read_host(family, paragraph) for paragraph in re.split(r"\n(?=\S)", rows.strip())]


def _read_host(family: str, paragraph: str) -> Host:
    title, _, body = paragraph.partition("\n")
    name, demand, *figures = (cell.strip() for cell in title.split(" | "))
    words = dict(word.rsplit("=", 1) for word in shlex.split(" ".join(figures)) if "=" in word)
    assert demand in get_args(Demand), title
    host = Host(name, family, demand=demand)  # type: ignore[arg-type]
    flags = shlex.split(" ".join(figures))
    host.is_breakable = not {"steady", "once"} & set(flags)
    if "whole" in words:
        host.whole, host.is_breakable = float(words.pop("whole")), False
    host.truth = {tier: float(watts) for tier, watts in words.items()}
    builder = _Builder(host, is_steady=host.whole is not None or "steady" in flags)
    for part in filter(None, (part.strip() for part in re.split(r";\s+", " ".join(body.split())))):
        builder.add(shlex.split(part.rstrip(";")))
    return host
