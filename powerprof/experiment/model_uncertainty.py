# SPDX-License-Identifier: Apache-2.0
"""Apply other energy models to the difference of estimated figures.

Each difference and ratio is judged again with every extreme pair of idle watts and slope
(`energy.uncertainty.find_corners`), one pair for both conditions. Between windows of equal length the idle part cancels
and the uncertainty of the slope remains. If the conditions did unequal work, the idle part does not cancel. A ratio
keeps the uncertainty of idle ÷ slope.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from powerprof.energy.uncertainty import Pair, find_corners
from powerprof.experiment.metrics import Baseline
from powerprof.experiment.records import Block, BlockPair
from powerprof.model.records import EnergyReading, EstimateRange


def estimate_with(watts: float, span: EstimateRange, pair: Pair) -> float:
    """Return the estimate by another model with these idle watts and this slope."""
    idle, slope = pair
    busy = (watts - span.idle_watts) / span.slope_watts if span.slope_watts else 0.0
    return idle + slope * busy


def apply_other_models(pairs: Sequence[BlockPair], baseline: Baseline) -> list[tuple[list[BlockPair], Baseline]]:
    """Return the pairs and the idle host by every other possible model; empty if no energy is estimated."""
    span = next((r.range for pair in pairs for block in pair for r in block.window.energy if r.range is not None), None)
    if span is None:
        return []
    others = []
    for model in find_corners(span):
        watts = None if baseline.watts is None else estimate_with(baseline.watts, span, model)
        moved = [(_apply_model(a, span, model), _apply_model(b, span, model)) for a, b in pairs]
        others.append((moved, replace(baseline, watts=watts)))
    return others


def _apply_model(block: Block, span: EstimateRange, pair: Pair) -> Block:
    energy = [_apply_model_to_reading(reading, span, pair) for reading in block.window.energy]
    return msgspec.structs.replace(
        block,
        window=msgspec.structs.replace(block.window, energy=energy),
        solution_energy=[_apply_model_to_reading(reading, span, pair) for reading in block.solution_energy],
    )


def _apply_model_to_reading(reading: EnergyReading, span: EstimateRange, pair: Pair) -> EnergyReading:
    if reading.range is None or reading.watts is None or reading.joules is None or not reading.watts:
        return reading
    watts = estimate_with(reading.watts, reading.range, _scale_pair(reading.range, span, pair))
    return msgspec.structs.replace(reading, watts=watts, joules=reading.joules * watts / reading.watts)


def _scale_pair(own: EstimateRange, span: EstimateRange, pair: Pair) -> Pair:
    """Scale a pair of idle watts and slope to the CPUs of this reading: a CPU can go offline between windows."""
    scale = own.slope_watts / span.slope_watts if span.slope_watts else 1.0
    return pair[0] * scale, pair[1] * scale
