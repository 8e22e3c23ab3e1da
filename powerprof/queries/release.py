# SPDX-License-Identifier: Apache-2.0
"""Check the release of a server, also an untested one: for `doctor --pid`.

The places of statements and texts are looked up in the program, and thread names and digests in the server. The
self-test executes known statements and compares their number with the probes' count.
"""

from __future__ import annotations

import getpass
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from powerprof.database import sql
from powerprof.database.base import Limits
from powerprof.database.local_login import log_in_locally
from powerprof.energy.request import NO_METER
from powerprof.energy.windows import WindowEnergy
from powerprof.host.capabilities import Capability, limited, missing, ok
from powerprof.measure.sampling import WindowMeter
from powerprof.measure.target_life import raise_ended
from powerprof.measure.window import WindowPart, run_window
from powerprof.model.text import Say, join_words
from powerprof.queries.pricing import build_record
from powerprof.queries.probes import Probes
from powerprof.queries.records import Queries
from powerprof.queries.target import TracedServer, ask_server, find_server
from powerprof.stacks.image import snapshot
from powerprof.system.errors import PowerprofError
from powerprof.system.next_steps import command_line, system_command
from powerprof.system.processes import name_of
from powerprof.system.server_names import is_mysql_program, is_postgres_program
from powerprof.system.targets import ServerChoice
from powerprof.system.tasks import list_threads
from powerprof.tracing import mysql_places, postgresql_places
from powerprof.tracing.statement_places import open_program

if TYPE_CHECKING:
    from powerprof.database.base import Sql

# The releases of the tests, as docs/support.md lists them.
TESTED: Mapping[str, tuple[str, ...]] = {
    "MySQL": ("5.5", "9.7"),
    "MariaDB": ("10.5", "10.11", "11.4", "11.8"),
    "PostgreSQL": ("13", "15", "17", "18"),
}
SELF_TEST_S = 10.0
_ACCOUNT = "name an account with --defaults-file FILE"
_MARK = "powerprof_self_test"
_STATEMENT = f"SELECT 1 AS {_MARK}"
_PAUSE_S = 0.01


def check_release(pid: int, account: ServerChoice, say: Say, *, self_test: bool = False) -> list[Capability]:
    """Return what works on the release of a server; an empty list for other programs. Raises PowerprofError."""
    name = name_of(pid) or ""
    if not (is_mysql_program(name) or is_postgres_program(name)):
        return []
    server = find_server(str(pid), account.server, account.socket, account.defaults_file, only=True)
    rows = [_check_version(server), *_check_places(server), _check_threads(server), _check_digests(server)]
    return [*rows, _run_self_test(server, say)] if self_test else rows


def describe_release(server: TracedServer) -> tuple[str, str | None]:
    """Return product and version; None for a version that neither the server nor its program shows."""
    if server.family == "postgresql":
        with open_program(snapshot(server.pid), "") as (elf, _):
            return "PostgreSQL", postgresql_places.find_version(elf)
    shown = server.version or name_of(server.pid) or ""
    number = re.search(r"\d+\.\d+[\w.-]*", server.version or "")
    return "MariaDB" if "mariadb" in shown.lower() else "MySQL", number and number[0]


def is_tested(product: str, version: str) -> bool:
    """Return whether a release is one of the tests."""
    return any(version == release or version.startswith((f"{release}.", f"{release}-")) for release in TESTED[product])


def _check_version(server: TracedServer) -> Capability:
    product, version = describe_release(server)
    releases = f"tested are {join_words(TESTED[product])}"
    if version is None:
        return limited(
            "release", f"{product}; its version is unknown, because no account may log in; {releases}", _ACCOUNT
        )
    comment = ""
    with suppress(PowerprofError):
        if server.login is not None and server.family == "mysql":
            with server.connect() as connection:
                comment = str(sql.fetch_scalar(connection, "SELECT @@version_comment") or "")[:80].strip("()")
    shown = f"{product} {version}" + (f" ({comment})" if comment else "")
    if is_tested(product, version) and "percona" not in comment.lower():
        return ok("release", f"{shown}, tested")
    return limited("release", f"{shown} is not tested ({releases}); the rows below were tried on it")


def _check_places(server: TracedServer) -> list[Capability]:
    """Return whether the program shows where statements begin, and where their texts are."""
    places = postgresql_places if server.family == "postgresql" else mysql_places
    image = snapshot(server.pid)
    rows = []
    for name, find, found, use in (
        ("probes", places.find_dispatch, "the program shows where statements begin", "queries uses samples"),
        ("samples", places.find_text, "the program shows where statement texts are", "queries needs probes"),
    ):
        try:
            find(image)
        except PowerprofError as error:
            rows.append(limited(name, f"{error.message}: {use}"))
        else:
            rows.append(ok(name, found))
    return rows


def _check_threads(server: TracedServer) -> Capability:
    if server.family == "postgresql":
        names = ask_server(server, running=False).threads
        return ok("thread_names", f"{len(names)} processes, by their titles")
    threads = list_threads(server.pid)
    if server.login is None:
        reason = "no account may log in: names are from the functions in which threads started"
        return limited("thread_names", reason, _ACCOUNT)
    with server.connect() as connection:
        named = set(sql.read_thread_names(connection, server.pid)) & set(threads)
    if not named:
        reason = "performance_schema is off: names are from the functions in which threads started"
        return limited("thread_names", reason, "performance_schema=ON in my.cnf, and a restart")
    return ok("thread_names", f"{len(named)} of {len(threads)} threads, by performance_schema")


def _check_digests(server: TracedServer) -> Capability:
    report = ask_server(server, running=False)
    if server.family == "postgresql":
        if server.login is None:
            reason = "pg_stat_statements is not installed, or the system user may not log in: no rows and query ids"
            return limited("digests", reason, "CREATE EXTENSION pg_stat_statements")
        return ok("digests", f"pg_stat_statements, {len(report.statistics)} statements")
    if not report.has_digests:
        return limited("digests", "none: calls of sampled statements, and rows, are unknown", "performance_schema=ON")
    return ok("digests", f"performance_schema, {len(report.digests)} statements")


class _KnownStatements(WindowPart):
    """A client that executes one statement again and again within a window."""

    def __init__(self, connection: Sql) -> None:
        self._connection, self._stop = connection, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.count = 0

    def _run(self) -> None:
        with suppress(PowerprofError, OSError):
            while not self._stop.wait(_PAUSE_S):
                sql.fetch_scalar(self._connection, _STATEMENT)
                self.count += 1

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()


def _run_self_test(server: TracedServer, say: Say) -> Capability:
    """Return whether the probes count known statements."""
    connection = _connect(server)
    if connection is None:
        remedy = system_command("sudo -u postgres createuser {}", getpass.getuser())
        return limited(
            "self_test", "not run: no account may log in", remedy if server.family == "postgresql" else _ACCOUNT
        )
    say(f"executing known statements for {SELF_TEST_S:g} s")
    try:
        with connection:
            sent, record = _count_statements(server, connection)
    except PowerprofError as error:
        return missing("self_test", error.message, error.hint or command_line("doctor"))
    counted = sum(each.calls_count or 0 for each in record.statements if _MARK in str(each.text))
    explained = (
        "" if record.explained_percent is None else f"; {record.explained_percent:.1f} % of its CPU time explained"
    )
    detail = f"{counted:,} of {sent:,} known statements counted by probes in {record.window_s:.0f} s{explained}"
    return ok("self_test", detail) if counted == sent else limited("self_test", detail, "send it in an issue")


def _connect(server: TracedServer) -> Sql | None:
    """Return a connection for the known statements; None if the server refuses powerprof's accounts."""
    if server.login is not None:
        return sql.connect(server.login, limits=Limits())
    entered = log_in_locally(server.pid, Limits(), server.family)
    return None if entered is None else entered[1]


def _count_statements(server: TracedServer, connection: Sql) -> tuple[int, Queries]:
    """Return the number of executed statements, and the record of the window."""
    client = _KnownStatements(connection)
    with server.life() as life, WindowEnergy(NO_METER) as energy, Probes(server) as probes:
        probes.ready()
        with WindowMeter(meters=energy.meters) as meter:
            # The client begins last and ends first, so all of its statements are in the window.
            passed = run_window(SELF_TEST_S, *probes.parts, *meter.parts, life, client)
            window = meter.collect(passed)
        if passed.ended is not None:
            raise_ended(passed.ended)
        traced = probes.finish_window(energy.complete(window))
        return client.count, build_record(server, traced.measured, energy)
