# SPDX-License-Identifier: Apache-2.0
"""Asks a server process of this host for the names of its threads, if it lets us in by its own unix socket."""

from __future__ import annotations

import getpass
import re
import time
from collections.abc import Iterable
from pathlib import Path

from powerprof import paths
from powerprof.database.clients import sql
from powerprof.database.clients.base import Limits, Login, Sql
from powerprof.database.clients.statstatements import database_with
from powerprof.database.products import postgres
from powerprof.errors import PowerprofError
from powerprof.processes.listening import unix_sockets
from powerprof.processes.targets import name_of
from powerprof.processes.titles import server_names

_SERVER = re.compile(r"(mysqld|mariadbd)(-.*)?")  # mysqldump, mysqld_safe and mysqld_exporter are none
IN_PROCESSES = "postgres"
_PATIENCE_S = 3.0  # for all its sockets together
_MOST_SOCKETS = 20
_MOST_STATISTICS_SOCKETS = 4


def is_server(program: str | None) -> bool:
    """The name of a program is that of a MariaDB or MySQL server."""
    return _SERVER.fullmatch(program or "") is not None


def listening_sockets(pid: int) -> list[Path]:
    """The unix sockets on which a process listens, as paths that can be opened from here (containers too)."""
    root = paths.procfs() / str(pid) / "root"
    return [root / path.lstrip("/") for path in unix_sockets(pid)]


def enter(pid: int, limits: Limits = sql.A_LOOK) -> tuple[Login, Sql] | None:
    """In by the server's own socket, and how; None where none of them lets us in. The caller closes the connection.

    Logs in as the system user (unix_socket authentication), without a password, and asks nothing of the terminal.
    """
    end_s = time.monotonic() + _PATIENCE_S
    for place in listening_sockets(pid)[:_MOST_SOCKETS]:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            break
        login = Login(user=getpass.getuser(), socket=place, pid=pid)
        try:
            return login, sql.connect(login, timeout_s=left_s, limits=limits)
        except (PowerprofError, OSError):
            continue
    return None


def enter_statistics(pid: int, databases: Iterable[str]) -> Login | None:
    """How the system user gets in to a PostgreSQL server's pg_stat_statements by its own socket; None where it has none
    or does not let us in."""
    for place in listening_sockets(pid)[:_MOST_STATISTICS_SOCKETS]:
        login = Login(user=getpass.getuser(), socket=place, pid=pid, family="postgresql")
        if (there := database_with(login, databases)) is not None:
            return there
    return None


def names_of_local_server(pid: int) -> dict[int, str]:
    """Kernel thread id → performance_schema name, or what a process of PostgreSQL says that it is; empty for what is no
    server, or one that does not let us in.
    """
    name = name_of(pid)
    if name == IN_PROCESSES:
        return server_names(postgres.processes(pid))
    if not is_server(name):
        return {}
    entered = enter(pid, Limits(waiting_s=_PATIENCE_S))
    if entered is None:
        return {}
    try:
        with entered[1] as connection:
            return sql.thread_names(connection, pid)
    except (PowerprofError, OSError):
        return {}
