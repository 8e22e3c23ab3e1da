# SPDX-License-Identifier: Apache-2.0
"""Whole hosts with all their meters at once: the right figure of the whole, or none; never a wrong one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from powerprof.energy.domains import host_energy
from powerprof.energy.meters import open_meters
from powerprof.model.records import EnergyReading
from powerprof.system.errors import CapabilityError
from tests.unit.energy.meter_trees import Tree

# Chips of hwmon: their name, and by file (`power1_input`, …) what each shows; a file ending in / is a folder.
Chip = tuple[str, Mapping[str, object]]
# Zones of powercap: id, name, and the watts that they draw; None: it stands still.
Zone = tuple[str, str, float | None]
Supplies = Mapping[str, Mapping[str, object]]


def chip(name: str, **watts: float) -> Chip:
    """Power channels in order by their labels; those that begin with `_` have none."""
    files: dict[str, object] = {}
    for index, (label, value) in enumerate(watts.items(), 1):
        files[f"power{index}_{'average' if name == 'power_meter' else 'input'}"] = round(value * 1e6)
        if not label.startswith("_"):
            files[f"power{index}_label"] = label.replace("_", " ")
    return name, files


def rails(name: str, **watts: float) -> Chip:
    """Volts and amperes by label."""
    files: dict[str, object] = {}
    for index, (label, value) in enumerate(watts.items(), 1):
        files |= {f"in{index}_label": label, f"in{index}_input": 5000, f"curr{index}_input": round(value * 200)}
    return name, files


def counters(name: str, **watts: float) -> Chip:
    """Energy counters by label, which count in the two seconds of the window."""
    files: dict[str, object] = {}
    for index, (label, value) in enumerate(watts.items(), 1):
        files |= {f"energy{index}_label": label, f"energy{index}_input": value * 2e6}
    return name, files


def battery(power_uw: int | None = 12_000_000, status: str = "Discharging", **values: object) -> dict[str, object]:
    power = {} if power_uw is None else {"power_now": power_uw}
    return {"type": "Battery", "status": status, **power, **values}


_PSU = chip("cffps2", pin=150.0, vout=0.0, pout1=138.0)
_ACPI = chip("power_meter", _=300.0)
_ALTRA = chip("smpro_hwmon", a=70.0, b=30.0, c=9.0, d=8.0, e=3.0)
_TEGRA = "nvidia,p3767-0003\0nvidia,tegra234\0"
_OFF = {"type": "Mains", "online": 0}


class Host:
    """What a tree of it has, and the watts of the whole (None: unknown, or no meter at all)."""

    def __init__(
        self,
        watts: float | None,
        chips: list[Chip] | None = None,
        zones: list[Zone] | None = None,
        supplies: Supplies | None = None,
        files: Mapping[str, object] | None = None,
        after: Callable[[Tree], object] | None = None,
    ) -> None:
        self.watts, self.chips, self.zones = watts, chips or [], zones or []
        self.supplies, self.files, self.after = supplies or {}, files or {}, after

    def draw(self, tree: Tree) -> None:
        for name, text in self.files.items():
            tree.write(name, text)
        for number, (name, values) in enumerate(self.chips):
            tree.write(f"class/hwmon/hwmon{number}/name", name)
            for file, value in values.items():
                if file.endswith("/"):
                    (tree.root / f"class/hwmon/hwmon{number}" / file).mkdir(parents=True)
                else:
                    tree.write(
                        f"class/hwmon/hwmon{number}/{file}",
                        0 if file.startswith("energy") and file.endswith("input") else value,
                    )
        for zone, name, _ in self.zones:
            tree.zone(zone, name, 1_000_000)
        for name, values in self.supplies.items():
            for file, value in values.items():
                tree.write(f"class/power_supply/{name}/{file}", value)

    def move(self, tree: Tree) -> None:
        for number, (_, values) in enumerate(self.chips):
            for file, value in values.items():
                if file.startswith("energy") and file.endswith("input"):
                    tree.write(f"class/hwmon/hwmon{number}/{file}", round(float(str(value))))
        for zone, _, watts in self.zones:
            tree.count(zone, 1_000_000 + round(2e6 * (watts or 0.0)))
        if self.after is not None:
            self.after(tree)


def remove(name: str) -> Callable[[Tree], object]:
    return lambda tree: (tree.root / name).rename(tree.root / "removed")


def write(name: str, value: object) -> Callable[[Tree], object]:
    return lambda tree: tree.write(name, value)


HOSTS: dict[str, Host] = {
    # Laptops and what is plugged into them.
    "laptop on its battery, with a UPS": Host(
        12.0, supplies={"BAT0": battery(), "AC": _OFF, "hid-051d-0002-battery": battery(400_000_000)}
    ),
    "laptop fed by a UPS that is online": Host(
        None, supplies={"BAT0": battery(), "ups": {"type": "UPS", "online": 1}, "AC": _OFF}
    ),
    "laptop with two batteries, the first empty": Host(
        12.0, supplies={"BAT0": battery(0, "Not charging"), "BAT1": battery(), "AC": _OFF}
    ),
    "laptop whose batteries change within the window": Host(
        None,
        supplies={"BAT0": battery(), "BAT1": battery(0, "Not charging"), "AC": _OFF},
        after=lambda tree: [
            tree.write("class/power_supply/BAT0/status", "Not charging"),
            tree.write("class/power_supply/BAT1/status", "Discharging"),
            tree.write("class/power_supply/BAT1/power_now", 12_000_000),
        ],
    ),
    "laptop whose second battery joins": Host(
        None,
        supplies={"BAT0": battery(), "BAT1": battery(5_000_000, "Not charging"), "AC": _OFF},
        after=write("class/power_supply/BAT1/status", "Discharging"),
    ),
    "laptop whose firmware says 0 W": Host(None, supplies={"BAT0": battery(0), "AC": _OFF}),
    "laptop whose firmware says 0 W and a current": Host(
        12.0, supplies={"BAT0": battery(0, current_now=1_000_000, voltage_now=12_000_000), "AC": _OFF}
    ),
    "laptop that is charged by USB-C": Host(
        None, supplies={"BAT0": battery(), "AC": _OFF, "ucsi-source": {"type": "USB", "online": 1}}
    ),
    "laptop with a card and an ACPI meter of its battery": Host(
        None, chips=[("power_meter", {"power1_average": 9_000_000, "power1_is_battery": 1}), chip("amdgpu", PPT=25.0)]
    ),
    "tablet whose gauge is in hwmon": Host(None, chips=[chip("max17042", _=5.0), chip("bq27500_0", _=5.0)]),
    # Cards of every maker.
    "three cards of three drivers": Host(
        None, chips=[chip("amdgpu", PPT=200.0), chip("nouveau", _=90.0), counters("xe", card=150.0, pkg=120.0)]
    ),
    "cards beside an unreadable package": Host(
        None,
        chips=[chip("amdgpu", PPT=200.0), counters("i915", _=20.0)],
        zones=[("intel-rapl:0", "package-0", 40.0)],
        after=write("class/powercap/intel-rapl:0/energy_uj", "no number"),
    ),
    "accelerators": Host(None, chips=[chip("HL-205", _=250.0), chip("n3000bmc", Board_Power=90.0)]),
    "water cooling and its flow": Host(
        None, chips=[chip("d5next", Pump_power=8.0), chip("highflownext", Dissipated=200.0)]
    ),
    "network cards and their modules": Host(None, chips=[chip("mlx5", _=20.0), chip("sfp_1", TX_power=0.001)]),
    # Arm servers and boards.
    "Altra of two sockets behind two supplies": Host(300.0, chips=[_ALTRA, _ALTRA, _PSU, _PSU]),
    "Altra, one of whose rails cannot be read": Host(
        None, chips=[_ALTRA], after=write("class/hwmon/hwmon0/power3_input", "no number")
    ),
    "Grace by ACPI": Host(None, chips=[chip("power_meter", _=200.0), chip("power_meter", _=150.0)]),
    "Grace, whose meters measure a part": Host(
        None, chips=[("power_meter", {"power1_average": 150_000_000, "device/measures/ACPI0007:00/": 0})]
    ),
    "a meter that measures the whole system": Host(
        300.0, chips=[("power_meter", {"power1_average": 300_000_000, "device/measures/LNXSYBUS:00/": 0})]
    ),
    "Kunpeng, whose meter names its processors and memory": Host(
        None,
        chips=[
            (
                "power_meter",
                {"power1_average": 150_000_000, "device/measures/ACPI0010:00/": 0, "device/measures/PNP0C80:00/": 0},
            )
        ],
    ),
    "Graviton, a guest without a meter": Host(None),
    "SCMI counters": Host(None, chips=[counters("scmi_sensors", cpu_energy=30.0, sys_energy=70.0)]),
    "SCPI of Juno": Host(None, chips=[counters("scpi_sensors", SYS_POW_SYS=1.0, SYS_POW_A57=2.0)]),
    "Versatile Express": Host(None, chips=[counters("vexpress", A15=2.0, A7=0.5)]),
    "Jetson Orin Nano": Host(
        8.0,
        chips=[rails("ina3221", VDD_IN=8.0, VDD_CPU_GPU_CV=3.0, VDD_SOC=2.0)],
        files={"firmware/devicetree/base/compatible": _TEGRA},
    ),
    "another board with a rail VDD_IN": Host(
        None,
        chips=[rails("ina3221", VDD_IN=8.0, VDD_IO=1.0)],
        files={"firmware/devicetree/base/compatible": "toradex,verdin\0"},
    ),
    "a carrier of two modules": Host(
        None,
        chips=[rails("ina3221", VDD_IN=8.0), rails("ina3221", VDD_IN=9.0)],
        files={"firmware/devicetree/base/compatible": _TEGRA},
    ),
    "Jetson AGX Orin, whose inputs are two": Host(
        None,
        chips=[rails("ina3221", SYS_VIN_HV=20.0, VDD_CPU_CV=5.0)],
        files={"firmware/devicetree/base/compatible": _TEGRA},
    ),
    # Power monitors on boards.
    "INA2xx, INA238 and INA780": Host(
        None, chips=[chip("ina219", _=5.0), chip("ina238", _=40.0), counters("ina780", _=9.0)]
    ),
    "LTC2945, LTC2947, LTC4282 and LTC4286": Host(
        None,
        chips=[
            chip("ltc2945", _=9.0),
            counters("ltc2947", _=9.0),
            counters("ltc4282", _=90.0),
            chip("ltc4286", pin=90.0),
        ],
    ),
    "controllers of voltage regulators": Host(
        None, chips=[chip("isl69260", pin=90.0, pout1=80.0), chip("xdpe12284", pin=90.0), chip("mp2975", pin=90.0)]
    ),
    "PoE ports of a switch": Host(None, chips=[chip("tps23861", _=12.0)]),
    # Supplies.
    "supplies, one with input power and one without": Host(None, chips=[_PSU, chip("cffps2", pout1=138.0)]),
    "a supply that is pulled out": Host(None, chips=[_PSU, _PSU], after=remove("class/hwmon/hwmon1/power1_input")),
    "a redundant supply on standby, or with a dead sensor": Host(
        None, chips=[_PSU, chip("cffps2", pin=0.0, vout=0.0, pout1=0.0)]
    ),
    "a gaming desktop": Host(
        240.0,
        chips=[
            ("corsairpsu", {**chip("", a=240.0, b=200.0, c=15.0, d=9.0)[1]}),
            chip("amdgpu", PPT=120.0),
            chip("nvme", _=4.0),
        ],
    ),
    # ACPI's meter.
    "an ACPI meter that does not answer": Host(None, chips=[chip("power_meter", _=4_294_967.295)]),
    "an ACPI meter, supplies and cards": Host(300.0, chips=[_ACPI, _PSU, _PSU, chip("amdgpu", PPT=80.0)]),
    # Intel and AMD.
    "two sockets, each with its psys": Host(
        420.0,
        zones=[
            ("intel-rapl:0", "package-0", 150.0),
            ("intel-rapl:1", "package-1", 130.0),
            ("intel-rapl:2", "psys", 220.0),
            ("intel-rapl:3", "psys-1", 200.0),
        ],
    ),
    "two sockets, psys of one of them stands still": Host(
        None,
        zones=[
            ("intel-rapl:0", "package-0", 150.0),
            ("intel-rapl:1", "package-1", 130.0),
            ("intel-rapl:2", "psys", 220.0),
            ("intel-rapl:3", "psys-1", None),
        ],
    ),
    "packages by dies and once more whole": Host(
        200.0,
        zones=[
            ("intel-rapl:0", "package-0-die-0", 110.0),
            ("intel-rapl:1", "package-0-die-1", 90.0),
            ("intel-rapl-tpmi:0", "package-0", 200.0),
        ],
    ),
    "memory of one control type, packages of another": Host(
        230.0,
        zones=[
            ("intel-rapl:0", "package-0", 200.0),
            ("intel-rapl-tpmi:0", "package-0", 200.0),
            ("intel-rapl-tpmi:0:0", "dram", 30.0),
        ],
    ),
    "a package of TPMI that appears": Host(
        None,
        zones=[("intel-rapl-tpmi:0", "package-0", 200.0)],
        after=lambda tree: tree.zone("intel-rapl-tpmi:1", "package-1", 0),
    ),
    "a package that went and came back": Host(
        None,
        zones=[("intel-rapl:0", "package-0", 100.0), ("intel-rapl:1", "package-1", 100.0)],
        after=remove("class/powercap/intel-rapl:1/energy_uj"),
    ),
    "AMD's core alone, which is one core": Host(None, zones=[("intel-rapl:0", "core", 3.0)]),
    "zones of DTPM beside a package": Host(
        40.0, zones=[("intel-rapl:0", "package-0", 40.0), ("dtpm:0", "package-0", 900.0), ("dtpm:0:0", "cpu0", 9.0)]
    ),
    "names of no kernel": Host(None, zones=[("intel-rapl:0", "package", 40.0), ("intel-rapl:1", "soc", 9.0)]),
    "amd_energy of two sockets and zenpower": Host(
        160.0,
        chips=[counters("amd_energy", Ecore000=2.0, Esocket0=90.0, Esocket1=70.0), chip("zenpower", SVI2_P_Core=40.0)],
    ),
    "amd_energy that shows cores alone": Host(None, chips=[counters("amd_energy", Ecore000=2.0, Ecore001=3.0)]),
    "POWER9": Host(700.0, chips=[chip("ibmpowernv", System=700.0, Chip_0=200.0, Chip_0_Vdd=90.0)]),
}


def metered(tree: Tree, host: Host, meter: str) -> list[EnergyReading]:
    with open_meters(meter) as meters:
        if not meters.names:
            return []
        meters.sample(100.0)
        host.move(tree)
        meters.sample(102.0)
        return meters.readings(100.0, 102.0)


@pytest.mark.parametrize("name", HOSTS)
def test_the_figure_of_a_host_is_right_or_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The automatic choice gives the host's watts. A meter chosen by name gives the same watts or none."""
    host = HOSTS[name]
    expected = None if host.watts is None else pytest.approx(host.watts)
    for meter in ("auto", "rapl", "hwmon", "battery"):
        tree = Tree(tmp_path / meter)
        monkeypatch.setenv("POWERPROF_SYSFS", str(tree.root))
        host.draw(tree)
        try:
            readings = metered(tree, host, meter)
        except CapabilityError:
            continue
        watts = host_energy(readings).watts
        figures = [(meter, reading.domain, reading.scope, reading.watts) for reading in readings]
        assert watts == expected or (meter != "auto" and watts is None), figures
