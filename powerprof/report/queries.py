# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof queries`: statements by CPU time and energy, background threads, and the balance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from powerprof.model import text
from powerprof.queries.askers import Grouping, parse_grouping
from powerprof.queries.records import Queries, QueryPlanStep, Share
from powerprof.report import labels
from powerprof.report.document import (
    NOT_HTML,
    NOT_TERMINAL,
    Document,
    Drawing,
    Item,
    Items,
    Part,
    Section,
    Sentence,
    Shown,
    View,
)
from powerprof.report.html.queries import (
    EXPLAINED_WAITS,
    draw_bars,
    draw_statement,
    list_sampled,
    page_table,
    waits_table,
)
from powerprof.report.html.text import clean_name
from powerprof.report.layouts import column_rows
from powerprof.report.notes import word_notes
from powerprof.report.phases import split_table
from powerprof.report.similar_texts import distinguishable
from powerprof.report.statement_tables import (
    WAITS,
    askers_text,
    columns_of,
    groups_table,
    queries_table,
    unexplained_percent,
    unknown,
    unknown_askers,
)
from powerprof.report.table import HTML, Cell, Figure, Line, Places, Table, TableRow, Words

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
    if record.slicing is not None:
        slices = text.plural(record.slicing.slices_count, "slice")
        how = f"{how} for {text.number(record.slicing.traced_percent, 1)} % of the window, in {slices}"
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
        + (f", {text.plural(step.rows_count, 'row')}" if step.rows_count is not None else "")
        + (f" ({step.extra})" if step.extra else "")
        for step in plan
    )


def document(record: Queries, view: View) -> Document:
    """Return the report of a window of statements. Raises UsageError for an unknown name.

    `view.columns` names the columns; `view.by` gives one row per user, host, account or database.
    """
    by = parse_grouping(view.by) if view.by is not None else None
    keys = columns_of(view.columns) if view.columns is not None else _default_columns(record)
    return Document(
        views=("by", "columns", "top"),
        record=record,
        answer=answer_of(record),
        context=context_of(record),
        parts=partial(_list_parts, record, view, keys, by),
        rows=partial(_list_rows, record),
        setup=(
            *(("Server", "/server"), ("Cost of tracing", "/tracing"), ("Cost of powerprof", "/tool")),
            ("Host", "/host"),
        ),
        derived=view.extras.derived,
    )


def _list_parts(record: Queries, view: View, keys: Sequence[str], by: Grouping | None) -> Iterator[Part]:
    places = Places(record)
    parts = _list_statements(record, places, view, keys) if by is None else _list_groups(record, by, view)
    yield Section("By statement" if by is None else f"By {by}", parts, "statements")
    sliced = Sentence(_describe_slices(record))
    yield Section("", [sliced, Sentence(balance(record), look="balance"), Sentence(_tool_line(record), look="muted")])
    waits = waits_table(record, places)
    explained = Sentence(EXPLAINED_WAITS if waits.rows else "", look="muted")
    yield Section("Waits and rows per call", [explained, Shown(waits, look="plain sortable")], "waits", forms=HTML)
    flames = [
        Section(
            clean_name(statement.text),
            [Drawing(partial(draw_statement, record, statement), look="")],
            folded=number > 0,
        )
        for number, statement in enumerate(list_sampled(record))
    ]
    yield Section("Flame graphs", flames, "flames", forms=HTML)
    plans = [
        Section(statement.text, [Sentence(plan_text(statement.plan))], headed=NOT_TERMINAL)
        for statement in record.statements
        if statement.plan
    ]
    yield Section("Plans", plans, "plans", NOT_TERMINAL, forms=NOT_TERMINAL)
    if (split := record.energy_split) is not None:
        shown = Shown(split_table(split, places, "/energy_split"), look="plain split")
        notes = Items([Item(note) for note in word_notes(split.notes)])
        yield Section("Energy of the host", [shown, notes], "energy", forms=HTML)


_CALLS_BY = {
    "server": "the server's own count of statements scales the calls",
    "cpu": "the server's CPU time scales the calls, because its count of statements is unknown or counts other things",
    "time": "time scales the calls, because neither the server's CPU time nor its count of statements is known",
}


def _describe_slices(record: Queries) -> str:
    """Return the traced part of a window whose cost was bounded, and the scale of the figures."""
    sliced = record.slicing
    if sliced is None:
        return ""
    return (
        f"Probes on all statements would cost more than the bound, so probes were placed for "
        f"{text.number(sliced.traced_s, 2)} s of {text.number(record.window_s, 1)} s. The kernel's clock of the server "
        f"scales the CPU time; {_CALLS_BY[sliced.calls_by]}. "
        f"{labels.bound_unseen('A statement', 'ran', sliced.unseen_below_hz)}"
    )


def _list_statements(record: Queries, places: Places, view: View, keys: Sequence[str]) -> list[Part]:
    """Return the statements with most CPU time; a page has all of them, and the background threads by name."""
    whole = queries_table(record, places)
    count, top = len(record.statements), view.top or _DEFAULT_TOP
    spare: Mapping[str, int] = {} if view.columns is not None else _OPTIONAL_COLUMNS
    rows = [*whole.rows[:count][:top], *_fold_background(record, whole.rows[count:])]
    few = replace(whole, rows=rows, left_count=max(0, count - top)).of("terminal", ("text", *keys, *spare))
    layout = partial(statement_lines, record, keys, spare, view.is_whole)
    shown = Shown(few, layout, columns=("text", *keys), what="statements", forms=NOT_HTML)
    many = page_table(whole, count)
    parts: list[Part] = [
        shown,
        Shown(many, look="plain sortable wide", what="statements", drawn=partial(draw_bars, many), forms=HTML),
    ]
    if view.columns is not None:
        headings = {column.key: column.heading for column in whole.columns}
        for reason, named in _unknown_columns(record, keys, headings).items():
            parts.append(Sentence(f"?: {', '.join(named)}: {reason}."))
    return parts


def _list_groups(record: Queries, by: Grouping, view: View) -> list[Part]:
    """Return one row per user, host, account or database."""
    whole, top = groups_table(record, by), view.top or _DEFAULT_TOP
    shown = replace(whole, rows=whole.rows[:top], left_count=max(0, len(whole.rows) - top))
    reason = unknown_askers(record, by)
    return [Shown(shown, group_lines, what="groups"), Sentence("" if reason is None else f"{by}: ?: {reason}.")]


EXPENSIVE_PERCENT = 3.0  # of the server's CPU time; above it the report offers the cheaper method
_KEYS = ("joules", "percent", "calls", "c0", "wakeups", "p95")
_SLICED_KEYS = ("joules", "percent", "range", "calls", "c0", "wakeups", "p95")
# Samples have no wake-ups or latencies, but intervals.
_SAMPLED_KEYS = ("joules", "percent", "range", "calls", "c0")


# The id and the accounts, if this many characters are left for the text.
_OPTIONAL_COLUMNS = {"id": 22, "who": 40}


def group_lines(table: Table, width: int) -> list[str]:
    """Return one line per group, and the number of further ones."""
    return [*column_rows(table, width), *([f"{table.left_count:,} more (--top N)"] if table.left_count else [])]


def _default_columns(record: Queries) -> tuple[str, ...]:
    keys = _SAMPLED_KEYS if record.method == "samples" else _KEYS if record.slicing is None else _SLICED_KEYS
    return tuple(key for key in keys if key != "joules" or record.joules is not None)


def _unknown_columns(record: Queries, keys: Sequence[str], headings: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the reasons for unknown columns, each with the headings."""
    headings_of: dict[str, list[str]] = {}
    for key in keys:
        if (reason := unknown(record, key)) is not None:
            headings_of.setdefault(reason, []).append(headings[key].removesuffix(" ms"))
    return headings_of


def statement_lines(
    record: Queries, keys: Sequence[str], spare: Mapping[str, int], is_whole: bool, table: Table, width: int
) -> list[str]:
    """Return the statements for a terminal, each with its plan.

    `spare` maps an optional column to the characters that it must leave for the text.
    """
    heads = {column.key: column.short or column.heading for column in table.columns}
    count, rows = sum(row.key == "statement" for row in table.rows), table.rows
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
        own = [] if "id" in keys else [statement.id for statement in record.statements[:count]]
        names = distinguishable(names, ["", *own, *([""] * len(names))][: len(names)], room)
    words = {column.key for column in table.columns if column.left} - {"id"}
    cells = [[*(columns[key][number] for key in keys), name] for number, name in enumerate(names)]
    wide = max(map(len, names)) + sum(sizes.values()) + 2 * len(sizes) if is_whole else width
    entries, indent = text.name_rows(cells, wide, left=[at for at, key in enumerate(keys) if key in words])
    lines: list[str] = []
    for number, entry in enumerate(entries):
        lines += entry
        if number and number <= count and (plan := record.statements[number - 1].plan):
            lines += text.wrap(f"plan: {plan_text(plan)}", max(width, wide), " " * indent)
    if table.left_count:
        percent = _sum_known(row.c0_percent for row in record.statements[count:])
        lines.append(f"{table.left_count:,} more statements with {text.number(percent, 1)} % (--top N, or --json)")
    return lines


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


def _own_cost(record: Queries) -> str:
    of = f"the CPU time of {record.server.label}"
    return labels.format_own_cost(record.tool, record.window_s * max(1, record.cpus), of)


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
    if share is not None and share > 100.0:
        server = ", more than the server itself used"
    if calls == 0:
        server = "; the server executed no statements"
    is_expensive = record.method == "probes" and share is not None and share > EXPENSIVE_PERCENT
    return (
        f"Tracing cost {text.number(cost.probes_ms, 0)} ms of CPU time, {text.number(cost.percent, 2)} % of this host"
        f"{server}{per_statement}. The figures include this cost. "
        + "Cheaper, with intervals: --method samples. "
        * (is_expensive and calls != 0)
        + f"powerprof itself: {_own_cost(record)}, {text.number(record.tool.wakeups_hz, 1)} wake-ups/s, "
        f"{record.lost_count:,} updates lost."
    )


_STATEMENT_FIELDS = (
    *("text", "schema_name", "calls_count", "calls_hz", "c0_s", "c0_percent", "c0_ms_per_call", "wakeups_count"),
    *("page_faults_count", "rows_examined_per_call", "rows_sent_per_call"),
)


def _list_rows(record: Queries) -> Iterator[Line]:
    """Return one line per statement and background group, then the connections and the unexplained rest."""
    yield [
        *("part", "text", "schema", "calls_count", "calls_hz", "c0_s", "c0_percent", "c0_ms_per_call", "wakeups_count"),
        *("page_faults_count", "rows_examined_per_call", "rows_sent_per_call", "latency_p50_ms", "latency_p95_ms"),
        *("joules", "low_joules", "high_joules", "watts", "kind"),
        *("id", "latency_p99_ms", *(f"{name}_ms" for name in WAITS)),
        *("began_before_count", "unfinished_count", "account"),
    ]
    for statement in record.statements:
        yield [
            *("statement", *(getattr(statement, name) for name in _STATEMENT_FIELDS)),
            *(getattr(statement.latency_ms, name, None) for name in ("p50", "p95")),
            *(*_energy_cells(statement), statement.id, getattr(statement.latency_ms, "p99", None)),
            *(getattr(statement.waits_ms, name, None) for name in WAITS),
            *(statement.began_before_count, statement.unfinished_count, askers_text(statement, "account") or None),
        ]
    for row in record.background:
        yield ["background", row.thread, *[None] * 3, row.c0_s, row.c0_percent, None, row.wakeups_count]
    rest = record.connections
    yield ["connections", "", *[None] * 3, rest.c0_s, rest.c0_percent, *[None] * 7, *_energy_cells(rest)]
    yield ["unexplained", "", *[None] * 3, record.residual_c0_s, unexplained_percent(record)]


def _energy_cells(share: Share) -> tuple[str | float | None, ...]:
    return share.joules, share.low_joules, share.high_joules, share.watts, share.kind
