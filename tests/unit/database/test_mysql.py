# SPDX-License-Identifier: Apache-2.0
"""MariaDB and MySQL as private servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from powerprof.database import mysql, sandbox
from powerprof.database.builds import ServerBuild
from powerprof.database.connections import SPARE_FILES
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError
from powerprof.system.programs import Finished

MARIADB = ServerBuild(Path("/usr/sbin/mariadbd"), "mariadb", (10, 11, 9), "Ver 10.11.9-MariaDB")


def _build(family: Any, *version: int, **more: Any) -> ServerBuild:
    numbers: Any = (*version, 0, 0)[:3]
    return ServerBuild(Path("/opt/server/bin/program"), family, numbers, "Ver", **more)


def find(monkeypatch: pytest.MonkeyPatch, find: Any, output: str, code: int = 0) -> ServerBuild:
    """Return the server of a program that prints `output`."""
    monkeypatch.setattr(sandbox, "run", lambda *_, **__: Finished(("x",), code, output, "an error\n"))
    build: ServerBuild = find(Path("/bin/sh"))
    return build


def _initialise(build: ServerBuild) -> list[str]:
    """Return the command that creates empty data in /t/data."""
    ((command, stdin),) = mysql.build_initialise_steps(build, Path("/t/data"))
    assert stdin == ""
    return list(command)


def test_a_mariadb_server_has_files_and_connections_for_its_clients() -> None:
    words = mysql.build_command_line(MARIADB, {"sync_binlog": 3, "autocommit": False}, 101, Path("/t/s"))
    assert words[:3] == ["--no-defaults", "--skip-name-resolve", "--performance-schema=ON"]
    assert words[3:5] == ["--max-connections=125", f"--open-files-limit={101 + SPARE_FILES}"]
    assert words.index("--autocommit=OFF") < words.index("--datadir=/t/s/data")
    assert {"--local-infile=OFF", "--secure-file-priv=/t/s/tmp", "--socket=/t/s/mysqld.sock"} <= set(words)
    few = mysql.build_command_line(MARIADB, {}, 100, Path("/t/s"))
    assert not any("max-connections" in word for word in few)
    old = msgspec.structs.replace(MARIADB, version=(10, 4, 9))
    assert "--performance-schema=ON" not in mysql.build_command_line(old, {}, 100, Path("/t/s"))
    assert mysql.build_network_options(None, "::1") == ["--skip-networking"]
    assert mysql.build_network_options(4001, "127.0.0.9") == ["--port=4001", "--bind-address=127.0.0.9"]


def test_settings_are_options_in_their_order() -> None:
    settings = {
        "flush": True,
        "big-tables": False,
        "skip-x": None,
        "replicate-do-db": ["a", "b"],
        "sort_buffer_size": 7,
    }
    options = ["--flush=ON", "--big-tables=OFF", "--skip-x", "--replicate-do-db=a", "--replicate-do-db=b"]
    assert mysql.format_settings(settings) == [*options, "--sort_buffer_size=7"]
    for name, value in (("flush", "a\nb"), ("flush", "a\0"), ("a b", 1), ("9", 1)):
        with pytest.raises(UsageError):
            mysql.format_settings({name: value})


def test_the_account_is_local_and_the_password_is_random() -> None:
    one, other = (mysql.build_login(Path("/t/s")) for _ in range(2))
    assert one.socket == Path("/t/s/mysqld.sock") and len(one.password) >= 32 and one.password != other.password


def test_empty_data_are_made_by_the_familys_own_program(tmp_path: Path) -> None:
    command = _initialise(_build("mysql", 8, 0, 36, basedir=tmp_path))
    assert command[0] == "/opt/server/bin/program" and command[-1] == "--initialize-insecure"
    assert f"--basedir={tmp_path}" in command and "--datadir=/t/data" in command
    mariadb = _build("mariadb", 10, 5, 0, basedir=tmp_path)
    with pytest.raises(CapabilityError, match="mariadb-install-db is not installed"):
        _initialise(mariadb)
    for place in ("bin/mysql_install_db", "scripts/mysql_install_db", "bin/mariadb-install-db"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).touch()
        assert _initialise(mariadb)[0] == str(tmp_path / place)
    inside = _build("mariadb", 10, 5, 0, root=tmp_path)
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/mysql_install_db").touch()
    command = _initialise(inside)
    assert command[0] == "/usr/bin/mysql_install_db" and "--auth-root-authentication-method=socket" in command


@pytest.mark.parametrize(
    ("family", "version", "native", "grants", "emptied", "root_changed"),
    [
        ("mariadb", (10, 11, 9), False, False, False, False),
        ("mysql", (5, 7, 5), False, True, True, False),
        ("mysql", (5, 7, 6), True, False, False, True),
        ("mysql", (8, 3, 99), True, False, False, True),
        ("mysql", (8, 4, 0), False, False, False, True),
    ],
)
def test_only_powerprofs_account_may_log_in(
    family: str, version: tuple[int, ...], native: bool, grants: bool, emptied: bool, root_changed: bool
) -> None:
    text = mysql._write_account_sql(_build(family, *version), "powerprof", "s3cret")
    assert text.startswith("SET SESSION sql_log_bin=0;\n") and text.endswith(";\n")
    assert ("IDENTIFIED WITH mysql_native_password BY 's3cret'" in text) is native
    assert text.count("IDENTIFIED BY 's3cret' WITH GRANT OPTION;") == 2 * grants
    assert text.count("CREATE USER IF NOT EXISTS") == 2 * (not grants)
    assert ("DELETE FROM mysql.user WHERE user <> 'powerprof';\nFLUSH PRIVILEGES;" in text) is emptied
    assert ("ALTER USER 'root'@'localhost' IDENTIFIED BY 's3cret';" in text) is root_changed
    assert text.count("'powerprof'@'localhost'") == text.count("'powerprof'@'127.0.0.1'") == (1 if grants else 2)


@pytest.mark.parametrize(
    ("program", "messages", "base"),
    [
        ("opt/db/bin/mysqld", "opt/db/share/english/errmsg.sys", "opt/db"),
        ("opt/db/sbin/mariadbd", "opt/db/share/mysql/english/errmsg.sys", "opt/db"),
        ("opt/db/bin/mysqld", "opt/db/share/nothing", None),
        ("build/sql/mysqld", "build/share/english/errmsg.sys", None),
    ],
)
def test_the_base_directory_is_that_of_an_unpacked_server(
    tmp_path: Path, program: str, messages: str, base: str | None
) -> None:
    for name in (program, messages):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert mysql._find_basedir(tmp_path / program) == (None if base is None else tmp_path / base)
    assert mysql._find_basedir(Path("/usr/sbin/mariadbd")) is None


@pytest.mark.parametrize(
    ("output", "name"),
    [
        ("mariadbd  Ver 10.11.9-MariaDB-log for Linux", "MariaDB 10.11.9"),
        ("mysqld  Ver 8.0.36 for Linux on x86_64 (MySQL Community Server)", "MySQL 8.0.36"),
        ("mysqld  Ver 5.7.6-m16 for Linux", "MySQL 5.7.6"),
    ],
)
def test_a_program_prints_its_product_and_version(monkeypatch: pytest.MonkeyPatch, output: str, name: str) -> None:
    build = find(monkeypatch, mysql.find_build, f"{output}\n")
    assert (build.name, build.text) == (name, output)
    with pytest.raises(PowerprofError, match=r"is not a MariaDB or MySQL server .an error"):
        find(monkeypatch, mysql.find_build, output, 1)


def test_an_old_mysql_needs_its_empty_data(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CapabilityError, match=r"is MySQL 5.7.5: its empty data directory"):
        find(monkeypatch, mysql.find_build, "mysqld  Ver 5.7.5 for Linux")


@pytest.mark.parametrize("output", ["", "mysqld Ver 8.0", "sh 5.2"])
def test_another_program_is_no_server(monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    with pytest.raises(PowerprofError, match="is not a MariaDB or MySQL server"):
        find(monkeypatch, mysql.find_build, output)
