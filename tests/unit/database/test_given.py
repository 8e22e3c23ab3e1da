# SPDX-License-Identifier: Apache-2.0
"""Logins of servers of the user: addresses, option files and passwords."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

from powerprof.database import given
from powerprof.database.given import build_login
from powerprof.system.errors import DataError, UsageError


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


def test_the_option_file_names_the_server(tmp_path: Path) -> None:
    login = build_login(defaults_file=_options(tmp_path, "user=u\nhost=h\nport=3310\nsocket=/s\n"))
    assert (login.user, login.host, login.port, login.socket) == ("u", "h", 3310, None)
    login = build_login(defaults_file=_options(tmp_path, "user=u\nhost=localhost\nsocket=/s\n"))
    assert login.socket == Path("/s")
    login = build_login(socket=Path("/other"), defaults_file=_options(tmp_path, "user=u\nhost=h\n"))
    assert (login.user, login.socket, login.host) == ("u", Path("/other"), None)


def test_nothing_or_two_servers_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no server is named"):
        build_login()
    with pytest.raises(UsageError, match="two servers"):
        build_login("mysql://a@h/", socket=Path("/s"))
    with pytest.raises(DataError, match=r"my.cnf:2: not a port: '33o6'"):
        build_login(defaults_file=_options(tmp_path, "port=33o6\n"))


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
    path = _write(tmp_path / "my.cnf", "[client]\n")
    path.chmod(0o606)
    with pytest.raises(DataError, match="anybody may write"):
        given.read_option_file(path)


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


@pytest.mark.parametrize(
    ("program", "is_server"),
    [("mysqld", True), ("mariadbd", True), ("mysqld-debug", True), ("mysqldump", False), ("mysqld_exporter", False)],
)
def test_server_is_recognised_by_its_name(program: str, is_server: bool) -> None:
    assert given.is_server_name(program) is is_server
