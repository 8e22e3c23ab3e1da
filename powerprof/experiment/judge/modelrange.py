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
from powerprof.experiment.records import Block, BlockPair
from powerprof.records import EnergyReading, EstimateRange


def with_pair(watts: float, span: EstimateRange, pair: Pair) -> float:
    """What the estimate would be by another model: with these idle watts and this slope."""
    idle, slope = pair
    busy = (watts - span.idle_watts) / span.slope_watts if span.slope_watts else 0.0
    return idle + slope * busy


def other_models(pairs: Sequence[BlockPair], baseline: Baseline) -> list[tuple[list[BlockPair], Baseline]]:
    """The pairs and the idle host by every other model that is possible; none where nothing is estimated."""
    span = next((r.range for pair in pairs for block in pair for r in block.window.energy if r.range is not None), None)
    if span is None:
        return []
    others = []
    for model in corners(span):
        watts = None if baseline.watts is None else with_pair(baseline.watts, span, model)
        moved = [(_moved(a, span, model), _moved(b, span, model)) for a, b in pairs]
        others.append((moved, replace(baseline, watts=watts)))
    return others


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
