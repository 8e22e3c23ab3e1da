# SPDX-License-Identifier: Apache-2.0
"""Meters on drawn sysfs trees: figures in windows, failures, and suspends."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from powerprof.energy.domains import host_energy
from powerprof.energy.meters import NAMES, MeterSet, open_meters, subtract_gaps
from powerprof.energy.rapl import Zone, select_domains
from powerprof.measure import counters
from powerprof.model.records import EnergyReading
from powerprof.system.errors import CapabilityError, UsageError
from tests.programs.suspended import SuspendedClock
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


def test_two_sockets_with_wrap(tree: Tree) -> None:
    tree.zone("intel-rapl:0", "package-0", RANGE_UJ - 1_000_000)
    tree.zone("intel-rapl:0:0", "core", 0)
    tree.zone("intel-rapl:0:1", "dram", 100)
    tree.zone("intel-rapl:1", "package-1", 5_000_000)
    tree.zone("intel-rapl:1:0", "core", 0)
    tree.zone("intel-rapl:1:1", "dram", 100)

    def change() -> None:
        tree.count("intel-rapl:0", 999_999)  # wraps: 1 J to the end, one unit over it, 999,999 µJ after it
        tree.count("intel-rapl:0:0", 500_000)
        tree.count("intel-rapl:0:1", 300_100)
        tree.count("intel-rapl:1", 8_000_000)
        tree.count("intel-rapl:1:0", 700_000)
        tree.count("intel-rapl:1:1", 400_100)

    with open_meters("rapl") as meters:
        readings = window(meters, change)
    assert joules(readings) == {
        "package-0": 2.0,
        "package-0/dram": 0.3,
        "package-1": 3.0,
        "package-1/dram": 0.4,
        "package-0/core": 0.5,
        "package-1/core": 0.7,
    }
    contained = {r.domain: r.contained_in for r in readings}
    assert contained["package-0/core"] == "package-0"
    assert contained["package-1/core"] == "package-1"
    assert contained["package-0/dram"] is None
    found = host_energy(readings)
    assert found.domains == ["package-0", "package-0/dram", "package-1", "package-1/dram"]
    assert found.joules == pytest.approx(5.7)


def test_psys_contains_all_and_is_the_total(tree: Tree) -> None:
    tree.zone("intel-rapl:0", "package-0", 0)
    tree.zone("intel-rapl:0:0", "uncore", 0)
    tree.zone("intel-rapl:1", "psys", 0)

    def change() -> None:
        tree.count("intel-rapl:0", 2_000_000)
        tree.count("intel-rapl:0:0", 250_000)
        tree.count("intel-rapl:1", 6_500_000)

    with open_meters("rapl") as meters:
        readings = window(meters, change)
        assert any("package-0 (rapl)" in n and "inside psys" in n and "W outside" in n for n in meters.notes())
    assert joules(readings) == {"psys": 6.5, "package-0": 2.0, "uncore": 0.25}
    assert {r.domain: r.contained_in for r in readings} == {"psys": None, "package-0": "psys", "uncore": "package-0"}
    assert host_energy(readings).domains == ["psys"]
    assert host_energy(readings).joules == pytest.approx(6.5)


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
        assert any("does not contain them" in note for note in meters.notes())
    assert host_energy(readings).domains == ["package-0", "package-1"]
    assert host_energy(readings).joules == pytest.approx(6.1)


def test_mmio_repeats_are_counted_once(tree: Tree) -> None:
    tree.zone("intel-rapl-mmio:0", "package-0", 0)
    tree.zone("intel-rapl:0", "package-0", 0)

    def change() -> None:
        tree.count("intel-rapl-mmio:0", 1_500_000)
        tree.count("intel-rapl:0", 1_500_000)

    with open_meters("rapl") as meters:
        readings = window(meters, change)
        assert "rapl: intel-rapl-mmio:0 (package-0) repeats intel-rapl:0 and is not counted" in meters.notes()
    assert joules(readings) == {"package-0": 1.5}


def test_amd_has_package_and_core(tree: Tree) -> None:
    # 15.3 µJ units: the counter wraps at 65,536 J, after 65 s at 1 kW.
    tree.zone("intel-rapl:0", "package-0", 65_532_610_987, 65_532_610_987)
    tree.zone("intel-rapl:0:0", "core", 7, 65_532_610_987)

    def change() -> None:
        tree.count("intel-rapl:0", 1_999_999)
        tree.count("intel-rapl:0:0", 40_007)

    with open_meters("rapl") as meters:
        assert meters.max_interval_s == pytest.approx(65_532.610987 / 1000 / 2)
        readings = window(meters, change)
    assert joules(readings) == {"package-0": 2.0, "core": 0.04}
    assert host_energy(readings).joules == pytest.approx(2.0)


def test_nested_folders_of_sysfs_devices(tree: Tree) -> None:
    tree.zone("intel-rapl/intel-rapl:0", "package-0", 0)
    tree.zone("intel-rapl/intel-rapl:0/intel-rapl:0:0", "core", 0)

    def change() -> None:
        tree.count("intel-rapl/intel-rapl:0", 1_000_000)
        tree.count("intel-rapl/intel-rapl:0/intel-rapl:0:0", 10_000)

    with open_meters("rapl") as meters:
        assert joules(window(meters, change)) == {"package-0": 1.0, "core": 0.01}


def test_an_unreadable_range_drops_the_samples_with_a_note(tree: Tree) -> None:
    tree.zone("intel-rapl:0", "package-0", 0, range_uj=None)
    with open_meters("rapl") as meters:
        readings = window(meters, lambda: tree.count("intel-rapl:0", 5_000_000))
        assert any("wrap point cannot be read" in note for note in meters.notes())
    assert readings[0].joules is None
    assert readings[0].dropped_samples_count == 2


def test_an_unplugged_package_makes_the_total_unknown(tree: Tree) -> None:
    tree.zone("intel-rapl:0", "package-0", 0)
    second = tree.zone("intel-rapl:1", "package-1", 0)

    def change() -> None:
        tree.count("intel-rapl:0", 1_000_000)
        second.unlink()

    with open_meters("rapl") as meters:
        readings = window(meters, change)
        assert any(note.startswith("rapl: package-1 went away") for note in meters.notes())
    assert joules(readings) == {"package-0": 1.0, "package-1": None}
    assert host_energy(readings).joules is None


def test_a_frozen_counter_is_not_zero_watts(tree: Tree) -> None:
    tree.zone("intel-rapl:0", "package-0", 240_422_366_267)
    with open_meters("auto") as meters:
        readings = window(meters)
        assert any("does not count (reads 0)" in note for note in meters.notes())
    assert readings[0].joules is None
    assert readings[0].watts is None
    assert host_energy(readings).joules is None


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


def volts_and_amperes(tree: Tree, rails: dict[str, tuple[int, int]]) -> None:
    tree.write("class/hwmon/hwmon0/name", "ina3221")
    tree.write("firmware/devicetree/base/compatible", "nvidia,p3767-0003\0nvidia,tegra234")
    for index, (label, (millivolts, milliamperes)) in enumerate(rails.items(), 1):
        tree.write(f"class/hwmon/hwmon0/in{index}_label", label)
        tree.write(f"class/hwmon/hwmon0/in{index}_input", millivolts)
        tree.write(f"class/hwmon/hwmon0/curr{index}_input", milliamperes)


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


def test_two_power_supplies_feed_one_server(tree: Tree) -> None:
    for number in (0, 1):
        chip(tree, number, "cffps1", {"pin": 150.0 + number, "pout1": 140.0})
    with open_meters("hwmon") as meters:
        readings = window(meters)
    assert host_energy(readings).domains == ["hwmon0/supply", "hwmon1/supply"]
    assert host_energy(readings).watts == pytest.approx(301.0)
    assert {r.contained_in for r in readings if "pout1" in r.domain} == {"hwmon0/supply", "hwmon1/supply"}


def test_a_jetson_by_its_volts_and_amperes(tree: Tree) -> None:
    volts_and_amperes(tree, {"VDD_IN": (5000, 2400), "VDD_CPU_GPU_CV": (5000, 800), "VDD_SOC": (5000, 600)})
    with open_meters("auto") as meters:
        assert meters.names == ("hwmon",)
        readings = window(meters)
    assert host_energy(readings).watts == pytest.approx(12.0)
    assert {r.domain: r.contained_in for r in readings} == {
        "server": None,
        "VDD_CPU_GPU_CV": "server",
        "VDD_SOC": "server",
    }


def test_unknown_chips_are_named_in_the_notes(tree: Tree) -> None:
    chip(tree, 0, "power_meter", {"1": 250.0}, average=True)
    chip(tree, 1, "ina226", {"1": 9.0})
    with open_meters("auto") as meters:
        readings = window(meters)
        assert "hwmon: ina226 has an unknown domain: listed, but not summed" in meters.notes()
    assert host_energy(readings).watts == pytest.approx(250.0)


@pytest.mark.parametrize(("sockets", "domains"), [(1, ["package-0"]), (2, ["package-0", "package-1"])])
def test_amd_energy_sums_cores_in_sockets(tree: Tree, sockets: int, domains: list[str]) -> None:
    labels = ["Ecore000", "Ecore001", *(f"Esocket{n}" for n in range(sockets))]
    tree.write("class/hwmon/hwmon0/name", "amd_energy")
    for index, label in enumerate(labels, 1):
        tree.write(f"class/hwmon/hwmon0/energy{index}_label", label)
        tree.write(f"class/hwmon/hwmon0/energy{index}_input", 0)

    def change() -> None:
        for index, value in enumerate([100_000, 200_000, 900_000, 700_000][: len(labels)], 1):
            tree.write(f"class/hwmon/hwmon0/energy{index}_input", value)

    with open_meters("hwmon") as meters:
        readings = window(meters, change)
    assert host_energy(readings).domains == domains
    assert host_energy(readings).joules == pytest.approx(0.9 if sockets == 1 else 1.6)


def battery(tree: Tree, name: str, status: str, **values: int) -> None:
    tree.write(f"class/power_supply/{name}/type", "Battery")
    tree.write(f"class/power_supply/{name}/status", status)
    for key, value in values.items():
        tree.write(f"class/power_supply/{name}/{key}", value)


def test_laptop_on_battery(tree: Tree) -> None:
    battery(tree, "BAT0", "Discharging", power_now=8_000_000)
    battery(tree, "BAT1", "Discharging", current_now=500_000, voltage_now=12_000_000)
    battery(tree, "mouse", "Discharging", power_now=1)
    tree.write("class/power_supply/mouse/scope", "Device")
    with open_meters("auto") as meters:
        assert meters.names == ("battery",)
        readings = window(meters)
    assert {r.domain: r.watts for r in readings} == {"BAT0": pytest.approx(8.0), "BAT1": pytest.approx(6.0)}
    assert host_energy(readings).watts == pytest.approx(14.0)


def test_mains_plugged_in_while_measuring_is_a_dropped_sample(tree: Tree) -> None:
    battery(tree, "BAT0", "Discharging", power_now=8_000_000)
    with open_meters("battery") as meters:
        readings = window(meters, lambda: battery(tree, "BAT0", "Charging", power_now=30_000_000))
    assert readings[0].joules is None
    assert readings[0].dropped_samples_count == 1


def test_a_charging_battery_is_refused(tree: Tree) -> None:
    battery(tree, "BAT0", "Charging", power_now=30_000_000)
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


def test_the_window_without_its_gaps() -> None:
    assert subtract_gaps(0.0, 10.0, []) == [(0.0, 10.0)]
    assert subtract_gaps(0.0, 10.0, [(-5.0, 0.0), (2.0, 3.0), (6.0, 7.0), (10.0, 11.0)]) == [
        (0.0, 2.0),
        (3.0, 6.0),
        (7.0, 10.0),
    ]
    assert subtract_gaps(0.0, 10.0, [(-1.0, 1.0), (9.0, 12.0)]) == [(1.0, 9.0)]
    assert subtract_gaps(0.0, 10.0, [(0.0, 10.0)]) == []


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
        assert any("1.0 s around a suspend are left out" in note for note in meters.notes())
        sample_counter(meters, package, (120.0, after + 45_000_000))
        assert meters.readings(110.0, 120.0)[0].joules == pytest.approx(30.0)
        assert not meters.notes()


def test_a_suspend_between_two_samples_gives_no_figure(package: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SuspendedClock(monkeypatch)
    with open_meters("rapl") as meters:
        sample_counter(meters, package, (100.0, 5_000_000_000))
        clock.sleep(60.0)
        sample_counter(meters, package, (110.0, 5_042_000_000))
        reading = meters.readings(100.0, 110.0)[0]
        assert (reading.domain, reading.joules, reading.watts) == ("package-0", None, None)
        assert any("was suspended" in note and "no figure" in note for note in meters.notes())


def test_hours_of_samples_are_not_kept(package: Tree) -> None:
    with open_meters("rapl") as meters:
        for minute in range(6 * 60):
            sample_counter(meters, package, (60.0 * minute, 5_000_000_000 + 180_000_000 * minute))
            if minute:
                assert meters.readings(60.0 * (minute - 1), 60.0 * minute)[0].watts == pytest.approx(3.0)
        kept = meters._meters[0]._samples[0]  # type: ignore[attr-defined]
        assert len(kept) <= 62 + counters._HISTORY
