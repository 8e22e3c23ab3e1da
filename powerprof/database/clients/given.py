# SPDX-License-Identifier: Apache-2.0
"""A server of the user's: how it is addressed, and the small surface it shares with a private one."""

from __future__ import annotations

import getpass
import ipaddress
import os
import re
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from powerprof.database.clients import sql
from powerprof.database.clients.base import Login
from powerprof.database.clients.wire import read_connection_listener, read_listener
from powerprof.system import files, paths
from powerprof.system.caller import HostUser, acting_as, caller, is_delegated
from powerprof.system.errors import DataError, PowerprofError, UsageError
from powerprof.system.files import loader
from powerprof.system.processes import processes, socket_inodes
from powerprof.system.reader_process import shared

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql


# Which process of this host is the server at the other end of a connection.

_NAMES = ("mariadbd", "mysqld", "mysqld-debug")
_UNKNOWN_PROCESS = -1
_LISTENING = "0A"  # TCP_LISTEN, include/net/tcp_states.h


def find_server_pid(connection: Sql, login: Login) -> int | None:
    """The server's process id; None where it runs elsewhere or cannot be found out."""
    channel = connection._sock  # type: ignore[attr-defined]
    if login.socket is not None and isinstance(channel, socket.socket):
        pid = read_listener(channel)  # under socket activation that is systemd
        if _is_server(pid):
            return pid
    elif isinstance(channel, socket.socket):
        address, port = channel.getpeername()[:2]
        if not _is_ours(str(address)):
            return None
        owner = _listener(int(port))
        if owner is not None:
            # A tunnel or container proxy may listen for a server of another host.
            return owner if _is_server(owner) else None
    return _from_pid_file(connection)


def _is_server(pid: int) -> bool:
    return pid > 0 and files.try_text(paths.procfs() / str(pid) / "comm") in _NAMES


def _is_ours(address: str) -> bool:
    """True for a loopback address and those of this host's interfaces."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if ip.is_loopback:
        return True
    family = socket.AF_INET6 if ip.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _listener(port: int) -> int | None:
    """Who listens on a TCP port of this host, as far as we may see it."""
    inodes = set()
    for table in ("net/tcp", "net/tcp6"):
        for line in (files.try_text(paths.procfs() / table) or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == _LISTENING and int(words[1].rpartition(":")[2], 16) == port:
                inodes.add(words[9])
    return next((pid for pid in processes() if inodes & socket_inodes(pid)), None) if inodes else None


def _from_pid_file(connection: Sql) -> int | None:
    """What the server's own pid file says, where this host has it and such a process."""
    try:
        name = sql.fetch_scalar(connection, "SELECT @@pid_file")
    except PowerprofError:
        return None
    # The server chose the path, which may lead to files of any process.
    text = (shared().read(_UNKNOWN_PROCESS, Path(str(name)), 64) or b"").decode("latin-1").strip()
    pid = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0
    return pid if _is_server(pid) else None


# MySQL option files (my.cnf): the groups that say how a client connects, read as the hostile input they are.

GROUPS = ("client", "client-server", "client-mariadb", "powerprof")
_KEYS = frozenset(
    {
        "user",
        "password",
        "host",
        "port",
        "socket",
        "database",
        "ssl-ca",
        "ssl-cert",
        "ssl-key",
        "ssl-verify-server-cert",
    }
)
_LIMIT_BYTES = 1 << 20
_LIMIT_FILES = 50
_LIMIT_ENTRIES = 10_000
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "r": "\r", "\\": "\\", "s": " ", '"': '"', "'": "'"}


@dataclass(frozen=True)
class OptionValue:
    """One value and where it was written."""

    value: str
    path: Path
    line: int

    def error(self, reason: str) -> DataError:
        """The complaint about this value."""
        return DataError(self.path, reason, self.line)


@loader
def read_option_file(path: Path) -> dict[str, OptionValue]:
    """The client options of a file and of those it includes; the last one counts, as for the server's own clients.

    Raises DataError for what is no option file, and for one that anybody may write to.
    """
    options: dict[str, OptionValue] = {}
    _read(path, options, [_LIMIT_FILES])
    return options


def _read(path: Path, options: dict[str, OptionValue], left: list[int]) -> None:
    left[0] -= 1
    if left[0] < 0:
        raise DataError(path, f"more than {_LIMIT_FILES} files include one another")
    _check_writers(path)
    text = files.read_outside_text(path, _LIMIT_BYTES)
    group: str | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line[0] == "!":
            _include(path, number, line, options, left)
        elif line[0] == "[":
            if not line.split("#", 1)[0].rstrip().endswith("]"):
                raise DataError(path, f"a group without ]: {line[:40]!r}", number)
            group = line[1 : line.index("]")].strip()
        elif group is None:
            raise DataError(path, f"an option outside of a group: {line[:40].split('=')[0]!r}", number)
        elif group in GROUPS:
            name, _, value = line.partition("=")
            name = name.strip().lower().replace("_", "-")
            if name in _KEYS:
                options[name] = OptionValue(_value(value, path, number), path, number)


def _include(path: Path, number: int, line: str, options: dict[str, OptionValue], left: list[int]) -> None:
    directive, _, target = line.partition(" ")
    place = Path(target.strip())
    if directive == "!include" and target:
        _read(place, options, left)
    elif directive == "!includedir" and target:
        for file in _folder(place, path, number):
            _read(file, options, left)
    else:
        raise DataError(path, f"not a directive: {line[:40]!r}", number)


def _folder(place: Path, path: Path, number: int) -> list[Path]:
    """The option files of a folder that line `number` of `path` names, in the order of their names."""
    try:
        _check_writers(place)
        with os.scandir(place) as entries:
            found = [Path(entry.path) for entry in islice(entries, _LIMIT_ENTRIES + 1)]
    except (OSError, ValueError) as error:
        reason = files.reason_of(error) if isinstance(error, OSError) else "no such file"
        raise DataError(path, f"cannot read the directory {str(place)[:80]!r} ({reason})", number) from None
    if len(found) > _LIMIT_ENTRIES:
        raise DataError(path, f"more than {_LIMIT_ENTRIES:,} files in the directory {place}", number)
    return sorted(file for file in found if file.name.endswith(".cnf"))


def _check_writers(path: Path) -> None:
    """That not everybody may write to a file, or put one into a folder; what cannot be opened its reader refuses."""
    with suppress(OSError, ValueError):
        if path.stat().st_mode & stat.S_IWOTH:
            raise DataError(path, "anybody may write to it, so it is not trusted", hint=f"chmod o-w {path}")


def _value(text: str, path: Path, number: int) -> str:
    """Without quotes and a trailing comment, escapes resolved (MariaDB manual, option files)."""
    text = text.strip()
    if text[:1] in ("'", '"'):
        # A backslash is read in one way only: in two, a missing quote at the end takes time without end.
        quoted = re.match(r"""(["'])((?:\\.|(?!\1)[^\\])*)\1\s*(?:#.*)?$""", text)
        if not quoted:
            raise DataError(path, "a quoted value without its closing quote", number)
        text = quoted[2]
    else:
        text = re.sub(r"(?<!\s)\s+#.*$", "", text)
    return re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[0]), text)


_INSTEAD = "put it into an option file (--defaults-file), into MYSQL_PWD, or let powerprof ask for it"


def build_login(url: str | None = None, socket: Path | None = None, defaults_file: Path | None = None) -> Login:
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


def read_password(path: Path, account: HostUser | None) -> str:
    """The password of an option file, read with that account's rights; empty where it has none. Raises DataError."""
    found = _options(path, account).get("password")
    return "" if found is None else found.value


def _options(path: Path | None, account: HostUser | None) -> dict[str, OptionValue]:
    if path is None:
        return {}
    if account is None:
        return read_option_file(path)
    with acting_as(account):
        try:
            path.open("rb").close()
        except PermissionError as error:
            hint = f"under sudo it is read as {account.name}: name a file of theirs, or run as root itself"
            raise DataError(path, f"{account.name} has no permission to read it", hint=hint) from error
        except OSError:
            pass  # its own reader says why
        return read_option_file(path)


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


def _address(options: dict[str, OptionValue]) -> tuple[str | None, int | None, Path | None]:
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


def read_version(connection: Sql) -> str:
    """The server's version as people write it: `MariaDB 10.11.19`. Raises PowerprofError where it says none."""
    version = sql.fetch_scalar(connection, "SELECT @@version")
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
        with self.connect(limits=sql.WORD_LIMITS) as connection:
            version = read_version(connection)
            self._pid = find_server_pid(connection, self.login)
            if (
                self._pid is not None
                and self.login.socket is not None
                and read_connection_listener(connection) == self._pid
            ):
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
        with self.connect(limits=sql.WORD_LIMITS) as connection:
            return sql.read_thread_names(connection, self.pid)

    def alive(self) -> bool:
        """True while it can be connected to."""
        try:
            self.connect(limits=sql.WORD_LIMITS).close()
        except PowerprofError:
            return False
        return True

    def check(self) -> None:
        """Raises PowerprofError where it can no longer be connected to."""
        self.connect().close()


def given_server(url: str | None = None, socket: Path | None = None, defaults_file: Path | None = None) -> GivenServer:
    """The server that the command line names; see `given_login`. Use it as a context manager."""
    return GivenServer(build_login(url, socket, defaults_file))
