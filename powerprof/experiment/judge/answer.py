# SPDX-License-Identifier: Apache-2.0
"""Pure: what a comparison answers: by which metric, what that rests on, and which way is better. Report words it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from powerprof.experiment.records import Answer, Metric, Range
from powerprof.statistics import Verdict, compare_points, which_differ
from powerprof.workloads.definition import Value

ENERGY = "joules_per_query"
# The CPU time that stands for energy where no meter is → that energy.
_STANDS_FOR = {
    "c0_ms_per_query_server": ENERGY,
    "c0_ms_per_query": ENERGY,
    "c0_ms_per_query_net": ENERGY,
    "cpu_s_per_execution": "joules_per_execution",
}

# More of these is better.
_MORE = ("queries_hz",)
# Neither is better by itself: time in one idle state says nothing without the others, and these are what was done.
_NEITHER = (
    "residency_percent",
    "storm_raged_percent",
    "storm_counter_hz",
    "connections_hz",
    "commits_hz",
    "relay_log_bytes_hz",
)


def headline(asked: str, measured: Collection[str]) -> str:
    """The metric of the answer: energy where a meter has `measured` it and the workload asks for the CPU time that
    stands for it, else what the workload asks for. Chosen by what there is, never by how it came out."""
    energy = _STANDS_FOR.get(asked)
    return energy if energy is not None and energy in measured else asked


def sense(name: str) -> Literal["less", "more"] | None:
    """Which is better of a metric; None where neither is."""
    what = name.partition(":")[0]
    if what in _NEITHER:
        return None
    return "more" if what in _MORE else "less"


def direction(name: str, verdict: Verdict) -> str:
    """B compared with A: better, worse or inconclusive; higher or lower where neither is better."""
    if verdict == "inconclusive":
        return verdict
    good = sense(name)
    if good is None:
        return verdict.removeprefix("b_")
    return "better" if (verdict == "b_lower") == (good == "less") else "worse"


def is_worse(metrics: Sequence[Metric], primary: str | None) -> bool:
    """True where the primary metric says that B is worse, beyond its interval."""
    metric = metric_named(metrics, primary)
    return metric is not None and direction(metric.name, metric.verdict) == "worse"


def metric_named(metrics: Sequence[Metric], name: str | None) -> Metric | None:
    """The metric of that name; None where it was not measured."""
    return next((metric for metric in metrics if metric.name == name), None)


@dataclass(frozen=True)
class Answered:
    """The metrics that an answer is made of; None where one was not measured, or says nothing.

    `ground`: the CPU time that measured energy rests on, or the energy that CPU time stands for. Speed and power are
    apart from the chosen metric: one does not follow from the other.
    """

    chosen: Metric | None
    ground: Metric | None
    speed: Metric | None
    power: Metric | None


SPEED = ("time_to_solution_s", "latency_p95_ms", "time_s_per_execution")
POWER = ("watts", "c0_percent")


def answered(metrics: Sequence[Metric], asked: str | None) -> Answered:
    """What answers for the metric `asked`."""
    chosen = metric_named(metrics, asked)
    if chosen is None:
        return Answered(None, None, None, None)
    # Energy rests on the CPU time, and CPU time is what energy is asked by where no meter is.
    rests_on = [cpu_time for cpu_time, energy in _STANDS_FOR.items() if energy == asked]
    others = [_STANDS_FOR[chosen.name]] if chosen.name in _STANDS_FOR else rests_on
    named = {metric.name: metric for metric in metrics}
    return Answered(
        chosen,
        next((named[name] for name in others if name in named and named[name].difference.ci95), None),
        next((named[name] for name in SPEED if name in named), None),
        next((named[name] for name in POWER if name in named), None),
    )


def answer(metrics: Sequence[Metric], asked: str) -> Answer:
    """The answer as it is recorded; report words it."""
    chosen = metric_named(metrics, asked)
    return Answer(metric=chosen.name if chosen else None, asked=asked)


# Pure: which points of a sweep differ, over the rounds in which they were measured.


class PointsCompared(msgspec.Struct, frozen=True, kw_only=True):
    """A metric at two values of the parameter: `percent` is how much more it is at `b` than at `a`, with its interval.

    `differ`: significantly, of all pairs and metrics of a sweep together. Unknown is None.
    """

    metric: str
    a: Value
    b: Value
    percent: float | None
    ci95: Range | None
    differ: bool

    @property
    def less_than_percent(self) -> float | None:
        """Of a difference that was not found the most that it may be, either way."""
        return None if self.ci95 is None or self.differ else max(abs(end) for end in self.ci95)


def compare_metrics(
    metrics: Mapping[str, Mapping[Value, Mapping[int, float]]], *, in_rounds: bool
) -> list[PointsCompared]:
    """Every two points by each metric, whose values are by point and round: one family, since one answer names them."""
    pairs = [
        (name, list(points), pair)
        for name, points in metrics.items()
        for pair in compare_points(list(points.values()), in_rounds=in_rounds)
    ]
    sure = which_differ([pair.p_value for _, _, pair in pairs])
    return [
        PointsCompared(
            metric=name,
            a=values[pair.first],
            b=values[pair.second],
            percent=pair.percent,
            ci95=None if pair.interval is None else (pair.interval.low, pair.interval.high),
            differ=differ,
        )
        for (name, values, pair), differ in zip(pairs, sure, strict=True)
    ]


def alike(compared: Sequence[PointsCompared], metric: str, value: Value) -> dict[Value, float | None]:
    """The points that do not differ significantly from this one, and less than how many percent each; None: unknown."""
    return {
        pair.b if pair.a == value else pair.a: pair.less_than_percent
        for pair in compared
        if pair.metric == metric and value in (pair.a, pair.b) and not pair.differ
    }
