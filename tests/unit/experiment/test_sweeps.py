# SPDX-License-Identifier: Apache-2.0
"""Rounds of a sweep, and two saved sweeps: where they part, by how much, and what parts with them."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from msgspec.structs import replace

from powerprof.cli.compare import _judge
from powerprof.experiment.ending import Ending
from powerprof.experiment.paces import PaceWindow, ThreadPace
from powerprof.experiment.records import ConditionRecord
from powerprof.experiment.sweep_comparison import (
    SweepSide,
    _beside,
    _others,
    are_sweeps,
    claim_of_point,
    compare_sweeps,
)
from powerprof.experiment.sweep_record import (
    Point,
    PointsCompared,
    Sweep,
    _read_rounds,
    compare_metrics,
    compare_sweep_points,
    similar_points,
)
from powerprof.experiment.sweep_rounds import (
    PointMeasurements,
    Progress,
    _count_missing,
    _gathered_point,
    drop_incomplete_round,
)
from powerprof.experiment.trend import build_trend
from powerprof.model.records import Ended, Estimate, RunMetric, ServerInfo, ended_by_signal
from powerprof.model.runs import RunStore
from powerprof.model.system_activity import OsRates
from powerprof.report.wording import word_record
from powerprof.system.errors import UsageError, WorseError
from powerprof.workloads.definition import Value
from tests.unit.experiment.builders import block, odd_block, odd_rates
from tests.unit.report.sample_records import load_run, sweep, sweep_comparison


def _gathered(rounds: int, error: str | None = None) -> PointMeasurements:
    return PointMeasurements([block(number, "a") for number in range(rounds)], [OsRates()] * rounds, error=error)


def _kept(gathered: dict[Value, PointMeasurements]) -> list[tuple[int, int]]:
    drop_incomplete_round(gathered)
    return [(len(had.blocks), had.first_round) for had in gathered.values()]


def test_an_incomplete_round_is_dropped() -> None:
    found: dict[Value, PointMeasurements] = {1: _gathered(3), 2: _gathered(2), 4: _gathered(3)}
    assert _kept(found) == [(2, 0), (2, 0), (2, 0)]
    assert len(found[1].rates) == 2
    assert _kept({1: _gathered(1), 2: _gathered(0), 4: _gathered(0)}) == [(0, 0)] * 3
    assert _kept({1: _gathered(2), 2: _gathered(2)}) == [(2, 0), (2, 0)]
    assert _kept({}) == []


def test_a_failed_point_continues_in_separate_rounds() -> None:
    """Tried again it is of another time: it shares no round with those that were measured before."""
    assert _kept({1: _gathered(3), 2: _gathered(0, "refused"), 4: _gathered(3)}) == [(3, 0), (0, 3), (3, 0)]
    found: dict[Value, PointMeasurements] = {1: _gathered(3), 2: _gathered(1), 4: _gathered(3, "died")}
    assert _kept(found) == [(3, 0), (1, 3), (3, 3)]
    assert all(had.error is None for had in found.values())


def _saved(tmp_path: Path, *sweeps: Sweep) -> Path:
    for one in sweeps:
        RunStore(tmp_path).save("sweep", replace(one, id=None))
    return tmp_path


def test_unshared_values_are_left_out_with_a_note(tmp_path: Path) -> None:
    whole = sweep()
    runs = _saved(tmp_path, whole, replace(whole, points=whole.points[1:3]))
    found = word_record(compare_sweeps("sweep-0001", "sweep-0002", runs, 1))
    assert [point.value for point in found.points] == [2, 4]
    assert found.notes == ["clients 1, 8, 1024: not measured in both sweeps"]


def test_incomparable_sweeps_are_refused(tmp_path: Path) -> None:
    whole = sweep()
    runs = _saved(tmp_path, whole, replace(whole, workload="oltp"), replace(whole, key="load.rate_hz"))
    with pytest.raises(UsageError, match="one sweep ran city and the other oltp"):
        compare_sweeps("sweep-0001", "sweep-0002", runs, 1)
    with pytest.raises(UsageError, match=r"varied load\.clients and the other load\.rate_hz"):
        compare_sweeps("sweep-0001", "sweep-0003", runs, 1)
    RunStore(runs).save("run", replace(load_run(), id=None))
    with pytest.raises(UsageError, match="run-0001 is not"):
        are_sweeps("sweep-0001", "run-0001", runs)


def test_a_worse_sweep_fails_on_request() -> None:
    with pytest.raises(WorseError, match="lower with sweep-0002"):
        _judge(sweep_comparison())


CONDITION = ConditionRecord(name="index", workload="city", title="", load={}, settings={}, work="w")


def thread(name: str, wakings: float | None, exits: float, period_ms: float | None = None) -> ThreadPace:
    return ThreadPace(thread=name, wakings_hz=wakings, exits_hz=exits, period_ms=period_ms, remedy=f"slow {name}")


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
    assert _read_rounds(points[1], "queries_hz") == {1: 30.0, 2: 46.0, 3: 59.0}
    record = replace(sweep(), points=points, options={})
    (pair,) = compare_sweep_points(record)
    assert (pair.metric, pair.a, pair.b) == ("queries_hz", 1, 2)
    assert pair.percent == pytest.approx(100 * ((30 / 20 * 46 / 30 * 59 / 41) ** (1 / 3) - 1))
    # At a given rate the throughput is no result.
    assert compare_sweep_points(replace(record, options={"rate_hz": 9.0})) == []
    assert compare_sweep_points(replace(record, key="load.rate_hz")) == []
    found = compare_metrics({"x": {"a": {0: 1.0, 1: 1.1, 2: 0.9}, "b": {0: 8.0, 1: 8.3, 2: 7.6}}})
    assert [(each.a, each.b, each.differ) for each in found] == [("a", "b", True)]
    assert found[0].ci95 is not None and found[0].claim.verdict == "b_higher"


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
    bounds = {value: claim.bound for value, claim in similar_points(compared, "x", 1).items()}
    assert bounds == {2: 5.0, 4: 7.0, 16: None}


def test_a_continued_sweep_keeps_its_points() -> None:
    rounds = [Point(value=value, blocks=[odd_block(n) for n in range(count)]) for value, count in ((1, 2), (2, 1))]
    old = Point(value=4, metrics=load_run().metrics)
    record = replace(sweep(), values=[1, 2, 4, 8], points=[*rounds, old], notes=["seen"], ended=ended_by_signal(True))
    progress = Progress(record)
    assert [len(progress.gathered[value].blocks) for value in (1, 2, 4, 8)] == [1, 1, 0, 0]
    assert progress.kept == {4: old}
    progress.gathered[2].error = "gone"
    progress.note("seen")
    assert progress.has_result() and progress.record().ended
    found = progress.record(Ending(Ended("failed", "late")))
    assert [point.value for point in found.points] == [1, 2, 4] and found.notes == ["seen", "2: ended early: gone"]
    assert (found.ended, progress.record(Ending()).ended) == (Ended("failed", "late"), None)
    progress.failed([1, 2, 8], "late")
    assert [progress.gathered[value].error for value in (1, 2, 8)] == [None, "gone", "late"]


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
        store.save("sweep", replace(sweep(), id=None, values=[1, 2, 4], points=points, ended=None))
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


def test_a_comparison_of_sweeps_takes_each_field_from_its_own_side(tmp_path: Path) -> None:
    store, first = RunStore(tmp_path), sweep()
    second = replace(first, started_at="2026-12-01", host={"cpus": 8}, server=ServerInfo(version="12"), ended=None)
    for each in (replace(first, options={"x": 1}), second):
        store.save("sweep", replace(each, id=None))
    found = compare_sweeps("sweep-0001", "sweep-0002", tmp_path, 5)
    assert (found.a.run, found.b.run, found.seed, found.parameter) == ("sweep-0001", "sweep-0002", 5, "clients")
    assert (found.started_at, found.host) == ("2026-12-01", {"cpus": 8})
    assert (found.a.started_at, found.b.started_at) == (first.started_at, "2026-12-01")
    assert (found.a.server, found.b.server) == (first.server, second.server)
    assert (found.a.options, found.b.options) == ({"x": 1}, first.options)
    assert [(threat.name, threat.values) for threat in found.threats] == [
        ("unpaired", {}),
        ("interrupted", {"run": "sweep-0001"}),
    ]
    back = compare_sweeps("sweep-0002", "sweep-0001", tmp_path, 5)
    assert (back.started_at, back.host, back.a.run) == ("2026-12-01", first.host, "sweep-0002")


def test_a_trend_has_the_runs_of_one_condition_in_their_order(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for day, factor in (("01", 1.0), ("02", 1.5)):
        metrics = [
            replace(metric, values=[factor * n for n in (10.0, 10.1, 9.9, 10.2)]) for metric in load_run().metrics
        ]
        own = replace(load_run(), id=None, started_at=f"2026-01-{day}", metrics=metrics, host={"kernel": day})
        store.save("run", own)
    store.save("run", replace(load_run(), id=None, condition=replace(CONDITION, name="other")))
    found = build_trend("run-0002", tmp_path)
    assert (found.metric, found.started_at, found.condition) == (
        "c0_ms_per_query_server",
        "2026-01-02",
        load_run().condition,
    )
    assert [(point.run, point.started_at) for point in found.points] == [
        ("run-0001", "2026-01-01"),
        ("run-0002", "2026-01-02"),
    ]
    assert [point.differences for point in found.points] == [
        [],
        ["host kernel: 01 → 02", "date: 2026-01-01 → 2026-01-02"],
    ]
    first, second = (point.step for point in found.points)
    assert first is None and second is not None
    assert second.difference.percent == pytest.approx(50.0)
    assert [metric.estimate.mean for metric in found.points[1].metrics] == pytest.approx([15.075] * 3)
