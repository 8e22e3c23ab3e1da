# SPDX-License-Identifier: Apache-2.0
"""A private server: its own data, socket and process, removed on every exit path."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from powerprof.database import builds, products, runtree, sandbox, sql
from powerprof.database.base import Limits, Login
from powerprof.database.builds import ServerBuild
from powerprof.database.connections import check_threads, raise_open_files
from powerprof.database.disk_limits import limit_disk
from powerprof.database.preparation import build_command, finish_start, open_error_log, prepare_directory
from powerprof.database.products import Product
from powerprof.database.runtree import RunTree
from powerprof.database.sandbox import Sandbox, find_server_account
from powerprof.database.server_options import ServerOptions, choose_port, port_taken_error
from powerprof.database.templates import ROOM_HINT
from powerprof.system import programs
from powerprof.system.closeable import Closeable
from powerprof.system.errors import PowerprofError, UsageError, reason_of
from powerprof.system.foreign_text import printable

if TYPE_CHECKING:
    from powerprof.database.base import Sql


T = TypeVar("T")
_ADDRESS_IN_USE = "Address already in use"
_MAX_START_ATTEMPTS = 4
_LOG_TAIL_BYTES = 65536
# MariaDB `2026-11-20 10:45:24 0 `, MySQL 5.5 `261120 10:45:24 `, 8.0 `2026-11-20T10:45:24.123456Z 0 `.
_LOG_STAMP = re.compile(r"^(\d{4}-\d\d-\d\d[ T]+\d{1,2}:\d\d:\d\d\S*|\d{6} +\d{1,2}:\d\d:\d\d)\s+(\d+ )?")
# These lines are consequences of an earlier error.
_CONSEQUENCES = (
    "Aborting",
    "Plugin 'InnoDB' init function returned error.",
    "Plugin 'InnoDB' registration as a STORAGE ENGINE failed.",
    "Unknown/unsupported storage engine: InnoDB",
)


def read_log_errors(log: int, lines: int = 3) -> str:
    """Return the last errors of an open error log in one line of at most 600 printable characters.

    A log without errors gives its last lines. The log is read through its descriptor: the server could replace the
    name by a link to a file that only root may read.
    """
    try:
        text = os.pread(log, _LOG_TAIL_BYTES, max(0, os.fstat(log).st_size - _LOG_TAIL_BYTES)).decode(errors="replace")
    except OSError as error:
        return f"its log cannot be read ({reason_of(error)})"
    plain = [printable(_LOG_STAMP.sub("", line), " ").strip()[:300] for line in text.splitlines() if line.strip()]
    errors = [line.replace("[ERROR] ", "") for line in plain if "[ERROR]" in line]
    causes = [line for line in errors if not line.endswith(_CONSEQUENCES)]
    return " / ".join((causes or errors or plain)[-lines:])[:600] or "it reported nothing"


def reports_full_disk(text: str) -> bool:
    """Return whether a log mentions ENOSPC (28) or EDQUOT (122)."""
    return re.search(r"No space left|out of disk space|err(or|no):? (28|122)\b", text) is not None


class PrivateServer(Closeable):
    """A database server that no other process can reach and that leaves nothing behind.

    Use it as a context manager: `with PrivateServer(port="ephemeral") as server:`. It takes `ServerOptions`, or their
    fields by name. Servers of one run share a `tree`. Start it in the main thread: the kernel kills the server when
    the thread that forked it ends. Raises CapabilityError if no server is installed, UsageError for invalid options,
    and PowerprofError with the end of the error log if the server does not start.
    """

    private = True

    def __init__(self, options: ServerOptions | None = None, *, tree: RunTree | None = None, **changes: Any) -> None:
        self.options = msgspec.structs.replace(options or ServerOptions(), **changes)
        self._owns_tree = tree is None
        self.tree = tree or RunTree()
        self._build: ServerBuild | None = None
        self._login: Login | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd: int | None = None
        self._log: int | None = None
        self.port: int | None = None
        """Its port on `options.address`; None without TCP."""

    def _open(self) -> None:
        self.start()
        self.wait_ready()

    def close(self) -> None:
        self.stop()

    def start(self) -> None:
        """Prepare the data and start the process. Call `wait_ready` next, and `stop` even after a failure."""
        options = self.options
        self._build = options.build or products.find_program(options.family, options.binary)
        if options.port is not None and not self._product.HAS_TCP:
            raise UsageError(f"a private {self._product.TITLE} listens on its socket alone", "leave the port out")
        account = find_server_account()
        check_threads(options.connections, server_uid=account[0] if account else os.geteuid())
        raise_open_files(options.connections)
        if self._owns_tree:
            self.tree.__enter__()
        self._login = prepare_directory(self._build, options, self.tree)
        self._log = open_error_log(self.directory)
        self._launch()

    def _launch(self) -> None:
        options = self.options
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        self.port = self._choose_port()
        place, words = build_command(self.build, options, self.directory, self.port)
        self._process = sandbox.start(
            words,
            self._sandbox(),
            output=_require(self._log),
            env=options.environment,
            place=place,
            affinity=options.affinity,
            mark=self.tree.mark,
        )
        self._pidfd = os.pidfd_open(self._process.pid)
        self._login = self.login.for_process(self._process.pid)

    def _choose_port(self) -> int | None:
        options = self.options
        if self.namespaces and options.namespace is None:
            # No other process listens in the network of the run.
            return self.tree.network.next_port() if options.port == "ephemeral" else options.port
        with runtree.enter_namespace(options.namespace):
            return choose_port(options.port, options.address)

    def _sandbox(self) -> Sandbox:
        access = self.build.sandbox(self.directory)
        # A workload that names a path in a setting is trusted: certificates, dictionaries.
        named = [Path(value) for value in map(str, self.options.settings.values()) if value.startswith("/")]
        access = msgspec.structs.replace(access, reads=(*access.reads, *named))
        if self.namespaces or self.port is None:
            return msgspec.structs.replace(access, namespaces=self.namespaces)
        # Without namespaces the ports of replication partners, which start later, are still unknown.
        return msgspec.structs.replace(access, binds=(self.port,), connects=None if self.options.partners else ())

    @property
    def namespaces(self) -> tuple[int, ...]:
        """The open namespaces of its network; empty without a network, or if it shares the host's."""
        if self.options.namespace is not None:
            return (self.options.namespace,)
        return self.tree.network.handles if self.options.port is not None else ()

    def wait_ready(self) -> None:
        """Wait until the server answers a statement. Raise PowerprofError with the end of its log."""
        deadline = time.monotonic() + self.options.timeout_s
        attempt = 1
        while not self._answers(deadline - time.monotonic()):
            if not self.alive():
                # Another program may take a free port before the server does.
                attempt += 1
                is_port_taken = self.options.port == "ephemeral" and _ADDRESS_IN_USE in self.log_tail(20)
                if not is_port_taken or attempt > _MAX_START_ATTEMPTS:
                    self._raise_start_failure()
                self._launch()
            elif time.monotonic() > deadline:
                raise PowerprofError(
                    f"the private server was not ready in {self.options.timeout_s:g} s: {self.log_tail()}",
                    "the host may be too busy: try again when it is idle",
                )
            time.sleep(0.02)
        finish_start(self.build, self.directory)

    def _answers(self, timeout_s: float) -> bool:
        try:
            with self._connect(max(timeout_s, 1.0)) as connection:
                return bool(sql.fetch_scalar(connection, "SELECT 1"))
        except PowerprofError:
            return False

    def _raise_start_failure(self) -> None:
        log = self.log_tail(20)
        builds.raise_missing_library(log, self.build.binary)
        if _ADDRESS_IN_USE in log and self.port is not None:
            raise port_taken_error(self.port, self.options.address)
        raise PowerprofError(
            f"the private server did not start, it {self._describe_end()}: {self.log_tail()}",
            ROOM_HINT if reports_full_disk(log) else None,
        )

    def stop(self) -> None:
        """Kill the server and remove its directory. Its data need no orderly shutdown."""
        try:
            if self._process is not None and self._process.poll() is None:
                programs.stop(self._process, kind=self._product.END_SIGNAL)
        finally:
            for handle in (self._log, self._pidfd):
                if handle is not None:
                    os.close(handle)
            self._log = self._pidfd = None
            if self._owns_tree:
                self.tree.close()

    def slow_disk(self, operations_hz: int | None) -> None:
        """Limit the server to this many reads, and as many direct writes, per second; None removes the limit.

        Raises CapabilityError.
        """
        limit_disk(self.tree, self.options.name, self.directory, self.pid, operations_hz)

    def pause(self) -> None:
        """Stop its processes (SIGSTOP) until `resume`. Do nothing if it has ended."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue its processes."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        # A pidfd stays valid: the process id may be reused once the process has been waited for.
        if self._pidfd is None:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)
            for pid in self.list_processes()[1:]:
                os.kill(pid, number)

    def alive(self) -> bool:
        """Return whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def check(self) -> None:
        """Raise PowerprofError with exit status and the end of the log if the server has ended."""
        if not self.alive():
            raise PowerprofError(
                f"the private server {self.options.name} (pid {self.pid}) {self._describe_end()}: {self.log_tail()}",
                "dmesg says whether the host had no memory left; otherwise fewer clients or other settings may help",
            )

    def _describe_end(self) -> str:
        code = self._process.returncode if self._process is not None else 0
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"

    def connect(self, **options: Any) -> Sql:
        """Return a control connection that the caller closes; `options` go to `sql.connect`. Raise PowerprofError.

        A private server is trusted: on a busy host it may take as long to answer as to start.
        """
        try:
            return self._connect(self.options.timeout_s, **options)
        except PowerprofError:
            self.check()
            raise

    def _connect(self, patience_s: float, **options: Any) -> Sql:
        return sql.connect(self.login, **{"timeout_s": patience_s, "limits": Limits(answer_s=patience_s), **options})

    def list_processes(self) -> Sequence[int]:
        """Return its present processes."""
        return self._product.list_processes(self.pid)

    def thread_names(self) -> dict[int, str]:
        """Return the server's name of each thread by kernel thread id; empty if the server does not report them."""
        return self._product.read_thread_names(self.connect, self.pid)

    def log_tail(self, lines: int = 3) -> str:
        """Return the last errors of the error log in one line, or its last lines without errors."""
        return read_log_errors(self._log, lines) if self._log is not None else "it was not started"

    @property
    def _product(self) -> Product:
        return products.product_of(self.build)

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return _require(self._process).pid

    @property
    def build(self) -> ServerBuild:
        """Program, family and version."""
        return _require(self._build)

    @property
    def version(self) -> str:
        """Product and version, such as `MariaDB 10.11.19`."""
        return self.build.name

    @property
    def login(self) -> Login:
        """The account of this run at the server's socket: a random password, local connections only."""
        return _require(self._login)

    @property
    def socket(self) -> Path:
        """Its unix socket."""
        return _require(self.login.socket)

    @property
    def directory(self) -> Path:
        """The private directory with data, socket and log; it belongs to the server's account."""
        return self.tree.path / self.options.name

    @property
    def datadir(self) -> Path:
        """Its data directory."""
        return self.directory / "data"


def _require(part: T | None) -> T:
    if part is None:
        raise RuntimeError("the private server has not been started")
    return part
