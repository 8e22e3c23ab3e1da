# SPDX-License-Identifier: Apache-2.0
"""Session copies of global variables.

A server copies many global variables into each new connection (`sql_mode`, `autocommit`, `long_query_time`). SET GLOBAL
does not reach existing copies, so restoring the global value leaves the changed value in every connection that opened
in between, for as long as a connection pool keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from powerprof.database.clients import sql
from powerprof.database.clients.base import Limits, Login, StatementError
from powerprof.errors import PowerprofError
from powerprof.untrusted import printable

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql

# ER_INCORRECT_GLOBAL_LOCAL_VAR: "Variable '%s' is a GLOBAL variable"; ER_SPECIFIC_ACCESS_DENIED_ERROR
_GLOBAL_ONLY, _DENIED = 1238, 1227
# Global variables without session scope. The server runs their statements in each new session.
_RUN_IN_SESSIONS = ("init_connect", "init_slave", "init_replica")
_MOST_LISTED = 20
_LIMITS = Limits(answer_s=5.0, waiting_s=8.0, rows=20_000, answer_bytes=4 << 20)


def has_session_copies(connection: Sql, name: str) -> bool:
    """Return whether connections keep a copy of global variable `name`, a valid name. Raise StatementError."""
    if name.casefold() in _RUN_IN_SESSIONS:
        return True
    try:
        sql.rows(connection, f"SELECT @@SESSION.{name}")
    except StatementError as error:
        if error.number == _GLOBAL_ONLY:
            return False
        raise
    return True


@dataclass(frozen=True)
class OpenConnection:
    """A connection of a client, as the process list of the server shows it."""

    id: int
    user: str
    host: str


@dataclass
class NewConnections:
    """The connections that open while a variable is changed: `with connections.counted():` around each change.

    Servers number connections in order, so the connection numbers before and after a change enclose them. A connection
    that opened earlier and was reset meanwhile (COM_RESET_CONNECTION) has a new copy too, and is not found.
    """

    login: Login
    _spans: list[tuple[int, int]] = field(default_factory=list)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Note the connection numbers before and after the block. Raise PowerprofError if the first is unknown."""
        first = self._next_number()
        try:
            yield
        finally:
            try:
                last = self._next_number()
            except PowerprofError:  # The server ended, and its connections with it, or it is full.
                last = 1 << 64
            self._spans.append((first, last))

    def still_open(self) -> list[OpenConnection] | None:
        """Return the connections that are open now, by number; None if the account has no right to see them.

        Raise PowerprofError.
        """
        with sql.connect(self.login, limits=_LIMITS) as connection:
            try:
                # Without the right PROCESS the list below has only the account's own connections, without an error.
                sql.rows(connection, "SHOW ENGINE InnoDB MUTEX")
            except StatementError as error:
                if error.number == _DENIED:
                    return None
                raise
            rows = sql.rows(connection, "SELECT ID, USER, HOST FROM information_schema.PROCESSLIST", columns=3)
        found = [OpenConnection(sql.count(number) or 0, str(user), str(host)) for number, user, host in rows]
        return sorted(
            (one for one in found if any(first < one.id < last for first, last in self._spans)), key=lambda one: one.id
        )

    def _next_number(self) -> int:
        with sql.connect(self.login, limits=_LIMITS) as connection:
            return sql.count(sql.scalar(connection, "SELECT CONNECTION_ID()")) or 0


def kept_text(name: str, value: str, connections: list[OpenConnection] | None) -> str:
    """Return a sentence about the connections that keep `value` of variable `name`; empty if there are none."""
    advice = "close and open them again, or restart the pools of their clients"
    if connections is None:
        return (
            f"connections that opened while {name} was {value} keep that value, and this account cannot list them "
            f"(it needs the right PROCESS): {advice}"
        )
    if not connections:
        return ""
    shown = ", ".join(f"{one.id} {printable(f'{one.user}@{one.host}')[:80]}" for one in connections[:_MOST_LISTED])
    more = len(connections) - _MOST_LISTED
    number = "1 open connection" if len(connections) == 1 else f"{len(connections)} open connections"
    return (
        f"{number} started while {name} was {value} and may keep that value: {shown}"
        f"{f' and {more} more' if more > 0 else ''}; {advice}"
    )
