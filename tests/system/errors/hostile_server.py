# SPDX-License-Identifier: Apache-2.0
"""A server that speaks MySQL's protocol and lies: what a client asks is answered as the test says.

Client/server protocol: a packet is its length (3 bytes), a sequence number and its payload.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

CAPABILITIES = 0x00FFF7FF & ~0x20  # without TLS and compression
Answer = Callable[["Talk", str], None]


def lenenc(data: bytes | None) -> bytes:
    """A length-encoded string; None is NULL."""
    if data is None:
        return b"\xfb"
    if len(data) < 251:
        return bytes((len(data),)) + data
    return b"\xfd" + struct.pack("<I", len(data))[:3] + data


def column(name: str, kind: int = 0xFD) -> bytes:
    """A column definition (kind 0xfd is VAR_STRING, 8 BIGINT, 5 DOUBLE)."""
    words = b"".join(lenenc(word) for word in (b"def", b"", b"t", b"t", name.encode(), name.encode()))
    return words + b"\x0c" + struct.pack("<HIBHB", 45, 1024, kind, 0, 0) + b"\0\0"


OK = b"\x00\x00\x00\x02\x00\x00\x00"
END = b"\xfe\x00\x00\x02\x00"


class Talk:
    """One connection."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.number = 0

    def send(self, payload: bytes) -> None:
        """One packet."""
        self.channel.sendall(struct.pack("<I", len(payload))[:3] + bytes((self.number % 256,)) + payload)
        self.number += 1

    def receive(self) -> bytes:
        """One packet of the client's; b"" where it has gone."""
        head = self._exactly(4)
        self.number = (head[3] + 1) if head else 0
        return self._exactly(int.from_bytes(head[:3], "little")) if head else b""

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.channel.recv(size - len(data))
            if not part:
                return b""
            data += part
        return data

    def rows(self, names: Iterable[str], rows: Iterable[Iterable[bytes | None]], kind: int = 0xFD) -> None:
        """A whole result."""
        names = list(names)
        self.send(bytes((len(names),)))
        for name in names:
            self.send(column(name, kind))
        self.send(END)
        for row in rows:
            self.send(b"".join(lenenc(cell) for cell in row))
        self.send(END)


class HostileServer:
    """`with HostileServer(answer, greet) as server:` listens on a port and a unix socket.

    `greet` replaces the handshake; `answer` gets every statement after SET. All that clients sent is in `heard`.
    """

    def __init__(
        self, folder: Path, answer: Answer | None = None, greet: Callable[[Talk], None] | None = None, plugin: str = ""
    ) -> None:
        self.answer, self.greet = answer, greet
        self.plugin = plugin or "mysql_native_password"
        self.heard: list[bytes] = []
        self.path = folder / "hostile.sock"
        self._tcp = socket.create_server(("127.0.0.1", 0))
        # Answers are several small writes: without it each but the first waits 40 ms for an acknowledgement.
        self._tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unix = socket.socket(socket.AF_UNIX)
        self._unix.bind(str(self.path))
        self._unix.listen()
        self.port = int(self._tcp.getsockname()[1])
        self._open: list[socket.socket] = [self._tcp, self._unix]

    def __enter__(self) -> HostileServer:
        for one in (self._tcp, self._unix):
            threading.Thread(target=self._accept, args=(one,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    @property
    def url(self) -> str:
        """As --server takes it."""
        return f"mysql://someone@127.0.0.1:{self.port}/"

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                channel = listener.accept()[0]
                self._open.append(channel)
                threading.Thread(target=self._serve, args=(channel,), daemon=True).start()

    def _serve(self, channel: socket.socket) -> None:
        with contextlib.suppress(OSError), channel:
            talk = Talk(channel)
            if self.greet is not None:
                self.greet(talk)
                for packet in iter(talk.receive, b""):
                    self.heard.append(packet)
                return
            talk.send(handshake(self.plugin))
            self.heard.append(talk.receive())
            talk.send(OK)
            for packet in iter(talk.receive, b""):
                self.heard.append(packet)
                statement = packet[1:].decode("utf-8", "replace")
                if packet[:1] != b"\x03" or statement.upper().startswith("SET "):
                    talk.send(OK)
                elif self.answer is not None:
                    self.answer(talk, statement)


def handshake(plugin: str, version: str = "10.11.6-MariaDB", capabilities: int = CAPABILITIES) -> bytes:
    """Protocol::HandshakeV10."""
    salt = b"abcdefgh" + b"ijklmnopqrst"
    return (
        b"\x0a"
        + version.encode()
        + b"\0"
        + struct.pack("<I", 7)
        + salt[:8]
        + b"\0"
        + struct.pack("<H", capabilities & 0xFFFF)
        + b"\x2d\x02\x00"
        + struct.pack("<H", capabilities >> 16)
        + b"\x15"
        + bytes(10)
        + salt[8:]
        + b"\0"
        + plugin.encode()
        + b"\0"
    )


def sound(talk: Talk, statement: str) -> None:
    """A small server that answers as it should; lies begin here."""
    words = statement.upper()
    if "@@VERSION" in words:
        talk.rows(["@@version"], [[b"10.11.6-MariaDB"]])
    elif "CONNECTION_ID" in words:
        talk.rows(["id"], [[b"7"]], kind=8)
    elif "GLOBAL STATUS" in words:
        talk.rows(["Variable_name", "Value"], [[b"Connections", b"12"], [b"Uptime", b"100"]])
    elif "GLOBAL VARIABLES" in words:
        talk.rows(["Variable_name", "Value"], [[b"server_id", b"1"]])
    elif "PROCESSLIST" in words and "THREADS" not in words:
        talk.rows(
            ["ID", "USER", "HOST", "COMMAND", "TIME", "STATE", "INFO"], [[b"9", b"u", b"h", b"Sleep", b"1", b"", None]]
        )
    elif "THREADS" in words:
        talk.rows(["THREAD_OS_ID", "NAME", "COMMAND"], [[b"1", b"thread/sql/main", None]])
    elif "MAX_CONNECTIONS" in words:
        talk.rows(["a", "b", "c"], [[b"100", b"0", b"28800"]])
    else:
        talk.rows(["x"], [])


def each(seconds: float, part: bytes) -> Iterator[bytes]:
    """Bytes that come slowly, without end."""
    import time

    while True:
        time.sleep(seconds)
        yield part
