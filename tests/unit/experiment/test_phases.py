# SPDX-License-Identifier: Apache-2.0
"""Phases of idle runs: sums, changes, costs, the split of their energy, and the server's own idle exits."""

from __future__ import annotations

import random
import warnings
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from scipy import stats

from powerprof.energy.split import split_host_energy
from powerprof.energy.total import HostMeters
from powerprof.experiment import server_load
from powerprof.experiment.idle import IdlePlan, _Measured
from powerprof.experiment.phase_trace import ToolTally, _server_exits
from powerprof.experiment.phases import (
    combine_windows,
    compare_phases,
    difference,
    domain_watts,
    find_run_meters,
    host_watts,
    judge_cost,
    judge_costs,
    own_change,
    split_phase_energy,
    window_values,
)
from powerprof.experiment.server_cost import find_obstacle, server_cost
from powerprof.experiment.server_load import LoadMeter, ServerLoad
from powerprof.model.records import (
    Cause,
    Conservation,
    Delta,
    EnergyReading,
    Estimate,
    IdleRun,
    Phase,
    ProcessTime,
    ServerExits,
    ServerInfo,
    ToolCost,
    Window,
)
from powerprof.report.idle_answer import answer_of
from powerprof.statistics.counts import rate_interval
from powerprof.statistics.scatter import UNKNOWN_FACTORS
from tests.unit.experiment.builders import odd_window

CAUSE_SAMPLE = np.dtype([("exit_ns", "<u8"), *((name, "<u4") for name in ("next_tid", "next_tgid", "woken_tid"))])
TOOL = ToolCost(version="1", cpu_s=0.1, wakeups_hz=None)


def estimated(window: Window, watts: float, **more: object) -> Window:
    """Return the window with an estimate next to its meter."""
    length_s = window.window_s or 0.0
    reading = EnergyReading(
        source="model",
        domain="cpus",
        scope="model",
        kind="estimated",
        watts=watts,
        joules=watts * length_s,
        low_watts=0.7 * watts,
        high_watts=1.9 * watts,
        dropped_samples_count=3,
    )
    return replace(window, energy=[*window.energy, replace(reading, **more)])  # type: ignore[arg-type]


def conservation(exits: int, idle_percent: float | None) -> Conservation:
    return Conservation(
        idle_exits_count=exits,
        cpuidle_usage_delta_count=exits + 1,
        classified_count=exits - 2,
        unknown_count=1,
        lost_count=1,
        coverage_percent=99.0,
        idle_percent=idle_percent,
    )


def run(*phases: Phase, **more: object) -> IdleRun:
    return IdleRun(
        id=None,
        command="idle",
        started_at="",
        host={},
        tool=TOOL,
        phases=[*phases],
        **more,  # type: ignore[arg-type]
    )


def test_the_energy_of_a_phase_is_the_sum_of_its_windows() -> None:
    windows = [estimated(odd_window(number), 3.0 + number) for number in range(3)]
    found = {reading.domain: reading for reading in combine_windows("server", windows).energy}
    for place, domain in enumerate(("package-0", "core", "dram", "cpus")):
        each = [window.energy[place] for window in windows]
        assert found[domain].joules == pytest.approx(sum(reading.joules or 0 for reading in each))
        assert found[domain].watts == pytest.approx(fmean(reading.watts or 0 for reading in each))
    model = found["cpus"]
    assert (model.low_watts, model.high_watts) == pytest.approx((0.7 * 4.0, 1.9 * 4.0))
    assert model.dropped_samples_count == 9
    # A meter that failed once has no sum; an estimate that replaced it there is left out.
    lost = [replace(windows[0], energy=windows[0].energy[3:]), *(replace(w, energy=w.energy[:3]) for w in windows[1:])]
    after = {reading.domain: reading for reading in combine_windows("server", lost).energy}
    assert set(after) == {"package-0", "core", "dram"}
    assert (after["dram"].joules, after["dram"].watts) == (None, None)
    torn = estimated(odd_window(0), 3.0, joules=None, unsummed="moved")
    assert next(r for r in combine_windows("server", [torn]).energy if r.unsummed == "moved").joules is None


def test_wake_ups_that_no_window_counted_are_those_of_the_trace() -> None:
    windows = [replace(odd_window(number), wakeups_hz=None) for number in range(2)]
    found = combine_windows("server", windows, conservation=conservation(741, 60.0), traced_window_s=5.7)
    assert found.wakeups_hz == pytest.approx(741 / 5.7)
    assert "wakeups_of_traced_window" in {note.name for note in found.notes if not isinstance(note, str)}
    known = combine_windows("server", [odd_window()], conservation=conservation(741, 60.0), traced_window_s=5.7)
    assert known.wakeups_hz == odd_window().wakeups_hz and known.traced_window_s == 5.7
    assert combine_windows("server", windows).wakeups_hz is None


def test_the_change_between_phases_is_that_of_their_windows() -> None:
    before = combine_windows("baseline", [odd_window(n) for n in range(3)])
    after = combine_windows("server", [odd_window(n, "b") for n in range(4)])
    meters = find_run_meters([before, after])
    deltas = {delta.metric: delta for delta in compare_phases(before, after, meters)}
    hosts = [[sum((w.energy[p].watts or 0.0) for p in (0, 2)) for w in phase.windows] for phase in (before, after)]
    sides = {
        "c0_percent": [[w.c0_percent or 0.0 for w in phase.windows] for phase in (before, after)],
        "wakeups_hz": [[w.wakeups_hz or 0.0 for w in phase.windows] for phase in (before, after)],
        "residency_percent:C1": [
            [w.states[1].residency_percent or 0.0 for w in phase.windows] for phase in (before, after)
        ],
        "residency_percent:C6": [
            [w.states[2].residency_percent or 0.0 for w in phase.windows] for phase in (before, after)
        ],
        "watts": hosts,
        **{
            f"watts:rapl:{domain}": [[w.energy[place].watts or 0.0 for w in phase.windows] for phase in (before, after)]
            for place, domain in enumerate(("package-0", "core", "dram"))
        },
    }
    assert deltas.keys() == sides.keys()
    for name, (old, new) in sides.items():
        delta = deltas[name]
        assert (delta.from_phase, delta.to_phase) == ("baseline", "server")
        assert delta.difference == difference(old, new) and delta.difference.mean == pytest.approx(
            fmean(new) - fmean(old)
        )
    assert host_watts(before, meters) == pytest.approx(hosts[0])
    # One unknown window takes the figure away.
    torn = replace(after, windows=[replace(after.windows[0], c0_percent=None, states=[]), *after.windows[1:]])
    left = {delta.metric for delta in compare_phases(before, torn, meters)}
    assert sides.keys() - left == {"c0_percent", "residency_percent:C1", "residency_percent:C6"}
    assert window_values(torn.windows, "c0_percent") == [] != window_values(torn.windows, "wakeups_hz")
    unmetered = [replace(after.windows[0], energy=[]), *after.windows[1:]]
    assert domain_watts(unmetered, "rapl", "dram") == []
    assert host_watts(replace(after, windows=unmetered), meters)[0] is None
    assert host_watts(after, HostMeters("rapl", ("core",), "measured")) == pytest.approx(
        [w.energy[1].watts for w in after.windows]
    )


def phase(name: str, hz: float | None = None, low: float = 0.0, high: float = 0.0, **more: object) -> Phase:
    """A phase of two windows; with a rate, the server's idle exits were counted in it."""
    exits = None
    if hz is not None:
        exits = ServerExits(count=1, window_s=3.0, wakeups_hz=Estimate(mean=hz, low=low, high=high))
    return replace(combine_windows(name, [odd_window(0), odd_window(1)], server_exits=exits), **more)  # type: ignore[arg-type]


def cause(thread: str | None, hz: float, pid: int = 71) -> Cause:
    return Cause(mechanism="timer", name="f", process="p", pid=pid, thread=thread, wakeups_hz=hz, percent=1.0, count=3)


def test_silent_connections_add_the_difference_of_two_counts() -> None:
    causes = [cause("a", 1.5), cause("b", 2.0), cause("a", 1.1), cause(None, 9.0), cause("other", 30.0, 5)]
    server, clients = phase("server", 3.0, 2.0, 5.0, causes=causes), phase("clients", 7.0, 6.5, 9.0)
    record = run(phase("baseline"), server, clients, server=ServerInfo(version="x", private=True, pid=71))
    found = server_cost(record)
    assert found is not None and found.alone is not None and found.connected is not None and found.added is not None
    assert (found.alone.mean, found.connected.mean, found.added.mean) == (3.0, 7.0, 4.0)
    # 0.5 and 2.0 below, 2.0 and 1.0 above.
    assert (found.added.low, found.added.high) == pytest.approx((4 - 4.25**0.5, 4 + 5**0.5))
    assert found.thread == ("a", pytest.approx(2.6)) and found.busy_percent is None
    lone = server_cost(run(phase("clients", 7.0, 6.5, 9.0, causes=causes[1:2]), server=record.server))
    assert lone is not None and (lone.alone, lone.added, lone.thread) == (None, None, ("b", 2.0))
    assert server_cost(run(phase("baseline"), phase("server"))) is None


@pytest.mark.parametrize(("idle", "busy"), [(76.0, None), (74.0, 26.0), (None, None)])
def test_busy_cpus_hide_what_connections_add(idle: float | None, busy: float | None) -> None:
    server = phase("server", 3.0, 2.0, 5.0, conservation=conservation(9, 90.0))
    clients = phase("clients", 7.0, 6.5, 9.0, conservation=conservation(9, idle))
    found = server_cost(run(server, clients))
    assert found is not None and found.busy_percent == busy and (found.added is None) == (busy is not None)


def test_a_run_has_no_answer_on_busy_cpus_or_a_busy_server() -> None:
    calm = phase("baseline", c0_percent=89.9)
    assert find_obstacle(run(calm)) is None
    found = find_obstacle(run(phase("baseline", c0_percent=90.3), statements_hz=4.0))
    assert found is not None and (found.kind, found.value) == ("busy_before", 90.3)
    found = find_obstacle(run(calm, statements_hz=0.6))
    assert found is not None and (found.kind, found.value) == ("statements", 0.6)
    assert find_obstacle(run(calm, statements_hz=0.5)) is None
    # The quietest traced phase must be busy.
    busy, loud = (
        phase(name, 3.0, conservation=conservation(9, idle)) for name, idle in (("server", 8.0), ("clients", 2.0))
    )
    found = find_obstacle(run(calm, busy, loud))
    assert found is not None and (found.kind, found.value) == ("busy", pytest.approx(92.0))
    assert find_obstacle(run(calm, phase("server", 3.0, conservation=conservation(9, 12.0)), loud)) is None
    assert find_obstacle(run(calm, phase("server", c0_percent=99.0))) is None
    found = find_obstacle(run(phase("server", c0_percent=91.0), phase("clients", c0_percent=99.0)))
    assert found is not None and found.value == 91.0


def test_costs_are_judged_between_the_first_and_the_last_phase() -> None:
    def of(name: str, rates: list[float]) -> Phase:
        return combine_windows(name, [replace(odd_window(n), wakeups_hz=hz) for n, hz in enumerate(rates)])

    first, last = of("baseline", [40.0, 41.0, 40.5]), of("clients", [60.0, 61.0, 60.5])
    deltas = [
        Delta(metric=metric, from_phase=a, to_phase=b, difference=Estimate(mean=mean, low=low, high=9.0))
        for metric, a, b, mean, low in (
            ("wakeups_hz", "baseline", "server", 1.0, 1.0),
            ("wakeups_hz", "baseline", "clients", 20.0, 1.5),
            ("c0_percent", "clients", "baseline", 2.0, 1.0),
        )
    ]
    (found,) = judge_costs(run(first, last, deltas=deltas), first, last)
    assert (found.metric, found.difference.mean, found.finding) == ("wakeups_hz", 20.0, "costs")
    drifting = run(first, last, of("baseline-after", [60.0, 61.0]), deltas=deltas)
    assert judge_costs(drifting, first, last)[0].finding == "drift"
    # A record without windows has its summary.
    bare = [replace(each, windows=[]) for each in (first, last)]
    for low, finding in ((1.5, "costs"), (-0.5, "nothing"), (None, "single")):
        changed = replace(deltas[1], difference=Estimate(mean=20.0, low=low, high=9.0))
        assert judge_costs(run(*bare, deltas=[changed]), *bare)[0].finding == finding


def test_the_energy_of_a_phase_is_split_by_cpu_time_without_stolen_time() -> None:
    found = combine_windows("server", [odd_window(0), odd_window(2)])
    floor = combine_windows(
        "baseline", [replace(w, energy=[replace(r, watts=2.0, joules=2.0) for r in w.energy]) for w in found.windows]
    )
    rest_group = replace(found.windows[0].processes[0], name="rest", cpu_s=9.0)
    found = replace(found, windows=[replace(w, processes=[*w.processes, rest_group]) for w in found.windows])
    meters = find_run_meters([found])

    class Splitter:
        """The split of the energy of a window, without meters."""

        split = staticmethod(
            lambda whole, window_s, cpus, c0, consumers, **more: split_host_energy(
                whole, window_s, c0, cpus, consumers, **more
            )
        )

    split = split_phase_energy(found, Splitter(), meters, floor).energy_split  # type: ignore[arg-type]
    assert split is not None
    window_s = sum(w.window_s or 0.0 for w in found.windows)
    joules = sum((w.energy[p].joules or 0.0) for w in found.windows for p in (0, 2))
    used = {
        name: sum(p.cpu_s for w in found.windows for p in w.processes if p.name == name)
        for name in ("server", "client", "powerprof")
    }
    running = ((found.c0_percent or 0) - (found.steal_percent or 0)) / 100 * 3 * window_s
    times = {part.name: part.c0_s for part in split.parts}
    assert {name: times[name] for name in used} == pytest.approx(used)
    assert times["rest of the system"] == pytest.approx(running - sum(used.values()))
    assert times["stolen by other guests"] == pytest.approx((found.steal_percent or 0) / 100 * 3 * window_s)
    assert split.total_joules == pytest.approx(joules)
    assert split.idle_joules == pytest.approx(4.0 * window_s)  # 2 W of the package and of the memory
    assert split.idle_joules + sum(part.joules for part in split.parts) + split.residual_joules == pytest.approx(joules)
    # An estimated floor is no measured power, so there is none.
    model = combine_windows("baseline", [replace(w, energy=estimated(w, 3.0).energy[3:]) for w in floor.windows])
    none = split_phase_energy(found, Splitter(), None, model).energy_split  # type: ignore[arg-type]
    assert none is not None and none.idle_joules is None
    alone = split_phase_energy(found, Splitter(), meters).energy_split  # type: ignore[arg-type]
    assert alone is not None and alone.idle_joules is None


# The tool, the plan and the load of a given server.


def test_the_cost_of_powerprof_is_of_all_cpus_and_of_its_own_windows() -> None:
    tally = ToolTally()
    for number in range(2):
        tally.add(replace(odd_window(number), tool_cpu_s=0.031))
    quiet = tally.record()
    assert quiet.cpu_s == pytest.approx(0.062)
    assert quiet.cpu_percent == pytest.approx(100 * 0.062 / (2.3 + 2.7) / 3)
    assert (quiet.wakeups_hz, quiet.bpf_s, quiet.lost_count) == (None, None, None)
    tally.exits, tally.traced_s, tally.bpf_s, tally.lost = 21, 4.2, 0.013, 5
    traced = tally.record()
    assert (traced.wakeups_hz, traced.bpf_s, traced.lost_count) == (pytest.approx(5.0), 0.013, 5)
    assert ToolTally().record().cpu_percent is None


def test_the_plan_of_an_idle_run_counts_its_windows() -> None:
    plan = IdlePlan(clients=16, duration_s=3.0, repeat=5)
    # Three phases of five windows and two at the end; a trace of 3 s and two of 15 s; 15 s to start.
    assert (plan.phases_count, plan.last_repeat, plan.server_traced_s) == (3, 2, 15.0)
    assert plan.seconds == pytest.approx(17 * 3.0 + 3.0 + 2 * 15.0 + 15.0)
    alone = replace(plan, clients=0, trace=False)
    assert alone.seconds == pytest.approx((2 * 5 + 2) * 3.0 + 15.0)
    given = replace(plan, server_url="mysql://x", repeat=9)
    assert (given.phases_count, given.last_repeat, given.server_traced_s) == (2, 0, 16.0)
    assert given.seconds == pytest.approx(18 * 3.0 + 2 * 16.0 + 15.0)
    assert replace(plan, duration_s=20.0).server_traced_s == 20.0


def test_a_cut_window_counts_if_it_is_half_of_one() -> None:
    measured = _Measured("server")
    measured.add_partial(replace(odd_window(0), window_s=0.2), lambda window: window, 2.0)
    for length_s in (0.9, 1.1):
        measured.add_partial(replace(odd_window(1), window_s=length_s), lambda window: window, 2.0)
    assert [window.window_s for window in measured.windows] == [0.2, 1.1]
    mean = fmean([odd_window(0).wakeups_hz or 0, odd_window(1).wakeups_hz or 0])
    assert measured.format_so_far() == f"{mean:.1f} wake-ups/s so far"
    assert _Measured("server").format_so_far() == ""


@pytest.mark.parametrize(
    ("counts", "own", "rates"),
    [
        # A look sends 3 statements: 4 − 3 of others while the meter was opened.
        ([100, 104, 107, 107 + 3 + 12, 122 + 3], 3, [12 / 2.5, 12 / 4.5]),
        ([100, 103, 106, None, 140], 3, [None, None]),
    ],
)
def test_the_load_of_a_server_is_without_the_looks(
    monkeypatch: pytest.MonkeyPatch, counts: list[int | None], own: int, rates: list[float | None]
) -> None:
    left = iter(counts)
    monkeypatch.setattr(LoadMeter, "_read", lambda self: (next(left), 5))
    meter = LoadMeter(SimpleNamespace(pid=None))  # type: ignore[arg-type]
    assert meter._own_count == own
    found = []
    for seconds in (2.5, 2.0):
        meter.add(seconds)
        found.append(meter.statements_hz)
    assert found == (pytest.approx(rates) if None not in rates else rates)


def test_the_cpu_time_of_a_server_is_in_percent_of_one_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.15 s of CPU time and 40 statements, of which 3 are the look's, in 2.5 s."""
    readings, clock = iter([3_000_000_000, 3_150_000_000]), iter([10.0, 12.5])
    counts = iter([100, 103, 106, 146])
    monkeypatch.setattr(LoadMeter, "_read", lambda self: (next(counts), 7))
    monkeypatch.setattr(server_load, "family_cpu_ns", lambda pid: next(readings))
    monkeypatch.setattr(server_load, "wait_and_read", lambda parts, seconds: None)
    monkeypatch.setattr(server_load.time, "monotonic", lambda: next(clock))
    meter = LoadMeter(SimpleNamespace(pid=71, login=SimpleNamespace(family="mysql")))  # type: ignore[arg-type]
    load = meter._look()
    assert (load.statements_hz, load.clients_count, load.cpu_percent) == (37 / 2.5, 7, pytest.approx(6.0))


@pytest.mark.parametrize(("moved", "said"), [(7.0, "drift"), (6.0, "costs"), (-7.0, "drift"), (-6.0, "costs")])
def test_a_cost_is_three_times_the_change_of_the_baseline(moved: float, said: str) -> None:
    """20 wake-ups a second more: a third of them is 6.7."""
    spread = [0.1, -0.2, 0.2, -0.1, 0.15, -0.15]
    before, measured = ([level + each for each in spread] for level in (40.0, 60.0))
    assert judge_cost(before, measured, [40.0 + moved, 40.0 + moved]) == said


@pytest.mark.parametrize(
    ("load", "idle"),
    [
        (ServerLoad(0.5, 3, 1.0), True),
        (ServerLoad(0.6, 3, 0.1), False),
        (ServerLoad(0.1, 3, 1.1), False),
        (ServerLoad(None, None, None), True),
    ],
)
def test_a_server_is_idle_by_its_statements_and_its_cpu_time(load: ServerLoad, idle: bool) -> None:
    assert load.is_idle is idle


def wandering(generator: random.Random, count: int, step: float, noise: float = 1.5) -> list[float]:
    """Windows of a host that does nothing else than be itself: its figure walks by `step` a window."""
    level, found = 40.0, []
    for _ in range(count):
        level += generator.gauss(0, step)
        found.append(level + generator.gauss(0, noise))
    return found


@pytest.mark.parametrize("step", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("repeat", [2, 3, 5])
def test_a_host_compared_with_itself_rarely_has_a_cost(step: float, repeat: int) -> None:
    """No server was started: of 200 such runs at most 5 % may claim a cost. 18 of 200 is what 5 % gives once in 100."""
    generator = random.Random(f"{step} {repeat}")
    claimed = 0
    for _ in range(200):
        windows = wandering(generator, 3 * repeat + max(2, repeat // 2), step)
        before, measured, after = windows[:repeat], windows[2 * repeat : 3 * repeat], windows[3 * repeat :]
        claimed += judge_cost(before, measured, after) == "costs"
    assert claimed <= 10


def test_a_real_cost_is_found() -> None:
    generator = random.Random(5)
    found = 0
    for _ in range(100):
        before, after = (wandering(generator, count, 0.0) for count in (5, 2))
        measured = [value + 10.0 for value in wandering(generator, 5, 0.0)]
        found += judge_cost(before, measured, after) == "costs"
    assert found >= 90  # 10 wake-ups/s against a scatter of 1.5, of five windows that may be correlated


@pytest.mark.parametrize(
    ("before", "measured", "after", "said"),
    [
        ([40.0, 41.0, 40.5], [20.0, 21.0, 20.5], [40.0, 41.0], "nothing"),  # below zero: no server gives back
        ([40.0, 41.0, 40.5], [40.2, 41.1, 40.4], [40.0, 41.0], "nothing"),
        ([40.0, 41.0, 40.5], [60.0, 61.0, 60.5], [60.0, 61.0], "drift"),
        ([40.0, 41.0, 40.5], [60.0, 61.0, 60.5], [20.0, 21.0], "drift"),
        ([40.0, 41.0, 40.5], [60.0, 61.0, 60.5], [40.5, 41.5], "costs"),
        ([40.0, 41.0, 40.5], [60.0, 61.0, 60.5], [], "costs"),  # a given server: no baseline without it
        ([40.0], [60.0], [], "single"),
        ([], [60.0, 61.0], [], "single"),
    ],
)
def test_verdicts_on_a_cost(before: list[float], measured: list[float], after: list[float], said: str) -> None:
    assert judge_cost(before, measured, after) == said


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([0.42, 0.44, 0.40, 0.47, 0.41], [0.63, 0.61, 0.70, 0.58, 0.66]),
        ([1.0, 2.0], [5.0, 5.5, 9.0]),
        ([38.1, 36.0, 41.2], [44.9, 44.8, 45.3, 60.0]),
    ],
)
def test_few_windows_in_a_row_cannot_show_their_correlation(before: list[float], after: list[float]) -> None:
    """The error of each mean, longer by what so few may hide, times Student's quantile for the smaller side."""
    found = difference(before, after)
    mean = sum(after) / len(after) - sum(before) / len(before)
    errors = [UNKNOWN_FACTORS[len(side)] * stats.sem(side) for side in (before, after)]
    reach = stats.t.ppf(0.975, min(len(before), len(after)) - 1) * (errors[0] ** 2 + errors[1] ** 2) ** 0.5
    assert (found.low, found.high) == pytest.approx((mean - reach, mean + reach))
    assert found.mean == pytest.approx(mean)


@pytest.mark.parametrize(
    ("before", "after"),
    [([100.0, 100.0], [100.0, 100.0 + 1e-13]), ([0.1, 0.1], [0.1, 0.1]), ([1e-200, 2e-200], [1e-200, 3e-200])],
)
def test_equal_windows_give_no_warning(before: list[float], after: list[float]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = difference(before, after)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.mean <= found.high
    assert found.high - found.low < 1e-9


@given(st.lists(st.floats(0.0, 100.0), min_size=2, max_size=6), st.lists(st.floats(0.0, 100.0), min_size=2, max_size=6))
def test_a_change_of_c0_is_possible(before: list[float], after: list[float]) -> None:
    """No bound exceeds what is left to 100 % or to 0, and the mean is within."""
    phases = [
        combine_windows(name, [replace(odd_window(), c0_percent=value, states=[], energy=[]) for value in values])
        for name, values in (("server", before), ("clients", after))
    ]
    change = next(one for one in compare_phases(*phases) if one.metric == "c0_percent")
    found = change.difference
    assert found.low is not None and found.high is not None
    assert found.low <= found.mean <= found.high
    assert found.high <= 100.0 - fmean(before) + 1e-9
    assert found.low >= -fmean(before) - 1e-9


def with_cpu(name: str, c0: list[float], server_s: float) -> Phase:
    """Return a phase of windows of 2 s on 2 CPUs, in each of which the server used `server_s`."""
    used = [
        ProcessTime(name="powerprof", cpu_s=0.001, percent=None),
        ProcessTime(name="mariadbd", cpu_s=server_s, percent=None),
        ProcessTime(name="rest", cpu_s=1.0, percent=None),
    ]
    windows = [
        replace(odd_window(), c0_percent=value, wakeups_hz=100.0 + value, window_s=2.0, cpus=2, processes=used)
        for value in c0
    ]
    return replace(combine_windows(name, windows), cpus=2)


@pytest.mark.parametrize(
    ("added", "server_s", "finding"),
    [
        (48.0, 0.004, "others"),  # 16 silent connections next to other programs
        (-30.0, 0.004, "others"),
        (48.0, 1.9, "costs"),  # 47.5 points of its own
        (0.5, 0.004, "costs"),  # interrupts and idle exits are not in its CPU time
        (0.0, 0.004, "nothing"),
    ],
)
def test_a_change_that_the_server_does_not_explain_is_not_its_cost(added: float, server_s: float, finding: str) -> None:
    first = with_cpu("server", [40.0, 40.001, 39.999], 0.003)
    last = with_cpu("clients", [40.0 + added, 40.001 + added, 39.999 + added], server_s)
    here = run(first, last, deltas=compare_phases(first, last))
    assert own_change(first, last) == pytest.approx(25.0 * (server_s - 0.003))
    assert {cost.finding for cost in judge_costs(here, first, last)} == {finding}
    answer = answer_of(here)
    if finding == "others":
        assert answer.startswith("The server's own CPU time changed by +0.02 points of C0")
    assert ("is no answer" in answer or "are no answer" in answer) is (finding == "others")


def test_one_window_has_no_interval() -> None:
    assert (difference([1.0], [2.0, 3.0]).low, difference([1.0, 2.0], [3.0]).high) == (None, None)


def test_the_servers_idle_exits_are_spread_over_the_window_by_a_sample() -> None:
    """Of 60 exits the trace sampled four of process 71, in the tenths 0, 3, 3 and 9 of a window of 4 s."""
    begin, length = 5_000_000_000, 4_000_000_000
    placed = [(71, 0.05), (71, 0.31), (71, 0.39), (71, 0.95), (5, 0.5), (71, None)]
    sample = np.zeros(
        len(placed), dtype=[("exit_ns", "<u8"), ("next_tid", "<u4"), ("next_tgid", "<u4"), ("woken_tid", "<u4")]
    )
    for row, (tgid, place) in zip(sample, placed, strict=True):
        row["next_tid"], row["next_tgid"] = 1000 + tgid, tgid
        row["exit_ns"] = 0 if place is None else begin + place * length
    edge = SimpleNamespace(start_ns=begin, end_ns=begin + length)
    window: Any = SimpleNamespace(trace=SimpleNamespace(sample=sample), edges={0: edge, 1: edge}, window_s=4.0)
    found = _server_exits(60, window, {71})
    assert (found.count, found.window_s, found.wakeups_hz.mean) == (60, 4.0, 15.0)
    assert found.blocks_count == [15.0, 0.0, 0.0, 30.0, 0.0, 0.0, 0.0, 0.0, 0.0, 15.0]
    expected = rate_interval(60, found.blocks_count, 4.0)
    assert (found.wakeups_hz.low, found.wakeups_hz.high) == (expected.low, expected.high)
    none = _server_exits(60, window, {77})
    assert none.blocks_count == [0.0] * 10 and none.wakeups_hz.mean == 15.0
