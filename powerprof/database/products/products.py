# SPDX-License-Identifier: Apache-2.0
"""What differs between the servers that powerprof starts, as one table: MariaDB and MySQL, PostgreSQL."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from powerprof.database.clients.base import Login, Sql
from powerprof.database.products import builds, mysqld, postgres
from powerprof.database.products.builds import ServerBuild
from powerprof.database.products.settings import Setting, setting_arguments
from powerprof.processes.titles import server_names

Steps = Sequence[tuple[Sequence[str], str]]


@dataclass(frozen=True)
class Product:
    """A kind of server.

    `find(binary, basedir)` is its program; `initialise(build, datadir)` the commands that make empty data, each with
    its input; `login(directory)` the account and `files(build, login)` what is written for it, of which `once` is
    removed when the server answers. `words(build, settings, connections, directory)` are its command line but for the
    network, which `network(port, address)` adds. `check(settings)` refuses what would make it less private.
    `processes(pid)` are those that it works in, `names(connect, pid)` what its threads are called. `end` is the signal
    that ends them all at once.
    """

    title: str
    find: Callable[[Path | None, Path | None], ServerBuild]
    check: Callable[[Mapping[str, Setting]], object]
    initialise: Callable[[ServerBuild, Path], Steps]
    login: Callable[[Path], Login]
    files: Callable[[ServerBuild, Login], Mapping[str, str]]
    once: tuple[str, ...]
    words: Callable[[ServerBuild, Mapping[str, Setting], int, Path], list[str]]
    network: Callable[[int | None, str], list[str]]
    processes: Callable[[int], Sequence[int]]
    names: Callable[[Callable[[], Sql], int], dict[int, str]]
    end: signal.Signals
    has_tcp: bool = True


MYSQL = Product(
    title="MariaDB or MySQL",
    find=builds.find_build,
    check=setting_arguments,
    initialise=lambda build, datadir: [(builds.initialise_command(build, datadir), "")],
    login=mysqld.login,
    files=mysqld.files,
    once=(mysqld.INIT_SQL,),
    words=mysqld.words,
    network=mysqld.network,
    processes=lambda pid: (pid,),
    names=mysqld.thread_names,
    end=signal.SIGKILL,
)
POSTGRESQL = Product(
    title="PostgreSQL",
    find=postgres.find_build,
    check=postgres.checked,
    initialise=postgres.initialise,
    login=postgres.login,
    files=postgres.files,
    once=(),
    words=postgres.words,
    network=lambda _port, _address: [],
    processes=postgres.processes,
    names=lambda _connect, pid: server_names(postgres.processes(pid)),
    # "Immediate shutdown": its processes end without writing; killed itself, it would leave those that are busy.
    end=signal.SIGQUIT,
    has_tcp=False,
)
PRODUCTS: Mapping[str, Product] = {"mysql": MYSQL, "mariadb": MYSQL, "postgresql": POSTGRESQL}


def of(build: ServerBuild) -> Product:
    """The product of a program."""
    return PRODUCTS[build.family]


def find(family: str, binary: Path | None, basedir: Path | None) -> ServerBuild:
    """The program to start: of the product that `binary` is by its name, else of that family."""
    named = POSTGRESQL if binary is not None and binary.name in ("postgres", "postmaster") else PRODUCTS[family]
    return named.find(binary, basedir)
