# SPDX-License-Identifier: Apache-2.0
"""Hosts with one true figure of the whole machine: doubled, missing, partial, foreign and moving meters.

A host has its figure, or none and a reason, whichever meter is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import NamedTuple

from tests.unit.energy.counter_hosts import RANGE_15_UJ, RANGE_61_UJ
from tests.unit.energy.simulated_host import Demand, Host, Load, Signal, constant, counter

Files = Mapping[str, object]
Changes = Mapping[str, object]
Parts = tuple[str, dict[str, float]]


class Zone(NamedTuple):
    """A powercap zone: its watts (None: it stands still), its first value, and the delay of its reading."""

    id: str
    name: str
    watts: float | None
    first_uj: int = 5_000_000
    range_uj: int = RANGE_61_UJ
    late_us: float = 0.0


def _steady(watts: float) -> Load:
    return Load(watts, swing=0.0)


def whole(
    watts: float | None,
    demand: str,
    zones: tuple[Zone, ...] = (),
    *,
    files: Files | None = None,
    events: Mapping[int, Changes] | None = None,
    dies: Mapping[int, int] | None = None,
    vendor: str | None = None,
) -> Host:
    """Return a host of `watts` in all. `demand`: `total` (a right figure), `either` or `unknown`."""
    demands: dict[str, Demand] = {"total": "figure", "either": "either", "unknown": "unknown"}
    host = Host("", "whole hosts", demand=demands[demand], whole=watts, is_breakable=False)
    for zone in zones:
        energy: Signal = constant(zone.first_uj)
        if zone.watts is not None:
            energy = counter(_steady(zone.watts), zone.first_uj, zone.range_uj, zone.late_us * 1e-6)
        host.zone(zone.id, zone.name, energy, max_energy_range_uj=zone.range_uj)
    for path, value in (files or {}).items():
        host.put(path, value)  # type: ignore[arg-type]
    cpus = [(package, die) for package, count in (dies or {}).items() for die in range(count)]
    for cpu, (package, die) in enumerate(cpus):
        host.put(f"devices/system/cpu/cpu{cpu}/topology/physical_package_id", package)
        host.put(f"devices/system/cpu/cpu{cpu}/topology/die_id", die)
    if vendor is not None:
        host.processes["cpuinfo"] = f"processor\t: 0\nvendor_id\t: {vendor}\n"
    for at_s, changes in (events or {}).items():
        host.change(at_s, changes)
    return host


def known(
    watts: float | None,
    chips: list[tuple[str, Files]] | None = None,
    zones: list[tuple[str, str, float | None]] | None = None,
    supplies: Mapping[str, Files] | None = None,
    files: Files | None = None,
    after: Changes | None = None,
) -> Host:
    """Return a host that must have its figure, or must not have one if it is None."""
    all_files = dict(files or {})
    for number, (name, values) in enumerate(chips or []):
        all_files |= {f"class/hwmon/hwmon{number}/{file}": value for file, value in {"name": name, **values}.items()}
    for name, values in (supplies or {}).items():
        all_files |= {f"class/power_supply/{name}/{file}": value for file, value in values.items()}
    made = tuple(Zone(*zone, first_uj=1_000_000) for zone in zones or [])
    return whole(watts, "unknown" if watts is None else "total", made, files=all_files, events={5: after or {}})


def write(changes: Changes) -> Changes:
    return changes


def remove(path: str) -> Changes:
    return {path: None}


def both(*changes: Changes) -> Changes:
    return {path: value for each in changes for path, value in each.items()}


def still_zone(zone_id: str, name: str) -> Changes:
    values = {"name": name, "energy_uj": 0, "max_energy_range_uj": RANGE_61_UJ}
    return {f"class/powercap/{zone_id}/{leaf}": value for leaf, value in values.items()}


def chip(number: int, name: str, **channels: float | str) -> dict[str, object]:
    """Return the files of a chip. `power1=100.0` is in watts, `power1_label="pin"` a label."""
    folder = f"class/hwmon/hwmon{number}"
    files: dict[str, object] = {f"{folder}/name": name}
    for key, value in channels.items():
        if isinstance(value, str):
            files[f"{folder}/{key}"] = value
        else:
            files[f"{folder}/{key}_{'average' if name == 'power_meter' else 'input'}"] = round(value * 1e6)
    return files


def supply(number: int, watts: float, name: str = "cffps2") -> dict[str, object]:
    return chip(number, name, power1=watts, power1_label="pin", power2=0.92 * watts, power2_label="pout1")


def battery(name: str, watts: float | None, status: str = "Discharging", **more: object) -> dict[str, object]:
    return {f"class/power_supply/{name}/{key}": value for key, value in cell(watts, status, **more).items()}


def cell(watts: float | None = 12.0, status: str = "Discharging", **more: object) -> dict[str, object]:
    """Return the files of a battery."""
    power = {} if watts is None else {"power_now": round(watts * 1e6)}
    return {"type": "Battery", "status": status, "present": 1, **power, **more}


def labelled(name: str, **watts: float) -> tuple[str, dict[str, object]]:
    """Return a chip with power channels in order, by their labels. Those that begin with `_` have none."""
    files: dict[str, object] = {}
    for index, (label, value) in enumerate(watts.items(), 1):
        files[f"power{index}_{'average' if name == 'power_meter' else 'input'}"] = round(value * 1e6)
        if not label.startswith("_"):
            files[f"power{index}_label"] = label.replace("_", " ")
    return name, files


def rails(name: str, **watts: float) -> tuple[str, dict[str, object]]:
    """Return a chip with volts and amperes by label."""
    files: dict[str, object] = {}
    for index, (label, value) in enumerate(watts.items(), 1):
        files |= {f"in{index}_label": label, f"in{index}_input": 5000, f"curr{index}_input": round(value * 200)}
    return name, files


def counters(name: str, **watts: float) -> tuple[str, dict[str, object]]:
    """Return a chip with energy counters by label."""
    files: dict[str, object] = {}
    for index, (label, value) in enumerate(watts.items(), 1):
        files |= {f"energy{index}_label": label, f"energy{index}_input": counter(_steady(value), 10**6, None)}
    return name, files


def dies(
    count: int, watts: float, *, package: int = 0, late_us: float = 0.0, first_uj: int = 9_000_000
) -> tuple[Zone, ...]:
    """Return one counter of a socket, listed once per die."""
    return tuple(
        Zone(f"intel-rapl:{8 * package + n}", f"package-{package}-die-{n}", watts, first_uj, RANGE_15_UJ, n * late_us)
        for n in range(count)
    )


def socket(number: int, watts: float, first_uj: int = 0, *, control: str = "intel-rapl") -> Zone:
    return Zone(f"{control}:{number}", f"package-{number}", watts, first_uj or 7_000_000 + 31_000 * number)


AMD, INTEL = "AuthenticAMD", "GenuineIntel"
_POWER = "class/power_supply"
_OFF = {f"{_POWER}/AC/type": "Mains", f"{_POWER}/AC/online": 0}
_AC = {"type": "Mains", "online": 0}

# Counters that move alike.
MIRRORED: dict[str, Host] = {
    "16 dies of one AMD counter": whole(210.0, "total", dies(16, 210.0), dies={0: 16}, vendor=AMD),
    "3 dies of an unknown vendor": whole(61.0, "total", dies(3, 61.0)),
    "2 dies whose reads are 20 µs apart": whole(140.0, "total", dies(2, 140.0, late_us=20)),
    "2 dies whose reads are 1 ms apart": whole(140.0, "either", dies(2, 140.0, late_us=1000)),
    "2 Intel dies that differ": whole(
        201.0,
        "total",
        (
            Zone("intel-rapl:0", "package-0-die-0", 100.0, 4_000_000),
            Zone("intel-rapl:1", "package-0-die-1", 101.0, 4_000_000),
        ),
        dies={0: 2},
        vendor=INTEL,
    ),
    "2 Intel dies of equal power and other starts": whole(
        200.0,
        "either",
        (
            Zone("intel-rapl:0", "package-0-die-0", 100.0, 4_000_000),
            Zone("intel-rapl:1", "package-0-die-1", 100.0, 5_000_000),
        ),
        dies={0: 2},
        vendor=INTEL,
    ),
    "2 Intel dies of equal power and starts far apart": whole(
        200.0,
        "total",
        (
            Zone("intel-rapl:0", "package-0-die-0", 100.0, 4_000_000),
            Zone("intel-rapl:1", "package-0-die-1", 100.0, 9_000_000),
        ),
        dies={0: 2},
        vendor=INTEL,
    ),
    "2 equal sockets": whole(
        240.0, "total", (socket(0, 120.0), socket(1, 120.0, 7_000_000)), dies={0: 1, 1: 1}, vendor=INTEL
    ),
    "2 nearly equal sockets without a topology": whole(240.1, "total", (socket(0, 120.0), socket(1, 120.1, 7_000_000))),
    "2 names of one counter without a topology": whole(
        120.0, "either", (socket(0, 120.0, 7_000_000), socket(1, 120.0, 7_000_000))
    ),
    "dram of mirrored dies": whole(
        180.0,
        "total",
        (
            *dies(2, 150.0),
            Zone("intel-rapl:0:0", "dram", 30.0, 2_000_000),
            Zone("intel-rapl:1:0", "dram", 30.0, 2_000_000),
        ),
    ),
}

# Channels that go or come.
MOVING: dict[str, Host] = {
    "a supply that does not answer for the last second": whole(
        300.0,
        "unknown",
        files={**supply(0, 150.0), **supply(1, 150.0)},
        events={10: write({"class/hwmon/hwmon1/power1_input": "ENXIO"})},
    ),
    "one failed reading of a supply": whole(
        300.0,
        "total",
        files={**supply(0, 150.0), **supply(1, 150.0)},
        events={
            4: write({"class/hwmon/hwmon1/power1_input": "EIO"}),
            5: write({"class/hwmon/hwmon1/power1_input": 150_000_000}),
        },
    ),
    "a battery that rests is put in": whole(
        14.0, "total", files={**battery("BAT0", 14.0), **_OFF}, events={5: write(battery("BAT1", 0.0, "Full"))}
    ),
    "a psys that comes": whole(100.0, "total", (socket(0, 100.0),), events={5: still_zone("intel-rapl:1", "psys")}),
    "an energy counter of a socket goes": whole(
        150.0,
        "unknown",
        files={
            "class/hwmon/hwmon0/name": "amd_energy",
            "class/hwmon/hwmon0/energy1_label": "Esocket0",
            "class/hwmon/hwmon0/energy1_input": 0,
        },
        events={
            3: write({"class/hwmon/hwmon0/energy1_input": 450_000_000}),
            6: remove("class/hwmon/hwmon0/energy1_input"),
        },
    ),
}

# Two channels of one role, and peers that are not understood.
PEERS: dict[str, Host] = {
    "a POWER server with an unlabelled channel": whole(
        700.0, "either", files=chip(0, "ibmpowernv", power1=700.0, power1_label="System", power2=650.0)
    ),
    "an ACPI meter beside a POWER server's System": whole(
        None,
        "unknown",
        files={**chip(0, "ibmpowernv", power1=700.0, power1_label="System"), **chip(1, "power_meter", power1=300.0)},
    ),
    "a supply next to a hot-swap controller": whole(
        150.0, "total", files={**supply(0, 150.0), **chip(1, "adm1275", power1=120.0, power1_label="pin")}
    ),
    "Altra without its memory regulators": whole(
        110.0, "either", files=chip(0, "smpro_hwmon", power1=70.0, power2=30.0, power5=3.0)
    ),
    "X-Gene without its I/O": whole(42.0, "either", files=chip(0, "apm_xgene", power1=30.0, power1_label="CPU power")),
    "4 sockets, package-2 has only power_uw": whole(
        None,
        "unknown",
        (socket(0, 50.0), socket(1, 51.0), socket(3, 53.0)),
        files={"class/powercap/intel-rapl:2/name": "package-2", "class/powercap/intel-rapl:2/power_uw": 52_000_000},
    ),
    "TPMI has one package more": whole(
        None,
        "unknown",
        (socket(0, 50.0), socket(0, 50.0, control="intel-rapl-tpmi"), socket(1, 60.0, control="intel-rapl-tpmi")),
    ),
    "package-1 alone": whole(None, "unknown", (socket(1, 50.0),)),
    "packages 0 and 2 of a topology that has them": whole(
        111.0, "total", (socket(0, 55.0), Zone("intel-rapl:1", "package-2", 56.0, 9_100_000)), dies={0: 1, 2: 1}
    ),
    "2 sockets, psys of one": whole(
        None, "unknown", (socket(0, 50.0), socket(1, 60.0), Zone("intel-rapl:2", "psys", 150.0)), dies={0: 1, 1: 1}
    ),
    "2 psys of one socket": whole(
        None,
        "unknown",
        (socket(0, 50.0), Zone("intel-rapl:2", "psys", 90.0), Zone("intel-rapl:3", "psys-1", 95.0)),
        dies={0: 1},
    ),
}

# A part, or a wrong unit, is not the whole.
PARTS: dict[str, Host] = {
    **{
        f"an ACPI meter of {text}": whole(
            None, "unknown", files={**chip(0, "power_meter", power1=90.0), "class/hwmon/hwmon0/power1_oem_info": text}
        )
        for text in ("Module Power Socket 0", "SysIO Power Socket 1", "DIMM group A", "Blade 3 PSU input")
    },
    "an ACPI meter that names the system": whole(
        300.0,
        "total",
        files={**chip(0, "power_meter", power1=300.0), "class/hwmon/hwmon0/power1_oem_info": "System Power Meter"},
    ),
    "an ACPI meter with an empty description": whole(
        300.0, "total", files={**chip(0, "power_meter", power1=300.0), "class/hwmon/hwmon0/power1_oem_info": ""}
    ),
    "a Mac mini by its input": whole(
        9.0, "total", files=chip(0, "macsmc_hwmon", power1=9.0, power1_label="AC Input Power")
    ),
    "one battery by ACPI and a gauge": whole(
        11.0,
        "total",
        files={
            **battery("BAT0", 11.0, serial_number="X81"),
            **battery("bq28z610-0", 11.1, serial_number="X81"),
            **_OFF,
        },
    ),
    "one battery by ACPI and a gauge without numbers": whole(
        11.0, "either", files={**battery("BAT0", 11.0), **battery("max17055", 11.0), **_OFF}
    ),
    "2 batteries of one bogus number": whole(
        19.0,
        "either",
        files={
            **battery("BAT0", 11.0, serial_number="12345", voltage_now=12_100_000),
            **battery("BAT1", 8.0, serial_number="12345", voltage_now=11_400_000),
            **_OFF,
        },
    ),
    "2 batteries numbered 0": whole(
        19.0,
        "total",
        files={**battery("BAT0", 11.0, serial_number="0000"), **battery("BAT1", 8.0, serial_number="0000"), **_OFF},
    ),
    "voltage_now in mV": whole(
        9.0, "either", files={**battery("BAT0", None, current_now=750_000, voltage_now=12_000), **_OFF}
    ),
    "power_now in nW": whole(
        9.0, "either", files={**battery("BAT0", 9000.0, current_now=750_000, voltage_now=12_000_000), **_OFF}
    ),
}

# Counters that may have wrapped unseen, and a bad meter before a good one.
WRAPS_AND_CHOICE: dict[str, Host] = {
    "unreadable packages before an ACPI meter": whole(
        300.0,
        "total",
        (socket(0, 100.0),),
        files={
            "class/powercap/intel-rapl:1/name": "package-1",
            "class/powercap/intel-rapl:1/energy_uj": "EIO",
            **chip(0, "power_meter", power1=300.0),
        },
    ),
    "a core zone before two supplies": whole(
        300.0, "total", (Zone("intel-rapl:0", "core", 4.0),), files={**supply(0, 140.0), **supply(1, 160.0)}
    ),
    "2 ACPI meters before a battery": whole(
        13.0,
        "total",
        files={
            **chip(0, "power_meter", power1=9.0),
            **chip(1, "power_meter", power1=8.0),
            **battery("BAT0", 13.0),
            **_OFF,
        },
    ),
    "a named part before a battery": whole(
        13.0, "total", files={**chip(0, "ina226", power1=9.0), **battery("BAT0", 13.0), **_OFF}
    ),
}


_PSU = labelled("cffps2", pin=150.0, vout=0.0, pout1=138.0)
_ACPI = labelled("power_meter", _=300.0)
_ALTRA = labelled("smpro_hwmon", a=70.0, b=30.0, c=9.0, d=8.0, e=3.0)
_TEGRA = "nvidia,p3767-0003\0nvidia,tegra234\0"

DRAWN: dict[str, Host] = {
    # Laptops and what is plugged into them.
    "laptop on its battery, with a UPS": known(
        12.0, supplies={"BAT0": cell(), "AC": _AC, "hid-051d-0002-battery": cell(400.0)}
    ),
    "laptop fed by a UPS that is online": known(
        None, supplies={"BAT0": cell(), "ups": {"type": "UPS", "online": 1}, "AC": _AC}
    ),
    "laptop whose firmware says 0 W": known(None, supplies={"BAT0": cell(0.0), "AC": _AC}),
    "laptop whose firmware says 0 W and a current": known(
        12.0, supplies={"BAT0": cell(0.0, current_now=1_000_000, voltage_now=12_000_000), "AC": _AC}
    ),
    "tablet whose gauge is in hwmon": known(None, chips=[labelled("max17042", _=5.0), labelled("bq27500_0", _=5.0)]),
    # Cards of every maker.
    "three cards of three drivers": known(
        None, chips=[labelled("amdgpu", PPT=200.0), labelled("nouveau", _=90.0), counters("xe", card=150.0, pkg=120.0)]
    ),
    "cards beside an unreadable package": known(
        None,
        chips=[labelled("amdgpu", PPT=200.0), counters("i915", _=20.0)],
        zones=[("intel-rapl:0", "package-0", 40.0)],
        after={"class/powercap/intel-rapl:0/energy_uj": "no number"},
    ),
    "accelerators": known(None, chips=[labelled("HL-205", _=250.0), labelled("n3000bmc", Board_Power=90.0)]),
    "water cooling and its flow": known(
        None, chips=[labelled("d5next", Pump_power=8.0), labelled("highflownext", Dissipated=200.0)]
    ),
    # Arm servers and boards.
    "Altra of two sockets behind two supplies": known(300.0, chips=[_ALTRA, _ALTRA, _PSU, _PSU]),
    "Kunpeng, whose meter names its processors and memory": known(
        None,
        chips=[
            (
                "power_meter",
                {
                    "power1_average": 150_000_000,
                    "device/measures/ACPI0010:00/path": 0,
                    "device/measures/PNP0C80:00/path": 0,
                },
            )
        ],
    ),
    "SCMI counters": known(None, chips=[counters("scmi_sensors", cpu_energy=30.0, sys_energy=70.0)]),
    "a carrier of two modules": known(
        None,
        chips=[rails("ina3221", VDD_IN=8.0), rails("ina3221", VDD_IN=9.0)],
        files={"firmware/devicetree/base/compatible": _TEGRA},
    ),
    "Jetson AGX Orin, whose inputs are two": known(
        None,
        chips=[rails("ina3221", SYS_VIN_HV=20.0, VDD_CPU_CV=5.0)],
        files={"firmware/devicetree/base/compatible": _TEGRA},
    ),
    # Power monitors on boards.
    "INA2xx, INA238 and INA780": known(
        None, chips=[labelled("ina219", _=5.0), labelled("ina238", _=40.0), counters("ina780", _=9.0)]
    ),
    "LTC2945, LTC2947, LTC4282 and LTC4286": known(
        None,
        chips=[
            labelled("ltc2945", _=9.0),
            counters("ltc2947", _=9.0),
            counters("ltc4282", _=90.0),
            labelled("ltc4286", pin=90.0),
        ],
    ),
    "controllers of voltage regulators": known(
        None,
        chips=[
            labelled("isl69260", pin=90.0, pout1=80.0),
            labelled("xdpe12284", pin=90.0),
            labelled("mp2975", pin=90.0),
        ],
    ),
    "PoE ports of a switch": known(None, chips=[labelled("tps23861", _=12.0)]),
    # Supplies.
    "a redundant supply on standby, or with a dead sensor": known(
        None, chips=[_PSU, labelled("cffps2", pin=0.0, vout=0.0, pout1=0.0)]
    ),
    "a gaming desktop": known(
        240.0,
        chips=[
            ("corsairpsu", {**labelled("", a=240.0, b=200.0, c=15.0, d=9.0)[1]}),
            labelled("amdgpu", PPT=120.0),
            labelled("nvme", _=4.0),
        ],
    ),
    # ACPI's meter.
    # Intel and AMD.
    "two sockets, psys of one of them stands still": known(
        None,
        zones=[
            ("intel-rapl:0", "package-0", 150.0),
            ("intel-rapl:1", "package-1", 130.0),
            ("intel-rapl:2", "psys", 220.0),
            ("intel-rapl:3", "psys-1", None),
        ],
    ),
    "packages by dies and once more whole": known(
        200.0,
        zones=[
            ("intel-rapl:0", "package-0-die-0", 110.0),
            ("intel-rapl:1", "package-0-die-1", 90.0),
            ("intel-rapl-tpmi:0", "package-0", 200.0),
        ],
    ),
    "memory of one control type, packages of another": known(
        230.0,
        zones=[
            ("intel-rapl:0", "package-0", 200.0),
            ("intel-rapl-tpmi:0", "package-0", 200.0),
            ("intel-rapl-tpmi:0:0", "dram", 30.0),
        ],
    ),
    "a package of TPMI that appears": known(
        None, zones=[("intel-rapl-tpmi:0", "package-0", 200.0)], after=still_zone("intel-rapl-tpmi:1", "package-1")
    ),
    "zones of DTPM beside a package": known(
        40.0, zones=[("intel-rapl:0", "package-0", 40.0), ("dtpm:0", "package-0", 900.0), ("dtpm:0:0", "cpu0", 9.0)]
    ),
    "names of no kernel": known(None, zones=[("intel-rapl:0", "package", 40.0), ("intel-rapl:1", "soc", 9.0)]),
    "amd_energy of two sockets and zenpower": known(
        160.0,
        chips=[
            counters("amd_energy", Ecore000=2.0, Esocket0=90.0, Esocket1=70.0),
            labelled("zenpower", SVI2_P_Core=40.0),
        ],
    ),
    "amd_energy that shows cores alone": known(None, chips=[counters("amd_energy", Ecore000=2.0, Ecore001=3.0)]),
}

_ALTRA_PARTS = {
    "power1 CORE VRD": 80.0,
    "power2 SoC": 38.0,
    "power3 DIMM VRD1": 10.0,
    "power4 DIMM VRD2": 9.0,
    "5": 4.0,
}
_SUPPLY = {"pin": 100.0, "pout1": 92.0}

# Class of host, its chips, and the watts of the host's sum (None: none).
CHIPS: list[tuple[str, list[Parts], float | None]] = [
    ("two graphics cards", [("amdgpu", {"PPT": 80.0})] * 2, None),
    ("two cards of one label and a disk", [("amdgpu", {"PPT": 80.0})] * 2 + [("nvme", {"1": 5.0})], None),
    ("two integrated and discrete cards", [("i915", {"1": 20.0}), ("xe", {"1": 90.0}), ("xe", {"1": 90.0})], None),
    ("NVMe drives", [("nvme", {"1": 6.0})] * 4, None),
    ("two INA226", [("ina226", {"1": 9.0})] * 2, None),
    ("three INA2xx", [("ina2xx", {"1": 9.0})] * 3, None),
    ("SCMI rails", [("scmi_sensors", {"cpu_power": 20.0, "total": 40.0})] * 2, None),
    ("unknown chips of one name", [("soc_meter", {"total power": 12.0})] * 2, None),
    ("unknown chips that call themselves a server", [("boardmon", {"server": 12.0})] * 2, None),
    ("a chip that is called package-0", [("package-0", {"1": 12.0})] * 2, None),
    ("network cards", [("mlx5", {"1": 15.0})] * 2, None),
    ("board regulators", [("tps53679", {"pin": 50.0, "pout1": 20.0})] * 2, None),
    ("ina3221 of an unknown board", [("ina3221", {"VDD_A": 3.0})] * 2, None),
    ("Ampere Altra", [("smpro_hwmon", _ALTRA_PARTS)], 141.0),
    ("Ampere Altra of two sockets", [("smpro_hwmon", _ALTRA_PARTS)] * 2, 282.0),
    ("Altra by an older name", [("smpro", _ALTRA_PARTS)], 141.0),
    (
        "Altra and its cards",
        [("smpro_hwmon", _ALTRA_PARTS), ("amdgpu", {"PPT": 50.0}), ("amdgpu", {"PPT": 50.0})],
        141.0,
    ),
    ("Intel CRPS", [("intel_crps185", {"pin": 100.0})], 100.0),
    ("two Intel CRPS", [("intel_crps185", {"pin": 100.0})] * 2, 200.0),
    ("AcBel", [("acbel_fsg032", _SUPPLY)] * 2, 200.0),
    ("IBM supplies", [("cffps2", _SUPPLY)] * 2, 200.0),
    ("BluTek supplies", [("bpa-rs600", _SUPPLY)] * 2, 200.0),
    ("IBM supplies by their older names", [("ibm_cffps1", _SUPPLY), ("ibm_cffps2", _SUPPLY)], 200.0),
    ("IBM supplies of an unknown version", [("ibm_cffps", _SUPPLY)] * 2, 200.0),
    ("Sony supplies", [("aps-379", _SUPPLY)] * 2, 200.0),
    ("Murata supplies", [("d1u74t", {"pin": 100.0})] * 2, 200.0),
    ("a Hi-Tron supply", [("hac300s", {"pout1": 92.0})], 92.0),
    ("AcBel by the device tree", [("fsg032", _SUPPLY)] * 2, 200.0),
    ("CRPS by the device tree", [("crps185", {"pin": 100.0})] * 2, 200.0),
    ("ACPI fans", [("acpi_fan", {"1": 3.0})] * 6, None),
    ("a network card of Netronome", [("nfp", {"1": 20.0, "2": 8.0})], None),
    ("ACPI fans and supplies", [("acpi_fan", {"1": 3.0}), *[("cffps2", _SUPPLY)] * 2], 200.0),
    ("light of SFP modules", [("sfp_xp0", {"1": 0.001})] * 2, None),
    ("sockets as a BMC sees them", [("sbrmi", {"1": 180.0})] * 2, None),
    ("a POWER server as its BMC sees it", [("occ", {"system": 800.0, "proc": 300.0})], None),
    ("limits of Active Energy Manager", [("aem2", {"1": 200.0, "2": 190.0, "3": 5.0, "4": 900.0})], None),
    ("converters of a board", [("lx1308", _SUPPLY), ("q54sj108a2", _SUPPLY), ("pim4328", _SUPPLY)], None),
    (
        "hot-swap controllers",
        [("adm1275", {"pin": 90.0}), ("lm25066", {"pin": 90.0}), ("ltc4286", {"pin": 90.0})],
        None,
    ),
    ("a supply whose name only begins so", [("cffps3x", _SUPPLY), ("pfe1100b", _SUPPLY)], None),
    ("a supply and a chip of its name's beginning", [("cffps2", _SUPPLY), ("cffps2_fan", {"1": 9.0})], 100.0),
    ("supplies without an input power", [("cffps1", {"pout1": 92.0})] * 2, 184.0),
    ("an ACPI meter", [("power_meter", {"1": 200.0})], 200.0),
    ("an ACPI meter and two supplies", [("power_meter", {"1": 200.0}), *[("cffps2", _SUPPLY)] * 2], 200.0),
    ("an ACPI meter behind its supplies", [("power_meter", {"1": 180.0}), *[("cffps2", _SUPPLY)] * 2], 180.0),
    ("an ACPI meter of one of two boards", [("power_meter", {"1": 100.0}), *[("cffps2", _SUPPLY)] * 2], 200.0),
    ("an ACPI meter and cards", [("power_meter", {"1": 200.0}), *[("amdgpu", {"PPT": 150.0})] * 2], 200.0),
    ("two ACPI meters", [("power_meter", {"1": 200.0})] * 2, None),
    ("zenpower of two sockets", [("zenpower", {"SVI2_P_Core": 40.0, "SVI2_P_SoC": 10.0})] * 2, 100.0),
    (
        "zenpower and two cards",
        [("zenpower", {"SVI2_P_Core": 40.0, "SVI2_P_SoC": 12.0}), *[("amdgpu", {"PPT": 80.0})] * 2],
        52.0,
    ),
    ("zenpower that shows the cores alone", [("zenpower", {"SVI2_P_Core": 40.0})], None),
]


def _draw_parts(chips: list[Parts], watts: float | None) -> Host:
    """Return a host of chips by their labels; a number is a channel without a label."""
    made = []
    for name, channels in chips:
        kind = "average" if name == "power_meter" else "input"
        files: dict[str, object] = {}
        for index, (label, value) in enumerate(channels.items(), 1):
            files[f"power{index}_{kind}"] = round(value * 1e6)
            if not label.isdigit():
                files[f"power{index}_label"] = label
        made.append((name, files))
    return known(watts, made)


def whole_hosts(draw: Random) -> Iterator[Host]:
    """Yield all hosts of this file."""
    hosts = {**MIRRORED, **MOVING, **PEERS, **PARTS, **WRAPS_AND_CHOICE, **DRAWN}
    hosts |= {f"chips: {name}": _draw_parts(chips, watts) for name, chips, watts in CHIPS}
    for name, host in hosts.items():
        host.name = name
        yield host
