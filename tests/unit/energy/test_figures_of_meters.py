# SPDX-License-Identifier: Apache-2.0
"""Figures of each meter, log, recording and sensor, computed by hand from odd inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from powerprof.energy.layout_flaws import find_flaws
from powerprof.energy.layouts import Topology
from powerprof.energy.meter_set import MeterSet
from powerprof.energy.meters import perf_power, rapl
from powerprof.energy.meters.battery import read_discharge_watts
from powerprof.energy.meters.host import choose_figures, open_host, parse_metrics
from powerprof.energy.meters.hwmon import open_hwmon
from powerprof.energy.meters.hwmon_roles import find_roles
from powerprof.energy.meters.meter import DomainEnergy
from powerprof.energy.meters.meter_log import MeterLogMeter, parse_meter_log
from powerprof.energy.meters.perf_power import OpenCounter, PerfPowerMeter
from powerprof.energy.meters.rapl import Domain, Zone, make_zone, open_rapl, zone_energies
from powerprof.energy.meters.turbostat import read_domain_intervals, sum_log_energies
from powerprof.energy.readings import make_readings
from powerprof.energy.reconcile import reconcile
from powerprof.energy.replay import MeterRecording, find_common_window, replay
from powerprof.energy.suspends import join_spans, subtract_gaps
from powerprof.measure.counters import CounterSample
from powerprof.measure.energy_series import EnergySeries
from powerprof.measure.turbostat import parse_turbostat
from powerprof.model.records import EnergyReading
from tests.unit.energy.meter_trees import Tree

# Readings of one meter in a window of 8 s.


def series(
    joules: float | None, edge: float = 0.0, start_s: float = 10.0, end_s: float = 18.0, **more: object
) -> EnergySeries:
    return EnergySeries(joules, start_s, end_s, edge_joules=edge, **more)  # type: ignore[arg-type]


def test_a_reading_has_the_watts_of_its_window_and_the_error_of_its_edges() -> None:
    energies = [
        DomainEnergy("package-0", "package", series(100.0, 12.0, dropped=3, notes=("a note",))),
        DomainEnergy("package-1", "package", series(6.0, 20.0)),
        DomainEnergy("core", "core", series(0.0), "package-0"),
        DomainEnergy("dram", "dram", series(None)),
        DomainEnergy("uncore", "core", series(30.0, 0.0, 11.0, 17.0), "package-0"),
    ]
    readings, notes = make_readings("rapl", energies, 10.0, 18.0)
    by_name = {r.domain: r for r in readings}
    first, second = by_name["package-0"], by_name["package-1"]
    assert (first.joules, first.watts, first.low_watts, first.high_watts) == (100.0, 12.5, 11.0, 14.0)
    assert (second.watts, second.low_watts, second.high_watts) == (0.75, 0.0, 3.25)
    assert (first.dropped_samples_count, first.scope, first.kind) == (3, "package", "measured")
    # A counter that reads 0 does not count, and an unknown one has no figure.
    for name in ("core", "dram"):
        assert [getattr(by_name[name], key) for key in ("joules", "watts", "low_watts", "high_watts")] == [None] * 4
    # 30 J over 6 of 8 s: the mean power fills the window.
    assert (by_name["uncore"].joules, by_name["uncore"].watts) == (40.0, 5.0)
    assert by_name["uncore"].contained_in == "package-0"
    assert notes == ["rapl: package-0 a note", "rapl: core is present but does not count (reads 0): no figure"]


@pytest.mark.parametrize(("part", "is_refused"), [(12.4, False), (12.6, True)])
def test_a_part_may_exceed_its_container_by_a_quarter(part: float, is_refused: bool) -> None:
    energies = [
        DomainEnergy("package-0", "package", series(80.0)),
        DomainEnergy("core", "core", series(8 * part), "package-0"),
        DomainEnergy("uncore", "core", series(8.0), "package-0"),
    ]
    package = make_readings("rapl", energies, 10.0, 18.0)[0][0]
    assert package.unsummed == ("core shows 12.6 W inside package-0 of 10.0 W" if is_refused else None)


def test_a_machine_draws_half_a_watt_at_least() -> None:
    for joules, flaw in ((3.9, "server shows 0.487 W, less than a machine draws"), (4.1, None)):
        (reading,), _ = make_readings("ipmi", [DomainEnergy("server", "server", series(joules))], 10.0, 18.0)
        assert reading.unsummed == flaw
    (share,), _ = make_readings("host", [DomainEnergy("share of host", "server", series(1.0))], 10.0, 18.0)
    assert share.unsummed is None


def test_gaps_are_subtracted_within_the_window_only() -> None:
    gaps = [(1.0, 5.0), (9.0, 12.0), (14.0, 15.5), (18.5, 30.0)]
    assert subtract_gaps(10.0, 18.0, gaps) == [(12.0, 14.0), (15.5, 18.0)]
    assert subtract_gaps(0.0, 40.0, gaps) == [(0.0, 1.0), (5.0, 9.0), (12.0, 14.0), (15.5, 18.5), (30.0, 40.0)]
    assert subtract_gaps(10.0, 18.0, [(17.0, 19.0)]) == [(10.0, 17.0)]


def test_the_awake_spans_fill_the_window_with_their_mean_power() -> None:
    whole = [DomainEnergy("package-0", "package", series(None)), DomainEnergy("dram", "dram", series(None))]

    def part(start_s: float, end_s: float, joules: float | None, edge: float, dropped: int) -> DomainEnergy:
        return DomainEnergy("package-0", "package", series(joules, edge, start_s, end_s, dropped=dropped))

    parts = [
        ((10.0, 12.0), [part(10.0, 12.0, 50.0, 1.0, 1)]),
        ((14.0, 15.0), [part(14.0, 15.0, None, 0.5, 2)]),
        ((15.0, 18.0), [part(15.0, 18.0, 90.0, 3.0, 4)]),
    ]
    package, dram = join_spans(whole, parts, 10.0, 18.0)
    assert package.energy.joules == pytest.approx(140.0 * 8 / 5)
    assert package.energy.edge_joules == pytest.approx(4.0 * 8 / 5)
    assert (package.energy.dropped, package.energy.start_s, package.energy.end_s) == (7, 10.0, 18.0)
    assert package.energy.notes == ("3.0 s around a suspend are left out: filled with the mean power",)
    assert dram.energy.joules is None
    short = join_spans(whole[:1], parts[:2], 10.0, 18.0)[0].energy
    assert (short.joules, short.dropped) == (None, 3)


class StillMeter:
    """A meter with a sampling interval."""

    def __init__(self, name: str, interval_s: float | None) -> None:
        self.name, self.max_interval_s = name, interval_s


def test_a_set_of_meters_is_sampled_as_often_as_the_fastest() -> None:
    meters = [StillMeter("rapl", 32.0), StillMeter("ipmi", 5.0), StillMeter("meter_log", None)]
    made = MeterSet(meters, "why")  # type: ignore[arg-type]
    assert (made.max_interval_s, made.names, made.quick) == (5.0, ("rapl", "ipmi", "meter_log"), False)
    assert MeterSet(meters[2:], "why").max_interval_s is None  # type: ignore[arg-type]
    assert MeterSet(meters[:1], "why").quick  # type: ignore[arg-type]


def metered(domain: str, watts: float, scope: str, source: str = "rapl", inside: str | None = None) -> EnergyReading:
    return EnergyReading(
        source=source,
        domain=domain,
        kind="measured",
        joules=2 * watts,
        watts=watts,
        scope=scope,
        contained_in=inside,  # type: ignore[arg-type]
    )


def test_the_watts_between_tiers() -> None:
    readings = [
        metered("wall", 120.5, "wall", "meter_log"),
        metered("psys", 81.25, "psys"),
        metered("package-0", 60.0, "package"),
    ]
    assert reconcile(readings) == [
        "psys (rapl) 81.2 W inside wall (meter_log) 120.5 W: 39.2 W outside",
        "package-0 (rapl) 60.0 W inside psys (rapl) 81.2 W: 21.2 W outside",
        "package-0 (rapl) 60.0 W inside wall (meter_log) 120.5 W: 60.5 W outside",
    ]
    near = [metered("wall", 57.5, "wall", "meter_log"), metered("package-0", 60.0, "package")]
    assert reconcile(near)[0].endswith("they differ by 2.5 W, within the meters' error")
    far = [metered("wall", 50.0, "wall", "meter_log"), metered("package-0", 60.0, "package")]
    assert reconcile(far)[0].endswith("they differ by 10.0 W, beyond the meters' error: not used")
    parts = [
        metered("package-0", 60.0, "package"),
        *(metered(n, 32.0, "core", inside="package-0") for n in ("core", "uncore")),
    ]
    assert reconcile(parts)[-1] == "rapl: core + uncore 64.0 W cannot lie inside package-0 60.0 W: one of them is wrong"
    assert not any("cannot lie" in line for line in reconcile([parts[0], *(replace(p, watts=31.0) for p in parts[1:])]))


# RAPL zones.


# The watts of constraint_0_max_power_uw and constraint_1_power_limit_uw, the stated and the largest ones.
@pytest.mark.parametrize(
    ("name", "limits", "stated", "limit_watts"),
    [
        ("package-0", (), None, 1000.0),
        ("package-0", (15, 64), 64, 288.0),
        ("package-0", (270, 4096), 270, 1000.0),
        ("package-0", (65, 4096), 65, 292.5),
        ("package-0", (0, 9), 9, 100.0),
        ("psys", (), None, 5000.0),
    ],
)
def test_the_largest_power_of_a_zone(
    name: str, limits: tuple[int, ...], stated: int | None, limit_watts: float
) -> None:
    leaves = zip(("constraint_0_max_power_uw", "constraint_1_power_limit_uw"), limits, strict=False)
    files = {"name": name, "energy_uj": "1", "max_energy_range_uj": "65532610987"}
    zone = make_zone("intel-rapl:0:1", files | {leaf: str(watts * 10**6) for leaf, watts in leaves})
    stated_uw = None if stated is None else stated * 10**6
    assert zone == Zone("intel-rapl:0:1", name, "intel-rapl:0", 65_532_610_987, stated_uw)
    assert zone.limit_watts == pytest.approx(limit_watts)
    most = limit_watts if name == "psys" else min(limit_watts, 600.0)
    assert (zone.modulus, zone.max_step_s) == (65_532_610_988, pytest.approx(65_532.610988 / most))
    assert Zone("intel-rapl:0", name, None, None).modulus is None


def test_the_smallest_range_limits_the_interval(tree: Tree) -> None:
    tree.zone("intel-rapl:0", "package-0", 5, 262_143_328_850)
    tree.zone("intel-rapl:0:0", "dram", 5, 8_000_000_000)
    meter = open_rapl()
    # 8 kJ at a kilowatt, halved: 4 s. Later the refresh of the counters decides.
    assert meter.max_interval_s == pytest.approx(4.0)
    meter.sample(1.0)
    assert meter.max_interval_s == pytest.approx(0.2)


def test_each_zone_counts_microjoules_in_its_own_range() -> None:
    package, core = (
        Zone("intel-rapl:0", "package-0", None, 99_999_999),
        Zone("intel-rapl:0:0", "core", "intel-rapl:0", 999_999_999),
    )
    domains = [Domain(package, "package-0", None, 200.0), Domain(core, "core", "package-0", 200.0, "a flaw")]
    samples = [
        [CounterSample(t, v) for t, v in ((0.0, 92_000_000), (0.1, 97_000_000), (0.2, 1_500_000))],
        [CounterSample(t, v) for t, v in ((0.0, 100), (0.1, 2_000_100), (0.2, 3_250_100))],
    ]
    energies = zone_energies(domains, samples, 0.0, 0.2)
    assert [(e.domain, e.scope, e.inside, e.flaw) for e in energies] == [
        ("package-0", "package", None, None),
        ("core", "core", "package-0", "a flaw"),
    ]
    assert [e.energy.joules for e in energies] == [pytest.approx(9.5), pytest.approx(3.25)]


def test_each_perf_counter_has_its_own_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """dram of some servers counts in other units than the package."""
    counts = {7: [1 << 32, 5 << 32], 8: [1000, 801_000]}
    monkeypatch.setattr(perf_power, "read_counter", lambda descriptor: counts[descriptor].pop(0))
    meter = PerfPowerMeter(
        [
            OpenCounter(7, "package-0", "package", None, 2.0**-32),
            OpenCounter(8, "dram", "dram", None, 1e-5, "package-0"),
        ],
        [],
    )
    meter.sample(0.0)
    meter.sample(1.0)
    assert [(e.domain, e.energy.joules) for e in meter.energies(0.0, 1.0)] == [
        ("package-0", 4.0),
        ("dram", pytest.approx(8.0)),
    ]


# Logs of programs.


AMD_LOG = """Time_Of_Day_Seconds\tPackage\tCore\tCPU\tCorWatt\tPkg_J\tRAM_J
1000.0\t-\t-\t-\t17.5\t130.0\t18.0
1000.0\t0\t0\t0\t4.5\t80.0\t11.0
1000.0\t0\t1\t1\t3.0
1000.0\t1\t0\t2\t6.25\t50.0\t7.0
1000.0\t1\t1\t3\t3.75
1002.0\t-\t-\t-\t17.5\t130.0\t18.0
1002.0\t0\t0\t0\t4.5\t80.0\t11.0
1002.0\t0\t1\t1\t3.0
1002.0\t1\t0\t2\t6.25\t50.0\t7.0
1002.0\t1\t1\t3\t3.75
"""


def test_the_cores_of_a_package_add_up_and_joules_are_divided_by_the_interval() -> None:
    log = parse_turbostat(AMD_LOG, "amd.txt")
    domains = {d.domain: d for d in read_domain_intervals(log, 900.0)}
    spans = {name: [(i.start_s, i.end_s, i.watts) for i in d.intervals] for name, d in domains.items()}
    assert spans == {
        "package-0": [(100.0, 102.0, 40.0)],
        "package-1": [(100.0, 102.0, 25.0)],
        "package-0/core": [(100.0, 102.0, 7.5)],
        "package-1/core": [(100.0, 102.0, 10.0)],
        "package-0/dram": [(100.0, 102.0, 5.5)],
        "package-1/dram": [(100.0, 102.0, 3.5)],
    }
    assert domains["package-1/core"].inside == "package-1" and domains["package-0/dram"].inside is None
    energies = {e.domain: e.energy.joules for e in sum_log_energies(log, 100.5, 101.5, 900.0)}
    assert energies == pytest.approx(
        {
            "package-0": 40.0,
            "package-1": 25.0,
            "package-0/core": 7.5,
            "package-1/core": 10.0,
            "package-0/dram": 5.5,
            "package-1/dram": 3.5,
        }
    )


@pytest.mark.parametrize(
    ("stamp", "time_s"),
    [
        ("1764230400", 1_764_230_400.0),
        ("1764230400250", 1_764_230_400.25),
        ("1764230400250000", 1_764_230_400.25),
        ("1764230400250000000", 1_764_230_400.25),
    ],
)
def test_epoch_times_of_every_unit(stamp: str, time_s: float) -> None:
    later = str(int(stamp) + int(stamp) // 10**6)
    log = parse_meter_log(f"time,watts\n{stamp},7\n{later},9\n", "log")
    assert log.samples[0].time_s == pytest.approx(time_s, abs=1e-3)


def test_named_columns_are_summed_in_watts_and_one_silence_is_a_gap() -> None:
    text = "time,psu1 (mW),psu2 (kW),psu3 (W)\n1764230400,1500,0.25,7\n1764230410,2500,-,9\n1764230420,3500,0.5,11\n"
    log = parse_meter_log(text, "log", column="psu1+psu2")
    assert [s.watts for s in log.samples] == [pytest.approx(251.5), pytest.approx(503.5)]
    assert "1 row has no reading: 10 s are a gap, bridged in a straight line" in log.notes


@pytest.mark.parametrize(("silent", "is_refused"), [(49, False), (51, True)])
def test_a_log_that_is_silent_for_more_than_half_has_no_mean(silent: int, is_refused: bool) -> None:
    text = f"time,watts\n1764230400,7\n1764230401,\n{1_764_230_401 + silent},9\n1764230501,9\n"
    if is_refused:
        with pytest.raises(Exception, match="no reading for 51 of 101 s"):
            parse_meter_log(text, "log")
    else:
        assert len(parse_meter_log(text, "log").samples) == 3


def test_a_live_log_is_read_on_the_clock_of_the_window(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("time,watts\n1764230400,10\n1764230410,30\n1764230420,30\n")
    meter = MeterLogMeter(log)
    meter._offset._noted = [(0.0, 1_764_230_300.0)]
    (wall,) = meter.energies(100.0, 120.0)
    assert wall.energy.joules == pytest.approx(10 * 20 + 10 * 30)


# Recordings.


def recording(start_s: float, end_s: float, has_epoch: bool = True) -> MeterRecording:
    return MeterRecording("rapl", "x", start_s, end_s, has_epoch, lambda a, b: [])


@pytest.mark.parametrize(
    ("spans", "common"),
    [
        ([(1.0, 9.0), (3.0, 12.0), (2.0, 8.0)], (3.0, 8.0)),
        ([(1.0, 9.0), (9.0, 12.0)], None),
        ([(1.0, 9.0)], (1.0, 9.0)),
        ([], None),
    ],
)
def test_the_time_that_all_recordings_cover(
    spans: list[tuple[float, float]], common: tuple[float, float] | None
) -> None:
    assert find_common_window([recording(*span) for span in spans]) == common
    if len(spans) > 1:
        assert (
            find_common_window([*(recording(*span) for span in spans), recording(0.0, 99.0, has_epoch=False)]) is None
        )


def test_a_log_without_times_has_watts_and_no_joules(tmp_path: Path) -> None:
    log = tmp_path / "turbostat.txt"
    log.write_text("Package\tCore\tCPU\tPkgWatt\n" + 3 * "-\t-\t-\t31.5\n0\t0\t0\t31.5\n")
    result = replay([log])
    assert [(r.domain, r.joules, r.watts) for r in result.meters] == [("package-0", None, pytest.approx(31.5))]
    assert (result.total.joules, result.total.watts, result.window_s) == (None, pytest.approx(31.5), None)


# Sensors.


def battery(tree: Tree, **files: object) -> Path:
    for name, value in {"type": "Battery", "status": "Discharging", "present": 1, **files}.items():
        tree.write(f"class/power_supply/BAT0/{name}", value)
    return tree.root / "class/power_supply/BAT0"


@pytest.mark.parametrize(
    ("files", "watts"),
    [
        ({"power_now": 12_340_000}, 12.34),
        ({"power_now": -12_340_000}, 12.34),
        ({"current_now": 1_250_000, "voltage_now": 11_400_000}, 14.25),
        ({"current_now": -1_250_000, "voltage_now": 11_400_000}, 14.25),
        ({"power_now": 0, "current_now": 1_250_000, "voltage_now": 11_400_000}, 14.25),
        ({"power_now": 20_000_000, "current_now": 1_250_000, "voltage_now": 11_400_000}, 20.0),
        ({"power_now": 8_000_000, "current_now": 1_250_000, "voltage_now": 11_400_000}, 8.0),
        ({"power_now": 29_000_000, "current_now": 1_250_000, "voltage_now": 11_400_000}, None),
        ({"power_now": 7_000_000, "current_now": 1_250_000, "voltage_now": 11_400_000}, None),
        ({"power_now": 90_000}, None),
        ({"power_now": 1_100_000_000}, None),
        ({"current_now": 1_250_000}, None),
        ({"power_now": 12_340_000, "status": "Charging"}, None),
    ],
)
def test_the_watts_of_a_battery(tree: Tree, files: dict[str, object], watts: float | None) -> None:
    folder = battery(tree, **files)
    assert read_discharge_watts(folder) == (None if watts is None else pytest.approx(watts))
    tree.write("class/power_supply/AC/type", "Mains")
    tree.write("class/power_supply/AC/online", 0)
    assert read_discharge_watts(folder) == (None if watts is None else pytest.approx(watts))
    tree.write("class/power_supply/AC/online", 1)
    assert read_discharge_watts(folder) is None


def chip(tree: Tree, number: int, name: str, **files: object) -> None:
    for file, value in {"name": name, **files}.items():
        tree.write(f"class/hwmon/hwmon{number}/{file}", value)


def measure_hwmon(tree: Tree, change: Callable[[], object], length_s: float = 2.0) -> dict[str, EnergySeries]:
    meter = open_hwmon()
    meter.sample(100.0)
    change()
    meter.sample(100.0 + length_s)
    return {e.domain: e.energy for e in meter.energies(100.0, 100.0 + length_s)}


def test_each_kind_of_channel_has_its_unit(tree: Tree) -> None:
    tree.write("firmware/devicetree/base/compatible", "nvidia,tegra234")
    chip(tree, 0, "power_meter", power1_average=210_000_000, power1_input=999_000_000)
    chip(
        tree,
        1,
        "ina3221",
        in1_label="VDD_IN",
        in1_input=5000,
        curr1_input=1400,
        in2_label="VDD_SOC",
        in2_input=4900,
        curr2_input=300,
    )
    chip(tree, 2, "amd_energy", energy1_label="Esocket0", energy1_input=7_000_000)
    energies = measure_hwmon(tree, lambda: tree.write("class/hwmon/hwmon2/energy1_input", 97_500_000))
    assert {name: series.watts for name, series in energies.items()} == pytest.approx(
        {"hwmon0/server": 210.0, "hwmon1/server": 7.0, "VDD_SOC": 1.47, "package-0": 45.25}
    )


def test_a_mean_over_seconds_is_uncertain_by_its_course(tree: Tree) -> None:
    chip(tree, 0, "power_meter", power1_average=210_000_000, power1_average_interval=4000)
    (energy,) = measure_hwmon(tree, lambda: tree.write("class/hwmon/hwmon0/power1_average", 250_000_000), 10.0).values()
    assert (energy.joules, energy.edge_joules) == (pytest.approx(2300.0), pytest.approx(40 * 4.0))
    chip(tree, 0, "power_meter", power1_average_interval=6000)
    (short,) = measure_hwmon(tree, lambda: None, 10.0).values()
    assert (short.joules, short.notes) == (None, ("is a mean over 6 s: a window of 12 s or more is needed",))
    chip(tree, 0, "power_meter", power1_average_interval=900)
    (quick,) = measure_hwmon(tree, lambda: None, 10.0).values()
    assert quick.edge_joules == 0.0 and quick.joules is not None


# Layouts.


def test_the_cores_of_two_sockets_are_in_no_single_one() -> None:
    one = find_roles("amd_energy", {"1": "Ecore000", "2": "Esocket0"})
    two = find_roles("amd_energy", {"1": "Ecore000", "2": "Esocket0", "3": "Esocket1"})
    assert (one["1"].domain, one["1"].scope, one["1"].inside) == ("core0", "core", "package-0")
    assert (two["1"].inside, two["2"].domain, two["3"].domain) == (None, "package-0", "package-1")


@pytest.mark.parametrize(
    ("names", "topology", "flaw"),
    [
        (["package-0", "package-1"], Topology({0: frozenset({0}), 1: frozenset({0})}), None),
        (["package-0"], Topology({0: frozenset({0}), 1: frozenset({0})}), "package-1 of 2 sockets has no counter here"),
        (["package-0", "package-1"], Topology({0: frozenset({0})}), "package-1 is not a socket of this host"),
        (["package-0-die-0"], Topology({0: frozenset({0, 1})}), "package-0 has 2 dies and counters of 1"),
        (["package-0-die-0", "package-0-die-1"], Topology({0: frozenset({0, 1})}), None),
        (
            ["package-0-die-0", "package-0-die-2"],
            Topology({0: frozenset({0, 1})}),
            "package-0 has 2 dies and counters of 2",
        ),
        (["package-1"], Topology(), "package-0 of 2 sockets has no counter here"),
    ],
)
def test_packages_and_dies_of_the_topology(names: list[str], topology: Topology, flaw: str | None) -> None:
    expected = {} if flaw is None else {"package": flaw}
    assert find_flaws("rapl", [(name, "package") for name in names], topology) == expected


@pytest.mark.parametrize(("drams", "is_whole"), [(2, True), (1, False), (3, False)])
def test_each_package_has_its_dram_without_a_topology_too(drams: int, is_whole: bool) -> None:
    domains = [
        ("package-0", "package"),
        ("package-1", "package"),
        *[(f"package-{n}/dram", "dram") for n in range(drams)],
    ]
    for topology in (Topology(), Topology({0: frozenset({0}), 1: frozenset({0})})):
        assert (find_flaws("rapl", domains, topology) == {}) is is_whole  # type: ignore[arg-type]


# A host's page.

PAGE = """kepler_node_cpu_joules_total{zone="psys"} %s
kepler_node_cpu_joules_total{zone="package-0"} %s
kepler_node_cpu_joules_total{zone="package-1"} %s
kepler_node_cpu_joules_total{zone="dram"} %s
kepler_node_cpu_joules_total{zone="core"} 3
"""


def page_energy(
    tmp_path: Path, before: tuple[float, ...], after: tuple[float, ...]
) -> tuple[float | None, tuple[str, ...]]:
    file = tmp_path / "page.txt"
    file.write_text(PAGE % before)
    meter = open_host(str(file))
    meter.sample(0.0)
    file.write_text(PAGE % after)
    meter.sample(10.0)
    (energy,) = meter.energies(0.0, 10.0)
    return energy.energy.joules, energy.energy.notes


@pytest.mark.parametrize(("platform", "joules"), [(950.0, 950.0), (890.0, 890.0), (870.0, 920.0), (600.0, 920.0)])
def test_a_platform_draws_no_less_than_its_packages(tmp_path: Path, platform: float, joules: float) -> None:
    """The packages draw 500 and 400 J in 10 s, their memory 20; the counters of one machine agree within 2 %."""
    start = (10_000.0, 4000.0, 3000.0, 70.0)
    found, notes = page_energy(tmp_path, start, (10_000.0 + platform, 4500.0, 3400.0, 90.0))
    assert found == pytest.approx(joules)
    assert (joules == 920.0) == any("its platform counter shows" in note for note in notes)


def test_the_packages_and_memory_of_a_page_add_up(tmp_path: Path) -> None:
    samples = parse_metrics("\n".join((PAGE % (1, 4000.0, 3000.5, 70.25)).splitlines()[1:]))
    figures = choose_figures(samples, None)
    assert (figures.domain, sum(figures.joules.values())) == ("host", pytest.approx(7070.75))
    vms = "".join(
        f'kepler_vm_cpu_joules_total{{vm_id="{n}",vm_name="v{n}",zone="package",state="{state}"}} {7 * n}\n'
        for n, state in ((1, "running"), (2, "terminated"))
    )
    assert list(choose_figures(parse_metrics(vms), None).joules.values()) == [7.0]
    kinds = (("measured", 55), ("estimated", 99))
    sums = "".join(f'powerprof_host_energy_joules_total{{kind="{kind}"}} {joules}\n' for kind, joules in kinds)
    assert list(choose_figures(parse_metrics(sums), None).joules.values()) == [55.0]


def test_a_platform_may_draw_half_more_than_all_its_packages() -> None:
    zones = [
        Zone("intel-rapl:0", "package-0", None, 10**9, 65_000_000),
        Zone("intel-rapl:1", "package-1", None, 10**9, 100_000_000),
        Zone("intel-rapl:2", "psys", None, 10**9),
    ]
    limits = {domain.label: domain.limit_watts for domain in rapl.select_domains(zones)[0]}
    assert limits == pytest.approx({"package-0": 292.5, "package-1": 450.0, "psys": 1.5 * 742.5 + 200})


def test_the_output_of_a_supply_is_inside_its_input() -> None:
    both, output = find_roles("cffps2", {"1": "pin", "2": "pout1"}), find_roles("cffps2", {"2": "pout1"})
    assert [(r.domain, r.scope, r.inside) for r in both.values()] == [
        ("supply", "supply", None),
        ("supply pout1", "rail", "supply"),
    ]
    assert [(r.domain, r.scope, r.inside) for r in output.values()] == [("supply output", "supply", None)]


@pytest.mark.parametrize(("whole", "domains"), [(60.9, ["package-0", "package-1"]), (55.0, ["packages"])])
def test_packages_count_if_they_add_up_to_the_system_row(whole: float, domains: list[str]) -> None:
    rows = f"-\t-\t-\t{whole}\n0\t0\t0\t30.0\n1\t0\t1\t30.0\n"
    log = parse_turbostat("Package\tCore\tCPU\tPkgWatt\n" + rows, "x")
    assert [d.domain for d in read_domain_intervals(log)] == domains
