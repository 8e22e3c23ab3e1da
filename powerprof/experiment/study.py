# SPDX-License-Identifier: Apache-2.0
"""Measure a published study again and compare its findings with the published ones: `powerprof.study/1`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from powerprof.database import catalogue
from powerprof.energy.request import DEFAULT_REQUEST, EnergyRequest
from powerprof.experiment import sweep
from powerprof.experiment.bench_options import BenchOptions
from powerprof.experiment.claims import are_starts_repeated
from powerprof.experiment.compare import compare_conditions
from powerprof.experiment.ending import Ending
from powerprof.experiment.host_settings import is_possible
from powerprof.experiment.idle import QUICK_REPEAT, QUICK_WINDOW_S, IdlePlan, measure_idle
from powerprof.experiment.options import QUICK_BASELINES, QUICK_PAIRS, ExperimentOptions
from powerprof.experiment.options import QUICK_WINDOW_S as QUICK_BLOCK_S
from powerprof.experiment.records import Comparison, LoadRun, Metric, Range
from powerprof.experiment.run import run_condition
from powerprof.experiment.sweep import CONDITION, estimate_seconds, find_key
from powerprof.experiment.sweep_record import SERVER, Sweep
from powerprof.experiment.verdict import judge_saved
from powerprof.measure.clock import format_now
from powerprof.measure.progress import announce
from powerprof.model.metrics import find_metric
from powerprof.model.records import Estimate, IdleRun, Kind, Phase, Record, RunMetric
from powerprof.model.text import Say, approximate_time
from powerprof.statistics.counts import difference_of_rates
from powerprof.statistics.intervals import Interval
from powerprof.statistics.verdicts import UNKNOWN_CLAIM, Claim, Verdict, judge_claim
from powerprof.system import signals
from powerprof.system.errors import Interrupted, PowerprofError
from powerprof.workloads.catalogue import find_one
from powerprof.workloads.reading import resolve
from powerprof.workloads.studies import Basis, Expected, Study, StudyCommand, StudyFinding

StepRecord = IdleRun | LoadRun | Comparison | Sweep
Outcome = Literal["confirmed", "contradicted", "inconclusive", "not measured", "no claim"]
# Idle exits that the server's own threads caused in a phase of idle. Other programs do not change them.
SERVER_WAKEUPS = "server_wakeups_hz"


class StudyStep(msgspec.Struct, frozen=True, kw_only=True):
    """One command of the study, its run, and problems."""

    name: str
    typed: str
    run: str | None = None
    seconds_s: float | None = None
    problem: str | None = None
    doubts: list[str] = []


class StudyRow(msgspec.Struct, frozen=True, kw_only=True):
    """One finding, with today's figures.

    Attributes:
        expected: the published or expected relation.
        basis: whether somebody published the relation as a finding.
        within: for `same`, the tolerance: the bound on the interval of the difference.
        runs: source of the figures.
        hint: direction of an inconclusive difference that may be chance, among the `judged_count` figures.
    """

    label: str
    then: str
    metric: str
    unit: str = ""
    kind: Kind = "measured"
    a: Estimate | None = None
    b: Estimate | None = None
    difference: Estimate | None = None
    ratio: Estimate | None = None
    expected: Expected | None = None
    basis: Basis = "finding"
    within: float | None = None
    outcome: Outcome = "not measured"
    runs: list[str] = []
    hint: Verdict | None = None
    judged_count: int | None = None


class StudyRun(Record, frozen=True, kw_only=True):
    """A repeated study: steps and findings."""

    study: str
    title: str
    published: str
    page: str
    steps: list[StudyStep]
    rows: list[StudyRow]
    schema: Literal["powerprof.study/1"] = "powerprof.study/1"


def _unit_of(name: str) -> str:
    return "" if (metric := find_metric(name)) is None else metric.unit


def build_rows(study: Study, measured: Mapping[str, StepRecord], seed: int) -> list[StudyRow]:
    """Return every finding with its figures from these steps."""
    return [_study_row(finding, measured, seed) for finding in study.findings]


def _study_row(finding: StudyFinding, measured: Mapping[str, StepRecord], seed: int) -> StudyRow:
    empty = StudyRow(
        label=finding.label,
        then=finding.then,
        metric=finding.metric,
        unit=_unit_of(finding.metric),
        expected=finding.expected,
        basis=finding.basis,
        within=finding.within,
    )
    b = _figures_of_side(finding.b, finding.metric, measured)
    a = _figures_of_side(finding.a, finding.metric, measured) if finding.a else None
    if b is None or (finding.a and a is None):
        return empty
    runs = [str(measured[side.partition(":")[0]].id) for side in (finding.a, finding.b) if side]
    row = msgspec.structs.replace(
        empty, unit=b.unit, kind=b.kind, b=b.estimate, runs=[run for run in dict.fromkeys(runs) if run != "None"]
    )
    if a is None:
        return msgspec.structs.replace(row, outcome="no claim")
    between = _compare_sides(finding, a, b, measured, seed)
    row = msgspec.structs.replace(
        row, a=a.estimate, difference=between.difference, ratio=between.ratio, judged_count=between.judged_count
    )
    judged = judge_row(row, is_found=between.is_found)
    return msgspec.structs.replace(row, outcome=judged.outcome, hint=judged.claim.hint)


Reason = Literal["", "interval", "chance", "wide", "few windows", "within", "beyond", "no room"]


class JudgedRow(NamedTuple):
    """The outcome of a finding, the rule that decided, and what its interval permits to say.

    The rules: the `interval` of the difference has a direction; that may be `chance`; it contains 0 or exceeds the
    tolerance (`wide`); there is none (`few windows`); it is `within` or `beyond` the tolerance; the figure has
    `no room` to rise by the tolerance.
    """

    outcome: Outcome
    reason: Reason = ""
    claim: Claim = UNKNOWN_CLAIM


def judge_row(row: StudyRow, *, is_found: bool | None = None) -> JudgedRow:
    """Judge a finding by the interval of its difference.

    `is_found` is false if the interval excludes 0, but the family of figures of its comparison makes that chance; None
    is what the row says.
    """
    if row.b is None:
        return JudgedRow("not measured")
    if row.expected is None:
        return JudgedRow("no claim")
    difference = row.difference
    if difference is None or difference.low is None or difference.high is None:
        return JudgedRow("inconclusive", "few windows")
    low, high = difference.low, difference.high
    if row.expected == "same":
        return _judge_same(row, low, high)
    found = row.outcome != "inconclusive" if is_found is None else is_found
    verdict: Verdict = "inconclusive" if not found or low <= 0 <= high else "b_higher" if low > 0 else "b_lower"
    claim = judge_claim(verdict, (low, high))
    if claim.verdict == "inconclusive":
        return JudgedRow("inconclusive", "chance" if claim.hint else "wide", claim)
    return JudgedRow("confirmed" if claim.verdict == f"b_{row.expected}" else "contradicted", "interval", claim)


def _judge_same(row: StudyRow, low: float, high: float) -> JudgedRow:
    """Judge whether the interval of a difference is within the tolerance; a busy host shows no rise of a share."""
    most = row.within or 0.0
    if low > most or high < -most:
        return JudgedRow("contradicted", "beyond")
    if low < -most or high > most:
        return JudgedRow("inconclusive", "wide")
    if row.unit == "%" and row.a is not None and row.a.mean > 100 - most:
        return JudgedRow("inconclusive", "no room")
    return JudgedRow("confirmed", "within")


class _SideDifference(NamedTuple):
    difference: Estimate | None = None
    ratio: Estimate | None = None
    is_found: bool = True
    judged_count: int | None = None


def _compare_sides(
    finding: StudyFinding, a: RunMetric, b: RunMetric, measured: Mapping[str, StepRecord], seed: int
) -> _SideDifference:
    """Return the difference b − a and the ratio b / a with their intervals."""
    first, second = (str(side).partition(":") for side in (finding.a, finding.b))
    record = measured[first[0]] if first[0] == second[0] else None
    if isinstance(record, IdleRun):
        phases = (first[2], second[2], finding.metric)
        deltas = (delta for delta in record.deltas if (delta.from_phase, delta.to_phase, delta.metric) == phases)
        own = _subtract(b.estimate, a.estimate) if finding.metric == SERVER_WAKEUPS else None
        return _SideDifference(next((delta.difference for delta in deltas), own))
    if isinstance(record, Comparison) and (first[2], second[2]) == ("a", "b"):
        families = (record.metrics, record.system)
        judged = (_judged(metric, len(each)) for each in families for metric in each if metric.name == finding.metric)
        return next(judged, _SideDifference())
    # Each round of a sweep measures every point, in a new order.
    paired = (
        isinstance(record, Sweep)
        and len(a.values) == len(b.values)
        and are_starts_repeated(record.starts_count, len(a.values))
    )
    both = judge_saved([a], [b], finding.metric, seed, paired=paired)
    return _judged(both[0], 1) if both else _SideDifference()


def _subtract(b: Estimate, a: Estimate) -> Estimate:
    """Return b − a of two windows that were counted one after the other."""
    difference = b.mean - a.mean
    if b.low is None or b.high is None or a.low is None or a.high is None:
        return Estimate(mean=difference, low=None, high=None)
    between = difference_of_rates(a.mean, Interval(a.low, a.high, ""), b.mean, Interval(b.low, b.high, ""))
    return Estimate(mean=difference, low=between.low, high=between.high)


def _judged(metric: Metric, family: int) -> _SideDifference:
    found, ratio = metric.difference, metric.ratio
    difference = None if found.b_minus_a is None else _estimate(found.b_minus_a, found.ci95)
    times = None if ratio is None else _estimate(ratio.b_over_a, ratio.ci95)
    return _SideDifference(difference, times, metric.verdict != "inconclusive", family)


def _estimate(mean: float, ends: Range | None) -> Estimate:
    low, high = ends if ends is not None else (None, None)
    return Estimate(mean=mean, low=low, high=high)


def _figures_of_side(side: str | None, name: str, measured: Mapping[str, StepRecord]) -> RunMetric | None:
    """Return one side of a finding from the record of its step; None if it has no such metric."""
    step, _, part = (side or "").partition(":")
    record = measured.get(step)
    if isinstance(record, IdleRun):
        phase = next((phase for phase in record.phases if phase.name == part), None)
        return None if phase is None else _of_phase(phase, name)
    if isinstance(record, Comparison):
        return _of_comparison(record, part, name)
    if isinstance(record, Sweep):
        points = [point for point in record.points if str(point.value) == part]
        return next((metric for point in points for metric in [*point.metrics] if metric.name == name), None)
    metrics = [*record.metrics, *record.system] if isinstance(record, LoadRun) else []
    return next((metric for metric in metrics if metric.name == name), None)


def _of_phase(phase: Phase, name: str) -> RunMetric | None:
    found = phase.intervals.get(name)
    if name == SERVER_WAKEUPS and phase.server_exits is not None:
        found = phase.server_exits.wakeups_hz
    if found is None:
        value = getattr(phase, name, None)
        if not isinstance(value, float):
            return None
        found = Estimate(mean=value, low=None, high=None)
    values = [getattr(window, name, None) for window in phase.windows]
    return RunMetric(name=name, unit=_unit_of(name), kind="measured", estimate=found, values=values)


def _of_comparison(record: Comparison, part: str, name: str) -> RunMetric | None:
    for metric in (*record.metrics, *record.system):
        side = metric.a if part == "a" else metric.b
        if metric.name == name and side.mean is not None:
            return RunMetric(
                name=name,
                unit=metric.unit,
                kind=metric.kind,
                estimate=_estimate(side.mean, side.ci95),
                values=side.values,
                source=metric.source,
            )
    return None


# Windows of idle and of sweep.
_IDLE_WINDOW_S, _IDLE_REPEAT = 8.0, 5
_SWEEP_WINDOW_S, _SWEEP_ROUNDS, _QUICK_ROUNDS = 5.0, 5, 3
# The servers of a topology start one after the other.
_TOPOLOGY_START_S = 10.0


class SaveStep(Protocol):
    """A function that saves the record of a step and returns it with its ID."""

    def __call__(self, command: str, record: StepRecord) -> StepRecord: ...


class StudyOptions(msgspec.Struct, frozen=True):
    """The options of a study. `runs_dir` is the store of its sweeps, unless `keeps` is false."""

    quick: bool = False
    seed: int = 1
    energy: EnergyRequest = DEFAULT_REQUEST
    residency_source: str = "cpuidle"
    only: Sequence[str] = ()
    runs_dir: Path | None = None
    keeps: bool = True

    def loaded(self, step: StudyCommand) -> ExperimentOptions:
        """Return the options of a run, a comparison or a sweep."""
        if step.command == "sweep":
            pairs, window_s = (_QUICK_ROUNDS if self.quick else _SWEEP_ROUNDS), _SWEEP_WINDOW_S
        else:
            pairs, window_s = (QUICK_PAIRS if self.quick else 10), 6.4
        options = ExperimentOptions(
            pairs=pairs,
            window_s=QUICK_BLOCK_S if self.quick else window_s,
            seed=self.seed,
            rate_hz=step.rate_hz,
            load_percent=step.load_percent,
            attribute_s=step.attribute_s,
            on_cpu=step.on_cpu,
            energy=self.energy,
            residency_source=self.residency_source,
            quick=self.quick and step.command == "compare",
        )
        if self.quick and step.command != "sweep":
            options = replace(options, baseline_windows=QUICK_BASELINES)
        return replace(options, warm_up_pairs=0) if step.command == "sweep" else options

    def idle(self, step: StudyCommand) -> IdlePlan:
        """Return the plan of an idle run."""
        return IdlePlan(
            clients=step.clients,
            duration_s=QUICK_WINDOW_S if self.quick else _IDLE_WINDOW_S,
            repeat=QUICK_REPEAT if self.quick else _IDLE_REPEAT,
            quick=self.quick,
            residency_source=self.residency_source,
            energy=self.energy,
        )


def estimate_study_seconds(study: Study, options: StudyOptions) -> float:
    """Return the approximate duration in s."""
    return sum(_seconds(step, options) for step in study.steps if not options.only or step.name in options.only)


def _seconds(step: StudyCommand, options: StudyOptions) -> float:
    if step.command == "idle":
        return options.idle(step).seconds
    if step.command == "sweep":
        workload, _ = find_one(step.conditions[0])
        values = step.values or find_key(workload, step.parameter)[1]
        if step.parameter == CONDITION:
            values = [value for value in values if is_possible(workload.definition.conditions[str(value)].host)]
        return estimate_seconds(len(values), options.loaded(step), baseline=step.parameter == SERVER)
    cases = [resolve(*find_one(name)) for name in step.conditions]
    more = sum(_TOPOLOGY_START_S for case in cases if case.topology.kind != "standalone")
    return options.loaded(step).seconds(len(cases)) + more


def _say_step(say: Say, place: str, line: str) -> None:
    """Print the progress of a step after its place in the study."""
    say(f"{place} · {line}")


def describe_plan(study: Study, options: StudyOptions) -> str:
    """Return the steps and the duration of a study, to be printed at its start."""
    steps = len([step for step in study.steps if not options.only or step.name in options.only])
    duration = approximate_time(estimate_study_seconds(study, options))
    return f"{study.title}: {steps} step{'s' if steps != 1 else ''}, {duration}"


def measure_study(
    name: str,
    study: Study,
    options: StudyOptions,
    keep: SaveStep,
    say: Say,
    measure: Callable[[StudyCommand, StudyOptions, Say], StepRecord] | None = None,
) -> StudyRun:
    """Measure step by step. A step that cannot be measured here is noted, and the next one starts.

    `measure` replaces the measurement of a step. An interrupt returns the finished steps, marked as interrupted. Raises
    Interrupted before the first step, and PowerprofError if no step could be measured.
    """
    started_at, ending = format_now(), Ending()
    measured: dict[str, StepRecord] = {}
    steps: list[StudyStep] = []
    first: PowerprofError | None = None
    say(describe_plan(study, options))
    chosen = [step for step in study.steps if not options.only or step.name in options.only]
    with ending.keeping(lambda: measured):
        for number, step in enumerate(chosen):
            left = sum(_seconds(later, options) for later in chosen[number:])
            place = f"step {number + 1} of {len(chosen)}"
            announce(say, f"{place} · {step.typed}", left)
            began = time.monotonic()
            try:
                made = (measure or measure_step)(step, options, partial(_say_step, say, place))
                signals.hold()
                record = keep(step.command, made)
            except PowerprofError as error:
                first = first or error
                hint = f" ({error.hint})" if error.hint else ""
                steps.append(StudyStep(name=step.name, typed=step.typed, problem=f"{error.message}{hint}"))
                continue
            measured[step.name] = record
            steps.append(
                StudyStep(
                    name=step.name,
                    typed=step.typed,
                    run=record.id,
                    seconds_s=time.monotonic() - began,
                    problem=_problem_of(record),
                    doubts=_doubts(record),
                )
            )
            # A failed step does not end the study, but a signal does.
            if signals.has_arrived():
                raise Interrupted("interrupted")
            signals.release()
    if not measured and first is not None:
        raise first
    return build_study(name, study, measured, steps, options, started_at, ending)


def _problem_of(record: Record) -> str | None:
    """Return the error or the end of the target that ended a measurement early."""
    ended = record.ended
    return None if ended is None or ended.how == "interrupted" else f"ended early: {ended.message}"


def _doubts(record: StepRecord) -> list[str]:
    """Return the doubts and notes of a record's report, and the errors of points."""
    if isinstance(record, Comparison):
        return list(record.verdict.doubts)
    failed: dict[str, list[str]] = {}
    for point in record.points if isinstance(record, Sweep) else []:
        if point.error:
            failed.setdefault(point.error, []).append(str(point.value))
    notes = [str(note) for note in record.notes] if isinstance(record, LoadRun | Sweep) else []
    return [*notes, *(f"{', '.join(names)}: not measured: {error}" for error, names in failed.items())]


def build_study(
    name: str,
    study: Study,
    measured: Mapping[str, StepRecord],
    steps: list[StudyStep],
    options: StudyOptions,
    started_at: str,
    ending: Ending,
) -> StudyRun:
    """Return the record of these steps."""
    one = next(iter(measured.values()), None)
    notes = ["--quick: few and short windows; for narrower intervals, leave it out"] if options.quick else []
    return StudyRun(
        command="study",
        started_at=started_at,
        study=name,
        title=study.title,
        published=study.published,
        page=study.page,
        steps=steps,
        rows=build_rows(study, measured, options.seed),
        host={} if one is None else one.host,
        server=None if one is None else one.server,
        options={"quick": options.quick, "seed": options.seed, "only": list(options.only)},
        notes=notes,
        ended=ending.ended,
    )


def measure_step(step: StudyCommand, options: StudyOptions, say: Say) -> StepRecord:
    """Measure one step. Raise PowerprofError if this host cannot."""
    if step.command == "idle":
        return measure_idle(options.idle(step), say)
    loaded = options.loaded(step)
    where = BenchOptions(server_build=None if step.build is None else catalogue.load_build(step.build))
    if step.command == "compare":
        a, b = step.conditions
        return compare_conditions(a, b, where, loaded, extra=(), say=say)
    if step.command == "run":
        return run_condition(resolve(*find_one(step.conditions[0])), where, loaded, say)
    request = sweep.SweepRequest(step.conditions[0], step.parameter, step.values)
    store = sweep.SweepStore(options.runs_dir, keep=options.keeps)
    return sweep.measure_sweep(request, lambda: nullcontext(where), loaded, store, extra=(), say=say)
