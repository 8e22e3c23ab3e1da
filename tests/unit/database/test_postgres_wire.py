# SPDX-License-Identifier: Apache-2.0
"""Connections to untrusted servers of PostgreSQL: the limits of an answer."""

from __future__ import annotations

import os
import resource
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from powerprof.database import postgres_wire
from powerprof.database.base import Limits, Login, StatementError
from powerprof.system.fork import run_in_fork

Say = Callable[[bytes], None]
_MOST = 2 << 20


def message(kind: bytes, body: bytes, length: int | None = None) -> bytes:
    """One message of the protocol, perhaps with a length that is not its own."""
    return kind + struct.pack("!i", 4 + len(body) if length is None else length) + body


def columns(count: int) -> bytes:
    """The description of text columns."""
    return message(b"T", struct.pack("!h", count) + b"".join(b"c\0" + bytes(18) for _ in range(count)))


READY = message(b"Z", b"I")
ROW = message(b"D", struct.pack("!hi", 1, 5) + b"value")
ANSWER = columns(1) + ROW + message(b"C", b"SELECT 1\0") + READY


def drip(say: Say) -> None:
    """One byte of an answer now and then."""
    for byte in ANSWER * 1000:
        say(bytes([byte]))
        time.sleep(0.02)


def repeat(data: bytes) -> Callable[[Say], None]:
    """Say it for ever."""

    def work(say: Say) -> None:
        while True:
            say(data)

    return work


NOTICE = message(b"N", b"SNOTICE\0M" + b"n" * 1000 + b"\0\0")
# What a server says to a statement, and what powerprof says of it; None: an ordinary answer.
LIES: dict[str, tuple[Callable[[Say], None], str | None]] = {
    "the truth": (lambda say: say(ANSWER), None),
    "silent": (lambda say: time.sleep(30), "did not answer in 1 s"),
    "drip": (drip, "did not answer in 1 s"),
    "endless rows": (lambda say: [say(columns(1)), repeat(ROW * 1000)(say)], "larger than 2 MiB"),  # type: ignore[func-returns-value]
    "one endless value": (
        lambda say: [
            say(columns(1) + message(b"D", struct.pack("!hi", 1, 1 << 30), 1 << 30)),
            repeat(bytes(65536))(say),
        ],  # type: ignore[func-returns-value]
        "larger than 2 MiB",
    ),
    "a row that is announced only": (
        lambda say: [say(columns(1) + message(b"D", b"", 0x7FFFFFF0)), time.sleep(30)],  # type: ignore[func-returns-value]
        "",
    ),
    "endless notices": (repeat(NOTICE), "larger than 2 MiB"),
    "endless parameters": (repeat(message(b"S", b"name\0value\0")), "larger than 2 MiB"),
    "many columns": (
        lambda say: say(
            columns(30_000)
            + message(b"D", struct.pack("!h", 30_000) + b"\xff" * 120_000)
            + message(b"C", b"SELECT 1\0")
            + READY
        ),
        None,
    ),
    "garbage": (lambda say: say(os.urandom(5000)), ""),
    "a row without its columns": (lambda say: say(ROW + READY), ""),
    "columns that do not fit": (lambda say: say(columns(3) + ROW + READY), ""),
    "a negative length": (lambda say: say(columns(1) + message(b"D", b"x", -5) + READY), ""),
    "an end in the middle": (lambda say: say(ANSWER[:40]), ""),
    "a copy": (lambda say: say(message(b"G", b"\0\0\0") + READY), ""),
}


@contextmanager
def lying(greeting: Callable[[Say], None], lie: Callable[[Say], None]) -> Iterator[Login]:
    """Run a server that greets and then answers each statement by a lie; it has one client."""

    def serve() -> None:
        with suppress(OSError), listening.accept()[0] as client:
            client.recv(8192)
            greeting(client.sendall)
            while client.recv(8192):
                lie(client.sendall)
                if lie is LIES["an end in the middle"][0]:
                    return

    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        place = Path(folder) / ".s.PGSQL.5432"
        listening.bind(str(place))
        listening.listen()
        # It may sleep still when the test ends.
        threading.Thread(target=serve, daemon=True).start()
        yield Login(user="u", socket=place, pid=os.getpid(), family="postgresql")


GREETING = message(b"R", bytes(4)) + READY


@pytest.mark.parametrize("lie", LIES)
def test_an_answer_that_lies_is_bounded(lie: str) -> None:
    """In time and memory: libpq alone takes a gigabyte in seconds."""
    work, said = LIES[lie]

    def ask(say: Say) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with lying(lambda say: say(GREETING), work) as login:
            connection = postgres_wire.PostgresConnection(login, 20.0, Limits(answer_bytes=_MOST))
            connection.patience_s = 20.0 if said and "MiB" in said else 1.0
            try:
                rows = connection.run("SELECT 1")[1]
                say(f"{len(rows)} rows".encode())
            except StatementError as error:
                say(error.message.encode())
            connection.close()
        say(str((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10).encode())

    done = run_in_fork(ask, 60.0)
    assert done.ended
    answer, growth_mib = done.parts[0].decode(), int(done.parts[1])
    assert growth_mib < 60
    if said is None:
        assert answer == "1 rows"
    else:
        assert said in answer and answer != "1 rows"


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (b"", "it does not answer"),
        (message(b"E", b"SFATAL\0VFATAL\0C28000\0Mno \x1b[31mentry\0\0"), "FATAL: no ?[31mentry"),
        (message(b"R", struct.pack("!i", 99)), "authentication method 99 not supported"),
        (message(b"R", bytes(4)) + message(b"S", b"n\0v\0") * 400_000, "its answer is larger than 2 MiB"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ""),
    ],
)
def test_a_greeting_that_lies(greeting: bytes, said: str) -> None:
    with lying(lambda say: say(greeting), lambda say: None) as login, pytest.raises(StatementError) as refused:
        postgres_wire.PostgresConnection(login, 1.0, Limits(answer_bytes=_MOST))
    assert refused.value.message.startswith("cannot connect to ") and said in refused.value.message
    assert "tmp" not in refused.value.message.partition("(")[2], "the place of libpq's own socket"


def test_no_server_makes_libpq_open_a_file_of_tickets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Usually it is in /tmp. Another account's pipe there would stop powerprof in libpq, which no signal ends."""
    pipe = tmp_path / "tickets"
    os.mkfifo(pipe)
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{pipe}")
    opened: list[float] = []

    def wait_for_reader() -> None:
        os.close(os.open(pipe, os.O_WRONLY))
        opened.append(time.monotonic())

    writer = threading.Thread(target=wait_for_reader, daemon=True)
    writer.start()
    kerberos = message(b"R", struct.pack("!i", 7))
    with lying(lambda say: say(kerberos), lambda say: None) as login, pytest.raises(StatementError):
        postgres_wire.PostgresConnection(login, 2.0, Limits())
    assert opened == []
    os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
    writer.join(10)


@pytest.mark.parametrize("name", ["t" * 120, "a,b", "with space's"])
def test_temporary_folders_with_any_name_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with lying(lambda say: say(GREETING), LIES["the truth"][0]) as login:
        (tmp_path / name).mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
        connection = postgres_wire.PostgresConnection(login, 5.0, Limits())
        assert connection.run("SELECT 1")[1] == [("value",)]
        connection.close()
    assert list((tmp_path / name).iterdir()) == []


def test_another_listener_gets_no_byte() -> None:
    """The user's name and the database are sent after the listener was compared."""
    received: list[bytes] = []
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        place = Path(folder) / ".s.PGSQL.5432"
        listening.bind(str(place))
        listening.listen()
        login = Login(user="u", socket=place, pid=1, family="postgresql")
        with pytest.raises(StatementError, match=f"process {os.getpid()} listens there, not 1"):
            postgres_wire.PostgresConnection(login, 5.0, Limits())
        with listening.accept()[0] as client:
            received.append(client.recv(100))
    assert received == [b""]


@pytest.mark.parametrize(("rows", "refused"), [(7, False), (8, True)])
def test_an_answer_of_postgres_has_at_most_its_rows(rows: int, refused: bool) -> None:
    connection: Any = postgres_wire.PostgresConnection.__new__(postgres_wire.PostgresConnection)
    connection._limits = Limits(rows=7)
    values = {(row, 0): str(row).encode() for row in range(rows)}
    result: Any = SimpleNamespace(
        ntuples=rows,
        nfields=2,
        fname=lambda column: b"number" if column == 0 else None,
        get_value=lambda row, column: values.get((row, column)),
    )
    with pytest.raises(StatementError, match="larger than 7 rows") if refused else nullcontext():
        assert connection._read_rows(result) == (["number", ""], [(str(row), None) for row in range(rows)])


def test_a_message_is_one_printable_line() -> None:
    assert postgres_wire._clean_message(b"ERROR:  no\n  such \x1b[31mtable\n") == "no such ?[31mtable"
    assert postgres_wire._clean_message(None) == ""
    assert len(postgres_wire._clean_message(b"x" * 999)) == 300
