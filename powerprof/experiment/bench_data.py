# SPDX-License-Identifier: Apache-2.0
"""The server's plans, asserted before anything is measured, and its own counts of what it did."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from powerprof.database.clients import dialects, sql
from powerprof.database.clients.connections import check_connections
from powerprof.database.private import topology as routing
from powerprof.database.products.options import MemberPlan, plan_topology
from powerprof.experiment.bench_settings import global_change
from powerprof.system import signals
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.files import read_outside_text
from powerprof.workloads import dataset as world
from powerprof.workloads.definition import Dataset, Explain, PlanStep, Topology
from powerprof.workloads.reading import Case, LoadedWorkload, split_statements

if TYPE_CHECKING:
    from powerprof.database.clients.base import Server, Sql
    from powerprof.database.products.builds import ServerBuild


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


def read_counters(connection: Sql) -> dict[str, int]:
    """The server's counters of statements and rows; the reading itself adds to them. Raises PowerprofError."""
    return dialects.dialect_of(connection).counters(connection)


def moved_between(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
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


def read_done(connection: Sql, counted: str) -> int:
    """What a workload's own statement says was done until now. Raises PowerprofError where it says no number."""
    count = sql.parse_count(sql.fetch_scalar(connection, counted))
    if count is None:
        raise PowerprofError(f"load.counted: {counted[:60]!r} gave no whole number", "one row with one number")
    return count


def check_data(connection: Sql, condition: str, checks: Sequence[str]) -> None:
    """Ask what has to have no rows. Raises PowerprofError with the first row of the first that has."""
    for number, statement in enumerate(checks, 1):
        rows = sql.fetch_rows(connection, statement)
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


# Where an experiment's servers run, and what of it a condition cannot have.


@dataclass(frozen=True)
class BenchOptions:
    """Where the servers run. `given` is used as it is; else private ones are started.

    `server_cpus` and `client_cpus` pin the two apart, `member_cpus` servers of a topology by name or role. `world_sql`
    is the official dataset to use. With `network_namespaces` every server of a topology has a network of its own, where
    this host can. `trust`: a workload of somebody may run the programs that it brings.
    """

    given: Server | None = None
    server_cpus: tuple[int, ...] | None = None
    client_cpus: tuple[int, ...] | None = None
    member_cpus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    world_sql: Path | None = None
    server_binary: Path | None = None
    server_basedir: Path | None = None
    server_build: ServerBuild | None = None
    network_namespaces: bool = False
    trust: bool = False


def check_supported(cases: Sequence[Case], options: BenchOptions, *, apart: bool) -> None:
    """Raises UsageError for options that a condition cannot have or that do nothing for any; `apart`: one at a time."""
    for case in cases:
        _check_given(case, options)
        _check_globals(case)
    known = {name for case in cases for member in _plans(case) for name in (member.name, member.role)}
    unknown = next((name for name in options.member_cpus if name not in known), None)
    if unknown is not None:
        raise UsageError(
            f"--server-cpus {unknown}=…: {cases[0].qualified} has no such server",
            f"it has: {', '.join(sorted(known))}" if known else "it has one server: --server-cpus 0",
        )
    if options.network_namespaces and all(case.topology.kind == "standalone" for case in cases):
        raise UsageError(f"--network-namespaces has no effect on {cases[0].qualified}, one server", "leave it out")
    if options.world_sql is not None and all(case.workload.definition.dataset.kind != "world" for case in cases):
        raise UsageError(f"--world-sql has no effect on {cases[0].qualified}: it has other tables", "leave it out")
    if options.given is not None:
        # Conditions that take turns are all connected at once.
        clients = [case.load.clients for case in cases]
        check_connections(options.given, max(clients) if apart else sum(clients))


def _check_sql(case: Case) -> None:
    """Raise UsageError if the SQL of a condition sets a global variable, which no process would restore."""
    definition, own = case.workload.definition, case.condition
    texts = {
        "setup": [*definition.setup, *own.setup],
        "enter": own.enter,
        "leave": own.leave,
        "explain": [wanted.statement for wanted in (*definition.explain, *own.explain)],
        "load.session": case.load.session,
        "load.counted": [case.load.counted] if case.load.counted else [],
        "load.checks": case.load.checks,
        "load.sql": case.load.sql,
    }
    for key, names in (("load.files", case.load.files), ("dataset.files", definition.dataset.files)):
        files = [read_outside_text(case.workload.folder / name, SQL_LIMIT_BYTES) for name in names]
        texts[key] = [statement for file in files for statement in split_statements(file)]
    for key, statements in texts.items():
        for statement in statements:
            if (change := global_change(statement)) is not None:
                raise UsageError(
                    f"{case.qualified}: {key} sets a global variable of the given server ({change})",
                    "use set_global = { NAME = VALUE } in [server] or the condition instead: it is restored",
                )


def _check_globals(case: Case) -> None:
    """Refuse a variable that lets clients send files; their sandbox holds without this check as well."""
    for name in case.server.set_global:
        if name.lower().replace("-", "_") == "local_infile":
            raise UsageError(f"{case.qualified} sets {name}, which lets servers read clients' files", "leave it out")


def _plans(case: Case) -> Sequence[MemberPlan]:
    return [] if case.topology.kind == "standalone" else plan_topology(case.topology.kind, case.topology.count)


def cpus_of(member: MemberPlan, options: BenchOptions) -> tuple[int, ...] | None:
    """The CPUs of one server of a topology: by its name, else by its role; None where none were chosen for it."""
    return options.member_cpus.get(member.name) or options.member_cpus.get(member.role)


def _check_given(case: Case, options: BenchOptions) -> None:
    if options.given is not None and case.topology.kind != "standalone":
        raise UsageError(
            f"{case.qualified} needs {case.topology.kind} servers, and a given server is one",
            "leave --server, --socket and --defaults-file out",
        )
    if options.given is not None and case.server.kind != options.given.login.family:
        raise UsageError(
            f"{case.qualified} is for servers of kind {case.server.kind}, and {options.given.version} was given",
            "leave --server, --socket and --defaults-file out: a private server is started",
        )
    if options.given is not None:
        _check_sql(case)
    server = case.server
    if options.given is not None and (
        server.settings or server.environment or server.build or server.disk_operations_hz is not None
    ):
        raise UsageError(
            f"{case.qualified} needs a server started with its own settings, which a given server cannot be",
            "leave --server, --socket and --defaults-file out: a private server is started",
        )


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


def make_schemas(
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
        make_schema(first, workload, dataset, made, world_sql)
        return
    for host in topology.routes:
        # All tables on both: what is not routed to a host is not asked of it.
        make_schema(members[host], workload, dataset, [], world_sql)
    with first.connect() as connection:
        sql.execute(connection, f"CREATE DATABASE `{name}` DEFAULT CHARACTER SET latin1", f"USE `{name}`")
        routing.create_routed_tables(connection, name, {str(host): tables for host, tables in topology.routes.items()})


def make_schema(
    server: Server, workload: LoadedWorkload, dataset: Dataset, made: list[str], world_sql: Path | None = None
) -> None:
    """Create and fill the workload's schema; `made` gets its name once it exists, however the filling ends.

    Raises PowerprofError, UsageError where it is somebody else's.
    """
    name = schema_of(workload)
    if name is None:
        return
    remove_schema(server, name)
    signals.hold()  # between its statements nobody could say whose schema it is
    try:
        dialects.dialect_of_server(server).create(server, name)
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
        tables = sql.fetch_rows(connection, "SHOW TABLES FROM world")
    if "city" not in {str(row[0]) for row in tables}:
        raise PowerprofError(f"{path} made no table world.city", "is it the official world.sql?")
    return "world"


def remove_schema(server: Server, name: str) -> None:
    """Drop the schema if powerprof made it. Raises UsageError where it is somebody else's."""
    dialect = dialects.dialect_of_server(server)
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
