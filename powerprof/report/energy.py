# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof energy` and its `--calibrate`: the host's watts, then each meter."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from powerprof.energy.model import WIDE
from powerprof.energy.models_file import PowerModel
from powerprof.energy.total import EnergyResult, PackagesEnergy, Total
from powerprof.model.records import EnergyReading
from powerprof.model.text import join_words
from powerprof.report import labels
from powerprof.report.document import Document, Part, Section, Sentence, Shown, View
from powerprof.report.layouts import fit_rows
from powerprof.report.table import Cell, Line, Places, Table, TableRow, Words, figure_columns, word_columns

_COLUMNS = (*word_columns(name="meter"), *figure_columns(watts="watts", joules="joules"), *word_columns("inside"))
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
    estimated = "estimated" if meter.kind == "estimated" else ""
    if meter.scope in ("device", "other") or meter.unsummed:
        return Words(", ".join(filter(None, ("not summed", estimated))), ours=True)
    return Words(estimated, ours=True) if estimated else Words(meter.contained_in or "")


def answer_of(result: EnergyResult) -> str:
    """Return the watts of the host, or that its total is unknown."""
    total = result.total
    window = "" if result.window_s is None else f" over {result.window_s:.1f} s"
    if total.reason is not None:
        return f"The total is unknown{window}{_packages_of(total)}."
    if total.watts is None:
        bounds = next((r for r in result.meters if r.low_watts is not None and r.high_watts is not None), None)
        if bounds is None or bounds.low_watts is None or bounds.high_watts is None:
            return f"No energy figure{window}."
        _, low, high = labels.format_together((bounds.low_watts, bounds.low_watts, bounds.high_watts))
        return f"{low} to {high} W possible{window} (estimate): the running time of the CPUs is unknown."
    if total.low_watts is not None and total.high_watts is not None and total.high_watts > WIDE * total.low_watts:
        low, high = _two_digits(total.low_watts), _two_digits(total.high_watts)
        return f"About {_two_digits(total.watts)} W{window} (estimate; {low} to {high} W possible)."
    of = " + ".join(total.domains)
    watts, ends = _with_ends(total)
    return f"{watts} W{window}, {total.kind}: {of} by {total.source}{ends}."


def _with_ends(figures: Total | PackagesEnergy) -> tuple[str, str]:
    """Return the watts and their interval in words, with equal decimals."""
    watts = figures.watts or 0.0
    if figures.low_watts is None or figures.high_watts is None:
        return _figure(watts), ""
    mean, low, high = labels.format_together((watts, figures.low_watts, figures.high_watts))
    return mean, f", between {low} and {high} W"


def _packages_of(total: Total) -> str:
    """Return the packages' watts if only their memory has no figure. They are never the host's."""
    packages = total.packages
    if packages is None:
        return ""
    watts, ends = _with_ends(packages)
    verb = "draws" if len(packages.domains) == 1 else "draw"
    return f"; without memory, {join_words(packages.domains)} by {packages.source} {verb} {watts} W{ends}"


def _remedy(result: EnergyResult) -> str:
    """Return how to name the machine's own meter if the total is unknown. Recordings have no choice of meters."""
    if result.total.reason is None:
        return ""
    if not any(str(note).startswith("energy source: ") for note in result.notes):
        return "Each meter has its own figure below. Read only the recording of the machine's own meter."
    packages = result.total.packages
    if packages is not None:
        return (
            "Each meter has its own figure below. If this CPU needs no memory in the total, name the packages: "
            f"--meter {packages.source}:{'+'.join(packages.domains)}. --meter model estimates the total."
        )
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


def calibration_lines(model: PowerModel) -> list[str]:
    """Return the model's watts and joules with their intervals and doubts."""
    rows = [("C0 (running)", model.full_watts, model.full_range_watts)]
    rows += [(state.name, state.watts, state.range_watts) for state in model.states]
    printed = [f"{model.name}: {model.scope}", "", f"{'watts of one CPU':<24}{'':>8}   95 % interval"]
    if model.wakeup is not None:
        low, high = model.wakeup.range_joules
        rows.append(("a wake-up, µJ", model.wakeup.joules * 1e6, (low * 1e6, high * 1e6)))
    for title, figure, ends in rows:
        mean, least, most = labels.format_together((figure, *ends))
        printed.append(f"{title:<24}{mean:>8}   {least} – {most}")
    if model.cross_validated_percent is not None:
        printed.append(f"Error on levels outside the fit: {model.cross_validated_percent:.1f} %.")
    return [*printed, *(f"· {doubt}" for doubt in model.doubts)]
