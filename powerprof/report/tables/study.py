# SPDX-License-Identifier: Apache-2.0
"""A study's findings as a table: published, today's two sides, what lies between them, and whether it holds."""

from __future__ import annotations

from powerprof import text
from powerprof.experiment.study_record import StudyRow, StudyRun
from powerprof.report.tables import labels
from powerprof.report.tables.table import CSV, Cell, Column, Figure, Places, Table, TableRow, Words

_STRICTER = "inconclusive by the comparison's own test, which asks for more than this interval"
_EXPECTED = {"higher": "higher", "lower": "lower", "same": "the same"}


def findings_table(record: StudyRun, places: Places) -> Table:
    """A row a finding."""
    return Table(
        [
            Column("name", "finding", left=True),
            Column("then", "then", left=True),
            Column("metric", "metric", left=True),
            Column("a", "from", interval="95 %"),
            Column("b", "to", interval="95 %"),
            Column("difference", "difference", interval="95 %"),
            Column("ratio", "times", interval="95 %"),
            Column("outcome", "verdict", left=True),
            Column("runs", "runs", left=True),
            Column("expected", "published", left=True, forms=CSV),
        ],
        [_finding(row, number, places) for number, row in enumerate(record.rows)],
        "findings",
    )


def _finding(row: StudyRow, number: int, places: Places) -> TableRow:
    at = f"/rows/{number}"
    sides = [row.a.mean if row.a else None, row.b.mean if row.b else None]
    shown = labels.shown(row.unit, sides)

    def estimate(
        name: str, *, sign: bool = False, unit: str = shown.unit, scale: float = shown.factor
    ) -> Figure | None:
        value = getattr(row, name)
        if value is None:
            return None
        digits = labels.digits(value.mean) if name == "ratio" else shown.decimals
        place = f"{at}/{name}"
        return places.figure(f"{place}/mean", digits, unit, ends=place, scale=scale, sign=sign)

    cells: dict[str, Cell | None] = {
        "name": Words(row.label, ours=True),
        "then": Words(row.then, ours=True),
        "metric": Words(labels.metric(row.metric), ours=True),
        "a": estimate("a"),
        "b": estimate("b"),
        "difference": estimate("difference", sign=True),
        "ratio": estimate("ratio", unit="", scale=1.0),
        "outcome": Words(row.outcome, ours=True, strong=True),
        "runs": Words(", ".join(row.runs)),
        "expected": Words(_EXPECTED.get(row.expected or "", "")),
        "doubt": Words(_STRICTER if _only_by_itself(row) else ""),
    }
    return TableRow({key: cell for key, cell in cells.items() if cell is not None})


def _only_by_itself(row: StudyRow) -> bool:
    """Whether its interval is without zero and yet its comparison, which judges all of its figures, has no answer."""
    low, high = (row.difference.low, row.difference.high) if row.difference else (None, None)
    return row.outcome == "inconclusive" and row.expected != "same" and ((low or 0.0) > 0 or (high or 0.0) < 0)


def today(row: TableRow) -> str:
    """Today's figures of a finding in one line; `not measured` where there are none."""
    doubt = row.words("doubt").text
    return f"{_figures_of(row)}; {doubt}" if doubt else _figures_of(row)


def _figures_of(row: TableRow) -> str:
    figures = {key: cell for key, cell in row.cells.items() if isinstance(cell, Figure)}
    if "b" not in figures:
        return "not measured"
    sides = [figures[key] for key in ("a", "b") if key in figures]
    line = f"{row.words('metric').text}: {' → '.join(side.text for side in sides)}"
    unit = sides[-1].unit
    line += f"{'' if unit.startswith('/') else ' '}{unit}" if unit and unit != "1/s" else " /s" if unit else ""
    between = [figures[key] for key in ("ratio", "difference") if key in figures]
    chosen = next((figure for figure in between if figure.ends), next(iter(between), None))
    if chosen is not None:
        words = f"{chosen.text} times" if chosen is figures.get("ratio") else f"difference {chosen.text}"
        ends = f" ({chosen.ends[0].text} to {chosen.ends[1].text}, 95 %)" if chosen.ends else ""
        return f"{line}; {words}{ends}"
    return line


def steps_table(record: StudyRun, places: Places) -> Table:
    """A row a step: what is typed to measure it alone, its run, how long it took, and what is to be known of it."""
    rows = []
    for number, step in enumerate(record.steps):
        cells: dict[str, Cell] = {
            "step": Words(step.typed),
            "run": Words(step.run or ""),
            "time": places.figure(f"/steps/{number}/seconds_s", 0, "s"),
            "problem": Words("; ".join(filter(None, [step.problem, *step.doubts]))),
        }
        rows.append(TableRow(cells))
    columns = [
        Column("step", "step", left=True),
        Column("run", "run", left=True),
        Column("time", "took"),
        Column("problem", "what to know", left=True),
    ]
    return Table(columns, rows, "steps")


def headline(record: StudyRun) -> str:
    """The answer: how many published findings hold today."""
    claims = [row for row in record.rows if row.expected is not None]
    counts = {name: sum(row.outcome == name for row in claims) for name in ("confirmed", "contradicted")}
    counts["inconclusive"] = sum(row.outcome == "inconclusive" for row in claims)
    counts["not measured"] = sum(row.outcome == "not measured" for row in claims)
    hold = f"{counts['confirmed']} of {len(claims)} published finding{'s' if len(claims) != 1 else ''} confirmed"
    others = [f"{count} {name}" for name, count in counts.items() if count and name != "confirmed"]
    return f"{record.title}: {', '.join([hold, *others])}."


def context(record: StudyRun) -> str:
    """What it is about: the study, and what of it was measured."""
    done = sum(step.run is not None or step.seconds_s is not None for step in record.steps)
    steps = f"{done} step{'s' if done != 1 else ''} measured"
    version = record.server.get("version")
    took = sum(step.seconds_s or 0.0 for step in record.steps)
    parts = [steps, f"in {text.number(took / 60, 0)} min" if took >= 90 else f"in {took:.0f} s", str(version or "")]
    return f"Published: {record.published} Today: {' · '.join(part for part in parts if part)}."
