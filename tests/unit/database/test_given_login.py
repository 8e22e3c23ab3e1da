# SPDX-License-Identifier: Apache-2.0
"""How a server of the user's is named, and where its password may come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.database.clients.given import build_login
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
