# SPDX-License-Identifier: Apache-2.0
"""The terminal's view of an `EnergyResult`: the answer, the meters, then what is to be known of them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from powerprof.energy.model import WIDE
from powerprof.energy.result import EnergyResult
from powerprof.records import EnergyReading

if TYPE_CHECKING:
    from powerprof.report.csvfile import Line

_WIDTH = 80


def csv_lines(result: EnergyResult) -> Iterator[Line]:
    """A line a domain of each meter; `summed` says which of them make the total."""
    yield [
        *("source", "domain", "kind", "joules", "watts", "low_watts", "high_watts", "contained_in"),
        *("dropped_samples", "summed", "window_s"),
    ]
    total = result.total
    for one in result.meters:
        summed = one.source == total.source and one.domain in total.domains
        yield [
            *(one.source, one.domain, one.kind, one.joules, one.watts, one.low_watts, one.high_watts, one.contained_in),
            *(one.dropped_samples_count, "yes" if summed else "no", result.window_s),
        ]


def lines(result: EnergyResult, width: int = _WIDTH) -> list[str]:
    """The whole report, at most 80 columns wide where names allow it."""
    found = textwrap.wrap(_answer(result), _WIDTH)
    if result.meters:
        names = max(24, *(len(_name(r)) + 2 for r in result.meters))
        found += ["", f"{'':{names}}{'watts':>10}{'joules':>13}   inside"]
        found += [_row(reading, names) for reading in result.meters]
    if result.notes:
        found.append("")
        for note in result.notes:
            found += textwrap.wrap(
                note,
                _WIDTH,
                initial_indent="· ",
                subsequent_indent="  ",
                break_long_words=False,
                break_on_hyphens=False,  # paths are to be copied whole
            )
    return found


def _answer(result: EnergyResult) -> str:
    found = result.total
    window = "" if result.window_s is None else f" over {result.window_s:.1f} s"
    if found.watts is None or found.joules is None:
        bounds = next((r for r in result.meters if r.low_watts is not None and r.high_watts is not None), None)
        if bounds is None or bounds.low_watts is None or bounds.high_watts is None:
            return f"No energy figure{window}."
        low, high = _figure(bounds.low_watts), _figure(bounds.high_watts)
        return f"Between {low} and {high} W{window}, estimated: how long the CPUs ran is unknown."
    if found.low_watts is not None and found.high_watts is not None and found.high_watts > WIDE * found.low_watts:
        low, high = _figure(found.low_watts), _figure(found.high_watts)
        return f"Between {low} and {high} W{window}, estimated; typical of such CPUs are {_figure(found.watts)} W."
    of = " + ".join(found.domains)
    text = f"{_figure(found.watts)} W{window}, {found.kind}: {of} by {found.source}"
    if found.low_watts is not None and found.high_watts is not None:
        text += f", between {_figure(found.low_watts)} and {_figure(found.high_watts)} W"
    return text + "."


def _name(reading: EnergyReading) -> str:
    return f"{reading.domain} ({reading.source})"


def _row(reading: EnergyReading, width: int) -> str:
    watts = "no figure" if reading.watts is None else _figure(reading.watts)
    joules = "" if reading.joules is None else f"{reading.joules:,.1f}"
    kind = "estimated" if reading.kind == "estimated" else reading.contained_in or ""
    return f"{_name(reading):{width}}{watts:>10}{joules:>13}   {kind}".rstrip()


def _figure(watts: float) -> str:
    return f"{watts:.1f}" if watts >= 10 else f"{watts:.2f}"
