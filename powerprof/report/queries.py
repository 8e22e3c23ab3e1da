# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof queries`: statements by CPU time and energy, background threads, and the balance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from markupsafe import Markup
from msgspec.structs import replace

from powerprof.model import text
from powerprof.queries.records import Grouping, Queries, QueryPlanStep, Share, parse_grouping
from powerprof.report import labels
from powerprof.report.document import Extras
from powerprof.report.html.charts import FlameView, draw_flame
from powerprof.report.html.page import clean_name, render_page
from powerprof.report.labels import notes_with_source
from powerprof.report.phases import split_table
from powerprof.report.stacks import build_flame
from powerprof.report.statement_tables import (
    WAITS,
    columns_of,
    distinguishable,
    groups_table,
    queries_table,
    unexplained_percent,
    unknown,
    unknown_askers,
)
from powerprof.report.table import (
    Cell,
    DrawnColumn,
    Figure,
    Places,
    Table,
    TableRow,
    Words,
    align_rows,
    draw_table,
    escape,
    without_empty,
)

_DEFAULT_TOP = 20
_MAX_NAME = 48


def answer_of(record: Queries) -> str:
    """Return the statement with most CPU time, and its share."""
    if not record.statements:
        met = "executed no statements" if record.method == "probes" else "had no statements in any sample"
        return f"{record.server.label} {met} in {text.number(record.window_s, 1)} s."
    first = record.statements[0]
    share = text.number(first.c0_percent, 0) if first.c0_percent is not None else text.UNKNOWN
    joules = ""
    if first.joules is not None and record.joules is not None:
        qualifiers = [] if first.kind != "estimated" else ["estimated"]
        if first.low_joules is not None and first.high_joules is not None:
            qualifiers.append(f"{_joules(first.low_joules)} to {_joules(first.high_joules)} J possible")
        qualifier = f" ({', '.join(qualifiers)})" if qualifiers else ""
        joules = f" and {_joules(first.joules)} of {_joules(record.joules)} J above the idle floor{qualifier}"
    return f"One statement takes {share} % of this server's CPU time{joules}: {text.shorten(first.text, 200)}"


def _joules(value: float) -> str:
    return text.number(value, 1 if abs(value) >= 10 else 3)


def context_of(record: Queries) -> str:
    """Return the server, the window and the method."""
    server = record.server
    how = {"probes": "statements by a probe", "samples": "shares by samples"}[record.method]
    version = f" · {server.version}" if server.version else ""
    calls = "number of statements unknown" if record.calls_count is None else f"{record.calls_count:,} statements"
    return (
        f"{server.label}{version} · {text.number(record.window_s, 1)} s · {calls} · "
        f"{text.number(100 * record.server_c0_s / record.window_s, 1)} % of one CPU · {how}"
    )


def balance(record: Queries) -> str:
    """Return the sum of the parts, and the independent count that it is checked against."""
    if record.explained_percent is None:
        return "The server's CPU time has no independent count to check against."
    processes = "process" if record.server.family == "mysql" else "server's processes"
    return (
        f"Statements {text.number(sum(statement.c0_s for statement in record.statements), 3)} s + background "
        f"{text.number(sum(background.c0_s for background in record.background), 3)} s + connections "
        f"{text.number(record.connections_c0_s, 3)} s + unexplained {text.number(record.residual_c0_s, 3)} s = "
        f"{text.number(record.server_c0_s, 3)} s counted by the kernel for the {processes} "
        f"({text.number(record.explained_percent, 1)} % explained)."
    )


def plan_text(plan: Sequence[QueryPlanStep]) -> str:
    """Return the steps of a plan, such as `city ALL, 20,395 rows`."""
    return "; ".join(
        (f"{step.table} {step.access or '?'}" if step.table else "no table")
        + (f" on {step.key}" if step.key else "")
        + (f", {step.rows_count:,} rows" if step.rows_count is not None else "")
        + (f" ({step.extra})" if step.extra else "")
        for step in plan
    )


def render_terminal(
    record: Queries,
    width: int = text.DEFAULT_WIDTH,
    *,
    top: int = _DEFAULT_TOP,
    columns: str | None = None,
    by: str | None = None,
    is_whole: bool = False,
) -> list[str]:
    """Return the report. Raises UsageError for an unknown name.

    `columns` names the shown columns; `by` gives one row per user, host, account or database; `is_whole` shows whole
    texts.
    """
    keys = columns_of(columns) if columns is not None else _default_columns(record)
    spare: Mapping[str, int] = {} if columns is not None else _OPTIONAL_COLUMNS
    printed = [*text.wrap(answer_of(record), width), *text.wrap(context_of(record), width), ""]
    if by is not None:
        printed += _group_lines(record, parse_grouping(by), width, top)
    else:
        printed += _statement_lines(record, width, top, keys, spare, is_whole)
    if columns is not None and by is None:
        headings = {column.key: column.heading for column in queries_table(record, Places(record)).columns}
        for reason, named in _unknown_columns(record, keys, headings).items():
            printed += text.wrap(f"?: {', '.join(named)}: {reason}.", width)
    printed += ["", *text.wrap(balance(record), width), *text.wrap(_tool_line(record), width)]
    # The source of row counts matters only next to their columns.
    on_rows = ("rows_counted", "rows_unknown")
    kept = [note for note in record.notes if columns is not None or getattr(note, "name", "") not in on_rows]
    printed += labels.wrap_notes(msgspec.structs.replace(record, notes=kept), width)
    if record.interrupted:
        printed.append("Interrupted: partial results.")
    return printed


EXPENSIVE_PERCENT = 3.0  # of the server's CPU time; above it the report offers the cheaper method
_KEYS = ("joules", "percent", "calls", "c0", "wakeups", "p95")
# Samples have no wake-ups or latencies, but intervals.
_SAMPLED_KEYS = ("joules", "percent", "range", "calls", "c0")


# The id and the accounts, if this many characters are left for the text.
_OPTIONAL_COLUMNS = {"id": 22, "who": 40}


def _group_lines(record: Queries, by: Grouping, width: int, top: int) -> Iterator[str]:
    table = groups_table(record, by)
    keys = [column.key for column in table.columns if column.key != "joules" or record.joules is not None]
    heads = {column.key: column.heading for column in table.columns}
    rows = table.rows[:top]
    cells = [
        [heads[key] for key in keys],
        *([text.shorten(row.words(key).text, _MAX_NAME) for key in keys] for row in rows),
    ]
    lefts = [column.key for column in table.columns if column.left]
    whole = [heads["text"], *(row.words("text").text for row in rows)]
    named = [[*line[:-1], statement] for line, statement in zip(cells, whole, strict=True)]
    yield from align_rows(named, width, [at for at, key in enumerate(keys[:-1]) if key in lefts])
    if len(table.rows) > top:
        yield f"{len(table.rows) - top:,} more (--top N)"
    if (reason := unknown_askers(record, by)) is not None:
        yield from text.wrap(f"{by}: ?: {reason}.", width)


def _default_columns(record: Queries) -> tuple[str, ...]:
    keys = _KEYS if record.method == "probes" else _SAMPLED_KEYS
    return tuple(key for key in keys if key != "joules" or record.joules is not None)


def _unknown_columns(record: Queries, keys: Sequence[str], headings: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the reasons for unknown columns, each with the headings."""
    headings_of: dict[str, list[str]] = {}
    for key in keys:
        if (reason := unknown(record, key)) is not None:
            headings_of.setdefault(reason, []).append(headings[key].removesuffix(" ms"))
    return headings_of


def _statement_lines(
    record: Queries, width: int, top: int, keys: Sequence[str], spare: Mapping[str, int], is_whole: bool
) -> Iterator[str]:
    """Yield the table of statements.

    `spare` maps an optional column to the characters that it must leave for the text.
    """
    shown = queries_table(record, Places(record)).of("terminal", ("text", *keys, *spare))
    heads = {column.key: column.short or column.heading for column in shown.columns}
    count = len(record.statements)
    rows = [*shown.rows[:count][:top], *_fold_background(record, shown.rows[count:])]
    columns = {key: [heads[key], *(text.shorten(row.words(key).text, _MAX_NAME) for row in rows)] for key in heads}
    sizes = {key: max(map(len, column)) for key, column in columns.items()}
    room = width - sum(sizes[key] + 2 for key in keys)
    for key, least in spare.items():
        remaining = room - sizes[key] - 2
        if any(columns[key][1:]) and (is_whole or remaining >= least):
            keys, room = (*keys, key), remaining
    names = ["statement", *(row.words("text").text for row in rows)]
    if not is_whole and room >= text.LEAST_NAME:
        # With a column of ids, the texts need no ids.
        own = [] if "id" in keys else [statement.id for statement in record.statements[:top]]
        names = distinguishable(names, ["", *own, *([""] * len(names))][: len(names)], room)
    words = {column.key for column in shown.columns if column.left} - {"id"}
    cells = [[*(columns[key][number] for key in keys), name] for number, name in enumerate(names)]
    wide = max(map(len, names)) + sum(sizes.values()) + 2 * len(sizes) if is_whole else width
    entries, indent = text.name_rows(cells, wide, left=[at for at, key in enumerate(keys) if key in words])
    for number, entry in enumerate(entries):
        yield from entry
        if number and number <= min(count, top) and (plan := record.statements[number - 1].plan):
            yield from text.wrap(f"plan: {plan_text(plan)}", width, " " * indent)
    if count > top:
        left = record.statements[top:]
        percent = _sum_known(row.c0_percent for row in left)
        yield f"{count - top:,} more statements with {text.number(percent, 1)} % (--top N, or --json)"


def _fold_background(record: Queries, rows: Sequence[TableRow]) -> list[TableRow]:
    """Merge the background threads into one row, because they are many and small."""
    if not record.background:
        return list(rows)
    names = [background.thread.rpartition("/")[2] for background in record.background]
    more = f", {len(names) - 2} more" if len(names) > 2 else ""
    every: Sequence[Share] = record.background
    joules = _sum_known(background.joules for background in every) if record.joules is not None else None
    cells: dict[str, Cell] = {
        "text": Words(f"background: {', '.join(names[:2])}{more}"),
        "joules": Figure(joules, "", None),
        "percent": Figure(_sum_known(background.c0_percent for background in every), "", 1),
    }
    return [TableRow(cells), *rows[len(record.background) :]]


def _sum_known(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values; None if none is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _tool_line(record: Queries) -> str:
    cost = record.tracing
    if cost.probes_ms is None:
        return "Tracing cost is unknown on this kernel."
    calls = record.calls_count
    rate = (
        "this rate"
        if calls is None or not record.window_s
        else f"{text.number(calls / record.window_s, 0)} statements/s"
    )
    per_statement = (
        "" if cost.per_call_us is None else f", {text.number(cost.per_call_us, 1)} µs per statement at {rate}"
    )
    share = 100.0 * cost.probes_ms / 1e3 / record.server_c0_s if record.server_c0_s else None
    server = "" if share is None else f" and {text.number(share, 2)} % of the server's CPU time"
    if calls == 0:
        server = "; the server executed no statements"
    is_expensive = record.method == "probes" and share is not None and share > EXPENSIVE_PERCENT
    return (
        f"Tracing cost {text.number(cost.probes_ms, 0)} ms of CPU time, {text.number(cost.percent, 2)} % of this host"
        f"{server}{per_statement}. The figures include this cost. "
        + "Cheaper, with intervals: --method samples. "
        * (is_expensive and calls != 0)
        + f"powerprof itself: {text.number(record.tool.cpu_percent, 2)} % CPU, "
        f"{text.number(record.tool.wakeups_hz, 1)} wake-ups/s, {record.lost_count:,} updates lost."
    )


_STATEMENT_FIELDS = (
    *("text", "schema_name", "calls_count", "calls_hz", "c0_s", "c0_percent", "c0_ms_per_call", "wakeups_count"),
    *("page_faults_count", "rows_examined_per_call", "rows_sent_per_call"),
)


def render_csv(record: Queries) -> Iterator[Sequence[str | float | int | None]]:
    """Return one line per statement and background group, then the connections and the unexplained rest."""
    yield [
        *("part", "text", "schema", "calls_count", "calls_hz", "c0_s", "c0_percent", "c0_ms_per_call", "wakeups_count"),
        *("page_faults_count", "rows_examined_per_call", "rows_sent_per_call", "latency_p50_ms", "latency_p95_ms"),
        *("joules", "low_joules", "high_joules", "watts", "kind"),
        *("id", "latency_p99_ms", *(f"{name}_ms" for name in WAITS)),
    ]
    for statement in record.statements:
        yield [
            *("statement", *(getattr(statement, name) for name in _STATEMENT_FIELDS)),
            *(getattr(statement.latency_ms, name, None) for name in ("p50", "p95")),
            *(*_energy_cells(statement), statement.id, getattr(statement.latency_ms, "p99", None)),
            *(getattr(statement.waits_ms, name, None) for name in WAITS),
        ]
    for row in record.background:
        yield ["background", row.thread, *[None] * 3, row.c0_s, row.c0_percent, None, row.wakeups_count]
    rest = record.connections
    yield ["connections", "", *[None] * 3, rest.c0_s, rest.c0_percent, *[None] * 7, *_energy_cells(rest)]
    yield ["unexplained", "", *[None] * 3, record.residual_c0_s, unexplained_percent(record)]


def _energy_cells(share: Share) -> tuple[str | float | None, ...]:
    return share.joules, share.low_joules, share.high_joules, share.watts, share.kind


def render_markdown(record: Queries, context_line: str) -> list[str]:
    """Return the statements with most CPU time, and the balance."""
    shown = queries_table(record, Places(record))
    keys = ("text", *(key for key in _KEYS if key != "joules" or record.joules is not None))
    rows = [*shown.rows[: min(len(record.statements), 25)], *shown.rows[len(record.statements) :]]
    bullets = [f"- {escape(note)}" for note in labels.notes_with_source(record)]
    table = Table(shown.columns, rows)
    return [
        "",
        context_line,
        *draw_table(table, keys),
        "",
        escape(balance(record)),
        "",
        escape(_tool_line(record)),
        "",
        *bullets,
    ]


# The HTML page: statements with bars, sortable by any column, and the balance.

MAX_ROWS = 500
_MAX_WAITING = 100
_WAIT_KEYS = tuple(f"wait_{name}" for name in WAITS)
# With these columns, a table of 1,280 px has no room for the accounts.
_DETAIL_KEYS = ("faults", "examined", "sent")
_MAX_FLAMES, _MAX_FRAMES = 10, 800
_BAR = Markup('<span class="share"><span style="--w:{:.4g}%"></span></span>')


def render_html(record: Queries, extras: Extras) -> str:
    """Return the HTML page."""
    places = Places(record)
    whole = queries_table(record, places)
    count = len(record.statements)
    statements = [
        replace(row, cells={**row.cells, "text": replace(row.words("text"), code=True)})
        for row in whole.rows[: min(count, MAX_ROWS)]
    ]
    rows = [*statements, *whole.rows[count:]]
    first = [column for column in whole.of("html").columns if column.key not in _DETAIL_KEYS]
    shown = without_empty(replace(whole, rows=rows, columns=first).of("html"))
    waiting = [
        row
        for row, statement in zip(rows, record.statements, strict=False)
        if statement.waits_ms is not None or statement.rows_examined_per_call is not None
    ]
    keys = ("text", "p50", "p99", "c0", *_WAIT_KEYS, *_DETAIL_KEYS)
    waits = without_empty(replace(whole, rows=waiting[:_MAX_WAITING], label="waits").of("html", keys))
    bars = DrawnColumn("calls", Markup("share"), [_draw_bar(row) for row in shown.rows])
    split = record.energy_split
    return render_page(
        "queries.html.j2",
        record,
        places,
        title=clean_name(answer_of(record)),
        answer=answer_of(record),
        context=context_of(record),
        balance=balance(record),
        notes=notes_with_source(record),
        rows=shown,
        bars=bars,
        waits=waits,
        left_count=max(count - MAX_ROWS, 0),
        plans=[
            (clean_name(statement.text, 400), plan_text(statement.plan))
            for statement in record.statements
            if statement.plan
        ],
        flames=_draw_flames(record),
        energy=split_table(split, places, "/energy_split") if split else None,
    )


def _draw_flames(record: Queries) -> list[FlameView]:
    """Draw the flame graphs of the statements with most samples."""
    statements = [statement for statement in record.statements if statement.stacks]
    statements.sort(key=lambda statement: -sum(stack.count for stack in statement.stacks))
    views = []
    for statement in statements[:_MAX_FLAMES]:
        stacks = [(tuple(stack.frames), float(stack.count)) for stack in statement.stacks]
        graph = build_flame(stacks, unit="samples of C0", root="statement", limit=_MAX_FRAMES)
        views.append(draw_flame(graph, clean_name(statement.text, 200), record.modules))
    return [view for view in views if view]


def _draw_bar(row: TableRow) -> Markup:
    cell = row.cells.get("percent")
    value = cell.value if isinstance(cell, Figure) else None
    return _BAR.format(min(max(float(value or 0.0), 0.0), 100.0))
