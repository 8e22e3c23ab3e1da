"""The page of a sweep: each metric over the values of the parameter."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from powerprof.experiment.sweep import Sweep
from powerprof.report import labels
from powerprof.report.html import svg
from powerprof.report.html.extras import Extras
from powerprof.report.html.figures import Figures, clean
from powerprof.report.html.page import page
from powerprof.report.kinds import said as said_of

_DRAWN = (
    "queries_hz",
    "latency_p95_ms",
    "c0_percent",
    "c0_ms_per_query_server",
    "joules_per_query",
    "wakeups_per_query",
)
_ERROR_LIMIT = 300


@dataclass(frozen=True)
class SweepRow:
    """A metric at every point."""

    label: str
    unit: str
    estimated: bool
    cells: tuple[Markup, ...]
    chart: Markup


def _rows(record: Sweep, figures: Figures) -> list[SweepRow]:
    points = record.points
    found = []
    for name in dict.fromkeys(metric.name for point in points for metric in point.metrics):
        at = [next((i for i, metric in enumerate(point.metrics) if metric.name == name), None) for point in points]
        metrics = [None if i is None else point.metrics[i] for point, i in zip(points, at, strict=True)]
        first = next(metric for metric in metrics if metric is not None)
        shown = labels.shown(first.unit, [metric.estimate.mean for metric in metrics if metric is not None])
        factor, digits = shown.factor, shown.decimals
        cells = []
        for number, index in enumerate(at):
            place = f"/points/{number}/metrics/{index}/estimate"
            cells.append(
                Markup("–")
                if index is None
                else figures.fig(f"{place}/mean", digits, scale=factor)
                + figures.interval(f"{place}/low", f"{place}/high", digits, scale=factor)
            )
        label = labels.metric(name)
        values = [
            svg.SeriesPoint(
                clean(point.value, 20),
                *((None,) * 3 if metric is None else (metric.estimate.mean, metric.estimate.low, metric.estimate.high)),
            )
            for point, metric in zip(points, metrics, strict=True)
        ]
        chart = svg.series(values, first.unit, label) if name in _DRAWN and len(points) > 1 else Markup()
        found.append(SweepRow(clean(label), shown.unit, first.kind == "estimated", tuple(cells), chart))
    return found


def render(record: Sweep, extras: Extras) -> str:
    """The page."""
    figures, said = Figures(record), said_of(record)
    rows = _rows(record, figures)
    return page(
        "sweep.html.j2",
        record,
        figures,
        title=clean(said[0]),
        answer=said[0],
        context=said[1],
        rows=rows,
        values=[clean(point.value, 20) for point in record.points],
        errors=[(clean(point.value, 20), clean(point.error, _ERROR_LIMIT)) for point in record.points if point.error],
    )
