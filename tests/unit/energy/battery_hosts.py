# SPDX-License-Identifier: Apache-2.0
"""Laptops: batteries and chargers of class power_supply.

Documentation/ABI/testing/sysfs-class-power: power_now in µW, current_now in µA (negative by some drivers), voltage_now
in µV, status, present, scope, serial_number. Both drivers/acpi/battery.c and fuel gauges show one battery.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tests.unit.energy.counter_hosts import ALDER_LAKE
from tests.unit.energy.simulated_host import UNREADABLE, Demand, Host, Load, Value, between, switched

_VOLTS = 11.4


def _battery(host: Host, name: str, watts: float, status: Value = "Discharging", **values: Value | None) -> None:
    made: dict[str, Value | None] = {
        "present": 1,
        "status": status,
        "scope": "System",
        "power_now": Load(watts),
        "voltage_now": round(_VOLTS * 1e6),
        "serial_number": f"{name} 00412",
        "energy_now": 40_000_000,
        **values,
    }
    host.supply(name, "Battery", None, **{file: value for file, value in made.items() if value is not None})


def _current(watts: float) -> int:
    return round(watts / _VOLTS * 1e6)


def batteries(draw: Random) -> Iterator[Host]:
    def drawn(name: str, demand: Demand = "either") -> tuple[Host, float]:
        host = Host(name, "batteries", demand=demand)
        host.cpus(*ALDER_LAKE)
        watts = round(draw.uniform(6, 24), 1)
        host.truth = {"battery": watts}
        host.supply("AC", "Mains", online=0)
        return host, watts

    def limit(host: Host, name: str, since_s: float, until_s: float) -> None:
        prefix = f"class/power_supply/{name}/"
        host.files |= {p: between(s, since_s, until_s) for p, s in host.files.items() if p.startswith(prefix)}

    host, watts = drawn("power_now", "figure")
    _battery(host, "BAT0", watts)
    yield host
    host, watts = drawn("current_now and voltage_now", "figure")
    _battery(host, "BAT0", watts, power_now=None, current_now=_current(watts))
    yield host
    host, watts = drawn("a negative current_now", "figure")
    _battery(host, "BAT0", watts, power_now=None, current_now=-_current(watts))
    yield host
    host, watts = drawn("charging on mains", "unknown")
    _battery(host, "BAT0", watts, "Charging")
    host.supply("AC", "Mains", online=1)
    yield host
    host, watts = drawn("discharging although the mains are online", "unknown")
    _battery(host, "BAT0", watts)
    host.supply("AC", "Mains", online=1)
    yield host

    host, watts = drawn("2 that discharge", "figure")
    _battery(host, "BAT0", watts * 0.6)
    _battery(host, "BAT1", watts * 0.4)
    yield host
    host, watts = drawn("2, the second at rest", "figure")
    _battery(host, "BAT0", watts)
    _battery(host, "BAT1", 0.0, "Not charging")
    yield host
    host, watts = drawn("2, the second without a reading")
    _battery(host, "BAT0", watts * 0.6)
    _battery(host, "BAT1", watts * 0.4, power_now=None)
    yield host
    host, watts = drawn("2, the second unreadable")
    _battery(host, "BAT0", watts * 0.6)
    _battery(host, "BAT1", watts * 0.4, power_now=UNREADABLE)
    yield host
    host, watts = drawn("2 of one empty serial number")
    _battery(host, "BAT0", watts * 0.7, serial_number=" ")
    _battery(host, "BAT1", watts * 0.3, serial_number=" ")
    yield host

    host, watts = drawn("one plugged in at 6 s", "unknown")
    _battery(host, "BAT0", watts, switched("Discharging", "Charging", 6))
    host.supply("AC", "Mains", online=switched(0, 1, 6))
    yield host
    host, watts = drawn("one unplugged at 3 s", "unknown")
    _battery(host, "BAT0", watts, switched("Charging", "Discharging", 3))
    host.supply("AC", "Mains", online=switched(1, 0, 3))
    yield host
    host, watts = drawn("2, the second joins at 4 s", "unknown")
    _battery(host, "BAT0", watts * 0.6)
    _battery(host, "BAT1", watts * 0.4, switched("Not charging", "Discharging", 4))
    yield host
    for at_s in (3, 6, 9):
        host, watts = drawn(f"the second put in at {at_s} s")
        _battery(host, "BAT0", watts, power_now=switched(round(watts * 1e6), round(watts * 0.5e6), at_s))
        _battery(host, "BAT1", watts / 2)
        limit(host, "BAT1", at_s, 99)
        yield host
    for at_s in (3, 6, 9):
        host, watts = drawn(f"the second taken out at {at_s} s")
        _battery(host, "BAT0", watts / 2, power_now=switched(round(watts * 0.5e6), round(watts * 1e6), at_s))
        _battery(host, "BAT1", watts / 2)
        limit(host, "BAT1", 0, at_s)
        yield host
    host, watts = drawn("2 that take turns at 5 s")
    _battery(host, "BAT0", watts, switched("Discharging", "Not charging", 5))
    _battery(host, "BAT1", watts, switched("Not charging", "Discharging", 5))
    yield host

    host, watts = drawn("power_now in mW, current and voltage right")
    _battery(host, "BAT0", watts, power_now=round(watts * 1e3), current_now=_current(watts))
    yield host
    host, watts = drawn("current_now in mA, power_now right")
    _battery(host, "BAT0", watts, current_now=_current(watts) // 1000)
    yield host
    host, watts = drawn("current_now in mA alone")
    _battery(host, "BAT0", watts, power_now=None, current_now=_current(watts) // 1000)
    yield host

    # drivers/usb/typec/ucsi/psy.c and tcpm: ucsi-source-psy-USBC000:001, type USB, online.
    host, watts = drawn("a USB-C charger that is not connected", "figure")
    _battery(host, "BAT0", watts)
    host.supply("ucsi-source-psy-USBC000:001", "USB", online=0, scope="System", usb_type="[C] PD PD_PPS")
    yield host
    host, watts = drawn("a USB-C charger that is connected", "unknown")
    _battery(host, "BAT0", watts)
    host.supply("ucsi-source-psy-USBC000:001", "USB", online=1, scope="System", usb_type="C [PD] PD_PPS")
    host.chip(0, "ucsi_source_psy_USBC000:001", {"in0_input": 20000, "curr1_input": 3000})
    yield host
    host, watts = drawn("a mouse, a keyboard and a pen next to it", "figure")
    _battery(host, "BAT0", watts)
    for name in ("hidpp_battery_0", "hid-0018:2D1F:4971.0001-battery", "wacom_battery_2"):
        _battery(host, name, 0.3, scope="Device")
    yield host
    host, watts = drawn("a desktop's UPS over USB alone", "unknown")
    _battery(host, "hid-0003:051D:0002.0001-battery", 140.0, manufacturer="APC", model_name="Back-UPS ES 700")
    yield host
    host, watts = drawn("a removed battery next to it", "figure")
    _battery(host, "BAT0", watts)
    _battery(host, "BAT1", 5.0, "Unknown", present=0)
    yield host
