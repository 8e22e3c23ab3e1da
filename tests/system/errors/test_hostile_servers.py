# SPDX-License-Identifier: Apache-2.0
"""A server that lies, stalls, floods or asks for the password itself: one line of error within ten seconds."""

from __future__ import annotations

import itertools
import resource
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from powerprof.database import sql
from powerprof.database.base import Limits, Login
from powerprof.database.connections import IdleConnections
from powerprof.database.given import GivenServer
from powerprof.diagnosis import collect
from powerprof.diagnosis.diagnose import DiagnosisRequest, run
from powerprof.system.errors import PowerprofError
from tests.system.errors.conftest import Refused
from tests.system.errors.hostile_server import (
    CAPABILITIES,
    END,
    OK,
    HostileServer,
    Talk,
    column,
    each,
    handshake,
    lenenc,
    sound,
)

PASSWORD = "correct horse battery"
MOST_S = 10.0


@contextmanager
def in_time() -> Iterator[None]:
    """Ten seconds and 100 MB, no more."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.monotonic() - began < MOST_S
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def asked(server: HostileServer) -> DiagnosisRequest:
    return DiagnosisRequest(None, server.url, None, None, 0.2)


def silent(talk: Talk, statement: str = "") -> None:
    time.sleep(60)


def drip(talk: Talk, statement: str = "") -> None:
    talk.channel.sendall(struct.pack("<I", 1 << 20)[:3] + bytes((talk.number,)))
    for part in each(0.2, b"x"):
        talk.channel.sendall(part)


def endless_rows(talk: Talk, statement: str) -> None:
    """A thousand million of them, as long as they are read."""
    talk.send(b"\x02")
    for name in ("a", "b"):
        talk.send(column(name))
    talk.send(END)
    row = lenenc(b"Connections") + lenenc(b"1")
    for numbers in _batches(10**9):
        data = bytearray()
        for _ in numbers:
            data += struct.pack("<I", len(row))[:3] + bytes((talk.number % 256,)) + row
            talk.number += 1
        talk.channel.sendall(data)


def _batches(count: int) -> Iterator[range]:
    for start in range(0, count, 1000):
        yield range(start, start + 1000)


def huge_packets(talk: Talk, statement: str) -> None:
    """Payloads of 16 MB without end, which are one packet."""
    while True:
        talk.channel.sendall(b"\xff\xff\xff" + bytes((talk.number % 256,)) + bytes(0xFFFFFF))
        talk.number += 1


def many_columns(talk: Talk, statement: str) -> None:
    talk.send(b"\xfe" + struct.pack("<Q", 1 << 60))
    for number in itertools.count():
        talk.send(column(f"c{number}"))


def local_file(talk: Talk, statement: str) -> None:
    """LOAD DATA LOCAL: the server names a file of the client's."""
    talk.send(b"\xfb/etc/passwd")


def raw(payload: bytes) -> Callable[[Talk, str], None]:
    return lambda talk, statement: talk.send(payload)


def garbage(talk: Talk, statement: str) -> None:
    talk.channel.sendall(bytes(range(256)) * 10)


def result(names: list[str], rows: list[list[bytes | None]], kind: int = 0xFD) -> Callable[[Talk, str], None]:
    return lambda talk, statement: talk.rows(names, rows, kind)


LIES = {
    "silent": silent,
    "drip": drip,
    "endless rows": endless_rows,
    "huge packets": huge_packets,
    "many columns": many_columns,
    "local file": local_file,
    "garbage": garbage,
    "empty packet": raw(b""),
    "end of nothing": raw(END),
    "cut column": lambda talk, statement: [talk.send(b"\x01"), talk.send(b"\x03def")],
    "error without words": raw(b"\xff"),
    "error in another alphabet": raw(b"\xff\x28\x04#42000" + bytes(range(128, 256))),
    "a row that promises more": lambda talk, statement: [
        talk.send(b"\x01"),
        talk.send(column("a")),
        talk.send(END),
        talk.send(b"\xfd\xff\xff\xff"),
    ],
    "an integer of 5,000 digits": result(["a", "b"], [[b"Connections", b"9" * 5000]], kind=8),
    "a figure that is none": result(["a", "b"], [[b"NaN", b"NaN"]], kind=5),
    "text that is none": result(["a", "b"], [[b"\xff\xfe", b"\xff"]]),
    "one column": result(["a"], [[b"1"]]),
    "no rows": result(["a", "b"], []),
    "NULLs": result(["a", "b", "c", "d", "e"], [[None] * 5]),
}
# The connection refuses the others alike, whatever was asked; what these say is read by each statement's own code.
READ = ("silent", "error without words", *list(LIES)[list(LIES).index("an integer of 5,000 digits") :])
LATER = ("VARIABLES", "PROCESSLIST", "SLAVE", "EVENTS", "MASTER", "CONNECTION_ID")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the patience with a server, which is judged once, at the counters, and the pauses between samples."""
    monkeypatch.setattr(sql, "LOOK_LIMITS", Limits(waiting_s=0.5))
    monkeypatch.setattr(collect, "_SAMPLE_S", 0.001)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("lie", LIES)
def test_a_first_answer_that_lies(tmp_path: Path, lie: str) -> None:
    """What `diagnose`, `idle` and `run` ask any given server first."""
    with HostileServer(tmp_path, LIES[lie]) as server, in_time():
        with pytest.raises(PowerprofError) as error:
            run(asked(server), lambda text: None)
        assert "\n" not in error.value.message
        assert error.value.exit_code in (1, 3)
        assert all(b"root:x:" not in packet for packet in server.heard)


def test_counters_that_never_come(tmp_path: Path) -> None:
    diagnose_against(tmp_path, "STATUS", "silent")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("about", "lie"),
    [("STATUS", "drip"), ("STATUS", "endless rows"), *((about, lie) for about in ("STATUS", *LATER) for lie in READ)],
)
def test_a_later_answer_of_diagnose_that_lies(tmp_path: Path, about: str, lie: str) -> None:
    diagnose_against(tmp_path, about, lie)


def diagnose_against(folder: Path, about: str, lie: str) -> None:
    """Everything else is answered well: it is one line of error, or a diagnosis without what was not said."""

    def answer(talk: Talk, statement: str) -> None:
        (LIES[lie] if about in statement.upper() else sound)(talk, statement)

    with HostileServer(folder, answer) as server, in_time():
        try:
            found, _ = run(asked(server), lambda text: None)
        except PowerprofError as error:
            assert "\n" not in error.message
        else:
            import msgspec

            assert msgspec.json.decode(msgspec.json.encode(found))


@pytest.mark.parametrize("lie", READ[1:])
def test_thread_names_that_lie(tmp_path: Path, lie: str) -> None:
    """What `attribute --server` asks."""
    with HostileServer(tmp_path, LIES[lie]) as server, in_time():
        given = GivenServer(Login(user="someone", host="127.0.0.1", port=server.port))
        try:
            names = given.thread_names()
        except PowerprofError as error:
            assert "\n" not in error.message
        else:
            assert all(isinstance(tid, int) and name.isprintable() for tid, name in names.items())


def test_thread_names_are_printable_and_short(tmp_path: Path) -> None:
    rows = [
        [b"1", b"thread/\x1b[31m\r\n" + b"x" * 5000, None],
        [b"x", b"y", None],
        [b"-3", b"z", None],
        [b"2", b"fine", None],
    ]
    with HostileServer(tmp_path, result(["a", "b", "c"], rows)) as server:
        names = GivenServer(Login(user="someone", host="127.0.0.1", port=server.port)).thread_names()
    assert sorted(names) == [1, 2]
    assert names[1].startswith("thread/?[31m??xxx") and len(names[1]) == 128


@pytest.mark.parametrize("lie", READ[1:])
def test_limits_of_connections_that_lie(tmp_path: Path, lie: str) -> None:
    def answer(talk: Talk, statement: str) -> None:
        (LIES[lie] if "max_connections" in statement else sound)(talk, statement)

    with (
        HostileServer(tmp_path, answer) as server,
        GivenServer(Login(user="someone", host="127.0.0.1", port=server.port)) as given,
        in_time(),
        pytest.raises(PowerprofError) as error,
        IdleConnections(given, 3),
    ):
        pass
    assert "\n" not in error.value.message


GREETINGS = {
    "silent": silent,
    "drip": drip,
    "http": lambda talk: talk.channel.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "empty": lambda talk: talk.send(b""),
    "short": lambda talk: talk.send(b"\x0a5.5"),
    "version of no numbers": lambda talk: talk.send(handshake("mysql_native_password", version="x.y")),
    "plugin in no alphabet": lambda talk: talk.send(handshake("x").replace(b"x\0", b"\xff\xfe\0")),
    "huge": lambda talk: talk.channel.sendall(b"\xff\xff\xff\0" + bytes(0xFFFFFF)),
    "sequence": lambda talk: talk.channel.sendall(b"\x01\0\0\x09x"),
    "error": lambda talk: talk.send(b"\xff\x10\x04Too many \x1b[31m connections\n"),
}


@pytest.mark.parametrize("greeting", GREETINGS)
def test_a_greeting_that_is_none(tmp_path: Path, greeting: str) -> None:
    with (
        HostileServer(tmp_path, greet=GREETINGS[greeting]) as server,
        in_time(),
        pytest.raises(PowerprofError) as error,
    ):
        run(asked(server), lambda text: None)
    assert "\n" not in error.value.message


def switch_to(plugin: bytes, then: bytes = b"") -> Callable[[Talk], None]:
    """AuthSwitchRequest after a sound handshake, and what the server says after the answer."""

    def greet(talk: Talk) -> None:
        talk.send(handshake("mysql_native_password"))
        talk.receive()
        talk.send(b"\xfe" + plugin + b"\0" + b"abcdefghijklmnopqrst\0")
        if then:
            talk.receive()
            talk.send(then)

    return greet


def first_plugin(plugin: str, then: bytes) -> Callable[[Talk], None]:
    def greet(talk: Talk) -> None:
        talk.send(handshake(plugin))
        talk.receive()
        talk.send(then)

    return greet


THEFTS = {
    "clear": switch_to(b"mysql_clear_password"),
    "dialog": switch_to(b"dialog", b"\x02Password: "),
    "dialog at once": switch_to(b"dialog"),
    "old": switch_to(b"mysql_old_password"),
    "old from the beginning": first_plugin("mysql_old_password", b"\x01x"),
    "one that PyMySQL lacks": switch_to(b"auth_gssapi_client"),
    "sha256": switch_to(b"sha256_password", b"\x01-----BEGIN PUBLIC KEY-----\n"),
    "caching sha2, forgotten": switch_to(b"caching_sha2_password", b"\x01\x04"),
    "clear from the beginning": first_plugin("mysql_clear_password", b"\xfemysql_clear_password\0"),
    "sha256 from the beginning": first_plugin("sha256_password", b"\x01-----BEGIN PUBLIC KEY-----\n"),
    "caching sha2 from the beginning": first_plugin("caching_sha2_password", b"\x01\x04"),
    "again and again": first_plugin("mysql_native_password", b"\xfemysql_native_password\0" + b"x" * 20 + b"\0"),
}


@pytest.mark.parametrize("theft", THEFTS)
def test_the_password_itself_is_not_given_away(tmp_path: Path, theft: str) -> None:
    """Neither in the clear nor under a key that the server chose, without TLS."""
    login = Login(user="someone", password=PASSWORD, host="127.0.0.1")
    with HostileServer(tmp_path, greet=THEFTS[theft]) as server, in_time():
        login.port = server.port
        with pytest.raises(PowerprofError) as error:
            sql.connect(login, timeout_s=3)
        time.sleep(0.1)
    assert "\n" not in error.value.message
    sent = b"".join(server.heard)
    assert PASSWORD.encode() not in sent
    # No request for a public key, under which it would come next.
    assert server.heard.count(b"\x01") + server.heard.count(b"\x02") == 0


@pytest.mark.parametrize("theft", ["clear", "dialog"])
def test_a_plain_password_goes_through_no_unix_socket_either(tmp_path: Path, theft: str) -> None:
    login = Login(user="someone", password=PASSWORD)
    with HostileServer(tmp_path, greet=THEFTS[theft]) as server, pytest.raises(PowerprofError, match="password itself"):
        login.socket = server.path
        sql.connect(login, timeout_s=3)
    assert PASSWORD.encode() not in b"".join(server.heard)


def test_what_is_said_before_tls_is_not_believed(tmp_path: Path) -> None:
    """A row smuggled in before the handshake of TLS (CVE-2021-23222 of another client)."""

    def greet(talk: Talk) -> None:
        talk.send(handshake("mysql_native_password", capabilities=CAPABILITIES | 0x800))
        talk.receive()
        talk.send(OK)

    with HostileServer(tmp_path, greet=greet) as server, in_time(), pytest.raises(PowerprofError):
        sql.connect(Login(user="someone", password=PASSWORD, host="127.0.0.1", port=server.port), timeout_s=3)


@pytest.mark.parametrize("lie", ["local file", "NULLs"])
def test_the_command_line(refused: Refused, tmp_path: Path, lie: str) -> None:
    with HostileServer(tmp_path, LIES[lie]) as server:
        began = time.monotonic()
        refused(
            1,
            r"SELECT failed|cannot connect",
            ["diagnose", "--server", server.url, "--duration", "0.2"],
            {"MYSQL_PWD": PASSWORD},
        )
        assert time.monotonic() - began < MOST_S + 3  # the interpreter's own start
