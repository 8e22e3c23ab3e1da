# SPDX-License-Identifier: Apache-2.0
"""A private server: its own data, socket and process, removed afterwards whatever happens."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from powerprof.database.clients import sql
from powerprof.database.clients.base import Limits, Login
from powerprof.database.isolation import limits, netns, sandbox
from powerprof.database.isolation.runtree import RunTree, may_enter
from powerprof.database.isolation.sandbox import Sandbox, account_name, find_server_account, find_server_owner
from powerprof.database.private import template
from powerprof.database.products import builds, products
from powerprof.database.products.builds import ServerBuild
from powerprof.database.products.options import ServerOptions, choose_port, port_taken_error
from powerprof.database.products.products import Product
from powerprof.system import programs
from powerprof.system.caller import acting_as
from powerprof.system.closeable import Closeable
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.files import printable, reason_of
from powerprof.system.folders import Folder, give, write_all
from powerprof.system.paths import temporary_base

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql


# What is done before a private server runs: its directory, its account, its command line.

ERROR_LOG = "error.log"
# A redo log of the default size (96 MiB) and a temporary tablespace (12 MiB) are made at the start.
_ROOM_BYTES = 128 << 20
# sockaddr_un.sun_path is 108 bytes with the final NUL (unix(7)).
_LONGEST_SOCKET = 107


def check_room() -> None:
    """See that a private server will have room; the rest is seen when it is made. Raises PowerprofError."""
    place = temporary_base()
    owner = find_server_account()
    if owner is not None:
        _check_entry(place, owner)
    template.check_free(place, place, _ROOM_BYTES)


# MySQL's server_uuid: two with one do not replicate from each other. A server without makes its own.
_IDENTITY = "auto.cnf"


def prepare(build: ServerBuild, options: ServerOptions, tree: RunTree) -> Login:
    """Make the server's directory with data cloned from the template, and powerprof's account.

    Raises PowerprofError.
    """
    product = products.product_of(build)
    directory = tree.path / options.name
    login = product.login(directory)
    socket = login.socket
    if socket is not None and len(os.fsencode(socket)) > _LONGEST_SOCKET:
        raise PowerprofError(f"{socket} is too long for a socket", "set TMPDIR to a shorter path")
    owner = find_server_account()
    if owner is not None:
        let_pass(tree, owner)
    source = template.find_template(build, tree)
    template.check_room_in(tree.path, template.measure_folder(source) + _ROOM_BYTES)
    try:
        directory.mkdir(0o700)
        with Folder.open(directory) as folder:
            _fill(folder, product.files(build, login), owner)
            template.clone_folder(source, directory / "data", owner)
            with Folder.open(directory / "data") as data, suppress(FileNotFoundError):
                data.remove(_IDENTITY)
            if build.basedir is not None and _is_out_of_reach(build, owner):
                template.clone_folder(build.basedir / "share", directory / "base/share", owner)
            # Last: until now nobody else could enter, and from now on root does nothing in it by its own rights.
            give(folder.handle, owner)
    except OSError as error:
        raise PowerprofError(
            f"cannot prepare {directory} ({reason_of(error)})", template.hint_about_room(error)
        ) from error
    return login


def _fill(folder: Folder, files: Mapping[str, str], owner: tuple[int, int] | None) -> None:
    for name, text in {**files, ERROR_LOG: ""}.items():
        handle = folder.create(name)
        try:
            write_all(handle, text.encode())
            give(handle, owner)
        finally:
            os.close(handle)
    for name in ("tmp", "base"):
        folder.make(name)
        with folder.folder(name) as inner:
            give(inner.handle, owner)


def _check_entry(place: Path, owner: tuple[int, int]) -> None:
    blocked = may_enter(place, *owner)
    if blocked is not None:
        raise PowerprofError(
            f"the user {account_name(owner)}, as whom the server runs, cannot enter {blocked}",
            "set TMPDIR to a directory that it may enter, such as /tmp",
        )


def let_pass(tree: RunTree, owner: tuple[int, int]) -> None:
    """The server's user may pass through the tree and write only in its own part of it."""
    _check_entry(tree.path.parent, owner)
    with Folder.open(tree.path) as folder:
        give(folder.handle, (0, owner[1]), 0o710)


@contextmanager
def as_server() -> Iterator[None]:
    """What is done in a server's directory once it has it, with no more than its own rights."""
    owner = find_server_owner()
    if owner is None:
        yield
        return
    with acting_as(owner):
        yield


def open_log(directory: Path) -> int:
    """The server's error log, for appending and reading. Raises PowerprofError."""
    try:
        with as_server(), Folder.open(directory) as folder:
            flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            return os.open(ERROR_LOG, flags, dir_fd=folder.handle)
    except OSError as error:
        raise PowerprofError(
            f"cannot open {directory / ERROR_LOG} ({reason_of(error)})",
            "set TMPDIR to a folder of root's on another disk",
        ) from error


def command(build: ServerBuild, options: ServerOptions, directory: Path, port: int | None) -> tuple[Path, list[str]]:
    """Where to start the server, and its command line: what makes it private comes last, and holds."""
    place, binary, basedir = _reach(build, directory)
    product = products.product_of(build)
    base = [f"--basedir={basedir}"] if basedir is not None else []
    words = product.words(build, options.settings, options.connections, directory)
    return place, [binary, *words, *base, *product.network(port, options.address)]


def _is_out_of_reach(build: ServerBuild, account: tuple[int, int] | None) -> bool:
    return (
        account is not None and build.root is None and may_enter(build.binary.absolute().parent, *account) is not None
    )


def _reach(build: ServerBuild, directory: Path) -> tuple[Path, str, Path | None]:
    """Working directory, program and base directory, such that the server's user gets at them.

    A fetched server lies in a cache that only its owner may enter. The program is then started from its own
    directory, for which that does not matter, and keeps its name and path; its messages were copied by `prepare`.
    """
    if not _is_out_of_reach(build, find_server_account()):
        return Path("/"), str(build.binary.absolute()), build.basedir
    near = directory / "base" if build.basedir is not None else None
    return build.binary.absolute().parent, f"./{build.binary.name}", near


def ready(build: ServerBuild, directory: Path) -> None:
    """Once it answers: remove what made the account, and write the fresh data to disk now, so that the
    kernel does not do it while idling is measured. Raises PowerprofError."""
    try:
        with as_server(), Folder.open(directory) as folder:
            for name in products.product_of(build).once:
                with suppress(FileNotFoundError):
                    folder.remove(name)
            with folder.folder("data") as data:
                for _, _, names, here in os.fwalk(".", dir_fd=data.handle):
                    for name in names:
                        _write_back(name, here)
    except OSError as error:
        raise PowerprofError(
            f"cannot write {directory} ({reason_of(error)})", template.hint_about_room(error)
        ) from error


def _write_back(name: str, folder: int) -> None:
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return  # a socket, or gone already
    try:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            os.fsync(handle)
    finally:
        os.close(handle)


# The end of a server's error log in one line, for an error message.

_TAIL_BYTES = 65536
# MariaDB `2026-11-20 10:45:24 0 `, MySQL 5.5 `261120 10:45:24 `, 8.0 `2026-11-20T10:45:24.123456Z 0 `.
_STAMP = re.compile(r"^(\d{4}-\d\d-\d\d[ T]+\d{1,2}:\d\d:\d\d\S*|\d{6} +\d{1,2}:\d\d:\d\d)\s+(\d+ )?")
# Consequences, not causes.
_EMPTY_WORDS = (
    "Aborting",
    "Plugin 'InnoDB' init function returned error.",
    "Plugin 'InnoDB' registration as a STORAGE ENGINE failed.",
    "Unknown/unsupported storage engine: InnoDB",
)


def read_log_errors(log: int, lines: int = 3) -> str:
    """The last errors in an open log, or its last lines where it has none; at most 600 printable characters.

    By its descriptor: the name is the server's, which could make it lead to a file that only root may read.
    """
    try:
        text = os.pread(log, _TAIL_BYTES, max(0, os.fstat(log).st_size - _TAIL_BYTES)).decode(errors="replace")
    except OSError as error:
        return f"its log cannot be read ({reason_of(error)})"
    plain = [_plain(line) for line in text.splitlines() if line.strip()]
    errors = [line.replace("[ERROR] ", "") for line in plain if "[ERROR]" in line]
    causes = [line for line in errors if not line.endswith(_EMPTY_WORDS)]
    return " / ".join((causes or errors or plain)[-lines:])[:600] or "it reported nothing"


def reports_full_disk(text: str) -> bool:
    """True where the log speaks of ENOSPC (28) or EDQUOT (122)."""
    return re.search(r"No space left|out of disk space|err(or|no):? (28|122)\b", text) is not None


def _plain(line: str) -> str:
    """Without time and thread number; a control character becomes a blank."""
    return printable(_STAMP.sub("", line), " ").strip()[:300]


T = TypeVar("T")
_IN_USE = "Address already in use"
_ATTEMPTS = 4


class PrivateServer(Closeable):
    """`with PrivateServer() as server:` runs a mariadbd that nobody else can reach and leaves nothing behind.

    Takes `ServerOptions`, or their fields by name; `tree` is shared with other servers of one run. Raises
    CapabilityError where no server is installed, UsageError for senseless options, PowerprofError where it
    does not start: the message carries the end of its error log. To be started in the main thread: the kernel
    kills it when the thread that forked it ends.
    """

    private = True

    def __init__(self, options: ServerOptions | None = None, *, tree: RunTree | None = None, **changes: Any) -> None:
        self.options = dataclasses.replace(options or ServerOptions(), **changes)
        self._own_tree = tree is None
        self._tree = tree or RunTree()
        self._build: ServerBuild | None = None
        self._login: Login | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd: int | None = None
        self._log: int | None = None
        self._port: int | None = None

    def _open(self) -> None:
        self.start()
        self.wait_ready()

    def close(self) -> None:
        self.stop()

    def start(self) -> None:
        """Prepare the data and start the process. `wait_ready` follows; `stop` must, also after a failure."""
        options = self.options
        self._build = options.build or products.find_program(options.family, options.binary, options.basedir)
        if options.port is not None and not self._product.has_tcp:
            raise UsageError(f"a private {self._product.title} listens on its socket alone", "leave the port out")
        account = find_server_account()
        limits.check_threads(options.connections, server_uid=account[0] if account else os.geteuid())
        limits.raise_open_files(options.connections)
        if self._own_tree:
            self._tree.__enter__()
        self._login = prepare(self._build, options, self._tree)
        self._log = open_log(self.directory)
        self._launch()

    def _launch(self) -> None:
        options = self.options
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        self._port = self._choose_port()
        place, words = command(self.build, options, self.directory, self._port)
        self._process = sandbox.start(
            words,
            self._sandbox(),
            output=_there(self._log),
            env={**options.environment, **self._tree.environment},
            place=place,
            affinity=options.affinity,
        )
        self._pidfd = os.pidfd_open(self._process.pid)
        self._login = self.login.at(self._process.pid)

    def _choose_port(self) -> int | None:
        options = self.options
        if self.namespaces and options.namespace is None:
            # No other process listens there.
            return self._tree.network.next_port() if options.port == "ephemeral" else options.port
        with netns.enter_namespace(options.namespace):
            return choose_port(options.port, options.address)

    def _sandbox(self) -> Sandbox:
        own = self.build.sandbox(self.directory)
        # A workload that names a path in a setting is trusted: certificates, dictionaries.
        named = [Path(value) for value in map(str, self.options.settings.values()) if value.startswith("/")]
        own = dataclasses.replace(own, reads=(*own.reads, *named))
        if self.namespaces or self._port is None:
            return dataclasses.replace(own, namespaces=self.namespaces)
        # Without namespaces the ports of replication partners, which start later, are not known yet.
        return dataclasses.replace(own, binds=(self._port,), connects=None if self.options.partners else ())

    @property
    def namespaces(self) -> tuple[int, ...]:
        """The open namespaces of its network; empty if it has no network, or shares the host's."""
        if self.options.namespace is not None:
            return (self.options.namespace,)
        return self._tree.network.handles if self.options.port is not None else ()

    def wait_ready(self) -> None:
        """Until the server answers a statement. Raises PowerprofError with the end of its log."""
        deadline = time.monotonic() + self.options.timeout_s
        attempt = 1
        while not self._answers(deadline - time.monotonic()):
            if not self.alive():
                # Between choosing a free port and taking it another program may have had it.
                attempt += 1
                chosen = self.options.port == "ephemeral" and _IN_USE in self.log_tail(20)
                if not chosen or attempt > _ATTEMPTS:
                    self._refuse_start()
                self._launch()
            elif time.monotonic() > deadline:
                raise PowerprofError(
                    f"the private server was not ready in {self.options.timeout_s:g} s: {self.log_tail()}",
                    "the host may be too busy: try again when it is idle",
                )
            time.sleep(0.02)
        ready(self.build, self.directory)

    def _answers(self, timeout_s: float) -> bool:
        try:
            with self._connected(max(timeout_s, 1.0)) as connection:
                return bool(sql.fetch_scalar(connection, "SELECT 1"))
        except PowerprofError:
            return False

    def _refuse_start(self) -> None:
        log = self.log_tail(20)
        builds.raise_missing_library(log, self.build.binary)
        if _IN_USE in log and self._port is not None:
            raise port_taken_error(self._port, self.options.address)
        raise PowerprofError(
            f"the private server did not start, it {self._ending()}: {self.log_tail()}",
            template.ROOM_HINT if reports_full_disk(log) else None,
        )

    def stop(self) -> None:
        """End the server and remove what it left. It is killed: nothing of its data is to be saved."""
        try:
            if self._process is not None and self._process.poll() is None:
                programs.stop(self._process, kind=self._product.end)
        finally:
            self._close()
            if self._own_tree:
                self._tree.close()

    def _close(self) -> None:
        for handle in (self._log, self._pidfd):
            if handle is not None:
                os.close(handle)
        self._log = self._pidfd = None

    def slow_disk(self, operations_hz: int | None) -> None:
        """From now on let it do no more reads, and no more direct writes, a second; None: as many as the disk can.

        Raises CapabilityError.
        """
        limits.limit_disk(self._tree, self.options.name, self.directory, self.pid, operations_hz)

    def pause(self) -> None:
        """Stop its process (SIGSTOP) until `resume`; does nothing where it has ended."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        # By the descriptor: once the process has been waited for, its number may be anybody's.
        if self._pidfd is None:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)
            for pid in self._product.processes(self.pid)[1:]:
                os.kill(pid, number)

    def alive(self) -> bool:
        """True while the process runs."""
        return self._process is not None and self._process.poll() is None

    def check(self) -> None:
        """Raises PowerprofError where the server has ended, with its exit status and the end of its log."""
        if not self.alive():
            raise PowerprofError(
                f"the private server {self.options.name} (pid {self.pid}) {self._ending()}: {self.log_tail()}",
                "dmesg says whether the host had no memory left; otherwise fewer clients or other settings may help",
            )

    def _ending(self) -> str:
        code = self._process.returncode if self._process is not None else 0
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"

    def connect(self, **options: Any) -> Sql:
        """A control connection, closed by the caller; `options` go to `sql.connect`. Raises PowerprofError.

        It is no stranger's: on a busy host it is waited for as long as when it started.
        """
        try:
            return self._connected(self.options.timeout_s, **options)
        except PowerprofError:
            self.check()
            raise

    def _connected(self, patience_s: float, **options: Any) -> Sql:
        return sql.connect(self.login, **{"timeout_s": patience_s, "limits": Limits(answer_s=patience_s), **options})

    def thread_names(self) -> dict[int, str]:
        """Kernel thread id → the server's name of it; empty where the server does not tell."""
        return self._product.names(self.connect, self.pid)

    def log_tail(self, lines: int = 3) -> str:
        """The end of the error log in one line: the errors in it if there are any."""
        return read_log_errors(self._log, lines) if self._log is not None else "it was not started"

    @property
    def _product(self) -> Product:
        return products.product_of(self.build)

    @property
    def pid(self) -> int:
        """The server's process."""
        return _there(self._process).pid

    @property
    def build(self) -> ServerBuild:
        """Program, family and version."""
        return _there(self._build)

    @property
    def version(self) -> str:
        """As people write it: `MariaDB 10.11.19`."""
        return self.build.name

    @property
    def login(self) -> Login:
        """The account made for this run, by the socket: a random password, local connections only."""
        return _there(self._login)

    @property
    def socket(self) -> Path:
        """Its unix socket."""
        return _there(self.login.socket)

    @property
    def port(self) -> int | None:
        """Its port on `options.address`; None without TCP."""
        return self._port

    @property
    def tree(self) -> RunTree:
        """The tree that it lives in."""
        return self._tree

    @property
    def directory(self) -> Path:
        """The private directory with its data, socket and log; it belongs to the server's user."""
        return self._tree.path / self.options.name

    @property
    def datadir(self) -> Path:
        """Its data directory."""
        return self.directory / "data"


def _there(part: T | None) -> T:
    if part is None:
        raise RuntimeError("the private server has not been started")
    return part
