# SPDX-License-Identifier: Apache-2.0
"""The traced server: its process, its own socket or a given address, and its reports."""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from powerprof.database import sql
from powerprof.database.base import Login
from powerprof.database.local_login import list_listening_sockets, log_in_locally, log_in_to_statistics
from powerprof.database.pg_stat_statements import Statistics, find_statistics_database, read_statistics
from powerprof.database.readers import check_only_reads, read_only_login
from powerprof.database.server_report import Account, ServerReport, read_report
from powerprof.measure.target_life import TargetLife
from powerprof.measure.window import WindowPart
from powerprof.model.identities import Family
from powerprof.model.records import Ended
from powerprof.model.text import Say
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.next_steps import command_line
from powerprof.system.processes import label_of, name_of
from powerprof.system.server_names import is_mysql_program, is_postgres_program
from powerprof.system.server_roles import parse_client, parse_database, parse_part, read_titles
from powerprof.system.targets import Target, check_only, resolve_server
from powerprof.tracing.server_processes import ServerProcesses

if TYPE_CHECKING:
    from powerprof.database.base import Sql


class TracedServer(msgspec.Struct, frozen=True):
    """A server process of this host, of PostgreSQL the first one.

    `login` is None if the server refuses the accounts of powerprof, and for PostgreSQL without pg_stat_statements.
    """

    pid: int
    label: str
    version: str | None
    login: Login | None
    family: Family = "mysql"

    @property
    def target(self) -> Target:
        """The server's processes."""
        return Target((self.pid,), self.label, roots=(self.pid,))

    def life(self) -> TargetLife:
        """Return the part of a window that sees the end of the server."""
        return TargetLife(self.target)

    def connect(self) -> Sql:
        """Return a connection for a few questions. Raise PowerprofError, also without a login."""
        if self.login is None:
            raise PowerprofError("the server refuses powerprof's accounts", "name an account with --defaults-file")
        return sql.connect(self.login, limits=sql.LOOK_LIMITS)


class ServerTime(WindowPart):
    """The CPU time of a server in a window, and the length of the window."""

    def __init__(self, cpu_ns: Callable[[], int | None]) -> None:
        self._cpu_ns = cpu_ns

    def begin(self) -> None:
        self._first, self._at_s = self._cpu_ns(), time.monotonic()

    def end(self) -> None:
        self._second, self._took_s = self._cpu_ns(), time.monotonic() - self._at_s

    def collect(self) -> tuple[float | None, float]:
        """Return CPU time and elapsed time in s. The CPU time of a server that has ended is unknown."""
        if self._first is None or self._second is None:
            return None, self._took_s
        return (self._second - self._first) / 1e9, self._took_s


def find_server(
    pid: str | None,
    url: str | None,
    socket: Path | None,
    defaults_file: Path | None,
    *,
    only: bool = False,
    say: Say = lambda text: None,
) -> TracedServer:
    """Return the server of the command line. Raise UsageError, PowerprofError."""
    check_only(pid, only)
    given = any(part is not None for part in (url, socket, defaults_file))
    number = resolve_server(pid, only, say).first if pid is not None or not given else None
    if given:
        from powerprof.database.given import given_server

        with given_server(url, socket, defaults_file, families=("mysql", "postgresql")) as server:
            if number is not None and server.pid is not None and number != server.pid:
                raise UsageError(
                    f"--pid is {number}, but the named server is process {server.pid}", "give only one of them"
                )
            number = number or server.pid
            if number is None:
                raise PowerprofError(
                    f"{server.login.text} is not a process of this host that can be found",
                    "run powerprof on the server's own host, as root",
                )
            if server.login.family == "postgresql":
                return _postgresql(number, lambda databases: find_statistics_database(server.login, databases))
            return TracedServer(number, _label(number), server.version, server.login)
    assert number is not None  # noqa: S101  one of the two was given
    name = name_of(number) or ""
    if is_postgres_program(name):
        return _postgresql(number, lambda databases: log_in_to_statistics(number, databases))
    if not is_mysql_program(name):
        raise UsageError(
            f"--pid {number}: {label_of(number)} is not a MariaDB, MySQL or PostgreSQL server: its statements are "
            "unknown",
            f"to see where its CPU time goes: {command_line('profile --pid {}', number)}",
        )
    return _by_its_socket(number, _label(number))


def _postgresql(pid: int, log_in: Callable[[Iterable[str]], Login | None]) -> TracedServer:
    """Return a PostgreSQL whose login to pg_stat_statements `log_in` finds among the databases of its clients."""
    return TracedServer(pid, _label(pid), None, log_in(_titled(pid)[1].values()), "postgresql")


def find_reader(server: TracedServer, file: Path | None) -> Login:
    """Return the login of an account of PostgreSQL that only reads, for plans.

    It is the account in the option file `file`, else that of the system user. Raise PowerprofError without one.
    """
    if file is not None:
        sockets = list_listening_sockets(server.pid)
        if not sockets:
            raise PowerprofError(f"{server.label} listens on no unix socket", "set unix_socket_directories")
        place = Login(user="", socket=sockets[0], pid=server.pid, family="postgresql")
        return read_only_login(place, file)
    entered = log_in_locally(server.pid, family="postgresql")
    if entered is None:
        raise PowerprofError(
            "--explain: the server refuses this user",
            f'to let it in: CREATE ROLE "{getpass.getuser()}" LOGIN IN ROLE pg_read_all_data, or --explain-as FILE',
        )
    login, connection = entered
    with connection:
        check_only_reads(connection, login)
    return login


def ask_server(server: TracedServer, *, running: bool) -> ServerReport:
    """Return the server's report; empty if it cannot be queried. The measurement does not depend on it."""
    if server.family == "postgresql":
        names, schemas, accounts = _titled(server.pid)
        statistics: Statistics = {}
        if server.login is not None:
            with suppress(PowerprofError), server.connect() as connection:
                statistics = read_statistics(connection)
        return ServerReport(
            threads={server.pid: "postmaster", **names},
            schemas=schemas,
            statistics=statistics,
            accounts=accounts,
            statements_count=sum(counts.calls for counts in statistics.values()) if statistics else None,
            counted_at_s=time.monotonic(),
        )
    if server.login is None:
        return ServerReport()
    try:
        with server.connect() as connection:
            return read_report(connection, running=running)
    except PowerprofError:
        return ServerReport()


def ask_after(server: TracedServer, ended: Ended | None, *, running: bool) -> ServerReport:
    """Return the server's report after a window. A server that ended or stopped in it is not queried: it is empty."""
    return ServerReport() if ended is not None and ended.is_of_target else ask_server(server, running=running)


def _titled(pid: int) -> tuple[dict[int, str], dict[int, str], dict[int, Account]]:
    """Return names, databases and accounts of PostgreSQL's processes from their titles."""
    titles = read_titles(ServerProcesses(pid, is_family=True).pids())
    names = {pid: name for pid, title in titles.items() if (name := parse_part(title))}
    schemas = {pid: schema for pid, name in names.items() if (schema := parse_database(name)) is not None}
    accounts = {pid: Account(*client) for pid, title in titles.items() if (client := parse_client(title)) is not None}
    return names, schemas, accounts


def _label(pid: int) -> str:
    return f"{label_of(pid)} ({pid})"


def _by_its_socket(pid: int, label: str) -> TracedServer:
    from powerprof.database.sql import read_version

    entered = log_in_locally(pid)
    if entered is not None:
        login, connection = entered
        with suppress(PowerprofError, OSError), connection:
            return TracedServer(pid, label, read_version(connection), login)
    return TracedServer(pid, label, None, None)
