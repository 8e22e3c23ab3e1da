# SPDX-License-Identifier: Apache-2.0
"""Answer GET /metrics and /debug/pprof/… on a TCP port or a unix socket.

Any process that reaches the address may connect. So all work for connections is bounded: their number, the time for a
request and for its answer, and the CPU time. One thread serves all connections; without them it never wakes.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from powerprof.live.pages import Answer, Pages, Profiles, Request
from powerprof.live.socket_file import SocketFile
from powerprof.live.webconfig import Authenticator, TlsContext, WebConfig
from powerprof.system.closeable import Closeable
from powerprof.system.errors import PowerprofError, UsageError

DEFAULT_ADDRESS = "127.0.0.1:9477"
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
_UNIX = "unix:"


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
            f"--listen {text} is not an address", f"{DEFAULT_ADDRESS}, [::1]:9477 or unix:/run/powerprof/metrics.sock"
        )
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        return str(ipaddress.ip_address(bare or "0.0.0.0")), int(port)  # noqa: S104
    except ValueError:
        raise UsageError(f"--listen {text}: {host} is not an IP address", f"for example {DEFAULT_ADDRESS}") from None


def check_exposure(address: tuple[str, int] | Path, config: WebConfig, insecure: bool) -> None:
    """Raise UsageError if a network could read the metrics without TLS or a password."""
    if isinstance(address, Path) or ipaddress.ip_address(address[0]).is_loopback or insecure:
        return
    if config.tls_server_config is None and not config.basic_auth_users:
        raise UsageError(
            f"--listen {address[0]} is reachable from other hosts: anyone there could see the programs of this host",
            "add --web-config FILE (TLS, passwords), or --insecure on a trusted network",
        )


class MetricsServer(Closeable):
    """A context that serves pages of metrics, and profiles, in one thread."""

    def __init__(
        self,
        address: tuple[str, int] | Path,
        answer: Answer,
        config: WebConfig | None = None,
        profiles: Profiles | None = None,
        has_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Listen on the address. Raise PowerprofError if that fails.

        `answer` makes a page for an Accept header. While `has_stopped`, the health page has status 503.
        """
        config = config or WebConfig()
        self._tls = TlsContext(config.tls_server_config) if config.tls_server_config else None
        self._socket_file: SocketFile | None = None
        is_local = not isinstance(address, Path) and ipaddress.ip_address(address[0]).is_loopback
        is_open = self._tls is None and not config.basic_auth_users
        authenticator = Authenticator(config.basic_auth_users)
        self._pages = Pages(answer, profiles, authenticator, has_stopped, check_host=is_local and is_open)
        family = (
            socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        )
        self._socket = socket.socket(family)
        try:
            if isinstance(address, Path):
                self._socket_file = SocketFile(address)
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
                peer = _name_peer(connection)
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
            context = self._tls.current() if self._tls else None
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=context, **times)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                head = await reader.readuntil(_HEAD_END)
                request = Request.parse(head)
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


def _name_peer(connection: socket.socket) -> str:
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
