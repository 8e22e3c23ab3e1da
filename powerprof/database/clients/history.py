# SPDX-License-Identifier: Apache-2.0
"""The server's history of statements, read again and again: who executed what from when to when.

performance_schema keeps the last 10,000 statements (events_statements_history_long); on a busy server these are a
fraction of a second. Reading them costs the server some milliseconds, so that it is done rarely, and what each reading
covers is told with it. Its clock is brought to ours by statements of our own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from powerprof.database.clients import sql
from powerprof.database.clients.base import Limits, Login
from powerprof.errors import PowerprofError

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql

CONSUMERS = ("events_statements_current", "events_statements_history_long")
_STATE = "SELECT NAME, ENABLED FROM performance_schema.setup_consumers"
_SET = "UPDATE performance_schema.setup_consumers SET ENABLED = %s WHERE NAME = %s"
_ROWS = (
    "SELECT THREAD_ID, TIMER_START, TIMER_END, DIGEST FROM performance_schema.events_statements_{table}"
    " WHERE TIMER_END > {since} OR TIMER_END IS NULL"
)
_OWN = (
    "SELECT TIMER_START FROM performance_schema.events_statements_current c JOIN performance_schema.threads t"
    " USING (THREAD_ID) WHERE t.PROCESSLIST_ID = CONNECTION_ID() ORDER BY EVENT_ID LIMIT 1"
)
_THREADS = "SELECT THREAD_OS_ID, THREAD_ID FROM performance_schema.threads"
_TEXTS = "SELECT DIGEST, DIGEST_TEXT, SCHEMA_NAME FROM performance_schema.events_statements_summary_by_digest"
_MARKS = 20
_LIMITS = Limits(answer_s=20.0, waiting_s=7 * 86_400.0, rows=200_000, answer_bytes=64 << 20)


@dataclass
class StatementHistory:
    """What was read, on CLOCK_MONOTONIC. `events`: thread id of performance_schema → (from, to, digest);
    `covered`: stretches of which every statement was seen; `texts`: digest → text; `threads`: thread of the kernel →
    those of performance_schema that it was seen to be (servers keep threads for the next connection)."""

    events: dict[int, list[tuple[int, int, str]]] = field(default_factory=dict)
    covered: list[tuple[int, int]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    threads: dict[int, set[int]] = field(default_factory=dict)


def missing_consumers(connection: Sql) -> list[str]:
    """Those that are switched off. Raises StatementError where performance_schema is off or closed to this account."""
    state = {str(name): str(enabled) for name, enabled in sql.rows(connection, _STATE, columns=2)}
    if not state:
        raise PowerprofError("performance_schema is off", "performance_schema=ON at the server's start")
    return [name for name in CONSUMERS if state.get(name) != "YES"]


@contextmanager
def enabled(login: Login, names: list[str]) -> Iterator[None]:
    """The consumers on; off again afterwards, whatever happened. Raises StatementError where that is not allowed."""
    try:
        with sql.connect(login) as connection:
            for name in names:
                sql.rows(connection, _SET, ("YES", name))
        yield
    finally:
        with suppress(PowerprofError), sql.connect(login) as connection:
            for name in names:
                sql.rows(connection, _SET, ("NO", name))


class HistoryReader:
    """Reads the history on a connection of its own; a context manager. Raises StatementError."""

    def __init__(self, login: Login) -> None:
        self._connection = sql.connect(login, limits=_LIMITS)
        self.history = StatementHistory()
        self._offset_ns = self._calibrated()
        self._since = int(time.monotonic_ns() - self._offset_ns) * 1000
        size = "SELECT @@performance_schema_events_statements_history_long_size"
        self._size = sql.count(sql.scalar(self._connection, size)) or 0

    def close(self) -> None:
        """Leave the server."""
        self._connection.close()

    def _calibrated(self) -> int:
        """Our clock less the server's: of some statements the one that took least, within half of that."""
        best: tuple[int, int] | None = None
        for _ in range(_MARKS):
            sent = time.monotonic_ns()
            began = sql.count(sql.scalar(self._connection, _OWN))
            took = time.monotonic_ns() - sent
            if began and (best is None or took < best[0]):
                # Half of what is no execution lies before it; most of a round trip that short is not.
                best = (took, sent + took // 4 - began // 1000)
        if best is None:
            raise PowerprofError("performance_schema does not time statements", "setup_instruments: statement/% TIMED")
        return best[1]

    def read(self) -> float:
        """Take what ended since the last reading. Returns the seconds that it took."""
        began_ns = time.monotonic_ns()
        rows = sql.rows(self._connection, _ROWS.format(table="history_long", since=self._since), columns=4)
        full = len(rows) >= self._size > 0
        ended = [int(end) for _, _, end, _ in rows if end]
        self._keep(rows)
        # Where the table was replaced as a whole, statements before its oldest are not known.
        first = min(ended) if full and ended else self._since
        self.history.covered.append((first // 1000 + self._offset_ns, began_ns))
        self._since = (began_ns - self._offset_ns) * 1000
        self._keep_threads()
        return (time.monotonic_ns() - began_ns) / 1e9

    def finish(self) -> StatementHistory:
        """The last reading, with what runs still, and the names of all."""
        self.read()
        self._keep(sql.rows(self._connection, _ROWS.format(table="current", since=self._since), columns=4))
        for digest, text, _ in sql.rows(self._connection, _TEXTS, columns=3):
            if digest and text:
                self.history.texts[str(digest)] = text.decode() if isinstance(text, bytes) else str(text)[:4096]
        return self.history

    def _keep_threads(self) -> None:
        """At each reading: a connection may be gone at the end."""
        for os_id, number in sql.rows(self._connection, _THREADS, columns=2):
            tid, thread = sql.count(os_id), sql.count(number)
            if tid and thread:
                self.history.threads.setdefault(tid, set()).add(thread)

    def _keep(self, rows: list[sql.Row]) -> None:
        now_ns = time.monotonic_ns()
        for thread, start, end, digest in rows:
            number, begins = sql.count(thread), sql.count(start)
            if number is None or begins is None:
                continue
            ends = sql.count(end)
            until = now_ns if ends is None else ends // 1000 + self._offset_ns
            self.history.events.setdefault(number, []).append(
                (begins // 1000 + self._offset_ns, until, str(digest or ""))
            )
