# SPDX-License-Identifier: Apache-2.0
"""Pure: what a comparison answers: by which metric, what that rests on, and which way is better. Report words it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from powerprof.experiment.records import Answer, Metric
from powerprof.statistics import Verdict

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
