# SPDX-License-Identifier: Apache-2.0
"""Servers of the user: addresses, option files, passwords, and the rows of running servers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from powerprof.database import sql
from powerprof.database.given import build_login, given_server
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
        ("postgresql://alice@db.example/shop", "postgresql://alice@db.example:5432/", "shop"),
        ("postgres://alice@[::1]:5433", "postgresql://alice@[::1]:5433/", None),
        ("alice@/run/mysqld/mysqld.sock", "alice@/run/mysqld/mysqld.sock", None),
        ("alice@/run/postgresql/.s.PGSQL.5433", "alice@/run/postgresql/.s.PGSQL.5433", None),
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
        "postgresql://",
        "postgresql:///shop",
        "postgresql://h/a/b",
        "pg://h/",
    ],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(UsageError, match="--server"):
        build_login(url)


@pytest.mark.parametrize(("scheme", "place"), [("mysql", "MYSQL_PWD"), ("postgresql", "PGPASSWORD")])
def test_a_password_in_the_address_is_refused_and_not_repeated(scheme: str, place: str) -> None:
    with pytest.raises(UsageError) as caught:
        build_login(f"{scheme}://alice:s3cret@db.example/")
    assert "s3cret" not in caught.value.message + str(caught.value.hint)
    assert place in str(caught.value.hint)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        (".s.PGSQL.5432", "postgresql"),
        (".s.PGSQL.54321", "postgresql"),
        (".s.PGSQL.", "mysql"),
        (".s.PGSQL.5432.lock", "mysql"),
        ("mysqld.sock", "mysql"),
    ],
)
def test_the_name_of_a_socket_tells_the_product(name: str, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYSQL_PWD", "of mysql")
    monkeypatch.setenv("PGPASSWORD", "of postgresql")
    for login in (build_login(socket=Path("/run") / name), build_login(f"/run/{name}"), build_login(f"a@/run/{name}")):
        assert (login.family, login.password) == (family, f"of {family}")


@pytest.mark.parametrize("server", ["postgresql://a@h/", "/run/.s.PGSQL.5432"])
def test_commands_for_one_product_name_the_other(server: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a PostgreSQL server") as caught:
        given_server(server)
    assert "--pid" in str(caught.value.hint)
    assert given_server(server, families=("mysql", "postgresql")).login.family == "postgresql"
    with pytest.raises(UsageError, match="--defaults-file is for MariaDB and MySQL"):
        build_login(server, defaults_file=_options(tmp_path, "user=a"))


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


def test_nothing_or_two_servers_named() -> None:
    with pytest.raises(UsageError, match="no server is named"):
        build_login()
    with pytest.raises(UsageError, match="two servers"):
        build_login("mysql://a@h/", socket=Path("/s"))


@pytest.mark.parametrize("path", ["/run/mysqld/mysqld.sock", "./own.sock", "run/own.sock"])
def test_a_server_can_be_named_by_its_socket(path: str) -> None:
    assert build_login(path).to_fields() == build_login(socket=Path(path)).to_fields()
    with pytest.raises(UsageError, match="--server and --socket name two servers"):
        build_login(path, Path("/run/other.sock"))


@pytest.mark.parametrize(
    ("answer", "name"), [("150018", "PostgreSQL 15.18"), ("180000", "PostgreSQL 18.0"), ("130023", "PostgreSQL 13.23")]
)
def test_a_version_of_postgresql(answer: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "fetch_scalar", lambda connection, statement: answer)
    assert sql.read_version(SimpleNamespace(family="postgresql")) == name  # type: ignore[arg-type]
