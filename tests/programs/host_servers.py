# SPDX-License-Identifier: Apache-2.0
"""Servers as a host has them: of the accounts mysql and postgres, with root's login through the socket."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec.structs import replace

from powerprof.database import sql
from powerprof.database.base import Login, Sql
from powerprof.database.local_login import ask_locally
from powerprof.database.postgres_wire import WORKLOAD_OPTIONS
from powerprof.model.identities import Family

_BIN = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"))), Path("/usr/bin"))


class HostServer:
    """A server in a folder. It can be killed and started again."""

    def __init__(self, family: Family, folder: Path, words: Sequence[str | Path]) -> None:
        self.family, self.folder, self._words = family, folder, [str(word) for word in words]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def socket(self) -> Path:
        return next(iter(self.folder.glob(".s.PGSQL.*[0-9]")), self.folder / "mysqld.sock")

    def start(self) -> None:
        """Start the server, and wait until it lets root in or refuses the login."""
        log = (self.folder / "server.log").open("ab")
        with log:
            self._process = subprocess.Popen(self._words, stdout=log, stderr=log, cwd=self.folder)
        deadline = time.monotonic() + 60
        while True:
            answer = ask_locally(self.pid, family=self.family)
            if answer.entered is not None:
                answer.entered[1].__exit__(None, None, None)
            if answer.is_given and self.socket.exists():
                return
            ended = self._process.poll() is not None or time.monotonic() > deadline
            assert not ended, (self.folder / "server.log").read_text()[-2000:]
            time.sleep(0.2)

    def end(self, signal_number: int = signal.SIGKILL) -> None:
        """Kill the server with its processes."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.send_signal(signal.SIGQUIT if self.family == "postgresql" else signal_number)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def signal(self, number: int) -> None:
        """Send a signal to the first process."""
        os.kill(self.pid, number)

    def connect(self, database: str | None = None) -> Sql:
        """Connect as root, or as the superuser of PostgreSQL. Names of tables are in the schema public."""
        user = "root" if self.family == "mysql" else "postgres"
        login = Login(user=user, password="", socket=self.socket, family=self.family)
        if self.family == "postgresql":
            login = replace(login, session_options=WORKLOAD_OPTIONS)
        return sql.connect(login, database=database)

    def run(self, *statements: str) -> None:
        """Execute statements."""
        self.run_in(None, *statements)

    def run_in(self, database: str | None, *statements: str) -> None:
        """Execute statements in a database."""
        with self.connect(database) as connection:
            sql.execute(connection, *statements)


def _owned(folder: Path, account: str) -> Path:
    folder.mkdir()
    shutil.chown(folder, account, account)
    return folder


@contextmanager
def mariadb(folder: Path, port: int, *options: str, own_network: bool = False) -> Iterator[HostServer]:
    """Run a MariaDB of the account mysql. `own_network`: in a network namespace of its own."""
    _owned(folder, "mysql")
    words = ["mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={folder / 'data'}", "--skip-test-db"]
    subprocess.run([*words, "--auth-root-authentication-method=socket"], check=True, capture_output=True)
    network = ["unshare", "--net"] if own_network else []
    command = [*network, "/usr/sbin/mariadbd", "--no-defaults", "--user=mysql", f"--datadir={folder / 'data'}"]
    places = [f"--socket={folder / 'mysqld.sock'}", f"--port={port}", f"--pid-file={folder / 'pid'}"]
    small = ["--innodb-buffer-pool-size=8M", "--innodb-log-file-size=4M", "--innodb-flush-log-at-trx-commit=0"]
    server = HostServer("mysql", folder, [*command, *places, *small, *options])
    try:
        yield server
    finally:
        server.end()


@contextmanager
def postgresql(folder: Path, port: int, *options: str, base: HostServer | None = None) -> Iterator[HostServer]:
    """Run a PostgreSQL of the account postgres, with a role root; with `base` a standby of that server."""
    _owned(folder, "postgres")
    data, account = folder / "data", ["runuser", "-u", "postgres", "--"]
    if base is None:
        made = [*account, _BIN / "initdb", "-D", data, "--auth=trust", "--no-sync", "--locale=C"]
    else:
        made = [*account, _BIN / "pg_basebackup", "-h", base.folder, "-p", base.socket.name.rpartition(".")[2]]
        made += ["-U", "postgres", "-D", data, "-R", "-c", "fast"]
    subprocess.run(made, check=True, capture_output=True, cwd=folder)
    command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", _BIN / "postgres", "-D", data]
    settings = [f"port={port}", f"unix_socket_directories={folder}", "fsync=off", "shared_buffers=16MB", *options]
    words = [*command, *(word for setting in settings for word in ("-c", setting))]
    server = HostServer("postgresql", folder, words)
    try:
        if base is None:
            server.run("CREATE ROLE root LOGIN IN ROLE pg_monitor")
        yield server
    finally:
        with suppress(ProcessLookupError):
            server.end()
