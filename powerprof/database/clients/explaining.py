# SPDX-License-Identifier: Apache-2.0
"""The plan of a statement that a client executed: EXPLAIN with its own values, by an account that only reads."""

from __future__ import annotations

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
        return [_step(row) for row in sql.records(connection, f"EXPLAIN {statement}")[:_MOST_STEPS]]


def _bounded(connection: Sql) -> None:
    """As far as the server knows how (MySQL 5.6, MariaDB 10.0): no writing to where anybody may write, 3 s at most."""
    for statement in ("SET SESSION TRANSACTION READ ONLY", "SET SESSION max_statement_time = 3"):
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

    return ExplainedStep(word("table"), word("type"), word("key"), sql.count(named.get("rows")), word("extra"))
