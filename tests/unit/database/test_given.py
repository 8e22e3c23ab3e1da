# SPDX-License-Identifier: Apache-2.0
"""Servers of the user: addresses, option files, passwords, and the rows of running servers."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from powerprof.cli import app
from powerprof.database import given
from powerprof.database.given import build_login, describe_servers, read_version
from powerprof.system.errors import DataError, PowerprofError, SeveralServersError, UsageError
from tests.conftest import Tree
from tests.programs.answers import Answers


@pytest.fixture(autouse=True)
def _no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MYSQL_PWD", raising=False)


def _options(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "my.cnf"
    path.write_text(f"[client]\n{text}")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    ("url", "text", "database"),
    [
        ("mysql://alice@db.example:3307/", "mysql://alice@db.example:3307/", None),
        ("mysql://alice@db.example", "mysql://alice@db.example:3306/", None),
        ("mariadb://a%40b@[::1]:3308/world", "mysql://a@b@[::1]:3308/", "world"),
    ],
)
def test_addresses(url: str, text: str, database: str | None) -> None:
    login = build_login(url)
    assert login.text == text
    assert login.database == database


@pytest.mark.parametrize(
    "url",
    [
        "",
        "db.example",
        "http://db.example/",
        "mysql://",
        "mysql://h:0/",
        "mysql://h:99999/",
        "mysql://h:x/",
        "mysql://h/a/b",
        "mysql://h/?x=1",
        "mysql://[::1",
        "mysql://h/%00",
    ],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(UsageError, match="--server"):
        build_login(url)


def test_a_password_in_the_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        build_login("mysql://alice:s3cret@db.example/")
    assert "s3cret" not in caught.value.message + str(caught.value.hint)
    assert "MYSQL_PWD" in str(caught.value.hint)


def test_the_password_comes_from_file_or_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build_login("mysql://a@h/").password == ""
    monkeypatch.setenv("MYSQL_PWD", "environment")
    assert build_login("mysql://a@h/").password == "environment"
    login = build_login("mysql://a@h/", defaults_file=_options(tmp_path, "password=file\n"))
    assert login.password == "file"
    assert "file" not in repr(login)
    named = "user=file\ndatabase=of_file\n"
    login = build_login("mysql://a@h/of_address", defaults_file=_options(tmp_path, named))
    assert (login.user, login.database, login.password) == ("a", "of_address", "environment")
    login = build_login("mysql://h/", defaults_file=_options(tmp_path, named))
    assert (login.user, login.database) == ("file", "of_file")


def test_a_named_socket_takes_precedence_over_the_option_file(tmp_path: Path) -> None:
    login = build_login(socket=Path("/other"), defaults_file=_options(tmp_path, "user=u\nhost=h\n"))
    assert (login.user, login.socket, login.host) == ("u", Path("/other"), None)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("host=h\nport=3310\nsocket=/s\n", ("h", 3310, None)),
        ("host=localhost\nport=3310\nsocket=/s\n", (None, None, "/s")),
        ("host=localhost\nport=3310\n", ("127.0.0.1", 3310, None)),
        ("port=65535\n", ("127.0.0.1", 65535, None)),
        ("socket=/s\n", (None, None, "/s")),
        ("socket=/s\nsocket=/t\n", (None, None, "/t")),
    ],
)
def test_a_host_takes_precedence_over_a_socket(
    tmp_path: Path, text: str, place: tuple[str | None, int | None, str | None]
) -> None:
    login = build_login(defaults_file=_options(tmp_path, text))
    assert (login.host, login.port, login.socket and str(login.socket)) == place


@pytest.mark.parametrize("port", ["0", "65536", "-1", "1e3", ""])
def test_a_number_that_is_no_port_is_refused(tmp_path: Path, port: str) -> None:
    with pytest.raises(DataError, match=f"my.cnf:2: not a port: '{port}'"):
        build_login(defaults_file=_options(tmp_path, f"port={port}\n"))


@pytest.mark.parametrize(
    ("word", "verified"), [("1", True), ("ON", True), ("true", True), ("0", False), ("off", False), ("", False)]
)
def test_keys_and_verification_are_those_of_the_options(tmp_path: Path, word: str, verified: bool) -> None:
    text = f"host=h\nssl-ca=/ca\nssl_cert=/cert\nssl-key=/key\nssl-verify-server-cert={word}\n"
    both = {"verify_cert": "1", "verify_identity": "1"} if verified else {}
    login = build_login(defaults_file=_options(tmp_path, text))
    assert login.tls == {"ca": "/ca", "cert": "/cert", "key": "/key", **both}


@pytest.mark.parametrize(
    ("text", "version"),
    [("10.11.19-MariaDB-log", "MariaDB 10.11.19"), ("8.0.36", "MySQL 8.0.36"), ("5.5.5-10.4-mariadb", "MariaDB 5.5.5")],
)
def test_a_version_has_its_product(text: str, version: str) -> None:
    assert read_version(Answers({"@@version": [(text,)]})) == version
    for odd in ([("none",)], [(None,)], [(8,)], []):
        with pytest.raises(PowerprofError, match="does not say its version"):
            read_version(Answers({"@@version": odd}))


@pytest.mark.parametrize(
    ("address", "is_local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("192.0.2.7", False),
        ("2001:db8::7", False),
        ("db.example", False),
        ("", False),
    ],
)
def test_only_addresses_of_this_host_are_local(address: str, is_local: bool) -> None:
    assert given._is_local_address(address) is is_local


def _clocks(monkeypatch: pytest.MonkeyPatch, *readings: dict[int, int], took_s: float) -> list[str]:
    """Return the phrases of server 10 with processes 11 and 12, whose CPU time is read twice `took_s` apart."""
    clocks, now = iter(readings), iter((100.0, 100.0 + took_s))
    monkeypatch.setattr(given, "list_family", lambda _: [10, 11, 12][: 3 if len(readings[0]) > 1 else 1])
    monkeypatch.setattr(given, "_read_clocks", lambda _: next(clocks))
    monkeypatch.setattr(given, "owner_of", lambda _: SimpleNamespace(distrust="runs as eve"))
    monkeypatch.setattr(given, "time", SimpleNamespace(sleep=lambda _: None, monotonic=lambda: next(now)))
    (phrases,) = given.describe_servers([10])
    return phrases


def test_a_servers_cpu_time_is_by_the_window(fake_tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tree({"proc/10/comm": "odd\n"})
    # 30 ms, 50 ms and nothing within 0.4 s; process 12 has ended, and 13 was not there before.
    before, after = {10: 7_000_000, 11: 5_000_000, 12: 9_000_000}, {10: 37_000_000, 11: 55_000_000, 13: 10**9}
    phrases = _clocks(monkeypatch, before, after, took_s=0.4)
    assert phrases == ["odd 10", "3 processes", "runs as eve", "20.0 % CPU"]
    phrases = _clocks(monkeypatch, {10: 7_000_000}, {10: 7_000_000}, took_s=0.4)
    assert phrases == ["odd 10", "1 process", "runs as eve", "0.0 % CPU"]
    assert _clocks(monkeypatch, {10: 7}, {13: 10**9}, took_s=0.4)[-1] == "CPU unknown"
    assert _clocks(monkeypatch, {}, {}, took_s=0.4)[-1] == "CPU unknown"


@pytest.mark.parametrize("kind", ["same", "replaced", "missing"])
def test_a_program_is_its_own_file(tmp_path: Path, fake_tree: Tree, kind: str) -> None:
    program, other = tmp_path / "mariadbd", tmp_path / "other"
    program.write_text("one")
    other.write_text("two")
    status = other.stat() if kind == "replaced" else program.stat()
    host = fake_tree({})
    (host / "proc/10").mkdir()
    (host / "proc/10/exe").symlink_to(program)
    shown: Any = SimpleNamespace(status=lambda _: SimpleNamespace(device=status.st_dev, inode=status.st_ino))
    if kind == "missing":
        program.unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(given, "shared", lambda: shown)
        assert given.find_own_program(10) == (program if kind == "same" else None)


def test_nothing_or_two_servers_named() -> None:
    with pytest.raises(UsageError, match="no server is named"):
        build_login()
    with pytest.raises(UsageError, match="two servers"):
        build_login("mysql://a@h/", socket=Path("/s"))


def _write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(0o600)
    return path


def _values(path: Path) -> dict[str, str]:
    return {name: option.value for name, option in given.read_option_file(path).items()}


def test_groups_quotes_escapes_and_comments(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "my.cnf",
        r"""
# a comment
[mysqld]
user = mysql
password = of-the-server
database = of-the-server
[client]
user=alice   # who
password = "pa#ss \" word"
socket=/run/mysqld/mysqld.sock
ssl_ca = '/etc/ca.pem'
unknown = 1
skip-reconnect
[client-mariadb]
port=3307
[powerprof]
user = power\sprof
""",
    )
    assert _values(path) == {
        "user": "power prof",
        "password": 'pa#ss " word',
        "socket": "/run/mysqld/mysqld.sock",
        "ssl-ca": "/etc/ca.pem",
        "port": "3307",
    }


def test_included_files_are_read_where_they_stand(tmp_path: Path) -> None:
    folder = tmp_path / "conf.d"
    folder.mkdir()
    _write(folder / "20.cnf", "[client]\nuser=twenty\nhost=h\n")
    _write(folder / "10.cnf", "[client]\nuser=ten\n")
    _write(folder / "30.txt", "[client]\nuser=no\n")
    one = _write(tmp_path / "one.cnf", "[client]\nport=1\n")
    path = _write(tmp_path / "my.cnf", f"[client]\nuser=me\n!includedir {folder}\n!include {one}\n")
    assert _values(path) == {"user": "twenty", "host": "h", "port": "1"}


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("user=x\n", 1, "an option outside of a group: 'user'"),
        ("[client]\n[client\n", 2, "a group without ]"),
        ("[client]\nuser='x\n", 2, "a quoted value without its closing quote"),
        ("[client]\n\n!import /x\n", 3, "not a directive"),
        ("!includedir /nowhere/at/all\n", 1, "cannot read the directory '/nowhere/at/all' .no such file"),
        (f"!includedir /{'x' * 5000}\n", 1, "file name too long"),
        ("!includedir /etc/hostname\n", 1, "not a directory"),
        ("!includedir /a\0b\n", 1, "no such file"),
        (b"[client]\nuser=\xff\xfe\n", 2, "not text"),
    ],
)
def test_damage_is_refused_with_its_line(tmp_path: Path, text: str | bytes, line: int, reason: str) -> None:
    path = _write(tmp_path / "my.cnf", text)
    with pytest.raises(DataError, match=reason) as caught:
        given.read_option_file(path)
    assert caught.value.message.startswith(f"{path}:{line}: ")


def test_a_file_that_includes_itself_ends(tmp_path: Path) -> None:
    path = tmp_path / "my.cnf"
    _write(path, f"!include {path}\n")
    with pytest.raises(DataError, match="include one another"):
        given.read_option_file(path)


def test_what_everybody_may_write_is_not_trusted(tmp_path: Path) -> None:
    path = _write(tmp_path / "my;id.cnf", "[client]\n")
    path.chmod(0o606)
    with pytest.raises(DataError, match="anybody may write") as caught:
        given.read_option_file(path)
    assert caught.value.hint == f"chmod o-w '{path}'"
    for device in ("/dev/null", "/dev/zero"):  # a hint to close them would damage the host
        with pytest.raises(DataError, match="not a regular file"):
            given.read_option_file(_write(tmp_path / "my.cnf", f"!include {device}\n"))


@pytest.mark.parametrize("name", ["absent", "folder", "huge"])
def test_no_option_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    _write(tmp_path / "huge", b"#" * (2 << 20))
    with pytest.raises(DataError, match=r"no such file|not a regular file|larger than 1 MiB"):
        given.read_option_file(tmp_path / name)


@pytest.mark.parametrize("name", ["x" * 300, "y" * 5000, "loop", "pipe", "folder", "a\0b"])
def test_an_included_file_that_is_none_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    path = _write(tmp_path / "my.cnf", f"!include {tmp_path}/{name}\n")
    with pytest.raises(DataError, match=r"too long|too many levels|not a regular file|no such file"):
        given.read_option_file(path)


def test_a_folder_of_option_files_is_bounded_and_nobody_elses(tmp_path: Path) -> None:
    folder = tmp_path / "conf.d"
    folder.mkdir()
    path = _write(tmp_path / "my.cnf", f"[client]\nuser=me\n!includedir {folder}\n")
    _write(folder / "again.cnf", f"!includedir {folder}\n")
    with pytest.raises(DataError, match="more than 50 files include one another"):
        given.read_option_file(path)
    (folder / "again.cnf").unlink()
    for number in range(10_001):
        (folder / f"{number}.txt").touch()
    with pytest.raises(DataError, match="more than 10,000 files"):
        given.read_option_file(path)
    shutil.rmtree(folder)
    folder.mkdir()
    folder.chmod(0o1777)
    with pytest.raises(DataError, match="anybody may write to it"):
        given.read_option_file(path)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_listener_of_a_port_is_found(family: socket.AddressFamily) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as channel:
        channel.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        port = channel.getsockname()[1]
        assert given._find_listener(port) is None
        channel.listen()
        assert given._find_listener(port) == os.getpid()


_LISTENING = """
import socket, sys
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
print("ready", flush=True)
while True:
    pass
"""


def test_servers_have_a_row_and_a_command_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "bin/postgres"
    program.parent.mkdir(parents=True)
    shutil.copy(Path(sys.executable).resolve(), program)
    place = tmp_path / "s.sock"
    command = [program, "-I", "-S", "-c", _LISTENING, str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={"PYTHONHOME": sys.base_prefix}) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            (row,) = describe_servers([process.pid])
            assert row[:2] == [f"postgres {process.pid}", "PostgreSQL, version unknown"]
            assert row[2].endswith("s.sock")
            assert row[3] == "1 process"
            assert float(row[-1].removesuffix(" % CPU")) > 0
            error = SeveralServersError("which", [process.pid], "postgres")
            typed = ["attribute", "--pid=postgres,7", "--pid", "9, postgres", "--by", "unit"]
            lines = list(app._server_lines(error, typed))
            chosen = [f"--pid={process.pid},7", "--pid", f"9,{process.pid}", "--by", "unit"]
            assert shlex.split(lines[-1])[-6:] == ["attribute", *chosen]
            (*_, last) = app._server_lines(SeveralServersError("which", [process.pid]), ["diagnose"])
            assert shlex.split(last)[-3:] == ["diagnose", "--pid", str(process.pid)]
        finally:
            process.kill()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_rows_break_only_between_phrases(width: int) -> None:
    phrases = ["mariadbd 3003", "MariaDB 10.11.19", "/run/mysqld/mysqld.sock", "1 process", "2.6 % CPU"]
    lines = app.wrap_phrases(phrases, width)
    assert all(len(line) <= width for line in lines)
    assert [phrase for line in lines for phrase in line.strip().split("  ")] == phrases
    assert len(lines) == {40: 3, 80: 1, 200: 1}[width]


@pytest.mark.parametrize("path", ["/run/mysqld/mysqld.sock", "./own.sock", "run/own.sock"])
def test_a_server_can_be_named_by_its_socket(path: str) -> None:
    assert build_login(path).to_fields() == build_login(socket=Path(path)).to_fields()
    with pytest.raises(UsageError, match="--server and --socket name two servers"):
        build_login(path, Path("/run/other.sock"))
