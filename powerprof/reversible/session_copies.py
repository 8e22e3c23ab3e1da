# SPDX-License-Identifier: Apache-2.0
"""Session copies of global variables.

A server copies many global variables into each new connection (`sql_mode`, `autocommit`, `long_query_time`). SET GLOBAL
does not reach existing copies, so restoring the global value leaves the changed value in every connection that opened
in between, for as long as a connection pool keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from powerprof.database import sql
from powerprof.database.base import Limits, Login, StatementError
from powerprof.system.errors import PowerprofError
from powerprof.system.foreign_text import printable

if TYPE_CHECKING:
    from powerprof.database.base import Sql


# ER_INCORRECT_GLOBAL_LOCAL_VAR: "Variable '%s' is a GLOBAL variable"; ER_SPECIFIC_ACCESS_DENIED_ERROR
_GLOBAL_ONLY, _DENIED = 1238, 1227
_READ_ONLY = "SELECT read_only FROM information_schema.system_variables WHERE variable_name = %s"
# Global variables without session scope. The server runs their statements in each new session.
_RUN_IN_SESSIONS = ("init_connect", "init_slave", "init_replica")
_MAX_LISTED = 20
_SESSIONS_LIMITS = Limits(answer_s=5.0, waiting_s=8.0, rows=20_000, answer_bytes=4 << 20)


def is_read_only(connection: Sql, name: str) -> bool:
    """Return whether MariaDB lists a global variable as read-only; False on servers without the list (MySQL)."""
    try:
        rows = sql.fetch_rows(connection, _READ_ONLY, (name,))
    except StatementError:
        return False
    return bool(rows) and rows[0][0] == "YES"


def has_session_copies(connection: Sql, name: str) -> bool:
    """Return whether connections keep a copy of global variable `name`, a valid name. Raise StatementError."""
    if name.casefold() in _RUN_IN_SESSIONS:
        return True
    try:
        sql.fetch_rows(connection, f"SELECT @@SESSION.{name}")
    except StatementError as error:
        if error.number == _GLOBAL_ONLY:
            return False
        raise
    return True


class OpenConnection(msgspec.Struct, frozen=True):
    """A client's connection from the process list of the server."""

    id: int
    user: str
    host: str


class NewConnections(msgspec.Struct):
    """The connections that open while a variable is changed, with `counted` around each change.

    Servers number connections in order, so the connection numbers before and after a change enclose them. An older
    connection that is reset during the change (COM_RESET_CONNECTION) has a new copy too, and is not found.
    """

    login: Login
    _spans: list[tuple[int, int]] = msgspec.field(default_factory=list)

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
        with sql.connect(self.login, limits=_SESSIONS_LIMITS) as connection:
            try:
                # Without the right PROCESS the list below contains only the connections of this account, and no error.
                sql.fetch_rows(connection, "SHOW ENGINE InnoDB MUTEX")
            except StatementError as error:
                if error.number == _DENIED:
                    return None
                raise
            rows = sql.fetch_rows(connection, "SELECT ID, USER, HOST FROM information_schema.PROCESSLIST", columns=3)
        connections = [
            OpenConnection(sql.parse_count(number) or 0, str(user), str(host)) for number, user, host in rows
        ]
        return sorted(
            (each for each in connections if any(first < each.id < last for first, last in self._spans)),
            key=lambda each: each.id,
        )

    def _next_number(self) -> int:
        with sql.connect(self.login, limits=_SESSIONS_LIMITS) as connection:
            return sql.parse_count(sql.fetch_scalar(connection, "SELECT CONNECTION_ID()")) or 0


def kept_text(name: str, value: str, connections: list[OpenConnection] | None) -> str:
    """Return a sentence about the connections that keep `value` of variable `name`; empty without such connections."""
    advice = "close and open them again, or restart the pools of their clients"
    if connections is None:
        return (
            f"connections that opened while {name} was {value} keep that value, and this account cannot list them "
            f"(it needs the right PROCESS): {advice}"
        )
    if not connections:
        return ""
    shown = ", ".join(f"{each.id} {printable(f'{each.user}@{each.host}')[:80]}" for each in connections[:_MAX_LISTED])
    more = len(connections) - _MAX_LISTED
    number = "1 open connection" if len(connections) == 1 else f"{len(connections)} open connections"
    return (
        f"{number} started while {name} was {value} and may keep that value: {shown}"
        f"{f' and {more} more' if more > 0 else ''}; {advice}"
    )
