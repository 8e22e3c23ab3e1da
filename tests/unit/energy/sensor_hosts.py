# SPDX-License-Identifier: Apache-2.0
"""Hosts with power sensors: ACPI meters, power supplies, boards, cards. Some are guests or containers without any.

Each function draws the hosts of one family. Its comment names the source of the names and units.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random

from tests.unit.energy.counter_hosts import ICE_LAKE_SP, RANGE_61_UJ, RYZEN, SAPPHIRE_RAPIDS, SKYLAKE
from tests.unit.energy.simulated_host import (
    UNREADABLE,
    Demand,
    Host,
    Load,
    Value,
    between,
    constant,
    counter,
    microwatts,
    switched,
)


def _load(draw: Random, low: float, high: float) -> Load:
    return Load(round(draw.uniform(low, high), 1), swing=draw.uniform(0.005, 0.03), phase=draw.uniform(0, 6.28))


# Documentation/hwmon/acpi_power_meter.rst and drivers/hwmon/acpi_power_meter.c: power1_average over
# power1_average_interval ms, model_number, serial_number, oem_info, is_battery, and links in device/measures to the
# measured ACPI devices. _PMM may return 0xFFFFFFFF mW (ACPI 6.5, 10.4.1: unknown).
def _acpi(host: Host, number: int, power: Value, *, measures: str = "", folder: str = "", **files: Value) -> None:
    made: dict[str, Value] = {
        "power1_average": power,
        "power1_average_interval": 1000,
        "power1_average_interval_min": 50,
        "power1_average_interval_max": 1000,
        "power1_accuracy": "100%",
        "power1_is_battery": 0,
        "power1_model_number": "",
        "power1_serial_number": "",
        "power1_oem_info": "",
        **files,
    }
    host.chip(number, "power_meter", {f"{folder}{file}": value for file, value in made.items()})
    for device in measures.split():
        host.put(f"class/hwmon/hwmon{number}/device/measures/{device}/path", "\\_SB")


def acpi_meters(draw: Random) -> Iterator[Host]:
    def drawn(name: str, demand: Demand = "figure", cpu: tuple[str, int, int, str] = ICE_LAKE_SP) -> tuple[Host, Load]:
        host = Host(name, "ACPI power meter", demand=demand)
        host.cpus(*cpu, sockets=2)
        load = _load(draw, 220, 480)
        host.truth = {"server": load.watts}
        return host, load

    host, load = drawn("of a rack server")
    _acpi(host, 0, load)
    yield host
    host, load = drawn("whose files are in the device folder")
    _acpi(host, 0, load, folder="device/")
    yield host
    host, load = drawn("that measures the system bus")
    _acpi(host, 0, load, measures="LNXSYBUS:00")
    yield host

    # NVIDIA/edk2-nvidia, BpmpSsdtSocket0_TH500.asl: four meters per socket, distinguished by _PMC's OEM information.
    host, _ = drawn("of Grace's cores alone", "unknown")
    host.arm_cpus("0x41", "0xd4f")
    _acpi(host, 0, Load(150.0), power1_oem_info="CPU Power Socket 0")
    yield host
    host, _ = drawn("of Grace's cores, in the device folder", "unknown")
    host.arm_cpus("0x41", "0xd4f")
    _acpi(host, 0, Load(150.0), folder="device/", power1_oem_info="CPU Power Socket 0")
    yield host
    host, _ = drawn("of a Grace Hopper module", "unknown")
    host.arm_cpus("0x41", "0xd4f")
    _acpi(host, 0, Load(480.0), power1_oem_info="Module Power Socket 0")
    yield host
    host, _ = drawn("of Grace's two sockets", "unknown")
    host.arm_cpus("0x41", "0xd4f", sockets=2)
    for number in range(2):
        _acpi(host, number, Load(250.0 + number), power1_oem_info=f"Grace Power Socket {number}")
    yield host

    host, _ = drawn("of a battery", "unknown")
    _acpi(host, 0, Load(22.0), power1_is_battery=1)
    yield host
    host, _ = drawn("that measures processors only", "unknown")
    _acpi(host, 0, Load(150.0), measures="ACPI0007:00 ACPI0007:01")
    yield host
    host, _ = drawn("that measures memory", "unknown")
    _acpi(host, 0, Load(40.0), measures="PNP0C80:00")
    yield host
    host, load = drawn("twice, of unknown parts", "unknown")
    # ACPI 6.5, 10.4.1: a device without the capability of measuring is no meter, so the other one is alone.
    host.is_breakable = False
    _acpi(host, 0, load)
    _acpi(host, 1, Load(load.watts / 2))
    yield host
    host, _ = drawn("that does not know", "unknown")
    _acpi(host, 0, 4_294_967_295_000)
    yield host
    host, _ = drawn("that reads 0", "unknown")
    _acpi(host, 0, 0)
    yield host
    host, load = drawn("with a mean over 30 s", "unknown")
    _acpi(host, 0, load, power1_average_interval=30_000)
    yield host
    host, load = drawn("whose driver is unloaded at 7 s", "unknown")
    _acpi(host, 0, load)
    host.files |= {p: between(s, 0, 7) for p, s in host.files.items() if "hwmon0" in p}
    yield host
    host, load = drawn("whose second meter appears", "either")
    _acpi(host, 0, load)
    _acpi(host, 1, Load(90.0))
    host.files |= {p: between(s, 6) for p, s in host.files.items() if "hwmon1" in p}
    yield host
    host, load = drawn("that cannot be read for 2 s", "either")
    readable = microwatts(load)
    _acpi(host, 0, lambda t: UNREADABLE if 3 <= t < 5 else readable(t))
    yield host

    # A bad meter of RAPL does not hide a good one.
    for name, leaf in (("next to unreadable RAPL", UNREADABLE), ("next to RAPL of one of two sockets", None)):
        host, load = drawn(name)
        _acpi(host, 0, load)
        for number in range(2):
            host.zone(f"intel-rapl:{number}", f"package-{number}", constant(UNREADABLE))
        if leaf is None:
            host.put("class/powercap/intel-rapl:0/energy_uj", counter(Load(90.0)))
            del host.files["class/powercap/intel-rapl:1/energy_uj"]
            host.put("class/powercap/intel-rapl:1/power_uw", Load(80.0))
        yield host


# PMBus supplies: drivers/hwmon/pmbus/pmbus_core.c (labels pin, pinN, pout1, poutN), ibm-cffps.c (cffps1, cffps2),
# fsp-3y.c, inspur-ipsps.c, bel-pfe.c; Documentation/hwmon/corsair-psu.rst (power1 is the total, "power total").
# lm25066, adm1275: hot-swap controllers of a board, not supplies.


def _psu(host: Host, number: int, watts: float, *, name: str = "cffps2", **changes: Value | None) -> None:
    files: dict[str, Value | None] = {
        "power1_label": "pin",
        "power1_input": Load(watts),
        "power2_label": "pout1",
        "power2_input": Load(watts * 0.92),
        "in1_label": "vin",
        "in1_input": 230_000,
        "curr1_label": "iin",
        "curr1_input": round(watts / 0.23),
        **changes,
    }
    host.chip(number, name, {file: value for file, value in files.items() if value is not None})


def power_supplies(draw: Random) -> Iterator[Host]:
    def drawn(name: str, demand: Demand = "either") -> tuple[Host, float]:
        host = Host(name, "power supplies", demand=demand)
        host.cpus(*ICE_LAKE_SP, sockets=2)
        watts = round(draw.uniform(250, 520), 1)
        host.truth = {"supply": watts, "server": watts, "supply output": watts * 0.92}
        return host, watts

    def limit(host: Host, number: int, since_s: float, until_s: float) -> None:
        host.files |= {
            p: between(s, since_s, until_s)
            for p, s in host.files.items()
            if p.startswith(f"class/hwmon/hwmon{number}/")
        }

    for count, chip in ((1, "cffps1"), (2, "cffps2"), (4, "cffps2"), (2, "ipsps1"), (2, "pfe3000")):
        host, watts = drawn(f"{count} of {chip}")
        for number in range(count):
            _psu(host, number + 2, watts / count, name=chip)
        yield host

    host, watts = drawn("one supply with two inputs")
    _psu(host, 0, watts / 2, power1_label="pin1", power3_label="pin2", power3_input=Load(watts / 2))
    host.put("class/hwmon/hwmon0/power2_input", Load(watts * 0.92))
    yield host
    host, watts = drawn("2 supplies with two inputs each")
    for number in range(2):
        _psu(host, number, watts / 4, power1_label="pin1", power3_label="pin2", power3_input=Load(watts / 4))
        host.put(f"class/hwmon/hwmon{number}/power2_input", Load(watts * 0.46))
    yield host
    host, watts = drawn("a supply with two outputs")
    _psu(host, 0, watts, power2_input=Load(watts * 0.8), power3_label="pout2", power3_input=Load(watts * 0.12))
    yield host
    host, watts = drawn("2 supplies, one without labels")
    _psu(host, 0, watts / 2)
    _psu(host, 1, watts / 2, power1_label=None, power2_label=None)
    yield host
    host, watts = drawn("2 supplies, the label of one input is missing")
    _psu(host, 0, watts / 2)
    _psu(host, 1, watts / 2, power1_label=None)
    yield host
    host, watts = drawn("2 supplies, one without an input power")
    _psu(host, 0, watts / 2)
    _psu(host, 1, watts / 2, power1_label=None, power1_input=None)
    yield host
    host, watts = drawn("2 supplies, the input of one unreadable")
    _psu(host, 0, watts / 2)
    _psu(host, 1, watts / 2, power1_input=UNREADABLE)
    yield host
    host, watts = drawn("2 supplies, one on cold standby")
    _psu(host, 0, watts)
    _psu(host, 1, 0.0)
    yield host
    for at_s in (2, 6, 9):
        host, watts = drawn(f"2 supplies, one pulled at {at_s} s")
        _psu(host, 0, watts / 2, power1_input=switched(round(watts / 2 * 1e6), round(watts * 1e6), at_s))
        _psu(host, 1, watts / 2)
        limit(host, 1, 0, at_s)
        yield host
    for at_s in (3, 6, 9):
        host, watts = drawn(f"a second supply plugged in at {at_s} s")
        _psu(host, 0, watts, power1_input=switched(round(watts * 1e6), round(watts / 2 * 1e6), at_s))
        _psu(host, 1, watts / 2)
        limit(host, 1, at_s, 99)
        yield host
    host, watts = drawn("a supply whose feed fails: it reads 0 from 5 s on")
    _psu(host, 0, watts / 2, power1_input=switched(round(watts / 2 * 1e6), round(watts * 1e6), 5))
    _psu(host, 1, watts / 2, power1_input=switched(round(watts / 2 * 1e6), 0, 5))
    yield host
    host, watts = drawn("4 supplies, one unreadable for 4 s")
    for number in range(4):
        _psu(host, number, watts / 4)
    quarter = microwatts(Load(watts / 4))
    host.put("class/hwmon/hwmon2/power1_input", lambda t: UNREADABLE if 3 <= t < 7 else quarter(t))
    yield host

    host, watts = drawn("2 supplies and the server's ACPI meter")
    for number in range(2):
        _psu(host, number, watts / 2)
    _acpi(host, 5, Load(watts * 0.995))
    yield host

    host, watts = drawn("Corsair's supply in a desktop", "figure")
    host.cpus(*RYZEN)
    names = {"power total": watts, "power +12v": watts * 0.85, "power +5v": watts * 0.03, "power +3.3v": watts * 0.02}
    corsair = _labelled(names)
    host.chip(0, "corsairpsu", corsair)
    yield host
    host, watts = drawn("2 Corsair supplies of one desktop")
    for number in range(2):
        host.chip(number, "corsairpsu", _labelled({"power total": watts / 2, "power +12v": watts * 0.45}))
    yield host
    host, watts = drawn("2 Corsair supplies, one without USB from 6 s on", "unknown")
    for number in range(2):
        host.chip(number, "corsairpsu", _labelled({"power total": watts / 2, "power +12v": watts * 0.45}))
    limit(host, 1, 0, 6)
    yield host


def _labelled(watts: Mapping[str, float]) -> dict[str, Value]:
    files: dict[str, Value] = {}
    for number, (label, value) in enumerate(watts.items(), 1):
        files |= {f"power{number}_label": label, f"power{number}_input": Load(value)}
    return files


# IBM: Documentation/hwmon/ibmpowernv.rst and drivers/hwmon/ibmpowernv.c (labels of /ibm,opal/sensors: "System", "Chip N
# Vdd", energies too); Documentation/hwmon/occ.rst (a BMC's view of another machine: "system", "proc", "vdd").
# Apple: drivers/hwmon/macsmc-hwmon.c, arch/arm64/boot/dts/apple/hwmon-common.dtsi and hwmon-laptop.dtsi.
# Ampere: Documentation/hwmon/smpro-hwmon.rst, independent regulators. APM: Documentation/hwmon/xgene-hwmon.rst.
# Arm: drivers/hwmon/scmi-hwmon.c and scpi-hwmon.c (names by the firmware; Juno's SYS_POW_SYS, SYS_POW_A57),
# Documentation/hwmon/vexpress.rst.
def other_servers(draw: Random) -> Iterator[Host]:
    def drawn(name: str, demand: Demand, **truth: float) -> Host:
        host = Host(name, "Power, Apple and Arm servers", demand=demand, truth=truth)
        host.arm_cpus("0x41", "0xd0c")
        return host

    watts = round(draw.uniform(400, 900), 1)
    host = drawn("POWER9", "figure", server=watts)
    host.chip(0, "ibmpowernv", _labelled({"System": watts, "Chip 0 Vdd": watts * 0.2, "Chip 8 Vdd": watts * 0.2}))
    yield host
    host = drawn("POWER9 with energies of its chips", "figure", server=watts)
    host.chip(0, "ibmpowernv", _labelled({"Chip 0": watts * 0.3, "System": watts}))
    for number, share in ((1, 0.3), (2, 1.0)):
        host.put(f"class/hwmon/hwmon0/energy{number}_label", ("Chip 0", "System")[number - 1])
        host.put(f"class/hwmon/hwmon0/energy{number}_input", counter(Load(watts * share), 10**9, None))
    yield host
    host = drawn("POWER server of two System channels", "either", server=1350.0)
    system: dict[str, Value] = {"power1_label": "System", "power1_input": Load(700.0)}
    host.chip(0, "ibmpowernv", {**system, "power2_label": "System", "power2_input": Load(650.0)})
    yield host
    host = drawn("POWER9 without a System channel", "unknown")
    host.chip(0, "ibmpowernv", _labelled({"Chip 0 Vdd": 90.0, "Chip 8 Vdd": 80.0, "Chip 0 Vdn": 20.0}))
    yield host

    mac = {"Total System Power": 18.0, "AC Input Power": 18.2, "3.8 V Rail Power": 9.0, "Heatpipe Power": 6.0}
    host = drawn("Mac mini", "figure", server=18.0)
    host.chip(0, "macsmc_hwmon", _labelled(mac))
    yield host
    host = drawn("MacBook that charges", "either", server=18.0)
    host.chip(0, "macsmc_hwmon", _labelled({**mac, "AC Input Power": 64.0}))
    host.supply("macsmc-battery", "Battery", status="Charging", power_now=42_000_000)
    host.supply("macsmc-ac", "Mains", online=1)
    yield host
    host = drawn("MacBook that charges, without Total System Power", "unknown")
    host.chip(0, "macsmc_hwmon", _labelled({"AC Input Power": 60.0, "Heatpipe Power": 6.0}))
    host.supply("macsmc-battery", "Battery", status="Charging", power_now=40_000_000)
    host.supply("macsmc-ac", "Mains", online=1)
    yield host

    altra = {"CORE VRD": 80.0, "SoC VRD": 30.0, "DIMM VRD1": 9.0, "DIMM VRD2": 8.0, "RCA VRD": 4.0}
    host = drawn("Altra, a regulator unreadable", "either", rail=131.0)
    host.chip(0, "smpro_hwmon", _labelled(altra))
    host.put("class/hwmon/hwmon0/power2_input", UNREADABLE)
    yield host
    host = drawn("Altra of 2 sockets, one goes away", "either", rail=262.0)
    host.arm_cpus("0x41", "0xd0c", sockets=2)
    host.chip(0, "smpro_hwmon", _labelled(altra))
    host.chip(1, "smpro_hwmon", _labelled(altra), when=(0, 6))
    yield host

    host = drawn("Juno by SCPI", "unknown")
    host.chip(0, "scpi_sensors", _labelled({"SYS_POW_SYS": 1.0, "SYS_POW_A57": 2.0, "SYS_POW_A53": 0.5}))
    yield host
    host = drawn("Versatile Express", "unknown")
    host.chip(0, "vexpress", _labelled({"A15": 3.0, "A7": 1.0}))
    yield host


# INA3221: Documentation/hwmon/ina3221.rst (in1 to in3, curr1 to curr3; in7 "sum of shunt voltages"). The rails of
# Jetson modules: NVIDIA Jetson Linux Developer Guide, "Power Monitor" (Orin Nano and NX: VDD_IN is the module's input;
# AGX: no rail is the input). INA2xx: Documentation/hwmon/ina2xx.rst, without labels.
def _ina3221(watts: Mapping[str, float]) -> dict[str, Value]:
    files: dict[str, Value] = {"in7_label": "sum of shunt voltages", "in7_input": 12}
    for number, (label, value) in enumerate(watts.items(), 1):
        files |= {f"in{number}_label": label, f"in{number}_input": 5000}
        files[f"curr{number}_input"] = round(value * 200)
    return files


def boards(draw: Random) -> Iterator[Host]:
    orin = "nvidia,p3768-0000+p3767-0003 nvidia,p3767-0003 nvidia,tegra234"

    def drawn(name: str, demand: Demand = "unknown", compatible: str = orin, **truth: float) -> Host:
        host = Host(name, "boards", demand=demand, truth=truth)
        host.arm_cpus("0x41", "0xd42", compatible=compatible)
        return host

    host = drawn("Jetson Orin Nano", "figure", server=7.4)
    host.chip(1, "ina3221", _ina3221({"VDD_IN": 7.4, "VDD_CPU_GPU_CV": 2.6, "VDD_SOC": 1.9}))
    yield host
    host = drawn("Jetson Nano", "figure", "nvidia,p3450-0000 nvidia,jetson-nano nvidia,tegra210", server=4.2)
    host.chip(1, "ina3221", _ina3221({"POM_5V_IN": 4.2, "POM_5V_GPU": 0.8, "POM_5V_CPU": 1.1}))
    yield host
    host = drawn("Jetson TX2 with two chips", "either", "nvidia,p2597-0000+p3310-1000 nvidia,tegra186", server=9.0)
    host.chip(1, "ina3221", _ina3221({"VDD_SYS_GPU": 2.0, "VDD_SYS_SOC": 1.0, "VDD_4V0_WIFI": 0.5}))
    host.chip(2, "ina3221", _ina3221({"VDD_IN": 9.0, "VDD_SYS_CPU": 2.0, "VDD_SYS_DDR": 1.0}))
    yield host
    host = drawn("Jetson AGX Orin", "unknown", "nvidia,p3737-0000+p3701-0000 nvidia,tegra234")
    host.chip(1, "ina3221", _ina3221({"VDD_GPU_SOC": 9.0, "VDD_CPU_CV": 6.0, "VIN_SYS_5V0": 5.0}))
    host.chip(2, "ina3221", _ina3221({"NC": 0.0, "VDDQ_VDD2_1V8AO": 1.0, "NC2": 0.0}))
    yield host
    host = drawn("Jetson whose label of the input is missing")
    host.chip(1, "ina3221", _ina3221({"VDD_IN": 7.4, "VDD_CPU_GPU_CV": 2.6, "VDD_SOC": 1.9}))
    del host.files["class/hwmon/hwmon1/in1_label"]
    yield host
    host = drawn("Jetson whose input current is unreadable")
    host.chip(1, "ina3221", _ina3221({"VDD_IN": 7.4, "VDD_CPU_GPU_CV": 2.6, "VDD_SOC": 1.9}))
    host.put("class/hwmon/hwmon1/curr1_input", UNREADABLE)
    yield host
    host = drawn("Jetson whose channel is disabled at 6 s")
    host.chip(1, "ina3221", _ina3221({"VDD_IN": 7.4, "VDD_CPU_GPU_CV": 2.6, "VDD_SOC": 1.9}))
    for file in ("in1_input", "curr1_input"):
        path = f"class/hwmon/hwmon1/{file}"
        host.put(path, between(host.files[path], 0, 6, UNREADABLE))
    yield host
    host = drawn("Verdin with a rail VDD_IN", "unknown", "toradex,verdin-imx8mp fsl,imx8mp")
    host.chip(0, "ina3221", _ina3221({"VDD_IN": 7.4, "VDD_CPU": 2.6}))
    yield host
    host = drawn("Raspberry Pi with an INA219", "unknown", "raspberrypi,4-model-b brcm,bcm2711")
    host.chip(2, "ina219", {"power1_input": Load(5.0), "in1_input": 5100, "curr1_input": 980})
    yield host
    host = drawn("an INA238 and a labelled INA780", "unknown", "ti,am62")
    host.chip(0, "ina238", {"power1_input": Load(40.0)})
    host.chip(1, "ina780", {"energy1_input": counter(Load(40.0), 0, None), "energy1_label": "System"})
    yield host


# Cards and parts next to the processor's counters: Documentation/gpu/amdgpu/thermal.rst (power1_average "PPT"; an APU's
# is its whole socket), Documentation/ABI/testing/sysfs-driver-intel-xe-hwmon and -i915-hwmon (energy1 card, energy2
# package), mlx5 and nvme of drivers/hwmon. Two zenpower rails: github.com/ocerman/zenpower; fam15h_power.rst.
def cards(draw: Random) -> Iterator[Host]:
    def drawn(name: str, *, rapl: bool = True, cpu: tuple[str, int, int, str] = SKYLAKE) -> Host:
        host = Host(name, "cards and parts", demand="figure" if rapl else "unknown")
        host.cpus(*cpu)
        if rapl:
            load = _load(draw, 20, 90)
            host.zone("intel-rapl:0", "package-0", counter(load, draw.randrange(RANGE_61_UJ // 2)), max_watts=125)
            host.truth = {"package": load.watts}
        return host

    host = drawn("amdgpu next to RAPL")
    host.chip(0, "amdgpu", {"power1_label": "PPT", "power1_average": Load(140.0)})
    yield host
    host = drawn("xe next to RAPL")
    xe: dict[str, Value] = {"energy1_label": "card", "energy2_label": "pkg"}
    for number, watts in ((1, 150.0), (2, 110.0)):
        xe[f"energy{number}_input"] = counter(Load(watts), 10**9, None)
    host.chip(0, "xe", xe)
    yield host
    host = drawn("an APU by amdgpu alone", rapl=False, cpu=RYZEN)
    host.chip(0, "amdgpu", {"power1_label": "PPT", "power1_average": Load(15.0)})
    yield host
    host = drawn("network cards and disks next to RAPL")
    host.chip(0, "mlx5", {"power1_input": Load(18.0)})
    host.chip(1, "nvme", {"power1_input": Load(6.0), "temp1_input": 40000})
    yield host
    host = drawn("a chip that reads negative power next to RAPL")
    host.chip(0, "ina226", {"power1_input": -5_000_000})
    yield host
    host = drawn("zenpower without the label of its SoC", rapl=False, cpu=RYZEN)
    host.demand, host.truth = "either", {"rail": 52.0}
    host.chip(0, "zenpower", _labelled({"SVI2_P_Core": 40.0, "SVI2_P_SoC": 12.0}))
    del host.files["class/hwmon/hwmon0/power2_label"]
    yield host


# Guests show no meter, or dead ones. Containers hide files (runc masks /sys/devices/virtual/powercap since 1.1.11).
def guests(draw: Random) -> Iterator[Host]:
    def drawn(name: str, demand: Demand = "unknown", sockets: int = 1) -> Host:
        host = Host(name, "guests and containers", demand=demand)
        host.cpus(*SAPPHIRE_RAPIDS, sockets=sockets)
        return host

    yield drawn("guest without a meter")
    host = drawn("guest of 2 sockets whose RAPL reads 0", sockets=2)
    for number in range(2):
        host.zone(f"intel-rapl:{number}", f"package-{number}", constant(0))
    yield host
    host = drawn("container with masked powercap")
    host.put("class/powercap/intel-rapl/enabled", 1)
    yield host
    host = drawn("container that shows one of two packages", sockets=2)
    host.zone("intel-rapl:0", "package-0", counter(Load(120.0)))
    yield host
    host = drawn("container without energy_uj of the second package", sockets=2)
    host.zone("intel-rapl:0", "package-0", counter(Load(120.0)))
    host.zone("intel-rapl:1", "package-1", constant(0), energy_uj=None)
    yield host
