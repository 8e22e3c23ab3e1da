# SPDX-License-Identifier: Apache-2.0
"""Pure: from the values of two conditions to metrics with intervals, verdicts, and the control from A's own blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

import msgspec

from powerprof.experiment.judge.metrics import Compared
from powerprof.experiment.records import ControlRecord, Difference, Metric, Range, Ratio, Side
from powerprof.model.records import Figures
from powerprof.statistics import (
    FAMILY_LEVEL,
    PRIMARY_LEVEL,
    Interval,
    PairedResult,
    bounded_interval,
    compare_pairs,
    compare_unpaired,
    judge_control,
    primary_verdict,
    survivors,
)

T = TypeVar("T", bound=msgspec.Struct)


def judge(
    compared: Sequence[Compared],
    primary: str,
    seed: int,
    *,
    paired: bool = True,
    by_model: Sequence[Sequence[Compared]] = (),
    level: float = PRIMARY_LEVEL,
) -> list[Metric]:
    """Every metric that has a value on both sides; the primary, at its `level`, first, the others' verdicts a family's.

    `by_model` are the same metrics by every model of the estimate that is possible: their doubt widens the intervals.
    """
    judged = []
    for each in compared:
        result = _result(each, seed, paired=paired)
        if result is not None:
            metric = _metric(each, result)
            if each.a.kind == "estimated":
                metric = _widened(metric, _by_name(by_model, each.a.name, seed))
            judged.append((metric, result.p_value))
    return _as_a_family(judged, primary, level)


def judge_saved(a: Sequence[Figures], b: Sequence[Figures], primary: str, seed: int, *, paired: bool) -> list[Metric]:
    """What two saved conditions have in common; in pairs where they were measured in pairs."""
    of_b = {figures.name: figures for figures in b}
    both = [Compared(figures, of_b[figures.name]) for figures in a if figures.name in of_b]
    alike = [each for each in both if (each.a.kind, each.a.source) == (each.b.kind, each.b.source)]
    return judge(alike, primary, seed, paired=paired)


def _both_known(compared: Compared) -> list[tuple[float, float]]:
    """The pairs of which both values are known."""
    values = zip(compared.a.values, compared.b.values, strict=True)
    return [(x, y) for x, y in values if x is not None and y is not None]


def _result(compared: Compared, seed: int, *, paired: bool = True) -> PairedResult | None:
    if not paired:
        a, b = compared.a.known, compared.b.known
        return compare_unpaired(a, b, seed=seed) if a and b else None
    both = _both_known(compared)
    return compare_pairs([x for x, _ in both], [y for _, y in both], seed=seed, step=compared.step) if both else None


def _by_name(by_model: Sequence[Sequence[Compared]], name: str, seed: int) -> list[PairedResult]:
    found = (_result(each, seed) for model in by_model for each in model if each.a.name == name)
    return [result for result in found if result is not None]


def _as_a_family(judged: Sequence[tuple[Metric, float | None]], primary: str, level: float) -> list[Metric]:
    """The primary metric is judged by itself, of the others those keep their verdicts that survive together."""
    kept = claimed([(metric, p) for metric, p in judged if metric.name != primary])
    first = [
        msgspec.structs.replace(metric, verdict=primary_verdict(metric.verdict, p, level))
        for metric, p in judged
        if metric.name == primary
    ]
    return [_bounded(metric) for metric in (*first, *kept)]


def claimed(judged: Sequence[tuple[T, float | None]], level: float = FAMILY_LEVEL) -> list[T]:
    """What was judged, with its p-values: those keep their verdicts that survive together, the rest is inconclusive."""
    sure = survivors([p for _, p in judged], level)
    return [
        each if stays else msgspec.structs.replace(each, verdict="inconclusive")
        for (each, _), stays in zip(judged, sure, strict=True)
    ]


def _bounded(metric: Metric) -> Metric:
    """A difference that was not found with the most that it may be: what was not seen is not nothing."""
    difference, ends = metric.difference, metric.difference.ci95
    most = None if ends is None or metric.verdict != "inconclusive" else max(abs(end) for end in ends)
    return msgspec.structs.replace(metric, difference=msgspec.structs.replace(difference, less_than=most))


def _range(interval: Interval | None) -> Range | None:
    return None if interval is None else (interval.low, interval.high)


def _metric(compared: Compared, result: PairedResult) -> Metric:
    a, b = compared.a, compared.b
    return Metric(
        name=a.name,
        unit=a.unit,
        kind=a.kind,
        source=a.source,
        a=Side(mean=result.a_mean, ci95=_possible(a, result.a_interval), values=a.values),
        b=Side(mean=result.b_mean, ci95=_possible(b, result.b_interval), values=b.values),
        difference=Difference(
            b_minus_a=result.difference, ci95=_range(result.difference_interval), percent=result.percent
        ),
        ratio=None if result.ratio is None else Ratio(b_over_a=result.ratio, ci95=_range(result.ratio_interval)),
        verdict=result.verdict,
        minimum_detectable_percent=result.minimum_detectable_percent,
    )


def _possible(figures: Figures, of_mean: Interval | None) -> Range | None:
    """The interval; where it reaches what cannot be, Student's within what can."""
    floor, ceiling = figures.limits
    if of_mean is None or ((floor is None or of_mean.low >= floor) and (ceiling is None or of_mean.high <= ceiling)):
        return _range(of_mean)
    return _range(bounded_interval(figures.known, floor, ceiling))


def _widened(metric: Metric, others: Sequence[PairedResult]) -> Metric:
    """The metric with the doubt of the model in its intervals, which `others` were judged by."""
    if not others:
        return metric
    difference, ratio = metric.difference, metric.ratio
    ends = _hull([difference.ci95, *(_range(other.difference_interval) for other in others)])
    if ratio is not None:
        ratios = _hull([ratio.ci95, *(_range(other.ratio_interval) for other in others if other.ratio is not None)])
        ratio = msgspec.structs.replace(ratio, ci95=ratios)
    unclear = ends is not None and ends[0] <= 0.0 <= ends[1]
    detectable = metric.minimum_detectable_percent
    if unclear and detectable is not None and difference.ci95 is not None and ends is not None and metric.a.mean:
        # A difference has to stand out of the model's doubt as well.
        further = max(difference.ci95[0] - ends[0], ends[1] - difference.ci95[1])
        detectable += 100 * further / abs(metric.a.mean)
    return msgspec.structs.replace(
        metric,
        difference=msgspec.structs.replace(difference, ci95=ends, sampling_ci95=difference.ci95),
        ratio=ratio,
        verdict="inconclusive" if unclear else metric.verdict,
        minimum_detectable_percent=detectable,
    )


def _hull(ranges: Sequence[Range | None]) -> Range | None:
    known = [span for span in ranges if span is not None]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else None


def own_control(metric: Metric, seed: int) -> ControlRecord | None:
    """A against A at no cost: neighbouring windows of A taken as pairs. None for fewer than six windows of A."""
    values = [value for value in metric.a.values if value is not None]
    if len(values) < 6:
        return None
    # Which of the two comes first alternates, so that a drift does not look like a difference.
    pairs = zip(values[0::2], values[1::2], strict=False)
    return _control("own_blocks", [(y, x) if index % 2 else (x, y) for index, (x, y) in enumerate(pairs)], seed)


def run_control(again: Sequence[Compared], primary: str, seed: int) -> ControlRecord | None:
    """A against A by windows of its own, by the primary metric; None where they have no value of it."""
    pairs = [pair for each in again if each.a.name == primary for pair in _both_known(each)]
    return _control("run", pairs, seed) if pairs else None


def _control(kind: Literal["own_blocks", "run"], pairs: Sequence[tuple[float, float]], seed: int) -> ControlRecord:
    judged = judge_control(compare_pairs([x for x, _ in pairs], [y for _, y in pairs], seed=seed))
    return ControlRecord(
        kind=kind,
        pairs_count=len(pairs),
        sound=judged.sound,
        half_width_percent=judged.half_width_percent,
        difference_percent=judged.difference_percent,
    )


def half_width_percent(metric: Metric) -> float | None:
    """Half of the interval of the difference, in percent of A: what `--precision` is held against."""
    interval = metric.difference.ci95
    if interval is None or not metric.a.mean:
        return None
    return 100 * (interval[1] - interval[0]) / 2 / abs(metric.a.mean)
