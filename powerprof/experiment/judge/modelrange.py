# SPDX-License-Identifier: Apache-2.0
"""Pure: the doubt of the model in a difference of estimated figures, beside the doubt of the sample.

A difference is judged again with the model's idle and slope at each end of their intervals. Between windows of equal
length the idle part cancels and the slope's doubt is left; where the conditions did unequal work, it does not.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import msgspec

from powerprof.experiment.judge.metrics import Baseline
from powerprof.experiment.judge.verdict import judge
from powerprof.experiment.records import Block, Difference, Metric, Range
from powerprof.records import EnergyReading, EstimateRange

End = Literal["low", "high"]


def at_end(watts: float, span: EstimateRange, idle: End, slope: End) -> float:
    """What the estimate would be with the model's idle and slope at these ends of their intervals."""
    idle_watts = span.idle_low_watts if idle == "low" else span.idle_high_watts
    slope_watts = span.slope_low_watts if slope == "low" else span.slope_high_watts
    busy = (watts - span.idle_watts) / span.slope_watts if span.slope_watts else 0.0
    return idle_watts + slope_watts * busy


def with_model_range(metrics: Sequence[Metric], blocks: Sequence[Block], baseline: Baseline, seed: int) -> list[Metric]:
    """The metrics, the intervals of the estimated ones widened by what the model does not know."""
    span = next((r.range for block in blocks for r in block.window.energy if r.range is not None), None)
    if span is None or not any(metric.kind == "estimated" for metric in metrics):
        return list(metrics)
    ends: tuple[End, End] = ("low", "high")
    judged: dict[str, list[Metric]] = {}
    for idle, slope in itertools.product(ends, ends):
        moved = [_moved(block, idle, slope) for block in blocks]
        watts = None if baseline.watts is None else at_end(baseline.watts, span, idle, slope)
        for metric in judge(moved, replace(baseline, watts=watts), "", seed, kind="estimated"):
            judged.setdefault(metric.name, []).append(metric)
    return [_widened(metric, judged.get(metric.name, [])) for metric in metrics]


def _moved(block: Block, idle: End, slope: End) -> Block:
    energy = [_at(reading, idle, slope) for reading in block.window.energy]
    return msgspec.structs.replace(
        block,
        window=msgspec.structs.replace(block.window, energy=energy),
        solution_energy=[_at(reading, idle, slope) for reading in block.solution_energy],
    )


def _at(reading: EnergyReading, idle: End, slope: End) -> EnergyReading:
    if reading.range is None or reading.watts is None or reading.joules is None or not reading.watts:
        return reading
    watts = at_end(reading.watts, reading.range, idle, slope)
    return msgspec.structs.replace(reading, watts=watts, joules=reading.joules * watts / reading.watts)


def _widened(metric: Metric, others: Sequence[Metric]) -> Metric:
    if metric.kind != "estimated" or not others:
        return metric
    difference, ratio = metric.difference, metric.ratio
    ends = _hull([difference.ci95, *(other.difference.ci95 for other in others)])
    if ratio is not None:
        ratios = _hull([ratio.ci95, *(other.ratio.ci95 for other in others if other.ratio is not None)])
        ratio = msgspec.structs.replace(ratio, ci95=ratios)
    unclear = ends is not None and ends[0] <= 0.0 <= ends[1]
    detectable = metric.minimum_detectable_percent
    if unclear and detectable is not None and difference.ci95 is not None and ends is not None and metric.a.mean:
        # A difference has to stand out of the model's doubt as well.
        further = max(difference.ci95[0] - ends[0], ends[1] - difference.ci95[1])
        detectable += 100 * further / abs(metric.a.mean)
    return msgspec.structs.replace(
        metric,
        difference=Difference(
            b_minus_a=difference.b_minus_a, ci95=ends, percent=difference.percent, sampling_ci95=difference.ci95
        ),
        ratio=ratio,
        verdict="inconclusive" if unclear else metric.verdict,
        minimum_detectable_percent=detectable,
    )


def _hull(ranges: Sequence[Range | None]) -> Range | None:
    known = [span for span in ranges if span is not None]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else None
