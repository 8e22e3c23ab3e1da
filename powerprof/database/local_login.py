# SPDX-License-Identifier: Apache-2.0
"""Log-in to servers of this host, through their own unix sockets and without a password."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from powerprof.database import sql
from powerprof.database.base import Limits, Login, StatementError
from powerprof.database.pg_stat_statements import find_statistics_database
from powerprof.database.wire import read_process_account
from powerprof.measure.procfs import list_children
from powerprof.model.identities import Family
from powerprof.system.caller import HostUser, account_of
from powerprof.system.errors import PowerprofError
from powerprof.system.listeners import list_tcp_ports, list_unix_sockets
from powerprof.system.processes import name_of, owner_of
from powerprof.system.server_names import is_mysql_program, is_postgres_program
from powerprof.system.server_roles import read_roles
from powerprof.system.tasks import process_folder

if TYPE_CHECKING:
    from powerprof.database.base import Sql

_MAX_SOCKETS, _MAX_STATISTICS_SOCKETS = 20, 4
_LOCAL_LOGIN_S = 3.0  # for all sockets of a server together


def require_server_program(pid: int) -> None:
    """Raise PowerprofError if the process runs no MariaDB or MySQL server."""
    if not is_mysql_program(name_of(pid)):
        raise PowerprofError("the process is no MariaDB or MySQL server", "choose a server by --pid")


def list_listening_sockets(pid: int) -> list[Path]:
    """Return the unix sockets on which a process listens, as paths that can be opened from here (containers too)."""
    root = process_folder(pid) / "root"
    return [root / path.lstrip("/") for path in list_unix_sockets(pid)]


class LocalAnswer(msgspec.Struct, frozen=True):
    """The login and connection to a server, if it lets us in. `is_given`: it answers, as a refusal does too."""

    entered: tuple[Login, Sql] | None
    is_given: bool


def ask_locally(
    pid: int, limits: Limits = sql.LOOK_LIMITS, family: Family = "mysql", account: HostUser | None = None
) -> LocalAnswer:
    """Return the answer of a server through its own unix sockets, without a password or prompt.

    It logs in as the system user (unix_socket or peer authentication), or as `account`, with that user's rights. The
    caller closes the connection. A server without unix sockets answers if it listens on a port.
    """
    end_s, user = time.monotonic() + _LOCAL_LOGIN_S, getpass.getuser() if account is None else account.name
    is_given, places = False, list_listening_sockets(pid)[:_MAX_SOCKETS]
    for place in places:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            break
        login = Login(user=user or "", socket=place, pid=pid, family=family, account=account)
        try:
            return LocalAnswer((login, sql.connect(login, timeout_s=left_s, limits=limits)), True)
        except StatementError as error:
            is_given = is_given or error.is_of_server
        except (PowerprofError, OSError):
            continue
    return LocalAnswer(None, is_given or (not places and bool(list_tcp_ports(pid))))


def log_in_locally(
    pid: int, limits: Limits = sql.LOOK_LIMITS, family: Family = "mysql", account: HostUser | None = None
) -> tuple[Login, Sql] | None:
    """Return login and connection through the server's own socket (`ask_locally`); None if every socket refuses."""
    return ask_locally(pid, limits, family, account).entered


def log_in_as_owner(pid: int, limits: Limits) -> tuple[Login, Sql] | None:
    """Return login and connection as the server's own account, a superuser of PostgreSQL (`sudo -u postgres psql`).

    The result is None if this process is not root, for a server of a person's account, and if the server refuses.
    """
    uid = read_process_account(pid)
    account = account_of(uid) if uid is not None and os.geteuid() == 0 else None
    if account is None or account.uid == 0 or owner_of(pid, any_service=True).distrust is not None:
        return None
    return log_in_locally(pid, limits, "postgresql", account)


def log_in_to_statistics(pid: int, databases: Iterable[str]) -> Login | None:
    """Return the system user's login to pg_stat_statements through a PostgreSQL server's own socket.

    The result is None if the server has no such extension or refuses the user.
    """
    for place in list_listening_sockets(pid)[:_MAX_STATISTICS_SOCKETS]:
        login = Login(user=getpass.getuser(), socket=place, pid=pid, family="postgresql")
        if (there := find_statistics_database(login, databases)) is not None:
            return there
    return None


def read_local_thread_names(pid: int) -> dict[int, str]:
    """Return performance_schema names by kernel thread id, or titles of PostgreSQL's processes by process id.

    The result is empty for other programs and for servers that refuse the login.
    """
    name = name_of(pid)
    if is_postgres_program(name):
        return read_roles((pid, *list_children(pid)))
    if not is_mysql_program(name):
        return {}
    entered = log_in_locally(pid, Limits(waiting_s=_LOCAL_LOGIN_S))
    if entered is None:
        return {}
    try:
        with entered[1] as connection:
            return sql.read_thread_names(connection, pid)
    except (PowerprofError, OSError):
        return {}
