# SPDX-License-Identifier: Apache-2.0
"""A published study measured again: each finding's figures of today beside those of then, `powerprof.study/1`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from powerprof.experiment.judge.verdict import judge_saved
from powerprof.experiment.records import Comparison, LoadRun, Metric, Range
from powerprof.experiment.sweep_record import Sweep
from powerprof.model.records import Estimate, IdleRun, Kind, Notes, Phase, RunMetric
from powerprof.workloads.catalogue import Expected, PublishedFinding, Study

Measured = IdleRun | LoadRun | Comparison | Sweep
"""What a step of a study leaves."""
Outcome = Literal["confirmed", "contradicted", "inconclusive", "not measured", "no claim"]
_UNITS = {"c0_percent": "%", "wakeups_hz": "1/s", "watts": "W"}


class StudyStep(msgspec.Struct, frozen=True, kw_only=True):
    """One command of the study: as it is typed, the run that it left, and why there is none or what to doubt in it."""

    name: str
    typed: str
    run: str | None = None
    seconds_s: float | None = None
    problem: str | None = None
    doubts: list[str] = []


class StudyRow(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. `a` and `b` are today's figures with 95 % intervals; difference and ratio are b's to a.

    `outcome`: whether today's b is to a as was published (`expected`); "no claim" where nothing was. With "same" both
    ends of the difference's interval are held against `within`. `runs`: where the figures are.
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
    within: float | None = None
    outcome: Outcome = "not measured"
    runs: list[str] = []


class StudyRun(msgspec.Struct, frozen=True, kw_only=True):
    """A study, measured again whole or in part: its steps, and its findings then and now."""

    id: str | None
    command: str
    started_at: str
    study: str
    title: str
    published: str
    page: str
    steps: list[StudyStep]
    rows: list[StudyRow]
    host: dict[str, Any] = {}
    server: dict[str, Any] = {}
    options: dict[str, Any] = {}
    notes: Notes = []
    interrupted: bool = False
    schema: Literal["powerprof.study/1"] = "powerprof.study/1"


def rows_of(study: Study, measured: Mapping[str, Measured], seed: int) -> list[StudyRow]:
    """Every finding with what these steps measured."""
    return [_row(finding, measured, seed) for finding in study.findings]


def _row(finding: PublishedFinding, measured: Mapping[str, Measured], seed: int) -> StudyRow:
    empty = StudyRow(
        label=finding.label,
        then=finding.then,
        metric=finding.metric,
        unit=_UNITS.get(finding.metric, ""),
        expected=finding.expected,
        within=finding.within,
    )
    b = _side(finding.b, finding.metric, measured)
    a = _side(finding.a, finding.metric, measured) if finding.a else None
    if b is None or (finding.a and a is None):
        return empty
    runs = [str(measured[side.partition(":")[0]].id) for side in (finding.a, finding.b) if side]
    row = msgspec.structs.replace(
        empty, unit=b.unit, kind=b.kind, b=b.estimate, runs=[run for run in dict.fromkeys(runs) if run != "None"]
    )
    if a is None:
        return msgspec.structs.replace(row, outcome="no claim")
    between = _between(finding, a, b, measured, seed)
    return msgspec.structs.replace(
        row,
        a=a.estimate,
        difference=between.difference,
        ratio=between.ratio,
        outcome=outcome(finding.expected, finding.within, between.difference, is_found=between.is_found),
    )


def outcome(
    expected: Expected | None, within: float | None, difference: Estimate | None, *, is_found: bool = True
) -> Outcome:
    """Whether a difference with its interval is what was published.

    `is_found` False: its interval is without zero, but among the many figures of its comparison that is chance.
    """
    if expected is None:
        return "no claim"
    if difference is None or difference.low is None or difference.high is None:
        return "inconclusive"
    low, high = difference.low, difference.high
    if expected == "same":
        most = within or 0.0
        if -most <= low and high <= most:
            return "confirmed"
        return "contradicted" if low > most or high < -most else "inconclusive"
    if is_found and (low > 0 or high < 0):
        return "confirmed" if (low > 0) == (expected == "higher") else "contradicted"
    return "inconclusive"


class _Between(NamedTuple):
    difference: Estimate | None = None
    ratio: Estimate | None = None
    is_found: bool = True


def _between(
    finding: PublishedFinding, a: RunMetric, b: RunMetric, measured: Mapping[str, Measured], seed: int
) -> _Between:
    """The difference b − a and the ratio b / a with their intervals."""
    first, second = (str(side).partition(":") for side in (finding.a, finding.b))
    record = measured[first[0]] if first[0] == second[0] else None
    if isinstance(record, IdleRun):
        phases = (first[2], second[2], finding.metric)
        deltas = (delta for delta in record.deltas if (delta.from_phase, delta.to_phase, delta.name) == phases)
        return _Between(next((delta.difference for delta in deltas), None))
    if isinstance(record, Comparison) and (first[2], second[2]) == ("a", "b"):
        judged = (metric for metric in (*record.metrics, *record.system) if metric.name == finding.metric)
        return next(map(_judged, judged), _Between())
    both = judge_saved([a], [b], finding.metric, seed, paired=False)
    return _judged(both[0]) if both else _Between()


def _judged(metric: Metric) -> _Between:
    found, ratio = metric.difference, metric.ratio
    difference = None if found.b_minus_a is None else _estimate(found.b_minus_a, found.ci95)
    times = None if ratio is None else _estimate(ratio.b_over_a, ratio.ci95)
    return _Between(difference, times, metric.verdict != "inconclusive")


def _estimate(mean: float, ends: Range | None) -> Estimate:
    low, high = ends if ends is not None else (None, None)
    return Estimate(mean=mean, low=low, high=high)


def _side(side: str | None, name: str, measured: Mapping[str, Measured]) -> RunMetric | None:
    """One side of a finding, from the record of its step; None where that has it not."""
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
    if found is None:
        value = getattr(phase, name, None)
        if not isinstance(value, float):
            return None
        found = Estimate(mean=value, low=None, high=None)
    values = [getattr(window, name, None) for window in phase.windows]
    return RunMetric(name=name, unit=_UNITS.get(name, ""), kind="measured", estimate=found, values=values)


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
