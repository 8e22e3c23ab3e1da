# SPDX-License-Identifier: Apache-2.0
"""Kinds of host, each drawn as a sysfs tree or a listing: the right sum, or none and a note."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from powerprof.energy import rapl
from powerprof.energy.domains import host_energy, tier
from powerprof.energy.meters import MeterSet, open_meters
from powerprof.energy.program_meters import parse_ipmi
from powerprof.model.records import EnergyReading
from powerprof.report.energy import _meter_cells
from powerprof.system.errors import CapabilityError, DataError
from tests.unit.energy.meter_trees import Tree

Chip = tuple[str, dict[str, float]]


def draw_chips(tree: Tree, chips: list[Chip]) -> None:
    for number, (name, watts) in enumerate(chips):
        folder = f"class/hwmon/hwmon{number}"
        tree.write(f"{folder}/name", name)
        for index, (label, value) in enumerate(watts.items(), 1):
            kind = "average" if name == "power_meter" else "input"
            tree.write(f"{folder}/power{index}_{kind}", round(value * 1e6))
            if not label.isdigit():
                tree.write(f"{folder}/power{index}_label", label)


def measured(meters: MeterSet, change: Callable[[], None] | None = None) -> list[EnergyReading]:
    meters.sample(100.0)
    if change is not None:
        change()
    meters.sample(102.0)
    return meters.readings(100.0, 102.0)


_ALTRA = {"power1 CORE VRD": 80.0, "power2 SoC": 38.0, "power3 DIMM VRD1": 10.0, "power4 DIMM VRD2": 9.0, "5": 4.0}
_SUPPLY = {"pin": 100.0, "pout1": 92.0}

# Class of host, its chips, and the watts of the host's sum (None: none).
_HOSTS: list[tuple[str, list[Chip], float | None]] = [
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
    ("Ampere Altra", [("smpro_hwmon", _ALTRA)], 141.0),
    ("Ampere Altra of two sockets", [("smpro_hwmon", _ALTRA)] * 2, 282.0),
    ("Altra by an older name", [("smpro", _ALTRA)], 141.0),
    ("Altra and its cards", [("smpro_hwmon", _ALTRA), ("amdgpu", {"PPT": 50.0}), ("amdgpu", {"PPT": 50.0})], 141.0),
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


@pytest.mark.parametrize(("chips", "watts"), [host[1:] for host in _HOSTS], ids=[host[0] for host in _HOSTS])
def test_a_host_is_the_sum_of_its_known_parts(tree: Tree, chips: list[Chip], watts: float | None) -> None:
    draw_chips(tree, chips)
    with open_meters("hwmon") as meters:
        readings = measured(meters)
        notes = meters.notes()
    assert host_energy(readings).watts == (None if watts is None else pytest.approx(watts))
    assert not any("cannot lie inside" in note for note in notes)
    with open_meters("auto") as meters:
        # Chips of the host in no recognised layout are shown, without a total.
        is_shown = watts is not None or any(r.unsummed for r in readings)
        assert meters.names == (("hwmon",) if is_shown else ())
    # A class is a field: whatever the domains are called, the sum is the same.
    renamed = [r.__class__(**{**_fields(r), "domain": f"package-{n}"}) for n, r in enumerate(readings)]
    flat = [r for r in renamed if tier(r) not in ("rail", "core")] if watts is not None else renamed
    if any(tier(r) in ("server", "supply") for r in readings) or watts is None:
        assert host_energy(flat).watts == (None if watts is None else pytest.approx(watts))


def _fields(reading: EnergyReading) -> dict[str, object]:
    return {name: getattr(reading, name) for name in reading.__struct_fields__}


def test_a_note_names_the_counted_one_of_two_server_meters(tree: Tree) -> None:
    draw_chips(tree, [("power_meter", {"1": 200.0}), *[("cffps2", _SUPPLY)] * 2])
    with open_meters("hwmon") as meters:
        readings = measured(meters)
        note = next(note for note in meters.notes() if "both measure this server" in note)
    assert note.startswith("server 200.0 W and hwmon1/supply + hwmon2/supply 200.0 W")
    assert note.endswith("server counts, never both")
    assert host_energy(readings).domains == ["server"]


def test_a_supply_that_cannot_be_read_leaves_the_sum_unknown(tree: Tree) -> None:
    draw_chips(tree, [("cffps2", _SUPPLY)] * 2)
    tree.write("class/hwmon/hwmon1/power1_input", "no number")
    with open_meters("hwmon") as meters:
        assert host_energy(measured(meters)).watts is None


def test_domains_outside_of_sums_are_marked(tree: Tree) -> None:
    draw_chips(tree, [("amdgpu", {"PPT": 80.0}), ("power_meter", {"1": 20.0})])
    with open_meters("hwmon") as meters:
        readings = measured(meters)
        # A card may draw more than the board's meter shows: it says nothing of where the card is fed from.
        assert not any("cannot lie inside" in note for note in meters.notes())
    card = next(r for r in readings if r.scope == "device")
    assert card.contained_in is None
    assert _meter_cells(card)[-1] == "not summed"


@pytest.mark.parametrize(
    ("names", "watts"),
    [
        (("psys", "psys-1"), 310.0),
        (("psys", "psys-%d"), 310.0),
        (("psys", "psys"), 310.0),
        (("psys-0", "psys-1"), 310.0),
        (("psys", "mmio"), None),
        (("package-0-die-0", "package-0-die-1"), 310.0),
        (("package-0", "platform"), None),
    ],
)
def test_zones_of_later_packages(tree: Tree, names: tuple[str, str], watts: float | None) -> None:
    for number, name in enumerate(names):
        tree.zone(f"intel-rapl:{number}", name, 0)

    def change() -> None:
        tree.count("intel-rapl:0", 318_000_000)
        tree.count("intel-rapl:1", 302_000_000)

    with open_meters("rapl") as meters:
        total = host_energy(measured(meters, change)).watts
    assert total == (None if watts is None else pytest.approx(watts))


def test_two_dies_of_a_package_are_two_counters_of_perf(tree: Tree) -> None:
    for cpu, (package, die) in {0: (0, 0), 24: (0, 1), 48: (1, 0), 72: (1, 1)}.items():
        tree.write(f"devices/system/cpu/cpu{cpu}/topology/physical_package_id", package)
        tree.write(f"devices/system/cpu/cpu{cpu}/topology/die_id", die)
    assert list(rapl._package_names([0, 24, 48, 72]).values()) == [
        "package-0-die-0",
        "package-0-die-1",
        "package-1-die-0",
        "package-1-die-1",
    ]
    assert rapl._package_names([0, 48]) == {0: "package-0", 48: "package-1"}


# The lines of a listing, and the server's watts.
_LISTINGS: list[tuple[str, float | None]] = [
    ("CPU_Total_Power | 100 Watts | ok\nTotal_Power | 340 Watts | ok", 340.0),
    ("GPU Total Power | 800 Watts | ok\nSys_Power | 2100 Watts | ok", 2100.0),
    ("MEM_Total_Power | 60 Watts | ok\nPwr Consumption | 340 Watts | ok", 340.0),
    ("Fan Total Power | 30 Watts | ok", None),
    ("CPU Power Meter | 30 Watts | ok\nPower Meter | 210 Watts | ok", 210.0),
    ("System Power Budget | 900 Watts | ok\nSystem Level | 210 Watts | ok", 210.0),
    ("PSU1_PIN | 100 Watts | ok\nPSU2_PIN | 110 Watts | ok", 210.0),
    ("PSU1 Input Power | 100 Watts | ok\nGPU1_PS1 Input | 110 Watts | ok", 100.0),
    ("System Power | 150 Watts | ok\nTotal Power | 190 Watts | ok", 190.0),
    ("CPU1 Power | 60 Watts | ok\nSystem Power | 150 Watts | ok\nPSU1 Power | 190 Watts | ok", 150.0),
    ("POWER_USAGE | 180 Watts | ok\nPSU1_PIN | 104 Watts | ok\nPSU1_POUT | 90 Watts | ok", 180.0),
    ("PSU1_PIN | 700 Watts | nc\nPSU2_PIN | 110 Watts | ok", 810.0),
    ("PSU0_Pin | 100 Watts | ok\nPSU1_Pin | 0 Watts | ok\nFAN_Power | 20 Watts | ok", 100.0),
    ("PS1 Input Power | 0 Watts | ok\nPS2 Input Power | no reading | ns", None),
    ("Pwr Consumption | 980 Watts | cr", 980.0),
    ("Power Meter | 0 Watts | ok", None),
    ("Power Supply 1 | 55 Watts | ok\nPower Supply 2 | 60 Watts | ok", None),
    ("HSC_Input_Power | 90 Watts | ok\nP1_MEM_Power | 9 Watts | ok", None),
    ("Avg Power | 190 Watts | ok\nSys Power | 200 Watts | ok", 200.0),
    ("Instantaneous power reading: 0 Watts\nPower reading state is: activated", None),
    ("Instantaneous power reading: 214 Watts\nPower reading state is: activated", 214.0),
    ("Instantaneous power reading: 214 Watts\nPower reading state is: deactivated", None),
]


@pytest.mark.parametrize(("text", "watts"), _LISTINGS)
def test_only_a_sensor_of_the_whole_server_is_the_servers(text: str, watts: float | None) -> None:
    log = "".join(f"Timestamp | {time_s}\n{text}\n" for time_s in (1764000000, 1764000060))
    if watts is None:
        with pytest.raises(DataError, match=r"no power reading|no sensor of the whole server|so the total is unknown"):
            parse_ipmi(log, "ipmi.log")
    else:
        assert [sample.watts for sample in parse_ipmi(log, "ipmi.log").samples] == [watts, watts]


_DCMI = """
    Instantaneous power reading:                   {watts} Watts
    Minimum during sampling period:                  2 Watts
    IPMI timestamp:                           05/05/2024 13:06:{second:02d} UTC    Sampling period:  00000001 Seconds.
    Power reading state is:                   {state}

"""


def test_a_deactivated_reading_is_left_out() -> None:
    states = [(210, 10, "activated"), (999, 15, "deactivated"), (220, 20, "activated")]
    text = "".join(_DCMI.format(watts=watts, second=second, state=state) for watts, second, state in states)
    log = parse_ipmi(text, "dcmi.log")
    assert [sample.watts for sample in log.samples] == [210.0, 220.0]
    assert log.samples[1].time_s - log.samples[0].time_s == 10.0
    assert log.samples[0].time_s == 1714914370.0  # 2024-05-05 13:06:10 UTC
    assert "1 listings without a power reading were left out" in log.notes


def supply(tree: Tree, name: str, kind: str, **values: object) -> None:
    for key, value in {"type": kind, **values}.items():
        tree.write(f"class/power_supply/{name}/{key}", value)


def test_a_battery_next_to_online_mains_is_refused(tree: Tree) -> None:
    supply(tree, "BAT0", "Battery", status="Discharging", power_now=8_000_000)
    supply(tree, "AC", "Mains", online=1)
    with pytest.raises(CapabilityError, match=r"the mains feed this machine too \(AC\)"):
        open_meters("battery")
    supply(tree, "AC", "Mains", online=0)
    with open_meters("battery") as meters:
        assert host_energy(measured(meters)).watts == pytest.approx(8.0)
    with open_meters("battery") as meters:
        readings = measured(meters, lambda: supply(tree, "AC", "Mains", online=1))
    assert readings[0].joules is None


@pytest.mark.parametrize(
    ("kind", "feeds"),
    [
        ("Mains", True),
        ("USB", True),
        ("USB_C", True),
        ("USB_PD", True),
        ("Wireless", True),
        ("UPS", True),
        ("Battery", False),
    ],
)
def test_any_online_supply_refuses_the_battery(tree: Tree, kind: str, feeds: bool) -> None:
    supply(tree, "BAT0", "Battery", status="Discharging", power_now=8_000_000)
    supply(tree, "other", kind, online=1, scope="Device")  # a mouse's cradle
    with open_meters("battery") as meters:
        assert host_energy(measured(meters)).watts == pytest.approx(8.0)
    supply(tree, "other", kind, online=1, scope="System")
    if feeds:
        with pytest.raises(CapabilityError, match=r"the mains feed this machine too \(other\)"):
            open_meters("battery")
    else:
        with open_meters("battery") as meters:
            assert host_energy(measured(meters)).watts == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("maker", "model"),
    [
        ("American Power Conversion", "RS 900G"),
        ("CPS", "CP1500PFCLCD"),
        ("EATON", "5E1100i"),
        ("Tripp Lite", "SMART1500"),
    ],
)
def test_a_maker_of_ups_makes_no_battery_of_this_machine(tree: Tree, maker: str, model: str) -> None:
    values = {"manufacturer": maker, "model_name": model}
    supply(tree, "BAT0", "Battery", status="Discharging", power_now=300_000_000, **values)
    with pytest.raises(CapabilityError, match="battery: none"):
        open_meters("battery")


@pytest.mark.parametrize("name", ["hid-0003:051D:0002.0001-battery", "wacom_battery_3", "ps-controller-battery-a0"])
def test_a_battery_of_a_peripheral_is_ignored(tree: Tree, name: str) -> None:
    supply(tree, name, "Battery", status="Discharging", power_now=300_000_000)
    with pytest.raises(CapabilityError, match="battery: none"):
        open_meters("battery")


# Zones of one control type, their names, whether their range can be read, and the watts of 100 J, 102 J … in 2 s.
_ZONES: list[tuple[str, list[str], bool, float | None]] = [
    ("four dies", [f"package-{n // 2}-die-{n % 2}" for n in range(4)], True, 206.0),
    ("no wrap point", ["package-0"], False, None),
    ("renamed", ["pkg-0", "socket1"], True, None),
    ("in capitals", ["Package-0"], True, None),
    ("AMD's core alone", ["core"], True, None),
    ("dram alone", ["dram"], True, None),
]


@pytest.mark.parametrize(("names", "ranged", "watts"), [z[1:] for z in _ZONES], ids=[z[0] for z in _ZONES])
def test_zones_of_other_kernels(tree: Tree, names: list[str], ranged: bool, watts: float | None) -> None:
    def draw(energy_uj: int) -> None:
        for number, name in enumerate(names):
            counted = round(energy_uj * (1 + 0.02 * number))
            tree.zone(f"intel-rapl:{number}", name, counted, 262_143_328_850 if ranged else None)

    draw(0)
    with open_meters("rapl") as meters:
        total = host_energy(measured(meters, lambda: draw(100_000_000)))
    assert total.watts == (None if watts is None else pytest.approx(watts))


@pytest.mark.parametrize("control", ["arm-scmi", "dtpm", "intel-rapl-other"])
def test_limits_of_other_control_types_are_ignored(tree: Tree, control: str) -> None:
    tree.zone(f"{control}:0", "package-0", 0)
    with pytest.raises(CapabilityError, match="no RAPL energy counters"):
        open_meters("rapl")


@pytest.mark.parametrize(
    ("name", "model"), [("hid_ups", ""), ("ups", "Eaton 5E"), ("hidpp_1", "Back-UPS ES 700"), ("battery", "Smart-UPS")]
)
def test_a_ups_is_not_a_battery(tree: Tree, name: str, model: str) -> None:
    supply(tree, name, "Battery", status="Discharging", power_now=300_000_000, model_name=model)
    with pytest.raises(CapabilityError, match="battery: none"):
        open_meters("battery")
