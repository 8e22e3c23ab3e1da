# SPDX-License-Identifier: Apache-2.0
"""Decide what may be claimed about a judged metric, and which metrics answer a question."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from powerprof.experiment.records import Answer, Metric
from powerprof.model.metrics import find_metric
from powerprof.model.records import RunMetric
from powerprof.statistics.verdicts import Claim, Verdict, count_deciding_pairs, judge_claim

M = TypeVar("M", Metric, RunMetric)
ENERGY = "joules_per_query"
# The CPU time that represents energy on hosts without a meter → the energy metric.
_STANDS_FOR = {
    "c0_ms_per_query_server": ENERGY,
    "c0_ms_per_query": ENERGY,
    "c0_ms_per_query_net": ENERGY,
    "cpu_s_per_execution": "joules_per_execution",
}


def choose_primary_metric(asked: str, measured: Collection[str]) -> str:
    """Return the primary metric of the answer.

    That is energy if a meter has `measured` it and the workload requests the CPU time that represents it. Otherwise it
    is the metric that the workload requests. The choice depends on the available meters, never on the result.
    """
    energy = _STANDS_FOR.get(asked)
    return energy if energy is not None and energy in measured else asked


def describe_direction(name: str, verdict: Verdict) -> str:
    """Describe B compared with A: better, worse or inconclusive; higher or lower if no direction is better."""
    if verdict == "inconclusive":
        return verdict
    defined = find_metric(name)
    good = defined.better if defined is not None else None
    if good is None:
        return verdict.removeprefix("b_")
    return "better" if (verdict == "b_lower") == (good == "less") else "worse"


def are_starts_repeated(starts: int, repetitions: int) -> bool:
    """Return whether the repetitions show how far starts of one setting differ; otherwise they are like one run.

    `starts` counts the starts of each condition's own server; 0 if all conditions share one.
    """
    return not starts or starts >= repetitions


def is_worse(metrics: Sequence[Metric], primary: str | None) -> bool:
    """Return whether B is worse by the primary metric: by its mean or typically, beyond the interval."""
    metric = metric_named(metrics, primary)
    return metric is not None and describe_direction(metric.name, claim_of(metric).verdict) == "worse"


def metric_named(metrics: Iterable[M], name: str | None) -> M | None:
    """Return the metric of that name; None if it was not measured."""
    return next((metric for metric in metrics if metric.name == name), None)


class AnswerMetrics(msgspec.Struct, frozen=True):
    """The metrics of an answer; None for each that was not measured or is undecided.

    `ground` is the CPU time that supports measured energy, or the energy that CPU time represents. Speed and power are
    separate from the chosen metric: neither follows from it.
    """

    chosen: Metric | None
    ground: Metric | None
    speed: Metric | None
    power: Metric | None


SPEED = ("time_to_solution_s", "latency_p95_ms", "latency_p50_ms", "time_s_per_execution")
POWER = ("watts", "c0_percent")


def find_answer_metrics(metrics: Sequence[Metric], asked: str | None) -> AnswerMetrics:
    """Return the metrics that answer the question for the metric `asked`."""
    chosen = metric_named(metrics, asked)
    if chosen is None:
        return AnswerMetrics(None, None, None, None)
    # CPU time supports an energy answer. On hosts without a meter it represents the energy.
    rests_on = [cpu_time for cpu_time, energy in _STANDS_FOR.items() if energy == asked]
    others = [_STANDS_FOR[chosen.name]] if chosen.name in _STANDS_FOR else rests_on
    named = {metric.name: metric for metric in metrics}
    return AnswerMetrics(
        chosen,
        next((named[name] for name in others if name in named and named[name].difference.ci95), None),
        _choose_speed(named),
        next((named[name] for name in POWER if name in named), None),
    )


def _choose_speed(named: Mapping[str, Metric]) -> Metric | None:
    """Return the metric of speed: the first measured one, or the median latency if p95 permits less."""
    first = next((named[name] for name in SPEED if name in named), None)
    median = named.get("latency_p50_ms")
    if first is None or median is None or first.name != "latency_p95_ms":
        return first
    p95, p50 = claim_of(first), claim_of(median)
    if p95.verdict != "inconclusive" or (p50.verdict == "inconclusive" and (p95.hint or not p50.hint)):
        return first
    return median


def answer_for(metrics: Sequence[Metric], asked: str) -> Answer:
    """Return the answer as it is recorded; the report adds the sentences."""
    chosen = metric_named(metrics, asked)
    if chosen is None:
        return Answer(metric=None, asked=asked)
    return Answer(metric=chosen.name, asked=asked, deciding_pairs_count=_count_deciding_pairs(chosen))


def _count_deciding_pairs(metric: Metric) -> int | None:
    """Return how many pairs would decide if the difference is as measured; None if it is decided or more do not help.

    More pairs do not reduce the uncertainty of an energy model.
    """
    detectable, percent, difference = metric.minimum_detectable_percent, metric.difference.percent, metric.difference
    claim = claim_of(metric)
    by_model = difference.sampling_ci95 is not None and difference.sampling_ci95 != difference.ci95
    if claim.verdict != "inconclusive" or claim.unknown or percent_base(metric) is None or by_model:
        return None
    if detectable is None or percent is None:
        return None
    values = [*metric.a.values, *metric.b.values]
    # The scatter of missing pairs is unknown.
    return None if None in values else count_deciding_pairs(len(metric.a.values), detectable, percent)


def with_claim(metric: Metric) -> Metric:
    """Add the hint and the bound of an inconclusive metric: no evidence is not evidence of equality.

    The ratio of typical pairs stays if the claim is about it.
    """
    claim = claim_of(metric)
    difference = msgspec.structs.replace(metric.difference, less_than=claim.bound or None)
    typical = metric.typical if claim.is_typical else None
    return msgspec.structs.replace(metric, difference=difference, hint=claim.hint, typical=typical)


# A bound beyond the figure itself is useless, except if the figure may be 0.
NO_BOUND_PERCENT = 100.0
_NO_BOUND_TIMES = 10.0
_ROUNDING = 1e-9


def _positive_mean(metric: Metric) -> float | None:
    """Return the mean of A; None if it may be 0 or less."""
    mean, own = metric.a.mean, metric.a.ci95
    is_by_ratio = metric.ratio is not None and metric.ratio.ci95 is not None
    return None if mean is None or mean <= 0 or (not is_by_ratio and own is not None and own[0] <= 0) else mean


def percent_base(metric: Metric) -> float | None:
    """Return the mean of A if percentages of it are meaningful; None if A may be 0 or less, or falls by over 100 %."""
    mean, ends = _positive_mean(metric), metric.difference.ci95
    return None if mean is None or (ends is not None and ends[0] < -mean) else mean


def claim_of(metric: Metric) -> Claim:
    """Return the permitted statements about a metric."""
    base, ratio = _positive_mean(metric), metric.ratio
    ends = metric.difference.ci95
    if ends is not None and max(map(abs, ends)) <= _ROUNDING * abs(metric.a.mean or 0.0):
        ends = (0.0, 0.0)
    most = NO_BOUND_PERCENT / 100 * base if base is not None else _NO_BOUND_TIMES * abs(metric.a.mean or math.inf)
    typical = metric.typical.ci95 if metric.typical is not None else None
    return judge_claim(metric.verdict, ends, ratio.ci95 if ratio else None, widest=most, typical_ends=typical)
