# SPDX-License-Identifier: Apache-2.0
"""Pure: the doubt of the model in a difference of estimated figures, beside the doubt of the sample.

Each difference and ratio is judged again with every pair of idle watts and slope that is a corner of what is possible
(`energy.joint`), the same pair for both conditions. Between windows of equal length the idle part cancels and the
slope's doubt is left; where the conditions did unequal work, it does not. A ratio keeps the doubt of idle ÷ slope.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from powerprof.energy.joint import Pair, corners
from powerprof.experiment.judge.metrics import Baseline
from powerprof.experiment.judge.verdict import bounded, judge
from powerprof.experiment.records import Block, Metric, Range
from powerprof.records import EnergyReading, EstimateRange


def with_pair(watts: float, span: EstimateRange, pair: Pair) -> float:
    """What the estimate would be by another model: with these idle watts and this slope."""
    idle, slope = pair
    busy = (watts - span.idle_watts) / span.slope_watts if span.slope_watts else 0.0
    return idle + slope * busy


def with_model_range(metrics: Sequence[Metric], blocks: Sequence[Block], baseline: Baseline, seed: int) -> list[Metric]:
    """The metrics, the intervals of the estimated ones widened by what the model does not know."""
    span = next((r.range for block in blocks for r in block.window.energy if r.range is not None), None)
    if span is None or not any(metric.kind == "estimated" for metric in metrics):
        return list(metrics)
    judged: dict[str, list[Metric]] = {}
    for pair in corners(span):
        moved = [_moved(block, span, pair) for block in blocks]
        watts = None if baseline.watts is None else with_pair(baseline.watts, span, pair)
        for metric in judge(moved, replace(baseline, watts=watts), "", seed, kind="estimated"):
            judged.setdefault(metric.name, []).append(metric)
    return [_widened(metric, judged.get(metric.name, [])) for metric in metrics]


def _moved(block: Block, span: EstimateRange, pair: Pair) -> Block:
    energy = [_with(reading, span, pair) for reading in block.window.energy]
    return msgspec.structs.replace(
        block,
        window=msgspec.structs.replace(block.window, energy=energy),
        solution_energy=[_with(reading, span, pair) for reading in block.solution_energy],
    )


def _with(reading: EnergyReading, span: EstimateRange, pair: Pair) -> EnergyReading:
    if reading.range is None or reading.watts is None or reading.joules is None or not reading.watts:
        return reading
    watts = with_pair(reading.watts, reading.range, _for(reading.range, span, pair))
    return msgspec.structs.replace(reading, watts=watts, joules=reading.joules * watts / reading.watts)


def _for(own: EstimateRange, span: EstimateRange, pair: Pair) -> Pair:
    """The pair for as many CPUs as this reading is of: a CPU may have come or gone between two windows."""
    scale = own.slope_watts / span.slope_watts if span.slope_watts else 1.0
    return pair[0] * scale, pair[1] * scale


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
    return bounded(
        msgspec.structs.replace(
            metric,
            difference=msgspec.structs.replace(difference, ci95=ends, sampling_ci95=difference.ci95),
            ratio=ratio,
            verdict="inconclusive" if unclear else metric.verdict,
            minimum_detectable_percent=detectable,
        )
    )


def _hull(ranges: Sequence[Range | None]) -> Range | None:
    known = [span for span in ranges if span is not None]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else None
