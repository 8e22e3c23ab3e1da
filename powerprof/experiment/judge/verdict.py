# SPDX-License-Identifier: Apache-2.0
"""Pure: from blocks to metrics with intervals, verdicts, and the control from A's own blocks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from powerprof.experiment.judge.metrics import Baseline, Values, metrics_for, within
from powerprof.experiment.records import Block, ControlRecord, Difference, Metric, Range, Ratio, Side
from powerprof.records import Kind, RunMetric
from powerprof.statistics import (
    Interval,
    PairedResult,
    compare_pairs,
    compare_unpaired,
    judge_control,
    primary_verdict,
    survivors,
)


def pairs_of(blocks: Sequence[Block]) -> list[tuple[Block, Block]]:
    """The complete pairs that count, as (a, b), in the order of time."""
    by_pair: dict[int, dict[str, Block]] = {}
    for block in blocks:
        if not block.dropped and not block.disturbed:
            by_pair.setdefault(block.pair, {})[block.arm] = block
    return [(both["a"], both["b"]) for _, both in sorted(by_pair.items()) if len(both) == 2]


def judge(
    blocks: Sequence[Block], baseline: Baseline, primary: str, seed: int, kind: Kind | None = None
) -> list[Metric]:
    """Every metric (of one `kind`) over the complete pairs, the primary first; the others' verdicts are a family's."""
    pairs = pairs_of(blocks)
    counted = [block for pair in pairs for block in pair]
    metrics = []
    for values in metrics_for(counted, baseline):
        if kind is not None and values.kind != kind:
            continue
        a, b = [values.of(pair[0]) for pair in pairs], [values.of(pair[1]) for pair in pairs]
        both = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
        if both:
            result = compare_pairs([x for x, _ in both], [y for _, y in both], seed=seed, step=values.step(counted))
            metrics.append((_metric(values, a, b, result), result.p_value))
    return _as_a_family(metrics, primary)


def judge_saved(a: Sequence[Metric], b: Sequence[Metric], primary: str, seed: int, *, paired: bool) -> list[Metric]:
    """Metrics of two saved conditions, each as side a of its own; in pairs where they were measured in pairs."""
    metrics = []
    for first in a:
        second = next((metric for metric in b if metric.name == first.name), None)
        if second is None or second.kind != first.kind or second.source != first.source:
            continue
        left, right = first.a.values, second.a.values
        if paired:
            both = [(x, y) for x, y in zip(left, right, strict=True) if x is not None and y is not None]
            known_left, known_right = [x for x, _ in both], [y for _, y in both]
        else:
            known_left, known_right = ([value for value in values if value is not None] for values in (left, right))
        if known_left and known_right:
            result = (compare_pairs if paired else compare_unpaired)(known_left, known_right, seed=seed)
            values = Values(first.name, first.unit, first.kind, lambda _: None, first.source)
            metrics.append((_metric(values, left, right, result), result.p_value))
    return _as_a_family(metrics, primary)


def unjudged(metric: RunMetric) -> Metric:
    """A metric of one condition as side a of a comparison to come."""
    estimate = metric.estimate
    ends = None if estimate.low is None or estimate.high is None else (estimate.low, estimate.high)
    side = Side(mean=estimate.mean, ci95=ends, values=metric.values)
    return Metric(
        name=metric.name,
        unit=metric.unit,
        kind=metric.kind,
        source=metric.source,
        a=side,
        b=side,
        difference=Difference(b_minus_a=None, ci95=None, percent=None),
        verdict="inconclusive",
        minimum_detectable_percent=None,
    )


def judge_system(a: Sequence[RunMetric], b: Sequence[RunMetric], seed: int, *, paired: bool) -> list[Metric]:
    """What the system did in either condition, a family of its own: many figures that nobody asked for must not hide
    those of the conditions."""
    return judge_saved([unjudged(metric) for metric in a], [unjudged(metric) for metric in b], "", seed, paired=paired)


def _as_a_family(judged: Sequence[tuple[Metric, float | None]], primary: str) -> list[Metric]:
    """The primary metric is judged by itself, of the others those keep their verdicts that survive together."""
    others = [(metric, p) for metric, p in judged if metric.name != primary]
    sure = survivors([p for _, p in others])
    kept = [
        metric if stays else msgspec.structs.replace(metric, verdict="inconclusive")
        for (metric, _), stays in zip(others, sure, strict=True)
    ]
    first = [
        msgspec.structs.replace(metric, verdict=primary_verdict(metric.verdict, p))
        for metric, p in judged
        if metric.name == primary
    ]
    return [bounded(metric) for metric in (*first, *kept)]


def bounded(metric: Metric) -> Metric:
    """A difference that was not found with the most that it may be: what was not seen is not nothing."""
    difference, ends = metric.difference, metric.difference.ci95
    most = None if ends is None or metric.verdict != "inconclusive" else max(abs(end) for end in ends)
    return msgspec.structs.replace(metric, difference=msgspec.structs.replace(difference, less_than=most))


def _range(interval: Interval | None) -> Range | None:
    return None if interval is None else (interval.low, interval.high)


def _metric(values: Values, a: Sequence[float | None], b: Sequence[float | None], result: PairedResult) -> Metric:
    return Metric(
        name=values.name,
        unit=values.unit,
        kind=values.kind,
        source=values.source,
        a=Side(mean=result.a_mean, ci95=_possible(values, a, result.a_interval), values=list(a)),
        b=Side(mean=result.b_mean, ci95=_possible(values, b, result.b_interval), values=list(b)),
        difference=Difference(
            b_minus_a=result.difference, ci95=_range(result.difference_interval), percent=result.percent
        ),
        ratio=None if result.ratio is None else Ratio(b_over_a=result.ratio, ci95=_range(result.ratio_interval)),
        verdict=result.verdict,
        minimum_detectable_percent=result.minimum_detectable_percent,
    )


def _possible(values: Values, each: Sequence[float | None], interval: Interval | None) -> Range | None:
    """The interval; where it reaches what cannot be, that of `within`, which does not."""
    if interval is None or values.possible(interval.low, interval.high):
        return _range(interval)
    known = within(values.name, values.unit, [value for value in each if value is not None])
    return None if known.low is None or known.high is None else (known.low, known.high)


def own_control(metric: Metric, seed: int) -> ControlRecord | None:
    """A against A at no cost: neighbouring windows of A taken as pairs. None for fewer than six windows of A."""
    values = [value for value in metric.a.values if value is not None]
    if len(values) < 6:
        return None
    first, second = values[0::2], values[1::2]
    count = min(len(first), len(second))
    # Which of the two comes first alternates, so that a drift does not look like a difference.
    pairs = [(x, y) if index % 2 == 0 else (y, x) for index, (x, y) in enumerate(zip(first, second, strict=False))]
    judged = judge_control(compare_pairs([x for x, _ in pairs], [y for _, y in pairs], seed=seed))
    return ControlRecord(
        kind="own_blocks",
        pairs_count=count,
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
