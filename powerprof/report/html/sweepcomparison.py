# SPDX-License-Identifier: Apache-2.0
"""The page of two sweeps: both drawn over the values of the parameter, and what parts with them."""

from __future__ import annotations

from markupsafe import Markup

from powerprof.experiment.records import Metric, Side
from powerprof.experiment.sweepcomparison import SweepComparison
from powerprof.report import labels
from powerprof.report.html import svg
from powerprof.report.html.extras import Extras
from powerprof.report.html.figures import clean
from powerprof.report.html.page import page
from powerprof.report.kinds import said as said_of
from powerprof.report.metrics import parted_table, points_table
from powerprof.report.table import Places

_DRAWN = ("queries_hz", "latency_p95_ms", "c0_percent", "c0_ms_per_query_server", "joules_per_query")
_MOST_DRAWN = 10


def _charts(record: SweepComparison) -> list[tuple[str, bool, Markup]]:
    """The judged metric, those of a sweep's page, and the figures that surely part with them."""
    sure = [one.name for one in record.parted_with if one.verdict != "inconclusive"]
    charts = []
    for name in list(dict.fromkeys((record.metric, *_DRAWN, *sure)))[:_MOST_DRAWN]:
        each = [next((one for one in point.metrics if one.name == name), None) for point in record.points]
        known = [metric for metric in each if metric is not None]
        if not known or len(each) < 2:
            continue
        labels_of = [clean(point.value, 20) for point in record.points]
        arms = [
            [_point(label, getattr(metric, arm, None)) for label, metric in zip(labels_of, each, strict=True)]
            for arm in ("a", "b")
        ]
        label = labels.metric(name)
        charts.append((label, _estimated(known), svg.series(arms, known[0].unit, label)))
    return charts


def _estimated(metrics: list[Metric]) -> bool:
    return metrics[0].kind == "estimated"


def _point(label: str, side: Side | None) -> svg.SeriesPoint:
    if side is None:
        return svg.SeriesPoint(label, None, None, None)
    low, high = side.ci95 or (None, None)
    return svg.SeriesPoint(label, side.mean, low, high)


def render(record: SweepComparison, extras: Extras) -> str:
    """The page."""
    places, said = Places(record), said_of(record)
    return page(
        "sweepcomparison.html.j2",
        record,
        places,
        title=clean(said[0]),
        answer=said[0],
        context=said[1],
        charts=_charts(record),
        points=points_table(record, places),
        parted=parted_table(record, places),
    )
