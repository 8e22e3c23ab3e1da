# SPDX-License-Identifier: Apache-2.0
"""Hosts of rarer kinds: other kernels and firmware, units that are off, and events that change the load."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tests.unit.energy.counter_hosts import (
    ALDER_LAKE,
    BULLDOZER,
    GENOA,
    GRANITE_RAPIDS,
    ICE_LAKE_SP,
    RANGE_15_UJ,
    RANGE_61_UJ,
    RYZEN,
)
from tests.unit.energy.simulated_host import (
    UNREADABLE,
    Demand,
    Host,
    Load,
    Signal,
    Value,
    between,
    constant,
    counter,
    microwatts,
    switched,
)

_Cpu = tuple[str, int, int, str]


def _stepped(first: float, second: float, at_s: int, start_uj: int = 0, range_uj: int = RANGE_61_UJ) -> Signal:
    """Return a counter whose power changes once."""
    return lambda t: str((start_uj + round((first * min(t, at_s) + second * max(t - at_s, 0)) * 1e6)) % (range_uj + 1))


def _host(family: str, name: str, demand: Demand, cpu: _Cpu, sockets: int = 1, dies: int = 1, **truth: float) -> Host:
    host = Host(name, family, demand=demand, truth=truth)
    host.cpus(*cpu, sockets=sockets, dies=dies)
    return host


def rare_counters(draw: Random) -> Iterator[Host]:
    def drawn(
        name: str, demand: Demand, cpu: _Cpu = ICE_LAKE_SP, sockets: int = 1, dies: int = 1, **truth: float
    ) -> Host:
        return _host("rare counters", name, demand, cpu, sockets, dies, **truth)

    # Linux since 6.12 (rapl_msrs_are_pkg_scope): one zone per package, and CCDs as dies in the topology.
    for sockets in (1, 2):
        loads = [Load(draw.uniform(90, 260)) for _ in range(sockets)]
        watts = sum(load.watts for load in loads)
        host = drawn(f"EPYC of {sockets} sockets, 8 dies and zones per package", "figure", GENOA, sockets, 8)
        host.truth = {"package": watts}
        for number, load in enumerate(loads):
            energy = counter(load, draw.randrange(10**10), RANGE_15_UJ)
            host.zone(f"intel-rapl:{number}", f"package-{number}", energy, max_energy_range_uj=RANGE_15_UJ)
        yield host
        host = drawn(f"EPYC of {sockets} sockets by perf, 8 dies and one CPU per package", "figure", GENOA, sockets, 8)
        host.truth = {"package": watts}
        host.perf({"energy-pkg": {16 * number: load for number, load in enumerate(loads)}})
        yield host
    # TPMI counts per package whatever the number of compute dies (intel_rapl_tpmi.c).
    host = drawn("Granite Rapids of 3 dies by TPMI", "figure", GRANITE_RAPIDS, 1, 3, package=310.0, dram=40.0)
    host.zone("intel-rapl-tpmi:0", "package-0", counter(Load(310.0)), max_watts=500)
    host.zone("intel-rapl-tpmi:0:0", "dram", counter(Load(40.0)))
    yield host
    for skew_ms in (0.05, 0.3, 2.0):
        host = drawn(f"8 mirrored CCDs of an unknown vendor, read {skew_ms} ms apart", "either", GENOA, 1, 8)
        host.truth, host.processes = {"package": 150.0}, {}
        for die in range(8):
            energy = counter(Load(150.0), 5 * 10**9, RANGE_15_UJ, skew_ms * 1e-3 * die)
            host.zone(f"intel-rapl:{die}", f"package-0-die-{die}", energy, max_energy_range_uj=RANGE_15_UJ)
        yield host
    host = drawn("laptop whose package is unreadable, its psys is not", "either", ALDER_LAKE, psys=19.0)
    host.zone("intel-rapl:0", "package-0", constant(UNREADABLE))
    host.zone("intel-rapl:1", "psys", counter(Load(19.0)))
    yield host
    for at_s in (2, 5, 8):
        watts = (40.0 * at_s + 190.0 * (10 - at_s)) / 10
        host = drawn(f"2 sockets whose load rises at {at_s} s", "figure", sockets=2, package=2 * watts)
        for number in range(2):
            host.zone(f"intel-rapl:{number}", f"package-{number}", _stepped(40, 190, at_s, 10**10 * number))
        yield host
    host = drawn("2 sockets, the counter of one restarts at 6 s", "either", sockets=2, package=240.0)
    host.zone("intel-rapl:0", "package-0", counter(Load(120.0), 10**10))
    restarted = counter(Load(120.0), 1000 - 720_000_000)
    running = counter(Load(120.0), 2 * 10**10)
    host.zone("intel-rapl:1", "package-1", lambda t: running(t) if t < 6 else restarted(t))
    yield host
    for at_s in (7, 8, 9):
        host = drawn(f"a counter that stops at {at_s} s", "either", package=120.0)
        moving = counter(Load(120.0), 10**10)
        host.zone("intel-rapl:0", "package-0", lambda t, s=moving, at=at_s: s(min(t, at)))  # type: ignore[misc]
        yield host
    host = drawn("a package whose unit is 100 times too large", "either", ALDER_LAKE, package=15.0)
    host.zone("intel-rapl:0", "package-0", counter(Load(1500.0)), max_watts=28)
    yield host
    # fam15h_power.rst: one chip per multi-node processor.
    host = drawn("Opteron of 2 sockets", "either", BULLDOZER, 2, package=150.0)
    for number, watts in enumerate((70.0, 80.0)):
        host.chip(number, "fam15h_power", {"power1_input": Load(watts), "power1_crit": 115_000_000})
    yield host
    host = drawn("Opteron of 2 sockets, the second is not shown", "unknown", BULLDOZER, 2)
    host.chip(0, "fam15h_power", {"power1_input": Load(70.0)})
    yield host
    host = drawn("zenpower of one of 2 sockets", "unknown", RYZEN, 2)
    rails: dict[str, Value] = {"power1_label": "SVI2_P_Core", "power1_input": Load(40.0)}
    host.chip(0, "zenpower", {**rails, "power2_label": "SVI2_P_SoC", "power2_input": Load(12.0)})
    yield host
    host = drawn("Altra, one of 2 sockets", "unknown", sockets=2)
    host.arm_cpus("0x41", "0xd0c", sockets=2)
    names = ("CORE VRD", "SoC VRD", "DIMM VRD1", "DIMM VRD2", "RCA VRD")
    altra: dict[str, Value] = {}
    for number, name in enumerate(names, 1):
        altra |= {f"power{number}_label": name, f"power{number}_input": Load(20.0)}
    host.chip(0, "smpro_hwmon", altra)
    yield host


def rare_sensors(draw: Random) -> Iterator[Host]:
    def drawn(name: str, demand: Demand, cpu: _Cpu = ICE_LAKE_SP, **truth: float) -> Host:
        return _host("rare sensors", name, demand, cpu, **truth)

    def supply(host: Host, number: int, watts: float | Value, name: str = "cffps2", **more: Value) -> None:
        power: Value = Load(watts) if isinstance(watts, float) else watts
        host.chip(number, name, {"power1_label": "pin", "power1_input": power, **more})

    host = drawn("2 supplies, one without a power channel", "either", supply=300.0, server=300.0)
    supply(host, 0, 150.0)
    host.chip(1, "cffps2", {"in1_label": "vin", "in1_input": 230_000, "fan1_input": 9000})
    yield host
    host = drawn("2 supplies of 2 drivers", "either", supply=300.0, server=300.0)
    supply(host, 0, 150.0, "ipsps1")
    supply(host, 1, 150.0, "dps920ab")
    yield host
    host = drawn("2 supplies, one of an unknown driver", "unknown")
    supply(host, 0, 150.0)
    supply(host, 1, 150.0, "delta-dps1300")
    yield host
    host = drawn("2 supplies, one of a generic PMBus driver", "unknown")
    supply(host, 0, 150.0)
    supply(host, 1, 150.0, "pmbus")
    yield host
    host = drawn("2 supplies whose load rises at 4.5 s", "either", supply=310.0, server=310.0)
    for number in range(2):
        supply(host, number, switched(100_000_000, 200_000_000, 4.5))
    host.is_breakable = False
    yield host
    host = drawn("2 supplies, one goes at 3 s and returns at 6 s", "either", supply=300.0, server=300.0)
    supply(host, 0, lambda t: str(300_000_000 if 3 <= t < 6 else 150_000_000))
    supply(host, 1, 150.0)
    for path in [p for p in host.files if p.startswith("class/hwmon/hwmon1/")]:
        signal = host.files[path]
        host.files[path] = lambda t, s=signal: None if 3 <= t < 6 else s(t)  # type: ignore[misc]
    yield host
    host = drawn("a supply whose input is in mW, its output is not", "either", supply=300.0, server=300.0)
    supply(host, 0, 300_000, power2_label="pout1", power2_input=Load(276.0))
    host.truth["supply output"] = 276.0
    yield host
    host = drawn("supplies numbered in reverse, with a card between", "either", supply=300.0, server=300.0)
    supply(host, 9, 140.0)
    host.chip(5, "amdgpu", {"power1_label": "PPT", "power1_average": Load(90.0)})
    supply(host, 2, 160.0)
    yield host
    host = drawn("RAPL and a card that is plugged in at 5 s", "figure", RYZEN, package=60.0)
    host.zone("intel-rapl:0", "package-0", counter(Load(60.0)))
    host.chip(5, "amdgpu", {"power1_label": "PPT", "power1_average": Load(20.0)}, when=(5, 99))
    yield host
    host = drawn("RAPL and Corsair's supply", "figure", RYZEN, package=60.0, supply=190.0, server=190.0)
    host.zone("intel-rapl:0", "package-0", counter(Load(60.0)))
    host.chip(0, "corsairpsu", {"power1_label": "power total", "power1_input": Load(190.0)})
    yield host

    def acpi(host: Host, number: int, power: Value, **more: Value) -> None:
        made: dict[str, Value] = {"power1_average": power, "power1_average_interval": 1000, "power1_is_battery": 0}
        host.chip(number, "power_meter", {**made, **more})

    for text in ("Chassis Power", "PSU 1", "DIMM Power Socket 0", "GPU Power 0", "Enclosure 3 Total Power"):
        host = drawn(f"an ACPI meter that calls itself {text}", "unknown")
        acpi(host, 0, Load(250.0), power1_oem_info=text)
        yield host
    host = drawn("an ACPI meter of the machine and one of its battery", "either", server=250.0)
    acpi(host, 0, Load(250.0))
    acpi(host, 1, Load(20.0), power1_is_battery=1)
    yield host
    host = drawn("an ACPI meter and one that only caps", "either", server=250.0)
    acpi(host, 0, Load(250.0))
    host.chip(1, "power_meter", {"power1_cap": 500_000_000, "power1_is_battery": 0})
    yield host
    # Firmware that gives watts where ACPI's unit is mW.
    host = drawn("an ACPI meter 1,000 times too small", "either", server=250.0)
    acpi(host, 0, Load(0.25))
    yield host
    host = drawn("an ACPI meter 1,000 times too small, next to RAPL", "either", server=250.0, package=120.0)
    acpi(host, 0, Load(0.25))
    host.zone("intel-rapl:0", "package-0", counter(Load(120.0)))
    yield host
    host = drawn("an ACPI meter whose load rises at 4.5 s", "figure", server=260.0)
    acpi(host, 0, switched(150_000_000, 350_000_000, 4.5))
    host.is_breakable = False
    yield host
    host = drawn("a MacBook on its battery", "either", server=14.0, battery=14.0)
    host.chip(0, "macsmc_hwmon", {"power1_label": "Total System Power", "power1_input": Load(14.0)})
    host.supply("macsmc-battery", "Battery", status="Discharging", power_now=Load(14.0), present=1)
    yield host


def rare_batteries(draw: Random) -> Iterator[Host]:
    def drawn(name: str, demand: Demand, watts: float = 14.0) -> Host:
        host = _host("rare batteries", name, demand, ALDER_LAKE, battery=watts)
        host.supply("ADP1", "Mains", online=0)
        return host

    def battery(host: Host, name: str, power: Value, status: Value = "Discharging", **more: Value) -> None:
        made: dict[str, Value] = {"status": status, "power_now": power, "voltage_now": 11_400_000, "present": 1}
        host.supply(name, "Battery", None, **{**made, **more})

    for name in ("BATT", "BATC", "CMB0", "macsmc-battery", "qcom-battmgr-bat", "bq20z75-0"):
        host = drawn(f"a battery called {name}", "figure")
        battery(host, name, Load(14.0))
        yield host
    host = drawn("one by two gauges", "either")
    battery(host, "max17042_battery", Load(14.0))
    battery(host, "bq27500-0", Load(14.0))
    yield host
    host = drawn("2, the second of unknown status with a power", "either")
    battery(host, "BAT0", Load(9.0))
    battery(host, "BAT1", Load(5.0), "Unknown")
    yield host
    host = drawn("one whose bay is emptied at 5 s", "unknown")
    battery(host, "BAT0", Load(14.0), present=switched(1, 0, 5))
    yield host
    host = drawn("2, present of the second falls at 6 s", "either")
    battery(host, "BAT0", switched(7_000_000, 14_000_000, 6))
    battery(host, "BAT1", switched(7_000_000, 0, 6), present=switched(1, 0, 6))
    yield host
    host = drawn("mains for 1 s", "either")
    battery(host, "BAT0", Load(14.0))
    host.supply("ADP1", "Mains", online=lambda t: "1" if 5 <= t < 6 else "0")
    yield host
    host = drawn("a USB-C charger from 4 s on, the status lags", "unknown")
    battery(host, "BAT0", switched(14_000_000, 2_000_000, 4))
    host.supply("ucsi-source-psy-USBC000:002", "USB", online=switched(0, 1, 4), scope="System")
    yield host
    host = drawn("a USB-C charger that appears at 4 s, the status lags", "unknown")
    battery(host, "BAT0", switched(14_000_000, 2_000_000, 4))
    host.supply("tcpm-source-psy-4-0022", "USB", (4, 99), online=1, scope="System")
    yield host
    host = drawn("a Qi pad", "unknown")
    battery(host, "BAT0", Load(14.0))
    host.supply("wireless", "Wireless", online=1)
    yield host
    host = drawn("status Full while it discharges", "unknown")
    battery(host, "BAT0", Load(14.0), "Full")
    yield host
    host = drawn("a controller and a pen of no scope next to it", "either")
    battery(host, "BAT0", Load(14.0))
    host.supply("ps-controller-battery-a0:ab:51", "Battery", status="Discharging", capacity=50)
    host.supply("wacom_battery_1", "Battery", status="Discharging", capacity=50)
    yield host
    host = drawn("a reading missing for 1 s", "either")
    readable = microwatts(Load(14.0))
    battery(host, "BAT0", lambda t: UNREADABLE if 5 <= t < 6 else readable(t))
    yield host
    host = drawn("a battery put in that only charges", "either")
    battery(host, "BAT0", Load(14.0))
    battery(host, "BAT1", Load(5.0), "Charging")
    host.files |= {p: between(s, 5) for p, s in host.files.items() if "/BAT1/" in p}
    yield host
