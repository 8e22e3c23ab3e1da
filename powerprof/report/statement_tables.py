# SPDX-License-Identifier: Apache-2.0
"""Tables of a server's statements: columns, the names for `--columns`, and the reasons for unknown figures."""

from __future__ import annotations

from powerprof.model import text
from powerprof.queries.askers import UNKNOWN, Grouping, group_statements, name_asker
from powerprof.queries.records import Background, Queries, Statement
from powerprof.report import labels
from powerprof.report.table import ALL, Cell, Column, Figure, Form, Places, Table, TableRow, Words, figure_columns
from powerprof.system.errors import UnknownNameError
from powerprof.system.next_steps import command_line

_NOT_TERMINAL = ALL - {"terminal"}
# The forms of a column that is shown only on request.
ON_REQUEST: frozenset[Form] = frozenset()

# Waits of a call, in the order of the record, with their headings.
WAITS = {
    "run_queue": "run queue ms",
    "row_lock": "row lock ms",
    "lock": "lock ms",
    "latch": "latch ms",
    "disk": "disk ms",
    "sync": "sync ms",
    "client": "client ms",
    "sleep": "sleep ms",
    "other": "other ms",
}

# Counts of performance_schema other than rows: key → field of the record, heading, digits.
COUNTS: dict[str, tuple[str, str, int | None]] = {
    "affected": ("rows_affected_per_call", "rows affected/call", None),
    "tmp": ("tmp_tables_per_call", "tmp tables/call", 2),
    "tmp_disk": ("tmp_disk_tables_per_call", "tmp disk tables/call", 2),
    "scans": ("full_scans_per_call", "full scans/call", 2),
    "errors": ("errors_count", "errors", 0),
}
_WAIT_KEYS = tuple(f"wait_{name}" for name in WAITS)
_KEYS_OF: dict[str, tuple[str, ...]] = {
    "id": ("id",),
    "joules": ("joules",),
    "joules-per-call": ("mj",),
    "watts": ("watts",),
    "cpu": ("percent",),
    "range": ("range",),
    "rate": ("calls",),
    "calls": ("count",),
    "cpu-per-call": ("c0",),
    "wakeups": ("wakeups",),
    "faults": ("faults",),
    "p50": ("p50",),
    "p95": ("p95",),
    "p99": ("p99",),
    **{name.replace("_", "-"): (f"wait_{name}",) for name in WAITS},
    "rows-examined": ("examined",),
    "rows-sent": ("sent",),
    "rows-affected": ("affected",),
    "tmp-tables": ("tmp",),
    "tmp-disk-tables": ("tmp_disk",),
    "full-scans": ("scans",),
    "errors": ("errors",),
    "who": ("who",),
    "user": ("user",),
    "host": ("host",),
    "database": ("schema",),
    "schema": ("schema",),
    "rows": ("examined", "sent", "affected"),
    "latency": ("p50", "p95", "p99"),
    "waits": _WAIT_KEYS,
}
# The names for `--columns`.
COLUMNS = tuple(_KEYS_OF)


def columns_of(names: str) -> tuple[str, ...]:
    """Return the column keys that `--columns` names, without repetitions. Raises UsageError for an unknown name."""
    keys: dict[str, None] = {}
    for word in names.split(","):
        name = word.strip().replace("_", "-")
        if name not in _KEYS_OF:
            raise UnknownNameError(
                f"--columns: no column is called {name[:40]!r}", name, COLUMNS, f"some of {', '.join(COLUMNS)}"
            )
        keys |= dict.fromkeys(_KEYS_OF[name])
    return tuple(keys)


_PROBE_KEYS = frozenset(("p50", "p95", "p99", "wakeups", "faults", *_WAIT_KEYS))


def unknown(record: Queries, key: str) -> str | None:
    """Return the reason for a column without any figure; None if a statement has one."""
    rows = queries_table(record, Places(record)).rows[: len(record.statements)]
    # A statement without a default schema has an empty name, which is known.
    names = [statement.schema_name for statement in record.statements if key == "schema"]
    if (
        not rows
        or key == "id"
        or any(name is not None for name in names)
        or any(_has_value(row.cells[key]) for row in rows)
    ):
        return None
    if key in _PROBE_KEYS and record.method != "probes":
        return "samples do not record the start and end of a statement (--method probes does)"
    if key == "p99" or (key in _WAIT_KEYS and all(statement.waits_ms is None for statement in record.statements)):
        return "no statement began and ended within the window"
    if key == "wait_run_queue":
        return "this kernel does not count it (CONFIG_SCHED_INFO)"
    if key in ("wait_row_lock", "wait_lock"):
        return "this server does not report the reason of its waits; its locks are in latch"
    if key in ("joules", "mj", "watts"):
        return f"a share of the host's joules needs an idle floor ({command_line('energy --calibrate')})"
    if key == "range":
        return "all statements were counted, so there is no sampling error"
    if key in ("examined", *COUNTS) and record.server.family == "postgresql":
        return "PostgreSQL does not count it per statement"
    if key == "sent" and record.server.family == "postgresql":
        return "pg_stat_statements is not installed, or this user may not read it"
    if record.server.address is None:
        return "the server refuses this user (name an account with --defaults-file)"
    if key in ("examined", "sent", *COUNTS):
        return "performance_schema is off, or does not collect statements"
    return "the server does not report it"


def _has_value(cell: Cell) -> bool:
    return cell.value is not None if isinstance(cell, Figure) else isinstance(cell, Words) and bool(cell.text)


def queries_table(record: Queries, places: Places) -> Table:
    """Return one row per statement, then the background threads, the connections and the unexplained rest."""
    estimated = ", est." if record.kind == "estimated" else ""
    columns = [
        Column("text", "statement", left=True),
        Column("joules", f"J{estimated}"),
        Column("percent", "CPU %"),
        Column("range", "95 %", forms=frozenset(("terminal",))),
        Column("calls", "calls/s"),
        Column("count", "calls", forms=_NOT_TERMINAL),
        Column("c0", "ms CPU"),
        Column("mj", f"mJ/call{estimated}", forms=_NOT_TERMINAL),
        Column("watts", f"W{estimated}", forms=_NOT_TERMINAL),
        Column("wakeups", "wake-ups"),
        Column("p50", "p50 ms", forms=_NOT_TERMINAL),
        Column("p95", "p95 ms"),
        Column("p99", "p99 ms", forms=_NOT_TERMINAL),
        Column("faults", "page faults", forms=_NOT_TERMINAL),
        Column("examined", "rows examined/call", forms=_NOT_TERMINAL),
        Column("sent", "rows sent/call", forms=_NOT_TERMINAL),
        *(Column(key, heading, forms=ON_REQUEST) for key, (_, heading, _) in COUNTS.items()),
        Column("who", "account", left=True, forms=_NOT_TERMINAL),
        Column("user", "user", left=True, forms=ON_REQUEST),
        Column("host", "host", left=True, forms=ON_REQUEST),
        Column("schema", "schema", left=True, forms=_NOT_TERMINAL),
        Column("id", "id", left=True, forms=ON_REQUEST),
        *(Column(f"wait_{name}", heading, forms=ON_REQUEST) for name, heading in WAITS.items()),
    ]
    rows = [_statement_row(places, f"/statements/{at}", statement) for at, statement in enumerate(record.statements)]
    rows += [
        _background_row(places, f"/background/{at}", background) for at, background in enumerate(record.background)
    ]
    cells = {
        **_shared_cells(places, "/connections"),
        "text": Words("connections and parsing, outside statements", ours=True),
    }
    rows.append(TableRow(cells, key="connections", look="connections"))
    rest: dict[str, Cell] = {
        "text": Words("unexplained", ours=True),
        "percent": Figure(unexplained_percent(record), "", 1),
    }
    rows.append(TableRow(rest, key="unexplained", look="residual", forms=frozenset(("csv",))))
    return Table(columns, rows, "statements")


def unexplained_percent(record: Queries) -> float | None:
    """Return the unexplained share of the server's CPU time; None if the server used none."""
    return 100 * (record.residual_c0_s / record.server_c0_s) if record.server_c0_s > 0 else None


def _shared_cells(places: Places, at: str) -> dict[str, Cell]:
    return {
        "joules": places.figure(f"{at}/joules", ends=(f"{at}/low_joules", f"{at}/high_joules")),
        "watts": places.figure(f"{at}/watts"),
        "percent": places.figure(f"{at}/c0_percent", 1),
    }


def _statement_row(places: Places, at: str, statement: Statement) -> TableRow:
    cells: dict[str, Cell] = {
        **_shared_cells(places, at),
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
        "p99": places.figure(f"{at}/latency_ms/p99"),
        "faults": places.figure(f"{at}/page_faults_count", 0),
        "examined": places.figure(f"{at}/rows_examined_per_call"),
        "sent": places.figure(f"{at}/rows_sent_per_call"),
        **{key: places.figure(f"{at}/{field}", digits) for key, (field, _, digits) in COUNTS.items()},
        "who": Words(askers_text(statement, "account")),
        "user": Words(askers_text(statement, "user")),
        "host": Words(askers_text(statement, "host")),
        "schema": Words(statement.schema_name or ""),
        "id": Words(statement.id),
        **{f"wait_{name}": places.figure(f"{at}/waits_ms/{name}") for name in WAITS},
    }
    return TableRow(cells, key="statement", look="statement")


def askers_text(statement: Statement, by: Grouping) -> str:
    """Return the account with most CPU time, and the number of others."""
    names = list(dict.fromkeys(name_asker(asker, by) for asker in statement.askers if asker.user is not None))
    more = f" +{len(names) - 1}" if len(names) > 1 else ""
    return f"{names[0]}{more}" if names else ""


_MAX_NAME = 48


def groups_table(record: Queries, by: Grouping) -> Table:
    """Return one row per user, host, account or database, most CPU time first."""
    estimated = ", est." if record.kind == "estimated" else ""
    columns = [
        *(figure_columns(joules=f"J{estimated}") if record.joules is not None else []),
        *figure_columns(percent="CPU %", calls="calls/s", c0="ms CPU", count="statements"),
        Column("name", by, left=True),
        Column("text", "costliest statement", left=True),
    ]
    rows = []
    for group in group_statements(record, by):
        rate = group.calls / record.window_s if group.calls is not None and record.window_s > 0 else None
        each = 1e3 * group.c0_s / group.calls if group.calls else None
        share = 100 * (group.c0_s / record.server_c0_s) if record.server_c0_s > 0 else None
        cells: dict[str, Cell] = {
            "joules": Figure(group.joules, "", None),
            "percent": Figure(share, "", 1),
            "calls": Figure(rate, "", 1),
            "c0": Figure(each, "", None),
            "count": Figure(len(group.texts), "", 0),
            "name": Words(text.shorten(group.name, _MAX_NAME)),
            "text": Words(group.first),
        }
        rows.append(TableRow(cells, key=by, look="statement"))
    return Table(columns, rows, f"statements by {by}")


def unknown_askers(record: Queries, by: Grouping) -> str | None:
    """Return the reason for missing accounts; None if an account is known."""
    if not record.statements or any(group.name != UNKNOWN for group in group_statements(record, by)):
        return None
    if record.server.address is None and record.server.family == "mysql":
        return "the server refuses this user (name an account with --defaults-file)"
    return "the connections opened and closed within the window"


def _range(statement: Statement) -> str:
    if statement.low_percent is None or statement.high_percent is None:
        return ""
    _, low, high = labels.format_together((statement.low_percent, statement.low_percent, statement.high_percent))
    return f"{low}–{high}"


def _background_row(places: Places, at: str, background: Background) -> TableRow:
    name = background.thread.removeprefix("thread/")
    many = f" ({background.threads_count} threads)" if background.threads_count > 1 else ""
    return TableRow(
        {**_shared_cells(places, at), "text": Words(f"background: {name}{many}")}, key="background", look="background"
    )
