# SPDX-License-Identifier: Apache-2.0
"""The yearly energy, money and carbon of a power draw: derived from a stated price and grid, never measured."""

from __future__ import annotations

import math
import re

import msgspec

from powerprof.experiment.claims import metric_named
from powerprof.experiment.records import Comparison, LoadRun
from powerprof.model import text
from powerprof.model.records import Kind
from powerprof.system.errors import UsageError

_HOURS_PER_YEAR = 8760.0
_PRICE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Z]{3})")
_MAX_PRICE = 1e6


class PriceTerms(msgspec.Struct, frozen=True):
    """The price of a kWh with its currency, and the grams of CO2 per kWh; None if not given."""

    price: float | None = None
    currency: str = ""
    grid_g: float | None = None


class PowerDraw(msgspec.Struct, frozen=True):
    """Watts of a condition, or the difference to another condition, with the 95 % interval if it is known."""

    watts: float
    low: float | None
    high: float | None
    kind: Kind
    what: str


def parse_terms(price: str | None, grid: float | None) -> PriceTerms:
    """Return `0.30EUR` and `380` as terms. Raises UsageError."""
    match = _PRICE.fullmatch(price.strip()) if price is not None else None
    if price is not None and (match is None or not 0 < float(match[1]) < _MAX_PRICE):
        raise UsageError(f"--price {price} is not a price per kWh", "a number and a currency, such as 0.30EUR")
    if grid is not None and not (math.isfinite(grid) and 0 <= grid <= 5000):
        raise UsageError(f"--grid {grid:g} is not a grid intensity", "grams of CO2 per kWh, such as 380")
    return PriceTerms(float(match[1]) if match else None, match[2] if match else "", grid)


def draw_of(record: object) -> PowerDraw | None:
    """Return the power of a load, or the difference B − A of a comparison; None if it is inconclusive."""
    if isinstance(record, Comparison):
        metric = metric_named(record.metrics, "watts")
        change = metric.difference.b_minus_a if metric is not None else None
        if metric is None or change is None or metric.verdict == "inconclusive":
            return None
        more, sign = ("more", 1) if change > 0 else ("less", -1)
        low, high = sorted(sign * end for end in metric.difference.ci95) if metric.difference.ci95 else (None, None)
        what = f"{record.b.name} draws {{}} {more} than {record.a.name}"
        return PowerDraw(sign * change, low, high, metric.kind, what)
    if isinstance(record, LoadRun):
        own = metric_named(record.metrics, "watts")
        if own is None:
            return None
        mean = own.estimate
        return PowerDraw(mean.mean, mean.low, mean.high, own.kind, "the host draws {} under this load")
    return None


def yearly_sentence(record: object, asked: PriceTerms) -> str:
    """Return the derived yearly figures in one sentence."""
    draw = draw_of(record)
    if draw is None:
        return "No yearly figure: power is inconclusive."
    kwh = _HOURS_PER_YEAR / 1e3
    parts = [_amount(draw, kwh, "kWh")]
    if asked.price is not None:
        parts.append(f"{_amount(draw, kwh * asked.price, asked.currency)} at {asked.price:g} {asked.currency}/kWh")
    if asked.grid_g is not None:
        parts.append(f"{_amount(draw, kwh * asked.grid_g / 1e3, 'kg CO2')} at {asked.grid_g:g} g/kWh")
    watts = draw.what.format(f"{_three(draw.watts)} W ({draw.kind})")
    interval = "" if draw.low is None else " In brackets: 95 % intervals."
    return f"Derived, not measured: {watts}; over a year that is {text.join_words(parts)}.{interval}"


def _amount(draw: PowerDraw, per_watt: float, unit: str) -> str:
    """Return an amount with the interval of the power: `10.5 kWh (8.1 to 12.9)`."""
    amount = f"{_three(draw.watts * per_watt)} {unit}"
    if draw.low is None or draw.high is None:
        return amount
    return f"{amount} ({_three(draw.low * per_watt)} to {_three(draw.high * per_watt)})".replace("(-", "(−")


def _three(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
