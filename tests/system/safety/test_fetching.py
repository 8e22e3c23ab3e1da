# SPDX-License-Identifier: Apache-2.0
"""Downloads end when they should, whatever the server does, and are made without rights."""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from powerprof.stacks import debuginfod
from powerprof.system import fetching
from tests.system.safety.conftest import UID, Attacker
from tests.unit.stacks.elves import Part, make

_ID = "ab" * 20


@pytest.fixture
def serve() -> Iterator[Callable[[bytes, bytes], str]]:
    """`serve(at once, then a byte of this every 0.2 s)` → the address of a server that never ends by itself."""
    over = threading.Event()
    listening = []

    def start(at_once: bytes, drops: bytes) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listening.append(listener)

        def answer() -> None:
            while not over.is_set():
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=drip, args=(client,), daemon=True).start()

        def drip(client: socket.socket) -> None:
            with client:
                try:
                    client.sendall(at_once)
                    while drops and not over.wait(0.2):
                        client.sendall(drops)
                except OSError:
                    return

        threading.Thread(target=answer, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    over.set()
    for listener in listening:
        listener.close()


@pytest.mark.parametrize(
    ("at_once", "drops"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x"),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
    ],
)
def test_a_server_that_drips_is_left_at_the_deadline(
    serve: Callable[[bytes, bytes], str], at_once: bytes, drops: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("DEBUGINFOD_URLS", serve(at_once, drops))
    monkeypatch.setattr(debuginfod, "TOTAL_S", 1.0)
    begin = time.monotonic()
    assert debuginfod.fetch(_ID) is None
    # It never ends by itself; a loaded host takes its time to start the child.
    assert time.monotonic() - begin < 15.0
    assert [path.name for path in (tmp_path / "powerprof/debuginfod").iterdir()] == []


def test_what_is_fetched_is_kept_and_what_is_missing_is_remembered(
    serve: Callable[[bytes, bytes], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("DEBUGINFOD_URLS", serve(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", b""))
    assert debuginfod.fetch(_ID) is None
    assert [path.name for path in (tmp_path / "powerprof/debuginfod").iterdir()] == [f"{_ID}.missing"]
    other = "cd" * 20
    note = Part(".note.gnu.build-id", 7, struct.pack("<III4s", 4, 20, 3, b"GNU\0") + bytes.fromhex(other))
    elf = make([note])
    monkeypatch.setenv("DEBUGINFOD_URLS", serve(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(elf) + elf, b""))
    # The file of another build is not kept, whoever sent it.
    assert debuginfod.fetch("ef" * 20) is None
    path = debuginfod.fetch(other)
    assert path is not None and path.read_bytes() == elf
    # What is in the cache needs no server.
    monkeypatch.delenv("DEBUGINFOD_URLS")
    assert debuginfod.fetch(other) == path == debuginfod.find_cached(other)
    # Asked for by name, a server is asked again though it did not have it today.
    elf = make([Part(note.name, 7, note.data[:16] + bytes.fromhex(_ID))])
    monkeypatch.setenv("DEBUGINFOD_URLS", serve(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(elf) + elf, b""))
    assert debuginfod.fetch(_ID) is None
    asked = debuginfod.FetchRequest(time.monotonic() + 60)
    path = debuginfod.fetch(_ID, asked)
    assert path is not None and path.read_bytes() == elf
    assert debuginfod.fetch("ef" * 20, asked) is None
    assert [problem.rpartition(": ")[2] for problem in asked.problems] == ["sent the debug file of another build"]


@pytest.mark.parametrize("scheme", ["file", "ftp"])
def test_a_redirection_away_from_the_web_is_refused(
    serve: Callable[[bytes, bytes], str], attacker: Attacker, scheme: str
) -> None:
    answer = f"HTTP/1.1 302 There\r\nLocation: {scheme}://localhost{attacker.secret}\r\nContent-Length: 0\r\n\r\n"
    with (attacker.secret.parent / "got").open("wb") as file, pytest.raises(OSError, match=r"(?i)redirect"):
        fetching.fetch(serve(answer.encode(), b""), file.fileno(), limit_bytes=100, total_s=10)
    assert (attacker.secret.parent / "got").read_bytes() == b""


def test_it_is_not_root_that_talks_to_the_server(
    serve: Callable[[bytes, bytes], str], attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setenv("SUDO_UID", str(UID))
    address = serve(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n")

    def look() -> None:
        deadline = time.monotonic() + 5
        while not seen and time.monotonic() < deadline:
            for entry in os.listdir("/proc"):
                try:
                    words = Path(f"/proc/{entry}/cmdline").read_bytes()
                    if address.encode() in words.split(b"\0"):
                        seen.append(Path(f"/proc/{entry}").stat().st_uid)
                        return
                except OSError:
                    continue
            time.sleep(0.02)

    watching = threading.Thread(target=look)
    watching.start()
    with (attacker.secret.parent / "got").open("wb") as file, pytest.raises(TimeoutError):
        fetching.fetch(address, file.fileno(), limit_bytes=100, total_s=2)
    watching.join()
    assert seen == [UID]


def test_an_environment_in_a_closed_home_is_no_hindrance(
    serve: Callable[[bytes, bytes], str], attacker: Attacker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "home"
    closed.mkdir(mode=0o700)
    (closed / "python").symlink_to(Path(sys.executable).resolve())
    monkeypatch.setattr(sys, "executable", str(closed / "python"))
    monkeypatch.setenv("SUDO_UID", str(UID))
    with (attacker.secret.parent / "got").open("wb+") as file:
        address = serve(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"")
        fetching.fetch(address, file.fileno(), limit_bytes=100, total_s=10)
        file.seek(0)
        assert file.read() == b"ok"
