# SPDX-License-Identifier: Apache-2.0
"""Making and removing the schema of a workload: only one that powerprof made is ever dropped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from powerprof.database.clients import dialects, sql
from powerprof.database.private import topology as routing
from powerprof.system import signals
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.files import read_outside_text
from powerprof.workloads import dataset as world
from powerprof.workloads.definition import Dataset, Topology
from powerprof.workloads.reading import Case, LoadedWorkload, split_statements

if TYPE_CHECKING:
    from powerprof.database.clients.base import Server, Sql

SQL_LIMIT_BYTES = 256 << 20


def schema_of(workload: LoadedWorkload) -> str | None:
    """The schema that powerprof makes for a workload; None where it brings no tables."""
    dataset = workload.definition.dataset
    if dataset.kind == "world":
        return world.SCHEMA_NAME
    if dataset.kind == "sql":
        return "powerprof_" + re.sub(r"[^a-z0-9_]", "_", workload.definition.name)
    return None


def database_of(case: Case) -> str | None:
    """The schema in which the load runs: the load's own, or the one made for the workload."""
    return case.load.database or schema_of(case.workload)


def make_all(
    members: Mapping[str, Server],
    workload: LoadedWorkload,
    topology: Topology,
    made: list[str],
    *,
    world_sql: Path | None,
) -> None:
    """The schema on the server under load; where tables are routed on both hosts, and on the router as theirs.

    Raises PowerprofError, UsageError.
    """
    dataset, name = workload.definition.dataset, schema_of(workload)
    first = next(iter(members.values()))
    if topology.kind != "routed-pair" or name is None:
        make(first, workload, dataset, made, world_sql)
        return
    for host in topology.routes:
        # All tables on both: what is not routed to a host is not asked of it.
        make(members[host], workload, dataset, [], world_sql)
    with first.connect() as connection:
        sql.execute(connection, f"CREATE DATABASE `{name}` DEFAULT CHARACTER SET latin1", f"USE `{name}`")
        routing.route(connection, name, {str(host): tables for host, tables in topology.routes.items()})


def make(
    server: Server, workload: LoadedWorkload, dataset: Dataset, made: list[str], world_sql: Path | None = None
) -> None:
    """Create and fill the workload's schema; `made` gets its name once it exists, however the filling ends.

    Raises PowerprofError, UsageError where it is somebody else's.
    """
    name = schema_of(workload)
    if name is None:
        return
    remove(server, name)
    signals.hold()  # between its statements nobody could say whose schema it is
    try:
        dialects.of_server(server).create(server, name)
        made.append(name)
    finally:
        signals.release()
    with server.connect(database=name) as connection:
        if dataset.kind == "world":
            _make_world(server, connection, dataset, world_sql)
        else:
            for file in dataset.files:
                path = workload.folder / file
                text = read_outside_text(path, SQL_LIMIT_BYTES).replace("{{warehouses}}", str(dataset.warehouses))
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
    """Load the official world.sql, which makes a schema `world`; returns its name.

    Raises UsageError on a given server: the file drops whatever `world` it finds there.
    """
    if not server.private:
        raise UsageError("world.sql drops a schema called world", "load it into a private server (the default)")
    # Over a connection, not by the client program: its input is a language of its own, with `system` and `\\!`.
    with server.connect() as connection:
        _run(connection, split_statements(read_outside_text(path, SQL_LIMIT_BYTES)), str(path))
    with server.connect() as connection:
        tables = sql.rows(connection, "SHOW TABLES FROM world")
    if "city" not in {str(row[0]) for row in tables}:
        raise PowerprofError(f"{path} made no table world.city", "is it the official world.sql?")
    return "world"


def remove(server: Server, name: str) -> None:
    """Drop the schema if powerprof made it. Raises UsageError where it is somebody else's."""
    dialect = dialects.of_server(server)
    ours = dialect.owner_of(server, name)
    if ours is False:
        raise UsageError(f"the server has a schema {name} that powerprof did not make", "rename or drop it")
    if ours:
        dialect.drop(server, name)


def _run(connection: Sql, statements: Iterable[str], what: str) -> None:
    try:
        sql.execute(connection, *statements)
    except PowerprofError as error:
        raise PowerprofError(f"cannot load {what}: {error.message}", error.hint) from error
