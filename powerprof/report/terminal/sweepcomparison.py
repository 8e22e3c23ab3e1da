# SPDX-License-Identifier: Apache-2.0
"""Two sweeps compared, for a terminal: where they diverge, point by point, and what correlates with that."""

from __future__ import annotations

from powerprof import text
from powerprof.experiment.sweepcomparison import SweepComparison, SweepSide
from powerprof.report.tables import columns as terminal
from powerprof.report.tables import labels
from powerprof.report.tables.metrics import parted_table, points_table
from powerprof.report.tables.sweepfunctions import parting_functions_table
from powerprof.report.tables.table import Figure, Places, TableRow
from powerprof.report.wording.notes import texts

_ROWS = 12


def lines(record: SweepComparison, width: int = text.DEFAULT_WIDTH) -> list[str]:
    """The report, at most `width` columns."""
    places = Places(record)
    printed = text.wrap(record.text, width)
    printed += text.wrap(" · ".join(_side(side) for side in (record.a, record.b)), width)
    doubts = [threat.text for threat in record.threats if threat.serious]
    if doubts:
        printed += text.wrap(f"Caution: {'; '.join(doubts)}.", width)
    if record.differences:
        printed += ["", "What differs besides the condition"]
        for difference in record.differences:
            printed += text.wrap(difference, width, "  ")
    points = points_table(record, places)
    title = f"{labels.metric(record.metric)} over {record.parameter}"
    printed += ["", *text.wrap(title[:1].upper() + title[1:], width)]
    printed += terminal.metrics(points, width)
    rows = list(zip(parted_table(record, places).rows, record.parted_with, strict=True))
    sure = [row for row, pair in rows if pair.verdict != "inconclusive"]
    # By its own interval: not significant among so many, and the first place to look all the same.
    likely = [row for row, pair in rows if pair.ci95 is not None and (pair.ci95[0] > 0 or pair.ci95[1] < 0)]
    if sure:
        printed += ["", *_parted(record, sure[:_ROWS], width)]
        if len(sure) > _ROWS:
            printed.append(f"and {len(sure) - _ROWS} more: --csv, --html")
    elif rows:
        printed += ["", "No figure of the system differs significantly where they diverge."]
    if likely and not sure:
        heading = f"Each by its own 95 % interval, one of {len(rows)} figures, these may differ:"
        printed += [*text.wrap(heading, width), *_parted(record, likely[:_ROWS], width)]
    printed += _functions(record, places, width)
    threats = [threat.text for threat in record.threats if not threat.serious]
    if threats:
        printed += ["", *text.wrap("Threats: " + "; ".join(threats) + ".", width)]
    for note in texts(record.notes):
        printed += text.wrap(f"Note: {note}", width)
    return printed


def _functions(record: SweepComparison, places: Places, width: int) -> list[str]:
    """Whose share of the server's running time grew or shrank where they diverge."""
    if not record.functions:
        return []
    shown = parting_functions_table(record, places, _ROWS)
    found = any(one.verdict != "inconclusive" for one in record.functions)
    title = "Functions whose share of the server's samples differs significantly where they diverge, %:"
    if not found:
        title = "No function's share of the server's samples differs significantly where they diverge; the largest, %:"
    rows = [["A", "B", "B − A, 95 %", "elsewhere"]]
    for row in shown.rows:
        cells = [row.cells[key] for key in ("a", "b", "difference", "elsewhere")]
        rows.append(
            [
                f"{cell.text} [{cell.ends[0].text}, {cell.ends[1].text}]" if cell.ends else cell.text
                for cell in cells
                if isinstance(cell, Figure)
            ]
        )
    names = ["function", *(f"{row.words('name').text} ({row.words('name').more})" for row in shown.rows)]
    figures = text.columns(rows, left=0)
    lines = [text.cut(f"{line}  {name}", width) for line, name in zip(figures, names, strict=True)]
    return ["", *text.wrap(title, width), *lines, *([f"{shown.left_count} more: --json"] if shown.left_count else [])]


def _side(side: SweepSide) -> str:
    parts = [f"{side.condition.workload}:{side.condition.name}", side.server.get("version"), side.host.get("kernel")]
    return f"{side.name}: " + ", ".join(str(part) for part in parts if part)


def _parted(record: SweepComparison, sure: list[TableRow], width: int) -> list[str]:
    """A row a figure; the whole intervals are in the other forms."""
    rows = [["correlated metrics", text.cut(record.a.name, 14), text.cut(record.b.name, 14), "change", "elsewhere"]]
    for row in sure:
        cells = []
        for key in ("a", "b", "difference", "elsewhere"):
            shown = row.cells[key]
            if not isinstance(shown, Figure):
                continue
            percent = key in ("difference", "elsewhere")
            cells.append("" if percent and shown.value is None else shown.whole if percent else shown.text)
        rows.append([text.cut(row.short, 30), *cells])
    printed = [text.cut(line, width) for line in text.columns(rows)]
    return [*printed, *text.wrap("change: of the mean of both, over the values at which they diverge.", width)]
