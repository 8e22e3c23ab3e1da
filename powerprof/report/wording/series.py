# SPDX-License-Identifier: Apache-2.0
"""The sentences of what is compared over several runs: two sweeps, and the trend of a condition."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from powerprof.experiment.judge.answer import direction
from powerprof.experiment.records import Metric
from powerprof.experiment.sweepcomparison import SweepComparison, Value, judged
from powerprof.experiment.trend import Trend, TrendPoint, TrendStep
from powerprof.report.wording import threats
from powerprof.report.wording.answers import NO_BOUND_PERCENT, words


def of_sweeps(record: SweepComparison) -> SweepComparison:
    """The record with its answer and its threats in words."""
    found = threats.worded(record.threats, {})
    return msgspec.structs.replace(record, text=record.text or _sweeps(record), threats=found)


def of_trend(record: Trend) -> Trend:
    """The record with its answer in words."""
    return msgspec.structs.replace(record, text=record.text or _trend(record))


def _sweeps(record: SweepComparison) -> str:
    """Where b diverges from a, and by how much at the value where that is most."""
    points = judged(record)
    a, b, parameter = record.a.name, record.b.name, record.parameter
    if not points:
        return "No answer: the sweeps have no metric in common."
    what = "queries/s" if record.metric == "queries_hz" else words(record.metric)
    parts = []
    for way in ("higher", "lower"):
        moved = [point for point in points if point.parted and (_change(point.metric) > 0) == (way == "higher")]
        if not moved:
            continue
        most = max(moved, key=lambda point: abs(_change(point.metric)))
        where = _where([point.value for point in moved], [point.value for point in points], parameter)
        at = f" at {most.value}" if len(moved) > 1 else ""
        verb = "are" if what.endswith("/s") else "is"
        parts.append(f"{where} {what} {verb} {way} with {b} than with {a}: {_by(most.metric)}{at}")
    if not parts:
        where = f"between {a} and {b} in {what} at any of {len(points)} values of {parameter}"
        bounds = [_less_than_percent(point.metric) for point in points]
        known = [bound for bound in bounds if bound is not None]
        if len(known) < len(bounds):
            return f"Inconclusive {where}: how large a difference may be is unknown at {len(bounds) - len(known)}."
        if max(known) > NO_BOUND_PERCENT:
            return f"Inconclusive {where}: the intervals are too wide for a bound."
        return f"No measurable difference {where}: less than {max(known):,.1f} % (95 % at each)."
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def _where(points: Sequence[Value], every: Sequence[Value], parameter: str) -> str:
    """`at every value of clients`, `from clients 16 on`, `at clients 4 and 64`."""
    if len(points) == len(every) > 1:
        return f"at every value of {parameter}"
    if len(points) > 1 and list(points) == list(every[-len(points) :]):
        return f"from {parameter} {points[0]} on"
    *most, last = [str(value) for value in points]
    return f"at {parameter} {', '.join(most)} and {last}" if most else f"at {parameter} {last}"


def _change(metric: Metric) -> float:
    return metric.difference.b_minus_a or 0.0


def _less_than_percent(metric: Metric) -> float | None:
    """The most that a difference may be, either way, in percent of A."""
    ends, base = metric.difference.ci95, metric.a.mean
    return None if ends is None or not base else 100 * max(abs(end) for end in ends) / abs(base)


def _by(metric: Metric) -> str:
    """`+43.1 % (38.2 to 48.0, 95 %)`."""
    percent, interval, base = metric.difference.percent, metric.difference.ci95, metric.a.mean
    if percent is None or not base:
        return "from nothing"
    ends = (
        "" if interval is None else " (" + " to ".join(_signed(100 * end / abs(base)) for end in interval) + ", 95 %)"
    )
    return f"{_signed(percent)} %{ends}"


def _signed(percent: float) -> str:
    return f"{percent:+,.1f}".replace("-", "−")


def _trend(record: Trend) -> str:
    """Between which runs the figure changed most, of those steps that are significant; or that none is."""
    condition, points = record.condition, record.points
    same = condition.workload in ("command", condition.name)
    what = condition.name if same else f"{condition.workload}:{condition.name}"
    if len(points) == 1:
        return f"There is one run of {what}: nothing to compare it with."
    every = [(before, after, after.step) for before, after in pairwise(points)]
    steps = [
        (before, after, step)
        for before, after, step in every
        if step is not None and step.verdict != "inconclusive" and step.difference.percent is not None
    ]
    metric = words(record.metric)
    if not steps:
        none = f"{what}, {len(points)} runs: no measurable step in {metric} between neighbouring runs"
        bounds = [_step_less_than_percent(record.metric, before, step) for before, _, step in every]
        known = [bound for bound in bounds if bound is not None]
        if len(known) < len(bounds):
            return f"{none}; how large one may be is unknown at {len(bounds) - len(known)} of {len(bounds)}."
        if max(known) > NO_BOUND_PERCENT:
            return f"{none}; the intervals are too wide for a bound."
        return f"{none}: less than {max(known):,.1f} % (95 % at each)."
    before, after, step = max(steps, key=lambda step: abs(step[2].difference.percent or 0.0))
    percent = step.difference.percent or 0.0
    more = "rose" if percent > 0 else "fell"
    others = f"; {len(steps) - 1} more steps are significant" if len(steps) > 1 else ""
    return (
        f"{what}, {len(points)} runs: {metric} {more} by {abs(percent):,.1f} % "
        f"({direction(record.metric, step.verdict)}) from {_named(before)} to {_named(after)}{others}."
    )


def _step_less_than_percent(name: str, before: TrendPoint, step: TrendStep | None) -> float | None:
    """The most that a step may be, either way, in percent of the run before."""
    base = next((metric.estimate.mean for metric in before.metrics if metric.name == name), None)
    ends = step.difference.ci95 if step is not None else None
    return None if ends is None or not base else 100 * max(abs(end) for end in ends) / abs(base)


def _named(point: TrendPoint) -> str:
    return point.run + (f" [{', '.join(point.labels)}]" if point.labels else "")
