# SPDX-License-Identifier: Apache-2.0
"""The report of what `queries --watch` saw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from powerprof.model import text
from powerprof.queries.history import HistoryStatement, QueriesHistory
from powerprof.report.html.page import Extras, clean, page
from powerprof.report.html.svg import Bar, course
from powerprof.report.labels import texts
from powerprof.report.statement_tables import distinguishable
from powerprof.report.table import Column, Places, Table, TableRow, Words

_SHOWN = 20
_HEADS = ("% of a CPU", "highest", "at", "calls/s", "id")


def headline(record: QueriesHistory) -> str:
    """What the server used, when most, and by which statement."""
    used = 100 * record.server_c0_s / record.window_s
    most = max(record.steps, key=lambda step: step.cpu_percent)
    answer = (
        f"{record.server.label} used {text.number(used, 1)} % of one CPU, "
        f"{text.number(most.cpu_percent, 1)} % at most ({_after(most.at_s)} after the start)"
    )
    if not record.statements:
        return f"{answer}. It executed no statement."
    first = record.statements[0]
    return f"{answer}; most by {text.cut(first.text, 200)}: {text.number(first.cpu_percent, 1)} %"


def context(record: QueriesHistory) -> str:
    """How much of it was measured."""
    span = record.steps[-1].until_s
    share = text.number(100 * record.window_s / span if span else None, 0)
    windows = "1 window" if record.windows_count == 1 else f"{record.windows_count:,} windows"
    parts = [f"{windows} in {_after(span)}, {share} % of it measured", f"{record.calls_count:,} calls"]
    if record.joules is not None:
        parts.append(f"{text.number(record.joules, 2)} J above the idle floor ({record.kind})")
    if record.lost_count:
        parts.append(f"{record.lost_count:,} updates lost: figures are too low")
    return ", ".join(parts)


def _after(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def lines(record: QueriesHistory, width: int = text.DEFAULT_WIDTH, *, top: int = _SHOWN) -> list[str]:
    """The statements with most CPU time, and when each used most."""
    printed = [*text.wrap(headline(record), width), *text.wrap(context(record), width), ""]
    shown = record.statements[:top]
    rows = [_HEADS, *(_cells(record, one) for one in shown)]
    sizes = [max(len(row[at]) for row in rows) for at in range(len(_HEADS))]
    room = width - sum(sizes) - 2 * len(sizes)
    names = distinguishable([one.text for one in shown], [one.id for one in shown], max(room, 1))
    for row, name in zip(rows, ["statement", *names], strict=True):
        cells = [cell.rjust(size) for cell, size in zip(row, sizes, strict=True)]
        printed.append(text.cut("  ".join([*cells, name]), width))
    if len(record.statements) > top:
        printed.append(f"{len(record.statements) - top:,} more statements (--json)")
    rest = 100 * record.other_c0_s / record.window_s
    printed.append(f"All else, background threads and connections too: {text.number(rest, 1)} % of a CPU.")
    for note in texts(record.notes):
        printed += text.wrap(f"Note: {note}.", width)
    return printed


def _cells(record: QueriesHistory, one: HistoryStatement) -> tuple[str, ...]:
    highest = max(one.course_percent, default=0.0)
    at_s = record.steps[one.course_percent.index(highest)].at_s if one.course_percent else 0.0
    rate = None if one.calls_count is None else one.calls_count / record.window_s
    return (text.number(one.cpu_percent, 1), text.number(highest, 1), f"+{_after(at_s)}", text.number(rate, 1), one.id)


def csv_lines(record: QueriesHistory) -> Iterator[Sequence[str | float | int | None]]:
    """A line for each step and statement; the server's own has no id."""
    yield ["at_s", "until_s", "id", "text", "schema", "cpu_percent"]
    for number, step in enumerate(record.steps):
        yield [step.at_s, step.until_s, "", "", "", step.cpu_percent]
        for one in record.statements:
            yield [step.at_s, step.until_s, one.id, one.text, one.schema_name, one.course_percent[number]]


# The page of what `queries --watch` saw: a timeline of the server, and one of each statement.

_TIMELINES, _BARS = 10, 240


def render(record: QueriesHistory, extras: Extras) -> str:
    """The page."""
    places, sentence = Places(record), headline(record)
    statements = [
        (f"{one.id} {clean(one.text, 160)}", _timeline(record, one.course_percent, one.id))
        for one in record.statements[:_TIMELINES]
    ]
    return page(
        "querieshistory.html.j2",
        record,
        places,
        title=clean(sentence),
        answer=sentence,
        context=context(record),
        whole=_timeline(record, [step.cpu_percent for step in record.steps], "the server"),
        timelines=statements,
        rows=_table(record, places),
        notes=texts(record.notes),
    )


def _timeline(record: QueriesHistory, values: Sequence[float], name: str) -> Markup:
    """A bar a step, or for several that follow each other, so that a page of hours can be read."""
    each = -(-len(record.steps) // _BARS)
    bars = []
    for first in range(0, len(record.steps), each):
        steps, some = record.steps[first : first + each], values[first : first + each]
        window_s = sum(step.window_s for step in steps)
        value = sum(part * step.window_s for part, step in zip(some, steps, strict=True)) / window_s
        title = f"{name}, {steps[0].at_s:.0f} to {steps[-1].until_s:.0f} s: {text.number(value, 1)} % of one CPU"
        bars.append(Bar(steps[0].at_s, steps[-1].until_s, value, "c0", title))
    return course(bars, "% of one CPU")


def _table(record: QueriesHistory, places: Places) -> Table:
    columns = [
        Column("text", "statement", left=True),
        Column("id", "id", left=True),
        Column("schema", "schema", left=True),
        Column("cpu", "% of a CPU"),
        Column("c0", "CPU s"),
        Column("calls", "calls"),
        Column("joules", "J"),
    ]
    rows = [
        TableRow(
            {
                "text": Words(one.text, code=True),
                "id": Words(one.id),
                "schema": Words(one.schema_name or ""),
                "cpu": places.figure(f"/statements/{number}/cpu_percent", 1),
                "c0": places.figure(f"/statements/{number}/c0_s", 3),
                "calls": places.figure(f"/statements/{number}/calls_count", 0),
                "joules": places.figure(f"/statements/{number}/joules", 2),
            }
        )
        for number, one in enumerate(record.statements)
    ]
    return Table(columns, rows, "statements")
