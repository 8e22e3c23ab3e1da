# SPDX-License-Identifier: Apache-2.0
"""Floods of idle, slow and wrong readers: a scrape is answered, and the cost is bounded."""

from __future__ import annotations

import asyncio
import base64
import http.client
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import bcrypt
import psutil
import pytest

from powerprof.live import webconfig
from powerprof.live.exporter import MetricsServer
from powerprof.live.webconfig import Admission, Authenticator, WebConfig

_SERVE = """
import sys, time
from pathlib import Path
from powerprof.live.exporter import MetricsServer
from powerprof.live.webconfig import WebConfig, load_web_config
config = load_web_config(Path(sys.argv[1])) if len(sys.argv) > 1 else WebConfig()
with MetricsServer(("127.0.0.1", 0), lambda accept: (b"x" * 50_000, "text/plain"), config) as server:
    print(server.port, flush=True)
    sys.stdin.read()
"""


@contextmanager
def served(*words: str) -> Iterator[tuple[int, psutil.Process]]:
    """Run a server in a separate process; yield its port and process."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVE, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield int(process.stdout.readline()), psutil.Process(process.pid)
        finally:
            process.stdin.close()
            process.wait(20)


def scrape(port: int, timeout_s: float = 20, **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", "/metrics", headers=headers)
        reply = connection.getresponse()
        reply.read()
        return reply.status
    finally:
        connection.close()


def basic(password: str, user: str = "prometheus") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@contextmanager
def attackers(count: int, attack: Callable[[int], None]) -> Iterator[None]:
    """Repeat an attack in `count` threads."""
    end = threading.Event()

    def repeat(number: int) -> None:
        while not end.is_set():
            with suppress(OSError, http.client.HTTPException):
                attack(number)

    threads = [threading.Thread(target=repeat, args=(number,)) for number in range(count)]
    try:
        for thread in threads:
            thread.start()
        yield
    finally:
        end.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nX-Slow: "], ids=["idle", "slow"])
def test_four_hundred_connections_do_not_delay_a_scrape(sent: bytes) -> None:
    with served() as (port, process), ExitStack() as stack:
        connections = []
        for _ in range(400):
            connections.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)))
            connections[-1].sendall(sent)
        end = threading.Event()

        def refresh() -> None:
            """Send a byte, and connect again if the connection was ended."""
            while not end.wait(0.05):
                for number, connection in enumerate(connections):
                    if end.is_set():
                        return
                    try:
                        connection.sendall(b"." if sent else b"")
                        connection.setblocking(False)
                        with suppress(BlockingIOError):
                            if connection.recv(1) == b"":
                                raise ConnectionResetError
                    except OSError:
                        connection.close()
                        with suppress(OSError):
                            connections[number] = socket.create_connection(("127.0.0.1", port), timeout=10)
                            connections[number].sendall(sent)

        thread = threading.Thread(target=refresh)
        thread.start()
        stack.callback(lambda: [connection.close() for connection in connections])
        stack.callback(thread.join)
        stack.callback(end.set)
        took_s = []
        for _ in range(20):
            began_s = time.monotonic()
            assert scrape(port) == 200
            took_s.append(time.monotonic() - began_s)
        # Other programs may delay one scrape. Prometheus waits 10 s.
        assert statistics.median(took_s) < 2 and max(took_s) < 10, took_s
        assert process.num_threads() < 8
        assert process.num_fds() < 200


def test_wrong_passwords_are_cheap_and_do_not_delay_a_scrape(tmp_path: Path) -> None:
    config = tmp_path / "web.yml"
    config.write_text(f"basic_auth_users: {{prometheus: {bcrypt.hashpw(b'right', bcrypt.gensalt(10)).decode()}}}")
    with served(str(config)) as (port, process):
        assert scrape(port, Authorization=basic("right")) == 200
        statuses: Counter[int] = Counter()

        def attack(number: int) -> None:
            statuses[scrape(port, Authorization=basic(os.urandom(8).hex(), f"user{number % 7}"))] += 1

        with attackers(60, attack):
            before, began_s = process.cpu_times(), time.monotonic()
            while time.monotonic() < began_s + 5:
                assert scrape(port, Authorization=basic("right")) == 200
                time.sleep(0.5)
            after, took_s = process.cpu_times(), time.monotonic() - began_s
        cpu_s = after.user + after.system - before.user - before.system
        assert cpu_s < 0.3 * took_s, (cpu_s, took_s, statuses)
        assert set(statuses) == {401, 429}


def test_a_peer_loses_its_own_connections() -> None:
    """An older connection of another address is answered during a flood."""
    with MetricsServer(("::", 0), lambda accept: (b"x\n", "text/plain"), WebConfig()) as server, ExitStack() as stack:
        assert server.port is not None
        early = stack.enter_context(socket.create_connection((_own_address(), server.port), timeout=20))
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
        assert scrape(server.port) == 200
        early.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert early.recv(12) == b"HTTP/1.1 200"


def _own_address() -> str:
    """Return an address of this host that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return str(probe.getsockname()[0])


def test_passwords_are_checked_one_at_a_time_with_equal_work(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = {
        "a": bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode(),
        "b": bcrypt.hashpw(b"x", bcrypt.gensalt(6)).decode(),
    }
    check, costs = webconfig._check_password, list[str]()
    lock = threading.Lock()

    def counted(password: bytes, hashed: str) -> bool:
        assert lock.acquire(blocking=False), "two checks at a time"
        costs.append(hashed[4:6])
        is_right = check(password, hashed)
        lock.release()
        return is_right

    monkeypatch.setattr(webconfig, "_check_password", counted)

    async def admit() -> None:
        authenticator = Authenticator(hashes)
        for name in ("a", "b", "unknown"):
            costs.clear()
            assert await authenticator.admit(basic("wrong", name), "") is Admission.REFUSED
            assert costs == ["04", "06"]
        # bcrypt reads 72 bytes, so longer passwords are not checked again.
        long = "y" * 72
        for end, times in (("", 2), ("1", 0), ("2", 0)):
            costs.clear()
            assert await authenticator.admit(basic(long + end, "a"), "") is Admission.REFUSED
            assert len(costs) == times
        # Four checks of one peer may wait. The check of a closed connection keeps its place.
        several = [asyncio.ensure_future(authenticator.admit(basic(f"{number}", "a"), "peer")) for number in range(6)]
        await asyncio.sleep(0)
        several[0].cancel()
        other = await authenticator.admit(basic("right", "a"), "other")
        results = await asyncio.gather(*several[1:])
        assert (other, Counter(results)) == (Admission.ADMITTED, Counter({Admission.REFUSED: 3, Admission.LATER: 2}))
        assert not authenticator._pending

    # Another test may have left a running loop in this thread.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, admit()).result()
