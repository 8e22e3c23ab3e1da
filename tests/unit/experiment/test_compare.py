# SPDX-License-Identifier: Apache-2.0
"""The records of comparisons, runs, sweeps and searches, built from odd blocks: each field from its own source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from powerprof.energy.request import EnergyRequest
from powerprof.experiment import compare
from powerprof.experiment.compare import build_comparison, format_so_far, judge_primary, name_conditions
from powerprof.experiment.measurement import Measurement, judge
from powerprof.experiment.metrics import mean_baseline, pair_figures
from powerprof.experiment.options import ExperimentOptions, condition_record
from powerprof.experiment.phase_trace import _with_wakings
from powerprof.experiment.plan import Offer
from powerprof.experiment.records import ConditionRecord, ControlRecord, LoadRun, Plan, Threat
from powerprof.experiment.run import build_run
from powerprof.experiment.saved import compare_saved
from powerprof.experiment.session import Session
from powerprof.experiment.sweep import find_key, restore_options, start_sweep
from powerprof.experiment.sweep_comparison import _judged_by, _left_out, is_worse
from powerprof.experiment.sweep_record import Point
from powerprof.experiment.system_metrics import system_of_blocks
from powerprof.experiment.threats import find_threats
from powerprof.experiment.verdict import judge_metrics, judge_saved
from powerprof.model.records import EnergySource, Estimate, Figures, ServerExits, ServerInfo, ended_by_signal
from powerprof.model.runs import RunStore
from powerprof.statistics import intervals
from powerprof.statistics.verdicts import Verdict
from powerprof.workloads.catalogue import find_condition, find_workload
from powerprof.workloads.reading import resolve
from tests.unit.experiment.builders import odd_block, odd_pairs, odd_window
from tests.unit.report.sample_records import load_run, sweep, sweep_comparison

A, B = (ConditionRecord(name=n, workload="city", title=n, load={}, settings={}, work=n) for n in ("index", "no-index"))
OPTIONS = ExperimentOptions(pairs=4, window_s=3.0, seed=7, warm_up_pairs=2, energy=EnergyRequest(source="none"))
PRIMARY = "c0_ms_per_query_server"


def collected(**more: Any) -> Session:
    warm = [replace(block, dropped=True) for block in odd_pairs(1)]
    blocks = [*warm, *(replace(block, pair=block.pair + 1, attempts_count=1) for block in odd_pairs(4))]
    found = Session(
        (A, B),
        PRIMARY,
        OPTIONS,
        "2026-01-01T00:00:00Z",
        offer=Offer("rate", 70.0, None, (90.0, 80.0), ()),
        before=[odd_window(1), odd_window(2)],
        after=[odd_window(3)],
        blocks=blocks,
        turn_s=0.4,
        notes=["seen", "seen", "other"],
        own_cpu_s=0.31,
        own_wall_s=12.4,
        server=ServerInfo(version="11.8"),
        energy_source=EnergySource(metered=True, why="rapl"),
    )
    return replace(found, **more)


def test_a_comparison_is_built_from_its_counted_pairs() -> None:
    measured = collected()
    found, pairs = build_comparison(measured), measured.pairs
    baseline = mean_baseline([odd_window(1), odd_window(2), odd_window(3)], measured.blocks)
    assert measured.baseline == baseline
    assert (found.a, found.b, found.started_at, found.seed) == (A, B, "2026-01-01T00:00:00Z", 7)
    assert (found.design, found.offered_hz, found.queries_per_block) == ("rate", 70.0, None)
    assert (found.order, found.blocks_count, len(found.blocks)) == (["a", "b"] * 4, 8, 10)
    assert found.tool.cpu_s == 0.31 and found.tool.cpu_percent == pytest.approx(2.5)
    # Package and memory are measured, so the answer is in joules.
    assert found.metrics == judge_metrics(pair_figures(pairs, baseline), "joules_per_query", 7)
    assert (found.verdict.metric, found.metrics[0].name) == ("joules_per_query", "joules_per_query")
    assert found.threats == find_threats(measured.blocks, pairs, measured.before, measured.after, "rate")
    assert (found.baseline, found.baseline_after) == (measured.before, measured.after)
    assert found.options == {
        "pairs_count": 4,
        "window_s": 3.0,
        "turn_s": 0.4,
        "design": None,
        "precision_percent": None,
        "control": False,
        "warm_up_pairs_count": 2,
        "energy_source": "none",
        "residency_source": "cpuidle",
    }
    assert found.notes[:2] == ["seen", "other"] and found.server == ServerInfo(version="11.8")
    sides = [
        system_of_blocks(
            [Figures(name="queries_hz", unit="1/s", kind="measured", values=values)], [pair[arm] for pair in pairs]
        )
        for arm, values in enumerate(next((m.a.values, m.b.values) for m in found.metrics if m.name == "queries_hz"))
    ]
    assert found.system == judge_saved(sides[0], sides[1], "", 7, paired=True)
    assert "page_faults_per_query" in {metric.name for metric in found.system}
    plans = [Plan(arm=arm, statement="SELECT 1", rows=[], asserted=False) for arm in ("b", "a")]  # type: ignore[arg-type]
    assert build_comparison(collected(plans=plans)).plans == [plans[1], plans[0]]
    work = build_comparison(collected(offer=Offer("work", None, 600, (90.0, 80.0), ()), own_wall_s=0.0))
    assert (work.design, work.offered_hz, work.queries_per_block, work.tool.cpu_percent) == ("work", None, 600, None)


def test_a_control_of_its_own_windows_is_of_the_primary_metric() -> None:
    control = [replace(odd_block(number, arm), attempts_count=1) for number in range(4) for arm in ("a", "b")]  # type: ignore[arg-type]
    measured = collected(control=control)
    found = build_comparison(measured).control
    assert found is not None and (found.kind, found.pairs_count, found.sound) == ("run", 4, False)
    (each,) = (
        each for each in pair_figures(measured.control_pairs, measured.baseline) if each.a.name == "joules_per_query"
    )
    difference = 100 * (sum(each.b.known) - sum(each.a.known)) / sum(each.a.known)
    assert found.difference_percent == pytest.approx(difference)


def test_the_ratio_so_far_is_that_of_b_to_a() -> None:
    measured = collected()
    metric = judge_primary(measured)
    assert metric is not None and metric.ratio is not None and metric.ratio.ci95 is not None
    low, high = metric.ratio.ci95
    assert format_so_far(measured) == f"no-index ×{metric.ratio.b_over_a:.3g} so far ({low:.3g} to {high:.3g})"
    assert metric.b.mean is not None and metric.a.mean is not None
    assert metric.ratio.b_over_a == pytest.approx(metric.b.mean / metric.a.mean)
    assert format_so_far(collected(blocks=measured.blocks[:6])) == ""
    assert compare._name_again("x") == "x (again)"


def test_a_run_is_built_from_its_counted_blocks() -> None:
    state = Session(
        (A,), PRIMARY, OPTIONS, offer=Offer("rate", 70.0, None, (90.0,), ()), own_cpu_s=0.31, own_wall_s=12.4
    )
    state.before = [odd_window(1), odd_window(2)]
    state.blocks = [replace(odd_block(0), dropped=True), *(odd_block(n) for n in range(1, 4))]
    state.server = ServerInfo(version="11.8", private=True)
    found = build_run(state, ("server", "index"))
    assert [(phase.name, len(phase.windows)) for phase in found.phases] == [("server", 2), ("index", 3)]
    assert found.phases[1].windows == [block.window for block in state.blocks[1:]]
    assert found.metrics[0].name == "joules_per_query" and len(found.metrics[0].values) == 3
    options = found.options
    assert (options.primary_metric, options.window_s, options.windows_count) == ("joules_per_query", 3.0, 3)
    assert (options.design, options.offered_hz, options.queries_per_block) == ("rate", 70.0, None)
    assert len(found.blocks) == 3 and {metric.name for metric in found.system} >= {
        "user_ms_per_query",
        "migrations_per_query",
    }
    assert found.tool.cpu_s == 0.31 and found.tool.cpu_percent == pytest.approx(2.5)
    command = replace(state, blocks=[replace(odd_block(n), executions_count=3) for n in range(3)], offer=None)
    own = build_run(command, ("baseline", "command"))
    assert (own.system, own.options.design, own.options.offered_hz, len(own.blocks)) == ([], "work", None, 3)
    assert state.has_result() and not replace(state, blocks=state.blocks[:1]).has_result()


def saved(store: RunStore, started_at: str, values: list[float], **more: Any) -> str:
    metrics = [
        replace(metric, values=[*values], estimate=Estimate(mean=1.0, low=None, high=None))
        for metric in load_run().metrics
    ]
    made: LoadRun = replace(load_run(), id=None, started_at=started_at, metrics=metrics, **more)
    return str(store.save("run", made).id)


def test_a_comparison_of_saved_runs_takes_host_and_server_of_the_second(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    first = saved(store, "2026-01-05", [1.0, 1.1, 1.2], host={"cpus": 2}, ended=ended_by_signal(True))
    second = saved(
        store, "2026-01-03", [3.0, 3.1, 3.2], host={"cpus": 8}, server=ServerInfo(version="12", private=False)
    )
    found = compare_saved(first, second, tmp_path, 5)
    assert (found.started_at, found.host, found.server.version, found.seed) == ("2026-01-05", {"cpus": 8}, "12", 5)
    assert (found.a.name, found.b.name, found.options) == (first, second, {"a": first, "b": second})
    assert found.differences == [
        "host cpus: 2 → 8",
        "server private: True → False",
        "server version: MariaDB 10.11.19 → 12",
        "date: 2026-01-05 → 2026-01-03",
    ]
    assert [(threat.name, threat.serious, threat.values) for threat in found.threats] == [
        ("unpaired", False, {}),
        ("interrupted", True, {"run": first}),
    ]
    assert found.metrics[0].a.mean == pytest.approx(1.1) and found.metrics[0].b.mean == pytest.approx(3.1)
    assert (found.blocks_count, found.order, found.control) == (0, [], None)


def measurement(*names: str, **more: Any) -> Measurement:
    """Return one condition with these metrics, of which the first is primary."""
    metrics = [Figures(name=name, unit="J", kind="measured", values=[1.0, 1.1, 1.2]) for name in names]
    return Measurement(condition=A, started_at="2026-01-01", primary=names[0], metrics=metrics, **more)


def test_two_measurements_are_judged_by_a_metric_of_both() -> None:
    metered, unmetered = measurement("joules_per_query", PRIMARY), measurement(PRIMARY)
    for a, b in ((metered, unmetered), (unmetered, metered)):
        assert judge(a, b, 1).verdict.metric == PRIMARY
    assert judge(metered, metered, 1).verdict.metric == "joules_per_query"


def test_unpaired_measurements_have_their_serious_threats_and_no_control() -> None:
    threats = [Threat(name="drift", text="it became slower", serious=True), Threat(name="crowded")]
    control = ControlRecord(kind="run", pairs_count=4, sound=True, half_width_percent=2.0)
    side = measurement(PRIMARY, run="run-0001", threats=threats, control=control)
    found = judge(side, replace(side, run="run-0002", threats=[]), 1)
    assert found.control is None
    assert [(threat.name, threat.text, threat.values) for threat in found.threats] == [
        ("unpaired", "", {}),
        ("drift", "", {"text": "it became slower", "run": "run-0001"}),
    ]
    paired = judge(replace(side, series="x"), replace(side, series="x"), 1)
    assert (paired.control, paired.threats) == (control, threats)


@pytest.mark.parametrize("pairs", [3, 5, 6, 10, 20])
def test_starts_that_differ_are_no_difference_of_settings(pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The levels of starts scatter twice as much as windows of one start, and pairs of one start do not show that."""
    # The bootstrap of the columns takes no part in verdicts, and most of the CPU time.
    monkeypatch.setattr(intervals, "_bca", lambda values, seed: None)
    generator = np.random.default_rng(pairs)

    def judge_starts(starts: int, difference: float) -> Verdict:
        values = 100 + generator.normal(0, 1, (2, pairs)) + generator.normal(0, 2, (2, 1 if starts == 1 else pairs))
        values[1] += difference
        plain = measurement(PRIMARY, series="x", starts=starts)
        a, b = (replace(plain, metrics=[replace(plain.metrics[0], values=of.tolist())]) for of in values)
        return judge(a, b, 1).metrics[0].verdict

    for starts in (1, pairs):
        found = [judge_starts(starts, 0.0) for _ in range(400)]
        assert sum(verdict != "inconclusive" for verdict in found) <= 10, starts
        assert [judge_starts(starts, 60.0) for _ in range(40)].count("b_higher") > 20


@pytest.mark.parametrize(
    ("workloads", "versions", "names"),
    [
        (("city", "city"), ("MariaDB 10.11.19",) * 2, ("index", "no-index")),
        (("city", "pg"), ("MariaDB 10.11.19",) * 2, ("city:index", "pg:no-index")),
        (
            ("city", "pg"),
            ("MariaDB 10.11.19", "PostgreSQL 15.18"),
            ("city:index (MariaDB)", "pg:no-index (PostgreSQL)"),
        ),
        (("city", "oltp"), ("MySQL 9.7.4", "MySQL 5.5.9"), ("city:index (MySQL 9.7.4)", "oltp:no-index (MySQL 5.5.9)")),
        (("city", "pg"), ("MariaDB 10.11.19", None), ("city:index (MariaDB)", "pg:no-index (unknown server)")),
    ],
)
def test_conditions_of_two_workloads_are_named_with_workload_and_product(
    workloads: tuple[str, str], versions: tuple[str | None, str | None], names: tuple[str, str]
) -> None:
    conditions = tuple(
        ConditionRecord(name=name, workload=workload, title="", load={}, settings={}, work=name)
        for name, workload in zip(("index", "no-index"), workloads, strict=True)
    )
    assert tuple(one.name for one in name_conditions(conditions, versions)) == names


def test_a_sweep_is_worse_at_any_value() -> None:
    """B does less at 4 and 8 clients. One value at which it does more changes nothing."""
    record = sweep_comparison()
    assert is_worse(record)
    first, *_, last = record.points

    def with_verdict(verdict: Any, parted: bool) -> Any:
        metrics = [replace(metric, verdict=verdict) for metric in last.metrics]
        return replace(last, metrics=metrics, parted=parted)

    mixed = replace(record, points=[with_verdict("b_higher", True), with_verdict("b_lower", True)])
    assert is_worse(mixed) and not is_worse(replace(record, points=[with_verdict("b_higher", True), first]))
    assert not is_worse(replace(record, points=[with_verdict("b_lower", False)]))


def test_sweeps_are_judged_by_throughput_or_at_a_rate_by_cpu_time() -> None:
    record = sweep()
    both = [(point, point) for point in record.points[:2]]
    assert _judged_by(record, both) == "queries_hz"
    assert _judged_by(replace(record, options={"rate_hz": 9.0}), both) == PRIMARY
    assert _judged_by(replace(record, key="load.rate_hz"), both) == PRIMARY
    (note,) = _left_out(record, replace(record, points=[*record.points[1:3], Point(value=16)]), both)
    assert note.values == {"parameter": "clients", "values": "4, 8, 1024, 16"}
    assert _left_out(record, record, [(point, point) for point in record.points]) == []


def test_a_continued_sweep_has_the_options_of_its_start() -> None:
    energy = EnergyRequest(source="none", cpu_model="EPYC", vcpu="core")
    options = replace(OPTIONS, rate_hz=70.0, attribute_s=2.5, on_cpu=True, energy=energy, residency_source="procfs")
    started = start_sweep(find_workload("city"), "index", "clients", [2, 8], options)
    assert (started.parameter, started.key, started.values) == ("clients", "load.clients", [2, 8])
    other = ExperimentOptions(warm_up_pairs=2)
    again = restore_options(started, other)
    assert again == replace(options, energy=again.energy) and again.energy == energy
    share = replace(OPTIONS, load_percent=30.0)
    assert restore_options(start_sweep(find_workload("city"), "index", "clients", [], share), other) == share
    assert find_key(find_workload("city"), "rate") == ("load.rate_hz", [25, 50, 100, 200])
    assert find_key(find_workload("city"), "server") == ("server.build", [])
    assert find_key(find_workload("city"), "condition")[1] == list(find_workload("city").definition.conditions)


def test_the_pace_of_a_load_is_no_other_work() -> None:
    case = resolve(*find_condition("index"))
    work = condition_record(case).work
    for same in ({"clients": 9}, {"rate_hz": 5.0}, {"queries": 7}, {"maximum_rate_hz": 9.0}):
        assert condition_record(replace(case, load=replace(case.load, **same))).work == work
    for other in ({"protocol": "prepare-once"}, {"sql": ["SELECT 7"]}, {"reconnect": True}, {"think": 0.5}):
        assert condition_record(replace(case, load=replace(case.load, **other))).work != work
    record = condition_record(case)
    assert (record.name, record.workload, record.title) == ("index", "city", case.title)
    nine = replace(case, load=replace(case.load, clients=9))
    assert condition_record(nine).load["clients"] == 9


def test_the_servers_threads_are_woken_as_the_kernel_counted() -> None:
    exits = ServerExits(count=9, window_s=3.0, wakeups_hz=Estimate(mean=3.0, low=2.0, high=4.0))
    found = _with_wakings(exits, {7: 1.5, 8: 6.25, 9: 0.5}, {8: "thread/sql/main", 7: "x"})
    assert (found.wakings_hz, found.most_woken, found.most_woken_hz, found.count) == (8.25, "sql/main", 6.25, 9)
    quiet = _with_wakings(exits, {7: 0.0}, {7: "x"})
    assert (quiet.wakings_hz, quiet.most_woken, quiet.most_woken_hz) == (0.0, None, None)
    assert _with_wakings(exits, {}, {}) is exits
