# SPDX-License-Identifier: Apache-2.0
"""Options of the servers of an experiment, and their conflicts with conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from powerprof.database.connections import check_connections
from powerprof.database.topology import MemberPlan, plan_topology
from powerprof.experiment.bench_settings import find_global_change
from powerprof.system.errors import UsageError
from powerprof.workloads.reading import Case, read_sql
from powerprof.workloads.statements import split_statements

if TYPE_CHECKING:
    from powerprof.database.base import Server
    from powerprof.database.builds import ServerBuild


class BenchOptions(msgspec.Struct, frozen=True):
    """The servers of an experiment: a `given` one, or private ones.

    `server_cpus` and `client_cpus` pin servers and clients, `member_cpus` servers of a topology by name or role.
    `world_sql` is the official dataset. With `network_namespaces` every server of a topology has a separate network, if
    this host supports it. `trust` permits a workload to run its own programs.
    """

    given: Server | None = None
    server_cpus: tuple[int, ...] | None = None
    client_cpus: tuple[int, ...] | None = None
    member_cpus: Mapping[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    world_sql: Path | None = None
    server_binary: Path | None = None
    server_build: ServerBuild | None = None
    network_namespaces: bool = False
    trust: bool = False


def check_supported(cases: Sequence[Case], options: BenchOptions, *, apart: bool) -> None:
    """Raise UsageError for options that a condition contradicts, or that have no effect on any.

    With `apart` the conditions are measured one by one.
    """
    for case in cases:
        _check_given(case, options)
        _check_globals(case)
    known = {name for case in cases for member in _list_plans(case) for name in (member.name, member.role)}
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
        # Alternating conditions are connected at the same time.
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
        files = [read_sql(case.workload.folder, name) for name in names]
        texts[key] = [statement for file in files for statement in split_statements(file)]
    for key, statements in texts.items():
        for statement in statements:
            if (change := find_global_change(statement)) is not None:
                raise UsageError(
                    f"{case.qualified}: {key} sets a global variable of the given server ({change})",
                    "use set_global = { NAME = VALUE } in [server] or the condition instead: it is restored",
                )


def _check_globals(case: Case) -> None:
    """Refuse a variable that lets clients send files. The sandbox of clients prevents that as well."""
    for name in case.server.set_global:
        if name.lower().replace("-", "_") == "local_infile":
            raise UsageError(f"{case.qualified} sets {name}, which lets servers read clients' files", "leave it out")


def _list_plans(case: Case) -> Sequence[MemberPlan]:
    return [] if case.topology.kind == "standalone" else plan_topology(case.topology.kind, case.topology.count)


def member_cpus(member: MemberPlan, options: BenchOptions) -> tuple[int, ...] | None:
    """Return the CPUs of one server of a topology, by its name or role; None if none were chosen."""
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
