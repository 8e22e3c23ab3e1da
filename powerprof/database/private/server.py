# SPDX-License-Identifier: Apache-2.0
"""A private server: its own data, socket and process, removed afterwards whatever happens."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from powerprof import programs
from powerprof.closeable import Closeable
from powerprof.database.clients import sql
from powerprof.database.clients.base import Limits, Login
from powerprof.database.isolation import diskgroup, limits, netns, sandbox
from powerprof.database.isolation.accounts import server_account
from powerprof.database.isolation.runtree import RunTree
from powerprof.database.isolation.sandbox import Sandbox
from powerprof.database.private import launch, template
from powerprof.database.products import builds, errorlog, products
from powerprof.database.products.builds import ServerBuild
from powerprof.database.products.options import ServerOptions, choose_port, port_taken
from powerprof.database.products.products import Product
from powerprof.errors import PowerprofError, UsageError

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql

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
        self._build = options.build or products.find(options.family, options.binary, options.basedir)
        if options.port is not None and not self._product.has_tcp:
            raise UsageError(f"a private {self._product.title} listens on its socket alone", "leave the port out")
        account = server_account()
        limits.check_threads(options.connections, server_uid=account[0] if account else os.geteuid())
        limits.raise_open_files(options.connections)
        if self._own_tree:
            self._tree.__enter__()
        self._login = launch.prepare(self._build, options, self._tree)
        self._log = launch.open_log(self.directory)
        self._launch()

    def _launch(self) -> None:
        options = self.options
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        self._port = self._choose_port()
        place, words = launch.command(self.build, options, self.directory, self._port)
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
        with netns.inside(options.namespace):
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
        launch.ready(self.build, self.directory)

    def _answers(self, timeout_s: float) -> bool:
        try:
            with self._connected(max(timeout_s, 1.0)) as connection:
                return bool(sql.scalar(connection, "SELECT 1"))
        except PowerprofError:
            return False

    def _refuse_start(self) -> None:
        log = self.log_tail(20)
        builds.refuse_missing_library(log, self.build.binary)
        if _IN_USE in log and self._port is not None:
            raise port_taken(self._port, self.options.address)
        raise PowerprofError(
            f"the private server did not start, it {self._ending()}: {self.log_tail()}",
            template.ROOM_HINT if errorlog.disk_full(log) else None,
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
        diskgroup.limit(self._tree, self.options.name, self.directory, self.pid, operations_hz)

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
        return errorlog.tail(self._log, lines) if self._log is not None else "it was not started"

    @property
    def _product(self) -> Product:
        return products.of(self.build)

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
