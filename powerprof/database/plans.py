# SPDX-License-Identifier: Apache-2.0
"""Plans of statements of clients, with their values, under a read-only account."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from powerprof.database import sql
from powerprof.database.base import ExplainedStep, Limits, Login, StatementError
from powerprof.database.postgres_plans import explain_generic
from powerprof.system.errors import PowerprofError
from powerprof.system.foreign_text import printable

if TYPE_CHECKING:
    from powerprof.database.base import Sql


_EXPLAINING_LIMITS = Limits(answer_s=3.0, waiting_s=6.0, rows=1000, answer_bytes=1 << 20)
_MAX_STEPS = 20
_MAX_NAME = 128
_CLIENT_ERRORS = range(2000, 3000)  # the client library's own numbers (errmsg.h)


def explain(login: Login, statement: str, schema: str | None, user: str | None = None) -> list[ExplainedStep]:
    """Return the plan. Raise StatementError if the server refuses, PowerprofError if it cannot be reached.

    `user` is the account of PostgreSQL that sent the statement.

    `login` must be a `ReadOnlyAccount`: servers execute functions during planning with the rights of the caller.
    Servers before MariaDB 5.3 and MySQL 5.6 execute derived tables to explain them. The limit is 3 s.
    """
    if login.family == "postgresql":
        return explain_generic(login.in_database(schema), statement, user)
    with sql.connect(login, limits=_EXPLAINING_LIMITS) as connection:
        if schema:
            sql.execute(connection, f"USE `{schema.replace('`', '``')}`")
        _limit_session(connection)
        number = sql.parse_count(sql.fetch_scalar(connection, "SELECT CONNECTION_ID()"))
        try:
            return [_parse_step(row) for row in sql.fetch_records(connection, sql.EXPLAIN + statement)[:_MAX_STEPS]]
        except StatementError as error:
            if error.number in _CLIENT_ERRORS and number is not None:
                _kill_statement(login, number)
            raise


def _kill_statement(login: Login, number: int) -> None:
    """Kill a statement that timed out; the server would continue it."""
    with suppress(PowerprofError), sql.connect(login, limits=_EXPLAINING_LIMITS) as connection:
        sql.execute(connection, f"KILL {number}")


def _limit_session(connection: Sql) -> None:
    """Limit a session as far as the server's release can.

    It may write nothing, not even to tables that everyone may write (MySQL 5.6, MariaDB 10.0), and a statement takes at
    most 3 s.
    """
    for statement in (
        "SET SESSION TRANSACTION READ ONLY",
        "SET SESSION max_statement_time = 3",
        "SET SESSION max_execution_time = 3000",
    ):
        try:
            sql.execute(connection, statement)
        except StatementError as error:
            if error.number >= 2000 or error.number == 0:
                raise PowerprofError(error.message, error.hint) from error


def _parse_step(row: dict[str, object]) -> ExplainedStep:
    named = {name.lower(): value for name, value in row.items()}

    def word(name: str) -> str | None:
        value = named.get(name)
        return printable(str(value)[:_MAX_NAME]) if value not in (None, "") else None

    # Engines that evaluate conditions themselves (NDB) show them with their values.
    extra = word("extra")
    shown = None if extra is None else extra.partition(" with pushed condition")[0]
    return ExplainedStep(word("table"), word("type"), word("key"), sql.parse_count(named.get("rows")), shown)
