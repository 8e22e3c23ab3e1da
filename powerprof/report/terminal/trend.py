# SPDX-License-Identifier: Apache-2.0
"""`powerprof runs RUN --trend` for a terminal: the answer, then a line a run."""

from __future__ import annotations

from powerprof import text
from powerprof.experiment.judge.answer import direction
from powerprof.experiment.trend import Trend, TrendPoint
from powerprof.figures import RunMetric
from powerprof.report.tables.labels import significant
from powerprof.report.wording.answers import words
from powerprof.report.wording.notes import texts


def _metric(point: TrendPoint, name: str) -> RunMetric | None:
    return next((metric for metric in point.metrics if metric.name == name), None)


def lines(trend: Trend, width: int = text.DEFAULT_WIDTH) -> list[str]:
    """The report, at most `width` columns."""
    printed = text.wrap(trend.text, width)
    first = next((one for point in trend.points if (one := _metric(point, trend.metric))), None)
    unit = f", {first.unit}" if first is not None and first.unit not in ("1", "") else ""
    kind = ", estimated" if first is not None and first.kind == "estimated" else ""
    printed += [*text.wrap(f"{words(trend.metric)}{unit}{kind}", width), ""]
    rows = [["run", "day", "mean", "95 %", "since the run before", "label"]]
    for point in trend.points:
        metric = _metric(point, trend.metric)
        mean, ends = text.UNKNOWN, ""
        if metric is not None:
            mean = significant(metric.estimate.mean)
            if metric.estimate.low is not None and metric.estimate.high is not None:
                ends = f"[{significant(metric.estimate.low)}, {significant(metric.estimate.high)}]"
        rows.append([point.run, point.started_at[:10], mean, ends, _step(trend, point), " ".join(point.labels)])
    printed += [text.cut(line, width) for line in text.columns(rows, left=2)]
    for point in trend.points:
        if point.differences:
            printed += ["", *text.wrap(f"{point.run}: {'; '.join(point.differences)}", width)]
    return [*printed, *(line for note in texts(trend.notes) for line in text.wrap(f"Note: {note}", width))]


def _step(trend: Trend, point: TrendPoint) -> str:
    if point.step is None:
        return ""
    percent = point.step.difference.percent
    return f"{text.signed(percent, 1)} %, {direction(trend.metric, point.step.verdict)}"
