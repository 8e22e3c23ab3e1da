# SPDX-License-Identifier: Apache-2.0
"""Reports of two compared runs of `queries`: the statements that became more expensive or cheaper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup
from msgspec.structs import replace

from powerprof.model import text
from powerprof.queries.comparison import QueriesComparison, StatementChange, StatementSide, select_changes
from powerprof.report.answers import MAY_BE_CHANCE, explain_chance, word_claim
from powerprof.report.document import Extras
from powerprof.report.html.charts import DrawnInterval, interval_axis, interval_row, interval_ticks
from powerprof.report.html.page import clean_name, render_page
from powerprof.report.labels import word_notes
from powerprof.report.statement_tables import statement_lines
from powerprof.report.table import (
    Cell,
    Column,
    DrawnColumn,
    Figure,
    Places,
    Table,
    TableRow,
    Words,
    draw_table,
    escape,
    figures,
    without_empty,
    words,
)

_DEFAULT_TOP = 20
_HEADINGS = ("% of a CPU", "ms CPU/call", "ratio", "95 %", "")


def answer_of(record: QueriesComparison) -> str:
    """Return how many statements became more expensive, and the statement with most CPU time among them."""
    worse = select_changes(record, "more expensive")
    if worse:
        change = worse[0]
        subject = "One statement became" if len(worse) == 1 else f"{len(worse)} statements became"
        return (
            f"{subject} more expensive. The largest: {_ratio(change)} the CPU time per call "
            f"({_ms_per_call(change.a)} → {_ms_per_call(change.b)} ms), "
            f"{text.signed(change.change_percent_of_cpu, 2)} % of a CPU: {text.shorten(change.text, 200)}"
        )
    better = select_changes(record, "cheaper")
    new = select_changes(record, "new")
    if better:
        change = better[0]
        subject = "One statement became" if len(better) == 1 else f"{len(better)} statements became"
        first = f"{_ratio(change)}: {text.shorten(change.text, 200)}"
        return f"No statement became more expensive; {subject.lower()} cheaper, first {first}"
    if new and new[0].b is not None:
        most = f"{text.number(new[0].b.percent_of_cpu, 1)} % of a CPU: {text.shorten(new[0].text, 200)}"
        return f"No statement became more expensive; {len(new)} new, the largest {most}"
    hints = sum(change.claim.hint is not None for change in record.statements)
    compared = sum(not change.claim.unknown for change in record.statements)
    if hints:
        return f"No statement became significantly more expensive or cheaper; {hints} of {compared} {MAY_BE_CHANCE}."
    return "No statement became measurably more expensive or cheaper."


def became_text(record: QueriesComparison, change: StatementChange) -> str:
    """Return the outcome of a statement in words."""
    compared = sum(not each.claim.unknown for each in record.statements)
    return word_claim("", change.claim, compared, "statements").text if change.claim.hint else change.became


def explain_statements(record: QueriesComparison) -> str:
    """Return the explanation of `may be chance` if a statement has it; empty otherwise."""
    hints = [change.claim.hint is not None for change in record.statements]
    compared = sum(not change.claim.unknown for change in record.statements)
    return explain_chance(hints, compared, "statements").replace("excludes 0", "excludes a ratio of 1")


def context_of(record: QueriesComparison) -> str:
    """Return both servers, windows and loads."""
    a, b = record.a, record.b
    parts = [
        f"{side.name or letter} ({side.server}, {text.number(side.window_s, 1)} s, "
        f"{text.number(side.percent_of_cpu, 1)} % of one CPU, {text.number(side.calls_hz, 0)} statements/s)"
        for letter, side in (("A", a), ("B", b))
    ]
    return " → ".join(parts)


def render_terminal(
    record: QueriesComparison, width: int = text.DEFAULT_WIDTH, *, top: int = _DEFAULT_TOP
) -> list[str]:
    """Return the report. Statements are sorted by the change of their CPU time per second."""
    printed = [*text.wrap(answer_of(record), width), *text.wrap(context_of(record), width), ""]
    shown = record.statements[:top]
    rows = [_HEADINGS, *(_row_cells(record, change) for change in shown)]
    printed += statement_lines(rows, shown, width, left=len(_HEADINGS) - 1)
    if chance := explain_statements(record):
        printed += text.wrap(chance, width)
    if len(record.statements) > top:
        printed.append(f"{len(record.statements) - top:,} more statements (--json)")
    for note in word_notes(record.notes):
        printed += text.wrap(f"Note: {note}.", width)
    return printed


def _row_cells(record: QueriesComparison, change: StatementChange) -> tuple[str, ...]:
    low, high = change.low, change.high
    ends = "?" if low is None or high is None else f"{text.number(low, 2)}–{text.number(high, 2)}"
    compared = change.a is not None and change.b is not None
    return (
        f"{_cpu_percent(change.a)} → {_cpu_percent(change.b)}",
        f"{_ms_per_call(change.a)} → {_ms_per_call(change.b)}",
        _ratio(change) if compared else "",
        ends if compared else "",
        became_text(record, change),
    )


def _cpu_percent(side: StatementSide | None) -> str:
    return "0.00" if side is None else text.number(side.percent_of_cpu, 2)


def _ms_per_call(side: StatementSide | None) -> str:
    value = side.c0_ms_per_call if side is not None else None
    if value is None:
        return "–" if side is None else text.UNKNOWN
    return text.number(value, 3 if value < 1 else 2)


def _ratio(change: StatementChange) -> str:
    return text.UNKNOWN if change.ratio is None else f"× {text.number(change.ratio, 2)}"


def render_csv(record: QueriesComparison) -> Iterator[Sequence[str | float | int | None]]:
    """Return one line per statement."""
    names = ("id", "text", "schema_name", "became", "change_percent_of_cpu", "ratio", "low", "high")
    sides = ("percent_of_cpu", "calls_hz", "c0_ms_per_call", "latency_p95_ms", "joules_per_call")
    heads = (name.removesuffix("_name") for name in names)
    yield [*heads, *(f"{name}_{side}" for side in ("a", "b") for name in sides)]
    for change in record.statements:
        figures = (getattr(side, name, None) for side in (change.a, change.b) for name in sides)
        yield [*(getattr(change, name) for name in names), *figures]


def render_markdown(record: QueriesComparison, context_line: str) -> list[str]:
    """Return the statements that changed most."""
    keys = ("share", "each", "ratio", "ends", "became", "text")
    headings = (*_HEADINGS[:-1], "became", "statement")
    columns = [
        Column(key, heading, left=key in ("became", "text")) for key, heading in zip(keys, headings, strict=True)
    ]
    rows = [
        TableRow({key: Words(cell) for key, cell in zip(keys, (*_row_cells(record, change), change.text), strict=True)})
        for change in record.statements[:25]
    ]
    notes = [f"- {escape(note)}" for note in word_notes(record.notes)]
    chance = ["", escape(sentence)] if (sentence := explain_statements(record)) else []
    return ["", context_line, *draw_table(Table(columns, rows), keys), *chance, "", *notes]


# The HTML page: each statement before and after, and the intervals of the ratios.

MAX_ROWS = 500
_LOOKS = {"more expensive": "worse", "cheaper": "better"}


def render_html(record: QueriesComparison, extras: Extras) -> str:
    """Return the HTML page."""
    places, shown = Places(record), record.statements[:MAX_ROWS]
    whole = statements_table(record, places)
    sentence = answer_of(record)
    return render_page(
        "queriescomparison.html.j2",
        record,
        places,
        title=clean_name(sentence),
        answer=sentence,
        context=context_of(record),
        rows=without_empty(replace(whole, rows=whole.rows[:MAX_ROWS])),
        drawn=_draw_ratios(shown),
        left_count=len(record.statements) - len(shown),
        notes=word_notes(record.notes),
    )


def statements_table(record: QueriesComparison, places: Places) -> Table:
    """Return one row per statement, A and B side by side; the ratio has its interval."""
    columns = [
        Column("text", "statement", left=True),
        *words("id", "schema", "became"),
        *figures(a="% of a CPU, A", b="% of a CPU, B", change="change"),
        *figures(each_a="ms CPU/call, A", each_b="ms CPU/call, B"),
        Column("ratio", "ratio", interval="95 %"),
        *figures(p95_a="p95 ms, A", p95_b="p95 ms, B", rate_a="calls/s, A", rate_b="calls/s, B"),
    ]
    return Table(
        columns,
        [_row(record, change, number, places) for number, change in enumerate(record.statements)],
        "statements",
        explain_statements(record),
    )


def _row(record: QueriesComparison, change: StatementChange, number: int, places: Places) -> TableRow:
    at = f"/statements/{number}"
    # A side without the statement has no pointer, and its cell is a dash.
    sides = {letter: f"{at}/{letter}" if getattr(change, letter) is not None else "" for letter in "ab"}

    def of(letter: str, name: str, digits: int | None) -> Figure:
        return places.figure(f"{sides[letter]}/{name}", digits) if sides[letter] else places.figure("")

    cells: dict[str, Cell] = {
        "text": Words(change.text, code=True),
        "id": Words(change.id),
        "schema": Words(change.schema_name or ""),
        "became": Words(became_text(record, change)),
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


def _drawn_interval(change: StatementChange) -> DrawnInterval | None:
    if change.ratio is None or change.low is None or change.high is None:
        return None
    low, middle, high = (100 * (ratio - 1) for ratio in (change.low, change.ratio, change.high))
    return DrawnInterval(middle, low, high, change.became in _LOOKS)


def _draw_ratios(changes: Sequence[StatementChange]) -> DrawnColumn | None:
    """Draw the ratios on one axis; return None if no interval is known."""
    intervals = [_drawn_interval(change) for change in changes]
    known = [interval for interval in intervals if interval is not None]
    if not known:
        return None
    axis = interval_axis(known)
    cells = [
        interval_row(axis, interval, _interval_label(change)) if interval is not None else Markup()
        for change, interval in zip(changes, intervals, strict=True)
    ]
    return DrawnColumn("became", interval_ticks(axis), cells, primary=False)


def _interval_label(change: StatementChange) -> str:
    low, high = text.number(change.low, 2), text.number(change.high, 2)
    return f"× {text.number(change.ratio, 2)} ({low}–{high}): {clean_name(change.text, 80)}"
