# SPDX-License-Identifier: Apache-2.0
"""The page of a trend: each metric over the runs of one condition."""

from __future__ import annotations

from powerprof.experiment.judge.answer import direction
from powerprof.experiment.trend import Trend
from powerprof.report.html.charts import charts, one_curve
from powerprof.report.html.extras import Extras
from powerprof.report.html.figures import clean
from powerprof.report.html.page import page
from powerprof.report.tables import labels
from powerprof.report.tables.table import Column, Places, Table, TableRow, Words

_MOST = 12


def render(record: Trend, extras: Extras) -> str:
    """The page."""
    places = Places(record)
    names = list(dict.fromkeys([record.metric, *(metric.name for point in record.points for metric in point.metrics)]))
    points = [(point.labels[-1] if point.labels else point.started_at[5:10], point.metrics) for point in record.points]
    return page(
        "trend.html.j2",
        record,
        places,
        derived=extras.derived,
        title=clean(record.text),
        charts=charts(names[:_MOST], points, one_curve),
        runs=_runs(record, places),
        metric_label=labels.metric(record.metric),
    )


def _runs(record: Trend, places: Places) -> Table:
    """A row a run with the judged metric and its step."""
    rows = []
    for number, point in enumerate(record.points):
        index = next((i for i, metric in enumerate(point.metrics) if metric.name == record.metric), None)
        at = f"/points/{number}/metrics/{index}/estimate" if index is not None else ""
        step = f"/points/{number}/step/difference" if point.step is not None else ""
        rows.append(
            TableRow(
                {
                    "run": Words(point.run, " ".join(point.labels)),
                    "day": Words(point.started_at[:16].replace("T", " ")),
                    "mean": places.figure(at and f"{at}/mean", None, ends=at),
                    "step": places.figure(step and f"{step}/percent", 1, "%", sign=True),
                    "verdict": Words(direction(record.metric, point.step.verdict) if point.step else "", ours=True),
                    "else": Words("; ".join(point.differences)),
                }
            )
        )
    columns = [
        Column("run", "run", left=True),
        Column("day", "measured", left=True),
        Column("mean", "mean", interval="95 %"),
        Column("step", "since the run before"),
        Column("verdict", "verdict", left=True),
        Column("else", "what else changed", left=True),
    ]
    return Table(columns, rows, "runs")
