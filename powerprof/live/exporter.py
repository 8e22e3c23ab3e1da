# SPDX-License-Identifier: Apache-2.0
"""Answer GET /metrics and /debug/pprof/… on a TCP port or a unix socket.

Any process that reaches the address may connect. So all work for connections is bounded: their number, the time for a
request and for its answer, and the CPU time. One thread serves all connections; without them it never wakes.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
import stat
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qs

import msgspec

from powerprof import __version__
from powerprof.energy.request import DEFAULT_REQUEST, EnergyRequest
from powerprof.live.intervals import LiveInterval, RowKey
from powerprof.live.metrics import Ranking, SharedTotals, StatementTotals, Totals, render_metrics
from powerprof.live.monitor import HostMonitor, MonitorPlan
from powerprof.live.webconfig import Admission, Authenticator, WebConfig, load_web_config, make_tls_context
from powerprof.measure.cpuidle import online_cpus, read_driver
from powerprof.model.text import Say
from powerprof.system import paths
from powerprof.system.caller import as_caller
from powerprof.system.capabilities import TRACING
from powerprof.system.closeable import Closeable
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.folders import Folder
from powerprof.system.targets import resolve

DEFAULT = "127.0.0.1:9477"
# The time for a request, and then for its answer.
_TIMEOUT_S = 10.0
# Connections without an answer. Beyond the limit, the peer with the most connections loses its oldest one.
_MAX_WAITING = 128
# Answers at one time. Beyond the limit, the oldest one is aborted after _MIN_ANSWER_S.
_MAX_ANSWERING, _MIN_ANSWER_S = 32, 0.25
_BACKLOG = 512
_MAX_HEAD = 16 << 10
_HEAD_END = b"\r\n\r\n"
# The pause after accepting a connection, as a multiple of its CPU time. It limits accepting to about 1/3 of a CPU.
_PAUSE_RATIO = 3
# A refusal is delayed by this time.
_REFUSAL_DELAY_S = 0.5
_UNIX = "unix:"
_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{0,9})?", re.ASCII)
_HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:@]+))(?::[0-9]*)?")
_SOCKET_MODE = 0o660

Answer = Callable[[str], tuple[bytes, str]]
_PROFILES = "/debug/pprof/"
# The type is that of Go's own profiles: Alloy refuses others.
_PROFILE_TYPE = "application/octet-stream"
_MISDIRECTED = (
    "{host} is not a name of this host: read the metrics by an address or localhost, with TLS or a password, or let a "
    "proxy send such a Host, or connect it to --listen unix:PATH\n"
)


def parse_address(text: str) -> tuple[str, int] | Path:
    """Return the address of `HOST:PORT`, `[V6]:PORT` or `unix:PATH`. Raise UsageError."""
    if text.startswith(_UNIX):
        path = Path(text.removeprefix(_UNIX))
        if not path.is_absolute():
            raise UsageError(f"--listen {text}: the socket's path is not absolute", "unix:/run/powerprof/metrics.sock")
        return path
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(
            f"--listen {text} is not an address", f"{DEFAULT}, [::1]:9477 or unix:/run/powerprof/metrics.sock"
        )
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        return str(ipaddress.ip_address(bare or "0.0.0.0")), int(port)  # noqa: S104
    except ValueError:
        raise UsageError(f"--listen {text}: {host} is not an IP address", f"for example {DEFAULT}") from None


def check_exposure(address: tuple[str, int] | Path, config: WebConfig, insecure: bool) -> None:
    """Raise UsageError if a network could read the metrics without TLS or a password."""
    if isinstance(address, Path) or ipaddress.ip_address(address[0]).is_loopback or insecure:
        return
    if config.tls_server_config is None and not config.basic_auth_users:
        raise UsageError(
            f"--listen {address[0]} is reachable from other hosts: anyone there could see the programs of this host",
            "add --web-config FILE (TLS, passwords), or --insecure on a trusted network",
        )


class Profiles(Protocol):
    """The profiles of the last intervals.

    `names` are those of the profiles. `add` gets each interval. `render` is called in the thread of the server. It
    returns the last seconds as a pprof file, or None before the first interval has ended.
    """

    @property
    def names(self) -> Collection[str]: ...

    def add(self, interval: LiveInterval) -> None: ...

    def render(self, name: str, seconds: float) -> bytes | None: ...


class MetricsServer(Closeable):
    """A context that serves pages of metrics, and profiles, in one thread."""

    def __init__(
        self,
        address: tuple[str, int] | Path,
        answer: Answer,
        config: WebConfig | None = None,
        profiles: Profiles | None = None,
    ) -> None:
        """Listen on the address. Raise PowerprofError if that fails. `answer` makes a page for an Accept header."""
        config = config or WebConfig()
        self._tls = make_tls_context(config.tls_server_config) if config.tls_server_config else None
        self._socket_file: _SocketFile | None = None
        is_local = not isinstance(address, Path) and ipaddress.ip_address(address[0]).is_loopback
        is_open = self._tls is None and not config.basic_auth_users
        self._pages = _Pages(answer, profiles, Authenticator(config.basic_auth_users), check_host=is_local and is_open)
        family = (
            socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        )
        self._socket = socket.socket(family)
        try:
            if isinstance(address, Path):
                self._socket_file = _SocketFile(address)
                self._socket_file.bind(self._socket)
            else:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self._socket.bind(address)
            self._socket.listen(_BACKLOG)
        except (OSError, PowerprofError) as error:
            self._socket.close()
            if self._socket_file is not None:
                self._socket_file.close()
            if isinstance(error, PowerprofError):
                raise
            name = str(address) if isinstance(address, Path) else f"{address[0]}:{address[1]}"
            raise PowerprofError(
                f"cannot listen on {name} ({(error.strerror or str(error)).lower()})", "--listen takes another address"
            ) from error
        self._socket.setblocking(False)
        self._thread = threading.Thread(target=self._run_loop, name="metrics", daemon=True)
        self._started = threading.Event()
        self._accepting: asyncio.Task[None] | None = None
        # The peer of each connection without an answer, and the time at which each answer began. The oldest is first.
        self._waiting: dict[asyncio.Task[None], str] = {}
        self._answering: dict[asyncio.Task[None], float] = {}
        self._turn = asyncio.Lock()

    @property
    def port(self) -> int | None:
        """Return the port, chosen by the kernel if the address has port 0."""
        return None if self._socket_file else int(self._socket.getsockname()[1])

    def _open(self) -> None:
        self._thread.start()
        self._started.wait()

    def close(self) -> None:
        if self._accepting is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._accepting.get_loop().call_soon_threadsafe(self._accepting.cancel)
            self._thread.join(_TIMEOUT_S)
        self._socket.close()
        if self._socket_file is not None:
            self._socket_file.remove()

    def _run_loop(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            self._started.set()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        # A peer that disconnects is not an error.
        loop.set_exception_handler(lambda loop, context: None)
        self._accepting = loop.create_task(self._accept())
        self._started.set()
        with suppress(asyncio.CancelledError):
            await self._accepting

    async def _accept(self) -> None:
        loop, debt_s = asyncio.get_running_loop(), 0.0
        since_s, used_s = time.monotonic(), time.thread_time()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._socket)
                peer = _peer_of(connection)
            except OSError:  # all descriptors are in use, or the peer has disconnected
                self._end_oldest()
                await asyncio.sleep(_MIN_ANSWER_S)
                continue
            if len(self._waiting) >= _MAX_WAITING:
                self._end_oldest()
            task = loop.create_task(self._handle(connection, peer))
            self._waiting[task] = peer
            task.add_done_callback(self._remove)
            now_s, cpu_s = time.monotonic(), time.thread_time()
            debt_s = max(0.0, debt_s + _PAUSE_RATIO * (cpu_s - used_s) - (now_s - since_s))
            since_s, used_s = now_s, cpu_s
            # Even a pause of 0 s lets the other connections run first.
            await asyncio.sleep(debt_s)

    def _remove(self, task: asyncio.Task[None]) -> None:
        self._waiting.pop(task, None)
        self._answering.pop(task, None)
        if not task.cancelled():
            task.exception()

    def _end_oldest(self) -> None:
        """End the oldest connection of the peer with the most connections."""
        counts = Counter(self._waiting.values())
        if counts:
            most, _ = counts.most_common(1)[0]
            oldest = next(task for task, peer in self._waiting.items() if peer == most)
            del self._waiting[oldest]
            oldest.cancel()

    async def _handle(self, connection: socket.socket, peer: str) -> None:
        """Read one request and answer it."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(_MAX_HEAD)
        protocol = asyncio.StreamReaderProtocol(reader)
        times = {"ssl_handshake_timeout": _TIMEOUT_S, "ssl_shutdown_timeout": _TIMEOUT_S} if self._tls else {}
        async with asyncio.timeout(_TIMEOUT_S):
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=self._tls, **times)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                head = await reader.readuntil(_HEAD_END)
                request = _Request.parse(head)
                refusal = await self._pages.refuse(request, peer)
            await self._wait_for_turn()
            reply = self._pages.answer(request) if refusal is None else refusal
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            writer.write(reply if request.method != "HEAD" else reply.partition(_HEAD_END)[0] + _HEAD_END)
            writer.close()
            async with asyncio.timeout(_TIMEOUT_S):
                await writer.wait_closed()
        finally:
            transport.abort()

    async def _wait_for_turn(self) -> None:
        """Wait for a free place among the answers, and abort the oldest answer after _MIN_ANSWER_S."""
        async with self._turn:
            while len(self._answering) >= _MAX_ANSWERING:
                oldest, since_s = next(iter(self._answering.items()))
                left_s = since_s + _MIN_ANSWER_S - time.monotonic()
                if left_s <= 0:
                    del self._answering[oldest]
                    oldest.cancel()
                else:
                    await asyncio.wait(self._answering, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            task = asyncio.current_task()
            assert task is not None  # noqa: S101  it runs
            self._waiting.pop(task, None)
            self._answering[task] = time.monotonic()


def _peer_of(connection: socket.socket) -> str:
    """Return the key of a limit: an account of this host, an IPv4 address, an IPv6 network, or this host."""
    if connection.family == socket.AF_UNIX:
        size = struct.calcsize("3i")
        return f"uid {struct.unpack('3i', connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1]}"
    try:
        address = ipaddress.ip_address(connection.getpeername()[0].partition("%")[0])
    except OSError:  # the peer has disconnected
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    # One account can use all addresses of 127.0.0.0/8, and usually all of a /64.
    if address.is_loopback:
        return "loopback"
    return str(address) if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))


class _Request(msgspec.Struct, frozen=True):
    """The head of a request. `headers` has lower-case names, each with its values."""

    method: str
    path: str
    query: str
    headers: dict[str, list[str]]

    @classmethod
    def parse(cls, head: bytes) -> _Request:
        """Return the request. The method is empty if it is not HTTP/1."""
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, version = first.split(" ") if first.count(" ") == 2 else ("", "", "")
        headers: dict[str, list[str]] = {}
        for line in filter(None, lines):
            name, _, value = line.partition(":")
            headers.setdefault(name.strip().lower(), []).append(value.strip())
        path, _, query = target.partition("?")
        return cls(method if version.startswith("HTTP/1.") else "", path, query, headers)

    def header(self, name: str) -> str | None:
        """Return the first value of a header."""
        return next(iter(self.headers.get(name, ())), None)


class _Pages:
    """The pages and their access control."""

    def __init__(
        self, answer: Answer, profiles: Profiles | None, authenticator: Authenticator, *, check_host: bool
    ) -> None:
        self._answer, self._profiles, self._authenticator = answer, profiles, authenticator
        self._checks_host = check_host
        # Path → name.
        self._names = {f"{_PROFILES}{name}": name for name in profiles.names} if profiles is not None else {}

    async def refuse(self, request: _Request, peer: str) -> bytes | None:
        """Return the reply to a refused request, or None for an accepted one."""
        if not request.method:
            return _format_reply(HTTPStatus.BAD_REQUEST, b"Bad Request\n")
        hosts = request.headers.get("host", []) if self._checks_host else []
        if foreign := [host for host in hosts if not names_this_host(host)]:
            text = _MISDIRECTED.format(host=ascii(foreign[0][:100]))
            return _format_reply(HTTPStatus.MISDIRECTED_REQUEST, text.encode())
        admission = await self._authenticator.admit(request.header("authorization"), peer)
        if admission is not Admission.ADMITTED:
            await asyncio.sleep(_REFUSAL_DELAY_S)
        if admission is Admission.LATER:
            return _format_reply(HTTPStatus.TOO_MANY_REQUESTS, b"Too Many Requests\n", headers=["Retry-After: 5"])
        if admission is Admission.REFUSED:
            realm = 'WWW-Authenticate: Basic realm="powerprof"'
            return _format_reply(HTTPStatus.UNAUTHORIZED, b"Unauthorized\n", headers=[realm])
        if request.method not in ("GET", "HEAD"):
            return _format_reply(HTTPStatus.METHOD_NOT_ALLOWED, b"Method Not Allowed\n", headers=["Allow: GET, HEAD"])
        return None

    def answer(self, request: _Request) -> bytes:
        """Return the page with its head."""
        if request.method == "HEAD" and request.path == "/metrics":
            # A HEAD request does not read the figures. New series count from their first reading.
            return _format_reply(HTTPStatus.OK, b"")
        if request.path == "/metrics":
            return _format_reply(HTTPStatus.OK, *self._answer(request.header("accept") or ""))
        if self._profiles is not None and request.path in self._names:
            return self._answer_profile(self._profiles, request)
        if request.path in ("/", _PROFILES):
            return _format_reply(HTTPStatus.OK, _list_pages(["/metrics", *self._names]), "text/html; charset=utf-8")
        if request.path == "/-/healthy":
            return _format_reply(HTTPStatus.OK, b"powerprof is healthy\n")
        return _format_reply(HTTPStatus.NOT_FOUND, b"Not Found\n")

    def _answer_profile(self, profiles: Profiles, request: _Request) -> bytes:
        """Return the profile of the last seconds, which is ready: the reader does not wait for them to pass."""
        if request.method == "HEAD":
            return _format_reply(HTTPStatus.OK, b"", _PROFILE_TYPE)
        words = parse_qs(request.query).get("seconds", ["0"])[0]
        if not _SECONDS.fullmatch(words):
            return _format_reply(HTTPStatus.BAD_REQUEST, b"seconds is not a number of seconds\n")
        data = profiles.render(self._names[request.path], float(words))
        if data is None:
            text = b"the first interval has not ended yet\n"
            return _format_reply(HTTPStatus.SERVICE_UNAVAILABLE, text, headers=["Retry-After: 15"])
        return _format_reply(HTTPStatus.OK, data, _PROFILE_TYPE)


def _list_pages(pages: Sequence[str]) -> bytes:
    """Return the page with the links."""
    links = "".join(f"<li><a href={path}>{path}</a>" for path in pages)
    return f"<!doctype html><title>powerprof</title><h1>powerprof</h1><ul>{links}</ul>\n".encode()


def _format_reply(status: HTTPStatus, body: bytes, kind: str = "text/plain", headers: Sequence[str] = ()) -> bytes:
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "Server: powerprof",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def names_this_host(host: str) -> bool:
    """Return whether a Host header has an address, localhost or the name of this host.

    A page in a browser can map its own name to 127.0.0.1 and read local servers by that name (DNS rebinding).
    """
    parts = _HOST.fullmatch(host)
    if parts is None:
        return False
    name = parts[1] or parts[2]
    own = socket.gethostname().lower()
    if name.lower().removesuffix(".") in ("localhost", own, own.partition(".")[0]):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class _SocketFile:
    """The file of a unix socket: a name in an open folder, used with the rights of the calling user.

    The folder stays open because a path could be changed to another folder between two steps. Root would then remove
    or make files that the caller of sudo may not.
    """

    def __init__(self, path: Path) -> None:
        """Open the folder, and remove a socket that an earlier process left.

        Raises:
            OSError: The folder or the socket is not accessible.
            PowerprofError: Another file has this name, or another process listens.
        """
        self._path, self._name = path, path.name
        self._made: tuple[int, int] | None = None
        with as_caller():
            self._folder = Folder.open(path.parent)
            try:
                self._remove_stale()
            except BaseException:
                self.close()
                raise

    @property
    def _short_path(self) -> str:
        """Return a short path by the descriptor: the address of a socket has at most 108 bytes."""
        return f"/proc/self/fd/{self._folder.handle}/{self._name}"

    def bind(self, unbound: socket.socket) -> None:
        """Make the socket file with its final mode. Raise OSError."""
        before = os.umask(0o777 & ~_SOCKET_MODE)
        try:
            with as_caller():
                unbound.bind(self._short_path)
                info = self._folder.stat(self._name)
                self._made = info.st_dev, info.st_ino
        finally:
            os.umask(before)

    def remove(self) -> None:
        """Remove the file if it is still the one that was made, and close the folder."""
        with suppress(OSError, PowerprofError), as_caller():
            info = self._folder.stat(self._name)
            if (info.st_dev, info.st_ino) == self._made:
                self._folder.remove(self._name)
        self.close()

    def close(self) -> None:
        """Close the folder."""
        if self._folder.handle >= 0:
            os.close(self._folder.handle)
            self._folder.handle = -1

    def _remove_stale(self) -> None:
        try:
            mode = self._folder.stat(self._name).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise PowerprofError(
                f"cannot listen on {self._path} (a file of another kind is there)",
                "name another path with --listen unix:PATH",
            )
        with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
            probe.connect(self._short_path)
            raise PowerprofError(
                f"cannot listen on {self._path} (another process does)",
                "end that process, or name another path with --listen unix:PATH",
            )
        self._folder.remove(self._name)


# `powerprof export`: a monitor, the server of its counters, and the systemd unit of both.

# On hosts with more CPUs, idle time by CPU would be most of the series.
_MAX_SEPARATE_CPUS = 8
# The figures expire after this many intervals, plus the time for naming and querying.
_LATE_INTERVALS, _LATE_S = 3, 30.0


class ExportPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The choices of the command line, as in `powerprof export --help`. `per_cpu` None depends on the CPU count."""

    words: tuple[str, ...] = ()
    only: bool = False
    interval_s: float = 15.0
    ask_servers: bool = True
    ask_every_s: float = 60.0
    accounts: tuple[Path, ...] = ()
    energy: EnergyRequest = DEFAULT_REQUEST
    listen: str = DEFAULT
    web_config: Path | None = None
    insecure: bool = False
    top: int = 20
    stale_s: float = 300.0
    per_cpu: bool | None = None
    statements: str | None = None


def export_metrics(plan: ExportPlan, say: Say, profiles: Profiles | None = None) -> None:
    """Measure and serve until a signal.

    Raises:
        Interrupted: A signal arrived.
        UsageError: The address or its protection is wrong.
        CapabilityError: This host cannot be traced.
        PowerprofError: The address is in use, or the target has ended.
    """
    if not paths.is_this_host():
        raise PowerprofError("cannot trace a recorded host", "unset POWERPROF_SYSFS and POWERPROF_PROCFS")
    address = parse_address(plan.listen)
    config = load_web_config(plan.web_config) if plan.web_config is not None else WebConfig()
    check_exposure(address, config, plan.insecure)
    per_cpu = len(online_cpus()) <= _MAX_SEPARATE_CPUS if plan.per_cpu is None else plan.per_cpu
    rows: Ranking[RowKey] = Ranking(plan.top, plan.stale_s)
    served = None if plan.statements is None else StatementTotals(Ranking(stale_s=plan.stale_s))
    totals = Totals(rows, Ranking(plan.top, plan.stale_s), served, per_cpu=per_cpu)
    build = {"version": __version__, "kernel": os.uname().release, "driver": read_driver() or "none"}
    shared = SharedTotals(totals, build, deadline_s=_LATE_INTERVALS * plan.interval_s + _LATE_S)
    target = resolve(plan.words, system=not plan.words, only=plan.only)
    monitor = HostMonitor(
        MonitorPlan(
            target=target,
            interval_s=plan.interval_s,
            energy=plan.energy,
            ask_servers=plan.ask_servers,
            ask_every_s=plan.ask_every_s,
            accounts=plan.accounts,
            statements=plan.statements,
        ),
        lambda text: None,
    )
    with ExitStack() as stack:
        # Listen before the tracer is loaded, so that an address in use fails at once. Answer only after the monitor has
        # dropped root's capabilities, because a thread keeps those that it started with.
        server = MetricsServer(address, lambda accept: render_metrics(shared, accept), config, profiles)
        stack.callback(server.close)
        stack.enter_context(monitor)
        stack.enter_context(server)
        say(f"serving metrics on {_format_address(address, server.port)}")
        while True:
            _pass_interval(monitor, [shared.add, *([profiles.add] if profiles is not None else [])])


def _pass_interval(monitor: HostMonitor, observers: Sequence[Callable[[LiveInterval], None]]) -> None:
    """Pass one interval to all observers.

    A separate function frees the interval before the next one: it has a row for each thread that woke a CPU.
    """
    interval = monitor.next()
    for observer in observers:
        observer(interval)


def _format_address(address: tuple[str, int] | Path, port: int | None) -> str:
    if isinstance(address, Path):
        return f"unix:{address}"
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"{host}:{port}"


# The service runs nothing as another account. The other capabilities are dropped after loading: on some kernels
# CAP_PERFMON alone opens neither tracefs nor the run time of BPF programs.
_UNUSED_CAPABILITIES = ("setuid", "setgid")


def list_capabilities() -> list[str]:
    """Return the names of the capabilities in the bounding set of the service."""
    return sorted(f"CAP_{name.upper()}" for name in TRACING if name not in _UNUSED_CAPABILITIES)


def format_unit(program: Path) -> str:
    """Return the systemd unit. docs/how-to/prometheus.md explains each line and has the score of `systemd-analyze`."""
    return _UNIT.format(program=program, capabilities=" ".join(list_capabilities()))


_UNIT = """\
[Unit]
Description=powerprof: idle states, wake-ups and joules for Prometheus
Documentation=man:powerprof(1)
After=network.target

[Service]
Type=exec
ExecStart={program} --quiet export $POWERPROF_EXPORT_OPTIONS
EnvironmentFile=-/etc/default/powerprof
Restart=on-failure
RestartSec=10
# It runs at low priority.
Nice=5
CacheDirectory=powerprof
RuntimeDirectory=powerprof
StateDirectory=powerprof
Environment=HOME=/var/lib/powerprof XDG_STATE_HOME=/var/lib XDG_CONFIG_HOME=/etc

# Capabilities for measuring.
CapabilityBoundingSet={capabilities}
AmbientCapabilities=
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
IPAddressDeny=any
IPAddressAllow=localhost
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service bpf perf_event_open kcmp open_by_handle_at
SystemCallErrorNumber=EPERM
UMask=0027
# 60 to 70 MB, and briefly twice as much while it reads the tables of a large program.
MemoryMax=512M
TasksMax=64

[Install]
WantedBy=multi-user.target
"""
