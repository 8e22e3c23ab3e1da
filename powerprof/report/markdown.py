# SPDX-License-Identifier: Apache-2.0
"""Markdown for pull requests: the answer, its table, the doubts, and where the figures are from.

Names from outside are code spans: there GitHub sees no link, no mention and no HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from powerprof.experiment.records import Comparison, LoadRun
from powerprof.experiment.sweep_comparison import SweepComparison
from powerprof.experiment.sweep_rounds import Sweep
from powerprof.model import text
from powerprof.model.attribution import Attribution
from powerprof.model.records import Conservation, IdleRun, Run
from powerprof.report import labels, metrics
from powerprof.report.labels import texts
from powerprof.report.metrics import (
    comparison_table,
    functions_table,
    load_system_table,
    load_table,
    paces_table,
    parted_table,
    points_table,
    sweep_table,
    system_table,
)
from powerprof.report.phases import changes_table, phases_table
from powerprof.report.sweep_comparison import parting_functions_table
from powerprof.report.table import Cell, Column, Figure, JudgedCell, Path, Places, Table, TableRow
from powerprof.report.wakeups import RAN_ANYWAY, beyond, causes_table, ran_anyway_table, wakeups_table

_NAME_LIMIT = 120
_STACK_LIMIT = 8
_ROWS = 25
_COMPARED = ("name", "a", "b", "difference", "percent", "verdict")
_CAUSES = ("who", "why", "every", "rate", "percent")
_WAKEUPS = ("thread", "path", "every", "rate", "count", "c0")
_WAKINGS = ("thread", "path", "rate", "count")
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&!])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+")


def code(name: object, limit: int = _NAME_LIMIT) -> str:
    """A code span that nothing in the name can end; `|` is escaped, since tables split at it even there."""
    clean = text.shorten(_CONTROL.sub(" ", str(name)), limit).strip() or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", clean)), default=0))
    pad = " " if clean.startswith("`") or clean.endswith("`") else ""
    # Backslashes before a | would escape the escape.
    inner = clean.replace("\\|", "|").replace("|", "\\|")
    return f"{fence}{pad}{inner}{pad}{fence}"


def plain(sentence: str, limit: int = 1000) -> str:
    """A sentence with everything escaped that Markdown would take for its own; addresses and mentions are broken."""
    one_line = text.shorten(_CONTROL.sub(" ", sentence), limit)
    escaped = _SPECIAL.sub(r"\\\1", one_line)
    # A zero-width space: GitHub has no escape for mentions and bare addresses.
    return escaped.replace("@", "@\u200b").replace("://", ":\u200b//").replace("www.", "www\u200b.")


def table(shown: Table, keys: Sequence[str] = ()) -> list[str]:
    """A table of GitHub's; intervals are columns of their own. `keys`: these columns in their order."""
    own = shown.of("markdown", keys)
    heads, rule = [], []
    for column in own.columns:
        heads.append(f"{column.heading} {code(column.name, 60)}".strip() if column.name else column.heading)
        rule.append("---" if column.left else "---:")
        if column.interval:
            heads.append(column.interval)
            rule.append("---:")
    rows = [[part for column in own.columns for part in _parts(row, column)] for row in own.rows]
    return ["", *(f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows))]


def _parts(row: TableRow, column: Column) -> Iterator[str]:
    cell = row.cells.get(column.key)
    # Where the row has named the unit, its cells need not.
    shown = _cell(cell, unit=bool(column.beside) or not row.unit)
    if column.key == "name":
        estimated = ", estimated" if row.kind == "estimated" else ""
        shown += (plain(f", {row.unit}") if row.unit else "") + estimated
    yield shown
    if column.interval:
        ends = cell.ends if isinstance(cell, Figure) else None
        yield f"{ends[0].text} to {ends[1].text}" if ends else ""


def _cell(cell: Cell | None, *, unit: bool) -> str:
    if isinstance(cell, Figure):
        return cell.words.removeprefix("every ") or (cell.whole if unit else cell.text)
    if isinstance(cell, JudgedCell):
        return cell.text if cell.text == "inconclusive" else f"**{cell.text}**"
    if isinstance(cell, Path):
        more = " ← …" if len(cell.frames) > _STACK_LIMIT else ""
        return code(" ← ".join(cell.frames[:_STACK_LIMIT]) + more if cell.frames else "no user stack", 400)
    if cell is None:
        return ""
    return plain(cell.text) if cell.ours else code(f"{cell.text} {cell.more}".strip() if cell.strong else cell.text)


def _notes(notes: Iterable[str]) -> list[str]:
    written = [f"- {plain(note)}" for note in notes]
    return ["", *written] if written else []


def _balance(conservation: Conservation | None) -> list[str]:
    return ["", plain(metrics.balance(conservation))] if conservation is not None else []


def comparison(record: Comparison, context: str) -> list[str]:
    """The metrics side by side, and what else could have made the difference."""
    doubts = [f"> Caution: {plain('; '.join(record.verdict.doubts))}.", ""] if record.verdict.doubts else []
    ground = [plain(record.verdict.ground), ""] if record.verdict.ground else []
    places = Places(record)
    written = ["", *doubts, *ground, context, *table(comparison_table(record, places), _COMPARED)]
    if record.system:
        written += table(system_table(record, places), _COMPARED)
    functions = functions_table(record, places, _ROWS)
    if functions.rows:
        written += ["", "Functions that grew or shrank, in percent of one CPU:", *table(functions)]
    if record.threats:
        written += ["", "Threats: " + plain("; ".join(threat.text for threat in record.threats)) + "."]
    return written + _notes([*record.differences, *labels.all_of(record)])


def run(record: Run, context: str) -> list[str]:
    """Metrics, phases, how they changed, and what woke the CPUs."""
    places = Places(record)
    written = ["", context]
    if isinstance(record, LoadRun) and record.metrics:
        written += table(load_table(record, places))
        if record.system:
            written += table(load_system_table(record, places))
    if record.phases:
        written += table(phases_table(record, places, range(len(record.phases))))
    if isinstance(record, IdleRun) and record.deltas:
        written += table(changes_table(record.deltas, places, "/deltas", "change"))
    phases = [*enumerate(record.phases)][::-1]
    for index, phase in [phase for phase in phases if phase[1].causes and phase[1].name != "baseline-after"][:1]:
        causes = causes_table(phase.causes, places, f"/phases/{index}/causes", _ROWS)
        written += ["", f"What woke the CPUs, {code(phase.name, 40)}:", *table(causes, _CAUSES)]
        written += _balance(phase.conservation)
    return written + _notes(labels.all_of(record))


def attribution(record: Attribution, context: str) -> list[str]:
    """The rows that ended most idle periods, and that all are accounted for."""
    places = Places(record)
    anyway = ran_anyway_table(record, places, _ROWS)
    if anyway:
        written = ["", RAN_ANYWAY, *table(anyway, _WAKINGS)]
    else:
        written = table(wakeups_table(record, places, _ROWS), _WAKEUPS)
    if left := beyond(record, _ROWS):
        written += ["", f"{left}."]
    return written + _balance(record.conservation) + _notes(labels.all_of(record))


def sweep(record: Sweep, context: str) -> list[str]:
    """The metrics over the values of the parameter."""
    errors = [f"{record.parameter} {point.value}: {point.error}" for point in record.points if point.error]
    places = Places(record)
    written = ["", context, *table(sweep_table(record, places))]
    if any(point.paces for point in record.points):
        written += ["", "How often each thread wakes:", *table(paces_table(record, places))]
    return written + _notes([*errors, *texts(record.notes)])


def sweep_comparison(record: SweepComparison, context: str) -> list[str]:
    """The judged metric over the values of the parameter, and what differs with it."""
    places = Places(record)
    written = ["", context, *table(points_table(record, places))]
    if record.parted_with:
        written += ["", "Where they diverge, and where they do not:", *table(parted_table(record, places))]
    if record.functions:
        functions = table(parting_functions_table(record, places))
        written += ["", "Functions, in percent of the server's samples, where they diverge:", *functions]
    if record.threats:
        written += ["", "Threats: " + plain("; ".join(threat.text for threat in record.threats)) + "."]
    return written + _notes([*record.differences, *texts(record.notes)])
