# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof queries --watch`: the server's CPU time over the watched windows, by statement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from powerprof.model import text
from powerprof.queries.history import HistoryStatement, QueriesHistory
from powerprof.report.html.page import Extras, clean_name, render_page
from powerprof.report.html.svg import Bar, draw_course
from powerprof.report.labels import word_notes
from powerprof.report.statement_tables import statement_lines
from powerprof.report.table import Column, Places, Table, TableRow, Words, figures, words

_DEFAULT_TOP = 20
_HEADINGS = ("% of a CPU", "highest", "at", "calls/s", "id")


def answer_of(record: QueriesHistory) -> str:
    """Return the server's CPU use, its highest step, and the statement with most CPU time."""
    used = 100 * record.server_c0_s / record.window_s
    most = max(record.steps, key=lambda step: step.cpu_percent)
    answer = (
        f"{record.server.label} used {text.number(used, 1)} % of one CPU, "
        f"{text.number(most.cpu_percent, 1)} % at most ({_duration(most.at_s)} after the start)"
    )
    if not record.statements:
        return f"{answer}. It executed no statement."
    first = record.statements[0]
    return f"{answer}; most by {text.shorten(first.text, 200)}: {text.number(first.cpu_percent, 1)} %"


def context_of(record: QueriesHistory) -> str:
    """Return the measured share, the calls and the energy."""
    span = record.steps[-1].until_s
    share = text.number(100 * record.window_s / span if span else None, 0)
    windows = "1 window" if record.windows_count == 1 else f"{record.windows_count:,} windows"
    parts = [f"{windows} in {_duration(span)}, {share} % of it measured", f"{record.calls_count:,} calls"]
    if record.joules is not None:
        parts.append(f"{text.number(record.joules, 2)} J above the idle floor ({record.kind})")
    if record.lost_count:
        parts.append(f"{record.lost_count:,} updates lost: figures are too low")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def render_terminal(record: QueriesHistory, width: int = text.DEFAULT_WIDTH, *, top: int = _DEFAULT_TOP) -> list[str]:
    """Return the statements with most CPU time, and the step in which each used most."""
    printed = [*text.wrap(answer_of(record), width), *text.wrap(context_of(record), width), ""]
    shown = record.statements[:top]
    printed += statement_lines([_HEADINGS, *(_row_cells(record, statement) for statement in shown)], shown, width)
    if len(record.statements) > top:
        printed.append(f"{len(record.statements) - top:,} more statements (--json)")
    rest = 100 * record.other_c0_s / record.window_s
    printed.append(f"All else, background threads and connections too: {text.number(rest, 1)} % of a CPU.")
    for note in word_notes(record.notes):
        printed += text.wrap(f"Note: {note}.", width)
    return printed


def _row_cells(record: QueriesHistory, statement: HistoryStatement) -> tuple[str, ...]:
    highest = max(statement.course_percent, default=0.0)
    at_s = record.steps[statement.course_percent.index(highest)].at_s if statement.course_percent else 0.0
    rate = None if statement.calls_count is None else statement.calls_count / record.window_s
    return (
        text.number(statement.cpu_percent, 1),
        text.number(highest, 1),
        f"+{_duration(at_s)}",
        text.number(rate, 1),
        statement.id,
    )


def render_csv(record: QueriesHistory) -> Iterator[Sequence[str | float | int | None]]:
    """Return one line per step and statement. The server's own lines have no id."""
    yield ["at_s", "until_s", "id", "text", "schema", "cpu_percent"]
    for number, step in enumerate(record.steps):
        yield [step.at_s, step.until_s, "", "", "", step.cpu_percent]
        for statement in record.statements:
            yield [
                step.at_s,
                step.until_s,
                statement.id,
                statement.text,
                statement.schema_name,
                statement.course_percent[number],
            ]


# The HTML page: a timeline of the server, and one per statement.

_MAX_TIMELINES, _MAX_BARS = 10, 240


def render_html(record: QueriesHistory, extras: Extras) -> str:
    """Return the HTML page."""
    places, sentence = Places(record), answer_of(record)
    statements = [
        (
            f"{statement.id} {clean_name(statement.text, 160)}",
            _draw_timeline(record, statement.course_percent, statement.id),
        )
        for statement in record.statements[:_MAX_TIMELINES]
    ]
    return render_page(
        "querieshistory.html.j2",
        record,
        places,
        title=clean_name(sentence),
        answer=sentence,
        context=context_of(record),
        whole=_draw_timeline(record, [step.cpu_percent for step in record.steps], "the server"),
        timelines=statements,
        rows=_statements_table(record, places),
        notes=word_notes(record.notes),
    )


def _draw_timeline(record: QueriesHistory, values: Sequence[float], name: str) -> Markup:
    """Draw one bar per step, or per group of steps so that hours stay readable."""
    group_size = -(-len(record.steps) // _MAX_BARS)
    bars = []
    for first in range(0, len(record.steps), group_size):
        steps, step_values = record.steps[first : first + group_size], values[first : first + group_size]
        window_s = sum(step.window_s for step in steps)
        value = sum(part * step.window_s for part, step in zip(step_values, steps, strict=True)) / window_s
        title = f"{name}, {steps[0].at_s:.0f} to {steps[-1].until_s:.0f} s: {text.number(value, 1)} % of one CPU"
        bars.append(Bar(steps[0].at_s, steps[-1].until_s, value, "c0", title))
    return draw_course(bars, "% of one CPU")


def _statements_table(record: QueriesHistory, places: Places) -> Table:
    columns = [
        Column("text", "statement", left=True),
        *words("id", "schema"),
        *figures(cpu="% of a CPU", c0="CPU s", calls="calls", joules="J"),
    ]
    rows = [
        TableRow(
            {
                "text": Words(statement.text, code=True),
                "id": Words(statement.id),
                "schema": Words(statement.schema_name or ""),
                "cpu": places.figure(f"/statements/{number}/cpu_percent", 1),
                "c0": places.figure(f"/statements/{number}/c0_s", 3),
                "calls": places.figure(f"/statements/{number}/calls_count", 0),
                "joules": places.figure(f"/statements/{number}/joules", 2),
            }
        )
        for number, statement in enumerate(record.statements)
    ]
    return Table(columns, rows, "statements")
