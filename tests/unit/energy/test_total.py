# SPDX-License-Identifier: Apache-2.0
"""One host energy over all commands: sums, bounds, containment and the choice of meters, whole or damaged."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from powerprof.attribution.blame import energy_split
from powerprof.energy.energy import make_result
from powerprof.energy.layouts import rapl_scope
from powerprof.energy.mirrors import compare_counters
from powerprof.energy.request import EnergyRequest
from powerprof.energy.total import (
    EnergyResult,
    HostMeters,
    fill_containers,
    host_energy,
    host_meters,
    mean_host_energy,
    note_unmetered_windows,
)
from powerprof.energy.windows import WindowEnergy
from powerprof.experiment import phases
from powerprof.experiment.metrics import Baseline, mean_baseline, read_figures
from powerprof.experiment.phases import split_phase_energy
from powerprof.measure.counters import CounterSample
from powerprof.model.records import EnergyReading, IdleRun, Scope, ToolCost, Window
from powerprof.report import idle as idle_report
from powerprof.report.energy import answer_of
from tests.unit.experiment import builders

WINDOW_S = 2.0
_SCOPES: dict[str, Scope] = {
    "meter_log": "wall",
    "ipmi": "server",
    "host": "server",
    "battery": "battery",
    "model": "model",
}


def reading(
    source: str, domain: str, joules: float | None, dropped: int = 0, inside: str | None = None
) -> EnergyReading:
    return EnergyReading(
        source=source,
        domain=domain,
        kind="estimated" if source == "model" else "measured",
        joules=joules,
        watts=None if joules is None else joules / WINDOW_S,
        contained_in=inside,
        dropped_samples_count=dropped,
        scope=_SCOPES.get(source) or ("rail" if domain == "VDD_CPU" else rapl_scope(domain.rpartition("/")[2])),
    )


DOMAINS = [
    ("meter_log", "wall"),
    ("ipmi", "server"),
    ("battery", "BAT0"),
    ("rapl", "psys"),
    ("rapl", "package-0"),
    ("rapl", "package-1"),
    ("rapl", "package-0/dram"),
    ("rapl", "package-0/core"),
    ("perf_power", "package-0"),
    ("perf_power", "package-1"),
    ("turbostat", "package-0"),
    ("hwmon", "package-0"),
    ("hwmon", "VDD_CPU"),
    ("hwmon", "device/amdgpu"),
    ("model", "cpus"),
]
FIGURES = st.one_of(st.none(), st.floats(0.01, 1e4))
SOME = st.lists(
    st.builds(
        lambda where, joules, dropped: reading(*where, joules, dropped),
        st.sampled_from(DOMAINS),
        FIGURES,
        st.sampled_from([0, 0, 0, 3]),
    ),
    unique_by=lambda r: (r.source, r.domain),
    max_size=len(DOMAINS),
)


def window_of(readings: Sequence[EnergyReading], window_s: float = WINDOW_S) -> Window:
    return msgspec.structs.replace(builders.window(window_s=window_s, watts=None), energy=list(readings))


def by_every_command(readings: Sequence[EnergyReading], window_s: float = WINDOW_S) -> dict[str, float | None]:
    """The joules of one window as each command gives them."""
    window = window_of(readings, window_s)
    block = builders.block(0, "a", queries=1, one=window)
    block = msgspec.structs.replace(block, solution_s=window_s, solution_energy=list(window.energy))
    values = {figures.name: figures.values[0] for figures in read_figures([block], mean_baseline([window], [block]))}

    def metric(name: str) -> float | None:
        return values.get(name)

    phase = phases.combine_windows("baseline", [window])
    with WindowEnergy(EnergyRequest(source="none")) as energy:
        result = make_result(window, energy, "none", window_s)
        split = split_phase_energy(phase, energy, phases.find_run_meters([phase])).energy_split
    run = IdleRun(
        id=None,
        command="idle",
        started_at="",
        host={},
        tool=ToolCost(version="", cpu_s=None, wakeups_hz=None),
        phases=[phase],
    )
    watts = metric("watts")
    attributed = energy_split(window.energy, window_s, 10.0, 2, [])
    return {
        "energy": result.total.joules,
        "idle, table": idle_report.host_of(run, phase).joules,
        "idle, split": None if split is None else split.total_joules,
        "run and compare": metric("joules_per_query"),
        "run and compare, watts": None if watts is None else watts * window_s,
        "run and compare, work": metric("energy_to_solution_joules"),
        "attribute": None if attributed is None else attributed.total_joules,
    }


@settings(max_examples=300, deadline=None)
@given(readings=SOME, data=st.data())
def test_every_command_gives_one_host_energy(readings: list[EnergyReading], data: st.DataObject) -> None:
    found = by_every_command(readings)
    first = found["energy"]
    for command, joules in found.items():
        assert joules == (None if first is None else pytest.approx(first, rel=1e-12)), command
    shuffled = data.draw(st.permutations(readings))
    assert host_energy(shuffled) == host_energy(readings)
    assert by_every_command(shuffled)["idle, split"] == found["idle, split"]
    # Filling in what contains what changes nothing either.
    assert host_energy(fill_containers(readings)).joules == first or first is None


@settings(max_examples=300, deadline=None)
@given(readings=SOME)
def test_the_sum_counts_each_domain_of_one_source_once(readings: list[EnergyReading]) -> None:
    found = host_energy(readings)
    known = {(r.source, r.domain): r for r in readings}
    summed = [known[found.source or "", domain] for domain in found.domains if (found.source or "", domain) in known]
    assert len(summed) == len(found.domains) == len(set(found.domains))
    assert {r.kind for r in summed} <= {found.kind}
    assert not any(r.domain.startswith("device/") for r in summed)
    if found.joules is not None:
        assert found.joules == math.fsum(r.joules or 0.0 for r in summed)
        assert all(r.joules is not None for r in summed)
    if any(r.joules is not None and r.kind == "measured" and not r.domain.startswith("device/") for r in readings):
        assert found.kind != "estimated" or found.source == "model"


# Domain, joules and dropped samples of each reading, and the joules that every command gives.
P0, P1 = ("package-0", 200.0, 0), ("package-1", 180.0, 0)


@pytest.mark.parametrize(
    ("rows", "joules"),
    [
        ([P0, P1, ("psys", 410.0, 0)], 410.0),
        ([P0, P1, ("psys", 360.0, 0)], 380.0),
        ([P0, ("psys", None, 0)], 200.0),
        ([P0, ("device/amdgpu", 99.0, 0)], 200.0),
        ([("device/amdgpu", 99.0, 0)], None),
        ([P0, ("package-0/dram", None, 0)], 200.0),
        ([P0, ("package-0/dram", None, 2)], None),
        ([P0, ("package-1", None, 0)], None),
        ([P0, ("wall", 100.0, 0)], 200.0),
    ],
)
def test_one_host_energy_of_odd_sets(rows: list[tuple[str, float | None, int]], joules: float | None) -> None:
    sources = {"wall": "meter_log", "device/amdgpu": "hwmon"}
    readings = [reading(sources.get(domain, "rapl"), domain, *figures) for domain, *figures in rows]
    assert set(by_every_command(readings).values()) == {joules}


WALL, RAPL = HostMeters("meter_log", ("wall",), "measured"), HostMeters("rapl", ("package-0",), "measured")


def metered(wall: float | None, package: float | None = 100.0) -> list[EnergyReading]:
    return [reading("meter_log", "wall", wall), reading("rapl", "package-0", package)]


def test_a_window_without_the_runs_meter_is_marked_and_not_patched() -> None:
    windows = [metered(180.0), metered(None), metered(182.0)]
    meters = host_meters(windows)
    assert meters == WALL
    assert [host_energy(window, meters).joules for window in windows] == [180.0, None, 182.0]
    mean = mean_host_energy(windows, meters)
    assert (mean.joules, mean.watts, mean.source) == (None, 90.5, "meter_log")
    assert note_unmetered_windows(windows, meters) == [
        "the energy of 1 window is unknown: wall by meter_log has no figure"
    ]
    blocks = [builders.block(n, "a", queries=1, one=window_of(w)) for n, w in enumerate(windows)]
    values = {m.name: m for m in read_figures(blocks, Baseline(None, None, None))}
    assert values["watts"].values == [90.0, None, 91.0]
    assert {values["watts"].source, values["joules_per_query"].source} == {"meter_log"}


def test_a_meter_that_covers_few_windows_is_not_the_runs() -> None:
    windows = [metered(180.0), metered(None), metered(None), metered(None)]
    assert host_meters(windows) == RAPL
    assert mean_host_energy(windows, RAPL).joules == 400.0


def test_baseline_and_blocks_are_by_one_set_of_meters() -> None:
    # The log begins after the baseline: the rest cannot be net of it by another meter's figure.
    idle = [window_of(metered(None, 20.0))]
    blocks = [builders.block(n, "a", queries=1, one=window_of(metered(180.0))) for n in range(4)]
    baseline = mean_baseline(idle, blocks)
    assert (baseline.meters, baseline.watts) == (WALL, None)
    assert "joules_per_query_net" not in {m.name for m in read_figures(blocks, baseline)}


def test_the_estimate_replaces_only_a_run_without_any_figure() -> None:
    without = [reading("rapl", "package-0", None), reading("model", "cpus", 5.0)]
    assert host_meters([without, without]) == HostMeters("model", ("cpus",), "estimated")
    windows = [[reading("rapl", "package-0", 30.0)], without, [reading("rapl", "package-0", 30.0)]]
    meters = host_meters(windows)
    assert meters == RAPL
    assert host_energy(without, meters).joules is None
    assert [r.source for r in phases.combine_windows("x", [window_of(w) for w in windows]).energy] == ["rapl"]


def test_one_set_of_meters_holds_over_the_phases_of_an_idle_run() -> None:
    before = phases.combine_windows("baseline", [window_of(metered(120.0)) for _ in range(3)])
    after = phases.combine_windows("server", [window_of(metered(wall)) for wall in (None, 130.0, 134.0)])
    meters = phases.find_run_meters([before, after])
    (change,) = [d for d in phases.compare_phases(before, after, meters) if d.metric == "watts"]
    assert change.difference.mean == 66.0 - 60.0
    assert phases.note_unmetered([before, after], meters)


# Sums with intervals: two packages with one, one without, and a part that is in no sum. 4 s.


def bounded(
    domain: str, watts: float | None, low: float | None = None, high: float | None = None, **more: object
) -> EnergyReading:
    joules = None if watts is None else 4 * watts
    values = {"source": "rapl", "kind": "measured", "joules": joules, "watts": watts, "scope": "package", **more}
    return EnergyReading(domain=domain, low_watts=low, high_watts=high, **values)  # type: ignore[arg-type]


ODD = [
    bounded("package-0", 71.5, 64.25, 90.5),
    bounded("package-1", 38.25),
    bounded("package-2", 55.0, 50.5, 57.75),
    bounded("core", 44.0, 40.0, 49.0, scope="core", contained_in="package-0"),
]


def test_a_reading_without_an_interval_counts_with_its_watts_at_both_ends() -> None:
    total = host_energy(ODD)
    assert total.domains == ["package-0", "package-1", "package-2"]
    assert (total.joules, total.watts) == (pytest.approx(4 * 164.75), pytest.approx(164.75))
    assert (total.low_watts, total.high_watts) == (
        pytest.approx(64.25 + 38.25 + 50.5),
        pytest.approx(90.5 + 38.25 + 57.75),
    )
    assert host_energy([ODD[1]]).low_watts is None


watts = st.floats(1.0, 500.0)


@given(st.lists(st.tuples(watts, watts, watts, st.booleans()), min_size=1, max_size=6), st.floats(0.1, 9.0))
def test_a_sum_has_the_parts_of_its_readings_and_scales(
    rows: list[tuple[float, float, float, bool]], factor: float
) -> None:
    readings = [
        bounded(f"package-{n}", sorted(row[:3])[1], *((min(row[:3]), max(row[:3])) if row[3] else (None, None)))
        for n, row in enumerate(rows)
    ]
    total = host_energy(readings)
    middles = [sorted(row[:3])[1] for row in rows]
    assert (total.watts, total.joules) == (pytest.approx(sum(middles)), pytest.approx(4 * sum(middles)))
    if any(row[3] for row in rows):
        lows = [min(row[:3]) if row[3] else middle for row, middle in zip(rows, middles, strict=True)]
        highs = [max(row[:3]) if row[3] else middle for row, middle in zip(rows, middles, strict=True)]
        assert (total.low_watts, total.high_watts) == (pytest.approx(sum(lows)), pytest.approx(sum(highs)))
    else:
        assert (total.low_watts, total.high_watts) == (None, None)
    scaled = [
        replace(
            r,
            **{
                name: None if (v := getattr(r, name)) is None else v * factor
                for name in ("joules", "watts", "low_watts", "high_watts")
            },
        )
        for r in readings
    ]
    assert host_energy(scaled).watts == pytest.approx(factor * sum(middles))


@pytest.mark.parametrize("lost", ["package-0", "package-1", "package-2"])
def test_one_lost_package_leaves_no_sum(lost: str) -> None:
    readings = [replace(r, joules=None, watts=None, dropped_samples_count=3) if r.domain == lost else r for r in ODD]
    total = host_energy(readings)
    assert (total.joules, total.watts, total.low_watts, total.high_watts) == (None, None, None, None)
    assert total.reason == f"{lost} by rapl has no figure"


def test_packages_without_their_memory_are_no_total() -> None:
    memory = [bounded("dram-0", 9.0, scope="dram"), bounded("dram-1", None, scope="dram", dropped_samples_count=3)]
    total = host_energy([*ODD, *memory])
    assert (total.joules, total.watts, total.reason) == (None, None, "dram-1 by rapl has no figure")
    assert total.packages is not None
    assert (total.packages.joules, total.packages.watts) == (pytest.approx(4 * 164.75), pytest.approx(164.75))
    assert (total.packages.low_watts, total.packages.high_watts) == (pytest.approx(153.0), pytest.approx(186.5))
    result = EnergyResult(started_at="", energy_source=None, window_s=4.0, meters=[*ODD, *memory], total=total)
    assert answer_of(result) == (
        "The total is unknown over 4.0 s; without memory, package-0, package-1 and package-2 by rapl draw 165 W, "
        "between 153 and 186 W."
    )
    # A psys below the packages is refuted without their memory, too.
    low_psys = bounded("psys", 150.0, scope="psys")
    assert host_energy([*ODD, *memory, low_psys]).watts is None
    assert host_energy([*ODD, *memory, replace(low_psys, watts=170.0, joules=680.0)]).watts == 170.0
    lost = [replace(r, joules=None, watts=None) if r.domain == "package-1" else r for r in ODD]
    assert host_energy([*lost, *memory]).packages is None
    assert host_energy([*ODD, memory[0]]).packages is None


def test_the_mean_of_windows_has_the_means_of_its_bounds() -> None:
    windows = [
        [bounded("package-0", 71.5, 64.25, 90.5)],
        [bounded("package-0", 40.0, 39.0, 46.0)],
        [bounded("package-0", None)],
    ]
    meters = host_meters(windows)
    both, all_three = mean_host_energy(windows[:2], meters), mean_host_energy(windows, meters)
    assert (both.joules, both.watts) == (pytest.approx(4 * 111.5), pytest.approx(55.75))
    assert (both.low_watts, both.high_watts) == (pytest.approx(51.625), pytest.approx(68.25))
    # One window lacks the meter: the watts are those of the others, and the sum of joules is unknown.
    assert (all_three.joules, all_three.watts, all_three.reason) == (
        None,
        pytest.approx(55.75),
        "package-0 by rapl has no figure",
    )
    plain = mean_host_energy([*windows[:2], [bounded("package-0", 9.0)]], meters)
    assert (plain.low_watts, plain.high_watts) == (None, None)
    assert note_unmetered_windows(windows[:2], meters) == []
    reason = "package-0 by rapl has no figure"
    assert note_unmetered_windows(windows, meters) == [f"the energy of 1 window is unknown: {reason}"]
    assert note_unmetered_windows([*windows, windows[2]], meters) == [
        f"the energy of 2 of 4 windows is unknown: {reason}"
    ]


def at(scope: Scope, domain: str, watts: float, source: str = "rapl") -> EnergyReading:
    return bounded(domain, watts, scope=scope, source=source)


def test_each_part_is_inside_the_nearest_domain_around_it() -> None:
    readings = [
        at("core", "core", 30.0),
        at("dram", "dram", 9.0),
        at("package", "package-0", 50.0),
        at("psys", "psys", 70.0),
        at("rail", "VDD", 5.0, "hwmon"),
        at("server", "server", 99.0, "ipmi"),
        at("wall", "wall", 120.0, "meter_log"),
        at("device", "card", 40.0, "hwmon"),
    ]
    inside = {r.domain: r.contained_in for r in fill_containers(readings)}
    assert inside == {
        "wall": None,
        "server": "wall",
        "psys": "server",
        "package-0": "psys",
        "dram": "psys",
        "VDD": "psys",
        "core": "package-0",
        "card": None,
    }
    assert [r.domain for r in fill_containers(readings)][:3] == ["wall", "server", "psys"]
    assert host_energy(readings).domains == ["wall"]
    # A psys that draws less than the packages contains none of them.
    refuted = [replace(r, joules=40.0, watts=10.0) if r.domain == "psys" else r for r in readings]
    assert {r.domain: r.contained_in for r in fill_containers(refuted)}["package-0"] == "server"
    two = [*readings[:4], at("package", "package-1", 60.0)]
    assert {r.domain: r.contained_in for r in fill_containers(two)}["core"] is None


@pytest.mark.parametrize(
    ("outer", "inner", "chosen"),
    [
        (("server", 95.2), ("package", 100.0), "server"),
        (("server", 94.8), ("package", 100.0), "package"),
        (("psys", 98.2), ("package", 100.0), "psys"),
        (("psys", 97.8), ("package", 100.0), "package"),
        (("server", 75.2), ("supply", 100.0), "server"),
        (("server", 74.8), ("supply", 100.0), "supply"),
        (("wall", 95.2), ("server", 100.0), "wall"),
        (("wall", 94.8), ("server", 100.0), "server"),
        (("battery", 1.0), ("package", 100.0), "battery"),
    ],
)
def test_a_meter_below_its_content_is_refused_beyond_the_error(
    outer: tuple[Scope, float], inner: tuple[Scope, float], chosen: str
) -> None:
    readings = [
        at(scope, scope, power, f"{'rapl' if scope in ('psys', 'package') else 'hwmon'}")
        for scope, power in (outer, inner)
    ]
    assert host_energy(readings).domains == [chosen]


def test_the_meters_of_most_windows_represent_the_run() -> None:
    server, package = at("server", "server", 90.0, "ipmi"), at("package", "package-0", 50.0)
    lost = replace(server, joules=None, watts=None)
    assert host_meters([[server, package], [server, package], [lost, package]]) == HostMeters(
        "ipmi", ("server",), "measured"
    )
    assert host_meters([[server, package], [lost, package]]) == HostMeters("rapl", ("package-0",), "measured")
    both = [[server], [lost, package], [lost, lost]]
    assert host_meters(both) == HostMeters("ipmi", ("server",), "measured")
    assert str(HostMeters("rapl", ("package-0", "dram"), "measured")) == "package-0 + dram by rapl"


@pytest.mark.parametrize(
    ("late_ms", "start_uj", "verdict"),
    [
        (0.01, 0, "one"),
        (0.3, 0, "one"),
        (4.0, 0, "one"),
        (15.0, 0, "unclear"),
        (25.0, 0, "two"),
        (0.01, 5_000, "one"),
        (0.01, 3_000_000, "two"),
    ],
)
def test_counters_that_move_alike(late_ms: float, start_uj: int, verdict: str) -> None:
    """100 W for 10 s: two readings `late_ms` apart differ by a tenth of a millijoule per microsecond."""
    modulus = 1_200_000_000

    def series(offset_uj: int, late_s: float) -> list[CounterSample]:
        return [
            CounterSample(float(t), (500_000_000 + offset_uj + round(100e6 * (t + late_s))) % modulus)
            for t in range(11)
        ]

    first, second = series(0, 0.0), series(start_uj, late_ms * 1e-3)
    assert compare_counters(first, second, 1e-6, modulus, is_absolute=True) == verdict
    # A constant distance is no difference of two growths.
    assert compare_counters(first, second, 1e-6, modulus, is_absolute=False) == "one"
    assert compare_counters(first[:1], second[:1], 1e-6, modulus, is_absolute=True) == "two"


def test_one_counter_read_before_and_after_its_wrap_is_one() -> None:
    modulus = 1_000_000_000
    values = (999_000_000, 999_999_990, 999_000, 2_000_000)
    first = [CounterSample(float(t), value) for t, value in enumerate(values)]
    second = [CounterSample(float(t), (value + 20) % modulus) for t, value in enumerate(values)]
    assert compare_counters(first, second, 1e-6, modulus, is_absolute=True) == "one"
    assert compare_counters(second, first, 1e-6, modulus, is_absolute=True) == "one"


@pytest.mark.parametrize(
    "names", [("supply", "supply-2"), ("package-0", "core"), ("wall", "device/x"), ("other/a", "psys")]
)
def test_sums_select_by_scope_and_never_by_name(names: tuple[str, str]) -> None:
    supplies = [at("supply", name, watts, "hwmon") for name, watts in zip(names, (110.25, 95.5), strict=True)]
    assert host_energy(supplies).watts == pytest.approx(205.75)
    assert host_energy([replace(r, scope="device") for r in supplies]).watts is None
