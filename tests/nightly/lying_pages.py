# SPDX-License-Identifier: Apache-2.0
"""A web server whose pages of joules lie, and whose HTTP does."""

from __future__ import annotations

import gzip
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tests.nightly.fuzz.mutate import bent

_PAGE = (
    b"# TYPE kepler_vm_package_joules_total counter\n"
    b'kepler_vm_package_joules_total{vm_name="a",zone="package-0"} 12.5\n'
    b'kepler_node_dram_joules_total{zone="dram"} 3e2\npowerprof_energy_joules_total{domain="psys",kind="measured"} 1\n',
)
_HEADERS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 200\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 301 Moved\r\nLocation: file:///etc/shadow\r\n\r\n",
    b"HTTP/1.1 307 Moved\r\nLocation: http://[::1/x\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    b"HTTP/1.1 404 Not \x1b[31mFound\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n",
)
_SOUND = b"HTTP/1.0 200 OK\r\n\r\n" + _PAGE[0]


@dataclass
class Pages:
    """Answers so far: how many were bent, and for how long some kept their client waiting."""

    port: int
    first: int
    sound_first: bool
    bent_too: bool
    answers: int = 0
    waited_s: float = 0.0
    asked: Counter[bytes] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, path: bytes) -> bytes:
        """The first of a path may be sound."""
        with self.lock:
            self.asked[path] += 1
            if not self.bent_too or (self.sound_first and self.asked[path] == 1):
                return _SOUND
            number = self.first + self.answers
            self.answers += 1
        chance = random.Random(number)
        page = bent(_PAGE, number)
        if chance.random() < 0.1:
            page = gzip.compress(b"0" * (1 << 20))
        return (_HEADERS[0] if chance.random() < 0.4 else bent(_HEADERS, number)) + page

    def asking(self, count: int) -> list[str]:
        """`energy` with so many of these pages as meters."""
        source = ",".join(f"host:http://127.0.0.1:{self.port}/{at}" for at in range(count))
        return ["energy", "--duration", "0.1", "--meter", source]


@contextmanager
def pages(first: int, slow: bool = False, *, sound_first: bool = False, bent_too: bool = True) -> Iterator[Pages]:
    """Answers with numbers from `first` on; where it is `slow` each comes by the byte, without end."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        known = Pages(int(listening.getsockname()[1]), first, sound_first, bent_too)

        def serve() -> None:
            while True:
                try:
                    channel, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=talk, args=(channel,), daemon=True).start()

        def talk(channel: socket.socket) -> None:
            with suppress(OSError, IndexError), channel:
                answer = known.answer(channel.recv(4096).split()[1])
                if not slow:
                    channel.sendall(answer)
                    return
                began_s = time.monotonic()
                try:
                    for at in range(1000):
                        channel.sendall(answer[at : at + 1] or b"x")
                        time.sleep(0.05)
                finally:
                    known.waited_s += time.monotonic() - began_s

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield known
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()
