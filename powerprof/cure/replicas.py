# SPDX-License-Identifier: Apache-2.0
"""The lag of a replica in each window of a cure, by its own report.

The source is neither queried nor changed. No single measure is enough, so there are three. Seconds_Behind_Master is in
whole seconds. The backlog is the number of bytes that are received and not applied. The delay is the time from the
commit at the source to the end of applying if the replica keeps both times (MySQL 8). Otherwise it is the time from
receiving to applying, which is the mean backlog divided by the rate of applying (Little's law).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from powerprof.cure.remedies import CureRequest
from powerprof.database import sql
from powerprof.database.base import Limits, ReplicationStatus, StatementError
from powerprof.database.local_login import log_in_locally, require_server_program
from powerprof.database.replication_status import read_replication_status
from powerprof.measure.window import WindowPart
from powerprof.system.closeable import Closeable
from powerprof.system.errors import PowerprofError
from powerprof.system.pid_namespaces import read_outer_ids

if TYPE_CHECKING:
    from powerprof.database.base import Sql

_INTERVAL_S = 0.25
_LIMITS = Limits(answer_s=2.0, rows=300, answer_bytes=1 << 20)
_MAX_CHANNELS = 64
COMMITTED, RECEIVED = "commit to applied, by the replica's times", "received to applied, backlog by rate"
# The last transaction of each worker (or of the one SQL thread), and the time since its commit at the source.
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

# The statements of this module, as the server counts them.
OWN_STATEMENTS = re.compile(
    rb"\s*(SHOW (ALL SLAVES|REPLICA|SLAVE) STATUS|SELECT WORKER_ID, CHANNEL_NAME, CAST\(LAST_APPLIED)", re.IGNORECASE
)

# Delays of applied transactions in ms: (channel, worker, end of applying) → delay.
_Delays = dict[tuple[str, str, str], float]


class ReplicaLag(msgspec.Struct, frozen=True):
    """The lag of a replica in one window.

    Attributes:
        looks_count: reports of the replica.
        stopped_count: reports in which an SQL thread did not run.
        lag_s: the mean of the reported whole seconds; None if a report lacks it.
        backlog_bytes: the mean of the received and not applied bytes; None if they were in different source files.
        delay_ms: by `delay_source`, the median of the observed delays or the mean by the backlog; None if unknown.
    """

    looks_count: int
    stopped_count: int
    lag_s: float | None
    backlog_bytes: float | None
    delay_ms: float | None
    delay_source: str | None


class ReplicaSampler(Closeable, WindowPart):
    """A connection that queries a replica four times a second in every window.

    Attributes:
        own_tid: the server's thread of this connection. Its wake-ups are powerprof's.
        unavailable: the reason if the process is not a replica; then `parts` is empty.
    """

    def __init__(self, pid: int, request: CureRequest) -> None:
        self._pid, self._request = pid, request
        self._connection: Sql | None = None
        self._looks: list[tuple[float, Sequence[ReplicationStatus]]] = []
        self._delays_before: _Delays = {}
        self._delays: _Delays = {}
        self._has_times = False
        self.own_tid: int | None = None
        self.unavailable: str | None = None

    def _open(self) -> None:
        try:
            require_server_program(self._pid)
            self._connection = connection = self._connect()
            if not read_replication_status(connection):
                self.close()
                self.unavailable = "the server is not a replica"
                return
            with suppress(StatementError):
                _read_delays(connection)
                self._has_times = True
            self.own_tid = _read_own_thread(connection, self._pid)
        except (PowerprofError, OSError) as error:
            self.close()
            self.unavailable = error.message if isinstance(error, PowerprofError) else str(error)

    def _connect(self) -> Sql:
        request = self._request
        if request.names_server:
            from powerprof.database.given import given_server

            with given_server(request.server_url, request.socket, request.defaults_file) as server:
                if server.pid != self._pid:
                    raise PowerprofError("the named server is another process", "name the one of --pid")
                return server.connect(limits=_LIMITS)
        entered = log_in_locally(self._pid, _LIMITS)
        if entered is None:
            raise PowerprofError("the server refuses this user on its socket", "--defaults-file")
        return entered[1]

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(PowerprofError, OSError):
                connection.close()

    @property
    def parts(self) -> tuple[WindowPart, ...]:
        """The parts that a window begins, reads and ends."""
        return () if self._connection is None else (self,)

    @property
    def read_interval_s(self) -> float:
        return _INTERVAL_S if self._connection is not None else math.inf

    def begin(self) -> None:
        self._looks, self._delays, self._delays_before = [], {}, {}
        if self._connection is not None and self._has_times:
            with suppress(PowerprofError):
                self._delays_before = _read_delays(self._connection)
        self.read()

    def read(self) -> None:
        if self._connection is None:
            return
        try:
            self._looks.append((time.monotonic(), read_replication_status(self._connection)[:_MAX_CHANNELS]))
            if self._has_times:
                self._delays |= _read_delays(self._connection)
        except PowerprofError as error:
            # The server has ended or hangs. Later windows do not wait for it again.
            self.close()
            self._looks = []
            self.unavailable = f"the server no longer answers ({error.message})"

    def end(self) -> None:
        self.read()

    def collect(self) -> ReplicaLag | None:
        """Return the lag in the last window; None if the replica gave no report."""
        if not self._looks:
            return None
        new_ms = [delay_ms for key, delay_ms in self._delays.items() if key not in self._delays_before]
        (first_s, _), (last_s, _) = self._looks[0], self._looks[-1]
        looks = [channels for _, channels in self._looks]
        return summarize_looks(looks, last_s - first_s, new_ms if self._has_times else None)


def _read_own_thread(connection: Sql, pid: int) -> int | None:
    """Return the server's thread of this connection, by its number outside of a container; None if unknown."""
    for statement in _OWN_THREAD:
        with suppress(StatementError):
            inner_tid = sql.parse_count(sql.fetch_scalar(connection, statement))
            if inner_tid:
                return read_outer_ids(pid).get(inner_tid, inner_tid)
    return None


def _read_delays(connection: Sql) -> _Delays:
    delays: _Delays = {}
    for worker, channel, ended, delay_us in sql.fetch_rows(connection, _APPLIED, columns=4):
        delay = sql.parse_number(delay_us)
        if delay is not None:
            delays[(str(channel), str(worker), str(ended))] = delay / 1000
    return delays


def summarize_looks(
    looks: Sequence[Sequence[ReplicationStatus]], window_s: float, delays_ms: Sequence[float] | None
) -> ReplicaLag:
    """Return the lag of one window. If there are several channels, each report counts by its slowest one.

    `delays_ms` are the delays of the transactions applied in the window; None if the replica keeps no times.
    """
    lags = [_highest([channel.seconds_behind for channel in channels]) for channels in looks]
    backlog = _mean([_highest([_backlog_bytes(channel) for channel in channels]) for channels in looks])
    stopped = sum(any(channel.sql_running is False for channel in channels) for channels in looks)
    delay: float | None
    if delays_ms is not None:
        delay, source = (median(delays_ms) if delays_ms else None), COMMITTED
    else:
        applied, source = _applied_bytes(looks), RECEIVED
        delay = 1000 * backlog * window_s / applied if backlog is not None and applied else None
    return ReplicaLag(len(looks), stopped, _mean(lags), backlog, delay, source)


def _applied_bytes(looks: Sequence[Sequence[ReplicationStatus]]) -> int | None:
    """Return the bytes applied between the first report and the last.

    None if the source began another file in between, and if there are several channels: their sources differ.
    """
    if any(len(channels) != 1 for channels in looks):
        return None
    first, last = looks[0][0], looks[-1][0]
    if first.executed_log_file != last.executed_log_file:
        return None
    if first.executed_position_bytes is None or last.executed_position_bytes is None:
        return None
    return last.executed_position_bytes - first.executed_position_bytes


def _backlog_bytes(status: ReplicationStatus) -> int | None:
    read, executed = status.read_position_bytes, status.executed_position_bytes
    if read is None or executed is None or status.source_log_file != status.executed_log_file:
        return None
    return max(0, read - executed)


def _highest(values: Sequence[int | None]) -> int | None:
    """Return the highest value; None if a value is unknown, or without values."""
    numbers = [value for value in values if value is not None]
    return max(numbers) if values and len(numbers) == len(values) else None


def _mean(values: Sequence[int | None]) -> float | None:
    """Return the mean; None if a value is unknown, or without values."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if values and len(numbers) == len(values) else None
