# SPDX-License-Identifier: Apache-2.0
"""Asking a server what a diagnosis needs: a few statements, all reading, each allowed to be refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from powerprof.database.clients import sql
from powerprof.database.clients.base import StatementError
from powerprof.database.clients.performance import parse_status, read_status_rows
from powerprof.diagnosis.evidence import (
    Client,
    DeniedAccount,
    Evidence,
    Finding,
    LoggedEvent,
    ReplicaHost,
    ReplicationChannel,
    ScheduledEvent,
    rate,
    seconds,
)
from powerprof.diagnosis.periodic import SETTINGS
from powerprof.statements.text import NO_TEXT, NormalText, normalise, normalise_logged_event
from powerprof.system.files import printable
from powerprof.system.tasks import outer_ids

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql


# Rules on who comes again and again: replicas that their source refuses or loses, and logins that fail.

# Of a fault that was mended the log still tells: this is how long it is believed.
_LONG_AGO_S = 120.0
_FEWEST = 2
_FAILED_LOGINS_HZ = 0.2
DUMPS = "statement/com/Binlog Dump"
"""What performance_schema counts of replicas that begin to read, among the counters of `asking.status`."""


_REFUSED = (
    "On the replica: STOP SLAVE; CHANGE MASTER TO MASTER_PASSWORD='…'; START SLAVE",
    "or, where that replica is to go: STOP SLAVE; RESET SLAVE ALL there",
)


def refused_replicas(evidence: Evidence) -> list[Finding]:
    """Source side: accounts of replicas that try to log in again and again."""
    log = evidence.log
    if log is None:
        return [_counted(evidence, one) for one in _counted_replicas(evidence)]
    # The counter's rate is theirs where nobody else was refused lately; else the log's.
    alone = len(denied_replicas(evidence)) == 1 and not _other_accounts(evidence)
    findings = []
    for account, count in denied_replicas(evidence).items():
        logged = count / max(log.span_s, evidence.window_s, 1.0)
        speed = (evidence.rate_hz("Aborted_connects") if alone else 0.0) or logged
        findings.append(
            Finding(
                rule="replica_refused",
                severity="fault",
                text=f"A replica tries to log in as {account} {rate(speed)} and is refused: it replicates nothing.",
                evidence=[
                    f"the error log: access was denied {count} times in {seconds(log.span_s)}, last "
                    f"{seconds(log.denied_last_s.get(account, 0.0))} ago",
                    f"{account.partition('@')[0]} is an account that may replicate (mysql.user)",
                ],
                remedy=[*_REFUSED],
                rate_hz=speed,
            )
        )
    logged_users = {account.partition("@")[0] for account in denied_replicas(evidence)}
    counted = [one for one in _counted_replicas(evidence) if one.account.partition("@")[0] not in logged_users]
    return findings + [_counted(evidence, one) for one in counted]


def _counted_replicas(evidence: Evidence) -> list[DeniedAccount]:
    """Accounts that may replicate and were refused lately, by the server's count."""
    users = {account.rpartition("@")[0] for account in evidence.replica_accounts}
    return [
        one
        for one in evidence.denied
        if one.account.rpartition("@")[0] in users and one.count >= _FEWEST and one.last_s < _LONG_AGO_S
    ]


def _counted(evidence: Evidence, one: DeniedAccount) -> Finding:
    window_hz = one.window_count / evidence.window_s if evidence.window_s > 0 else 0.0
    speed = window_hz or (one.count - 1) / max(one.span_s, 1.0)
    return Finding(
        rule="replica_refused",
        severity="fault",
        text=f"A replica tries to log in as {one.account} {rate(speed)} and is refused: it replicates nothing.",
        evidence=[
            f"performance_schema: access was denied {one.count} times in {seconds(max(one.span_s, 1.0))}, last "
            f"{seconds(one.last_s)} ago",
            f"{one.account.rpartition('@')[0]} is an account that may replicate (mysql.user)",
        ],
        remedy=list(_REFUSED),
        rate_hz=speed,
    )


def _other_accounts(evidence: Evidence) -> list[str]:
    """Accounts that were not let in lately and are no replica's."""
    log, replicas = evidence.log, denied_replicas(evidence)
    refused = {one.account for one in _counted_replicas(evidence)}
    counted = [one.account for one in evidence.denied if one.window_count and one.account not in refused]
    if log is None:
        return counted
    logged = [
        account
        for account in log.denied
        if account not in replicas and log.denied_last_s.get(account, _LONG_AGO_S) < _LONG_AGO_S
    ]
    return [*logged, *(account for account in counted if account not in logged and account not in replicas)]


def denied_replicas(evidence: Evidence) -> dict[str, int]:
    """How often which account that may replicate was not let in lately, by the error log."""
    log = evidence.log
    if log is None:
        return {}
    users = {account.rpartition("@")[0] for account in evidence.replica_accounts}
    return {
        account: count
        for account, count in log.denied.items()
        if account.partition("@")[0] in users
        and count >= _FEWEST
        and log.denied_last_s.get(account, _LONG_AGO_S) < _LONG_AGO_S
    }


def returning_replicas(evidence: Evidence) -> list[Finding]:
    """Source side, by performance_schema's count: replicas that begin to read the binary log again and again."""
    if evidence.moved(DUMPS) < _FEWEST:
        return []
    often = evidence.rate_hz(DUMPS)
    seen = sorted(
        {
            f"{client.user}@{client.host.rpartition(':')[0] or client.host}"
            for sample in [evidence.clients_before, *evidence.samples]
            for client in sample
            if client.command.startswith("Binlog Dump")
        }
    )
    return [
        Finding(
            rule="replica_returns",
            severity="fault",
            text=f"A replica begins to read this server's binary log {rate(often)}: it cannot stay connected, or is "
            "started again and again.",
            evidence=[
                f"replicas asked for the binary log {evidence.moved(DUMPS)} times (performance_schema)",
                *([f"seen: {', '.join(seen[:3])}"] if seen else []),
            ],
            remedy=[
                "On the replica: SHOW SLAVE STATUS (SHOW REPLICA STATUS) has its error, and so has its error log",
                "two replicas with one server id or uuid do that too: each needs its own",
            ],
            rate_hz=often,
        )
    ]


def failed_logins(evidence: Evidence) -> list[Finding]:
    """Logins that fail, without those that are known to be replicas'."""
    failed = evidence.rate_hz("Aborted_connects")
    if evidence.moved("Aborted_connects") < _FEWEST or failed < _FAILED_LOGINS_HZ:
        return []
    others = _other_accounts(evidence)
    if (denied_replicas(evidence) or _counted_replicas(evidence)) and not others:
        return []
    away = _absent(evidence)
    maybe = bool(away) and not others
    who = f"A client ({', '.join(others[:3])})" if others else "A client, perhaps a replica," if maybe else "A client"
    sentences = [f"Aborted_connects rises {rate(failed)}"]
    if maybe:
        sentences.append(f"{', '.join(away[:3])} may replicate, and no replica is connected as that")
    return [
        Finding(
            rule="client_reconnect_loop",
            severity="fault",
            text=f"{who} fails to log in {rate(failed)} and tries again.",
            evidence=sentences,
            remedy=[
                *(
                    []
                    if others
                    else [
                        "Set log_warnings=3 (MySQL: log_error_verbosity=3): the error log then names its host and user"
                    ]
                ),
                "give it the right account, or a pause between attempts",
            ],
            rate_hz=failed,
        )
    ]


def _absent(evidence: Evidence) -> list[str]:
    """Accounts that may replicate, and as which no replica is connected."""
    connected = {
        client.user
        for sample in [evidence.clients_before, *evidence.samples]
        for client in sample
        if client.command.startswith("Binlog Dump")
    }
    return [account for account in evidence.replica_accounts if account.rpartition("@")[0] not in connected]


T = TypeVar("T")
_TEXT = 200
_MOST_CLIENTS = 300
_MOST_CHANNELS = 1000
_MOST_LOGGED = 200
# The beginning of a statement is enough: whole ones may be gigabytes. Newer columns first (1054 is an unknown one).
_CLIENT_COLUMNS = ("TIME_MS, TID, QUERY_ID, ", "")
# Counters that a rule reads, and every statement that only looks: see rules.POLLING. Nothing else is asked for: six
# hundred counters and as many settings take a server, and us, longer than all other questions.
_COUNTERS = (
    *(
        f"Com_{name}"
        for name in (
            "admin_commands",
            "select",
            "insert",
            "update",
            "delete",
            "replace",
            "commit",
            "call_procedure",
            "set_option",
            "change_db",
            "register_slave",
            "binlog_dump",
            "start_slave",
            "slave_start",
            "replica_start",
            "start_all_slaves",
        )
    ),
    "Slave_connections",
    "Slaves_connected",
    "Slaves_running",
    "Connections",
    "Questions",
    "Select_scan",
    "Handler_read_rnd_next",
    "Rows_sent",
    "Access_denied_errors",
    "Queries",
    "Uptime",
    "Binlog_commits",
    "Binlog_bytes_written",
    "Executed_events",
    "Innodb_buffer_pool_pages_dirty",
    "Innodb_history_list_length",
)
_COUNTERS_LIKE = ("Com_show_%", "Aborted_%", "Threads_%", "Max_statement_time_%")
_VARIABLES = (
    "server_id",
    "port",
    "read_only",
    "log_bin",
    "log_slave_updates",
    "log_replica_updates",
    "binlog_format",
    "performance_schema",
    "max_statement_time",
    "thread_handling",
    "innodb_buffer_pool_dump_pct",
    "wsrep_on",
    "skip_name_resolve",
    "innodb_flush_log_at_timeout",
    "slave_net_timeout",
    "replica_net_timeout",
    *SETTINGS,
)


def quietly(ask: Callable[[], T], otherwise: T, what: str, notes: list[str]) -> T:
    """What `ask` gives; where the server refuses, `otherwise` and a note. A lost connection is raised."""
    try:
        return ask()
    except StatementError as error:
        if error.number >= 2000 or error.number == 0:
            raise
        notes.append(f"{what} could not be read: {error.message}")
        return otherwise


def status(connection: Sql) -> dict[str, int]:
    """The counters that rules read."""
    likes = "".join(f" OR Variable_name LIKE '{pattern}'" for pattern in _COUNTERS_LIKE)
    answer = sql.fetch_rows(
        connection, f"SHOW GLOBAL STATUS WHERE Variable_name IN ({_listed(_COUNTERS)}){likes}", columns=2
    )
    counted = {str(name): sql.parse_count(value) for name, value in answer}
    counted[DUMPS] = _dumps(connection)
    return {name: value for name, value in counted.items() if value is not None}


def variables(connection: Sql) -> dict[str, str]:
    """The settings that rules read."""
    return {
        str(name).lower(): str(value)[:_TEXT]
        for name, value in sql.fetch_rows(
            connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({_listed(_VARIABLES)})", columns=2
        )
    }


def _dumps(connection: Sql) -> int | None:
    """How often replicas started to read the binary log; None without performance_schema."""
    try:
        return sql.parse_count(
            sql.fetch_scalar(
                connection,
                "SELECT SUM(COUNT_STAR) FROM performance_schema.events_statements_summary_global_by_event_name "
                "WHERE EVENT_NAME LIKE 'statement/com/Binlog Dump%'",
            )
        )
    except StatementError as error:
        if error.number >= 2000 or error.number == 0:
            raise
        return None


_STATEMENTS = """SELECT t.PROCESSLIST_ID, e.EVENT_NAME, e.COUNT_STAR
FROM performance_schema.events_statements_summary_by_thread_by_event_name e
JOIN performance_schema.threads t ON t.THREAD_ID = e.THREAD_ID
WHERE e.COUNT_STAR > 0 AND t.PROCESSLIST_ID IS NOT NULL AND t.PROCESSLIST_ID <> CONNECTION_ID()
AND (e.EVENT_NAME LIKE 'statement/sql/show%'
OR e.EVENT_NAME IN ('statement/com/Ping', 'statement/sql/select')) LIMIT 20000"""


def statements_by_connection(connection: Sql) -> dict[int, dict[str, int]]:
    """How often each connection sent which looking statement so far, by the names of the status counters; empty
    where performance_schema is off or may not be read."""
    counts: dict[int, dict[str, int]] = {}
    try:
        rows = sql.fetch_rows(connection, _STATEMENTS, columns=3)
    except StatementError as error:
        if error.number >= 2000 or error.number == 0:
            raise
        return {}
    for number, event, value in rows:
        name = str(event).rpartition("/")[2]
        counter = "Com_admin_commands" if name == "Ping" else f"Com_{name}"
        connection_id, count = sql.parse_count(number), sql.parse_count(value)
        if connection_id is not None and count is not None:
            counts.setdefault(connection_id, {})[counter] = count
    return counts


def last_statements(connection: Sql) -> dict[int, NormalText]:
    """The beginning of what each connection asked last, without values; empty without performance_schema."""
    try:
        rows = sql.fetch_rows(
            connection,
            f"SELECT t.PROCESSLIST_ID, LEFT(e.SQL_TEXT, {_TEXT}) "  # noqa: S608 - ours
            "FROM performance_schema.events_statements_current e JOIN performance_schema.threads t "
            "ON t.THREAD_ID = e.THREAD_ID WHERE t.PROCESSLIST_ID IS NOT NULL AND e.SQL_TEXT IS NOT NULL LIMIT 1000",
            columns=2,
        )
    except StatementError as error:
        if error.number >= 2000 or error.number == 0:
            raise
        return {}
    texts = [(sql.parse_count(number), _statement(text)) for number, text in rows]
    return {number: text for number, text in texts if number is not None}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def channels(connection: Sql) -> list[ReplicationChannel]:
    """Every replication channel with the file that is being applied."""
    rows = read_status_rows(connection)[:_MOST_CHANNELS]
    return [ReplicationChannel(status=parse_status(row), relay_log_file=_relay_file(row)) for row in rows]


def _relay_file(row: dict[str, Any]) -> str | None:
    file = next((value for name, value in row.items() if name.lower() == "relay_log_file"), None)
    return str(file)[:_TEXT] if file else None


RawClient = tuple[Client, str]
"""A line of the process list without its statement, and the statement as the client sent it: for no record."""


def clients(connection: Sql) -> list[Client]:
    """The process list, without powerprof's own connection; MariaDB tells thread and query ids too."""
    return with_statements(raw_clients(connection))


def raw_clients(connection: Sql) -> list[RawClient]:
    """Read the process list as `clients`, in less time: `with_statements` does the rest."""
    own = sql.parse_count(sql.fetch_scalar(connection, "SELECT CONNECTION_ID()"))
    listed = [_client({name.lower(): value for name, value in row.items()}) for row in _process_list(connection)]
    return _of_interest([one for one in listed if one[0].id != own])


def with_statements(listed: Iterable[RawClient]) -> list[Client]:
    """Return the clients with their statements, without values."""
    return [msgspec.structs.replace(client, statement=_statement(text)) if text else client for client, text in listed]


def _process_list(connection: Sql) -> list[dict[str, Any]]:
    for more in _CLIENT_COLUMNS:
        try:
            return sql.fetch_records(
                connection,
                f"SELECT ID, USER, HOST, COMMAND, TIME, STATE, {more}LEFT(INFO, {_TEXT}) AS INFO "  # noqa: S608 - ours
                "FROM information_schema.processlist",
            )
        except StatementError as error:
            if error.number not in (1054, 1109, 1146, 1049):
                raise
    return sql.fetch_records(connection, "SHOW PROCESSLIST")


def _of_interest(listed: list[RawClient]) -> list[RawClient]:
    """Of thousands the replicas, the newest, and those that spoke last."""
    if len(listed) <= _MOST_CLIENTS:
        return listed
    newest = max(client.id for client, _ in listed)
    ranked = sorted(
        listed,
        key=lambda one: (
            not one[0].command.startswith("Binlog Dump"),
            one[0].id != newest,
            one[0].time_s if one[0].time_s is not None else 0.0,
        ),
    )
    return ranked[:_MOST_CLIENTS]


def _client(row: dict[str, Any]) -> RawClient:
    precise = sql.parse_number(row.get("time_ms"))
    client = Client(
        id=sql.parse_count(row.get("id")) or 0,
        user=_short(row.get("user")),
        host=_short(row.get("host")),
        command=_short(row.get("command")),
        time_s=sql.parse_number(row.get("time")) if precise is None else precise / 1e3,
        state=_short(row.get("state")),
        statement=NO_TEXT,
        tid=sql.parse_count(row.get("tid")),
        query_id=sql.parse_count(row.get("query_id")),
    )
    return client, _short(row.get("info"))


def _short(value: Any) -> str:
    return "" if value is None else str(value)[:_TEXT]


def _statement(value: Any) -> NormalText:
    """A statement that may be cut off, or may have failed."""
    return normalise(_short(value), is_whole=False)


def connection_threads(connection: Sql, pid: int | None) -> dict[int, int]:
    """The kernel's number of each connection's thread, by the connection's; empty without performance_schema."""
    try:
        rows = sql.fetch_rows(
            connection,
            "SELECT PROCESSLIST_ID, THREAD_OS_ID FROM performance_schema.threads WHERE PROCESSLIST_ID IS NOT NULL "
            "LIMIT 20000",
            columns=2,
        )
    except StatementError as error:
        if error.number >= 2000 or error.number == 0:
            raise
        return {}
    outer = outer_ids(pid)
    numbers = [(sql.parse_count(one), sql.parse_count(thread)) for one, thread in rows]
    return {one: outer.get(thread, thread) for one, thread in numbers if one is not None and thread}


def replica_accounts(connection: Sql) -> list[str]:
    """Accounts that may replicate and are no administrator's; empty where they may not be read."""
    try:
        rows = sql.fetch_rows(
            connection,
            # Unlike mysql.user, which may be a view, nobody can replace this table.
            "SELECT GRANTEE FROM information_schema.USER_PRIVILEGES WHERE PRIVILEGE_TYPE = 'REPLICATION SLAVE' "
            "AND GRANTEE NOT IN (SELECT GRANTEE FROM information_schema.USER_PRIVILEGES "
            "WHERE PRIVILEGE_TYPE = 'SUPER') LIMIT 200",
            columns=1,
        )
    except StatementError as error:
        if error.number >= 2000 or error.number == 0:
            raise
        return []
    return ["@".join(_short(part) for part in re.findall(r"'(.*?)'(?=@|$)", str(row[0]))) for row in rows]


def replicas(connection: Sql) -> list[ReplicaHost]:
    """The replicas that this server knows of."""
    rows = sql.run_first_known(partial(sql.fetch_records, connection), "SHOW SLAVE HOSTS", "SHOW REPLICAS") or []
    plain = [{name.lower(): value for name, value in row.items()} for row in rows]
    return [
        ReplicaHost(
            server_id=sql.parse_count(row.get("server_id")) or 0,
            host=_short(row.get("host")),
            port=sql.parse_count(row.get("port")) or 0,
        )
        for row in plain
    ]


_SECONDS = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86_400, "WEEK": 604_800}


def events(connection: Sql) -> list[ScheduledEvent]:
    """Recurring events with an interval in seconds to weeks."""
    rows = sql.fetch_rows(
        connection,
        "SELECT EVENT_SCHEMA, EVENT_NAME, INTERVAL_VALUE, INTERVAL_FIELD, STATUS, LAST_EXECUTED "
        "FROM information_schema.events WHERE EVENT_TYPE = 'RECURRING' LIMIT 1000",
        columns=6,
    )
    return [
        ScheduledEvent(
            name=printable(f"{schema}.{name}"[:_TEXT]),
            database=str(schema)[:_TEXT],
            event=str(name)[:_TEXT],
            interval_s=float(str(value)) * _SECONDS[str(field)],
            enabled=str(state) == "ENABLED",
            last_executed=None if last is None else str(last)[:_TEXT],
        )
        for schema, name, value, field, state, last in rows
        if str(field) in _SECONDS and re.fullmatch(r"[0-9]{1,9}", str(value))
    ]


def log_end(connection: Sql) -> tuple[str, int] | None:
    """File and position where the binary log ends; None where there is none."""
    ask = partial(sql.fetch_rows, connection, columns=2)
    rows = sql.run_first_known(ask, "SHOW MASTER STATUS", "SHOW BINARY LOG STATUS")
    position = sql.parse_count(rows[0][1]) if rows else None
    return None if not rows or position is None else (str(rows[0][0]), position)


def logged(connection: Sql, since: tuple[str, int]) -> list[LoggedEvent]:
    """The events written to the binary log since then, at most `_MOST_LOGGED` of them."""
    file, position = since
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,120}", file):
        return []
    rows = sql.fetch_records(connection, f"SHOW BINLOG EVENTS IN '{file}' FROM {position} LIMIT {_MOST_LOGGED}")
    plain = [{name.lower(): value for name, value in row.items()} for row in rows]
    numbers: dict[str, int] = {}
    return [
        LoggedEvent(
            server_id=sql.parse_count(row.get("server_id")) or 0,
            kind=_short(row.get("event_type")),
            info=normalise_logged_event(_short(row.get("event_type")), _short(row.get("info"))),
            text_number=numbers.setdefault(str(row.get("info")), len(numbers)),
        )
        for row in plain[:_MOST_LOGGED]
    ]
