# SPDX-License-Identifier: Apache-2.0
"""Reports of two compared runs of `queries`: the statements that became more expensive or cheaper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from markupsafe import Markup
from msgspec.structs import replace

from powerprof.model import text
from powerprof.queries.comparison import (
    QueriesComparison,
    StatementChange,
    StatementSide,
    claim_of_change,
    is_common_change,
    judge_change,
    select_changes,
)
from powerprof.report import labels
from powerprof.report.answers import MAY_BE_CHANCE, explain_chance, word_claim
from powerprof.report.document import NOT_HTML, TERMINAL, Document, Drawing, Part, Section, Sentence, Shown, View
from powerprof.report.html.charts import draw_legend
from powerprof.report.html.intervals import DrawnInterval, interval_axis, interval_row, interval_ticks
from powerprof.report.html.text import clean_name
from powerprof.report.layouts import align_rows
from powerprof.report.similar_texts import distinguishable
from powerprof.report.table import (
    HTML,
    Cell,
    Column,
    DrawnColumn,
    Figure,
    Line,
    Places,
    Table,
    TableRow,
    Words,
    figure_columns,
    without_empty,
    word_columns,
)

_DEFAULT_TOP = 20


def answer_of(record: QueriesComparison) -> str:
    """Return the common change, the statements that became more expensive than it, and the largest of them."""
    if not is_common_change(record):
        return _answer(record, "")
    ratio = text.number(record.common_ratio, 2)
    first = (
        f"The CPU time per call of all statements changed by × {ratio} in the median: the host or the server changed"
    )
    return f"{first}. {_answer(record, ' than the others')}"


def _answer(record: QueriesComparison, than: str) -> str:
    worse, better, new = (select_changes(record, became) for became in ("more expensive", "cheaper", "new"))
    if worse:
        change = worse[0]
        return (
            f"{_count(worse)} more expensive{than}. The largest: {_describe_ratio(change)[0]} the CPU time per call "
            f"({_ms_per_call(change.a)} → {_ms_per_call(change.b)} ms), "
            f"{text.signed(change.change_percent_of_cpu, 2)} % of a CPU: {text.shorten(change.text, 200)}"
        )
    claims = [claim_of_change(record, change) for change in record.statements]
    compared = sum(not claim.unknown for claim in claims)
    if not compared and any(change.a and change.b for change in record.statements):
        return "Inconclusive: no statement has a known interval in both windows."
    none = f"No statement became significantly more expensive{than}"
    if better:
        change = better[0]
        first = f"{_describe_ratio(change)[0]}: {text.shorten(change.text, 200)}"
        return f"{none}; {_count(better).lower()} cheaper, first {first}"
    if new and new[0].b is not None:
        most = f"{text.number(new[0].b.percent_of_cpu, 1)} % of a CPU: {text.shorten(new[0].text, 200)}"
        return f"{none}; {len(new)} new, the largest {most}"
    answer = f"No statement became significantly more expensive or cheaper{than}"
    hints = sum(claim.hint is not None for claim in claims)
    if hints:
        return f"{answer}; {hints} of {compared} {MAY_BE_CHANCE}."
    if not compared:
        return "No statement is in both windows."
    open_count = compared - len(select_changes(record, "unchanged"))
    if open_count:
        return f"{answer}; for {open_count} of {compared} a change of over 10 % is possible."
    return f"{answer}; each changed by less than 10 %{' compared with the median' if than else ''}."


def _count(changes: Sequence[StatementChange]) -> str:
    return "One statement became" if len(changes) == 1 else f"{len(changes)} statements became"


def became_text(record: QueriesComparison, change: StatementChange) -> str:
    """Return the outcome of a statement in words."""
    claim = claim_of_change(record, change)
    is_hint = claim.hint is not None
    return (
        word_claim("", claim, _count_compared(record), "statements").text if is_hint else judge_change(record, change)
    )


def explain_statements(record: QueriesComparison) -> str:
    """Return the explanation of `may be chance` if a statement has it; empty otherwise."""
    hints = [claim_of_change(record, change).hint is not None for change in record.statements]
    explained = explain_chance(hints, _count_compared(record), "statements")
    return explained.replace("excludes 0", "excludes the median ratio of all statements")


def _count_compared(record: QueriesComparison) -> int:
    return sum(not claim_of_change(record, change).unknown for change in record.statements)


def context_of(record: QueriesComparison) -> str:
    """Return both servers, windows and loads."""
    a, b = record.a, record.b
    parts = [
        f"{side.name or letter} ({side.server}, {text.number(side.window_s, 1)} s, "
        f"{text.number(side.percent_of_cpu, 1)} % of one CPU, {text.number(side.calls_hz, 0)} statements/s)"
        for letter, side in (("A", a), ("B", b))
    ]
    return " → ".join(parts)


def document(record: QueriesComparison, view: View) -> Document:
    """Return the report of two runs, sorted by the change of CPU time per second."""
    return Document(
        views=("top",),
        record=record,
        answer=answer_of(record),
        context=context_of(record),
        parts=partial(_list_parts, record, view),
        rows=partial(_list_rows, record),
        setup=(("A", "/a"), ("B", "/b"), ("Host", "/host")),
        derived=view.extras.derived,
    )


def _list_parts(record: QueriesComparison, view: View) -> Iterator[Part]:
    few = changes_table(record, view.top or _DEFAULT_TOP)
    layout = partial(change_lines, [change.id for change in record.statements])
    many = statements_table(record, Places(record))
    count = len(many.rows)
    many = without_empty(replace(many, rows=many.rows[:MAX_ROWS], left_count=max(0, count - MAX_ROWS)))
    yield Section(
        "By statement",
        [
            Drawing(partial(draw_legend, record.a.name or "", record.b.name or ""), look=""),
            Sentence(_CHART, look="muted", forms=HTML),
            Shown(few, layout, what="statements", forms=NOT_HTML),
            Sentence(few.caption, forms=TERMINAL),
            Shown(many, look="plain sortable wide", what="statements", drawn=partial(_draw_ratios, record), forms=HTML),
        ],
        "statements",
    )


_CHART = (
    "Sorted by the change of CPU time per second. The chart shows the CPU time per call, B relative to A, with its "
    "95 % interval. A filled mark is a significant change compared with the median of all statements."
)


def changes_table(record: QueriesComparison, top: int) -> Table:
    """Return the first statements for a terminal and Markdown, A and B in one column."""
    columns = [
        *figure_columns(share="% of a CPU", each="ms CPU/call", ratio="ratio", ends="95 %"),
        Column("became", left=True),
        Column("text", "statement", left=True),
    ]
    rows = [TableRow(_row_cells(record, change)) for change in record.statements[:top]]
    left_count = max(0, len(record.statements) - top)
    return Table(columns, rows, "statements", explain_statements(record), left_count)


def change_lines(ids: Sequence[str], table: Table, width: int) -> list[str]:
    """Return one line per statement; similar texts are told apart, if necessary by their ids."""
    columns = [(column.heading, *(row.words(column.key).text for row in table.rows)) for column in table.columns[:-1]]
    room = width - sum(max(map(len, column)) + 2 for column in columns)
    names = [row.words("text").text for row in table.rows]
    if room >= text.LEAST_NAME:
        names = distinguishable(names, ids[: len(names)], room)
    rows = [list(row) for row in zip(*columns, ("statement", *names), strict=True)]
    left = [f"{table.left_count:,} more statements (--json)"] if table.left_count else []
    return [*align_rows(rows, width, [len(columns) - 1]), *left]


def _row_cells(record: QueriesComparison, change: StatementChange) -> dict[str, Cell]:
    ratio, ends = _describe_ratio(change)
    compared = change.a is not None and change.b is not None
    cells = {
        "share": f"{_cpu_percent(change.a)} → {_cpu_percent(change.b)}",
        "each": f"{_ms_per_call(change.a)} → {_ms_per_call(change.b)}",
        "ratio": ratio if compared else "",
        "ends": ends if compared else "",
        "became": became_text(record, change),
    }
    return {**{key: Words(cell, ours=True) for key, cell in cells.items()}, "text": Words(change.text)}


def _cpu_percent(side: StatementSide | None) -> str:
    return "0.00" if side is None else text.number(side.percent_of_cpu, 2)


def _ms_per_call(side: StatementSide | None) -> str:
    value = side.c0_ms_per_call if side is not None else None
    if value is None:
        return "–" if side is None else text.UNKNOWN
    return text.number(value, 3 if value < 1 else 2)


def _describe_ratio(change: StatementChange) -> tuple[str, str]:
    """Return the ratio and its interval in words, with equal decimals."""
    if change.ratio is None:
        return text.UNKNOWN, text.UNKNOWN
    if change.low is None or change.high is None:
        return f"× {labels.format_significant(change.ratio)}", text.UNKNOWN
    ratio, low, high = labels.format_together((change.ratio, change.low, change.high))
    return f"× {ratio}", f"{low}–{high}"


def _list_rows(record: QueriesComparison) -> Iterator[Line]:
    """Return one line per statement."""
    names = ("id", "text", "schema_name", "became", "change_percent_of_cpu", "ratio", "low", "high")
    sides = ("percent_of_cpu", "calls_hz", "c0_ms_per_call", "latency_p95_ms", "joules_per_call")
    heads = (f"ratio_{name}" if name in ("low", "high") else name.removesuffix("_name") for name in names)
    yield [*heads, *(f"{name}_{side}" for side in ("a", "b") for name in (*sides, "kind"))]
    kinds = {"a": record.a.kind, "b": record.b.kind}
    for change in record.statements:
        values = [
            value
            for side, measured in (("a", change.a), ("b", change.b))
            for value in (*(getattr(measured, name, None) for name in sides), kinds[side])
        ]
        yield [*(getattr(change, name) for name in names), *values]


MAX_ROWS = 500


def statements_table(record: QueriesComparison, places: Places) -> Table:
    """Return one row per statement, A and B side by side; the ratio has its interval."""
    columns = [
        Column("text", "statement", left=True),
        *word_columns("id", "schema", "became"),
        *figure_columns(a="% of a CPU, A", b="% of a CPU, B", change="change, % of a CPU"),
        *figure_columns(each_a="ms CPU/call, A", each_b="ms CPU/call, B"),
        Column("ratio", "ratio", interval="95 %"),
        *figure_columns(p95_a="p95 ms, A", p95_b="p95 ms, B", rate_a="calls/s, A", rate_b="calls/s, B"),
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


def _drawn_interval(record: QueriesComparison, change: StatementChange) -> DrawnInterval | None:
    if change.ratio is None or change.low is None or change.high is None:
        return None
    low, middle, high = (100 * (ratio - 1) for ratio in (change.low, change.ratio, change.high))
    return DrawnInterval(middle, low, high, claim_of_change(record, change).verdict != "inconclusive")


def _draw_ratios(record: QueriesComparison) -> DrawnColumn | None:
    """Draw the ratios on one axis; return None if no interval is known."""
    changes = record.statements[:MAX_ROWS]
    intervals = [_drawn_interval(record, change) for change in changes]
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
    ratio, ends = _describe_ratio(change)
    return f"{ratio} ({ends}): {clean_name(change.text, 80)}"
