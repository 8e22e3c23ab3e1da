# SPDX-License-Identifier: Apache-2.0
"""Servers of the user: address, login from option files, process on this host, and the list of running servers."""

from __future__ import annotations

import getpass
import ipaddress
import os
import re
import socket
import stat
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec

from powerprof.database import sql
from powerprof.database.base import Limits, Login
from powerprof.database.performance import find_statistics_database
from powerprof.database.wire import read_connection_listener, read_listener
from powerprof.measure.procfs import list_children, process_cpu_ns
from powerprof.model.identities import Family
from powerprof.system import files, paths
from powerprof.system.caller import HostUser, acting_as, caller, is_delegated
from powerprof.system.errors import DataError, PowerprofError, UsageError
from powerprof.system.files import loader
from powerprof.system.next_steps import system_command
from powerprof.system.processes import (
    POSTGRES_PROGRAM,
    describe_listeners,
    is_server_name,
    label_of,
    list_unix_sockets,
    name_of,
    owner_of,
    server_names,
)
from powerprof.system.reader_process import link_of, shared
from powerprof.system.targets import list_family
from powerprof.system.tasks import process_folder

if TYPE_CHECKING:
    from powerprof.database.base import Sql

_MAX_SOCKETS, _MAX_STATISTICS_SOCKETS = 20, 4
_LOCAL_LOGIN_S = 3.0  # for all sockets of a server together
_NAMES = ("mariadbd", "mysqld", "mysqld-debug")
_UNKNOWN_PROCESS = -1


def find_server_pid(connection: Sql, login: Login) -> int | None:
    """Return the server's process id; None if it runs elsewhere or cannot be found."""
    channel = connection._sock  # type: ignore[attr-defined]
    if login.socket is not None and isinstance(channel, socket.socket):
        pid = read_listener(channel)  # systemd under socket activation
        if _is_server(pid):
            return pid
    elif isinstance(channel, socket.socket):
        address, port = channel.getpeername()[:2]
        if not _is_local_address(str(address)):
            return None
        owner = _find_listener(int(port))
        if owner is not None:
            # A tunnel or container proxy may listen for a server of another host.
            return owner if _is_server(owner) else None
    return _read_pid_file(connection)


def _is_server(pid: int) -> bool:
    return pid > 0 and files.try_text(paths.procfs() / str(pid) / "comm") in _NAMES


def _is_local_address(address: str) -> bool:
    """Return whether an address is a loopback address or belongs to an interface of this host."""
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


def _find_listener(port: int) -> int | None:
    """Return the process that listens on a TCP port of this host; None if it is not visible."""
    import psutil

    listeners = (entry for entry in psutil.net_connections("tcp") if entry.status == psutil.CONN_LISTEN)
    return next((entry.pid for entry in listeners if entry.pid and entry.laddr[1:] == (port,)), None)


def _read_pid_file(connection: Sql) -> int | None:
    """Return the process of the server's pid file if this host has the file and such a process."""
    try:
        name = sql.fetch_scalar(connection, "SELECT @@pid_file")
    except PowerprofError:
        return None
    # The server chose the path. It may lead to files of any process.
    text = (shared().read(_UNKNOWN_PROCESS, Path(str(name)), 64) or b"").decode("latin-1").strip()
    pid = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0
    return pid if _is_server(pid) else None


# MySQL option files (my.cnf), read as hostile input.

GROUPS = ("client", "client-server", "client-mariadb", "powerprof")
_KEYS = frozenset(
    {
        *("user", "password", "host", "port", "socket", "database", "ssl-ca", "ssl-cert", "ssl-key"),
        "ssl-verify-server-cert",
    }
)
_LIMIT_BYTES = 1 << 20
_LIMIT_FILES = 50
_LIMIT_ENTRIES = 10_000
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "r": "\r", "\\": "\\", "s": " ", '"': '"', "'": "'"}


class OptionValue(msgspec.Struct, frozen=True):
    """A value of an option file and its place."""

    value: str
    path: Path
    line: int

    def error(self, reason: str) -> DataError:
        """Return the error for this value."""
        return DataError(self.path, reason, self.line)


@loader
def read_option_file(path: Path) -> dict[str, OptionValue]:
    """Return the client options of a file and its included files.

    As for the server's own clients, the last one applies.

    Raises DataError for a malformed file and for one that every user may write.
    """
    options: dict[str, OptionValue] = {}
    _read_into(path, options, [_LIMIT_FILES])
    return options


def _read_into(path: Path, options: dict[str, OptionValue], left: list[int]) -> None:
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
                options[name] = OptionValue(_parse_value(value, path, number), path, number)


def _include(path: Path, number: int, line: str, options: dict[str, OptionValue], left: list[int]) -> None:
    directive, _, target = line.partition(" ")
    place = Path(target.strip())
    if directive == "!include" and target:
        _read_into(place, options, left)
    elif directive == "!includedir" and target:
        for file in _list_folder(place, path, number):
            _read_into(file, options, left)
    else:
        raise DataError(path, f"not a directive: {line[:40]!r}", number)


def _list_folder(place: Path, path: Path, number: int) -> list[Path]:
    """Return the option files of a folder, sorted by name. Line `number` of `path` names the folder."""
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
    """Raise DataError if every user may write to a file or folder. Its reader reports a path that cannot be opened."""
    with suppress(OSError, ValueError):
        mode = path.stat().st_mode
        if not mode & stat.S_IWOTH or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            return
        # A folder such as /tmp must stay open to all.
        hint = system_command("chmod o-w {}", path) if stat.S_ISREG(mode) else "move its files to a folder of yours"
        raise DataError(path, "anybody may write to it, so it is not trusted", hint=hint)


def _parse_value(text: str, path: Path, number: int) -> str:
    """Return a value without quotes and trailing comment, with escapes resolved (MariaDB manual, option files)."""
    text = text.strip()
    if text[:1] in ("'", '"'):
        # A backslash has one meaning only. Two would take exponential time for a missing quote at the end.
        quoted = re.match(r"""(["'])((?:\\.|(?!\1)[^\\])*)\1\s*(?:#.*)?$""", text)
        if not quoted:
            raise DataError(path, "a quoted value without its closing quote", number)
        text = quoted[2]
    else:
        text = re.sub(r"(?<!\s)\s+#.*$", "", text)
    return re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[0]), text)


_SAFE_PLACES = "put it into an option file (--defaults-file) or into MYSQL_PWD"


def build_login(url: str | None = None, socket: Path | None = None, defaults_file: Path | None = None) -> Login:
    """Return the login: `url`, a URL or a socket, and `socket` take precedence over the option file and MYSQL_PWD.

    Under sudo everything is the caller's: the default user, option file, socket and TLS keys are used with that
    account's rights, because the caller's SQL runs there. Raises UsageError, also for a password in the URL, which
    every user could read in the process list. Raises DataError for a malformed option file.
    """
    if url is not None and socket is not None:
        raise UsageError("--server and --socket name two servers", "use one of them")
    if url is not None and "/" in url and "://" not in url:
        socket, url = Path(url), None
    account = caller() if is_delegated() else None
    options = _read_options(defaults_file, account)
    user, host, port, database = _parse_url(url) if url is not None else (None, None, None, None)
    if url is None and socket is None:
        host, port, socket = _parse_address(options)
    text = {name: option.value for name, option in options.items()}
    return Login(
        user=user or text.get("user") or (account.name if account is not None else None) or getpass.getuser(),
        socket=socket,
        host=host,
        port=port,
        database=database or text.get("database"),
        tls=_parse_tls(text),
        password=text.get("password") or os.environ.get("MYSQL_PWD") or "",
        account=account,
        options=None if defaults_file is None else defaults_file.absolute(),
    )


def read_password(path: Path, account: HostUser | None) -> str:
    """Return the password of an option file, read with that account's rights; empty without one. Raise DataError."""
    found = _read_options(path, account).get("password")
    return "" if found is None else found.value


def _read_options(path: Path | None, account: HostUser | None) -> dict[str, OptionValue]:
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
            pass  # The reader reports it.
        return read_option_file(path)


def _parse_url(url: str) -> tuple[str | None, str, int, str | None]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"--server is not an address ({error})", "mysql://user@host:port/") from None
    if parts.password is not None:
        raise UsageError("a password in --server would show in the process list", _SAFE_PLACES)
    if parts.scheme not in ("mysql", "mariadb") or not parts.hostname or parts.query or parts.fragment or port == 0:
        raise UsageError(f"--server {url!r} is not an address", "mysql://user@host:port/")
    database = unquote(parts.path.strip("/")) or None
    if database is not None and not re.fullmatch(r"[^/\0]{1,64}", database):
        raise UsageError(f"--server {url!r} does not name a schema after the host", "mysql://user@host:port/")
    return unquote(parts.username or "") or None, parts.hostname, port or 3306, database


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


def read_version(connection: Sql) -> str:
    """Return product and version, such as `MariaDB 10.11.19`. Raise PowerprofError if the server reports none."""
    version = sql.fetch_scalar(connection, "SELECT @@version")
    number = re.match(r"[0-9.]{1,20}", version) if isinstance(version, str) else None
    if number is None:
        raise PowerprofError("SELECT failed (the server does not say its version)", "is it MySQL or MariaDB?")
    return f"{'MariaDB' if 'mariadb' in str(version).lower() else 'MySQL'} {number[0]}"


class GivenServer:
    """A server of the user, which is only read: `with GivenServer(login) as server:`.

    Raises PowerprofError if it cannot be reached.
    """

    private = False
    namespaces: tuple[int, ...] = ()

    def __init__(self, login: Login) -> None:
        self.login = login
        self.pid: int | None = None
        """Its process; None if it runs on another host or cannot be found."""
        self.version = ""
        """Product and version, such as `MariaDB 10.11.19`."""

    def __enter__(self) -> GivenServer:
        with self.connect(limits=sql.WORD_LIMITS) as connection:
            version = read_version(connection)
            self.pid = find_server_pid(connection, self.login)
            is_local = self.pid is not None and self.login.socket is not None
            if is_local and read_connection_listener(connection) == self.pid:
                # Later connections accept only this process, even if the path leads to another one.
                self.login = self.login.for_process(self.pid)
        self.version = version
        return self

    def __exit__(self, *_: object) -> None:
        return None

    @property
    def socket(self) -> Path | None:
        """The unix socket of its login."""
        return self.login.socket

    @property
    def port(self) -> int | None:
        """The port of its login."""
        return self.login.port

    def connect(self, **options: Any) -> Sql:
        """Return a control connection that the caller closes; `options` go to PyMySQL. Raise PowerprofError."""
        return sql.connect(self.login, **options)

    def thread_names(self) -> dict[int, str]:
        """Return performance_schema names by kernel thread id; empty if the server does not report them."""
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
        """Raise PowerprofError if it accepts no connection."""
        self.connect().close()


def given_server(url: str | None = None, socket: Path | None = None, defaults_file: Path | None = None) -> GivenServer:
    """Return the server of the command line; see `build_login`. Use it as a context manager."""
    return GivenServer(build_login(url, socket, defaults_file))


# Servers of this host, through their own unix sockets and without a password.


def require_server_program(pid: int) -> None:
    """Raise PowerprofError if the process runs no MariaDB or MySQL server."""
    if not is_server_name(name_of(pid)):
        raise PowerprofError("the process is no MariaDB or MySQL server", "choose a server by --pid")


def list_listening_sockets(pid: int) -> list[Path]:
    """Return the unix sockets on which a process listens, as paths that can be opened from here (containers too)."""
    root = process_folder(pid) / "root"
    return [root / path.lstrip("/") for path in list_unix_sockets(pid)]


def log_in_locally(pid: int, limits: Limits = sql.LOOK_LIMITS, family: Family = "mysql") -> tuple[Login, Sql] | None:
    """Return login and connection through the server's own socket; None if every socket refuses.

    It logs in as the system user (unix_socket authentication) without a password or prompt. The caller closes the
    connection.
    """
    end_s = time.monotonic() + _LOCAL_LOGIN_S
    for place in list_listening_sockets(pid)[:_MAX_SOCKETS]:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            break
        login = Login(user=getpass.getuser(), socket=place, pid=pid, family=family)
        try:
            return login, sql.connect(login, timeout_s=left_s, limits=limits)
        except (PowerprofError, OSError):
            continue
    return None


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
    if name == POSTGRES_PROGRAM:
        return server_names((pid, *list_children(pid)))
    if not is_server_name(name):
        return {}
    entered = log_in_locally(pid, Limits(waiting_s=_LOCAL_LOGIN_S))
    if entered is None:
        return {}
    try:
        with entered[1] as connection:
            return sql.read_thread_names(connection, pid)
    except (PowerprofError, OSError):
        return {}


# Running servers, for a user who chooses one of them: program, version, addresses, processes and CPU time.

_WINDOW_S = 0.25
_LOGIN_S = 1.0


def describe_servers(roots: Sequence[int]) -> list[list[str]]:
    """Return the phrases about each server by its first process. It takes a quarter of a second, for the CPU time."""
    families = {root: list_family(root) for root in roots}
    before, begun_s = {root: _read_clocks(families[root]) for root in roots}, time.monotonic()
    owners = {root: owner_of(root) for root in roots}
    titles = {root: _title(root, is_trusted=owners[root].distrust is None) for root in roots}
    phrases = {}
    for root in roots:
        distrust = owners[root].distrust
        count = len(families[root])
        phrases[root] = [
            f"{label_of(root)} {root}",
            titles[root],
            describe_listeners(root) or ("socket unknown" if titles[root] else ""),
            f"{count} process{'' if count == 1 else 'es'}",
            distrust or "",
        ]
    time.sleep(_WINDOW_S)
    for root in roots:
        after, took_s = _read_clocks(families[root]), time.monotonic() - begun_s
        used_ns = [ns - before[root][pid] for pid, ns in after.items() if pid in before[root]]
        phrases[root].append(f"{sum(used_ns) / took_s / 1e7:.1f} % CPU" if used_ns else "CPU unknown")
    return [[phrase for phrase in phrases[root] if phrase] for root in roots]


def _read_clocks(pids: Sequence[int]) -> dict[int, int]:
    """Return the CPU time in ns by process, without those that have ended."""
    return {pid: ns for pid in pids if (ns := process_cpu_ns(pid)) is not None}


def _title(pid: int, *, is_trusted: bool) -> str:
    """Return product and version of a server; "" for another program. Only trusted programs are run or queried."""
    name = name_of(pid)
    if name != POSTGRES_PROGRAM and not is_server_name(name):
        return ""
    with suppress(PowerprofError, OSError):
        from powerprof.database.products import find_program

        binary = find_own_program(pid) if is_trusted else None
        if binary is not None:
            return find_program("mysql", binary).name
    if is_trusted and name != POSTGRES_PROGRAM and (entered := log_in_locally(pid, Limits(waiting_s=_LOGIN_S))):
        with suppress(PowerprofError, OSError), entered[1]:
            return read_version(entered[1])
    product = {POSTGRES_PROGRAM: "PostgreSQL", "mariadbd": "MariaDB"}.get(name or "", "MySQL or MariaDB")
    return f"{product}, version unknown"


def find_own_program(pid: int) -> Path | None:
    """Return the path of a process's program; None if this path is another file here, as for a container."""
    exe = process_folder(pid) / "exe"
    path, running = Path(link_of(exe) or "/nonexistent"), shared().status(exe)
    if running is None or not path.is_file():
        return None
    present = path.stat()
    return path if (present.st_dev, present.st_ino) == (running.device, running.inode) else None
