# SPDX-License-Identifier: Apache-2.0
"""The data of an experiment's servers: schemas, checked plans, and the server's own counters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from powerprof.database import sql
from powerprof.database import topology as routing
from powerprof.model.text import plural
from powerprof.system import signals
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.outside_files import read_outside_text
from powerprof.workloads import dataset as world
from powerprof.workloads.definition import Dataset, Explain, PlanStep, Topology
from powerprof.workloads.reading import SQL_LIMIT_BYTES, Case, LoadedWorkload, read_sql
from powerprof.workloads.statements import split_statements

if TYPE_CHECKING:
    from powerprof.database.base import Server, Sql


# A window cuts the statements of a few clients at its edges.
_COUNTER_SHARE, _COUNTER_EDGE = 0.02, 40


class PlanMismatch(PowerprofError):
    """The server does not run the statement as the workload requires."""


def check_plan(condition: str, wanted: Explain, rows: Sequence[Mapping[str, Any]]) -> None:
    """Check that every step of the workload is in the plan. Raise PlanMismatch, which shows the actual plan."""
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
    """Return one row of EXPLAIN in words: `city_huge ref on name_btree, 5 rows`."""
    words = [str(row.get("table")), str(row.get("type"))]
    if row.get("key"):
        words.append(f"on {row['key']}")
    rows = row.get("rows")
    return " ".join(words) + (f", {plural(int(rows), 'row')}" if rows is not None else "")


def read_counters(connection: Sql) -> dict[str, int]:
    """Read the server's counters of statements and rows; the reading itself adds to them. Raise PowerprofError."""
    return sql.dialect_of(connection).read_counters(connection)


def subtract_counters(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the change of each counter."""
    return {name: max(0, after[name] - before[name]) for name in after if name in before}


def count_queries(moved: Mapping[str, int], *, transactions: bool = False) -> int:
    """Return the statements that clients ran: Questions minus the second reading and the COM_QUIT per connection.

    Checked with 10.11: 1,000 statements over 4 connections count 1,005. Prepares and closes are no Questions. For a
    load of transactions, return the commits.
    """
    if transactions:
        return moved.get("Com_commit", 0)
    return max(0, moved.get("Questions", 0) - 1 - moved.get("Connections", 0))


def check_counters(condition: str, wanted: Mapping[str, float], moved: Mapping[str, int], queries: int | None) -> None:
    """Check the change per query of the counters that identify a condition. Raise PlanMismatch."""
    for name, each in wanted.items():
        if name not in moved or not queries:
            raise PlanMismatch(f"{condition}: this server does not count {name}", "use another server, or leave it out")
        if abs(moved[name] - each * queries) > _COUNTER_SHARE * queries + _COUNTER_EDGE:
            raise PlanMismatch(
                f"{condition}: {name} moved {moved[name] / queries:.3g} times a query, and not {each:g}: "
                "the load is not the one to measure"
            )


def read_done(connection: Sql, counted: str) -> int:
    """Read the amount of work from the workload's own statement. Raise PowerprofError if it is not a whole number."""
    count = sql.parse_count(sql.fetch_scalar(connection, counted))
    if count is None:
        raise PowerprofError(f"load.counted: {counted[:60]!r} gave no whole number", "one row with one number")
    return count


def check_data(connection: Sql, condition: str, checks: Sequence[str]) -> None:
    """Run statements that must return no rows. Raise PowerprofError with the first row of the first failing one."""
    for number, statement in enumerate(checks, 1):
        rows = sql.fetch_rows(connection, statement)
        if rows:
            row = ", ".join(str(value) for value in rows[0])
            raise PowerprofError(
                f"{condition}: consistency check {number} of the data failed: {row[:200]}",
                "the load or the server lost or doubled statements, so its figures are invalid",
            )


def count_rows(moved: Mapping[str, int]) -> int | None:
    """Return the rows that the storage engines read, with a dozen for the reading itself; None without counters."""
    counted = [moved[name] for name in sql.ROWS if name in moved]
    return sum(counted) if counted else None


def schema_name(workload: LoadedWorkload) -> str | None:
    """Return the schema that powerprof makes for a workload; None without tables."""
    dataset = workload.definition.dataset
    if dataset.kind == "world":
        return world.SCHEMA_NAME
    if dataset.kind == "sql":
        return "powerprof_" + re.sub(r"[^a-z0-9_]", "_", workload.definition.name)
    return None


def load_database(case: Case) -> str | None:
    """Return the schema of the load: its own, or the one made for the workload."""
    return case.load.database or schema_name(case.workload)


def make_schemas(
    members: Mapping[str, Server],
    workload: LoadedWorkload,
    topology: Topology,
    made: list[str],
    *,
    world_sql: Path | None,
) -> None:
    """Make the schema on the server under load, or on both hosts and the router of a routed pair.

    Raises PowerprofError, UsageError.
    """
    dataset, name = workload.definition.dataset, schema_name(workload)
    first = next(iter(members.values()))
    if topology.kind != "routed-pair" or name is None:
        make_schema(first, workload, dataset, made, world_sql)
        return
    for host in topology.routes:
        # Make all tables on both hosts. A host receives no queries for tables that are not routed to it.
        make_schema(members[host], workload, dataset, [], world_sql)
    with first.connect() as connection:
        sql.execute(connection, f"CREATE DATABASE `{name}` DEFAULT CHARACTER SET latin1", f"USE `{name}`")
        routing.create_routed_tables(connection, name, {str(host): tables for host, tables in topology.routes.items()})


def make_schema(
    server: Server, workload: LoadedWorkload, dataset: Dataset, made: list[str], world_sql: Path | None = None
) -> None:
    """Create and fill the workload's schema; add its name to `made` once it exists.

    Raises PowerprofError, and UsageError if the schema belongs to another user.
    """
    name = schema_name(workload)
    if name is None:
        return
    remove_schema(server, name)
    signals.hold()  # between its statements the owner of the schema is not recorded yet
    try:
        sql.dialect_of_server(server).create_schema(server, name)
        made.append(name)
    finally:
        signals.release()
    with server.connect(database=name) as connection:
        if dataset.kind == "world":
            _make_world(server, connection, dataset, world_sql)
        else:
            for file in dataset.files:
                path = workload.folder / file
                text = read_sql(workload.folder, file).replace("{{warehouses}}", str(dataset.warehouses))
                _run(connection, split_statements(text), str(path))


def _make_world(server: Server, connection: Sql, dataset: Dataset, world_sql: Path | None) -> None:
    sql.execute(connection, *world.schema_statements(dataset.engine))
    if world_sql is None:
        _run(connection, world.row_statements(dataset.seed), "the world dataset")
    else:
        source = load_official(server, world_sql)
        _run(connection, world.official_statements(source), str(world_sql))
        sql.execute(connection, f"DROP DATABASE `{source}`")
    _run(connection, world.huge_statements(dataset.huge_copies), "city_huge")
    sql.execute(connection, "ANALYZE TABLE City, Country, CountryLanguage, city_huge")


def load_official(server: Server, path: Path) -> str:
    """Load the official world.sql, which makes a schema `world`; return its name.

    Raises UsageError on a given server: the file drops any existing `world`.
    """
    if not server.private:
        raise UsageError("world.sql drops a schema called world", "load it into a private server (the default)")
    # Use a connection, not the client program: its input has commands such as `system` and `\\!`.
    with server.connect() as connection:
        _run(connection, split_statements(read_outside_text(path, SQL_LIMIT_BYTES)), str(path))
    with server.connect() as connection:
        tables = sql.fetch_rows(connection, "SHOW TABLES FROM world")
    if "city" not in {str(row[0]) for row in tables}:
        raise PowerprofError(f"{path} made no table world.city", "is it the official world.sql?")
    return "world"


def remove_schema(server: Server, name: str) -> None:
    """Drop the schema if powerprof made it. Raise UsageError if it belongs to another user."""
    dialect = sql.dialect_of_server(server)
    ours = dialect.is_own(server, name)
    if ours is False:
        raise UsageError(f"the server has a schema {name} that powerprof did not make", "rename or drop it")
    if ours:
        dialect.drop_schema(server, name)


def _run(connection: Sql, statements: Iterable[str], what: str) -> None:
    try:
        sql.execute(connection, *statements)
    except PowerprofError as error:
        raise PowerprofError(
            f"cannot load {what}: {error.message}", error.hint or "name a file of SQL statements"
        ) from error
