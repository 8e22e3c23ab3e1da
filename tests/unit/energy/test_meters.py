# SPDX-License-Identifier: Apache-2.0
"""Meters on drawn sysfs trees and by programs: figures in windows, failures, suspends, layouts and named domains."""

from __future__ import annotations

import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from powerprof.energy.choice import open_meters
from powerprof.energy.layouts import rapl_scope
from powerprof.energy.meter_set import MeterSet
from powerprof.energy.meters import ipmi
from powerprof.energy.meters.ipmi import choose_sensors, find_server_watts, parse_sensors
from powerprof.energy.meters.perf_power import OpenCounter, PerfPowerMeter, list_events, open_perf_power
from powerprof.energy.meters.rapl import Zone, select_domains
from powerprof.energy.replay import replay
from powerprof.energy.request import NAMES
from powerprof.energy.total import EnergyResult, host_energy
from powerprof.measure import energy_series
from powerprof.measure.counters import CounterSample
from powerprof.measure.energy_series import EnergySeries, counter_energy
from powerprof.model.records import EnergyReading
from powerprof.report.document import View
from powerprof.report.energy import document, meters_table
from powerprof.report.render.csv import render_csv
from powerprof.report.render.terminal import render_terminal
from powerprof.system.errors import CapabilityError, UsageError
from tests.programs.suspended import SuspendedClock
from tests.programs.waiting import wait_until
from tests.unit.energy.meter_trees import RANGE_UJ, Tree


def window(meters: MeterSet, change: object = None) -> list[EnergyReading]:
    """Sample, let `change` happen to the machine, sample: the readings in between."""
    meters.sample(100.0)
    if callable(change):
        change()
    meters.sample(102.0)
    return meters.readings(100.0, 102.0)


def joules(readings: list[EnergyReading]) -> dict[str, float | None]:
    return {r.domain: r.joules if r.joules is None else round(r.joules, 6) for r in readings}


def test_a_psys_that_sees_less_than_its_packages_is_not_used(tree: Tree) -> None:
    tree.zone("intel-rapl:0", "package-0", 0)
    tree.zone("intel-rapl:1", "package-1", 0)
    tree.zone("intel-rapl:2", "psys", 0)

    def change() -> None:
        tree.count("intel-rapl:0", 3_000_000)
        tree.count("intel-rapl:1", 3_100_000)
        tree.count("intel-rapl:2", 4_000_000)

    with open_meters("rapl") as meters:
        readings = window(meters, change)
        assert any("does not contain them" in note for note in meters.notes)
    assert host_energy(readings).domains == ["package-0", "package-1"]
    assert host_energy(readings).joules == pytest.approx(6.1)


def test_nested_folders_of_sysfs_devices(tree: Tree) -> None:
    tree.zone("intel-rapl/intel-rapl:0", "package-0", 0)
    tree.zone("intel-rapl/intel-rapl:0/intel-rapl:0:0", "core", 0)

    def change() -> None:
        tree.count("intel-rapl/intel-rapl:0", 1_000_000)
        tree.count("intel-rapl/intel-rapl:0/intel-rapl:0:0", 10_000)

    with open_meters("rapl") as meters:
        assert joules(window(meters, change)) == {"package-0": 1.0, "core": 0.01}


@pytest.fixture
def nobody() -> Iterator[Path]:
    """A folder that others may enter, and no root while the test runs."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        root = os.geteuid() == 0
        yield Path(folder)
        if root:
            os.seteuid(0)


def test_energy_uj_is_root_only(nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POWERPROF_SYSFS", str(nobody))
    Tree(nobody).zone("intel-rapl:0", "package-0", 0).chmod(0)
    if os.geteuid() == 0:
        os.seteuid(65534)
    with pytest.raises(CapabilityError, match=r"energy_uj cannot be read: only root may since Linux 5\.10") as caught:
        open_meters("rapl")
    assert "run as root" in str(caught.value.hint)
    with open_meters("auto") as meters:
        assert meters.names == ()
        assert "only root may" in meters.why


def chip(tree: Tree, number: int, name: str, watts: dict[str, float], *, average: bool = False) -> None:
    """A chip with power channels by label; a label that is a number is none."""
    folder = f"class/hwmon/hwmon{number}"
    tree.write(f"{folder}/name", name)
    for index, (label, value) in enumerate(watts.items(), 1):
        tree.write(f"{folder}/power{index}_{'average' if average else 'input'}", round(value * 1e6))
        if not label.isdigit():
            tree.write(f"{folder}/power{index}_label", label)


# Chip, watts of its channels, the domains of the sum and their watts; no domains: listed, and in no sum.
_CHIPS: list[tuple[str, dict[str, float], list[str], float | None]] = [
    ("power_meter", {"1": 250.0}, ["server"], 250.0),
    ("zenpower", {"SVI2_P_Core": 40.0, "SVI2_P_SoC": 15.0}, ["SVI2_P_Core", "SVI2_P_SoC"], 55.0),
    ("apm_xgene", {"CPU power": 30.0, "IO power": 12.0}, ["CPU power", "IO power"], 42.0),
    (
        "smpro_hwmon",
        {"CORE VRD": 60.0, "SOC VRD": 20.0, "DIMM VRD1": 8.0, "DIMM VRD2": 9.0, "RCA VRD": 3.0},
        ["Core VRD", "DIMM VRD1", "DIMM VRD2", "RCA VRD", "SoC VRD"],
        100.0,
    ),
    (
        "macsmc_hwmon",
        {"AC Input Power": 30.0, "3.8 V Rail Power": 4.0, "Total System Power": 12.0, "Heatpipe Power": 6.0},
        ["server"],
        12.0,
    ),
    ("macsmc_hwmon", {"AC Input Power": 30.0, "Heatpipe Power": 6.0}, ["server"], 30.0),
    ("pfe1100", {"pin": 200.0, "pout1": 180.0, "pout2": 5.0}, ["supply"], 200.0),
    ("cffps2", {"pin": 500.0, "pout1": 470.0}, ["supply"], 500.0),
    (
        "corsairpsu",
        {"power total": 120.0, "power +12v": 100.0, "power +5v": 12.0, "power +3.3v": 6.0},
        ["supply"],
        120.0,
    ),
    ("ibmpowernv", {"System": 700.0, "Processor 0": 200.0}, ["server"], 700.0),
    ("fam15h_power", {"1": 95.0}, ["package-0"], 95.0),
    ("amdgpu", {"PPT": 180.0}, [], None),
    ("ina226", {"1": 9.0}, [], None),
    ("tps53679", {"pin": 50.0, "pout1": 20.0}, [], None),
    ("soc_power", {"total power": 12.0, "VDD_CPU": 5.0}, [], None),
]


@pytest.mark.parametrize(("name", "watts", "domains", "expected"), _CHIPS, ids=lambda value: str(value)[:24])
def test_each_chip_has_its_scope(
    tree: Tree, name: str, watts: dict[str, float], domains: list[str], expected: float | None
) -> None:
    chip(tree, 0, name, watts, average=name == "power_meter")
    chip(tree, 1, "nvme", {"1": 3.0})
    chip(tree, 2, "BAT0", {"1": 7.0})
    with open_meters("hwmon") as meters:
        readings = window(meters)
    found = host_energy(readings)
    assert found.domains == domains
    assert found.watts == (None if expected is None else pytest.approx(expected))
    assert found.joules == (None if expected is None else pytest.approx(expected * 2.0))
    # Everything is listed, but for the battery, which has a meter of its own.
    assert len(readings) == len(watts) + 1
    assert sum(r.watts or 0.0 for r in readings) == pytest.approx(sum(watts.values()) + 3.0)
    if expected is None:
        with open_meters("auto") as meters:
            assert "hwmon" not in meters.names


@pytest.mark.parametrize(
    ("name", "watts", "dead"),
    [
        ("zenpower", {"SVI2_P_Core": 0.0, "SVI2_P_SoC": 15.0}, "SVI2_P_Core"),
        ("apm_xgene", {"CPU power": 0.0, "IO power": 12.0}, "CPU power"),
    ],
)
def test_cores_that_draw_nothing_leave_no_total(tree: Tree, name: str, watts: dict[str, float], dead: str) -> None:
    """zenpower shows 0 W of the cores of a CPU whose telemetry it does not know: the rest is no total."""
    chip(tree, 0, name, watts)
    with open_meters("hwmon") as meters:
        found = host_energy(window(meters))
    assert (found.watts, found.reason) == (None, f"{dead} by hwmon has no figure")


def test_unknown_chips_are_named_in_the_notes(tree: Tree) -> None:
    chip(tree, 0, "power_meter", {"1": 250.0}, average=True)
    chip(tree, 1, "ina226", {"1": 9.0})
    with open_meters("auto") as meters:
        readings = window(meters)
        assert "hwmon: ina226 has an unknown domain: listed, but not summed" in meters.notes
    assert host_energy(readings).watts == pytest.approx(250.0)


def test_a_charging_battery_is_refused(tree: Tree) -> None:
    supply(tree, "BAT0", "Battery", status="Charging", power_now=30_000_000)
    with pytest.raises(CapabilityError, match="not discharging"):
        open_meters("battery")


def test_no_meter_at_all(tree: Tree) -> None:
    with open_meters("auto") as meters:
        assert meters.names == ()
        assert meters.max_interval_s is None
        assert meters.readings(0.0, 1.0) == []
        assert meters.why.startswith("no meter on this host: rapl: no RAPL energy counters")


@pytest.mark.parametrize("name", NAMES)
def test_an_absent_meter_by_name_is_a_missing_capability(tree: Tree, name: str) -> None:
    with pytest.raises(CapabilityError) as caught:
        open_meters(name)
    assert caught.value.message.startswith(f"{name}: ")
    assert caught.value.hint


@pytest.mark.parametrize("choice", ["rapol", "", ",", "auto,rapl", "none,rapl"])
def test_unknown_choices_name_the_known_ones(choice: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_meters(choice)
    assert "rapl, perf_power, turbostat" in str(caught.value.hint)


_ZONES = [
    ("package-0", None, 5),
    ("package-1", None, 7),
    ("core", 0, 2),
    ("core", 1, 3),
    ("dram", 0, 1),
    ("dram", 1, 1),
    ("uncore", 0, 1),
]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(len(_ZONES))), numbers=st.permutations("0123456789abcdef"), mmio=st.booleans())
def test_order_and_numbering_of_zones_have_no_effect(order: list[int], numbers: list[str], mmio: bool) -> None:
    ids: dict[int, str] = {0: f"intel-rapl:{numbers[0]}", 1: f"intel-rapl:{numbers[1]}"}
    for index, (_, parent, _) in enumerate(_ZONES):
        if parent is not None:
            ids[index] = f"{ids[parent]}:{numbers[index]}"
    zones = [Zone(ids[i], _ZONES[i][0], None if _ZONES[i][1] is None else ids[_ZONES[i][1]], RANGE_UJ) for i in order]
    if mmio:
        zones.insert(0, Zone("intel-rapl-mmio:0", "package-0", None, RANGE_UJ))
    domains, _ = select_domains(zones)
    watts = {ids[i]: float(_ZONES[i][2]) for i in range(len(_ZONES))}
    readings = [
        EnergyReading(
            source="rapl",
            domain=d.label,
            kind="measured",
            joules=watts[d.zone.id],
            watts=watts[d.zone.id],
            contained_in=d.inside,
            scope=rapl_scope(d.zone.name),
        )
        for d in domains
    ]
    found = host_energy(readings)
    assert found.joules == 14.0
    assert found.domains == ["package-0", "package-0/dram", "package-1", "package-1/dram"]


ZONE = "intel-rapl:0"


@pytest.fixture
def package(tree: Tree) -> Tree:
    tree.zone(ZONE, "package-0", 5_000_000_000)
    return tree


def sample_counter(meters: MeterSet, tree: Tree, *samples: tuple[float, int]) -> None:
    for now_s, microjoules in samples:
        tree.count(ZONE, microjoules)
        meters.sample(now_s)


@pytest.mark.parametrize("after", [5_023_000_000, 500], ids=["counted on in s2idle", "began at 0 after S3"])
def test_energy_during_a_suspend_is_not_counted(package: Tree, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    clock = SuspendedClock(monkeypatch)
    with open_meters("rapl") as meters:
        sample_counter(meters, package, (100.0, 5_000_000_000), (104.0, 5_012_000_000))
        clock.sleep(7200.0)
        sample_counter(meters, package, (105.0, after), (110.0, after + 15_000_000))
        reading = meters.readings(100.0, 110.0)[0]
        # 3 W before and after; the second between two samples, and whatever the counter did, stand for nothing.
        assert reading.watts == pytest.approx(3.0)
        assert reading.joules == pytest.approx(30.0)
        assert any("1.0 s around a suspend are left out" in note for note in meters.notes)
        sample_counter(meters, package, (120.0, after + 45_000_000))
        assert meters.readings(110.0, 120.0)[0].joules == pytest.approx(30.0)
        assert not meters.notes


def test_a_suspend_between_two_samples_gives_no_figure(package: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SuspendedClock(monkeypatch)
    with open_meters("rapl") as meters:
        sample_counter(meters, package, (100.0, 5_000_000_000))
        clock.sleep(60.0)
        sample_counter(meters, package, (110.0, 5_042_000_000))
        reading = meters.readings(100.0, 110.0)[0]
        assert (reading.domain, reading.joules, reading.watts) == ("package-0", None, None)
        assert any("was suspended" in note and "no figure" in note for note in meters.notes)


def test_hours_of_samples_are_not_kept(package: Tree) -> None:
    with open_meters("rapl") as meters:
        for minute in range(6 * 60):
            sample_counter(meters, package, (60.0 * minute, 5_000_000_000 + 180_000_000 * minute))
            if minute:
                assert meters.readings(60.0 * (minute - 1), 60.0 * minute)[0].watts == pytest.approx(3.0)
        kept = meters._meters[0]._samples[0]  # type: ignore[attr-defined]
        assert len(kept) <= 62 + energy_series._HISTORY


def test_a_battery_without_a_current_has_its_true_reason(tree: Tree) -> None:
    supply(tree, "BAT0", "Battery", status="Discharging", present=1, voltage_now=11_140_000, charge_now=3_850_000)
    with pytest.raises(CapabilityError) as caught:
        open_meters("battery")
    assert caught.value.message == "battery: BAT0 has neither power_now nor current_now"


def test_the_user_may_name_the_domains_of_the_machine(tree: Tree) -> None:
    for number, watts in enumerate((200.0, 150.0)):
        chip(tree, number, "power_meter", {"1": watts}, average=True)

    def total_of(choice: str) -> float | None:
        with open_meters(choice) as meters:
            meters.sample(100.0)
            meters.sample(102.0)
            return host_energy(meters.readings(100.0, 102.0)).watts

    assert total_of("auto") is None
    assert total_of("hwmon") is None
    assert total_of("hwmon:hwmon1/server") == pytest.approx(150.0)
    assert total_of("hwmon:hwmon0/server+hwmon1/server") == pytest.approx(350.0)
    with pytest.raises(CapabilityError, match="it has no domain 'server'") as caught:
        open_meters("hwmon:server")
    assert caught.value.hint == "it has hwmon0/server, hwmon1/server"
    for choice in ("hwmon:", "auto:server", "none:x", "hwmon:a,hwmon:b"):
        with pytest.raises(UsageError):
            open_meters(choice)


def test_the_first_line_gives_the_reason_and_the_remedy(tree: Tree) -> None:
    for number, watts in enumerate((200.0, 150.0)):
        chip(tree, number, "power_meter", {"1": watts}, average=True)
    with open_meters("auto") as meters:
        meters.sample(100.0)
        meters.sample(102.0)
        readings = meters.readings(100.0, 102.0)
        notes = [f"energy source: {meters.why}", *meters.notes]
    result = EnergyResult(window_s=2.0, meters=readings, total=host_energy(readings), notes=notes)
    report = document(result, View())
    answer = " ".join(" ".join(render_terminal(report)).split())
    assert answer.startswith("The total is unknown over 2.0 s. No total: 2 meters each measure a whole machine.")
    assert "--meter hwmon:DOMAIN+DOMAIN" in answer
    assert "no total:" not in answer
    rows = [line.split(",") for line in render_csv(report).splitlines()]
    assert [row[-3] for row in rows[1:]] == ["no", "no"]
    assert [row[-1] for row in rows] == ["warning", "No total: 2 meters each measure a whole machine.", ""]
    total = msgspec.to_builtins(result)["total"]
    assert (total["joules"], total["watts"]) == (None, None)
    assert total["reason"] == "2 meters each measure a whole machine"


def test_a_note_names_the_counted_one_of_two_server_meters(tree: Tree) -> None:
    chip(tree, 0, "power_meter", {"1": 200.0}, average=True)
    for number in (1, 2):
        chip(tree, number, "cffps2", {"pin": 100.0, "pout1": 92.0})
    with open_meters("hwmon") as meters:
        readings = window(meters)
        note = next(note for note in meters.notes if "both measure this server" in note)
    assert note.startswith("server 200.0 W and hwmon1/supply + hwmon2/supply 200.0 W")
    assert note.endswith("server counts, never both")
    assert host_energy(readings).domains == ["server"]


def test_domains_outside_of_sums_are_marked(tree: Tree) -> None:
    chip(tree, 0, "amdgpu", {"PPT": 80.0})
    chip(tree, 1, "power_meter", {"1": 20.0}, average=True)
    with open_meters("hwmon") as meters:
        readings = window(meters)
        # A card may draw more than the board's meter shows: it says nothing of where the card is fed from.
        assert not any("cannot lie inside" in note for note in meters.notes)
    card = next(r for r in readings if r.scope == "device")
    assert card.contained_in is None
    total = host_energy(readings)
    rows = meters_table(EnergyResult(window_s=2.0, meters=[card], total=total)).rows
    assert rows[0].words("inside").text == "not summed"


@pytest.mark.parametrize(
    ("text", "watts"),
    [
        ("    Instantaneous power reading:     214 Watts\n    Power reading state is:    activated\n", 214.0),
        ("    Instantaneous power reading:     214 Watts\n", 214.0),
        ("    Instantaneous power reading:     214 Watts\n    Power reading state is:    deactivated\n", None),
        ("    Instantaneous power reading:     0 Watts\n    Power reading state is:    activated\n", None),
        ("    Average power reading over sample period:  190 Watts\n", None),
        ("", None),
    ],
)
def test_a_controllers_power_counts_if_it_is_activated_and_above_0(text: str, watts: float | None) -> None:
    assert find_server_watts(text) == watts


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
        assert host_energy(window(meters)).watts == pytest.approx(8.0)
    with open_meters("battery") as meters:
        readings = window(meters, lambda: supply(tree, "AC", "Mains", online=1))
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
        assert host_energy(window(meters)).watts == pytest.approx(8.0)
    supply(tree, "other", kind, online=1, scope="System")
    if feeds:
        with pytest.raises(CapabilityError, match=r"the mains feed this machine too \(other\)"):
            open_meters("battery")
    else:
        with open_meters("battery") as meters:
            assert host_energy(window(meters)).watts == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("name", "maker", "model"),
    [
        ("BAT0", "American Power Conversion", "RS 900G"),
        ("BAT0", "CPS", "CP1500PFCLCD"),
        ("BAT0", "EATON", "5E1100i"),
        ("BAT0", "Tripp Lite", "SMART1500"),
        ("hid-0003:051D:0002.0001-battery", "", ""),
        ("wacom_battery_3", "", ""),
        ("ps-controller-battery-a0", "", ""),
        ("hid_ups", "", ""),
        ("ups", "", "Eaton 5E"),
        ("hidpp_1", "", "Back-UPS ES 700"),
        ("battery", "", "Smart-UPS"),
    ],
)
def test_a_ups_or_a_peripheral_is_no_battery_of_this_machine(tree: Tree, name: str, maker: str, model: str) -> None:
    values = {"power_now": 300_000_000, "manufacturer": maker, "model_name": model}
    supply(tree, name, "Battery", status="Discharging", **values)
    with pytest.raises(CapabilityError, match="battery: none"):
        open_meters("battery")


# Names of the zones 0, 1 … of one control type that count 318, 302, 306 and 310 J in 2 s, and the watts of the sum.
@pytest.mark.parametrize(
    ("names", "watts"),
    [
        (("psys",), 159.0),
        (("psys-%d",), 159.0),
        (("psys", "psys-1"), None),
        (("psys", "psys"), None),
        (("psys", "mmio"), None),
        (("package-0-die-0", "package-0-die-1"), 310.0),
        (("package-0-die-0", "package-0-die-1", "package-1-die-0", "package-1-die-1"), 618.0),
        (("package-0", "platform"), None),
        (("pkg-0", "socket1"), None),
        (("Package-0",), None),
        (("core",), None),
        (("dram",), None),
    ],
)
def test_zones_are_summed_by_known_names(tree: Tree, names: tuple[str, ...], watts: float | None) -> None:
    for number, name in enumerate(names):
        tree.zone(f"intel-rapl:{number}", name, 0)

    def change() -> None:
        for number, joules in zip(range(len(names)), (318, 302, 306, 310), strict=False):
            tree.count(f"intel-rapl:{number}", joules * 10**6)

    with open_meters("rapl") as meters:
        total = host_energy(window(meters, change)).watts
    assert total == (None if watts is None else pytest.approx(watts))


@pytest.mark.parametrize("control", ["arm-scmi", "dtpm", "intel-rapl-other"])
def test_limits_of_other_control_types_are_ignored(tree: Tree, control: str) -> None:
    tree.zone(f"{control}:0", "package-0", 0)
    with pytest.raises(CapabilityError, match="no RAPL energy counters"):
        open_meters("rapl")


WATTS = 50.0
FULL_WATTS = 700.0  # a step of 5 s is 3.5 kJ, which no package draws in a fifth of a second


def metered(
    joules_at: Callable[[float], float], start_s: float, length_s: float, step_s: float = 0.2, limit_watts: float = 1e3
) -> EnergySeries:
    """A window of a counter, sampled every `step_s`."""
    count = round(length_s / step_s)
    times = [start_s + number * step_s for number in range(count)] + [start_s + length_s]
    samples = [CounterSample(when, round(joules_at(when) * 1e6)) for when in times]
    return counter_energy(
        samples, start_s, start_s + length_s, joules_per_unit=1e-6, modulus=1 << 48, limit_watts=limit_watts
    )


@settings(max_examples=150, deadline=None)
@given(
    period_s=st.floats(1.0, 5.0),
    length_s=st.floats(2.0, 60.0),
    phase_s=st.floats(0.0, 5.0),
    watts=st.floats(WATTS, FULL_WATTS),
)
def test_a_slow_counter_is_within_its_interval_or_has_no_figure(
    period_s: float, length_s: float, phase_s: float, watts: float
) -> None:
    energy = metered(lambda t: watts * period_s * ((t - phase_s) // period_s), 100.0, length_s)
    if energy.joules is None or energy.joules == 0:
        assert length_s < 4 * period_s
        assert any("or more is needed" in note for note in energy.notes) or energy.joules == 0
        return
    assert energy.watts is not None
    assert energy.edge_joules >= watts * period_s * 0.99
    error = abs(energy.watts - watts) * length_s
    assert error <= energy.edge_joules
    assert any("is refreshed every" in note for note in energy.notes)


@pytest.mark.parametrize("step_s", [0.2, 1.0])
def test_a_counter_that_freezes_gives_no_figure(step_s: float) -> None:
    energy = metered(lambda t: WATTS * min(t, 105.0), 100.0, 10.0, step_s)
    assert energy.joules is None
    assert energy.notes[-1] == "counted for 5.0 s of the window and then stood still: no figure"


def test_a_tiny_counter_is_not_taken_for_a_slow_one() -> None:
    energy = metered(lambda t: 0.001 * (t // 0.7), 100.0, 10.0)
    assert energy.joules == pytest.approx(0.014, abs=0.0011)
    assert not any("refreshed" in note for note in energy.notes)


def measured_by(
    tree: Tree, name: str, change: Callable[[], object], length_s: float = 2.0
) -> tuple[list[EnergyReading], str]:
    with open_meters(name) as meters:
        meters.sample(100.0)
        change()
        meters.sample(100.0 + length_s)
        readings = meters.readings(100.0, 100.0 + length_s)
        return readings, "\n".join(meters.notes)


def test_a_package_that_appears_makes_the_sum_unknown(tree: Tree) -> None:
    tree.zone("intel-rapl:0", "package-0", 0)

    def change() -> None:
        tree.count("intel-rapl:0", 100_000_000)
        tree.zone("intel-rapl:1", "package-1", 0)

    readings, notes = measured_by(tree, "rapl", change)
    assert "rapl: package-1 appeared after measuring began: no figure" in notes
    assert host_energy(readings).joules is None
    assert host_energy(readings).domains == ["package-0", "package-1"]


def test_events_of_the_power_pmu(tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    for name, text in (
        ("energy-pkg", "event=0x02"),
        ("energy-pkg.scale", "2.3283064365386962890625e-10"),
        ("energy-pkg.unit", "Joules"),
        ("energy-cores", "event=0x01"),
        ("energy-cores.scale", "1e-9"),
        ("energy-cores.unit", "Joules"),
        ("other", "event=0x09"),
        ("energy-odd", "event=0x07"),
    ):
        (events / name).write_text(text + "\n")
    (tmp_path / "type").write_text("9\n")
    (tmp_path / "cpumask").write_text("0,28-29\n")
    kind, found, cpus = list_events(tmp_path)
    assert kind == 9
    assert cpus == [0, 28, 29]
    assert [(e.name, e.config) for e in found] == [("energy-cores", 1), ("energy-pkg", 2)]
    assert found[1].joules_per_unit == pytest.approx(2**-32)


@pytest.mark.parametrize(
    ("flags", "zone", "is_refused"),
    [("msr hypervisor", "", True), ("msr hypervisor", "intel-rapl:0", False), ("msr", "", False)],
)
def test_a_guest_without_the_registers_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, zone: str, is_refused: bool
) -> None:
    """A guest's kernel logs a warning with a stack for each read of a register that it lacks."""
    (tmp_path / "bus/event_source/devices/power/events").mkdir(parents=True)
    (tmp_path / "class/powercap" / zone).mkdir(parents=True)
    (tmp_path / "cpuinfo").write_text(f"processor: 0\nflags: {flags}\n")
    monkeypatch.setenv("POWERPROF_SYSFS", str(tmp_path))
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path))
    with pytest.raises(CapabilityError) as caught:
        open_perf_power()
    assert ("logs a warning" in caught.value.message) == is_refused


def test_perf_counters_are_scaled_and_an_offline_cpu_is_marked() -> None:
    read_pkg, write_pkg = os.pipe()
    read_core, write_core = os.pipe()
    os.write(write_pkg, struct.pack("=QQ", 1 << 32, 4 << 32))
    os.write(write_core, struct.pack("=Q", 1 << 32))
    os.close(write_core)  # the next read is empty, as perf's is when the CPU has gone
    meter = PerfPowerMeter(
        [
            OpenCounter(read_pkg, "package-0", "package", None, 2**-32),
            OpenCounter(read_core, "core", "core", "package-0", 2**-32),
        ],
        [],
    )
    meter.sample(0.0)
    assert meter.is_counting() is None
    meter.sample(1.0)
    assert meter.is_counting()
    package, core = meter.energies(0.0, 1.0)
    assert package.energy.joules == 3.0
    assert core.energy.joules is None
    assert core.inside == "package-0"
    meter.close()
    os.close(write_pkg)


def test_a_platform_of_several_sockets_may_draw_kilowatts() -> None:
    read, write = os.pipe()
    os.write(write, struct.pack("=QQ", 0, 1800 << 32))
    meter = PerfPowerMeter([OpenCounter(read, "psys", "psys", None, 2**-32)], [])
    meter.sample(0.0)
    meter.sample(1.0)
    assert meter.energies(0.0, 1.0)[0].energy.joules == 1800.0
    meter.close()
    os.close(write)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is searched for programs first, on a machine with a management controller."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setattr(ipmi, "DEVICES", (folder,))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def script(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)


TURBOSTAT = """#!/bin/sh
print() { printf 'Time_Of_Day_Seconds\\tPackage\\tCPU\\tCorWatt\\tPkgWatt\\n%s\\t-\\t-\\t1.0\\t20.0\\n' "$1"
printf '%s\\t0\\t0\\t1.0\\t20.0\\n' "$1"; }
case "$*" in *num_iterations*) print $(date +%s.%N); exit 0;; esac
while :; do sleep 0.2; print $(date +%s.%N); echo >> "$0.printed"; done
"""


def _until_printed(folder: Path, more: int) -> None:
    """Wait for so many intervals more, however slowly they come."""
    printed = folder / "turbostat.printed"
    printed.touch()
    due = printed.stat().st_size + more
    wait_until(lambda: printed.stat().st_size >= due, f"{more} intervals more")


def test_live_turbostat(program: Path) -> None:
    script(program, "turbostat", TURBOSTAT)
    with open_meters("turbostat") as meters:
        _until_printed(program, 1)
        meters.sample()
        start_s = time.monotonic()
        _until_printed(program, 4)
        end_s = time.monotonic()
        meters.sample()
        readings = {r.domain: r for r in meters.readings(start_s, end_s)}
        assert any("wakes every CPU" in note for note in meters.notes)
    assert readings["package-0"].watts == pytest.approx(20.0)
    assert readings["core"].watts == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("#!/bin/sh\necho 'turbostat: Failed to set rlimit' >&2\nexit 1\n", "Failed to set rlimit"),
        ("#!/bin/sh\nprintf 'CPU\\tPkgWatt\\n-\\t0.00\\n0\\t0.00\\n'\n", "shows no watts"),
        ("#!/bin/sh\necho hello\n", "no turbostat table"),
    ],
)
def test_a_turbostat_without_watts_is_refused(program: Path, text: str, reason: str) -> None:
    script(program, "turbostat", text)
    with pytest.raises(CapabilityError, match=reason):
        open_meters("turbostat")


def test_packages_of_equal_watts_in_every_table_have_no_total(tmp_path: Path) -> None:
    """A guest shows one socket per CPU, and turbostat the counter of the host's socket in each row."""
    tables = [
        "Time_Of_Day_Seconds\tPackage\tCPU\tPkgWatt\n"
        f"{1764000000 + n}.0\t-\t-\t{2 * watts:.2f}\n{1764000000 + n}.0\t0\t0\t{watts:.2f}\n"
        f"{1764000000 + n}.0\t1\t1\t{watts + apart:.2f}\n"
        for apart in (0.0, 0.07)
        for n, watts in enumerate((135.12, 134.71, 135.4, 134.02))
    ]
    for part, watts in ((tables[:4], None), (tables[4:], pytest.approx(269.5, rel=0.01))):
        path = tmp_path / "log.txt"
        path.write_text("".join(part))
        assert replay([path]).total.watts == watts


def test_live_ipmi(program: Path) -> None:
    script(program, "ipmitool", "#!/bin/sh\necho '    Instantaneous power reading:     220 Watts'\n")
    with open_meters("ipmi") as meters:
        assert meters.max_interval_s == 5.0
        meters.sample()
        start_s = time.monotonic()
        time.sleep(0.1)
        end_s = time.monotonic()
        meters.sample()
        readings = meters.readings(start_s, end_s)
    assert readings[0].domain == "server"
    assert readings[0].watts == pytest.approx(220.0)


# Lists of public reports, the right scope, and its sensors.
SENSORS = {
    "Dell R610": ("System Level     | 98h | ok  |  7.1 | 105 Watts", "server", ["System Level"]),
    "Dell": ("Current 2 | 6Bh | ok | 10.2 | 0 Amps\nPwr Consumption  | 77h | ok  |  7.1 | 98 Watts", "server",
             ["Pwr Consumption"]),
    "IBM": ("PS1 Power In     | 52h | ok  | 10.1 | 132 Watts\nPS2 Power In     | 53h | ok  | 10.2 | 160 Watts",
            "supply", ["PS1 Power In", "PS2 Power In"]),
    "Intel": ("PS1 Input Power  | 54h | ok  | 10.1 | 96 Watts\nPS2 Input Power  | 55h | ok  | 10.2 | 100 Watts",
              "supply", ["PS1 Input Power", "PS2 Input Power"]),
    "Huawei": ("Power            | 25h | ok  |  7.96 | 258 Watts\nPower1           | 21h | ok  | 10.96 | 126 Watts\n"
               "Power2           | 22h | ok  | 10.97 | 132 Watts", "server", ["Power"]),
    "MegaRAC": ("PMB1Power        | 21h | ok  | 10.1 | 60 Watts\nPMB2Power        | 22h | ok  | 10.2 | 0 Watts",
                "supply", ["PMB1Power", "PMB2Power"]),
    "two supplies": ("PS1_Power        | 52h | ok  | 10.1 | 110 Watts\nPS2_Power        | 53h | ok  | 10.2 | 90 Watts",
                     "supply", ["PS1_Power", "PS2_Power"]),
    "fans only": ("Fan1             | 30h | ok  |  7.1 | 6840 RPM", "server", []),
}  # fmt: skip


@pytest.mark.parametrize("title", SENSORS)
def test_sensors_of_a_controller_without_dcmi(title: str) -> None:
    text, scope, names = SENSORS[title]
    assert choose_sensors(text + "\n") == (scope, names, None)


def test_a_supply_without_a_reading_leaves_no_total() -> None:
    text = "PS1_Power | 52h | ok  | 10.1 | 110 Watts\nPS2_Power | 53h | ns  | 10.2 | No Reading\n"
    assert choose_sensors(text) == ("supply", ["PS1_Power"], "PS2_Power has no reading")
    assert parse_sensors("PS1_Power        | 110\nPS2_Power        | na\n") == {"PS1_Power": 110.0}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("#!/bin/sh\necho 'Could not open device' >&2; exit 1\n", "no management controller answers"),
        ("#!/bin/sh\necho 'Instantaneous power reading: 0 Watts'\n", "reports no power"),
    ],
)
def test_ipmi_that_does_not_answer(program: Path, text: str, reason: str) -> None:
    script(program, "ipmitool", text)
    with pytest.raises(CapabilityError, match=reason):
        open_meters("ipmi")
