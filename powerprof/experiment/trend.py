# SPDX-License-Identifier: Apache-2.0
"""The trend of all saved runs of one condition: `powerprof runs RUN --trend`."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec

from powerprof.experiment.confounders import list_differences
from powerprof.experiment.measurement import Measurement
from powerprof.experiment.metrics import add_mean
from powerprof.experiment.records import ConditionRecord, Difference
from powerprof.experiment.saved import read_measurement
from powerprof.model.records import Note, Record, RunMetric
from powerprof.model.runs import RunInfo, RunStore
from powerprof.statistics.intervals import interval_ends
from powerprof.statistics.verdicts import Verdict, compare_unpaired, judge_claim, survivors, verdict_of
from powerprof.system.errors import DataError, UsageError

_LEVEL = 0.95  # of all steps together


class TrendStep(msgspec.Struct, frozen=True, kw_only=True):
    """The change since the previous run, judged in the family of all steps (Holm).

    Attributes:
        hint: direction of an interval that excludes 0 without a verdict.
    """

    difference: Difference
    verdict: Verdict
    hint: Verdict | None = None


class TrendPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A run, its differences from the previous run, and the change of the figure."""

    run: str
    started_at: str
    labels: list[str] = []
    metrics: list[RunMetric] = []
    differences: list[str] = []
    step: TrendStep | None = None


class Trend(Record, frozen=True, kw_only=True):
    """The runs of one condition, oldest first. `metric` is judged."""

    condition: ConditionRecord
    metric: str
    points: list[TrendPoint]
    text: str = ""
    schema: Literal["powerprof.trend/1"] = "powerprof.trend/1"


def build_trend(name: str, runs_dir: Path | None) -> Trend:
    """Return the trend of the condition of a saved run. Raise UsageError, DataError."""
    store = RunStore(runs_dir)
    this = read_measurement(name, runs_dir)
    halves: list[tuple[RunInfo, Measurement]] = []
    notes: list[str | Note] = []
    for run in store.list():
        if run.command != this.run.rpartition("-")[0]:
            continue
        try:
            half = read_measurement(run.id, runs_dir)
        except (UsageError, DataError):
            continue  # a comparison, or damaged: `runs` reports it
        if half.condition.work == this.condition.work and half.condition.name == this.condition.name:
            halves.append((run, half))
    if not halves:
        raise UsageError(f"{name} does not belong to a series of runs", store.listing)
    metric = this.primary
    kinds = {(judged.kind, judged.source) for _, half in halves for judged in half.metrics if judged.name == metric}
    if len(kinds) > 1:
        notes.append(Note("sources_differ", {"metric": metric}))
    steps = _judge_steps([half for _, half in halves], metric)
    points = [
        TrendPoint(
            run=run.id,
            started_at=half.started_at,
            labels=list(run.labels),
            metrics=[add_mean(figures) for figures in half.metrics if figures.known],
            differences=list_differences(halves[index - 1][1], half) if index else [],
            step=steps[index],
        )
        for index, (run, half) in enumerate(halves)
    ]
    notes.append(Note("unpaired"))
    return Trend(
        command="trend",
        started_at=points[-1].started_at,
        condition=this.condition,
        metric=metric,
        points=points,
        notes=notes,
    )


def _judge_steps(halves: list[Measurement], name: str) -> list[TrendStep | None]:
    """Return each run's change since the previous run; None for the first and for different meters."""
    judged: list[tuple[TrendStep | None, float | None]] = [(None, None)]
    for before, after in pairwise(halves):
        a, b = (next((metric for metric in half.metrics if metric.name == name), None) for half in (before, after))
        if a is None or b is None or (a.kind, a.source) != (b.kind, b.source):
            judged.append((None, None))
            continue
        left, right = a.known, b.known
        if not left or not right:
            judged.append((None, None))
            continue
        result = compare_unpaired(left, right, seed=1)
        interval = result.difference_interval
        ends = interval_ends(interval)
        difference = Difference(b_minus_a=result.difference, ci95=ends, percent=result.percent)
        judged.append((TrendStep(difference=difference, verdict=verdict_of(interval)), result.p_value))
    sure = survivors([p for _, p in judged], _LEVEL)
    steps: list[TrendStep | None] = []
    for (step, _), stays in zip(judged, sure, strict=True):
        if step is not None:
            claim = judge_claim(step.verdict if stays else "inconclusive", step.difference.ci95)
            step = msgspec.structs.replace(step, verdict=claim.verdict, hint=claim.hint)  # noqa: PLW2901
        steps.append(step)
    return steps
