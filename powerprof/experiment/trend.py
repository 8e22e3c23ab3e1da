# SPDX-License-Identifier: Apache-2.0
"""All saved runs of one condition in the order of time: `powerprof runs RUN --trend`, and between which it changed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec

from powerprof.errors import DataError, UsageError
from powerprof.experiment.judge.confounders import differences
from powerprof.experiment.judge.metrics import with_mean
from powerprof.experiment.records import ConditionRecord, Difference
from powerprof.experiment.saved import Half, read_half
from powerprof.figures import RunMetric
from powerprof.records import Note, Notes
from powerprof.runs import RunInfo, RunStore
from powerprof.statistics import Verdict, compare_unpaired, survivors, verdict_of

# Of all steps of a trend together.
_LEVEL = 0.95


class TrendStep(msgspec.Struct, frozen=True, kw_only=True):
    """How the judged metric changed since the run before. Verdicts are a family's (Holm, 95 % over all steps)."""

    difference: Difference
    verdict: Verdict


class TrendPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A run: its metrics over its windows; what else differs from the run before, and how the figure changed."""

    run: str
    started_at: str
    labels: list[str] = []
    metrics: list[RunMetric] = []
    differences: list[str] = []
    step: TrendStep | None = None


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one condition, oldest first: `powerprof.trend/1`. `metric` is judged; report writes the `text`."""

    id: str | None
    command: str
    started_at: str
    condition: ConditionRecord
    metric: str
    points: list[TrendPoint]
    text: str = ""
    notes: Notes = []
    schema: Literal["powerprof.trend/1"] = "powerprof.trend/1"


def trend_of(name: str, runs_dir: Path | None) -> Trend:
    """The trend of the condition of a saved run. Raises UsageError, DataError."""
    store = RunStore(runs_dir)
    this = read_half(name, runs_dir)
    halves: list[tuple[RunInfo, Half]] = []
    notes: list[str | Note] = []
    for run in store.list():
        if run.id.rpartition("-")[0] != this.run_id.rpartition("-")[0]:
            continue
        try:
            half = read_half(run.id, runs_dir)
        except (UsageError, DataError):
            continue  # a comparison, or damaged: `runs` says so
        if half.condition.work == this.condition.work and half.condition.name == this.condition.name:
            halves.append((run, half))
    if not halves:
        raise UsageError(f"{name} does not belong to a series of runs", "powerprof runs lists them")
    metric = this.primary
    kinds = {(judged.kind, judged.source) for _, half in halves for judged in half.metrics if judged.name == metric}
    if len(kinds) > 1:
        notes.append(Note("sources_differ", {"metric": metric}))
    steps = _steps([half for _, half in halves], metric)
    points = [
        TrendPoint(
            run=run.id,
            started_at=half.started_at,
            labels=list(run.labels),
            metrics=[with_mean(figures) for figures in half.metrics if figures.known],
            differences=differences(halves[index - 1][1], half) if index else [],
            step=steps[index],
        )
        for index, (run, half) in enumerate(halves)
    ]
    notes.append(Note("unpaired"))
    return Trend(
        id=None,
        command="trend",
        started_at=points[-1].started_at,
        condition=this.condition,
        metric=metric,
        points=points,
        notes=notes,
    )


def _steps(halves: list[Half], name: str) -> list[TrendStep | None]:
    """Each run's step since the run before; None for the first and where the two were not measured alike."""
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
        ends = None if interval is None else (interval.low, interval.high)
        difference = Difference(b_minus_a=result.difference, ci95=ends, percent=result.percent)
        judged.append((TrendStep(difference=difference, verdict=verdict_of(interval)), result.p_value))
    sure = survivors([p for _, p in judged], _LEVEL)
    return [
        step if step is None or stays else msgspec.structs.replace(step, verdict="inconclusive")
        for (step, _), stays in zip(judged, sure, strict=True)
    ]
