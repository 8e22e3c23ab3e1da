# SPDX-License-Identifier: Apache-2.0
"""Pure: at which values of a parameter two sweeps part, and how that is said in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from powerprof.experiment.judge.answer import words
from powerprof.experiment.records import Metric

Value = bool | int | float | str


@dataclass(frozen=True)
class JudgedMetric:
    """The metric that is judged at one value of the parameter; `parted`: surely different there."""

    value: Value
    metric: Metric
    parted: bool


def sentence(points: Sequence[JudgedMetric], parameter: str, names: tuple[str, str]) -> str:
    """Where b parts from a and by how much at the value where that is most."""
    if not points:
        return "Nothing can be said: the sweeps have no metric in common."
    what = "queries/s" if points[0].metric.name == "queries_hz" else words(points[0].metric.name)
    said = []
    for direction in ("higher", "lower"):
        moved = [point for point in points if point.parted and (_change(point.metric) > 0) == (direction == "higher")]
        if not moved:
            continue
        most = max(moved, key=lambda point: abs(_change(point.metric)))
        where = _where([point.value for point in moved], [point.value for point in points], parameter)
        said.append(
            f"{where} {what} {'are' if what.endswith('/s') else 'is'} {direction} with {names[1]} than with "
            f"{names[0]}: {_by(most.metric)}{f' at {most.value}' if len(moved) > 1 else ''}"
        )
    if not said:
        return (
            f"No difference found between {names[0]} and {names[1]} in {what} at any of {len(points)} "
            f"values of {parameter}."
        )
    return "; ".join(said)[:1].upper() + "; ".join(said)[1:] + "."


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
