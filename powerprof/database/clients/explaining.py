# SPDX-License-Identifier: Apache-2.0
"""The plan of a statement that a client executed: EXPLAIN with its own values, by an account that only reads."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from powerprof.database.clients import sql
from powerprof.database.clients.base import Limits, Login, StatementError
from powerprof.errors import PowerprofError
from powerprof.untrusted import printable

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql

_LIMITS = Limits(answer_s=3.0, waiting_s=6.0, rows=1000, answer_bytes=1 << 20)
_MOST_STEPS = 20
_MOST_NAME = 128
_NO_ANSWER = range(2000, 3000)  # the client library's own numbers (errmsg.h)


@dataclass(frozen=True)
class ExplainedStep:
    """A row of EXPLAIN, as far as every server has it."""

    table: str | None
    access: str | None
    key: str | None
    rows: int | None
    extra: str | None


def explain(login: Login, statement: str, schema: str | None) -> list[ExplainedStep]:
    """The plan. Raises StatementError where the server refuses, PowerprofError where it cannot be reached.

    `login` is a reader's (`readers`): servers execute functions to make a plan, with the rights of who asks.
    Servers before MariaDB 5.3 and MySQL 5.6 execute derived tables to explain them: 3 s are their limit.
    """
    with sql.connect(login, limits=_LIMITS) as connection:
        if schema:
            sql.execute(connection, f"USE `{schema.replace('`', '``')}`")
        _bounded(connection)
        number = sql.count(sql.scalar(connection, "SELECT CONNECTION_ID()"))
        try:
            return [_step(row) for row in sql.records(connection, f"EXPLAIN {statement}")[:_MOST_STEPS]]
        except StatementError as error:
            if error.number in _NO_ANSWER and number is not None:
                _end(login, number)
            raise


def _end(login: Login, number: int) -> None:
    """What we no longer wait for the server would go on with."""
    with suppress(PowerprofError), sql.connect(login, limits=_LIMITS) as connection:
        sql.execute(connection, f"KILL {number}")


def _bounded(connection: Sql) -> None:
    """As far as the server knows how: no writing to where anybody may write (MySQL 5.6, MariaDB 10.0), 3 s at most, and
    rows where the server's own habit is a tree (MySQL 9.7)."""
    for statement in (
        "SET SESSION TRANSACTION READ ONLY",
        "SET SESSION max_statement_time = 3",
        "SET SESSION max_execution_time = 3000",
        "SET SESSION explain_format = 'TRADITIONAL'",
    ):
        try:
            sql.execute(connection, statement)
        except StatementError as error:
            if error.number >= 2000 or error.number == 0:
                raise PowerprofError(error.message, error.hint) from error


def _step(row: dict[str, object]) -> ExplainedStep:
    named = {name.lower(): value for name, value in row.items()}

    def word(name: str) -> str | None:
        value = named.get(name)
        return printable(str(value)[:_MOST_NAME]) if value not in (None, "") else None

    # Engines that search for themselves (NDB) show the condition that they were given, with its values.
    extra = word("extra")
    shown = None if extra is None else extra.partition(" with pushed condition")[0]
    return ExplainedStep(word("table"), word("type"), word("key"), sql.count(named.get("rows")), shown)
