# SPDX-License-Identifier: Apache-2.0
"""A server of the user's: how it is addressed, and the small surface it shares with a private one."""

from __future__ import annotations

import getpass
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from powerprof.caller import HostUser, acting_as, caller, is_delegated
from powerprof.database.clients import optionfiles, sql
from powerprof.database.clients.base import Login
from powerprof.database.clients.locate import server_pid
from powerprof.database.clients.peers import listener_of
from powerprof.errors import DataError, PowerprofError, UsageError

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql

_INSTEAD = "put it into an option file (--defaults-file), into MYSQL_PWD, or let powerprof ask for it"


def given_login(url: str | None = None, socket: Path | None = None, defaults_file: Path | None = None) -> Login:
    """Where and as whom to connect: URL and socket over option file, MYSQL_PWD.

    Under sudo all of it is the caller's: the user that is the default, the option file, the socket and the keys of TLS
    are used with that account's rights, since what runs there is the caller's SQL. Raises UsageError, for a password in
    the URL too: command lines are for everybody to read. Raises DataError for a damaged option file.
    """
    if url is not None and socket is not None:
        raise UsageError("--server and --socket name two servers", "use one of them")
    account = caller() if is_delegated() else None
    options = _options(defaults_file, account)
    user, host, port, database = _parse(url) if url is not None else (None, None, None, None)
    if url is None and socket is None:
        host, port, socket = _address(options)
    text = {name: option.value for name, option in options.items()}
    return Login(
        user=user or text.get("user") or (account.name if account is not None else None) or getpass.getuser(),
        socket=socket,
        host=host,
        port=port,
        database=database or text.get("database"),
        tls=_tls(text),
        password=text.get("password") or os.environ.get("MYSQL_PWD") or "",
        account=account,
        options=None if defaults_file is None else defaults_file.absolute(),
    )


def password_in(path: Path, account: HostUser | None) -> str:
    """The password of an option file, read with that account's rights; empty where it has none. Raises DataError."""
    found = _options(path, account).get("password")
    return "" if found is None else found.value


def _options(path: Path | None, account: HostUser | None) -> dict[str, optionfiles.Option]:
    if path is None:
        return {}
    if account is None:
        return optionfiles.read(path)
    with acting_as(account):
        try:
            path.open("rb").close()
        except PermissionError as error:
            hint = f"under sudo it is read as {account.name}: name a file of theirs, or run as root itself"
            raise DataError(path, f"{account.name} has no permission to read it", hint=hint) from error
        except OSError:
            pass  # its own reader says why
        return optionfiles.read(path)


def _parse(url: str) -> tuple[str | None, str, int, str | None]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"--server is not an address ({error})", "mysql://user@host:port/") from None
    if parts.password is not None:
        raise UsageError("a password in --server would show in the process list", _INSTEAD)
    if parts.scheme not in ("mysql", "mariadb") or not parts.hostname or parts.query or parts.fragment or port == 0:
        raise UsageError(f"--server {url!r} is not an address", "mysql://user@host:port/")
    database = unquote(parts.path.strip("/")) or None
    if database is not None and not re.fullmatch(r"[^/\0]{1,64}", database):
        raise UsageError(f"--server {url!r} does not name a schema after the host", "mysql://user@host:port/")
    return unquote(parts.username or "") or None, parts.hostname, port or 3306, database


def _address(options: dict[str, optionfiles.Option]) -> tuple[str | None, int | None, Path | None]:
    """What the option file says; host over socket, as it is for the server's own clients."""
    host = options.get("host")
    port = options.get("port")
    number = None
    if port is not None:
        if not re.fullmatch(r"[0-9]{1,5}", port.value) or not 1 <= int(port.value) <= 65535:
            raise port.error(f"not a port: {port.value[:20]!r}")
        number = int(port.value)
    if host is not None and host.value not in ("", "localhost"):
        return host.value, number, None
    if "socket" in options:
        return None, None, Path(options["socket"].value)
    if number is not None:
        return "127.0.0.1", number, None
    raise UsageError("no server is named", "--server mysql://user@host:port/, --socket, or both in --defaults-file")


def _tls(text: dict[str, str]) -> dict[str, str]:
    names = {"ssl-ca": "ca", "ssl-cert": "cert", "ssl-key": "key"}
    settings = {short: text[name] for name, short in names.items() if text.get(name)}
    if text.get("ssl-verify-server-cert", "").lower() in ("1", "on", "true"):
        settings["verify_cert"] = settings["verify_identity"] = "1"
    return settings


def version_of(connection: Sql) -> str:
    """The server's version as people write it: `MariaDB 10.11.19`. Raises PowerprofError where it says none."""
    version = sql.scalar(connection, "SELECT @@version")
    number = re.match(r"[0-9.]{1,20}", version) if isinstance(version, str) else None
    if number is None:
        raise PowerprofError("SELECT failed (the server does not say its version)", "is it MySQL or MariaDB?")
    return f"{'MariaDB' if 'mariadb' in str(version).lower() else 'MySQL'} {number[0]}"


class GivenServer:
    """`with GivenServer(login) as server:` looks at a server that is not ours: nothing in it is changed.

    Raises PowerprofError where it cannot be reached.
    """

    private = False
    namespaces: tuple[int, ...] = ()

    def __init__(self, login: Login) -> None:
        self.login = login
        self._pid: int | None = None
        self._version = ""

    def __enter__(self) -> GivenServer:
        with self.connect(limits=sql.A_WORD) as connection:
            version = version_of(connection)
            self._pid = server_pid(connection, self.login)
            if self._pid is not None and self.login.socket is not None and listener_of(connection) == self._pid:
                # From now on it is this process, whatever the path leads to later.
                self.login = self.login.at(self._pid)
        self._version = version
        return self

    def __exit__(self, *_: object) -> None:
        return None

    @property
    def pid(self) -> int | None:
        """Its process; None where it runs on another host or cannot be found."""
        return self._pid

    @property
    def version(self) -> str:
        """As people write it: `MariaDB 10.11.19`."""
        return self._version

    @property
    def socket(self) -> Path | None:
        """The unix socket it is reached by."""
        return self.login.socket

    @property
    def port(self) -> int | None:
        """The port it is reached by."""
        return self.login.port

    def connect(self, **options: Any) -> Sql:
        """A control connection, closed by the caller; `options` go to PyMySQL. Raises PowerprofError."""
        return sql.connect(self.login, **options)

    def thread_names(self) -> dict[int, str]:
        """Kernel thread id → performance_schema name; empty where the server does not tell."""
        with self.connect(limits=sql.A_WORD) as connection:
            return sql.thread_names(connection, self.pid)

    def alive(self) -> bool:
        """True while it can be connected to."""
        try:
            self.connect(limits=sql.A_WORD).close()
        except PowerprofError:
            return False
        return True

    def check(self) -> None:
        """Raises PowerprofError where it can no longer be connected to."""
        self.connect().close()


def connect_given(url: str | None = None, socket: Path | None = None, defaults_file: Path | None = None) -> GivenServer:
    """The server that the command line names; see `given_login`. Use it as a context manager."""
    return GivenServer(given_login(url, socket, defaults_file))
