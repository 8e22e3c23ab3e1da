# SPDX-License-Identifier: Apache-2.0
"""Charts of metrics over settings or over time: one a metric, with one curve or two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from markupsafe import Markup

from powerprof.figures import RunMetric
from powerprof.report.html import svg
from powerprof.report.html.figures import clean
from powerprof.report.tables import labels

Ends = tuple[float | None, float | None, float | None]
"""Mean, low, high."""


class _ChartedMetric(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def kind(self) -> str: ...


M = TypeVar("M", bound=_ChartedMetric)


def one_curve(metric: RunMetric) -> list[Ends]:
    """The estimate of a metric as the only curve of its chart."""
    return [(metric.estimate.mean, metric.estimate.low, metric.estimate.high)]


def charts(
    names: Iterable[str],
    points: Sequence[tuple[str, Sequence[M]]],
    curves: Callable[[M], Sequence[Ends]],
    across: str = "",
) -> list[tuple[str, bool, Markup]]:
    """For each metric that some point has: its name, whether it is estimated, the drawing.

    `points` are (label, metrics) in their order, `curves` the values of a metric at a point, one a curve, `across`
    the title of the horizontal axis. One point is no course: then there is no chart.
    """
    drawn_charts = []
    for name in dict.fromkeys(names):
        same = [next((metric for metric in metrics if metric.name == name), None) for _, metrics in points]
        first = next((metric for metric in same if metric is not None), None)
        if first is None or len(points) < 2:
            continue
        values = [curves(metric) if metric is not None else None for metric in same]
        drawn = [
            [
                svg.SeriesPoint(clean(label, 20), *(each[number] if each else (None, None, None)))
                for (label, _), each in zip(points, values, strict=True)
            ]
            for number in range(len(curves(first)))
        ]
        label = labels.metric(name)
        drawn_charts.append((label, first.kind == "estimated", svg.series(drawn, first.unit, label, clean(across, 60))))
    return drawn_charts
