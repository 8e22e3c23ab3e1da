# SPDX-License-Identifier: Apache-2.0
"""The page of two saved runs of `queries`: each statement before and after, and the intervals of the ratios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from markupsafe import Markup

from powerprof import text
from powerprof.queries.comparison import QueriesComparison, StatementChange
from powerprof.report.html.extras import Extras
from powerprof.report.html.figures import clean
from powerprof.report.html.intervals import DrawnInterval, interval_axis, interval_row, interval_ticks
from powerprof.report.html.page import page
from powerprof.report.html.tables import Drawn, without_empty
from powerprof.report.tables.table import Cell, Column, Figure, Places, Table, TableRow, Words
from powerprof.report.terminal.queriescomparison import context, headline
from powerprof.report.wording.notes import texts

MAX_ROWS = 500
_LOOKS = {"more expensive": "worse", "cheaper": "better"}


def render(record: QueriesComparison, extras: Extras) -> str:
    """The page."""
    places, shown = Places(record), record.statements[:MAX_ROWS]
    whole = statements_table(record, places)
    sentence = headline(record)
    return page(
        "queriescomparison.html.j2",
        record,
        places,
        title=clean(sentence),
        answer=sentence,
        context=context(record),
        rows=without_empty(replace(whole, rows=whole.rows[:MAX_ROWS])),
        drawn=_drawn(shown),
        left_count=len(record.statements) - len(shown),
        notes=texts(record.notes),
    )


def statements_table(record: QueriesComparison, places: Places) -> Table:
    """A row a statement, A and B side by side; the ratio's column has its interval."""
    columns = [
        Column("text", "statement", left=True),
        Column("id", "id", left=True),
        Column("schema", "schema", left=True),
        Column("became", "became", left=True),
        Column("a", "% of a CPU, A"),
        Column("b", "% of a CPU, B"),
        Column("change", "change"),
        Column("each_a", "ms CPU/call, A"),
        Column("each_b", "ms CPU/call, B"),
        Column("ratio", "ratio", interval="95 %"),
        Column("p95_a", "p95 ms, A"),
        Column("p95_b", "p95 ms, B"),
        Column("rate_a", "calls/s, A"),
        Column("rate_b", "calls/s, B"),
    ]
    return Table(columns, [_row(one, number, places) for number, one in enumerate(record.statements)], "statements")


def _row(change: StatementChange, number: int, places: Places) -> TableRow:
    at = f"/statements/{number}"
    # A side without the statement has no place in the record, and its cell a dash.
    sides = {letter: f"{at}/{letter}" if getattr(change, letter) is not None else "" for letter in "ab"}

    def of(letter: str, name: str, digits: int | None) -> Figure:
        return places.figure(f"{sides[letter]}/{name}", digits) if sides[letter] else places.figure("")

    cells: dict[str, Cell] = {
        "text": Words(change.text, code=True),
        "id": Words(change.id),
        "schema": Words(change.schema_name or ""),
        "became": Words(change.became),
        "change": places.figure(f"{at}/change_percent_of_cpu", 2, sign=True),
        "ratio": places.figure(f"{at}/ratio" if change.ratio is not None else "", 2, ends=at),
    }
    for letter in "ab":
        cells |= {
            letter: of(letter, "percent_of_cpu", 2),
            f"each_{letter}": of(letter, "c0_ms_per_call", None),
            f"p95_{letter}": of(letter, "latency_p95_ms", None),
            f"rate_{letter}": of(letter, "calls_hz", 1),
        }
    return TableRow(cells)


def _interval(change: StatementChange) -> DrawnInterval | None:
    if change.ratio is None or change.low is None or change.high is None:
        return None
    low, middle, high = (100 * (ratio - 1) for ratio in (change.low, change.ratio, change.high))
    return DrawnInterval(middle, low, high, change.became in _LOOKS)


def _drawn(changes: Sequence[StatementChange]) -> Drawn | None:
    """The ratios on one axis; None where no interval is known."""
    intervals = [_interval(change) for change in changes]
    known = [interval for interval in intervals if interval is not None]
    if not known:
        return None
    axis = interval_axis(known)
    cells = [
        interval_row(axis, interval, _label(change)) if interval is not None else Markup()
        for change, interval in zip(changes, intervals, strict=True)
    ]
    return Drawn("became", interval_ticks(axis), cells, primary=False)


def _label(change: StatementChange) -> str:
    low, high = text.number(change.low, 2), text.number(change.high, 2)
    return f"× {text.number(change.ratio, 2)} ({low}–{high}): {clean(change.text, 80)}"
