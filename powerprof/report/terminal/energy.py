# SPDX-License-Identifier: Apache-2.0
"""The terminal's view of an `EnergyResult`: the answer, the meters, then what is to be known of them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from powerprof.energy.model import WIDE
from powerprof.energy.result import EnergyResult
from powerprof.records import EnergyReading
from powerprof.report.wording.notes import texts

if TYPE_CHECKING:
    from powerprof.report.forms.csvfile import Line

_WIDTH = 80

# How `powerprof energy` begins these notes.
_DOUBT, _NO_METER = "doubt: ", "energy source: no meter on this host: "


def csv_lines(result: EnergyResult) -> Iterator[Line]:
    """A line a domain of each meter; `summed` says which of them make the total."""
    yield [
        *("source", "domain", "kind", "joules", "watts", "low_watts", "high_watts", "contained_in"),
        *("dropped_samples", "summed", "window_s"),
    ]
    total = result.total
    for meter in result.meters:
        summed = meter.source == total.source and meter.domain in total.domains
        yield [
            *(
                meter.source,
                meter.domain,
                meter.kind,
                meter.joules,
                meter.watts,
                meter.low_watts,
                meter.high_watts,
                meter.contained_in,
            ),
            *(meter.dropped_samples_count, "yes" if summed else "no", result.window_s),
        ]


def lines(result: EnergyResult, width: int = _WIDTH) -> list[str]:
    """The whole report, at most 80 columns wide where names allow it."""
    printed = textwrap.wrap(_answer(result), _WIDTH)
    if result.meters:
        names = max(24, *(len(_name(r)) + 2 for r in result.meters))
        printed += ["", f"{'':{names}}{'watts':>10}{'joules':>13}   inside"]
        printed += [_row(reading, names) for reading in result.meters]
    if result.notes:
        printed.append("")
        for note in _notes(texts(result.notes)):
            printed += textwrap.wrap(
                note,
                _WIDTH,
                initial_indent="· ",
                subsequent_indent="  ",
                break_long_words=False,
                break_on_hyphens=False,  # paths are to be copied whole
            )
    return printed


def _notes(notes: Sequence[str]) -> list[str]:
    """Why each kind of meter is missing is doctor's answer, and all doubts of an estimate are one paragraph."""
    doubts = [note.removeprefix(_DOUBT) for note in notes if note.startswith(_DOUBT)]
    others = [
        "no meter on this host (powerprof doctor)" if note.startswith(_NO_METER) else note
        for note in notes
        if not note.startswith(_DOUBT)
    ]
    return [*others, *([f"doubts: {'; '.join(doubts)}"] if doubts else [])]


def _answer(result: EnergyResult) -> str:
    total = result.total
    window = "" if result.window_s is None else f" over {result.window_s:.1f} s"
    if total.watts is None or total.joules is None:
        bounds = next((r for r in result.meters if r.low_watts is not None and r.high_watts is not None), None)
        if bounds is None or bounds.low_watts is None or bounds.high_watts is None:
            return f"No energy figure{window}."
        low, high = _figure(bounds.low_watts), _figure(bounds.high_watts)
        return f"{low} to {high} W possible{window} (estimate): how long the CPUs ran is unknown."
    if total.low_watts is not None and total.high_watts is not None and total.high_watts > WIDE * total.low_watts:
        low, high = _rough(total.low_watts), _rough(total.high_watts)
        return f"About {_rough(total.watts)} W{window} (estimate; {low} to {high} W possible)."
    of = " + ".join(total.domains)
    text = f"{_figure(total.watts)} W{window}, {total.kind}: {of} by {total.source}"
    if total.low_watts is not None and total.high_watts is not None:
        text += f", between {_figure(total.low_watts)} and {_figure(total.high_watts)} W"
    return text + "."


def _name(reading: EnergyReading) -> str:
    return f"{reading.domain} ({reading.source})"


def _row(reading: EnergyReading, width: int) -> str:
    watts = "no figure" if reading.watts is None else _figure(reading.watts)
    joules = "" if reading.joules is None else f"{reading.joules:,.1f}"
    kind = "estimated" if reading.kind == "estimated" else reading.contained_in or ""
    kind = "in no sum" if reading.scope in ("device", "other") else kind
    return f"{_name(reading):{width}}{watts:>10}{joules:>13}   {kind}".rstrip()


def _rough(watts: float) -> str:
    """As many digits as an estimate has: two."""
    return f"{watts:.2g}" if watts < 100 else f"{watts:.0f}"


def _figure(watts: float) -> str:
    return f"{watts:.1f}" if watts >= 10 else f"{watts:.2f}"
