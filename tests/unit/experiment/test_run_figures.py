# SPDX-License-Identifier: Apache-2.0
"""Figures of loads, blocks, members, traces, sweeps and studies, each by hand from unequal inputs."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from powerprof.experiment import compare, load_clients, observers, run, sweep, sysbench
from powerprof.experiment.bench_data import PlanMismatch, check_counters, count_queries, count_rows, subtract_counters
from powerprof.experiment.bench_settings import _number, _text
from powerprof.experiment.block import Slot, _sum_counters, add_client_time, build_block, refuse_errors
from powerprof.experiment.load import LoadFailed, LoadResult
from powerprof.experiment.metrics import mean_hz, peak_hz, written_per_slice
from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.plan import Offer, choose_offer, offer_share
from powerprof.experiment.records import ConditionRecord, Slices, TraceSummary
from powerprof.experiment.saved import _drift_of, _phase_figures, read_side
from powerprof.experiment.study import StudyOptions, _compare_sides, _figures_of_side, _of_comparison, _subtract
from powerprof.experiment.sweep_comparison import SweepSide, _beside, _others, _steps, claim_of_point, compare_sweeps
from powerprof.experiment.sweep_rounds import (
    Point,
    PointMeasurements,
    PointsCompared,
    Progress,
    _by_round,
    _count_missing,
    _gathered_point,
    compare_metrics,
    compare_sweep_points,
    drop_incomplete_round,
    similar_points,
)
from powerprof.experiment.sweep_until import (
    Limit,
    Trial,
    compare_rates,
    condition_rate,
    halve_rates,
    highest_rate,
    judge_trial,
)
from powerprof.experiment.traced import (
    PaceWindow,
    ThreadPace,
    count_by_thread,
    pace_metrics,
    replication_percent,
    summarise_paces,
)
from powerprof.model.records import Delta, Estimate, Figures, RunMetric
from powerprof.model.runs import RunStore
from powerprof.statistics.verdicts import compare_unpaired
from powerprof.workloads.catalogue import PublishedFinding, StudyCommand, find_condition
from powerprof.workloads.definition import Load, Storm
from powerprof.workloads.reading import Case, resolve
from tests.unit.experiment.builders import odd_block, odd_pairs, odd_rates, odd_window
from tests.unit.report.sample_records import attribution, comparison, idle_run, load_run
from tests.unit.report.sample_records import sweep as sample_sweep

CONDITION = ConditionRecord(name="index", workload="city", title="", load={}, settings={}, work="w")


# Loads and blocks.


def test_answers_are_counted_from_the_start_up_to_the_end() -> None:
    result = LoadResult(queries=9, elapsed_s=3.0, ends_s=(0.9, 1.0, 1.7, 2.49, 2.5, 2.6))
    assert (result.between(1.0, 2.5), LoadResult(queries=9, elapsed_s=3.0).between(1.0, 2.5)) == (3, None)


def test_the_log_of_pgbench_has_microseconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of two clients: client, number, µs, script, s, µs of the end."""
    (tmp_path / "pgbench-log.71").write_text("0 1 2300 0 1700000001 250000\n0 2 skipped 0 1700000001 300000\n")
    (tmp_path / "pgbench-log.72").write_text("1 1 4700 0 1700000002 500000 9\n1 2 900 0 1700000003 750000\n")
    monkeypatch.setattr(load_clients.time, "time", lambda: 1_700_000_000.0)
    monkeypatch.setattr(load_clients.time, "monotonic", lambda: 400.0)
    counted = "number of transactions actually processed: 3\nnumber of failed transactions: 2 (1 %)\n"
    found = load_clients.parse_pgbench(f"{counted}latency average = 2.633 ms", 4.5, tmp_path)
    assert (found.queries, found.errors, found.mean_ms, found.elapsed_s) == (3, 2, 2.633, 4.5)
    assert (found.p50_ms, found.p95_ms, found.p99_ms) == (2.3, 4.7, 4.7)
    assert sorted(found.ends_s or ()) == pytest.approx([401.25, 402.5, 403.75])
    commands = load_clients.parse_command("queries=7\np50_ms=1.5\np95_ms=2.5\np99_ms=3.5\nqueries=9\n", 4.0)
    assert (commands.queries, commands.p50_ms, commands.p95_ms, commands.p99_ms) == (9, 1.5, 2.5, 3.5)


def test_the_work_behind_a_gate_is_that_since_a_tally() -> None:
    before, after = np.zeros(1024, np.int64), np.zeros(1024, np.int64)
    before[100], after[100], after[300], after[500] = 7, 27, 18, 2
    found = sysbench.Tally(47, 91_000, after).since(sysbench.Tally(7, 11_000, before))
    assert (found.queries, found.mean_ms) == (40, pytest.approx(2.0))

    def middle_ms(bucket: int) -> float:
        return 0.001 * 1e8 ** ((bucket + 0.5) / 1023)

    assert (found.p50_ms, found.p95_ms, found.p99_ms) == pytest.approx([middle_ms(n) for n in (100, 300, 500)])
    assert sysbench.Tally(7, 11_000, before).since(sysbench.Tally(7, 11_000, before)).mean_ms is None
    assert sysbench.percentile([(1.0, 9), (2.0, 90), (3.0, 1)], 95) == 2.0


def test_counters_are_differences_without_those_of_the_reading() -> None:
    moved = subtract_counters(
        {"Questions": 1000, "Com_commit": 7, "gone": 1}, {"Questions": 1431, "Com_commit": 3, "new": 5}
    )
    assert moved == {"Questions": 431, "Com_commit": 0}
    assert count_queries({"Questions": 431, "Connections": 6, "Com_commit": 210}) == 424
    assert count_queries({"Questions": 431, "Com_commit": 210}, transactions=True) == 210
    assert count_queries({"Questions": 3, "Connections": 6}) == 0 and count_rows({}) is None
    # 2 % of 1,000 queries and 40 for the edges.
    check_counters("c", {"Com_begin": 2.0}, {"Com_begin": 2059}, 1000)
    for wrong in (2061, 1939):
        with pytest.raises(PlanMismatch, match=f"moved {wrong / 1000:.3g} times"):
            check_counters("c", {"Com_begin": 2.0}, {"Com_begin": wrong}, 1000)
    for counted, queries in (({}, 1000), ({"Com_begin": 2000}, 0), ({"Com_begin": 2000}, None)):
        with pytest.raises(PlanMismatch, match="does not count Com_begin"):
            check_counters("c", {"Com_begin": 2.0}, counted, queries)  # type: ignore[arg-type]
    assert _sum_counters([{"a": 3, "b": 5}, {"a": 4}, {"a": 1, "b": 2}]) == {"a": 8, "b": 7}


def test_the_time_of_an_ended_client_is_in_percent_of_all_cpus() -> None:
    window = odd_window(1)
    client = add_client_time(window, 0.87).processes[-1]
    assert (client.name, client.cpu_s, client.percent) == ("client", 0.87, pytest.approx(100 * 0.87 / (2.7 * 3)))
    assert add_client_time(window, None) is window
    command = run._with_command(window, 0.87).processes[0]
    assert (command.name, command.percent) == ("command", pytest.approx(100 * 0.87 / (2.7 * 3)))
    assert run._with_command(replace(window, window_s=None), 0.87).processes[0].percent is None


def test_a_block_holds_the_report_of_its_client_and_the_counters() -> None:
    apparatus: Any = SimpleNamespace(offer=Offer("rate", 70.0, None, (), ()))
    result = LoadResult(
        queries=5, elapsed_s=2.0, p50_ms=1.1, p95_ms=2.2, p99_ms=3.3, mean_ms=1.4, errors=6, client_cpu_s=0.7
    )
    moved = {"minor_faults": 41, "Handler_read_key": 30, "Handler_read_rnd_next": 12, "Com_commit": 4}
    found = build_block(
        apparatus, Slot(3, "b", True, 9), 2, odd_window(), result, moved, queries=55, solution_s=1.9,
        solution_energy=odd_window().energy,
    )  # fmt: skip
    assert (found.pair, found.arm, found.dropped, found.attempts_count, found.queries) == (3, "b", True, 2, 55)
    assert (found.offered_hz, found.p50_ms, found.p95_ms, found.p99_ms, found.mean_ms) == (70.0, 1.1, 2.2, 3.3, 1.4)
    assert (found.errors_count, found.client_cpu_s, found.solution_s) == (6, 0.7, 1.9)
    assert (found.rows_examined, found.minor_faults_count) == (42, 41)
    assert found.status == {"Handler_read_key": 30, "Handler_read_rnd_next": 12, "Com_commit": 4}
    assert found.solution_energy == odd_window().energy
    silent = build_block(apparatus, Slot(3, "b", True, 9), 2, odd_window(), result, moved, queries=None)
    assert silent.rows_examined is None
    with pytest.raises(LoadFailed):
        build_block(apparatus, Slot(3, "b", True, 9), 2, odd_window(), result, moved, queries=0)


def test_failed_statements_fail_a_block_except_those_of_transactions() -> None:
    case = resolve(*find_condition("index"))
    result = LoadResult(queries=5, elapsed_s=2.0, errors=3)
    with pytest.raises(LoadFailed, match="3 queries failed"):
        refuse_errors(case, result)
    refuse_errors(case, replace(result, errors=0))
    for load in (replace(case.load, transaction=True), Load(kind="tpcc")):
        refuse_errors(replace(case, load=load), result)


@pytest.mark.parametrize(("code", "expected"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_a_killed_command_has_the_exit_code_of_a_shell(code: str, expected: int) -> None:
    command = run.Command(("sh", "-c", code), may_fail=True)
    found, elapsed_s = run._execute(command, run.OpenWindow())
    assert (found, elapsed_s > 0) == (expected, True)


@pytest.mark.parametrize(("text", "value"), [("7", 7), ("-3", -3), ("0.5", 0.5), ("ON", "ON")])
def test_a_moved_value_is_set_as_it_was(text: str, value: object) -> None:
    assert _number(text) == value and type(_number(text)) is type(value)
    assert [_text(each) for each in (True, False, 1e-7, 12, "x")] == ["ON", "OFF", "0.0000001", "12", "x"]


# The plan.


def cases(*names: str) -> list[Case]:
    return [resolve(*find_condition(name)) for name in names]


def test_the_offer_follows_the_slower_condition_wherever_it_is() -> None:
    for capacities in ([20_000.0, 300.0], [300.0, 20_000.0]):
        offer = choose_offer(None, capacities, cases("index", "no-index"), ExperimentOptions())
        assert (offer.rate_hz, offer.easy_rate_hz, offer.capacities_hz) == (120.0, 120.0, tuple(capacities))
    work = choose_offer("work", [90.0, 40.0], cases("index", "no-index"), ExperimentOptions(window_s=5.0))
    assert (work.design, work.queries, work.rate_hz, work.easy_rate_hz) == ("work", 180, None, pytest.approx(16.0))
    limited = choose_offer(None, [290.0, 300.0], cases("index", "no-index"), ExperimentOptions(rate_hz=246.0))
    assert (limited.design, limited.rate_hz) == ("rate", 240.0)
    assert (
        choose_offer(None, [290.0, 300.0], cases("index", "no-index"), ExperimentOptions(rate_hz=247.0)).design
        == "work"
    )
    assert (offer_share(777.0, 30.0).rate_hz, offer_share(777.0, 30.0).capacities_hz) == (230.0, (777.0,))
    assert [offer_share(capacity, 50.0).rate_hz for capacity in (1.0, 15.0, 2470.0)] == [1.0, 8.0, 1200.0]


def test_an_experiment_takes_its_windows_and_what_is_around_them() -> None:
    options = ExperimentOptions(pairs=7, window_s=5.0, warm_up_pairs=2, baseline_windows=3, attribute_s=11.0)
    # 2 × 9 windows of 5 + 1 s, six of 4 s, and 10 s with 2 × (2 + 11) s.
    assert options.seconds(2) == pytest.approx(18 * 6.0 + 6 * 4.0 + 10.0 + 26.0)
    assert replace(options, control=True).seconds(2) == pytest.approx(options.seconds(2) + 12 * 6.0)
    assert replace(options, control=True, pairs=30).seconds(1) == pytest.approx(62 * 6.0 + 24.0 + 10.0 + 13.0)
    assert options.command_seconds(2) == pytest.approx(2 * 7 * 5.0 + 2 * 3 * 4.0)
    assert (options.most_pairs, replace(options, precision_percent=2.0).most_pairs) == (7, 28)
    short = replace(options, window_s=1.2)
    assert (options.calibrate_s, options.baseline_s, short.calibrate_s, short.baseline_s) == (2.0, 4.0, 1.0, 1.2)
    traced = replace(options, attribute_s=2.5, on_cpu=True)
    # Points and windows without a server of 5 + 1 s; 2.5 + 3.5 s of traces; 12 s of start.
    assert sweep.estimate_seconds(4, traced, baseline=True) == pytest.approx(7 * 5 * 6.0 + 7 * 4 * 6.0 + 12.0)
    assert sweep.estimate_seconds(4, replace(options, attribute_s=None), baseline=False) == pytest.approx(
        7 * 4 * 6.0 + 12.0
    )


def test_a_window_of_equal_work_lasts_as_long_as_the_slower_condition() -> None:
    horizon = compare._PairRun._horizon
    offer = Offer("work", None, 600, (40.0, 90.0), ())
    assert horizon(None, offer) == pytest.approx(1.1 * 600 / 40)  # type: ignore[arg-type]
    assert horizon(None, replace(offer, capacities_hz=(90.0, 40.0))) == pytest.approx(16.5)  # type: ignore[arg-type]
    for other in (replace(offer, design="rate"), replace(offer, queries=None), replace(offer, capacities_hz=(None,))):
        assert horizon(None, other) is None  # type: ignore[arg-type]


def test_alternating_windows_of_a_are_no_control() -> None:
    blocks = [replace(block, attempts_count=1) for block in odd_pairs(6)]
    collected = compare.MeasuredPairs((CONDITION, CONDITION), "c0_percent", ExperimentOptions(), "", blocks=blocks)
    metrics = compare.judge_metrics(compare.pair_figures(collected.pairs, collected.baseline), "c0_percent", 1)
    control = compare._control(collected, metrics, "c0_percent")
    assert control is not None and control.pairs_count == 3
    assert compare._control(replace(collected, turn_s=0.05), metrics, "c0_percent") is None
    assert (collected.order, len(collected.pairs)) == (["a", "b"] * 6, 6)


# Members, storms, slices and traced windows.


def test_a_member_has_its_own_cpu_time_and_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two members over 2.5 s on three CPUs; the second is on another host."""
    servers: Any = {"primary": SimpleNamespace(pid=71), "replica-1": SimpleNamespace(pid=None)}
    meter = observers.MembersMeter(servers)
    meter._connections = {name: name for name in servers}  # type: ignore[misc]
    meter._counters = {"primary": {"Connections": 5, "Binlog_commits": 40}, "replica-1": {"Connections": 9}}
    meter._relays = {"primary": {}, "replica-1": {7: 100}}
    meter._cpu_ns, meter._started_s = {"primary": 3_000_000_000, "replica-1": None}, 10.0
    after = {"primary": {"Connections": 12, "Binlog_commits": 65}, "replica-1": {"Connections": 10}}
    monkeypatch.setattr(observers.time, "monotonic", lambda: 12.5)
    monkeypatch.setattr(observers, "_counters", after.__getitem__)
    monkeypatch.setattr(observers, "process_cpu_ns", lambda pid: 3_750_000_000)
    monkeypatch.setattr(observers, "read_replication_status", lambda connection: [])
    monkeypatch.setattr(meter, "_read_relays", lambda: {"primary": {}, "replica-1": {7: 130, 8: 20}})
    first, second = meter.stop(3)
    assert (first.name, first.pid, first.cpu_s, first.c0_percent) == ("primary", 71, 0.75, pytest.approx(10.0))
    assert (first.connections_hz, first.commits_hz, first.relay_log_bytes_hz) == (2.8, 10.0, None)
    assert (second.cpu_s, second.c0_percent, second.commits_hz) == (None, None, None)
    assert (second.connections_hz, second.relay_log_bytes_hz) == (0.4, pytest.approx(50 / 2.5))


@pytest.mark.parametrize(
    ("before", "after", "written"),
    [
        # 30 more in the oldest; 10 and 16 in new files; two missing of the mean of 10, 16 and 70.
        ({7: 70}, {7: 100, 8: 10, 11: 16}, 30 + 26 + 2 * 96 / 3),
        ({6: 5, 7: 70}, {7: 71}, 1.0),
        ({7: 70}, {8: 12}, 12.0),
        ({}, {8: 12}, None),
    ],
)
def test_relay_logs_that_came_and_went_have_the_mean_size(
    before: dict[int, int], after: dict[int, int], written: float | None
) -> None:
    found = observers.sum_relay_bytes(before, after)
    assert found == (None if written is None else pytest.approx(written))


def test_a_storm_is_active_above_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 connections a second are a storm: of 0.5, 0.75 and 1.25 s the first and the last rage."""
    watch = observers.StormWatch(Storm(counter="Connections", least_hz=20.0, trigger={"primary": ["x"]}), {})
    readings = iter([(0.5, 110), (1.25, 112), (2.5, 152), (3.0, 170)])
    watch._began, watch._first, watch._last = True, (0.0, 100), (0.0, 100)
    looks = iter([False, False, False, True])
    monkeypatch.setattr(watch, "_count", lambda: next(readings))
    monkeypatch.setattr(watch, "_trigger", lambda: None)
    monkeypatch.setattr(watch._stop, "wait", lambda seconds: next(looks))
    watch._look()
    found = watch.finish()
    assert found.raged_percent == pytest.approx(100 * 1.75 / 2.5)
    assert (found.restarts_count, found.counter_hz, found.began) == (1, pytest.approx(70 / 3.0), True)


def test_slices_of_unequal_length_have_their_own_rates() -> None:
    slices = Slices(lengths_s=[0.4, 0.2, 0.05], write_bytes=[900, 800, 700])
    assert mean_hz(slices, written_per_slice) == pytest.approx(2400 / 0.65)
    assert peak_hz(slices, written_per_slice) == pytest.approx(4000.0)
    assert peak_hz(replace(slices, lengths_s=[0.2, 0.4, 0.1]), written_per_slice) == pytest.approx(7000.0)


def thread(name: str, wakings: float | None, exits: float, period_ms: float | None = None) -> ThreadPace:
    return ThreadPace(thread=name, wakings_hz=wakings, exits_hz=exits, period_ms=period_ms, remedy=f"slow {name}")


def test_a_pace_is_a_mean_over_all_windows() -> None:
    windows = [
        PaceWindow(window_s=4.0, threads=[thread("a", 9.0, 4.0, 100.0), thread("b", None, 6.0)]),
        PaceWindow(window_s=5.0, threads=[thread("a", 12.0, 5.0, 90.0)]),
        PaceWindow(window_s=6.0, threads=[thread("b", None, 7.5, 40.0), thread("c", 40.0, 1.0)]),
    ]
    found = {pace.thread: pace for pace in summarise_paces(windows)}
    assert list(found) == ["c", "a", "b"]
    assert found["a"].wakings is not None and found["a"].wakings.mean == pytest.approx(7.0)
    assert [found[name].exits.mean for name in "abc"] == pytest.approx([3.0, 4.5, 1 / 3])
    assert (found["b"].wakings, found["a"].period_ms, found["b"].period_ms) == (None, 100.0, None)
    assert found["a"].remedy == "slow a"
    wakings, exits = pace_metrics(windows)
    assert (wakings.values, exits.values) == ([9.0, 12.0, 40.0], [10.0, 5.0, 8.5])
    assert (wakings.unit, exits.estimate.mean) == ("1/s", pytest.approx(23.5 / 3))


def test_replication_has_a_share_of_the_added_idle_exits() -> None:
    """B has 40 % more in a longer window; the rates decide, not the counts."""
    base = attribution()
    members = {"replica": base.wakeups[0].thread.pid}
    a = TraceSummary(arm="a", members=members, attribution=base)
    own = [row for row in base.wakeups if row is base.wakeups[0]]
    rows = [replace(row, count=row.count * (4 if row in own else 2)) for row in base.wakeups]
    b = TraceSummary(arm="b", members=members, attribution=replace(base, window_s=1.25 * base.window_s, wakeups=rows))

    def rates(window: TraceSummary) -> tuple[float, float]:
        counts, seconds = count_by_thread(window), window.attribution.window_s
        return sum(counts.values()) / seconds, sum(n for key, n in counts.items() if key[2]) / seconds

    (all_a, own_a), (all_b, own_b) = rates(a), rates(b)
    assert all_b > all_a
    assert replication_percent(a, b) == pytest.approx(100 * (own_b - own_a) / (all_b - all_a))
    assert replication_percent(b, a) is None
    assert sum(count_by_thread(a).values()) == sum(row.count for row in base.wakeups)


# Searches of the highest rate.


LIMIT = Limit(metric="latency_p95_ms", at_most=5.0, unit="ms")


def trial(number: int, rate_hz: float, held: bool) -> Trial:
    return Trial(round=number, rate_hz=rate_hz, finished_hz=rate_hz, value=1.0, held=held)


@pytest.mark.parametrize(
    ("metric", "value"),
    [("latency_p50_ms", 1.1), ("latency_p95_ms", 2.9), ("latency_p99_ms", 7.3), ("c0_percent", 31.7)],
)
def test_a_trial_judges_the_limited_metric(metric: Any, value: float) -> None:
    block = replace(odd_block(), queries=230)
    for most, held in ((value + 0.01, True), (value - 0.01, False)):
        found = judge_trial(Limit(metric=metric, at_most=most, unit="ms"), block, 4, 100.0)
        assert (found.value, found.held, found.round, found.rate_hz) == (pytest.approx(value), held, 4, 100.0)
        assert found.finished_hz == pytest.approx(100.0)
    # Three deviations of a Poisson count, or a tenth: whichever permits more.
    for rate_hz, least in ((100.0, 100 - 3 * (100 / 2.3) ** 0.5), (1e6, 9e5)):
        for finished, held in ((least + 1, True), (least - 1, False)):
            own = replace(block, queries=round(finished * 2.3))
            assert judge_trial(LIMIT, own, 0, rate_hz).held is held
    unknown = judge_trial(LIMIT, replace(block, queries=None), 0, 100.0)
    assert (unknown.finished_hz, unknown.held) == (None, False)


@pytest.mark.parametrize("limit_hz", [0.5, 37.0, 640.0, 999.0])
def test_a_search_ends_between_the_last_rate_that_held_and_the_next(limit_hz: float) -> None:
    trials = halve_rates(lambda rate_hz: trial(0, rate_hz, rate_hz <= limit_hz), 1000.0, 7)
    found = highest_rate(trials, 1000.0)
    if limit_hz < 1:
        assert found is None
        return
    held = max(each.rate_hz for each in trials if each.held)
    failed = min([each.rate_hz for each in trials if not each.held] or [1000.0])
    assert found == (held + failed) / 2 and held <= limit_hz < failed + 1
    assert failed - held <= 1000 / 2**7 + 1


def test_a_condition_has_the_mean_rate_of_its_rounds() -> None:
    rounds = [
        [trial(0, 40.0, True), trial(0, 60.0, False)],
        [trial(1, 50.0, True), trial(1, 64.0, False), trial(1, 57.0, True)],
    ]
    found = condition_rate("index", CONDITION, 80.0, rounds)
    assert (found.values, found.capacity_hz, found.limited) == ([50.0, 60.5], 80.0, True)
    assert found.rate_hz is not None and found.rate_hz.mean == pytest.approx(55.25)
    assert found.resolution_hz == pytest.approx(80 / 2**3) and len(found.trials) == 5
    free = condition_rate("index", CONDITION, 80.0, [[trial(0, 40.0, True)], [trial(1, 60.0, False)]])
    assert (free.values, free.rate_hz) == ([60.0, None], None)
    assert not condition_rate("index", CONDITION, 4.0, [[trial(0, 3.0, True)]]).limited
    quicker = replace(found, values=[100.0, 110.0, 7.0])
    ratio, verdict = compare_rates(found, quicker, 1)
    assert ratio is not None and ratio.b_over_a == pytest.approx(105 / 55.25) and verdict == "inconclusive"
    three = [replace(found, values=values) for values in ([50.0, 51.0, 50.5], [99.0, 102.0, 100.5])]
    assert compare_rates(*three, 1)[1] == "b_higher" and compare_rates(*three[::-1], 1)[1] == "b_lower"  # type: ignore[misc]
    ratio, _ = compare_rates(*three, 1)  # type: ignore[misc]
    assert ratio is not None and ratio.ci95 is not None and ratio.ci95[0] < ratio.b_over_a < ratio.ci95[1]
    assert compare_rates(found, replace(found, values=[None, 60.0]), 1) == (None, None)


# Sweeps.


def measured(count: int, error: str | None = None, first: int = 0) -> PointMeasurements:
    """Return the measurements of so many rounds, all different."""
    found = PointMeasurements(error=error, first_round=first)
    for number in range(count):
        found.blocks.append(odd_block(first + number))
        found.rates.append(odd_rates(first + number))
        found.traced.append(PaceWindow(window_s=4.0 + number, threads=[thread("a", 9.0 + number, 4.0)]))
        found.sampled.append(number)  # type: ignore[arg-type]
    return found


def test_an_incomplete_round_is_dropped_with_all_that_was_measured_in_it() -> None:
    gathered: dict[Any, PointMeasurements] = {1: measured(3), 2: measured(2), 4: measured(1, "refused"), 8: measured(0)}
    assert _count_missing(gathered, 5) == 2 + 3 + 5
    drop_incomplete_round(gathered)
    for value in (1, 2):
        kept = gathered[value]
        assert [len(each) for each in (kept.blocks, kept.rates, kept.traced, kept.sampled)] == [2] * 4
    # The failed point continues after the last round that any point was measured in.
    assert (len(gathered[4].blocks), gathered[4].first_round, gathered[4].error) == (1, 3, None)


def test_a_point_has_the_figures_of_its_blocks() -> None:
    point = _gathered_point(8, replace(measured(3), version="11.8"))
    found = {metric.name: metric for metric in point.metrics}
    assert found["server_wakings_hz"].values == [9.0, 10.0, 11.0]
    assert found["user_percent"].values == [block.window.user_percent for block in point.blocks]
    assert found["queries_hz"].estimate.mean == pytest.approx(
        fmean((block.queries or 0) / (block.solution_s or 1) for block in point.blocks)
    )
    assert (point.server, len(point.os), "server_cpu_ms_per_s" in found) == ("11.8", 3, False)
    silent = measured(2)
    silent.blocks = [replace(block, queries=None) for block in silent.blocks]
    own = {metric.name: metric for metric in _gathered_point(8, silent).metrics}["server_cpu_ms_per_s"]
    assert own.values == pytest.approx([430.0 * 1.0, 430.0 * 1.07])  # 0.43 s per second, and 7 % more
    assert _gathered_point(8, PointMeasurements(error="refused")).error == "refused"


def test_points_are_compared_by_their_rounds() -> None:
    def point(value: int, rates: list[float], first: int) -> Point:
        metric = RunMetric(
            name="queries_hz",
            unit="1/s",
            kind="measured",
            values=[*rates],
            estimate=Estimate(mean=0, low=None, high=None),
        )
        blocks = [replace(odd_block(), pair=first + number) for number in range(len(rates))]
        return Point(value=value, metrics=[metric], blocks=blocks)

    points = [point(1, [10.0, 20.0, 30.0, 41.0], 0), point(2, [30.0, 46.0, 59.0], 1), Point(value=4, error="refused")]
    assert _by_round(points[1], "queries_hz") == {1: 30.0, 2: 46.0, 3: 59.0}
    record = replace(sample_sweep(), points=points, options={"in_rounds": True})
    (pair,) = compare_sweep_points(record)
    assert (pair.metric, pair.a, pair.b) == ("queries_hz", 1, 2)
    assert pair.percent == pytest.approx(100 * ((30 / 20 * 46 / 30 * 59 / 41) ** (1 / 3) - 1))
    # At a given rate the throughput is no result.
    assert compare_sweep_points(replace(record, options={"in_rounds": True, "rate_hz": 9.0})) == []
    assert compare_sweep_points(replace(record, key="load.rate_hz")) == []
    found = compare_metrics({"x": {"a": {0: 1.0, 1: 1.1, 2: 0.9}, "b": {0: 8.0, 1: 8.3, 2: 7.6}}}, in_rounds=True)
    assert [(each.a, each.b, each.differ) for each in found] == [("a", "b", True)]
    assert found[0].ci95 is not None and found[0].less_than_percent is None


def test_similar_points_have_a_bound() -> None:
    def pair(metric: str, a: Any, b: Any, ends: tuple[float, float] | None, differ: bool) -> PointsCompared:
        return PointsCompared(metric=metric, a=a, b=b, percent=1.0, ci95=ends, differ=differ)

    compared = [
        pair("x", 1, 2, (-3.0, 5.0), False),
        pair("x", 4, 1, (-7.0, 2.0), False),
        pair("x", 1, 8, (1.0, 9.0), True),
        pair("x", 2, 4, (-1.0, 1.0), False),
        pair("y", 1, 8, (-1.0, 1.0), False),
        pair("x", 1, 16, None, False),
    ]
    assert similar_points(compared, "x", 1) == {2: 5.0, 4: 7.0, 16: None}


def test_a_continued_sweep_keeps_its_points() -> None:
    rounds = [Point(value=value, blocks=[odd_block(n) for n in range(count)]) for value, count in ((1, 2), (2, 1))]
    old = Point(value=4, metrics=load_run().metrics)
    record = replace(sample_sweep(), values=[1, 2, 4, 8], points=[*rounds, old], notes=["seen"], interrupted=True)
    progress = Progress(record)
    assert [len(progress.gathered[value].blocks) for value in (1, 2, 4, 8)] == [1, 1, 0, 0]
    assert progress.kept == {4: old}
    progress.gathered[2].error = "gone"
    progress.note("seen")
    found = progress.record(interrupted=False)
    assert [point.value for point in found.points] == [1, 2, 4] and found.notes == ["seen", "2: ended early: gone"]
    progress.failed([1, 2], 2, run.PowerprofError("late"))
    assert [progress.gathered[value].error for value in (1, 2)] == ["late", "gone"]


# Saved runs, trends and studies.


def side(name: str) -> SweepSide:
    return SweepSide(name=name, run=name, started_at="", condition=CONDITION)


def test_other_programs_are_a_threat_to_either_sweep() -> None:
    def loud(percent: float) -> Point:
        blocks = [odd_block(0), odd_block(1)]
        used = [sum(p.percent or 0.0 for p in block.window.processes) for block in blocks]
        return Point(
            value=1,
            blocks=[
                replace(block, window=replace(block.window, c0_percent=own + percent))
                for block, own in zip(blocks, used, strict=True)
            ],
        )

    sides = [side("first"), side("second")]
    for both, name, percent in (((loud(3.0), loud(17.0)), "second", 17.0), ((loud(14.0), loud(3.0)), "first", 14.0)):
        (found,) = _others(sides, [both])
        assert (found.name, found.serious) == ("others", True)
        assert found.values == {"run": name, "percent": pytest.approx(percent)}
    assert _others(sides, [(loud(9.0), loud(9.5))]) == []


def swept(rates: dict[int, list[float]], faults: dict[int, list[float]]) -> list[Point]:
    points = []
    for value, own in rates.items():
        mean = Estimate(mean=fmean(own), low=None, high=None)
        metric = RunMetric(name="queries_hz", unit="1/s", kind="measured", values=[*own], estimate=mean)
        os = [replace(odd_rates(), page_faults_hz=hz) for hz in faults[value]]
        points.append(Point(value=value, metrics=[metric], os=os))
    return points


def test_figures_of_the_system_are_contrasted_with_the_other_values(tmp_path: Path) -> None:
    steady = [1000.0, 1004.0, 997.0, 1002.0]
    a = swept({1: steady, 2: steady, 4: steady}, {n: [3000.0, 3020.0, 2990.0, 3010.0] for n in (1, 2, 4)})
    slow = [500.0, 503.0, 498.0, 501.0]
    b = swept(
        {1: steady, 2: slow, 4: slow},
        {1: [3300.0, 3310.0, 3290.0, 3305.0], 2: [4500.0, 4520.0, 4480.0, 4510.0], 4: [6000.0, 6020.0, 5980.0, 6010.0]},
    )
    store = RunStore(tmp_path)
    for points in (a, b):
        store.save("sweep", replace(sample_sweep(), id=None, values=[1, 2, 4], points=points, interrupted=False))
    found = compare_sweeps("sweep-0001", "sweep-0002", tmp_path, 1)
    assert [(point.value, point.parted) for point in found.points] == [(1, False), (2, True), (4, True)]
    faults = next(one for one in found.parted_with if one.name == "page_faults_per_query")
    assert (faults.a_mean, faults.b_mean) == pytest.approx((3.0, (9.0 + 12.0) / 2), rel=0.01)
    assert faults.percent == pytest.approx((200 * 6 / 12 + 200 * 9 / 15) / 2, rel=0.01)
    assert faults.elsewhere_percent == pytest.approx(200 * 0.3 / 6.3, rel=0.05)
    assert faults.ci95 is not None and faults.ci95[0] < faults.percent < faults.ci95[1]
    assert faults.elsewhere_ci95 is not None and faults.elsewhere_ci95[0] < 9.5 < faults.elsewhere_ci95[1]
    assert _beside(faults) == pytest.approx(faults.percent - (faults.elsewhere_percent or 0.0))
    assert _beside(replace(faults, percent=-5.0, elsewhere_percent=7.0)) == 12.0
    judged = next(metric for metric in found.points[1].metrics if metric.name == "queries_hz")
    assert (judged.verdict, claim_of_point(found.points[1], judged).verdict) == ("b_lower", "b_lower")
    calm = next(metric for metric in found.points[0].metrics if metric.name == "queries_hz")
    assert calm.difference.ci95 is not None
    assert calm.difference.less_than == pytest.approx(max(map(abs, calm.difference.ci95)))


def saved_side(values: list[float], source: str | None = None) -> Any:
    return SimpleNamespace(metrics=[Figures(name="x", unit="1", kind="measured", values=[*values], source=source)])


def test_a_trend_steps_from_the_older_run_to_the_newer() -> None:
    first, second = [5.1, 5.3, 5.0, 5.2], [9.1, 9.0, 9.4, 9.2]
    none, step, other = _steps([saved_side(first), saved_side(second), saved_side(second, "rapl")], "x")
    expected = compare_unpaired(first, second, seed=1)
    assert none is None and other is None and step is not None and expected.difference_interval is not None
    assert step.difference.b_minus_a == pytest.approx(4.025)
    assert step.difference.percent == pytest.approx(100 * 4.025 / 5.15)
    assert step.difference.ci95 == (expected.difference_interval.low, expected.difference_interval.high)
    far = _steps([saved_side(first), saved_side([90.0, 90.1, 90.2, 90.3])], "x")[1]
    assert far is not None and (far.verdict, far.hint) == ("b_higher", None)


def test_a_saved_comparison_has_the_values_of_each_side(tmp_path: Path) -> None:
    record = comparison()
    name = RunStore(tmp_path).save("compare", replace(record, id=None, system=record.metrics[:1])).id
    for condition, part in (("index", "a"), ("no-index", "b")):
        half = read_side(f"{name}:{condition}", tmp_path)
        assert [figures.values for figures in half.metrics] == [getattr(m, part).values for m in record.metrics]
        assert half.system[0].values == getattr(record.metrics[0], part).values
        assert half.condition == getattr(record, part) and half.primary == record.verdict.metric
        assert half.options["offered_hz"] == 40.0


def test_a_saved_idle_run_has_the_values_of_its_windows_and_its_drift() -> None:
    phase = idle_run().phases[0]
    found = {figures.name: figures.values for figures in _phase_figures(phase)}
    assert found["c0_percent"] == [window.c0_percent for window in phase.windows]
    assert found["wakeups_hz"] == [window.wakeups_hz for window in phase.windows]
    assert found["residency_percent:C6"] == [
        next(state.residency_percent for state in window.states if state.name == "C6") for window in phase.windows
    ]
    for mean, low, high, serious in (
        (0.7, 0.2, 1.2, True), (-0.7, -1.2, -0.2, True), (0.4, 0.2, 0.6, False), (0.7, -0.1, 1.5, False)
    ):  # fmt: skip
        drift = Delta(
            metric="c0_percent", from_phase="a", to_phase="b", difference=Estimate(mean=mean, low=low, high=high)
        )
        threats = _drift_of(replace(idle_run(), drift=[replace(drift, metric="wakeups_hz"), drift]))
        assert [(each.name, each.serious, each.values) for each in threats] == (
            [("drift", True, {"points": mean})] if serious else []
        )


def test_a_finding_takes_its_sides_from_the_record_of_its_step() -> None:
    record = comparison()
    judged = record.metrics[0]
    for part in ("a", "b"):
        own = _of_comparison(record, part, judged.name)
        of = getattr(judged, part)
        assert own is not None and (own.estimate.mean, own.values, own.unit) == (of.mean, of.values, judged.unit)
        assert (own.estimate.low, own.estimate.high) == of.ci95
    assert _of_comparison(record, "a", "nothing") is None
    records: Any = {"points": sample_sweep(), "run": load_run(), "idle": idle_run()}
    found = _figures_of_side("points:8", "queries_hz", records)
    assert found is not None and found.estimate.mean == pytest.approx(32228 / 2)
    alone = _figures_of_side("run", "joules_per_query", records)
    assert alone is not None and alone.estimate == load_run().metrics[2].estimate
    assert _figures_of_side("points:3", "queries_hz", records) is None and _figures_of_side(None, "x", records) is None
    apart = _subtract(Estimate(mean=7.0, low=6.5, high=9.0), Estimate(mean=3.0, low=2.0, high=5.0))
    assert (apart.mean, apart.low, apart.high) == pytest.approx((4.0, 4 - 4.25**0.5, 4 + 5**0.5))
    unknown = _subtract(Estimate(mean=7.0, low=None, high=9.0), Estimate(mean=3.0, low=2.0, high=5.0))
    assert (unknown.mean, unknown.low, unknown.high) == (4.0, None, None)


def test_a_quick_study_has_fewer_and_shorter_windows() -> None:
    steps = [StudyCommand(name=name, command=name, rate_hz=70.0, load_percent=30.0) for name in ("sweep", "run")]  # type: ignore[arg-type]
    for quick, expected in ((False, [(5, 5.0, 0), (10, 6.4, 1)]), (True, [(3, 1.2, 0), (4, 1.2, 1)])):
        found = [StudyOptions(quick=quick, seed=9).loaded(step) for step in steps]
        assert [(each.pairs, each.window_s, each.warm_up_pairs) for each in found] == expected
        assert {(each.rate_hz, each.load_percent, each.seed) for each in found} == {(70.0, 30.0, 9)}
        idle = StudyOptions(quick=quick).idle(StudyCommand(name="i", command="idle", clients=7))
        assert (idle.clients, idle.duration_s, idle.repeat) == ((7, 1.5, 3) if quick else (7, 8.0, 5))


def test_the_sides_of_a_sweep_are_paired_by_round() -> None:
    points = swept({1: [10.0, 10.4, 9.8, 10.2], 8: [13.0, 13.8, 12.6, 13.4]}, {1: [], 8: []})
    record = replace(sample_sweep(), points=points, options={"in_rounds": True})
    wanted = PublishedFinding(label="l", then="t", metric="queries_hz", a="s:1", b="s:8")
    sides = [_figures_of_side(f"s:{value}", "queries_hz", {"s": record}) for value in (1, 8)]
    found = _compare_sides(wanted, sides[0], sides[1], {"s": record}, 1)  # type: ignore[arg-type]
    assert found.difference is not None and found.ratio is not None and found.is_found
    assert (found.difference.mean, found.ratio.mean) == pytest.approx((3.1, 52.8 / 40.4))
    apart = _compare_sides(wanted, sides[0], sides[1], {"s": replace(record, options={})}, 1)  # type: ignore[arg-type]
    assert not apart.is_found and apart.judged_count == 1
