# SPDX-License-Identifier: Apache-2.0
"""One host energy over all commands: whatever meters there are, in whatever order, whole or damaged."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerprof.attribution.blame import energy_split
from powerprof.energy.domains import (
    DomainEnergy,
    EnergyRequest,
    HostMeters,
    fill_containers,
    host_energy,
    host_meters,
    mean_host_energy,
    note_unmetered_windows,
    rapl_scope,
)
from powerprof.energy.meters import make_readings
from powerprof.energy.recordings import make_result
from powerprof.energy.windows import WindowEnergy
from powerprof.experiment import phases
from powerprof.experiment.metrics import Baseline, mean_baseline, read_figures
from powerprof.experiment.phases import split_phase_energy
from powerprof.measure.counters import CounterSample, PowerSample, counter_energy, power_energy
from powerprof.model.records import EnergyReading, IdleRun, ToolCost, Window
from powerprof.report import idle as idle_report
from tests.unit.experiment import builders

WINDOW_S = 2.0


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
        scope="rail" if domain == "VDD_CPU" else None,
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


def test_psys_and_its_packages_count_once() -> None:
    readings = [reading("rapl", "package-0", 2.0), reading("rapl", "package-1", 2.0), reading("rapl", "psys", 6.0)]
    assert set(by_every_command(readings).values()) == {6.0}


def test_a_psys_below_its_packages_is_not_the_host() -> None:
    # 180 W beside packages of 200 W.
    readings = [
        reading("rapl", "psys", 360.0),
        reading("rapl", "package-0", 200.0),
        reading("rapl", "package-1", 200.0),
    ]
    assert set(by_every_command(readings).values()) == {400.0}


def test_a_psys_without_figure_leaves_the_packages() -> None:
    readings = [reading("rapl", "psys", None), reading("rapl", "package-0", 30.0)]
    assert set(by_every_command(readings).values()) == {30.0}


def test_a_graphics_card_is_never_the_host() -> None:
    readings = [reading("hwmon", "device/amdgpu", 99.0), reading("rapl", "package-0", 30.0)]
    assert set(by_every_command(readings).values()) == {30.0}
    assert set(by_every_command(readings[:1]).values()) == {None}


def test_a_missing_package_voids_the_sum_and_a_dead_dram_does_not() -> None:
    dead_dram = [reading("rapl", "package-0", 30.0), reading("rapl", "package-0/dram", None)]
    assert set(by_every_command(dead_dram).values()) == {30.0}
    lost_dram = [reading("rapl", "package-0", 30.0), reading("rapl", "package-0/dram", None, dropped=2)]
    assert set(by_every_command(lost_dram).values()) == {None}
    dead_socket = [reading("rapl", "package-0", 30.0), reading("rapl", "package-1", None)]
    assert set(by_every_command(dead_socket).values()) == {None}


def test_a_wall_meter_of_another_machine_is_not_believed() -> None:
    readings = [reading("meter_log", "wall", 100.0), reading("rapl", "package-0", 400.0)]
    assert set(by_every_command(readings).values()) == {400.0}


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
        "1 window has no figure of wall by meter_log, the run's meter: their energy is unknown"
        " (wall by meter_log has no figure)"
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


RANGE = 65_532_610_988  # 15.3 µJ units: a package at 280 W wraps in four minutes
EVENTS = st.sampled_from(["count", "count", "count", "reset", "spike", "unreadable", "gap"])


@st.composite
def counters(draw: st.DrawFn) -> list[CounterSample]:
    """A counter from before a window of 10 s until after it, with everything that happens to counters."""
    now_s, value = draw(st.floats(-1.5, 0.0)), draw(st.integers(0, RANGE - 1))
    watts = draw(st.floats(1.0, 400.0))
    samples = [CounterSample(now_s, value)]
    while now_s < 10.0:
        event = draw(EVENTS)
        step_s = draw(st.floats(0.3, 2.0)) * (4 if event == "gap" else 1)
        now_s += step_s
        value = (value + round(watts * step_s * draw(st.floats(0.5, 1.5)) * 1e6)) % RANGE
        if event == "reset":
            value = draw(st.integers(0, 5_000_000))
        if event == "unreadable":
            samples.append(CounterSample(now_s, None, "unreadable"))
        else:
            samples.append(CounterSample(now_s, RANGE - 1 if event == "spike" else value))
    return samples


@st.composite
def wall_logs(draw: st.DrawFn) -> list[PowerSample]:
    watts = draw(st.floats(5.0, 800.0))
    odd = st.sampled_from([1.0, 1.0, 1.0, 1.0, 1000.0, -1.0])
    times = [t + draw(st.floats(0.0, 0.5)) for t in range(-1, 12)]
    return [
        PowerSample(t, watts * draw(odd) if draw(st.booleans()) else watts) for t in times if draw(st.integers(0, 9))
    ]


@settings(max_examples=150, deadline=None)
@given(
    packages=st.lists(counters(), min_size=1, max_size=2),
    dram=st.none() | counters(),
    psys=st.none() | counters(),
    wall=st.none() | wall_logs(),
    order=st.randoms(),
)
def test_all_commands_agree_on_damaged_meters_and_watts_stay_possible(
    packages: list[list[CounterSample]],
    dram: list[CounterSample] | None,
    psys: list[CounterSample] | None,
    wall: list[PowerSample] | None,
    order: random.Random,
) -> None:
    def count(domain: str, samples: list[CounterSample]) -> DomainEnergy:
        energy = counter_energy(samples, 0.0, 10.0, joules_per_unit=1e-6, modulus=RANGE, limit_watts=1000.0)
        return DomainEnergy(domain, rapl_scope(domain), energy)

    domains = [count(f"package-{n}", samples) for n, samples in enumerate(packages)]
    domains += [] if dram is None else [count("package-0/dram", dram)]
    domains += [] if psys is None else [count("psys", psys)]
    order.shuffle(domains)
    readings, notes = make_readings("rapl", domains, 0.0, 10.0)
    if wall:
        log = DomainEnergy("wall", "wall", power_energy(wall, 0.0, 10.0, 3.0))
        metered, said = make_readings("meter_log", [log], 0.0, 10.0)
        readings, notes = [*metered, *readings], [*notes, *said]
    found = by_every_command(readings, 10.0)
    for command, joules in found.items():
        assert joules == (None if found["energy"] is None else pytest.approx(found["energy"], rel=1e-9)), command
    for one in readings:
        limit = 1000.0 if one.source == "rapl" else 50_000.0
        assert one.watts is None or 0.0 <= one.watts <= limit * (1 + 1e-9)
        if one.dropped_samples_count:
            assert any(one.domain in note for note in notes), one
