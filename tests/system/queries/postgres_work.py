# SPDX-License-Identifier: Apache-2.0
"""A private PostgreSQL and work of known cost on it, for what tells its statements by probes and by samples."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from psycopg import conninfo, pq

from powerprof.database import postgresql, settings, sql, templates
from powerprof.database.base import Login
from powerprof.database.builds import ServerBuild, Steps
from powerprof.database.private_server import PrivateServer
from powerprof.database.settings import Setting
from powerprof.measure.procfs import process_cpu_ns
from tests.conftest import each_release

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn

DATABASE = "shop"
BURN = "SELECT count(*) FROM generate_series(1, {}) n"
BURN_TEXT = "SELECT count(*) FROM generate_series(?, …) n"
SCAN = "SELECT sum(k * n) FROM wide"
other_releases = each_release("postgresql-13", "postgresql-17", "postgresql-18")


@contextmanager
def shop(build: ServerBuild | None = None, settings: Mapping[str, Setting] | None = None) -> Iterator[PrivateServer]:
    """The host's server, or this one, with a database in which we may make tables."""
    # Its own workers would wake in the middle of a comparison.
    with PrivateServer(family="postgresql", build=build, settings={"autovacuum": False, **(settings or {})}) as server:
        with server.connect() as connection:
            sql.execute(connection, f"CREATE DATABASE {DATABASE}")
        yield server


def initialised_with(monkeypatch: pytest.MonkeyPatch, statements: Sequence[str], hba: str = "") -> None:
    """Let private servers begin with these statements of a superuser and lines of pg_hba.conf, and load libraries.

    Neither is an option of private servers.
    """

    initialise, files = postgresql.build_initialise_steps, postgresql.build_files

    def build_steps(build: ServerBuild, datadir: Path) -> Steps:
        *others, (command, text) = initialise(build, datadir)
        return [*others, (command, text + "".join(f"{statement}\n" for statement in statements))]

    def build_files(build: ServerBuild, account: Login) -> Mapping[str, str]:
        return {name: text + hba for name, text in files(build, account).items()}

    monkeypatch.setattr(settings, "_POSTGRESQL_RESERVED", re.compile("(?!)"))
    monkeypatch.setattr(templates, "find_shelf", lambda: None)
    monkeypatch.setattr(postgresql, "build_initialise_steps", build_steps)
    monkeypatch.setattr(postgresql, "build_files", build_files)


@contextmanager
def client(server: PrivateServer, user: str | None = None, database: str = DATABASE) -> Iterator[PGconn]:
    """A connection by the messages of the protocol."""
    where = {"host": str(server.socket.parent), "user": user or server.login.user, "dbname": database}
    handle = pq.PGconn.connect(conninfo.make_conninfo("", **where).encode())
    assert handle.status == pq.ConnStatus.OK, handle.error_message
    try:
        yield handle
    finally:
        handle.finish()


def run(handle: PGconn, text: str) -> Any:
    """One message of Query."""
    result = handle.exec_(text.encode())
    assert result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK), result.error_message
    return result.get_value(0, 0) if result.ntuples else None


def backend_of(handle: PGconn) -> int:
    """The process that serves a client."""
    return int(run(handle, "SELECT pg_backend_pid()"))


@contextmanager
def busy(server: PrivateServer) -> Iterator[int]:
    """A client that works until the end; gives the process that serves it."""
    stop = threading.Event()
    with client(server) as handle:
        backend = backend_of(handle)

        def ask() -> None:
            while not stop.is_set():
                run(handle, BURN.format(20_000))
                time.sleep(0.002)

        worker = threading.Thread(target=ask)
        worker.start()
        try:
            yield backend
        finally:
            stop.set()
            worker.join()


def come_and_go(server: PrivateServer, times: int = 20) -> None:
    """Clients one after the other, with a process each."""
    for _ in range(times):
        with client(server) as handle:
            run(handle, BURN.format(100_000))


@contextmanager
def scanned_in_parallel(server: PrivateServer) -> Iterator[PGconn]:
    """A client whose SCAN is done by workers as well."""
    with client(server) as handle:
        run(handle, "CREATE TABLE wide AS SELECT n, n % 97 AS k FROM generate_series(1, 400000) n")
        for setting in ("parallel_setup_cost", "parallel_tuple_cost", "min_parallel_table_scan_size"):
            run(handle, f"SET {setting} = 0")
        run(handle, "SET max_parallel_workers_per_gather = 2")
        yield handle
        run(handle, "DROP TABLE wide")


@contextmanager
def points(server: PrivateServer) -> Iterator[PGconn]:
    """A client with a table of points to select."""
    with client(server) as handle:
        made = "SELECT n AS id, n % 97 AS k, md5(n::text) AS c FROM generate_series(1, 9999) n"
        run(handle, f"CREATE TABLE points AS {made}")
        run(handle, "ALTER TABLE points ADD PRIMARY KEY (id)")
        run(handle, "ANALYZE points")
        yield handle
        run(handle, "DROP TABLE points")


def alone_and_mixed(
    backend: int, texts: Sequence[str], turn: Callable[[str, str], None], rounds: int
) -> dict[str, float]:
    """What each text costs alone by the CPU clock of its client's process, as percentages of all of them.

    `turn` executes one, with a mark: "alone", between two looks at that clock, and "mixed", with none.
    """
    spent = dict.fromkeys(texts, 0)
    for _ in range(rounds):
        for text in texts:
            before = _settled_ns(backend)
            turn(text, "alone")
            spent[text] += _settled_ns(backend) - before
        for text in texts:
            turn(text, "mixed")
    return {text: 100 * own / sum(spent.values()) for text, own in spent.items()}


def _settled_ns(backend: int) -> int:
    """When the process has gone to wait: it answers before, and is counted to where it is switched out."""
    last: int | None = -1
    now = process_cpu_ns(backend)
    while now != last:
        time.sleep(0.0003)
        last, now = now, process_cpu_ns(backend)
    assert now is not None
    return now
