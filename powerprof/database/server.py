"""A private server: its own data, socket and process, removed afterwards whatever happens."""

from __future__ import annotations

import os
import pwd
import re
import secrets
import signal
import socket as sockets
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from powerprof import programs
from powerprof.database import builds, limits, sql, template
from powerprof.database.base import Login
from powerprof.database.builds import ServerBuild, Setting, find_build
from powerprof.database.runtree import RunTree, may_enter
from powerprof.errors import PowerprofError, UsageError
from powerprof.files import reason_of

if TYPE_CHECKING:
    from powerprof.database.base import Sql

Port = int | Literal["ephemeral"] | None
_ACCOUNT = "powerprof"
# sockaddr_un.sun_path is 108 bytes with the final NUL (unix(7)).
_LONGEST_SOCKET = 107
_ROOM_BYTES = 96 << 20
_SPARE_CONNECTIONS = 24


@dataclass(frozen=True)
class ServerOptions:
    """How a private server is to run; everything has a default.

    `settings` is a my.cnf fragment (see `builds.setting_arguments`), `environment` is added to ours, `affinity` is the
    CPUs it may use, `connections` how many clients are going to be held open, `timeout_s` how long it may take to
    become ready. `port` "ephemeral" is a free one on 127.0.0.1; None is no TCP at all.
    """

    name: str = "server"
    port: Port = None
    connections: int = 16
    settings: Mapping[str, Setting] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    affinity: tuple[int, ...] | None = None
    binary: Path | None = None
    basedir: Path | None = None
    build: ServerBuild | None = None
    prefix: tuple[str, ...] = ()
    timeout_s: float = 60.0


class PrivateServer:
    """`with PrivateServer(...) as server:` runs a mariadbd that nobody else can reach, and leaves nothing behind.

    Raises CapabilityError where no server is installed, UsageError for senseless options, PowerprofError where it
    does not start: the message carries the end of its error log. Start it from the main thread: the kernel kills
    it when the thread that forked it ends.
    """

    private = True

    def __init__(self, options: ServerOptions | None = None, *, tree: RunTree | None = None, **changes: Any) -> None:
        from dataclasses import replace

        self.options = replace(options or ServerOptions(), **changes)
        _check_options(self.options)
        self._own_tree = tree is None
        self._tree = tree or RunTree()
        self._build: ServerBuild | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._login: Login | None = None
        self._port: int | None = None

    # Life cycle

    def __enter__(self) -> PrivateServer:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Prepare the data and start the process; `wait_ready` follows. `stop` is the caller's from here on."""
        self._build = self.options.build or find_build(self.options.binary, self.options.basedir)
        limits.check_threads(self.options.connections, private_user=_account()[0] if _account() else os.geteuid())
        limits.raise_open_files(2 * self.options.connections)
        if self._own_tree:
            self._tree.__enter__()
        self._prepare()
        self._launch()

    def wait_ready(self) -> None:
        """Until the server answers a statement. Raises PowerprofError with the end of its log."""
        deadline = time.monotonic() + self.options.timeout_s
        attempts = 3
        while True:
            if not self.alive():
                if self.options.port == "ephemeral" and attempts and "Address already in use" in self._log_tail(20):
                    attempts -= 1
                    self._launch()
                    continue
                self._refuse_start()
            left = deadline - time.monotonic()
            if left <= 0:
                raise PowerprofError(
                    f"the server was not ready in {self.options.timeout_s:g} s: {self.log_tail()}", "is the disk busy?"
                )
            try:
                with sql.connect(self.login, timeout_s=left, read_timeout=left) as connection:
                    sql.scalar(connection, "SELECT 1")
            except PowerprofError:
                time.sleep(0.03)
                continue
            (self.directory / "init.sql").unlink(missing_ok=True)
            self._flush()
            return

    def stop(self) -> None:
        """End the server and remove what it left. It is killed: its data are thrown away, there is nothing to save."""
        try:
            if self._process is not None and self._process.poll() is None:
                programs.stop(self._process, kind=signal.SIGKILL)
        finally:
            if self._own_tree:
                self._tree.close()

    # What it is

    @property
    def pid(self) -> int:
        """The server's process."""
        assert self._process is not None
        return self._process.pid

    @property
    def build(self) -> ServerBuild:
        """Program, family and version."""
        assert self._build is not None
        return self._build

    @property
    def version(self) -> str:
        """As people write it: `MariaDB 10.11.19`."""
        return self.build.name

    @property
    def login(self) -> Login:
        """The account made for this run: a random password, local connections only."""
        assert self._login is not None
        return self._login

    @property
    def socket(self) -> Path:
        """Its unix socket."""
        path = self.directory / "mysqld.sock"
        if len(os.fsencode(path)) > _LONGEST_SOCKET:
            raise PowerprofError(f"{path} is too long for a socket", "set TMPDIR to a shorter path")
        return path

    @property
    def port(self) -> int | None:
        """Its port on 127.0.0.1; None without TCP."""
        return self._port

    @property
    def directory(self) -> Path:
        """The private directory of this server: data, socket, log; others may keep their own files of the run here."""
        return self._tree.path / self.options.name

    @property
    def datadir(self) -> Path:
        """Its data directory."""
        return self.directory / "data"

    @property
    def error_log(self) -> Path:
        """Its error log."""
        return self.directory / "error.log"

    @property
    def tree(self) -> RunTree:
        """The tree it lives in."""
        return self._tree

    def alive(self) -> bool:
        """True while the process runs."""
        return self._process is not None and self._process.poll() is None

    def check(self) -> None:
        """Raises PowerprofError where the server has ended: how, and what it said last."""
        if not self.alive():
            raise PowerprofError(f"the private server {self.options.name} {self._ending()}: {self.log_tail()}")

    def connect(self, **options: Any) -> Sql:
        """A control connection, closed by the caller. Raises PowerprofError."""
        try:
            return sql.connect(self.login, **options)
        except PowerprofError:
            self.check()
            raise

    def thread_names(self) -> dict[int, str]:
        """Kernel thread id → performance_schema name; empty where the server does not tell."""
        with self.connect() as connection:
            return sql.thread_names(connection)

    def log_tail(self) -> str:
        """The end of the error log in one line: the errors in it if there are any."""
        return self._log_tail(3)

    # Inside

    def _prepare(self) -> None:
        account = _account()
        source = template.template_for(self.build, self._tree)
        room = template.size_of(source) + _ROOM_BYTES
        template.need_room(self._tree.path, room)
        owner = None
        if account is not None:
            owner = (account[0], account[1])
            blocked = may_enter(self._tree.path.parent, *owner)
            if blocked is not None:
                raise PowerprofError(
                    f"the user mysql, as whom the server runs, may not enter {blocked}",
                    "set TMPDIR to a directory that it may enter, such as /tmp",
                )
            # The server's user may pass through the tree and see only its own part of it.
            os.chown(self._tree.path, 0, account[1])
            self._tree.path.chmod(0o710)
        try:
            self.directory.mkdir(0o700)
            (self.directory / "tmp").mkdir(0o700)
        except OSError as error:
            raise PowerprofError(f"cannot prepare {self.directory} ({reason_of(error)})") from error
        template.clone(source, self.datadir, owner)
        password = secrets.token_urlsafe(24)
        self._login = Login(user=_ACCOUNT, password=password, socket=self.socket)
        self._write_private("init.sql", builds.account_sql(self.build, _ACCOUNT, password))
        self._write_private("error.log", "")
        if owner:
            for path in (self.directory / "init.sql", self.error_log, self.directory / "tmp", self.directory):
                os.chown(path, *owner, follow_symlinks=False)

    def _write_private(self, name: str, text: str) -> None:
        path = self.directory / name
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(text)
        except OSError as error:
            raise PowerprofError(f"cannot write {path} ({reason_of(error)})") from error

    def _launch(self) -> None:
        account = _account()
        self._port = _choose_port(self.options.port)
        with self.error_log.open("ab") as log:
            self._process = programs.start(
                [*self.options.prefix, *self._command(root=account is None and os.geteuid() == 0)],
                stdout=log, stderr=log, env={**self.options.environment, **self._tree.environment}, cwd=Path("/"),
                affinity=self.options.affinity, user=account,
            )

    def _command(self, root: bool) -> list[str]:
        build = self.build
        words = [
            str(build.binary), "--no-defaults", f"--datadir={self.datadir}", f"--socket={self.socket}",
            f"--pid-file={self.directory}/mysqld.pid", f"--tmpdir={self.directory}/tmp",
            f"--init-file={self.directory}/init.sql", "--performance-schema=ON", "--skip-name-resolve",
        ]
        if build.basedir is not None:
            words.append(f"--basedir={build.basedir}")
        if root:
            words.append("--user=root")
        if self._port is None:
            words.append("--skip-networking")
        else:
            words += [f"--port={self._port}", "--bind-address=127.0.0.1"]
        if self.options.connections > 100:
            most = self.options.connections + _SPARE_CONNECTIONS
            words += [f"--max-connections={most}", f"--open-files-limit={2 * self.options.connections}",
                      # Thousands arrive at once: the kernel must not refuse them (listen(2), net.core.somaxconn).
                      "--back-log=1024"]
        return words + builds.setting_arguments(self.options.settings)

    def _flush(self) -> None:
        """Write the fresh data to disk now, so that write-back does not wake the CPUs while idling is measured."""
        for path in self.datadir.rglob("*"):
            try:
                handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:
                continue
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def _log_tail(self, lines: int) -> str:
        try:
            with self.error_log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
                text = file.read().decode(errors="replace")
        except OSError as error:
            return f"its log cannot be read ({reason_of(error)})"
        plain = [_shorten(line) for line in text.splitlines() if line.strip()]
        errors = [line for line in plain if "[ERROR]" in line and not line.endswith("Aborting")]
        chosen = (errors or plain)[-lines:]
        return " / ".join(line.replace("[ERROR] ", "") for line in chosen)[:600] or "it said nothing"

    def _ending(self) -> str:
        code = self._process.returncode if self._process is not None else 0
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with {code}"

    def _refuse_start(self) -> None:
        with_errors = self._log_tail(20)
        builds.refuse_missing_library(with_errors, self.build.binary)
        if "Address already in use" in with_errors and self._port is not None:
            raise _port_taken(self._port)
        hint = template._ROOM_HINT if "No space left" in with_errors or "errno: 28" in with_errors else None
        raise PowerprofError(f"the private server did not start, it {self._ending()}: {self.log_tail()}", hint)


def _shorten(line: str) -> str:
    """Without the time stamp and thread number, control characters made visible as blanks."""
    line = re.sub(r"^\d{4}-\d\d-\d\d[ T]+\d{1,2}:\d\d:\d\d\S*\s+(\d+ )?|^\d{6} +\d{1,2}:\d\d:\d\d +", "", line)
    return "".join(char if char.isprintable() else " " for char in line).strip()[:300]


def _account() -> tuple[int, int] | None:
    """Whom the server runs as when powerprof is root: user and group mysql where the host has them."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("mysql")
    except KeyError:
        return None
    return entry.pw_uid, entry.pw_gid


def _check_options(options: ServerOptions) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,23}", options.name):
        raise UsageError(f"{options.name!r} cannot name a server")
    limits.check_clients(options.connections)
    builds.setting_arguments(options.settings)
    if isinstance(options.port, int) and not 1 <= options.port <= 65535:
        raise UsageError(f"{options.port} is not a port", "1 to 65535")
    for name, value in options.environment.items():
        if not name or "=" in name or "\0" in name + value:
            raise UsageError(f"{name!r} cannot be an environment variable")
    if options.affinity is not None:
        wrong = set(options.affinity) - os.sched_getaffinity(0)
        if wrong or not options.affinity:
            raise UsageError(
                f"CPUs {sorted(wrong)} are not usable here",
                f"usable: {','.join(map(str, sorted(os.sched_getaffinity(0))))}",
            )


def _choose_port(port: Port) -> int | None:
    if port is None:
        return None
    with sockets.socket(sockets.AF_INET, sockets.SOCK_STREAM) as probe:
        # As the server does; without it a port whose last connection ended a minute ago would count as taken.
        probe.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", 0 if port == "ephemeral" else port))
        except PermissionError as error:
            raise PowerprofError(f"port {port} may not be used ({reason_of(error)})", "use one above 1023") from error
        except OSError:
            raise _port_taken(int(port)) from None
        return int(probe.getsockname()[1])


def _port_taken(port: int) -> PowerprofError:
    return PowerprofError(f"port {port} on 127.0.0.1 is taken", f"choose another; who has it: ss -ltnp sport = :{port}")


