# SPDX-License-Identifier: Apache-2.0
"""The server's plans, asserted before anything is measured, and its own counts of what it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from powerprof.database.clients import dialects, sql
from powerprof.errors import PowerprofError
from powerprof.workloads.definition import Explain, PlanStep

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql

# At its edges a window cuts statements of a few clients.
_COUNTER_SHARE, _COUNTER_EDGE = 0.02, 40


class PlanMismatch(PowerprofError):
    """The server does not run the statement as the workload says it must."""


def check_plan(condition: str, wanted: Explain, rows: Sequence[Mapping[str, Any]]) -> None:
    """Every step of the workload must be in the plan. Raises PlanMismatch, which says what is there instead."""
    for step in wanted.plan:
        if not any(_fits(step, row) for row in rows):
            plan = "; ".join(plan_text(row) for row in rows)
            raise PlanMismatch(
                f"{condition}: the plan is not the one to measure: wanted {_step_text(step)}, found {plan}",
                "another server version, setting or table size may plan differently",
            )


def _fits(step: PlanStep, row: Mapping[str, Any]) -> bool:
    if step.table != row.get("table"):
        return False
    if step.type and row.get("type") not in step.type:
        return False
    if step.select_type and row.get("select_type") not in step.select_type:
        return False
    return step.key is None or step.key == row.get("key")


def _step_text(step: PlanStep) -> str:
    words = [step.table, "/".join(step.select_type), "/".join(step.type), f"on {step.key}" if step.key else ""]
    return " ".join(word for word in words if word)


def plan_text(row: Mapping[str, Any]) -> str:
    """One row of EXPLAIN in words: `city_huge ref on name_btree, 5 rows`."""
    words = [str(row.get("table")), str(row.get("type"))]
    if row.get("key"):
        words.append(f"on {row['key']}")
    rows = row.get("rows")
    count = f", {int(rows):,} rows" if rows is not None else ""
    return " ".join(words) + count


def counters(connection: Sql) -> dict[str, int]:
    """The server's counters of statements and rows; the reading itself adds to them. Raises PowerprofError."""
    return dialects.of(connection).counters(connection)


def between(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """How far each counter moved."""
    return {name: max(0, after[name] - before[name]) for name in after if name in before}


def queries_in(moved: Mapping[str, int], *, transactions: bool = False) -> int:
    """Statements that the clients ran: Questions less the second reading and the COM_QUIT of each connection.

    Checked with 10.11: 1,000 statements over 4 connections count 1,005. Prepares and closes are no Questions.
    Of a load whose unit is the transaction it is what they committed.
    """
    if transactions:
        return moved.get("Com_commit", 0)
    return max(0, moved.get("Questions", 0) - 1 - moved.get("Connections", 0))


def check_counters(condition: str, wanted: Mapping[str, float], moved: Mapping[str, int], queries: int | None) -> None:
    """The counters that a condition is known by moved as often with a query as it says. Raises PlanMismatch."""
    for name, each in wanted.items():
        if name not in moved or not queries:
            raise PlanMismatch(f"{condition}: this server does not count {name}", "use another server, or leave it out")
        if abs(moved[name] - each * queries) > _COUNTER_SHARE * queries + _COUNTER_EDGE:
            raise PlanMismatch(
                f"{condition}: {name} moved {moved[name] / queries:.3g} times a query, and not {each:g}: "
                "the load is not the one to measure"
            )


def done(connection: Sql, counted: str) -> int:
    """What a workload's own statement says was done until now. Raises PowerprofError where it says no number."""
    count = sql.count(sql.scalar(connection, counted))
    if count is None:
        raise PowerprofError(f"load.counted: {counted[:60]!r} gave no whole number", "one row with one number")
    return count


def check_data(connection: Sql, condition: str, checks: Sequence[str]) -> None:
    """Ask what has to have no rows. Raises PowerprofError with the first row of the first that has."""
    for number, statement in enumerate(checks, 1):
        rows = sql.rows(connection, statement)
        if rows:
            row = ", ".join(str(value) for value in rows[0])
            raise PowerprofError(
                f"{condition}: check {number} of the data does not hold: {row[:200]}",
                "the load or the server lost or doubled something: its figures mean nothing",
            )


def rows_in(moved: Mapping[str, int]) -> int | None:
    """Rows that the storage engines handed over, a dozen for the reading itself; None where nothing counts them."""
    counted = [moved[name] for name in dialects.ROWS if name in moved]
    return sum(counted) if counted else None
