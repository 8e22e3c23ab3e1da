# SPDX-License-Identifier: Apache-2.0
"""Servers that the user names: login from the options, connection, and process on this host."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from powerprof.database import sql
from powerprof.database.base import DEFAULT_PORTS, Login
from powerprof.database.option_files import OptionValue, read_options
from powerprof.database.products import product_of_family
from powerprof.database.server_process import find_server_pid
from powerprof.database.wire import read_connection_listener
from powerprof.measure.target_life import LOOK_S, TargetLife
from powerprof.model.identities import Family
from powerprof.system.caller import caller, is_delegated
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.processes import label_of
from powerprof.system.server_roles import read_roles
from powerprof.system.targets import Target

if TYPE_CHECKING:
    from powerprof.database.base import Sql

_ADDRESS = "mysql://user@host:port/ or postgresql://user@host:port/"
_SCHEMES: Mapping[str, Family] = {
    "mysql": "mysql",
    "mariadb": "mysql",
    "postgresql": "postgresql",
    "postgres": "postgresql",
}
# PostgreSQL names a socket after its port.
_POSTGRES_SOCKET = re.compile(r"\.s\.PGSQL\.[0-9]{1,5}")


def build_login(url: str | None = None, socket: Path | None = None, defaults_file: Path | None = None) -> Login:
    """Return the login: `url`, a URL or a socket, and `socket` take precedence over the option file and environment.

    Under sudo everything is the caller's: the default user, option file, socket and TLS keys are used with that
    account's rights, because the caller's SQL runs there. Raises UsageError, also for a password in the URL, which
    every user could read in the process list. Raises DataError for a malformed option file.
    """
    if url is not None and socket is not None:
        raise UsageError("--server and --socket name two servers", "use one of them")
    family: Family = "mysql"
    user = host = port = database = None
    if url is not None and "/" in url and "://" not in url:
        user, path = _parse_socket(url)
        socket, url = Path(path), None
    account = caller() if is_delegated() else None
    options = read_options(defaults_file, account)
    if url is not None:
        family, user, host, port, database = _parse_url(url)
    elif socket is None:
        host, port, socket = _parse_address(options)
    if socket is not None and _POSTGRES_SOCKET.fullmatch(socket.name):
        family = "postgresql"
    if family == "postgresql" and defaults_file is not None:
        raise UsageError("--defaults-file is for MariaDB and MySQL, and a PostgreSQL server is named", "leave it out")
    text = {name: option.value for name, option in options.items()}
    return Login(
        user=user or text.get("user") or (account.name if account is not None else None) or getpass.getuser(),
        socket=socket,
        host=host,
        port=port,
        database=database or text.get("database"),
        tls=_parse_tls(text),
        password=text.get("password") or _read_password(family),
        family=family,
        account=account,
        options=None if defaults_file is None else defaults_file.absolute(),
    )


def _read_password(family: Family) -> str:
    """Return the password of the variable that the server's own clients read; empty without one."""
    password = os.environ.get("PGPASSWORD") if family == "postgresql" else os.environ.get("MYSQL_PWD")
    return password or ""


def _parse_socket(text: str) -> tuple[str | None, str]:
    """Return the user, None without one, and the path of `USER@/SOCKET` or a path."""
    user, found, path = text.partition("@/")
    return (user, f"/{path}") if found and user and "/" not in user else (None, text)


def _parse_url(url: str) -> tuple[Family, str | None, str, int, str | None]:
    """Return product, user, host, port and database of an address. Raise UsageError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"--server is not an address ({error})", _ADDRESS) from None
    family = _SCHEMES.get(parts.scheme)
    if parts.password is not None:
        place = "PGPASSWORD" if family == "postgresql" else "an option file (--defaults-file) or into MYSQL_PWD"
        raise UsageError("a password in --server would show in the process list", f"put it into {place}")
    if family is None or not parts.hostname or parts.query or parts.fragment or port == 0:
        raise UsageError(f"--server {url!r} is not an address", _ADDRESS)
    database = unquote(parts.path.strip("/")) or None
    if database is not None and not re.fullmatch(r"[^/\0]{1,64}", database):
        raise UsageError(f"--server {url!r} does not name a schema after the host", f"{family}://user@host:port/")
    return family, unquote(parts.username or "") or None, parts.hostname, port or DEFAULT_PORTS[family], database


def _parse_address(options: dict[str, OptionValue]) -> tuple[str | None, int | None, Path | None]:
    """Return host, port and socket of the options. As for the server's own clients, the host takes precedence."""
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


def _parse_tls(text: dict[str, str]) -> dict[str, str]:
    names = {"ssl-ca": "ca", "ssl-cert": "cert", "ssl-key": "key"}
    settings = {short: text[name] for name, short in names.items() if text.get(name)}
    if text.get("ssl-verify-server-cert", "").lower() in ("1", "on", "true"):
        settings["verify_cert"] = settings["verify_identity"] = "1"
    return settings


class GivenServer:
    """A server of the user, which is only read: `with GivenServer(login) as server:`.

    Raises PowerprofError if it cannot be reached.
    """

    private = False
    namespaces: tuple[int, ...] = ()

    def __init__(self, login: Login, look_s: float = LOOK_S) -> None:
        """Look within windows every `look_s` seconds whether it was stopped. Each look wakes a CPU."""
        self.login, self._look_s = login, look_s
        self.pid: int | None = None
        """Its process; None if it runs on another host or cannot be found."""
        self.life: TargetLife | None = None
        """The part of a window that ends it if the server ends or stops; None without a process on this host."""
        self.version = ""
        """Product and version, such as `MariaDB 10.11.19`."""

    def __enter__(self) -> GivenServer:
        with self.connect(limits=sql.WORD_LIMITS) as connection:
            version = sql.read_version(connection)
            self.pid = find_server_pid(connection, self.login)
            is_local = self.pid is not None and self.login.socket is not None
            if is_local and read_connection_listener(connection) == self.pid:
                # Later connections accept only this process, even if the path leads to another one.
                self.login = self.login.for_process(self.pid)
        self.version = version
        if self.pid is not None:
            self.life = TargetLife(Target((self.pid,), label_of(self.pid)), self._look_s)
        return self

    def __exit__(self, *raised: object) -> None:
        if self.life is not None:
            self.life.__exit__(*raised)

    @property
    def socket(self) -> Path | None:
        """The unix socket of its login."""
        return self.login.socket

    @property
    def port(self) -> int | None:
        """The port of its login."""
        return self.login.port

    def connect(self, **options: Any) -> Sql:
        """Return a control connection that the caller closes; `options` go to PyMySQL.

        Raise TargetEndedError if the server has ended or was stopped, and PowerprofError.
        """
        try:
            return sql.connect(self.login, **options)
        except PowerprofError:
            if self.life is not None:
                self.life.check()
            raise

    def list_processes(self) -> Sequence[int]:
        """Return its present processes; empty if it runs on another host or cannot be found."""
        return () if self.pid is None else product_of_family(self.login.family).list_processes(self.pid)

    def thread_names(self) -> dict[int, str]:
        """Return performance_schema names by kernel thread id; empty if the server does not report them."""
        if self.login.family == "postgresql":
            return read_roles(self.list_processes())
        with self.connect(limits=sql.WORD_LIMITS) as connection:
            return sql.read_thread_names(connection, self.pid)

    def alive(self) -> bool:
        """Return whether it accepts connections."""
        try:
            self.connect(limits=sql.WORD_LIMITS).close()
        except PowerprofError:
            return False
        return True

    def check(self) -> None:
        """Raise PowerprofError if it has ended or was stopped, or on another host, if it accepts no connection."""
        if self.life is None:
            self.connect().close()
        else:
            self.life.check()


def given_server(
    url: str | None = None,
    socket: Path | None = None,
    defaults_file: Path | None = None,
    *,
    families: tuple[Family, ...] = ("mysql",),
) -> GivenServer:
    """Return the server of the command line; see `build_login`. Use it as a context manager.

    Raises UsageError for a product that is not in `families`.
    """
    login = build_login(url, socket, defaults_file)
    if login.family not in families:
        raise UsageError(
            f"{login.text} is a PostgreSQL server, and this command connects to MariaDB and MySQL only",
            "name a PostgreSQL server by --pid",
        )
    return GivenServer(login)
