# SPDX-License-Identifier: Apache-2.0
"""What a power draw is in a year, in energy, money and carbon: derived from a stated price and grid, never measured."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from powerprof import text
from powerprof.errors import UsageError
from powerprof.experiment.records import Comparison, LoadRun
from powerprof.records import Kind

HOURS = 8760.0
_PRICE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Z]{3})")
_MOST = 1e6


@dataclass(frozen=True)
class Terms:
    """The price of a kWh with its currency, and the grams of CO2 of a kWh; None where nobody gave it."""

    price: float | None = None
    currency: str = ""
    grid_g: float | None = None


@dataclass(frozen=True)
class Draw:
    """Watts that something draws, or draws more than something else."""

    watts: float
    kind: Kind
    what: str


def terms(price: str | None, grid: float | None) -> Terms:
    """`0.30EUR` and `380` as terms. Raises UsageError."""
    match = _PRICE.fullmatch(price.strip()) if price is not None else None
    if price is not None and (match is None or not 0 < float(match[1]) < _MOST):
        raise UsageError(f"--price {price} is not a price per kWh", "a number and a currency, such as 0.30EUR")
    if grid is not None and not (math.isfinite(grid) and 0 <= grid <= 5000):
        raise UsageError(f"--grid {grid:g} is not a grid intensity", "grams of CO2 of a kWh, such as 380")
    return Terms(float(match[1]) if match else None, match[2] if match else "", grid)


def draw_of(record: object) -> Draw | None:
    """What a record says of power: of a comparison B less A, of a load its own; None where it says nothing sure."""
    if isinstance(record, Comparison):
        metric = next((metric for metric in record.metrics if metric.name == "watts"), None)
        change = metric.difference.b_minus_a if metric is not None else None
        if metric is None or change is None or metric.verdict == "inconclusive":
            return None
        more = "more" if change > 0 else "less"
        return Draw(abs(change), metric.kind, f"{record.b.name} draws {{}} {more} than {record.a.name}")
    if isinstance(record, LoadRun):
        own = next((metric for metric in record.metrics if metric.name == "watts"), None)
        return None if own is None else Draw(own.estimate.mean, own.kind, "the host draws {} in this load")
    return None


def sentence(record: object, asked: Terms) -> str:
    """The derived figures in a sentence that says that they are."""
    draw = draw_of(record)
    if draw is None:
        return "No yearly figure: power is inconclusive."
    kwh = draw.watts * HOURS / 1e3
    parts = [f"{_three(kwh)} kWh"]
    if asked.price is not None:
        parts.append(f"{_three(kwh * asked.price)} {asked.currency} at {asked.price:g} {asked.currency}/kWh")
    if asked.grid_g is not None:
        parts.append(f"{_three(kwh * asked.grid_g / 1e3)} kg CO2 at {asked.grid_g:g} g/kWh")
    watts = draw.what.format(f"{_three(draw.watts)} W ({draw.kind})")
    return f"Derived, not measured: {watts}; all year round that is {text.listed(parts)}."


def _three(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
