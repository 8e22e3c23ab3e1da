# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof energy` and its `--calibrate`, and the yearly cost of a power draw."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import partial

import msgspec

from powerprof.energy.domains import EnergyResult
from powerprof.energy.model import WIDE
from powerprof.energy.models_file import PowerModel
from powerprof.experiment.claims import metric_named
from powerprof.experiment.records import Comparison, LoadRun
from powerprof.model import text
from powerprof.model.records import EnergyReading, Kind
from powerprof.report.document import Document, Part, Section, Sentence, Shown, View
from powerprof.report.table import Cell, Line, Places, Table, TableRow, Words, figures, fit_rows, words
from powerprof.system.errors import UsageError

_COLUMNS = (*words(name="meter"), *figures(watts="watts", joules="joules"), *words("inside"))
_NO_WATTS = "no figure"


def document(result: EnergyResult, view: View) -> Document:
    """Return the report of the meters: the host's watts, then each domain."""
    return Document(
        record=result,
        answer=answer_of(result),
        parts=partial(_list_parts, result),
        rows=partial(_list_rows, result),
        setup=(("Host", "/host"),),
        derived=view.extras.derived,
    )


def _list_parts(result: EnergyResult) -> Iterator[Part]:
    yield Sentence(_remedy(result))
    yield Section("Meters", [Shown(meters_table(result), fit_rows, what="domains")], name="meters")


def _list_rows(result: EnergyResult) -> Iterator[Line]:
    """Yield one line per meter domain; `summed` marks the domains in the total."""
    yield [
        *("source", "domain", "kind", "joules", "watts", "low_watts", "high_watts", "contained_in"),
        *("dropped_samples", "summed", "window_s"),
    ]
    total = result.total
    for meter in result.meters:
        summed = total.watts is not None and meter.source == total.source and meter.domain in total.domains
        energies = (meter.joules, meter.watts, meter.low_watts, meter.high_watts)
        yield [
            *(meter.source, meter.domain, meter.kind, *energies, meter.contained_in, meter.dropped_samples_count),
            *("yes" if summed else "no", result.window_s),
        ]


def meters_table(result: EnergyResult) -> Table:
    """Return one row per meter domain."""
    places, rows = Places(result), []
    for number, meter in enumerate(result.meters):
        digits = 1 if meter.watts is not None and meter.watts >= 10 else 2
        unknown = "" if meter.watts is not None else _NO_WATTS
        cells: dict[str, Cell] = {
            "name": Words(f"{meter.domain} ({meter.source})"),
            "watts": places.figure(f"/meters/{number}/watts", digits, wording=unknown),
            "inside": _inside(meter),
        }
        if meter.joules is not None:
            cells["joules"] = places.figure(f"/meters/{number}/joules", 1)
        rows.append(TableRow(cells))
    return Table(_COLUMNS, rows, "meters")


def _inside(meter: EnergyReading) -> Words:
    """Return the domain that includes this one, or why it is in no sum."""
    if meter.scope in ("device", "other") or meter.unsummed:
        return Words("not summed", ours=True)
    return Words("estimated", ours=True) if meter.kind == "estimated" else Words(meter.contained_in or "")


def answer_of(result: EnergyResult) -> str:
    """Return the watts of the host, or that its total is unknown."""
    total = result.total
    window = "" if result.window_s is None else f" over {result.window_s:.1f} s"
    if total.reason is not None:
        return f"The total is unknown{window}."
    if total.watts is None:
        bounds = next((r for r in result.meters if r.low_watts is not None and r.high_watts is not None), None)
        if bounds is None or bounds.low_watts is None or bounds.high_watts is None:
            return f"No energy figure{window}."
        low, high = _figure(bounds.low_watts), _figure(bounds.high_watts)
        return f"{low} to {high} W possible{window} (estimate): the running time of the CPUs is unknown."
    if total.low_watts is not None and total.high_watts is not None and total.high_watts > WIDE * total.low_watts:
        low, high = _two_digits(total.low_watts), _two_digits(total.high_watts)
        return f"About {_two_digits(total.watts)} W{window} (estimate; {low} to {high} W possible)."
    of = " + ".join(total.domains)
    answer = f"{_figure(total.watts)} W{window}, {total.kind}: {of} by {total.source}"
    if total.low_watts is not None and total.high_watts is not None:
        answer += f", between {_figure(total.low_watts)} and {_figure(total.high_watts)} W"
    return answer + "."


def _remedy(result: EnergyResult) -> str:
    """Return how to name the machine's own meter if the total is unknown. Recordings have no choice of meters."""
    if result.total.reason is None:
        return ""
    if not any(str(note).startswith("energy source: ") for note in result.notes):
        return "Each meter has its own figure below. Read only the recording of the machine's own meter."
    source = result.total.source or (result.meters[0].source if result.meters else "NAME")
    return (
        "Each meter has its own figure below. If you know which of them measure the machine, name them: "
        f"--meter {source}:DOMAIN+DOMAIN. --meter model estimates it."
    )


def _two_digits(watts: float) -> str:
    """Return watts with two significant digits, the precision of an estimate."""
    return f"{watts:.2g}" if watts < 100 else f"{watts:.0f}"


def _figure(watts: float) -> str:
    return f"{watts:.1f}" if watts >= 10 else f"{watts:.2f}"


# The terminal report of `powerprof energy --calibrate`.


def calibration_lines(model: PowerModel) -> list[str]:
    """Return the model's watts and joules with their intervals and doubts."""
    rows = [("C0 (running)", model.full_watts, model.full_range_watts)]
    rows += [(state.name, state.watts, state.range_watts) for state in model.states]
    printed = [f"{model.name}: {model.scope}", "", f"{'watts of one CPU':<24}{'':>8}   95 % interval"]
    printed += [f"{title:<24}{watts:8.3f}   {low:.3f} – {high:.3f}" for title, watts, (low, high) in rows]
    if model.wakeup is not None:
        low, high = model.wakeup.range_joules
        printed.append(f"{'a wake-up, µJ':<24}{model.wakeup.joules * 1e6:8.2f}   {low * 1e6:.2f} – {high * 1e6:.2f}")
    if model.cross_validated_percent is not None:
        printed.append(f"Error on levels outside the fit: {model.cross_validated_percent:.1f} %.")
    return [*printed, *(f"· {doubt}" for doubt in model.doubts)]


# The yearly energy, money and carbon of a power draw: derived from a stated price and grid, never measured.

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
