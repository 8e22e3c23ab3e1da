# SPDX-License-Identifier: Apache-2.0
"""Charts of metrics over settings and over time, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from markupsafe import Markup

from powerprof.model.records import RunMetric
from powerprof.report import labels
from powerprof.report.html import svg
from powerprof.report.html.text import clean_name

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
    """Return the estimate of a metric as the only curve of its chart."""
    return [(metric.estimate.mean, metric.estimate.low, metric.estimate.high)]


def draw_metrics(
    names: Iterable[str],
    points: Sequence[tuple[str, Sequence[M]]],
    curves: Callable[[M], Sequence[Ends]],
    across: str = "",
) -> list[tuple[str, bool, Markup]]:
    """Return for each metric of the points its name, whether it is estimated, and its chart.

    One point is no chart.

    Args:
        names: The metrics in their order.
        points: The label and the metrics of each point.
        curves: Returns the values of a metric at a point, one per curve.
        across: The title of the horizontal axis.
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
                svg.SeriesPoint(clean_name(label, 20), *(each[number] if each else (None, None, None)))
                for (label, _), each in zip(points, values, strict=True)
            ]
            for number in range(len(curves(first)))
        ]
        label = labels.metric_words(name)
        drawn_charts.append(
            (label, first.kind == "estimated", svg.draw_series(drawn, first.unit, label, clean_name(across, 60)))
        )
    return drawn_charts


_CAPTIONED = Markup('<figure class="chart"><figcaption>{}{}</figcaption>{}</figure>')
_ESTIMATED = Markup(', <span class="kind">estimated</span>')
_SIDE_BY_SIDE = Markup('<div class="columns">\n{}\n</div>')


def place_charts(charts: Sequence[tuple[str, bool, Markup]]) -> Markup:
    """Return charts side by side, each with its name and whether it is estimated; an empty text without any."""
    drawn = [_CAPTIONED.format(label, _ESTIMATED if estimated else "", chart) for label, estimated, chart in charts]
    return _SIDE_BY_SIDE.format(Markup("\n").join(drawn)) if drawn else Markup()


_LEGEND = Markup('<p class="legend"><span class="key a"></span> A {} <span class="key b"></span> B {}</p>')


def draw_legend(a: str, b: str) -> Markup:
    """Return the colours of two sides with their names."""
    return _LEGEND.format(clean_name(a, 60), clean_name(b, 60))
