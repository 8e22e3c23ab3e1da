# SPDX-License-Identifier: Apache-2.0
"""The page of a sweep: each metric over the values of the parameter."""

from __future__ import annotations

from markupsafe import Markup

from powerprof.experiment.sweep import Sweep
from powerprof.report import labels
from powerprof.report.html import svg
from powerprof.report.html.extras import Extras
from powerprof.report.html.figures import clean
from powerprof.report.html.page import page
from powerprof.report.kinds import said as said_of
from powerprof.report.metrics import sweep_table
from powerprof.report.table import Places

_DRAWN = (
    "joules_per_query",
    "queries_hz",
    "latency_p95_ms",
    "c0_percent",
    "c0_ms_per_query_server",
    "watts",
    "wakeups_per_query",
)
_ERROR_LIMIT = 300


def _charts(record: Sweep) -> list[tuple[str, bool, Markup]]:
    """What is drawn over the values: its name, whether it is estimated, the drawing."""
    charts = []
    for name in dict.fromkeys(metric.name for point in record.points for metric in point.metrics):
        same = [next((one for one in point.metrics if one.name == name), None) for point in record.points]
        if name not in _DRAWN or len(record.points) < 2:
            continue
        first = next(metric for metric in same if metric is not None)
        values = [
            svg.SeriesPoint(
                clean(point.value, 20),
                *((None,) * 3 if metric is None else (metric.estimate.mean, metric.estimate.low, metric.estimate.high)),
            )
            for point, metric in zip(record.points, same, strict=True)
        ]
        label = labels.metric(name)
        charts.append((label, first.kind == "estimated", svg.series([values], first.unit, label)))
    return charts


def render(record: Sweep, extras: Extras) -> str:
    """The page."""
    places, said = Places(record), said_of(record)
    return page(
        "sweep.html.j2",
        record,
        places,
        derived=extras.derived,
        title=clean(said[0]),
        answer=said[0],
        context=said[1],
        charts=_charts(record),
        metrics=sweep_table(record, places),
        errors=[(clean(point.value, 20), clean(point.error, _ERROR_LIMIT)) for point in record.points if point.error],
    )
