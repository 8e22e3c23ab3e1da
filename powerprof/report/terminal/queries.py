# SPDX-License-Identifier: Apache-2.0
"""`powerprof queries`: the table of statements and what else the server ran for, and the report for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from powerprof import text
from powerprof.queries.records import Background, Queries, QueryPlanStep, Share, Statement
from powerprof.report.tables import notes
from powerprof.report.tables.table import ALL, Cell, Column, Figure, Places, Table, TableRow, Words

_SHOWN = 20
_WIDE = ALL - {"terminal"}
_MOST_TEXT = 400


def headline(record: Queries) -> str:
    """Which statement takes most, and how much."""
    if not record.statements:
        return f"{record.server.label} executed no statement in {text.number(record.window_s, 1)} s."
    first = record.statements[0]
    share = text.number(first.c0_percent, 0) if first.c0_percent is not None else text.UNKNOWN
    joules = ""
    if first.joules is not None and record.joules is not None:
        known = [] if first.kind != "estimated" else ["estimated"]
        if first.low_joules is not None and first.high_joules is not None:
            known.append(f"{_joules(first.low_joules)} to {_joules(first.high_joules)} J possible")
        said = f" ({', '.join(known)})" if known else ""
        joules = f" and {_joules(first.joules)} of {_joules(record.joules)} J above the idle floor{said}"
    return f"One statement takes {share} % of this server's CPU time{joules}: {text.cut(first.text, 200)}"


def _joules(value: float) -> str:
    return text.number(value, 1 if abs(value) >= 10 else 3)


def context(record: Queries) -> str:
    """Whose, how long, and how it was told."""
    server = record.server
    how = {"probes": "statements told by a probe", "samples": "shares by samples"}.get(
        record.method, "shares by samples and the server's history"
    )
    version = f" · {server.version}" if server.version else ""
    return (
        f"{server.label}{version} · {text.number(record.window_s, 1)} s · {record.calls_count:,} statements · "
        f"{text.number(100 * record.server_c0_s / record.window_s, 1)} % of one CPU · {how}"
    )


def balance(record: Queries) -> str:
    """That the parts are the whole, and against what that was checked."""
    if record.explained_percent is None:
        return "Nothing counted the server's CPU time independently."
    return (
        f"Statements {text.number(sum(statement.c0_s for statement in record.statements), 3)} s + background "
        f"{text.number(sum(background.c0_s for background in record.background), 3)} s + connections "
        f"{text.number(record.connections_c0_s, 3)} s + unexplained {text.number(record.residual_c0_s, 3)} s = "
        f"{text.number(record.server_c0_s, 3)} s that the kernel counted for the {_whole(record)} "
        f"({text.number(record.explained_percent, 1)} % explained)."
    )


def queries_table(record: Queries, places: Places) -> Table:
    """A row a statement, then background threads and connections; every figure of the record."""
    estimated = ", est." if record.kind == "estimated" else ""
    columns = [
        Column("text", "statement", left=True),
        Column("joules", f"J{estimated}"),
        Column("percent", "CPU %"),
        Column("range", "95 %", forms=frozenset(("terminal",))),
        Column("calls", "calls/s"),
        Column("count", "calls", forms=_WIDE),
        Column("c0", "ms CPU"),
        Column("mj", f"mJ/call{estimated}", forms=_WIDE),
        Column("watts", f"W{estimated}", forms=_WIDE),
        Column("wakeups", "wake-ups"),
        Column("p50", "p50 ms", forms=_WIDE),
        Column("p95", "p95 ms"),
        Column("faults", "page faults", forms=_WIDE),
        Column("examined", "rows examined/call", forms=_WIDE),
        Column("sent", "rows sent/call", forms=_WIDE),
        Column("schema", "schema", left=True, forms=_WIDE),
    ]
    rows = [_statement(places, f"/statements/{at}", statement) for at, statement in enumerate(record.statements)]
    rows += [_background(places, f"/background/{at}", background) for at, background in enumerate(record.background)]
    cells = {**_shared(places, "/connections"), "text": Words("connections and parsing, in no statement", ours=True)}
    rows.append(TableRow(cells, key="connections", look="connections"))
    rest: dict[str, Cell] = {"text": Words("unexplained", ours=True), "percent": Figure(_percent(record), "", 1)}
    rows.append(TableRow(rest, key="unexplained", look="residual", forms=frozenset(("csv",))))
    return Table(columns, rows, "statements")


def _percent(record: Queries) -> float | None:
    return 100 * record.residual_c0_s / record.server_c0_s if record.server_c0_s > 0 else None


def _shared(places: Places, at: str) -> dict[str, Cell]:
    return {
        "joules": places.figure(f"{at}/joules", ends=(f"{at}/low_joules", f"{at}/high_joules")),
        "watts": places.figure(f"{at}/watts"),
        "percent": places.figure(f"{at}/c0_percent", 1),
    }


def _statement(places: Places, at: str, statement: Statement) -> TableRow:
    cells: dict[str, Cell] = {
        **_shared(places, at),
        "percent": places.figure(f"{at}/c0_percent", 1, ends=(f"{at}/low_percent", f"{at}/high_percent")),
        "range": Words(_range(statement)),
        "text": Words(statement.text),
        "calls": places.figure(f"{at}/calls_hz", 1),
        "count": places.figure(f"{at}/calls_count", 0),
        "c0": places.figure(f"{at}/c0_ms_per_call"),
        "mj": places.figure(f"{at}/joules_per_call", scale=1e3),
        "wakeups": places.figure(f"{at}/wakeups_per_call", 2),
        "p50": places.figure(f"{at}/latency_ms/p50"),
        "p95": places.figure(f"{at}/latency_ms/p95"),
        "faults": places.figure(f"{at}/page_faults_count", 0),
        "examined": places.figure(f"{at}/rows_examined_per_call"),
        "sent": places.figure(f"{at}/rows_sent_per_call"),
        "schema": Words(statement.schema_name or ""),
    }
    return TableRow(cells, key="statement", look="statement")


def _range(statement: Statement) -> str:
    if statement.low_percent is None or statement.high_percent is None:
        return ""
    return f"{text.number(statement.low_percent, 1)}–{text.number(statement.high_percent, 1)}"


def _background(places: Places, at: str, background: Background) -> TableRow:
    name = background.thread.removeprefix("thread/")
    many = f" ({background.threads_count} threads)" if background.threads_count > 1 else ""
    return TableRow(
        {**_shared(places, at), "text": Words(f"background: {name}{many}")}, key="background", look="background"
    )


def plan_text(plan: Sequence[QueryPlanStep]) -> str:
    """`city ALL, 20,395 rows`, a step after the other."""
    return "; ".join(
        (f"{step.table} {step.access or '?'}" if step.table else "no table")
        + (f" on {step.key}" if step.key else "")
        + (f", {step.rows_count:,} rows" if step.rows_count is not None else "")
        + (f" ({step.extra})" if step.extra else "")
        for step in plan
    )


def lines(record: Queries, width: int = text.DEFAULT_WIDTH, *, top: int = _SHOWN) -> list[str]:
    """The whole report."""
    printed = [*text.wrap(headline(record), width), *text.wrap(context(record), width), ""]
    printed += _table(record, width, top)
    printed += ["", *text.wrap(balance(record), width), *text.wrap(_cost(record), width)]
    printed += notes.lines(record, width)
    if record.interrupted:
        printed.append("Interrupted: this is what was measured until then.")
    return printed


DEAR_PERCENT = 3.0  # of the server's CPU time: from there on the cheaper way is offered
_KEYS = ("joules", "percent", "calls", "c0", "wakeups", "p95")
# Samples know neither wake-ups nor latencies, but intervals.
_SAMPLED_KEYS = ("joules", "percent", "range", "calls", "c0")


def _table(record: Queries, width: int, top: int) -> Iterator[str]:
    shown = queries_table(record, Places(record)).of("terminal")
    known = _KEYS if record.method == "probes" else _SAMPLED_KEYS
    keys = [key for key in known if key != "joules" or record.joules is not None]
    heads = {column.key: column.short or column.heading for column in shown.columns}
    count = len(record.statements)
    rows = [*shown.rows[:count][:top], *_folded(record, shown.rows[count:])]
    cells = [[heads[key] for key in keys], *([row.words(key).text for key in keys] for row in rows)]
    sizes = [max(len(line[at]) for line in cells) for at in range(len(keys))]
    names = ["statement", *(row.words("text").text for row in rows)]
    for number, (line, name) in enumerate(zip(cells, names, strict=True)):
        head = "  ".join(cell.rjust(size) for cell, size in zip(line, sizes, strict=True))
        yield text.cut(f"{head}  {name}", width)
        if number and number <= min(count, top) and (plan := record.statements[number - 1].plan):
            yield from text.wrap(f"plan: {plan_text(plan)}", width, " " * (len(head) + 2))
    if count > top:
        left = record.statements[top:]
        percent = sum(row.c0_percent or 0.0 for row in left)
        yield f"{count - top:,} more statements with {text.number(percent, 1)} % (--top N, or --json)"


def _folded(record: Queries, rows: Sequence[TableRow]) -> list[TableRow]:
    """Background threads as one line: by themselves they are many and small."""
    if not record.background:
        return list(rows)
    names = [background.thread.rpartition("/")[2] for background in record.background]
    more = f", {len(names) - 2} more" if len(names) > 2 else ""
    every: Sequence[Share] = record.background
    joules = (
        sum(background.joules for background in every if background.joules is not None)
        if record.joules is not None
        else None
    )
    cells: dict[str, Cell] = {
        "text": Words(f"background: {', '.join(names[:2])}{more}"),
        "joules": Figure(joules, "", None),
        "percent": Figure(sum(background.c0_percent or 0.0 for background in every), "", 1),
    }
    return [TableRow(cells), *rows[len(record.background) :]]


def _whole(record: Queries) -> str:
    return "process" if record.server.family == "mysql" else "server's processes"


def _cost(record: Queries) -> str:
    cost = record.tracing
    if cost.probes_ms is None:
        return "What tracing cost cannot be told on this kernel."
    each = "" if cost.per_call_us is None else f", {text.number(cost.per_call_us, 1)} µs a statement"
    share = 100.0 * cost.probes_ms / 1e3 / record.server_c0_s if record.server_c0_s else None
    server = "" if share is None else f" and {text.number(share, 2)} % of the server's CPU time"
    dear = record.method == "probes" and share is not None and share > DEAR_PERCENT
    return (
        f"Tracing cost {text.number(cost.probes_ms, 0)} ms of CPU time, {text.number(cost.percent, 2)} % of this host"
        f"{server}{each}; it is within the figures. "
        + "Where that is too much: --method samples costs a fraction of it, whatever the statements; its shares have "
        "intervals. " * dear + f"Reading it cost powerprof {text.number(record.tool.cpu_percent, 2)} % and "
        f"{text.number(record.tool.wakeups_hz, 1)} wake-ups/s; {record.lost_count:,} updates lost."
    )


def csv_lines(record: Queries) -> Iterator[Sequence[str | float | int | None]]:
    """A line a statement, a group of background threads, the connections, and what is unexplained."""
    yield [
        *("part", "text", "schema", "calls_count", "calls_hz", "c0_s", "c0_percent", "c0_ms_per_call", "wakeups_count"),
        *("page_faults_count", "rows_examined_per_call", "rows_sent_per_call", "latency_p50_ms", "latency_p95_ms"),
        *("joules", "low_joules", "high_joules", "watts", "kind"),
    ]
    for statement in record.statements:
        latency = (statement.latency_ms.p50, statement.latency_ms.p95) if statement.latency_ms else (None, None)
        yield [
            *(
                "statement",
                statement.text,
                statement.schema_name,
                statement.calls_count,
                statement.calls_hz,
                statement.c0_s,
                statement.c0_percent,
            ),
            *(
                statement.c0_ms_per_call,
                statement.wakeups_count,
                statement.page_faults_count,
                statement.rows_examined_per_call,
            ),
            *(statement.rows_sent_per_call, *latency, *_energy(statement)),
        ]
    for row in record.background:
        yield ["background", row.thread, *[None] * 3, row.c0_s, row.c0_percent, None, row.wakeups_count, *[None] * 5]
    rest = record.connections
    yield ["connections", "", *[None] * 3, rest.c0_s, rest.c0_percent, *[None] * 7, *_energy(rest)]
    yield ["unexplained", "", *[None] * 3, record.residual_c0_s, _percent(record)]


def _energy(share: Share) -> tuple[str | float | None, ...]:
    return share.joules, share.low_joules, share.high_joules, share.watts, share.kind


def markdown(record: Queries, said: str) -> list[str]:
    """The statements that take most, and that all is accounted for."""
    from powerprof.report.forms.markdown import plain
    from powerprof.report.forms.markdown import table as drawn

    shown = queries_table(record, Places(record))
    keys = ("text", *(key for key in _KEYS if key != "joules" or record.joules is not None))
    rows = [*shown.rows[: min(len(record.statements), 25)], *shown.rows[len(record.statements) :]]
    said_notes = [f"- {plain(note)}" for note in notes.all_of(record)]
    table = Table(shown.columns, rows)
    return ["", said, *drawn(table, keys), "", plain(balance(record)), "", plain(_cost(record)), "", *said_notes]
