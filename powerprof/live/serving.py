# SPDX-License-Identifier: Apache-2.0
"""Answers GET /metrics on a TCP port or a unix socket. It waits without a time-out: who does not ask wakes nobody."""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any

from powerprof.caller import as_caller
from powerprof.closeable import Closeable
from powerprof.errors import PowerprofError, UsageError
from powerprof.folders import Folder
from powerprof.live.webconfig import Doorkeeper, WebConfig, tls_context

DEFAULT = "127.0.0.1:9477"
# A reader that sends nothing holds a thread no longer than this, and no more than so many hold one at a time. One that
# sends a byte now and then would hold it for ever: where all are held, a newcomer takes the oldest's after a moment.
_PATIENCE_S = 10.0
_AT_ONCE = 8
_YIELD_S = 0.25
_UNIX = "unix:"
_SOCKET_MODE = 0o660

Answer = Callable[[str], tuple[bytes, str]]
_PAGE = b"<!doctype html><title>powerprof</title><h1>powerprof</h1><p><a href=/metrics>metrics</a>\n"


def parse_address(text: str) -> tuple[str, int] | Path:
    """`HOST:PORT`, `[V6]:PORT` or `unix:PATH`. Raises UsageError."""
    if text.startswith(_UNIX):
        path = Path(text.removeprefix(_UNIX))
        if not path.is_absolute():
            raise UsageError(f"--listen {text}: the socket's path is not absolute", "unix:/run/powerprof/metrics.sock")
        return path
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--listen {text} is no address", f"{DEFAULT}, [::1]:9477 or unix:/run/powerprof/metrics.sock")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        return str(ipaddress.ip_address(bare or "0.0.0.0")), int(port)  # noqa: S104
    except ValueError:
        raise UsageError(f"--listen {text}: {host} is no IP address", f"for example {DEFAULT}") from None


def check_open(address: tuple[str, int] | Path, config: WebConfig, insecure: bool) -> None:
    """Refuse to show this host's processes to a network without any protection. Raises UsageError."""
    if isinstance(address, Path) or ipaddress.ip_address(address[0]).is_loopback or insecure:
        return
    if config.tls_server_config is None and not config.basic_auth_users:
        raise UsageError(
            f"--listen {address[0]} is no loopback address: anyone on that network can read what runs on this host",
            "add --web-config FILE (TLS, passwords), or --insecure where the network is trusted",
        )


class MetricsServer(Closeable):
    """Serves `answer` while the context is open. Raises PowerprofError where the address cannot be had."""

    def __init__(self, address: tuple[str, int] | Path, answer: Answer, config: WebConfig | None = None) -> None:
        config = config or WebConfig()
        self._place: _SocketPlace | None = None
        context = tls_context(config.tls_server_config) if config.tls_server_config else None
        handler = _handler(answer, Doorkeeper(config.basic_auth_users))
        try:
            if isinstance(address, Path):
                self._place = _SocketPlace(address)
                self._server: _ScrapeServer = _UnixServer(self._place, handler)
            else:
                kind = _Server6 if ":" in address[0] else _ScrapeServer
                self._server = kind(address, handler)
        except OSError as error:
            if self._place is not None:
                self._place.close()
            name = str(address) if isinstance(address, Path) else f"{address[0]}:{address[1]}"
            raise PowerprofError(
                f"cannot listen on {name} ({(error.strerror or str(error)).lower()})", "--listen takes another address"
            ) from error
        self._server.tls = context
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)

    @property
    def port(self) -> int | None:
        """The port, chosen by the kernel where 0 was asked for."""
        return None if self._place else int(self._server.server_address[1])

    def _open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.ending = True
        with suppress(OSError):  # ends the accept that the thread waits in
            self._server.socket.shutdown(socket.SHUT_RDWR)
        if self._thread.ident is not None:
            self._thread.join(_PATIENCE_S)
        self._server.server_close()
        if self._place is not None:
            self._place.clear_away()

    def _serve(self) -> None:
        # Not serve_forever: that looks every half a second whether it should end.
        while not self._server.ending:
            with suppress(OSError, ValueError):
                self._server.handle_request()


class _ScrapeServer(ThreadingMixIn, HTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 16
    timeout = None
    ending = False
    tls: ssl.SSLContext | None = None

    def __init__(self, address: Any, handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.BoundedSemaphore(_AT_ONCE)
        # A second handle on each connection that is served, the oldest first: TLS takes the first one away.
        self._served: dict[Any, socket.socket] = {}
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # HTTPServer's would ask a name server who we are.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def get_request(self) -> tuple[Any, Any]:
        connection, address = self.socket.accept()
        connection.settimeout(_PATIENCE_S)
        return connection, address

    def process_request(self, request: Any, client_address: Any) -> None:
        second = request.dup()
        if not self._free.acquire(timeout=_YIELD_S):
            self._end_oldest()
            if not self._free.acquire(timeout=_PATIENCE_S):
                second.close()
                self.shutdown_request(request)
                return
        self._served[request] = second
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread could be started
            self._let_go(request)
            raise

    def _let_go(self, request: Any) -> None:
        self._served.pop(request).close()
        self._free.release()

    def _end_oldest(self) -> None:
        oldest = next(iter(list(self._served.values())), None)
        if oldest is not None:
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        plain = request
        try:
            if self.tls is not None:
                request = self.tls.wrap_socket(plain, server_side=True)
            super().process_request_thread(request, client_address)
        except (OSError, ssl.SSLError):
            self.shutdown_request(request)
        finally:
            self._let_go(plain)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that breaks off is its own business."""


class _Server6(_ScrapeServer):
    address_family = socket.AF_INET6


class _UnixServer(_ScrapeServer):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        place: Any = self.server_address
        place.bind(self.socket)


class _SocketPlace:
    """Where a unix socket is made: a name in a folder that is held open, with the rights of who typed the command.

    By its path, the folder could become another one between two steps: root would remove and make sockets where a
    caller under sudo may not.
    """

    def __init__(self, path: Path) -> None:
        """Takes away a socket that an earlier process left; nothing else, and none that answers. Raises OSError,
        PowerprofError."""
        self._path, self._name = path, path.name
        self._made: tuple[int, int] | None = None
        with as_caller():
            self._folder = Folder.open(path.parent)
            try:
                self._clear()
            except BaseException:
                self.close()
                raise

    @property
    def _here(self) -> str:
        """The name by the descriptor, also where the path is longer than an address may be (108 bytes)."""
        return f"/proc/self/fd/{self._folder.handle}/{self._name}"

    def bind(self, unbound: socket.socket) -> None:
        """Make it, never with another mode than its own. Raises OSError."""
        before = os.umask(0o777 & ~_SOCKET_MODE)
        try:
            with as_caller():
                unbound.bind(self._here)
                info = self._folder.stat(self._name)
                self._made = info.st_dev, info.st_ino
        finally:
            os.umask(before)

    def clear_away(self) -> None:
        """Remove it where it is still the one that was made."""
        with suppress(OSError, PowerprofError), as_caller():
            info = self._folder.stat(self._name)
            if (info.st_dev, info.st_ino) == self._made:
                self._folder.remove(self._name)
        self.close()

    def close(self) -> None:
        """Let go of the folder."""
        if self._folder.handle >= 0:
            os.close(self._folder.handle)
            self._folder.handle = -1

    def _clear(self) -> None:
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
            probe.connect(self._here)
            raise PowerprofError(
                f"cannot listen on {self._path} (another process does)",
                "end that one, or name another path with --listen unix:PATH",
            )
        self._folder.remove(self._name)


def _handler(answer: Answer, door: Doorkeeper) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        server_version, sys_version = "powerprof", ""
        timeout = _PATIENCE_S

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if not door.admits(self.headers.get("Authorization")):
                self._send(401, b"Unauthorized\n", "text/plain", {"WWW-Authenticate": 'Basic realm="powerprof"'})
            elif path == "/metrics" and self.command == "HEAD":
                # Who sees no figures has not read them: new rows count from when somebody has.
                self._send(200, b"", "text/plain")
            elif path == "/metrics":
                self._send(200, *answer(self.headers.get("Accept") or ""))
            elif path == "/":
                self._send(200, _PAGE, "text/html; charset=utf-8")
            elif path == "/-/healthy":
                self._send(200, b"powerprof is healthy\n", "text/plain")
            else:
                self._send(404, b"Not Found\n", "text/plain")

        do_HEAD = do_GET

        def _send(self, code: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.close_connection = True
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """A line a scrape would be read by nobody."""

    return Handler
