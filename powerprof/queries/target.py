# SPDX-License-Identifier: Apache-2.0
"""Which server is meant, and how it can be asked: by its process, its own socket, or an address that was given."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from powerprof.database.clients import sql
from powerprof.database.clients.base import Login
from powerprof.database.clients.given import POSTGRES_PROGRAM, is_server_name, log_in_locally, log_in_to_statistics
from powerprof.database.clients.performance import Account, ServerReport, Statistics, read_report, read_statistics
from powerprof.measure.window import WindowPart
from powerprof.queries.records import Asker, Queries, Statement
from powerprof.statements.text import Family
from powerprof.system import paths
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.processes import client_of, database_of, part_of, server_titles
from powerprof.tracing.statements import ServerProcesses

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql


@dataclass(frozen=True)
class TracedServer:
    """A server process of this host, of PostgreSQL the first of them. `login` is None where it lets nobody in that we
    are, and for PostgreSQL without pg_stat_statements."""

    pid: int
    label: str
    version: str | None
    login: Login | None
    family: Family = "mysql"

    def connect(self) -> Sql:
        """A connection for a few questions. Raises PowerprofError; only where there is a login."""
        if self.login is None:
            raise PowerprofError("the server cannot be asked", "name an account with --defaults-file")
        return sql.connect(self.login, limits=sql.LOOK_LIMITS)


class ServerTime(WindowPart):
    """The CPU time of a server in a window, and how long that was."""

    def __init__(self, label: str, cpu_ns: Callable[[], int | None]) -> None:
        self._label, self._cpu_ns = label, cpu_ns

    def begin(self) -> None:
        self._first, self._at_s = self._cpu_ns(), time.monotonic()

    def end(self) -> None:
        self._second, self._took_s = self._cpu_ns(), time.monotonic() - self._at_s

    def collect(self) -> tuple[float, float]:
        """Seconds on CPUs and in all. Raises PowerprofError where the server ended."""
        if self._first is None or self._second is None:
            raise PowerprofError(
                f"{self._label} ended within the window", "its error log says why; measure again when it is up"
            )
        return (self._second - self._first) / 1e9, self._took_s


def find_server(pid: str | None, url: str | None, socket: Path | None, defaults_file: Path | None) -> TracedServer:
    """The server that the command line means. Raises UsageError, PowerprofError."""
    from powerprof.database.clients.given import given_server
    from powerprof.system.processes import first_of, name_of, resolve

    if not paths.is_this_host():
        raise PowerprofError("cannot trace a recorded host", "unset POWERPROF_SYSFS and POWERPROF_PROCFS")
    given = any(part is not None for part in (url, socket, defaults_file))
    if pid is None and not given:
        raise UsageError("say which server", "--pid mysqld, --socket PATH or --server mysql://user@host/")
    number = None
    if pid is not None:
        target = resolve([pid])
        # A name means a server that works in processes whole; the first is the one that started the others.
        pids = target.roots or target.pids
        if len(pids) != 1:
            raise UsageError("one server at a time", "name one process with --pid")
        number = pids[0]
    if given:
        with given_server(url, socket, defaults_file) as server:
            if number is not None and server.pid is not None and number != server.pid:
                raise UsageError(
                    f"--pid is {number}, but the server that was named is process {server.pid}", "leave one out"
                )
            number = number or server.pid
            if number is None:
                raise PowerprofError(
                    f"{server.login.text} is not a process of this host that can be found",
                    "run powerprof on the server's own host, as root",
                )
            return TracedServer(number, _label(name_of(number), number), server.version, server.login)
    assert number is not None  # noqa: S101  one of the two was given
    name = name_of(number) or ""
    if name == POSTGRES_PROGRAM:
        number = first_of(number)
        schemas = _titled(number)[1]
        return TracedServer(
            number, _label(name, number), None, log_in_to_statistics(number, schemas.values()), "postgresql"
        )
    if not is_server_name(name):
        raise UsageError(
            f"--pid {number}: {name or 'the process'} is not a MariaDB, MySQL or PostgreSQL server: its statements are "
            "not known",
            f"powerprof profile --pid {number} shows where its CPU time goes",
        )
    return _by_its_socket(number, _label(name, number))


def ask_server(server: TracedServer, *, running: bool) -> ServerReport:
    """What the server tells; nothing where it cannot be asked. What is measured does not depend on it."""
    if server.family == "postgresql":
        names, schemas, accounts = _titled(server.pid)
        statistics: Statistics = {}
        if server.login is not None:
            with suppress(PowerprofError), server.connect() as connection:
                statistics = read_statistics(connection)
        return ServerReport(
            threads={server.pid: "postmaster", **names}, schemas=schemas, statistics=statistics, accounts=accounts
        )
    if server.login is None:
        return ServerReport()
    try:
        with server.connect() as connection:
            return read_report(connection, running=running)
    except PowerprofError:
        return ServerReport()


def _titled(pid: int) -> tuple[dict[int, str], dict[int, str], dict[int, Account]]:
    """Of PostgreSQL's processes: what they say that they are, their clients' databases, and their accounts."""
    titles = server_titles(ServerProcesses(pid, is_family=True).pids())
    names = {pid: name for pid, title in titles.items() if (name := part_of(title))}
    schemas = {pid: schema for pid, name in names.items() if (schema := database_of(name)) is not None}
    accounts = {pid: Account(*client) for pid, title in titles.items() if (client := client_of(title)) is not None}
    return names, schemas, accounts


def _label(name: str | None, pid: int) -> str:
    return f"{name or 'the server'} ({pid})"


def _by_its_socket(pid: int, label: str) -> TracedServer:
    from powerprof.database.clients.given import read_version

    entered = log_in_locally(pid)
    if entered is not None:
        login, connection = entered
        with suppress(PowerprofError, OSError), connection:
            return TracedServer(pid, label, read_version(connection), login)
    return TracedServer(pid, label, None, None)


# Pure: who asked for a statement, and statements summed by user, host, account or database.

Grouping = Literal["user", "host", "account", "database"]
GROUPINGS: tuple[Grouping, ...] = get_args(Grouping)
UNKNOWN = "(not known)"
_MOST = 20


def rank_askers(used: Mapping[Account | None, tuple[float, int | None]]) -> list[Asker]:
    """By account: seconds of CPU time, and calls where these are known. Those behind the first of many have no name."""
    most = sorted(used.items(), key=lambda pair: (-pair[1][0], str(pair[0])))
    named = [(account, amount) for account, amount in most if account is not None][:_MOST]
    askers = [
        Asker(user=account.user, host=account.host, c0_s=c0_s, calls_count=calls) for account, (c0_s, calls) in named
    ]
    kept = {account for account, _ in named}
    rest = [amount for account, amount in most if account not in kept]
    if rest:
        counts = [count for _, count in rest if count is not None]
        used_s = sum(c0_s for c0_s, _ in rest)
        askers.append(Asker(user=None, host=None, c0_s=used_s, calls_count=sum(counts) if counts else None))
    return askers


def parse_grouping(value: str) -> Grouping:
    """Of `--by`. Raises UsageError."""
    for known in GROUPINGS:
        if value == known:
            return known
    raise UsageError(f"--by {value[:40]} is no choice", f"one of {', '.join(GROUPINGS)}")


@dataclass
class AskerGroup:
    """What all statements of one asker used; `first` is the one with most CPU time."""

    name: str
    c0_s: float = 0.0
    joules: float | None = None
    calls: int | None = None
    texts: set[str] = field(default_factory=set)
    first: str = ""
    first_s: float = 0.0


def group_statements(record: Queries, by: Grouping) -> list[AskerGroup]:
    """Most CPU time first. Joules of a statement are split among its askers by CPU time."""
    found: dict[str, AskerGroup] = {}
    for statement in record.statements:
        for name, c0_s, calls in _parts(statement, by):
            group = found.setdefault(name, AskerGroup(name))
            group.c0_s += c0_s
            group.texts.add(statement.id or statement.text)
            if calls is not None:
                group.calls = (group.calls or 0) + calls
            if statement.joules is not None and statement.c0_s:
                group.joules = (group.joules or 0.0) + statement.joules * c0_s / statement.c0_s
            if not group.first or c0_s > group.first_s:
                group.first, group.first_s = statement.text, c0_s
    return sorted(found.values(), key=lambda group: (-group.c0_s, group.name))


def _parts(statement: Statement, by: Grouping) -> list[tuple[str, float, int | None]]:
    whole = statement.c0_s, statement.calls_count
    if by == "database":
        return [(statement.schema_name or UNKNOWN, *whole)]
    if not statement.askers:
        return [(UNKNOWN, *whole)]
    sums: dict[str, tuple[float, int | None]] = defaultdict(lambda: (0.0, None))
    for asker in statement.askers:
        name = name_asker(asker, by)
        c0_s, calls = sums[name]
        more = calls if asker.calls_count is None else (calls or 0) + asker.calls_count
        sums[name] = c0_s + asker.c0_s, more
    return [(name, *amount) for name, amount in sums.items()]


def name_asker(asker: Asker, by: Grouping = "account") -> str:
    """What an asker is called."""
    if asker.user is None:
        return UNKNOWN
    host = asker.host or "localhost"
    return {"user": asker.user, "host": host}.get(by, f"{asker.user}@{host}")
