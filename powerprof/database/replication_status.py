# SPDX-License-Identifier: Apache-2.0
"""The replication status that servers report."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from powerprof.database import sql
from powerprof.database.base import ReplicationStatus
from powerprof.model.statements import normalise_replication_error
from powerprof.system.errors import PowerprofError
from powerprof.system.foreign_text import whole

if TYPE_CHECKING:
    from powerprof.database.base import Sql


def read_replication_status(connection: Sql) -> list[ReplicationStatus]:
    """Return every channel of a server; empty without replication. Raise PowerprofError."""
    return [parse_status(row) for row in read_status_rows(connection)]


def read_status_rows(connection: Sql) -> list[dict[str, Any]]:
    """Return the rows of `read_replication_status` as the server sends them."""
    words = ("SHOW ALL SLAVES STATUS", "SHOW REPLICA STATUS", "SHOW SLAVE STATUS")
    rows = sql.run_first_known(partial(sql.fetch_records, connection), *words)
    if rows is None:
        raise PowerprofError(
            "the server has no statement that shows replication",
            "a MariaDB or MySQL account with REPLICATION CLIENT sees it",
        )
    return rows


def parse_status(row: Mapping[str, Any]) -> ReplicationStatus:
    """Return the status of one row of SHOW … STATUS. MySQL 8.0.22 renamed master and slave; both are read."""
    # Names such as Replicate_Ignore_Server_Ids were not renamed.
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


class PostgresState(msgspec.Struct, frozen=True):
    """The state of a PostgreSQL server.

    Attributes:
        role: primary, replica (a standby in recovery) or standalone.
        is_receiving: Whether a standby has a WAL receiver; None for other servers.
        lag_s: The age of the last replayed transaction of a standby, 0 if it has replayed everything that it received.
        transactions_count: Committed and rolled back transactions since the last reset of the statistics.
    """

    role: str
    is_receiving: bool | None
    lag_s: float | None
    transactions_count: int | None


# All names and operators are qualified. Otherwise the search_path of the database could choose other objects.
_STATE = (
    "SELECT pg_catalog.pg_is_in_recovery(),"
    " (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication),"
    " (SELECT pg_catalog.count(w.pid) FROM pg_catalog.pg_stat_wal_receiver w),"
    " pg_catalog.pg_last_wal_receive_lsn() OPERATOR(pg_catalog.=) pg_catalog.pg_last_wal_replay_lsn(),"
    " pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-)"
    " pg_catalog.pg_last_xact_replay_timestamp()),"
    " (SELECT pg_catalog.sum(d.xact_commit OPERATOR(pg_catalog.+) d.xact_rollback) FROM pg_catalog.pg_stat_database d)"
)


def read_postgres_state(connection: Sql) -> PostgresState:
    """Return role, lag and transactions of a PostgreSQL server. Raise PowerprofError."""
    rows = sql.fetch_rows(connection, _STATE, columns=6)
    recovers, senders, receivers, has_replayed, age, transactions = rows[0] if rows else (None,) * 6
    transactions_count, senders_count, receivers_count = map(sql.parse_count, (transactions, senders, receivers))
    if recovers != "t":
        return PostgresState("primary" if senders_count else "standalone", None, None, transactions_count)
    lag_s = 0.0 if has_replayed == "t" else sql.parse_number(age)
    is_receiving = None if receivers_count is None else receivers_count > 0
    return PostgresState("replica", is_receiving, None if lag_s is None else max(0.0, lag_s), transactions_count)
