# SPDX-License-Identifier: Apache-2.0
"""How far a replica is behind its source, by what it reports itself, in each window of a cure.

Nothing is written at the source, and the source is not asked. Three measures, for none of them is enough alone: whole
seconds (Seconds_Behind_Master, which the replica reckons itself), bytes that it has received and not applied, and the
delay: from the source's commit to the end of applying it where the replica keeps both times (MySQL 8), else from
receiving to applying, which is the mean backlog divided by the rate of applying (Little's law).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from powerprof.cure.remedies import CureRequest
from powerprof.database.clients import sql
from powerprof.database.clients.base import Limits, StatementError
from powerprof.database.clients.given import is_server_name, log_in_locally
from powerprof.database.clients.performance import ReplicationStatus, read_replication_status
from powerprof.measure.window import WindowPart
from powerprof.system.closeable import Closeable
from powerprof.system.errors import PowerprofError
from powerprof.system.processes import name_of
from powerprof.system.tasks import read_outer_ids

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql

_EVERY_S = 0.25
_LIMITS = Limits(answer_s=2.0, rows=300, answer_bytes=1 << 20)
_CHANNELS = 64
COMMITTED, RECEIVED = "commit to applied, by the replica's times", "received to applied, backlog by rate"
# Each transaction that a worker (or the one SQL thread) applied last, and how long after its commit at the source.
_APPLIED = (
    "SELECT WORKER_ID, CHANNEL_NAME, CAST(LAST_APPLIED_TRANSACTION_END_APPLY_TIMESTAMP AS CHAR), "
    "TIMESTAMPDIFF(MICROSECOND, LAST_APPLIED_TRANSACTION_IMMEDIATE_COMMIT_TIMESTAMP, "
    "LAST_APPLIED_TRANSACTION_END_APPLY_TIMESTAMP) FROM performance_schema.replication_applier_status_by_worker "
    "WHERE LAST_APPLIED_TRANSACTION_IMMEDIATE_COMMIT_TIMESTAMP > 0 LIMIT 300"
)
_OWN_THREAD = (
    "SELECT TID FROM information_schema.PROCESSLIST WHERE ID = CONNECTION_ID()",
    "SELECT THREAD_OS_ID FROM performance_schema.threads WHERE PROCESSLIST_ID = CONNECTION_ID()",
)

# As the server counts them among its statements.
OUR_STATEMENTS = re.compile(
    rb"\s*(SHOW (ALL SLAVES|REPLICA|SLAVE) STATUS|SELECT WORKER_ID, CHANNEL_NAME, CAST\(LAST_APPLIED)", re.IGNORECASE
)

# What is known of one applied transaction: who applied it, when it ended, and its delay in ms.
_Applied = dict[tuple[str, str, str], float]


@dataclass(frozen=True)
class ReplicaLag:
    """A replica in one window. `lag_s`: mean of the whole seconds that it reported in `looks_count` looks; None where
    one look had none. `backlog_bytes`: mean of what was received and not applied; None where a look found the two in
    different files of the source. `delay_ms` of one transaction, by `delay_source`: the median of those seen, or the
    mean by the backlog; None where nothing was applied, or unknown."""

    looks_count: int
    stopped_count: int
    lag_s: float | None
    backlog_bytes: float | None
    delay_ms: float | None
    delay_source: str | None


@dataclass(frozen=True)
class _ChannelsSeen:
    at_s: float
    channels: Sequence[ReplicationStatus]


class ReplicaSampler(Closeable, WindowPart):
    """Asks a server of replicas four times a second in every window; `why_not` where there is nothing to ask.

    `own_tid` is the server's thread that answers us: its wake-ups are ours.
    """

    def __init__(self, pid: int, request: CureRequest) -> None:
        self._pid, self._request = pid, request
        self._connection: Sql | None = None
        self._looks: list[_ChannelsSeen] = []
        self._applied_before: _Applied = {}
        self._applied: _Applied = {}
        self._has_times = False
        self.own_tid: int | None = None
        self.why_not: str | None = None

    def _open(self) -> None:
        if not is_server_name(name_of(self._pid)):
            self.why_not = "the process is no MariaDB or MySQL server"
            return
        try:
            self._connect()
        except (PowerprofError, OSError) as error:
            self.close()
            self.why_not = error.message if isinstance(error, PowerprofError) else str(error)

    def _connect(self) -> None:
        if self._request.server_named:
            from powerprof.database.clients.given import given_server

            asked = self._request
            with given_server(asked.server_url, asked.socket, asked.defaults_file) as server:
                if server.pid != self._pid:
                    raise PowerprofError("the server that was named is another process", "name the one of --pid")
                self._connection = server.connect(limits=_LIMITS)
        else:
            entered = log_in_locally(self._pid, _LIMITS)
            if entered is None:
                raise PowerprofError("the server does not let this user in by its socket", "--defaults-file")
            self._connection = entered[1]
        if not read_replication_status(self._connection):
            self.close()
            self.why_not = "the server replicates from no other"
            return
        with suppress(StatementError):
            self._ask_times(self._connection)
            self._has_times = True
        self.own_tid = self._own_thread(self._connection)

    def _own_thread(self, connection: Sql) -> int | None:
        for statement in _OWN_THREAD:
            with suppress(StatementError):
                inner = sql.parse_count(sql.fetch_scalar(connection, statement))
                if inner:
                    return read_outer_ids(self._pid).get(inner, inner)
        return None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(PowerprofError, OSError):
                connection.close()

    @property
    def parts(self) -> tuple[WindowPart, ...]:
        """What a window has to begin, read and end."""
        return () if self._connection is None else (self,)

    @property
    def read_interval_s(self) -> float:
        return _EVERY_S if self._connection is not None else math.inf

    def begin(self) -> None:
        self._looks, self._applied, self._applied_before = [], {}, {}
        if self._connection is not None and self._has_times:
            with suppress(PowerprofError):
                self._applied_before = self._ask_times(self._connection)
        self.read()

    def read(self) -> None:
        if self._connection is None:
            return
        try:
            self._looks.append(_ChannelsSeen(time.monotonic(), read_replication_status(self._connection)[:_CHANNELS]))
            if self._has_times:
                self._applied |= self._ask_times(self._connection)
        except PowerprofError as error:  # it has ended, or hangs: no window waits for it again
            self.close()
            self._looks = []
            self.why_not = f"the server no longer answers ({error.message})"

    def end(self) -> None:
        self.read()

    def _ask_times(self, connection: Sql) -> _Applied:
        found: _Applied = {}
        for worker, channel, ended, delay_us in sql.fetch_rows(connection, _APPLIED, columns=4):
            delay = sql.parse_number(delay_us)
            if delay is not None:
                found[(str(channel), str(worker), str(ended))] = delay / 1000
        return found

    def collect(self) -> ReplicaLag | None:
        """Of the window that ended last; None where nothing was asked."""
        if not self._looks:
            return None
        new = [delay for key, delay in self._applied.items() if key not in self._applied_before]
        return summarize_looks([look.channels for look in self._looks], self._looks[-1].at_s - self._looks[0].at_s,
                      new if self._has_times else None)  # fmt: skip


def summarize_looks(
    looks: Sequence[Sequence[ReplicationStatus]], window_s: float, delays_ms: Sequence[float] | None
) -> ReplicaLag:
    """What the looks of one window come to; of several channels the one that is furthest behind, look by look.

    `delays_ms` of the transactions that were seen applied in it; None where the replica keeps no times.
    """
    lags = [_most([one.seconds_behind for one in channels]) for channels in looks]
    backlogs = [_most([_backlog(one) for one in channels]) for channels in looks]
    backlog = _mean(backlogs)
    stopped = sum(any(one.sql_running is False for one in channels) for channels in looks)
    delay: float | None
    if delays_ms is not None:
        delay, source = (median(delays_ms) if delays_ms else None), COMMITTED
    else:
        applied, source = _applied_bytes(looks), RECEIVED
        delay = 1000 * backlog * window_s / applied if backlog is not None and applied else None
    return ReplicaLag(len(looks), stopped, _mean(lags), backlog, delay, source)


def _applied_bytes(looks: Sequence[Sequence[ReplicationStatus]]) -> int | None:
    """What was applied between the first look and the last; None where the source began another file in between, and of
    several channels, whose bytes are of several sources."""
    if any(len(channels) != 1 for channels in looks):
        return None
    first, last = looks[0][0], looks[-1][0]
    if first.executed_log_file != last.executed_log_file or first.executed_position_bytes is None:
        return None
    return (
        None if last.executed_position_bytes is None else last.executed_position_bytes - first.executed_position_bytes
    )


def _backlog(status: ReplicationStatus) -> int | None:
    read, executed = status.read_position_bytes, status.executed_position_bytes
    if read is None or executed is None or status.source_log_file != status.executed_log_file:
        return None
    return max(0, read - executed)


def _most(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) if values and len(known) == len(values) else None


def _mean(values: Sequence[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if values and len(known) == len(values) else None


def lag_fields(seen: ReplicaLag | None) -> Mapping[str, float | int | str | None]:
    """As a window's record has them."""
    if seen is None:
        return {}
    return {
        "replica_looks_count": seen.looks_count,
        "replica_stopped_count": seen.stopped_count,
        "replica_lag_s": seen.lag_s,
        "replica_backlog_bytes": seen.backlog_bytes,
        "replica_delay_ms": seen.delay_ms,
        "replica_delay_source": seen.delay_source,
    }
