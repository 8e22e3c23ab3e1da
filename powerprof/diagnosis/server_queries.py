# SPDX-License-Identifier: Apache-2.0
"""The statements that a diagnosis sends to a server. All of them only read, and the server may refuse each of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from powerprof.database import sql
from powerprof.database.base import StatementError
from powerprof.database.replication_status import parse_status, read_status_rows
from powerprof.diagnosis.evidence import (
    DUMPS,
    Client,
    DeniedAccount,
    LoggedEvent,
    OpenTransaction,
    ReplicaHost,
    ReplicationChannel,
    ScheduledEvent,
)
from powerprof.diagnosis.thread_pace import SETTINGS
from powerprof.model.statements import NO_TEXT, NormalText, normalise, normalise_logged_event
from powerprof.system.foreign_text import printable
from powerprof.system.pid_namespaces import read_outer_ids

if TYPE_CHECKING:
    from powerprof.database.base import Sql


T = TypeVar("T")
# The beginning of a statement is enough: a whole one may have gigabytes.
_TEXT = 200
_MOST_NAME = 100
_MOST_CLIENTS = 300
_MOST_CHANNELS = 1000
_MOST_LOGGED = 200
# Counters that a rule reads, and all statements that only inspect a server (`rules_clients.POLLING`). Reading all six
# hundred counters and as many settings would take longer than all other queries together.
_COUNTED_STATEMENTS = (
    *("admin_commands", "select", "insert", "update", "delete", "replace", "commit", "call_procedure", "set_option"),
    *("change_db", "register_slave", "binlog_dump", "start_slave", "slave_start", "replica_start", "start_all_slaves"),
)
_COUNTERS = (
    *(f"Com_{name}" for name in _COUNTED_STATEMENTS),
    *("Slave_connections", "Slaves_connected", "Slaves_running", "Connections", "Questions", "Queries", "Uptime"),
    *(
        "Created_tmp_disk_tables",
        "Sort_rows",
        "Select_scan",
        "Handler_read_rnd_next",
        "Rows_sent",
        "Access_denied_errors",
        "Binlog_commits",
    ),
    *("Binlog_bytes_written", "Executed_events", "Innodb_buffer_pool_pages_dirty", "Innodb_history_list_length"),
)
_COUNTERS_LIKE = ("Com_show_%", "Aborted_%", "Threads_%", "Max_statement_time_%")
_VARIABLES = (
    *("server_id", "port", "read_only", "log_bin", "log_slave_updates", "log_replica_updates", "binlog_format"),
    *(
        "performance_schema",
        "max_connections",
        "wait_timeout",
        "max_statement_time",
        "thread_handling",
        "innodb_buffer_pool_dump_pct",
        "wsrep_on",
    ),
    *("skip_name_resolve", "innodb_flush_log_at_timeout", "slave_net_timeout", "replica_net_timeout", *SETTINGS),
)


def query_or_default(query: Callable[[], T], default: T, subject: str, refused: dict[str, str]) -> T:
    """Return the result of a query; `default` and a reason in `refused` if the server refuses it.

    Raise StatementError if the connection is lost.
    """
    try:
        return query()
    except StatementError as error:
        if _is_lost(error):
            raise
        refused[subject] = error.message
        return default


def _is_lost(error: StatementError) -> bool:
    """Return whether the error ends the connection: client errors begin at 2000, and 0 is an unusable answer."""
    return error.number >= 2000 or error.number == 0


def _fetch_permitted(connection: Sql, statement: str, columns: int) -> Sequence[Sequence[Any]]:
    """Return the rows of a statement; none if the server refuses it, for example without performance_schema."""
    try:
        return sql.fetch_rows(connection, statement, columns=columns)
    except StatementError as error:
        if _is_lost(error):
            raise
        return []


def _fetch_by_lower_name(connection: Sql, statement: str) -> list[dict[str, Any]]:
    return _lower_names(sql.fetch_records(connection, statement))


def _lower_names(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name.lower(): value for name, value in row.items()} for row in rows]


def _quote_names(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _shorten(value: Any) -> str:
    return "" if value is None else str(value)[:_TEXT]


def _normalise_statement(value: Any) -> NormalText:
    """Return the text without values of a statement that may be cut off or invalid."""
    return normalise(_shorten(value), is_whole=False)


_DUMP_COUNT = (
    "SELECT SUM(COUNT_STAR) FROM performance_schema.events_statements_summary_global_by_event_name "
    "WHERE EVENT_NAME LIKE 'statement/com/Binlog Dump%'"
)


def _list_counters() -> str:
    likes = "".join(f" OR Variable_name LIKE '{pattern}'" for pattern in _COUNTERS_LIKE)
    return f"SHOW GLOBAL STATUS WHERE Variable_name IN ({_quote_names(_COUNTERS)}){likes}"


def _list_variables() -> str:
    return f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({_quote_names(_VARIABLES)})"


def list_own_statements() -> tuple[str, ...]:
    """Return the statements of a diagnosis that cost most, by which a window recognises other diagnoses."""
    last = (
        _LAST_STATEMENTS,
        _DUMP_COUNT,
        _STATEMENTS,
        _CONNECTION_THREADS,
        _REPLICA_ACCOUNTS,
        _DENIED,
        _EVENTS,
        _OPEN_TRANSACTIONS,
    )
    return (*map(_list_processes, _EXTRA_COLUMNS), _list_counters(), _list_variables(), *last)


# A look holds one of these advisory locks, by which other instances recognise its connection. No list of a server
# without performance_schema shows the program of a connection.
_SAME_USER = "SELECT ID FROM information_schema.processlist WHERE USER = SUBSTRING_INDEX(USER(), '@', 1) LIMIT 20000"
_LOCKS = tuple(f"powerprof-{number}" for number in range(1, 17))


def read_instances(connection: Sql) -> set[int]:
    """Return the connections of all powerprof processes that look at the server; empty if it refuses (Galera).

    Any account can take the locks, so a connection counts only if it has the user of this one.
    """
    rows = _fetch_permitted(
        connection, f"SELECT {', '.join(f'IS_USED_LOCK({chr(39)}{name}{chr(39)})' for name in _LOCKS)}", len(_LOCKS)
    )
    holders = {number for row in rows for value in row if (number := sql.parse_count(value)) is not None}
    same_user = _fetch_permitted(connection, _SAME_USER, columns=1) if holders else []
    return holders & {sql.parse_count(number) for (number,) in same_user}


def mark_connection(connection: Sql) -> None:
    """Hold a free advisory lock until the connection ends."""
    for name in _LOCKS:
        rows = _fetch_permitted(connection, f"SELECT GET_LOCK('{name}', 0)", columns=1)
        if not rows or sql.parse_count(rows[0][0]) == 1:
            return


def read_counters(connection: Sql) -> dict[str, int]:
    """Return the status counters of the rules."""
    rows = sql.fetch_rows(connection, _list_counters(), columns=2)
    counts = {str(name): sql.parse_count(value) for name, value in rows}
    dumps = _fetch_permitted(connection, _DUMP_COUNT, columns=1)
    counts[DUMPS] = sql.parse_count(dumps[0][0]) if dumps else None
    return {name: value for name, value in counts.items() if value is not None}


def read_settings(connection: Sql) -> dict[str, str]:
    """Return the settings of the rules."""
    rows = sql.fetch_rows(connection, _list_variables(), columns=2)
    return {str(name).lower(): str(value)[:_TEXT] for name, value in rows}


_STATEMENTS = """SELECT t.PROCESSLIST_ID, e.EVENT_NAME, e.COUNT_STAR
FROM performance_schema.events_statements_summary_by_thread_by_event_name e
JOIN performance_schema.threads t ON t.THREAD_ID = e.THREAD_ID
WHERE e.COUNT_STAR > 0 AND t.PROCESSLIST_ID IS NOT NULL AND t.PROCESSLIST_ID <> CONNECTION_ID()
AND (e.EVENT_NAME LIKE 'statement/sql/show%'
OR e.EVENT_NAME IN ('statement/com/Ping', 'statement/sql/select')) LIMIT 20000"""


def read_statements_by_connection(connection: Sql) -> dict[int, dict[str, int]]:
    """Return the number of inspecting statements of each connection so far, by the names of the status counters."""
    counts: dict[int, dict[str, int]] = {}
    for number, event, value in _fetch_permitted(connection, _STATEMENTS, columns=3):
        name = str(event).rpartition("/")[2]
        counter = "Com_admin_commands" if name == "Ping" else f"Com_{name}"
        connection_id, count = sql.parse_count(number), sql.parse_count(value)
        if connection_id is not None and count is not None:
            counts.setdefault(connection_id, {})[counter] = count
    return counts


_LAST_STATEMENTS = (
    f"SELECT t.PROCESSLIST_ID, LEFT(e.SQL_TEXT, {_TEXT}) "  # noqa: S608 - ours
    "FROM performance_schema.events_statements_current e JOIN performance_schema.threads t "
    "ON t.THREAD_ID = e.THREAD_ID WHERE t.PROCESSLIST_ID IS NOT NULL AND e.SQL_TEXT IS NOT NULL LIMIT 1000"
)


def read_last_statements(connection: Sql) -> dict[int, NormalText]:
    """Return the beginning of the last statement of each connection, without values."""
    rows = _fetch_permitted(connection, _LAST_STATEMENTS, columns=2)
    texts = [(sql.parse_count(number), _normalise_statement(text)) for number, text in rows]
    return {number: text for number, text in texts if number is not None}


def read_channels(connection: Sql) -> list[ReplicationChannel]:
    """Return the replication channels with their current relay logs."""
    channels = []
    for row in read_status_rows(connection)[:_MOST_CHANNELS]:
        file = next((value for name, value in row.items() if name.lower() == "relay_log_file"), None)
        channels.append(
            ReplicationChannel(status=parse_status(row), relay_log_file=str(file)[:_TEXT] if file else None)
        )
    return channels


INTERNAL_USERS = ("system user", "event_scheduler")
RawClient = tuple[Client, str]
"""A line of the process list without its statement, and the statement with its values, which must not be recorded."""


def read_raw_clients(connection: Sql) -> list[RawClient]:
    """Return the whole process list for `select_clients`. Samples defer that work, so they follow each other faster."""
    return [_parse_client(row) for row in _lower_names(_read_process_list(connection))]


def count_hidden(raw: Sequence[RawClient], own_id: int | None, connected_count: int | None) -> int | None:
    """Return how many of the connections that the server counts are missing from a process list; None if unknown.

    Without the right PROCESS the list has the connections of its own account only.
    """
    clients = [client for client, _ in raw if client.user not in INTERNAL_USERS and client.command != "Daemon"]
    own_user = next((client.user for client in clients if client.id == own_id), None)
    if own_user is None or connected_count is None:
        return None
    is_own_only = all(client.user == own_user for client, _ in raw)
    return max(0, connected_count - len(clients)) if is_own_only else 0


def select_clients(raw: Sequence[RawClient], own_ids: Collection[int]) -> list[Client]:
    """Return the clients with their statements, without values and without the connections of powerprof."""
    return _normalise_clients(_limit_clients([entry for entry in raw if entry[0].id not in own_ids]))


def _limit_clients(clients: list[RawClient]) -> list[RawClient]:
    if len(clients) <= _MOST_CLIENTS:
        return clients
    # Of thousands keep the replicas, the newest client, and the clients with the latest statements.
    newest = max(client.id for client, _ in clients)
    clients.sort(
        key=lambda entry: (
            not entry[0].command.startswith("Binlog Dump"),
            entry[0].id != newest,
            entry[0].time_s or 0.0,
        )
    )
    return clients[:_MOST_CLIENTS]


def _normalise_clients(clients: Iterable[RawClient]) -> list[Client]:
    return [
        msgspec.structs.replace(client, statement=_normalise_statement(text)) if text else client
        for client, text in clients
    ]


_EXTRA_COLUMNS = ("TIME_MS, TID, QUERY_ID, ", "")


def _list_processes(extra_columns: str) -> str:
    return (
        f"SELECT ID, USER, HOST, COMMAND, TIME, STATE, {extra_columns}"  # noqa: S608 - ours
        f"LEFT(INFO, {_TEXT}) AS INFO FROM information_schema.processlist"
    )


def _read_process_list(connection: Sql) -> list[dict[str, Any]]:
    for extra_columns in _EXTRA_COLUMNS:
        try:
            return sql.fetch_records(connection, _list_processes(extra_columns))
        except StatementError as error:
            if error.number not in (1054, 1109, 1146, 1049):  # an unknown column, table or schema
                raise
    return sql.fetch_records(connection, "SHOW PROCESSLIST")


def _parse_client(row: dict[str, Any]) -> RawClient:
    time_ms = sql.parse_number(row.get("time_ms"))
    client = Client(
        id=sql.parse_count(row.get("id")) or 0,
        user=_shorten(row.get("user")),
        host=_shorten(row.get("host")),
        command=_shorten(row.get("command")),
        time_s=sql.parse_number(row.get("time")) if time_ms is None else time_ms / 1e3,
        state=_shorten(row.get("state")),
        statement=NO_TEXT,
        tid=sql.parse_count(row.get("tid")),
        query_id=sql.parse_count(row.get("query_id")),
    )
    return client, _shorten(row.get("info"))


_CONNECTION_THREADS = (
    "SELECT PROCESSLIST_ID, THREAD_OS_ID FROM performance_schema.threads WHERE PROCESSLIST_ID IS NOT NULL LIMIT 20000"
)


def read_connection_threads(connection: Sql, pid: int | None) -> dict[int, int]:
    """Return the kernel thread number of each connection; empty without performance_schema."""
    rows = _fetch_permitted(connection, _CONNECTION_THREADS, columns=2)
    if not rows:
        return {}
    outer = read_outer_ids(pid)
    numbers = [(sql.parse_count(client), sql.parse_count(tid)) for client, tid in rows]
    return {client: outer.get(tid, tid) for client, tid in numbers if client is not None and tid}


_REPLICA_ACCOUNTS = (
    # mysql.user may be a view, which can be replaced. This table cannot be replaced.
    "SELECT GRANTEE FROM information_schema.USER_PRIVILEGES WHERE PRIVILEGE_TYPE = 'REPLICATION SLAVE' "
    "AND GRANTEE NOT IN (SELECT GRANTEE FROM information_schema.USER_PRIVILEGES "
    "WHERE PRIVILEGE_TYPE = 'SUPER') LIMIT 200"
)


def read_replica_accounts(connection: Sql) -> list[str]:
    """Return the accounts with the right to replicate, without administrators; empty if they may not be read."""
    rows = _fetch_permitted(connection, _REPLICA_ACCOUNTS, columns=1)
    return ["@".join(_shorten(part) for part in re.findall(r"'(.*?)'(?=@|$)", str(row[0]))) for row in rows]


# ER_ACCESS_DENIED_ERROR, ER_ACCESS_DENIED_NO_PASSWORD_ERROR
_DENIED = (
    "SELECT USER, HOST, SUM(SUM_ERROR_RAISED), TIMESTAMPDIFF(SECOND, MAX(LAST_SEEN), NOW()), "
    "TIMESTAMPDIFF(SECOND, MIN(FIRST_SEEN), MAX(LAST_SEEN)) "
    "FROM performance_schema.events_errors_summary_by_account_by_error WHERE ERROR_NUMBER IN (1045, 1698) "
    "AND SUM_ERROR_RAISED > 0 AND USER IS NOT NULL GROUP BY USER, HOST ORDER BY 3 DESC LIMIT 200"
)


def read_denied_accounts(connection: Sql) -> list[DeniedAccount]:
    """Return the refused logins by account since the server was started, if the server counts them.

    MySQL counts them in performance_schema. MariaDB reports them in its error log alone (`collect.summarise_log`).
    """
    accounts = []
    for user, host, total, last_s, span_s in _fetch_permitted(connection, _DENIED, columns=5):
        count = sql.parse_count(total)
        if count:
            accounts.append(
                DeniedAccount(
                    account=printable(f"{str(user)[:_MOST_NAME]}@{str(host or '')[:_MOST_NAME]}"),
                    count=count,
                    window_count=0,
                    last_s=max(sql.parse_number(last_s) or 0.0, 0.0),
                    span_s=max(sql.parse_number(span_s) or 0.0, 0.0),
                )
            )
    return accounts


def count_denied_in_window(before: Sequence[DeniedAccount], after: Sequence[DeniedAccount]) -> list[DeniedAccount]:
    """Return the accounts of the second reading with their refused logins since the first one."""
    counts_before = {entry.account: entry.count for entry in before}
    return [
        msgspec.structs.replace(entry, window_count=max(0, entry.count - counts_before.get(entry.account, 0)))
        for entry in after
    ]


def read_replicas(connection: Sql) -> list[ReplicaHost]:
    """Return the replicas that are registered at this server."""
    rows = sql.run_first_known(partial(_fetch_by_lower_name, connection), "SHOW SLAVE HOSTS", "SHOW REPLICAS") or []
    return [
        ReplicaHost(
            server_id=sql.parse_count(row.get("server_id")) or 0,
            host=_shorten(row.get("host")),
            port=sql.parse_count(row.get("port")) or 0,
        )
        for row in rows
    ]


# A transaction is open while its client sends nothing. Younger ones are normal.
_LEAST_OPEN_S = 30
_OPEN_TRANSACTIONS = (
    "SELECT t.trx_mysql_thread_id, p.USER, p.HOST, TIMESTAMPDIFF(SECOND, t.trx_started, NOW()) "  # noqa: S608 - ours
    "FROM information_schema.innodb_trx t JOIN information_schema.processlist p ON p.ID = t.trx_mysql_thread_id "
    f"WHERE p.COMMAND = 'Sleep' AND t.trx_started < NOW() - INTERVAL {_LEAST_OPEN_S} SECOND "
    "ORDER BY t.trx_started LIMIT 20"
)


def read_open_transactions(connection: Sql) -> list[OpenTransaction]:
    """Return the transactions of clients that send nothing, the oldest first; none if the server refuses."""
    return [
        OpenTransaction(connection=connection_id, account=format_account(_shorten(user), _shorten(host)), open_s=open_s)
        for number, user, host, seconds in _fetch_permitted(connection, _OPEN_TRANSACTIONS, columns=4)
        if (connection_id := sql.parse_count(number)) is not None and (open_s := sql.parse_number(seconds)) is not None
    ]


def format_account(user: str, host: str) -> str:
    """Return `user@host` of a line of the process list, without the port."""
    return printable(f"{user or '(nobody)'}@{host.rpartition(':')[0] or host or 'localhost'}")


_SECONDS = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86_400, "WEEK": 604_800}


_EVENTS = (
    "SELECT EVENT_SCHEMA, EVENT_NAME, INTERVAL_VALUE, INTERVAL_FIELD, STATUS, LAST_EXECUTED "
    "FROM information_schema.events WHERE EVENT_TYPE = 'RECURRING' LIMIT 1000"
)


def read_events(connection: Sql) -> list[ScheduledEvent]:
    """Return the recurring events with an interval of seconds to weeks."""
    rows = sql.fetch_rows(connection, _EVENTS, columns=6)
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


def read_binlog_end(connection: Sql) -> tuple[str, int] | None:
    """Return the file and position of the end of the binary log; None without one."""
    fetch = partial(sql.fetch_rows, connection, columns=2)
    rows = sql.run_first_known(fetch, "SHOW MASTER STATUS", "SHOW BINARY LOG STATUS")
    position = sql.parse_count(rows[0][1]) if rows else None
    return None if not rows or position is None else (str(rows[0][0]), position)


def read_binlog_events(connection: Sql, since: tuple[str, int]) -> list[LoggedEvent]:
    """Return the events of the binary log after a position, at most `_MOST_LOGGED`."""
    file, position = since
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,120}", file):
        return []
    statement = f"SHOW BINLOG EVENTS IN '{file}' FROM {position} LIMIT {_MOST_LOGGED}"
    numbers: dict[str, int] = {}
    return [
        LoggedEvent(
            server_id=sql.parse_count(row.get("server_id")) or 0,
            kind=_shorten(row.get("event_type")),
            info=normalise_logged_event(_shorten(row.get("event_type")), _shorten(row.get("info"))),
            text_number=numbers.setdefault(str(row.get("info")), len(numbers)),
        )
        for row in _fetch_by_lower_name(connection, statement)[:_MOST_LOGGED]
    ]
