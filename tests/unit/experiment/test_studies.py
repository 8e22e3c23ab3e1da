# SPDX-License-Identifier: Apache-2.0
"""A study's findings against records whose figures are known, and the order of its steps if one fails or is ended."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from powerprof.experiment.plan import check_comparable, check_options
from powerprof.experiment.study import (
    StepRecord,
    StudyOptions,
    StudyRow,
    StudyRun,
    _compare_sides,
    _figures_of_side,
    _of_comparison,
    _subtract,
    build_rows,
    describe_plan,
    judge_row,
    measure_study,
)
from powerprof.model.records import Estimate, ServerExits
from powerprof.model.text import Say
from powerprof.report.kinds import lines_of
from powerprof.system.errors import Interrupted, PowerprofError, UsageError
from powerprof.workloads.catalogue import find_one
from powerprof.workloads.reading import resolve
from powerprof.workloads.studies import Study, StudyCommand, StudyFinding, find_study, list_studies
from tests.unit.experiment.test_sweeps import swept
from tests.unit.report.sample_records import comparison, idle_run, load_run, sweep

IDLE = StudyCommand(name="idle", command="idle")
INDEX = StudyCommand(name="index", command="compare", conditions=["index", "no-index"])
POINTS = StudyCommand(name="points", command="sweep", conditions=["city:index"], values=[1, 8])
RUN = StudyCommand(name="run", command="run", conditions=["city:index"])


def finding(metric: str, a: str | None, b: str, **more: object) -> StudyFinding:
    return StudyFinding(label=f"{metric} of {b}", then="then", metric=metric, a=a, b=b, **more)  # type: ignore[arg-type]


STUDY = Study(
    title="A study",
    published="2009.",
    page="a.md",
    steps=[IDLE, INDEX, POINTS, RUN],
    findings=[
        finding("wakeups_hz", "idle:baseline", "idle:clients", expected="same", within=40.0),
        finding("c0_ms_per_query_server", "index:a", "index:b", expected="lower"),
        finding("c0_ms_per_query_server", "index:b", "index:a", expected="higher"),
        finding("queries_hz", "points:1", "points:8"),
        finding("c0_ms_per_query_server", None, "run"),
        finding("no_such_metric", "index:a", "index:b", expected="higher"),
    ],
)
RECORDS: dict[str, StepRecord] = {"idle": idle_run(), "index": comparison(), "points": sweep(), "run": load_run()}


def measured(step: StudyCommand, options: StudyOptions, say: Say) -> StepRecord:
    return RECORDS[step.name]


def keep(command: str, record: StepRecord) -> StepRecord:
    return record


def study_run(measure: object = measured, **options: object) -> StudyRun:
    chosen = StudyOptions(**options)  # type: ignore[arg-type]
    return measure_study("a", STUDY, chosen, keep, lambda text: None, measure)  # type: ignore[arg-type]


def test_the_figures_of_a_study_are_those_of_its_runs() -> None:
    same, index, turned, points, alone, none = build_rows(STUDY, RECORDS, 1)
    phases = {phase.name: phase for phase in idle_run().phases}
    assert same.a == phases["baseline"].intervals["wakeups_hz"] and same.b == phases["clients"].intervals["wakeups_hz"]
    deltas = {(one.from_phase, one.to_phase, one.metric): one.difference for one in idle_run().deltas}
    assert same.difference == deltas["baseline", "clients", "wakeups_hz"] and same.runs == ["idle-1031"]
    judged = next(metric for metric in comparison().metrics if metric.name == "c0_ms_per_query_server")
    assert index.a is not None and index.b is not None and index.ratio is not None and judged.ratio is not None
    assert (index.a.mean, index.b.mean) == (judged.a.mean, judged.b.mean)
    assert (index.ratio.mean, (index.ratio.low, index.ratio.high)) == (judged.ratio.b_over_a, judged.ratio.ci95)
    # Not in the order of the comparison: the same figures, judged as two samples.
    assert turned.a == index.b and turned.b == index.a and turned.ratio is not None
    assert turned.ratio.mean == pytest.approx(1 / index.ratio.mean, rel=0.1)
    assert {index.outcome, turned.outcome} <= {"confirmed", "contradicted"} and index.outcome == turned.outcome
    rates = [next(m for m in point.metrics if m.name == "queries_hz").estimate for point in sweep().points[:4]]
    assert (points.a, points.b) == (rates[0], rates[3]) and points.outcome == "no claim"
    assert alone.a is None and alone.b is not None and alone.outcome == "no claim"
    assert none.outcome == "not measured" and none.b is None and none.runs == []


def test_the_server_s_own_wake_ups_are_compared_between_phases() -> None:
    """Their doubts add as squares: 1 of one phase and 2 of the other are 2.24 of the difference."""
    counted = {"server": Estimate(mean=3.0, low=2.0, high=4.0), "clients": Estimate(mean=4.0, low=2.0, high=6.0)}
    idle = idle_run()
    phases = [
        replace(phase, server_exits=ServerExits(count=9, window_s=3.0, wakeups_hz=counted[phase.name]))
        if phase.name in counted
        else phase
        for phase in idle.phases
    ]
    wanted = finding("server_wakeups_hz", "idle:server", "idle:clients", expected="same", within=5.0)
    (row,) = build_rows(replace(STUDY, findings=[wanted]), {"idle": replace(idle, phases=phases)}, 1)
    assert (row.a, row.b, row.unit, row.outcome) == (counted["server"], counted["clients"], "1/s", "confirmed")
    assert row.difference is not None and row.difference.low is not None and row.difference.high is not None
    assert row.difference.low == pytest.approx(1 - 5**0.5) and row.difference.high == pytest.approx(1 + 5**0.5)


@pytest.mark.parametrize(("c0_percent", "outcome"), [(40.0, "confirmed"), (99.0, "inconclusive")])
def test_a_busy_host_confirms_no_equal_c0(c0_percent: float, outcome: str) -> None:
    """Other programs use the CPUs up, so a setting that makes them poll would not raise C0."""
    idle = idle_run()
    figures = {"c0_percent": Estimate(mean=c0_percent, low=c0_percent - 0.1, high=c0_percent + 0.1)}
    phases = [replace(phase, c0_percent=c0_percent, intervals=figures) for phase in idle.phases]
    deltas = [
        replace(delta, difference=Estimate(mean=0.0, low=-0.1, high=0.1)) if delta.metric == "c0_percent" else delta
        for delta in idle.deltas
    ]
    wanted = finding("c0_percent", "idle:baseline", "idle:clients", expected="same", within=2.0)
    (row,) = build_rows(replace(STUDY, findings=[wanted]), {"idle": replace(idle, phases=phases, deltas=deltas)}, 1)
    assert row.outcome == outcome


@pytest.mark.parametrize(
    ("expected", "within", "ends", "found", "said", "reason"),
    [
        ("higher", None, (0.1, 2.0), True, "confirmed", "interval"),
        ("higher", None, (-2.0, -0.1), True, "contradicted", "interval"),
        ("lower", None, (-2.0, -0.1), True, "confirmed", "interval"),
        ("lower", None, (-2.0, 0.1), True, "inconclusive", "wide"),
        ("lower", None, (-2.0, -0.1), False, "inconclusive", "chance"),
        ("lower", None, None, True, "inconclusive", "few windows"),
        ("same", 1.0, (-0.5, 0.9), True, "confirmed", "within"),
        ("same", 1.0, (0.2, 0.9), True, "confirmed", "within"),
        ("same", 1.0, (-0.5, 1.1), True, "inconclusive", "wide"),
        ("same", 1.0, (1.1, 2.0), True, "contradicted", "beyond"),
        ("same", 1.0, None, True, "inconclusive", "few windows"),
        (None, None, (1.0, 2.0), True, "no claim", ""),
    ],
)
def test_the_outcome_and_its_reason_follow_from_the_interval(
    expected: Any, within: float, ends: tuple[float, float] | None, found: bool, said: str, reason: str
) -> None:
    low, high = ends or (None, None)
    row = StudyRow(
        label="l",
        then="t",
        metric="wakeups_hz",
        unit="1/s",
        a=Estimate(mean=1.0, low=None, high=None),
        b=Estimate(mean=2.0, low=None, high=None),
        difference=Estimate(mean=1.0, low=low, high=high),
        expected=expected,
        within=within,
    )
    judged = judge_row(row, is_found=found)
    assert (judged.outcome, judged.reason) == (said, reason)
    # A saved row is judged by the same rule.
    again = judge_row(replace(row, outcome=judged.outcome))
    assert again == judged


def test_a_step_that_fails_is_noted_and_the_next_is_measured() -> None:
    def one_fails(step: StudyCommand, options: StudyOptions, say: Say) -> StepRecord:
        if step.name == "index":
            raise PowerprofError("no room", "make some")
        return measured(step, options, say)

    record = study_run(measure=one_fails)
    assert [step.problem for step in record.steps] == [None, "no room (make some)", None, None]
    assert record.rows[1].outcome == "not measured" and record.rows[3].b is not None
    assert record.ended is None

    def all_fail(step: StudyCommand, options: StudyOptions, say: Say) -> StepRecord:
        raise PowerprofError(f"{step.name} fails")

    with pytest.raises(PowerprofError, match="idle fails"):
        study_run(measure=all_fail)


def test_an_interrupted_study_keeps_its_finished_steps() -> None:
    def ended(step: StudyCommand, options: StudyOptions, say: Say) -> StepRecord:
        if step.name == "points":
            raise Interrupted("interrupted")
        return measured(step, options, say)

    record = study_run(measure=ended)
    assert record.ended is not None and [step.name for step in record.steps] == ["idle", "index"]
    assert record.rows[0].b is not None and record.rows[3].outcome == "not measured"
    assert "Interrupted: partial results." in lines_of(record, 200)

    def at_once(step: StudyCommand, options: StudyOptions, say: Say) -> StepRecord:
        raise Interrupted("interrupted")

    with pytest.raises(Interrupted):
        study_run(measure=at_once)


def test_only_the_chosen_steps_are_measured() -> None:
    record = study_run(only=("index",))
    assert [step.name for step in record.steps] == ["index"] and record.rows[0].outcome == "not measured"


def test_the_time_is_that_of_its_steps() -> None:
    study = find_study("power-efficiency")
    assert describe_plan(study, StudyOptions()) == "Power efficiency of MySQL: 10 steps, about 26 min"
    assert describe_plan(study, StudyOptions(quick=True)) == "Power efficiency of MySQL: 10 steps, about 6 min"


@pytest.mark.parametrize("name", list_studies())
def test_shipped_studies_have_valid_commands(name: str) -> None:
    """What its conditions refuse is not found out after the steps before have been measured."""
    for step in find_study(name).steps:
        cases = [resolve(*find_one(condition)) for condition in step.conditions]
        if cases:
            check_comparable(cases)
            check_options(cases, StudyOptions().loaded(step))


def test_silent_servers_can_be_compared() -> None:
    cases = [resolve(*find_one(f"pg:{name}")) for name in ("no-clients", "hundred-connections", "index")]
    check_comparable(cases[:2])
    with pytest.raises(UsageError, match="loads of different kinds"):
        check_comparable(cases)


def test_a_finding_takes_its_sides_from_the_record_of_its_step() -> None:
    record = comparison()
    judged = record.metrics[0]
    for part in ("a", "b"):
        own = _of_comparison(record, part, judged.name)
        of = getattr(judged, part)
        assert own is not None and (own.estimate.mean, own.values, own.unit) == (of.mean, of.values, judged.unit)
        assert (own.estimate.low, own.estimate.high) == of.ci95
    assert _of_comparison(record, "a", "nothing") is None
    records: Any = {"points": sweep(), "run": load_run(), "idle": idle_run()}
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
    record = replace(sweep(), points=points)
    wanted = StudyFinding(label="l", then="t", metric="queries_hz", a="s:1", b="s:8")
    sides = [_figures_of_side(f"s:{value}", "queries_hz", {"s": record}) for value in (1, 8)]
    found = _compare_sides(wanted, sides[0], sides[1], {"s": record}, 1)  # type: ignore[arg-type]
    assert found.difference is not None and found.ratio is not None and found.is_found
    assert (found.difference.mean, found.ratio.mean) == pytest.approx((3.1, 52.8 / 40.4))


def test_the_record_of_a_study_is_that_of_its_steps() -> None:
    found = study_run(seed=7, quick=True)
    assert [(step.name, step.run) for step in found.steps] == [(name, record.id) for name, record in RECORDS.items()]
    assert (found.study, found.title, found.published, found.page) == ("a", "A study", "2009.", "a.md")
    assert found.options == {"quick": True, "seed": 7, "only": []} and len(found.notes) == 1
    assert found.host == idle_run().host and all((step.seconds_s or 0.0) >= 0 for step in found.steps)
    assert [row.runs for row in found.rows[:5]] == [
        ["idle-1031"],
        ["compare-0007"],
        ["compare-0007"],
        ["sweep-0001"],
        ["run-0002"],
    ]
    assert study_run(only=["run"]).steps[0].name == "run" and study_run(only=["run"]).notes == []
