# SPDX-License-Identifier: Apache-2.0
"""mariadbd and mysqld as a private server: the account, its files, the command line."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from powerprof.database.clients import sql
from powerprof.database.clients.base import Login, Sql
from powerprof.database.isolation import limits
from powerprof.database.products import builds
from powerprof.database.products.builds import ServerBuild
from powerprof.database.products.settings import Setting, setting_arguments

INIT_SQL = "init.sql"
SOCKET = "mysqld.sock"
_USER = "powerprof"
_SPARE_CONNECTIONS = 24


def login(directory: Path) -> Login:
    """powerprof's account: a random password even though the socket is private, for a loopback port is open to every
    user of the host."""
    return Login(user=_USER, password=secrets.token_urlsafe(24), socket=directory / SOCKET)


def files(build: ServerBuild, account: Login) -> Mapping[str, str]:
    """A password in SQL that is read from a private file shows on no command line."""
    return {INIT_SQL: builds.account_sql(build, account.user, account.password)}


def words(build: ServerBuild, settings: Mapping[str, Setting], connections: int, directory: Path) -> list[str]:
    """The command line after the program: as built, but for what was asked and what makes it private.

    That comes last: of two settings of the same name the last one holds, however the first was spelt.
    """
    argv = ["--no-defaults", "--skip-name-resolve"]
    if build.names_threads:
        # Elsewhere it would cost memory and name no thread.
        argv.append("--performance-schema=ON")
    if connections > 100:
        argv += [
            f"--max-connections={connections + _SPARE_CONNECTIONS}",
            f"--open-files-limit={connections + limits.SPARE_FILES}",
            # Thousands arrive at once and none may be turned away (listen(2), net.core.somaxconn).
            "--back-log=1024",
        ]
    return [
        *argv,
        *setting_arguments(settings),
        f"--datadir={directory}/data",
        f"--socket={directory}/{SOCKET}",
        f"--pid-file={directory}/mysqld.pid",
        f"--tmpdir={directory / 'tmp'}",
        f"--init-file={directory}/{INIT_SQL}",
        # What statements of a workload may not do to files of this host: INTO OUTFILE, LOAD DATA, DATA DIRECTORY.
        f"--secure-file-priv={directory / 'tmp'}",
        "--local-infile=OFF",
        "--loose-skip-symbolic-links",
        # MySQL's second protocol listens everywhere by default.
        "--loose-mysqlx=OFF",
    ]


def thread_names(connect: Callable[[], Sql], pid: int) -> dict[int, str]:
    """As performance_schema has them."""
    with connect() as connection:
        return sql.thread_names(connection, pid)


def network(port: int | None, address: str) -> list[str]:
    """Where it listens beside its socket."""
    return ["--skip-networking"] if port is None else [f"--port={port}", f"--bind-address={address}"]
