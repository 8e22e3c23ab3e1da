# SPDX-License-Identifier: Apache-2.0
"""A PostgreSQL as Debian sets it up: an account that owns it, peer authentication, and restarts with the same data."""

from __future__ import annotations

import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from powerprof.database import postgresql, sql
from powerprof.database.base import Login, Sql
from powerprof.system.caller import account_of
from powerprof.system.errors import PowerprofError
from tests.programs.waiting import wait_until

_ACCOUNT = "postgres"


class OwnPostgresql:
    """A running server of the account postgres with the data in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / ".s.PGSQL.5432"
        self.data = folder / "data"
        self._binary = postgresql.find_build().binary
        self._process: subprocess.Popen[bytes] | None = None
        self._run("initdb", f"--pgdata={self.data}", "--no-sync", "--auth=peer", "--locale=C").wait(120)
        self.start()

    def _run(self, program: str, *words: str) -> subprocess.Popen[bytes]:
        place = self._binary.with_name(program)
        return subprocess.Popen(
            [place, *words], user=_ACCOUNT, group=_ACCOUNT, extra_groups=[], cwd="/",
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        """The first process."""
        assert self._process is not None
        return self._process.pid

    def start(self, *settings: str) -> None:
        """Start it with settings on its command line, and wait until it answers."""
        words = [word for setting in (f"unix_socket_directories={self.socket.parent}", "listen_addresses=", *settings)
                 for word in ("-c", setting)]  # fmt: skip
        self._process = self._run("postgres", "-D", str(self.data), *words)
        wait_until(self._answers, "it does not answer")

    def stop(self) -> None:
        """End it at once, as a crash does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(60)

    def connect(self) -> Sql:
        """Return a connection of the superuser."""
        return sql.connect(Login(user=_ACCOUNT, socket=self.socket, family="postgresql", account=account_of(
            pwd.getpwnam(_ACCOUNT).pw_uid)))  # fmt: skip

    def execute(self, *statements: str) -> None:
        """Run statements."""
        with self.connect() as connection:
            sql.execute(connection, *statements)

    def show(self, name: str) -> str:
        """Return the present value of a setting in a new session."""
        with self.connect() as connection:
            return str(sql.fetch_scalar(connection, f"SHOW {name}"))

    @property
    def auto_file(self) -> str:
        """The text of postgresql.auto.conf."""
        return (self.data / "postgresql.auto.conf").read_text()

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except PowerprofError:
            return False
        return True


@contextmanager
def own_postgresql() -> Iterator[OwnPostgresql]:
    """Yield a server, which is removed with its data."""
    folder = Path(tempfile.mkdtemp(prefix="own-postgresql-", dir="/tmp"))
    try:
        shutil.chown(folder, _ACCOUNT)
        folder.chmod(0o755)
        server = OwnPostgresql(folder)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)
