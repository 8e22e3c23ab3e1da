# SPDX-License-Identifier: Apache-2.0
"""Settings of PostgreSQL in postgresql.auto.conf: a kind of setting.

The file outlasts the server, so the setting is restored after a restart of the server or the host, too. The server is
found again by its data folder.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from powerprof.database import sql
from powerprof.database.base import Limits, Login, StatementError
from powerprof.database.postgres_settings import AUTO_FILE, read_file_text
from powerprof.database.server_process import find_server_pid
from powerprof.database.wire import read_process_account
from powerprof.reversible.host_settings import Lasting
from powerprof.system.errors import PowerprofError
from powerprof.system.foreign_text import printable
from powerprof.system.processes import list_pids, name_of
from powerprof.system.reader_process import link_of, shared
from powerprof.system.server_names import is_postgres_program
from powerprof.system.tasks import parent_of, process_folder

if TYPE_CHECKING:
    from powerprof.database.base import Sql

UNSET = f"unset in {AUTO_FILE}"
"""The value of a setting that the file lacks."""
_LIMITS = Limits(answer_s=5.0, waiting_s=8.0, rows=5000, answer_bytes=1 << 20)
_LOADED = "SELECT pg_catalog.pg_conf_load_time()"
_LOAD_S, _LOOK_S = 5.0, 0.01


class DataFolder(msgspec.Struct, frozen=True):
    """The data folder of a server: its account, its path in the server's file system, and the inode of PG_VERSION."""

    uid: int
    path: str
    inode: int

    @classmethod
    def of(cls, pid: int) -> DataFolder | None:
        """Return the data folder of a server's first process, which runs in it; None if it cannot be read."""
        uid, path = read_process_account(pid), link_of(process_folder(pid) / "cwd")
        file = shared().status(process_folder(pid) / "cwd/PG_VERSION")
        return None if uid is None or path is None or file is None else cls(uid, path, file.inode)

    def find_server(self) -> int:
        """Return the first process of the server that runs now. Raise PowerprofError if none runs."""
        for pid in list_pids():
            # Only a process of this account can be the server, so no other account's is looked at.
            if read_process_account(pid) != self.uid or not is_postgres_program(name_of(pid)):
                continue
            if not is_postgres_program(name_of(parent_of(pid))) and DataFolder.of(pid) == self:
                return pid
        raise PowerprofError(f"the server of {printable(self.path)} does not run", "start it")


class PostgresSetting(msgspec.Struct, frozen=True, tag="postgres_setting"):
    """A setting of a PostgreSQL server. A value is the text in postgresql.auto.conf, or `UNSET`.

    Attributes:
        login: the fields of the login to the server (`Login.to_fields`).
    """

    login: dict[str, Any]
    name: str
    value: str
    folder: DataFolder
    lasts: ClassVar[Lasting] = "always"

    def read(self) -> str | None:
        """Return the present value. Raise PowerprofError."""
        with self._connect() as connection, self._named(self.name):
            return self._read(connection)

    def write(self, value: str) -> str | None:
        """Write the value, let the server load it, and return the value in the file. Raise PowerprofError."""
        with self._connect() as connection, self._named(f"{self.name}={value}"):
            sql.fetch_rows(connection, f"ALTER SYSTEM SET {self.name} = {_literal(value)}")
            _load(connection)
            return self._read(connection)

    def load(self) -> None:
        """Let the server load its files, since the last writer can have been killed before. Raise PowerprofError."""
        with self._connect() as connection, self._named(self.name):
            _load(connection)

    def by_hand(self, value: str) -> str:
        """Return the statements that set a value."""
        quoted = value.replace("'", "''")
        change = f"RESET {self.name}" if value == UNSET else f"SET {self.name} = '{quoted}'"
        return f"ALTER SYSTEM {change}; SELECT pg_catalog.pg_reload_conf()"

    def _read(self, connection: Sql) -> str:
        text = read_file_text(connection, self.name)
        return UNSET if text is None else text

    def _connect(self) -> Sql:
        """Return a connection to the server of the data folder, whose process may be another one by now."""
        pid = self.folder.find_server()
        login = Login.from_fields(self.login).for_process(pid)
        if login.socket is None:
            connection = sql.connect(login, limits=_LIMITS)
            if find_server_pid(connection, login) != pid:
                connection.close()
                raise PowerprofError(f"{login.text} is not the server of {printable(self.folder.path)}", "start it")
            return connection
        return sql.connect(msgspec.structs.replace(login, socket=_move_to(login.socket, pid)), limits=_LIMITS)

    @contextmanager
    def _named(self, subject: str) -> Iterator[None]:
        """Begin the server's error messages in the block with `subject`."""
        try:
            yield
        except StatementError as error:
            hint = error.hint or "choose a value that ALTER SYSTEM accepts"
            raise StatementError(f"{subject}: {error.message}", hint, error.number) from error


def _load(connection: Sql) -> None:
    """Let the server load its files, and wait until its first process has loaded them. Raise PowerprofError."""
    before, until_s = sql.fetch_scalar(connection, _LOADED), time.monotonic() + _LOAD_S
    sql.fetch_rows(connection, "SELECT pg_catalog.pg_reload_conf()")
    # It passes the signal on to this session after it has loaded them.
    while sql.fetch_scalar(connection, _LOADED) == before:
        if time.monotonic() > until_s:
            raise PowerprofError("the server does not load its configuration", "its error log contains the reason")
        time.sleep(_LOOK_S)


def _literal(value: str) -> str:
    """Return a value as SQL, with the same meaning for any standard_conforming_strings."""
    if value == UNSET:
        return "DEFAULT"
    return "E'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _move_to(socket: Path, pid: int) -> Path:
    """Return a path below /proc/PID/root, of a process that may have ended, below the root of process `pid`."""
    parts = socket.parts
    if len(parts) > 4 and parts[1] == "proc" and parts[3] == "root":
        return process_folder(pid).joinpath("root", *parts[4:])
    return socket
