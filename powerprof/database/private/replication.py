# SPDX-License-Identifier: Apache-2.0
"""How a replica is joined to its source, and what it says about itself: MariaDB and MySQL, old and new words."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from powerprof.database.clients import sql
from powerprof.database.clients.base import StatementError
from powerprof.statements.text import NormalText, normalise_replication_error
from powerprof.system.errors import PowerprofError
from powerprof.system.files import whole

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql

_MARKER = "powerprof_marker"
_LOOK = "look at the settings and statements that its condition has for it (workload.toml)"


class ReplicationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One replication channel as the replica describes it. Unknown is None.

    The error of its SQL thread quotes statements and is kept without their values; that of its I/O thread quotes none.
    """

    channel: str
    source_host: str | None
    source_port: int | None
    source_server_id: int | None
    io_running: str | None
    io_state: str | None
    sql_running: bool | None
    seconds_behind: int | None
    last_io_error_number: int | None
    last_io_error: str | None
    last_sql_error_number: int | None
    last_sql_error: NormalText | None
    relay_log_bytes: int | None
    read_position_bytes: int | None
    executed_position_bytes: int | None
    source_log_file: str | None
    executed_log_file: str | None = None
    connect_retry_s: int | None
    ignored_server_ids: tuple[int, ...]


def read_replication_status(connection: Sql) -> list[ReplicationStatus]:
    """Every channel of a server; empty where it replicates from nobody. Raises PowerprofError."""
    return [parse_status(row) for row in read_status_rows(connection)]


def read_status_rows(connection: Sql) -> list[dict[str, Any]]:
    """As `read_status`, in the server's own words."""
    words = ("SHOW ALL SLAVES STATUS", "SHOW REPLICA STATUS", "SHOW SLAVE STATUS")
    rows = sql.run_first_known(partial(sql.fetch_records, connection), *words)
    if rows is None:
        raise PowerprofError(
            "the server has no statement that shows replication",
            "a MariaDB or MySQL account with REPLICATION CLIENT sees it",
        )
    return rows


def parse_status(row: Mapping[str, Any]) -> ReplicationStatus:
    """One row of SHOW … STATUS. MySQL 8.0.22 renamed master and slave; both are read."""
    # Replicate_Ignore_Server_Ids and its kind kept their name.
    plain = {
        re.sub("replica(?!te)", "slave", name.lower()).replace("source", "master"): value for name, value in row.items()
    }

    def text(name: str) -> str | None:
        value = plain.get(name)
        return None if value in (None, "") else str(value)[:1000]

    def number(name: str) -> int | None:
        value = text(name)
        return whole(value)

    running = text("slave_sql_running")
    ignored = (text("replicate_ignore_server_ids") or "").replace(",", " ").split()
    return ReplicationStatus(
        channel=text("connection_name") or text("channel_name") or "",
        source_host=text("master_host"),
        source_port=number("master_port"),
        source_server_id=number("master_server_id"),
        io_running=text("slave_io_running"),
        io_state=text("slave_io_state"),
        sql_running=None if running is None else running == "Yes",
        seconds_behind=number("seconds_behind_master"),
        last_io_error_number=number("last_io_errno"),
        last_io_error=text("last_io_error"),
        last_sql_error_number=number("last_sql_errno"),
        last_sql_error=None if (error := text("last_sql_error")) is None else normalise_replication_error(error),
        relay_log_bytes=number("relay_log_space"),
        read_position_bytes=number("read_master_log_pos"),
        executed_position_bytes=number("exec_master_log_pos"),
        source_log_file=text("master_log_file"),
        executed_log_file=text("relay_master_log_file"),
        connect_retry_s=number("connect_retry"),
        ignored_server_ids=tuple(server_id for word in ignored if (server_id := whole(word)) is not None),
    )


@dataclass(frozen=True)
class Origin:
    """A source as its replicas need to know it: address, account, and where in its binary log they begin."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    file: str
    position: int


def make_account(source: Sql, user: str, password: str, host: str, modern: bool) -> None:
    """An account that may replicate, not itself replicated. `modern`: the server has CREATE USER IF NOT EXISTS."""
    grant = f"GRANT REPLICATION SLAVE ON *.* TO '{user}'@'{host}'"
    sql.execute(source, "SET SESSION sql_log_bin=0")
    if modern:
        sql.execute(source, f"CREATE USER IF NOT EXISTS '{user}'@'{host}' IDENTIFIED BY '{password}'", grant)
    else:
        sql.execute(source, f"{grant} IDENTIFIED BY '{password}'")
    sql.execute(source, "SET SESSION sql_log_bin=1")


def position(source: Sql) -> tuple[str, int]:
    """Where its binary log ends now. Raises PowerprofError where it writes none."""
    ask = partial(sql.fetch_rows, source, columns=2)
    answer = sql.run_first_known(ask, "SHOW MASTER STATUS", "SHOW BINARY LOG STATUS") or []
    at = sql.parse_count(answer[0][1]) if answer else None
    if at is None:
        raise PowerprofError("the source writes no binary log", "set log-bin")
    return str(answer[0][0]), at


def point_at(replica: Sql, origin: Origin, mariadb: bool, connect_retry_s: int | None = None) -> None:
    """CHANGE MASTER and START SLAVE. The password goes through SQL and stands on no command line."""
    words = [
        f"MASTER_HOST='{origin.host}'",
        f"MASTER_PORT={origin.port}",
        f"MASTER_USER='{origin.user}'",
        f"MASTER_PASSWORD='{origin.password}'",
        f"MASTER_LOG_FILE='{origin.file}'",
        f"MASTER_LOG_POS={origin.position}",
    ]
    if connect_retry_s is not None:
        words.append(f"MASTER_CONNECT_RETRY={connect_retry_s}")
    if mariadb:
        # Positions, as in the studies: with GTIDs an event that came round is known and not applied again.
        words.append("MASTER_USE_GTID=no")
    change = partial(sql.execute, replica)
    # MySQL 8.4 knows the new words only, and gives passwords away to none that has not its key.
    modern = ", ".join(word.replace("MASTER_", "SOURCE_", 1) for word in (*words, "GET_SOURCE_PUBLIC_KEY=1"))
    _first(change, f"CHANGE MASTER TO {', '.join(words)}", f"CHANGE REPLICATION SOURCE TO {modern}")
    _first(change, "START SLAVE", "START REPLICA")


def _first(change: Callable[[str], None], *statements: str) -> None:
    """The first of these that the server can parse."""

    def changed(statement: str) -> bool:
        change(statement)
        return True

    if sql.run_first_known(changed, *statements) is None:
        raise PowerprofError("the server has no statement that joins a replica to its source", "MariaDB or MySQL do")


def write_marker(source: Sql) -> str:
    """A row that a replica has once it works; returns its name."""
    token = secrets.token_hex(8)
    sql.execute(
        source,
        f"CREATE DATABASE IF NOT EXISTS {_MARKER}",
        f"CREATE TABLE IF NOT EXISTS {_MARKER}.marker (token CHAR(16) PRIMARY KEY) ENGINE=InnoDB",
        f"INSERT INTO {_MARKER}.marker VALUES ('{token}')",  # noqa: S608 - constants and hexadecimal digits
    )
    return token


def wait_marker(replica: Sql, token: str, name: str, deadline: float) -> None:
    """Until the replica has applied the row. Raises PowerprofError with what replication says, or after `deadline`."""
    query = f"SELECT COUNT(*) FROM {_MARKER}.marker WHERE token='{token}'"  # noqa: S608 - as above
    begun_anew = time.monotonic()
    while True:
        try:
            if sql.fetch_scalar(replica, query):
                return
        except StatementError as error:
            if error.number not in (1049, 1146):  # no such schema, no such table: not yet
                raise
        for status in read_replication_status(replica):
            if (status.io_state or "").startswith("Waiting to reconnect") and time.monotonic() > begun_anew + 1:
                # Another replica with its server id pushed it out, and it would wait for its retry (60 s by default).
                _first(partial(sql.execute, replica), "STOP SLAVE", "STOP REPLICA")
                _first(partial(sql.execute, replica), "START SLAVE", "START REPLICA")
                begun_anew = time.monotonic()
            if status.sql_running is False and status.last_sql_error:
                number = status.last_sql_error_number
                raise PowerprofError(f"{name} does not replicate: error {number}, {status.last_sql_error}", _LOOK)
            if status.io_running == "No" and status.last_io_error:
                raise PowerprofError(f"{name} does not replicate: {status.last_io_error}", _LOOK)
        if time.monotonic() > deadline:
            states = "; ".join(
                f"{status.io_state}, {status.last_io_error}" for status in read_replication_status(replica)
            )
            raise PowerprofError(
                f"{name} did not apply its source's marker row in time ({states or 'no status'})",
                "the host may be too busy: try again when it is idle",
            )
        time.sleep(0.02)
