# SPDX-License-Identifier: Apache-2.0
"""Rules on the statements of clients: monitors and workers that poll too often, and scans of whole tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import msgspec

from powerprof.diagnosis.consumers import (
    compute_connects_hz,
    find_newcomer,
    is_client_name,
    list_connections,
    list_stops,
)
from powerprof.diagnosis.evidence import SQL_FAMILIES, Client, Evidence, Finding, StatementCpu, ThreadWakeups
from powerprof.diagnosis.rules_consumers import describe_work
from powerprof.diagnosis.rules_replication import compute_source_churn_hz
from powerprof.diagnosis.server_queries import INTERNAL_USERS, format_account
from powerprof.diagnosis.statement_window import INSPECTS, SELECTS, describe_share, describe_use, is_costly, select_uses
from powerprof.diagnosis.thread_pace import POLLING_HZ
from powerprof.diagnosis.wording import format_event_rate, format_rate, next_command, select_stack, shorten_statement
from powerprof.model.text import number, period, plural

# Counters of statements that only inspect the server, with the usual names of the statements. Drivers send other SHOW
# statements with each of their statements (warnings, fields, ...). Those are part of the work.
POLLING = {
    "Com_show_status": "SHOW STATUS",
    "Com_show_variables": "SHOW VARIABLES",
    "Com_show_processlist": "SHOW PROCESSLIST",
    "Com_show_engine_status": "SHOW ENGINE STATUS",
    "Com_show_slave_status": "SHOW SLAVE STATUS",
    "Com_show_replica_status": "SHOW REPLICA STATUS",
    "Com_show_slave_hosts": "SHOW SLAVE HOSTS",
    "Com_show_master_status": "SHOW MASTER STATUS",
    "Com_show_binlog_status": "SHOW MASTER STATUS",
    "Com_show_binlogs": "SHOW BINARY LOGS",
    "Com_show_open_tables": "SHOW OPEN TABLES",
    "Com_show_table_status": "SHOW TABLE STATUS",
    "Com_show_databases": "SHOW DATABASES",
    "Com_admin_commands": "pings",
}
# An exporter scrapes once in 5 to 60 s with some statements each. Below this a finding would only describe it.
_NOTED_HZ = 0.5
# A rare statement is a problem from this CPU use on, in percent of one CPU: the window of statements may contain its
# only execution.
_RARE_PERCENT = 1.0
# A statement is a problem by its cost: its CPU time (`is_costly`), or its wake-ups, as for threads with timers.
_WOKEN_HZ = POLLING_HZ
# The rows that a server reads per second without an index, if its CPU time is unknown.
_ROWS_HZ = 10_000.0
# A connection is the cause if the server counted at least this share of the statements on it.
_MIN_SHARE = 0.5
# A client without other statements is woken once for each of them, within this share.
_TOLERANCE = 0.25
# Statements that may look for work, and those that lock what they find.
_LOOKS = re.compile(r"\W*(?:SELECT|WITH|UPDATE|DELETE|CALL)\b", re.I)
_QUEUE = re.compile(r"\bSKIP\s+LOCKED\b|\bLIMIT\b.*\bFOR\s+UPDATE\b|\bFOR\s+UPDATE\b.*\bLIMIT\b", re.I | re.S)
_FEW_ROWS, _REGULAR_SHARE = 0.1, 0.8
_BUSY_HZ = 1.0


def _select_sampled(evidence: Evidence, *commands: str) -> dict[int, Client]:
    """Return the clients of the samples that run one of these commands, by connection, without internal users."""
    return {
        client.id: client
        for sample in evidence.samples
        for client in sample
        if client.command in commands and client.user not in INTERNAL_USERS
    }


def _select_rows(evidence: Evidence, tid: int | None) -> list[ThreadWakeups]:
    return [row for row in evidence.wakeups if tid is not None and row.tid == tid]


def _sum_wakings_hz(rows: Sequence[ThreadWakeups]) -> float:
    return sum(row.rate_hz if row.wakings_hz is None else row.wakings_hz for row in rows)


def _format_caused(rows: Sequence[ThreadWakeups]) -> str:
    """Return the measured wake-ups of a client as a sentence; empty if its thread ended no idle period."""
    exits_hz = sum(row.rate_hz for row in rows)
    return f" It caused {format_event_rate(exits_hz, 'wake-ups')}." if exits_hz > 0 else ""


def _cap_rare(evidence: Evidence, percent: float) -> float:
    """Return the CPU use of a rare statement: at most that of the server in the longer window."""
    return percent if evidence.cpu_percent is None else min(percent, evidence.cpu_percent)


def _is_problem(percent: float | None, woken_hz: float | None, evidence: Evidence) -> bool:
    """Return whether a client's statements cost too much: by their CPU use in percent of one CPU, or by wake-ups."""
    return is_costly(percent, evidence) or (woken_hz or 0.0) >= _WOKEN_HZ


def _compute_woken_hz(evidence: Evidence, culprit: PollingClient | None, rate_hz: float) -> float:
    """Return the wake-ups per second by statements of this rate: each one wakes its thread, on any server.

    If another powerprof looks at the server at the same time, statements without a known client may be its own.
    """
    return 0.0 if culprit is None and evidence.other_instances_count else rate_hz


def _find_percent(evidence: Evidence, culprit: PollingClient | None, uses: Sequence[StatementCpu]) -> float | None:
    """Return the CPU use of statements, else of the thread of their client; None if it is unknown."""
    if uses:
        return sum(use.percent for use in uses)
    tid = None if culprit is None else _find_tid(evidence, culprit.client)
    return next((thread.percent for thread in evidence.threads_cpu if tid is not None and thread.tid == tid), None)


def find_monitoring(evidence: Evidence) -> list[Finding]:
    """Find a client that reads the state of the server: a fault if it is expensive, otherwise a note."""
    # A replica that reconnects reads variables and registers itself. MySQL 5.5 counts COM_REGISTER_SLAVE as an admin
    # command. Another rule reports these statements.
    churn_hz = compute_source_churn_hz(evidence)
    rates: Counter[str] = Counter()
    for name, label in POLLING.items():
        rate_hz = evidence.rate_hz(name)
        if name in ("Com_show_variables", "Com_admin_commands"):
            rate_hz = max(0.0, rate_hz - churn_hz)
        rates[label] += round(rate_hz * 1000)
    statements = [(label, count / 1000) for label, count in rates.most_common(4) if count >= 100]
    uses = select_uses(evidence, INSPECTS)
    total_hz = max(sum(rates.values()) / 1000, sum(use.calls_hz or 0.0 for use in uses))
    first = (shorten_statement(uses[0].text), uses[0].calls_hz) if uses else statements[0] if statements else None
    if first is None or (
        total_hz < _NOTED_HZ and _cap_rare(evidence, sum(use.percent for use in uses)) < _RARE_PERCENT
    ):
        return []
    culprit = find_polling_client(evidence, statements) if statements else None
    # Equal rates show the cost of a client, but are not evidence enough to end its connection.
    client = culprit or _match_by_rate(evidence, total_hz)
    if client is None and not uses and evidence.other_instances_count:
        return []  # They are probably the statements of the other powerprof commands.
    percent = _find_percent(evidence, client, uses)
    woken_hz = _compute_woken_hz(evidence, culprit, total_hz)
    pace = "" if first[1] is None else f" {format_rate(first[1])}"
    lines = [f"{label} {format_rate(rate_hz)} by the server's own count" for label, rate_hz in statements]
    lines += [describe_use(use, evidence) for use in uses[:3]]
    remedy = ["Poll every 10 s or less often (scrape interval, refresh, health check interval)"]
    accounts = {use.account for use in uses[:1] if use.account is not None}
    account = None
    if culprit is not None:
        account, connection_id = format_account(culprit.client.user, culprit.client.host), culprit.client.id
        lines.append(f"connection {connection_id}, {account}: {culprit.reason}")
        remedy.append(f"to stop it now: KILL {connection_id}, because {culprit.reason}")
    elif len(accounts) == 1:
        account = accounts.pop()
        remedy += list_stops(evidence, account, percent or 0.0)
    else:
        lines.append("the connection is unknown: no connection matches by statement and rate")
        remedy.append(
            f"to find the client: {next_command(evidence, 'queries')}"
            if evidence.family not in SQL_FAMILIES
            else "to find the client: SHOW FULL PROCESSLIST, or performance_schema=ON in my.cnf"
        )
    if any("information_schema" in use.text.lower() for use in uses):
        remedy.append("information_schema opens or lists every table: limit TABLE_SCHEMA, or turn this collector off")
    rows = [] if culprit is None else _select_rows(evidence, culprit.client.tid)
    used = f" It uses {describe_share(percent, evidence)}." if percent else ""
    return [
        Finding(
            rule="monitoring_client",
            severity="fault" if _is_problem(percent, woken_hz, evidence) else "note",
            text=f"{account or 'A client'} sends {first[0]}{pace}.{used}{_format_caused(rows)}",
            evidence=lines,
            remedy=remedy,
            rate_hz=total_hz,
            percent=percent if uses else None,
            account=account,
            stack=select_stack(rows),
        )
    ]


class PollingClient(msgspec.Struct, frozen=True):
    """The client that polls, and the evidence for it in words."""

    client: Client
    reason: str


def find_polling_client(evidence: Evidence, statements: Sequence[tuple[str, float]]) -> PollingClient | None:
    """Return the client that sends most of these statements (label, times per second); None without evidence.

    The count of the server decides, if there is one. Otherwise the client is the only connection. Otherwise it is the
    one client that was seen with such a statement and is woken at their rate. A high load alone is not evidence: the
    finding proposes to end the connection.
    """
    clients = _select_sampled(evidence, "Query", "Sleep")
    labels = [label for label, _ in statements]
    counts = {
        connection_id: sum(count for name, count in sent.items() if POLLING.get(name) in labels)
        for connection_id, sent in evidence.statements_by_connection.items()
        if connection_id in clients
    }
    total_hz = sum(rate_hz for _, rate_hz in statements)
    first = max(counts.items(), key=lambda item: item[1], default=None)
    if first is not None and evidence.window_s > 0:
        rate_hz = first[1] / evidence.window_s
        if rate_hz >= _MIN_SHARE * total_hz:
            return PollingClient(clients[first[0]], f"the server counted {format_rate(rate_hz)} on it")
        return None
    before = {
        client.id
        for client in evidence.clients_before
        if client.command in ("Query", "Sleep") and client.user not in INTERNAL_USERS
    }
    if len(clients) == 1 and before == set(clients) and not evidence.count_increase("Connections"):
        return PollingClient(next(iter(clients.values())), "it is the only connection")
    senders = dict.fromkeys(
        client.id
        for sample in evidence.samples
        for client in sample
        if client.id in clients and any(client.statement.lstrip().upper().startswith(label.upper()) for label in labels)
    )
    matches = [
        (clients[connection_id], woken_hz)
        for connection_id in senders
        if abs((woken_hz := _sum_wakings_hz(_select_rows(evidence, clients[connection_id].tid))) - total_hz)
        <= max(_TOLERANCE * total_hz, 1.0)
    ]
    if len(matches) != 1:
        return None
    client, woken_hz = matches[0]
    return PollingClient(client, f"it was seen with this statement, and its thread is woken {format_rate(woken_hz)}")


def find_queue_pollers(evidence: Evidence) -> list[Finding]:
    """Find a statement that is sent again and again to look for work: most calls, and a sign of polling.

    The signs: it locks rows of a queue, it finds no rows, or its clients wake at a regular pace.
    """
    window = evidence.statement_window
    uses = [use for use in select_uses(evidence, _LOOKS) if not INSPECTS.match(use.text) and use.calls_hz]
    if window is None or not uses:
        return []
    most = max(uses, key=lambda use: use.calls_hz or 0.0)
    rate_hz = most.calls_hz or 0.0
    is_most = rate_hz >= _MIN_SHARE * sum(use.calls_hz or 0.0 for use in uses)
    is_by_connection = compute_connects_hz(evidence) >= _MIN_SHARE * rate_hz
    signs = _list_polling_signs(evidence, most)
    if rate_hz < _WOKEN_HZ or not is_most or is_by_connection or not signs:
        return []
    who = most.account or find_newcomer(evidence) or "A client"
    connections = list_connections(evidence, most.account)
    on = f" on {plural(len(connections), 'connection')}" if connections else ""
    listen = "" if evidence.family in SQL_FAMILIES else ", or wait for a NOTIFY (LISTEN) of the writer"
    return [
        Finding(
            rule="queue_poller",
            severity="fault",
            text=f"{who} polls {format_rate(rate_hz)}{on}: {shorten_statement(most.text)}. "
            f"It uses {describe_share(most.percent, evidence)}.",
            evidence=[*signs, describe_use(most, evidence)],
            remedy=[
                f"A longer pause between two polls, fewer workers{listen}",
                f"all statements: {next_command(evidence, 'queries')}",
            ],
            rate_hz=rate_hz,
            percent=most.percent,
            account=most.account,
        )
    ]


def _list_polling_signs(evidence: Evidence, use: StatementCpu) -> list[str]:
    """Return the signs that a statement looks for work, one line each."""
    signs = []
    if _QUEUE.search(use.text):
        signs.append("it locks rows of a queue (SKIP LOCKED, or FOR UPDATE with LIMIT)")
    selects = evidence.count_increase("Com_select")
    changes = evidence.count_increase("Com_insert", "Com_update", "Com_delete", "Com_replace")
    found = _compute_rows_found(evidence, selects) if SELECTS.match(use.text) else None
    if found is not None and found <= _FEW_ROWS and changes <= _MAX_CHANGES * selects:
        signs.append(f"it finds {number(found, 2)} rows on average")
    rows = [row for row in evidence.wakeups if is_client_name(row.name or "")]
    regular_hz = sum(row.woken_hz for row in rows if row.period_ms is not None)
    if rows and regular_hz >= _REGULAR_SHARE * sum(row.woken_hz for row in rows) and regular_hz >= _WOKEN_HZ:
        first = max(rows, key=lambda row: row.woken_hz)
        signs.append(f"its clients send it at a regular pace ({period(first.period_ms)} on one connection)")
    return signs


def describe_client_work(evidence: Evidence) -> list[Finding]:
    """Return a note for a busy server, whose clients cause most of its wake-ups."""
    rate_hz, uses = evidence.rate_hz("Questions"), select_uses(evidence)
    if evidence.other_instances_count and evidence.statement_window is not None:
        # The counter includes their statements.
        rate_hz = sum(use.calls_hz or 0.0 for use in uses)
    if rate_hz < _BUSY_HZ:
        return []
    rows = [
        row for row in evidence.wakeups if "sql/one_connection" in (row.name or "") and "Binlog" not in (row.name or "")
    ]
    exits_hz = sum(row.rate_hz for row in rows)
    return [
        Finding(
            rule="client_work",
            severity="note",
            text=f"Clients send statements {format_rate(rate_hz)}.",
            evidence=[
                f"Questions rises {format_rate(evidence.rate_hz('Questions'))}",
                *(describe_use(use, evidence) for use in uses[:3]),
            ]
            + ([f"connection threads end {format_event_rate(exits_hz, 'idle periods')}"] if exits_hz else []),
            remedy=[f"all statements: {next_command(evidence, 'queries')}"],
            rate_hz=rate_hz,
            stack=select_stack(rows),
        )
    ]


_MIN_SCANS = 5
_MAX_ROWS_FOUND = 1.0
# Statements that change rows for each scan: a worker that finds work changes its row.
_MAX_CHANGES = 0.2
# The share of a statement's CPU time in the function that returns rows of a scan. The rest is the condition on the row.
_SCAN_PERCENT = 25.0


def find_table_pollers(evidence: Evidence) -> list[Finding]:
    """Find SELECTs that read whole tables, by the counters of MariaDB and MySQL.

    A fault uses much CPU time, or it is frequent and finds hardly any row.
    """
    selects = evidence.count_increase("Com_select")
    scans = min(evidence.count_increase("Select_scan"), selects)  # SHOW counts as a scan as well.
    scans_hz = scans / evidence.window_s if evidence.window_s > 0 else 0.0
    if not scans or scans < _MIN_SHARE * selects:
        return []
    uses = [use for use in select_uses(evidence, SELECTS) if not INSPECTS.match(use.text)][:1]
    inspections_hz = sum(use.calls_hz or 0.0 for use in select_uses(evidence, INSPECTS))
    # The counters include the statements of other powerprof commands. The window does not.
    scans_hz = next((use.calls_hz for use in uses if use.calls_hz), scans_hz)
    poller = _find_scanning_client(evidence, scans_hz)
    statement = "" if poller is None or uses else _find_statement(evidence, poller.client)
    if INSPECTS.match(statement) or (inspections_hz >= _MIN_SHARE * scans_hz and not uses):
        return []  # No index helps a SELECT from information_schema.
    percent = _find_percent(evidence, poller, uses)
    changes = evidence.count_increase("Com_insert", "Com_update", "Com_delete", "Com_replace")
    rows_found = _compute_rows_found(evidence, selects)
    is_frequent = scans >= _MIN_SCANS and scans_hz >= _NOTED_HZ
    finds_nothing = changes <= _MAX_CHANGES * scans and rows_found is not None and rows_found <= _MAX_ROWS_FOUND
    rows_hz = evidence.rate_hz("Handler_read_rnd_next")
    is_unknown_load = percent is None and rows_hz >= _ROWS_HZ
    is_wasteful = is_unknown_load or _is_problem(percent, _compute_woken_hz(evidence, poller, scans_hz), evidence)
    is_expensive = is_costly(percent, evidence) and (
        is_frequent or _cap_rare(evidence, percent or 0.0) >= _RARE_PERCENT
    )
    if not is_expensive and not (is_frequent and finds_nothing and is_wasteful):
        return []
    rows = [] if poller is None else _select_rows(evidence, _find_tid(evidence, poller.client))
    period_ms = next((row.period_ms for row in rows if row.period_ms), None)
    account = next((use.account for use in uses if use.account), None)
    account = account if poller is None else format_account(poller.client.user, poller.client.host)
    pace = f"{period(period_ms)} ({format_rate(scans_hz)})" if period_ms else format_rate(scans_hz)
    rows_read = rows_hz / scans_hz
    lines = [
        f"a SELECT without an index {format_rate(scans_hz)} (Select_scan), {number(rows_read, 0)} rows read by each",
        f"{changes} statements that change rows in the window"
        + (f", {number(rows_found, 2)} rows found by each SELECT" if rows_found is not None else ""),
        *(describe_use(use, evidence) for use in uses),
    ]
    if poller is not None:
        lines.append(f"connection {poller.client.id}: {poller.reason}")
    if statement:
        lines.append(f"its statement: {statement[:160]}")
    used = f" It uses {describe_share(percent, evidence)}." if percent else ""
    found = " and finds hardly any row" if finds_nothing else ""
    by = f" ({shorten_statement(uses[0].text)})" if uses else ""
    works, remedies = describe_work(uses[0], evidence) if uses else ([], [])
    works_text = "".join(f" {sentence}" for sentence in works)
    return [
        Finding(
            rule="table_poller",
            severity="fault",
            text=f"{account or 'A client'} scans a whole table {pace}{found}{by}.{used}{works_text}"
            f"{_format_caused(rows)}",
            evidence=lines,
            remedy=[
                "Index the WHERE columns to make each scan cheap, or send the statement less often",
                *remedies,
                *list_stops(evidence, account, percent or 0.0),
                *(["or use a queue that blocks until there is work"] if finds_nothing else []),
                f"all statements: {next_command(evidence, 'queries')}",
            ],
            rate_hz=scans_hz,
            percent=percent if uses else None,
            account=account,
            stack=select_stack(rows),
        )
    ]


def find_sequential_scans(evidence: Evidence) -> list[Finding]:
    """Find costly statements of PostgreSQL that spend their CPU time in a sequential scan of a table."""
    window = evidence.statement_window
    findings = []
    for use in [] if window is None else window.statements:
        is_scan = use.scan_percent is not None and use.scan_percent >= _SCAN_PERCENT
        is_cheap = (use.calls_hz or 0.0) < _NOTED_HZ and _cap_rare(evidence, use.percent) < _RARE_PERCENT
        if not is_scan or is_cheap or INSPECTS.match(use.text) or not is_costly(use.percent, evidence):
            continue
        rate = "" if use.calls_hz is None else f" {format_rate(use.calls_hz)}"
        findings.append(
            Finding(
                rule="table_poller",
                severity="fault",
                text=f"{use.account or 'A client'} scans a whole table{rate} ({shorten_statement(use.text)}). "
                f"It uses {describe_share(use.percent, evidence)}.",
                evidence=[
                    f"its statement: {use.text[:160]}",
                    f"{number(use.scan_percent, 0)} % of its CPU time is in a sequential scan, by its stacks",
                ],
                remedy=[
                    "Index the WHERE columns to make each scan cheap, or send the statement less often",
                    *list_stops(evidence, use.account, use.percent),
                    f"all statements: {next_command(evidence, 'queries')}",
                ],
                rate_hz=use.calls_hz,
                percent=use.percent,
                account=use.account,
            )
        )
    return findings


def _compute_rows_found(evidence: Evidence, selects: int) -> float | None:
    """Return the mean number of rows of a SELECT; None without a count (MySQL), or if SHOW statements distort it."""
    if "Rows_sent" not in evidence.status_after or selects <= 0:
        return None
    shows = evidence.count_increase(*(name for name in evidence.status_after if name.startswith("Com_show_")))
    return None if shows else evidence.count_increase("Rows_sent") / selects


def _find_tid(evidence: Evidence, client: Client) -> int | None:
    return client.tid if client.tid is not None else evidence.tids.get(client.id)


def _find_scanning_client(evidence: Evidence, scans_hz: float) -> PollingClient | None:
    """Return the client that sends the scans, by the count of the server or by the wake-ups of its thread."""
    clients = _select_sampled(evidence, "Query", "Sleep", "Execute")
    counts = {
        connection_id: sent.get("Com_select", 0)
        for connection_id, sent in evidence.statements_by_connection.items()
        if connection_id in clients
    }
    first = max(counts.items(), key=lambda item: item[1], default=None)
    if first is not None and evidence.window_s > 0 and first[1] / evidence.window_s >= _MIN_SHARE * scans_hz:
        rate = format_rate(first[1] / evidence.window_s)
        return PollingClient(clients[first[0]], f"the server counted {rate} of them on it")
    if len(clients) == 1 and not evidence.count_increase("Connections"):
        return PollingClient(next(iter(clients.values())), "it is the only connection")
    return _match_by_rate(evidence, scans_hz)


def _match_by_rate(evidence: Evidence, rate_hz: float) -> PollingClient | None:
    """Return the only client whose thread is woken at this rate; None without one, or with several."""
    woken = [
        (client, _sum_wakings_hz(_select_rows(evidence, _find_tid(evidence, client))))
        for client in _select_sampled(evidence, "Query", "Sleep", "Execute").values()
    ]
    matches = [
        (client, woken_hz)
        for client, woken_hz in woken
        if abs(woken_hz - rate_hz) <= max(_TOLERANCE * rate_hz, 1.0) and woken_hz > 0
    ]
    if len(matches) != 1:
        return None
    client, woken_hz = matches[0]
    return PollingClient(client, f"its thread is woken {format_rate(woken_hz)}, at the same rate")


def _find_statement(evidence: Evidence, client: Client) -> str:
    texts = Counter(
        entry.statement for entry in evidence.list_sampled_clients() if entry.id == client.id and entry.statement
    )
    return texts.most_common(1)[0][0] if texts else evidence.last_statements.get(client.id, "")
