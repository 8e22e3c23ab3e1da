# SPDX-License-Identifier: Apache-2.0
"""Server programs: names, abilities, accounts and templates by family and version."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from powerprof.database import builds, products
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.programs import Finished


def _build(family: Any, *version: int, **more: Any) -> builds.ServerBuild:
    numbers: Any = (*version, 0, 0)[:3]
    return builds.ServerBuild(Path("/opt/server/bin/program"), family, numbers, "Ver", **more)


@pytest.mark.parametrize(
    ("family", "version", "name"),
    [
        ("mariadb", (10, 11, 19), "MariaDB 10.11.19"),
        ("mysql", (8, 0, 36), "MySQL 8.0.36"),
        ("postgresql", (15, 18, 7), "PostgreSQL 15.18"),
    ],
)
def test_a_server_has_its_products_name(family: str, version: tuple[int, ...], name: str) -> None:
    assert _build(family, *version).name == name


@pytest.mark.parametrize(
    ("family", "version", "names"),
    [
        ("mariadb", (10, 5, 0), True),
        ("mariadb", (10, 4, 99), False),
        ("mysql", (5, 7, 5), True),
        ("mysql", (5, 7, 4), False),
        ("mysql", (8, 0, 0), True),
    ],
)
def test_threads_have_kernel_numbers_since_a_release(family: str, version: tuple[int, ...], names: bool) -> None:
    assert _build(family, *version).names_threads is names


def test_the_key_of_a_template_changes_with_the_program(tmp_path: Path) -> None:
    binary = tmp_path / "bin/mysqld"
    binary.parent.mkdir()
    binary.write_bytes(b"program")
    os.utime(binary, ns=(0, 10**18))
    build = builds.ServerBuild(binary, "mysql", (8, 0, 36), "Ver 8.0.36", tmp_path)
    key = build.key
    assert key.startswith("mysql-8.0.36-")
    assert msgspec.structs.replace(build, text="Ver 8.0.36-log").key != key
    os.utime(binary, ns=(0, 10**18 + 1))
    assert build.key != key
    os.utime(binary, ns=(0, 10**18))
    binary.write_bytes(b"Program!")
    os.utime(binary, ns=(0, 10**18))
    assert build.key != key
    binary.write_bytes(b"program")
    os.utime(binary, ns=(0, 10**18))
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    assert builds.ServerBuild(moved / "bin/mysqld", "mysql", (8, 0, 36), "Ver 8.0.36", moved).key == key, "it was moved"
    assert builds.ServerBuild(moved / "bin/mysqld", "mysql", (8, 0, 36), "Ver 8.0.36").key != key
    moved.rename(tmp_path)


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
    text = builds.write_account_sql(_build(family, *version), "powerprof", "s3cret")
    assert text.startswith("SET SESSION sql_log_bin=0;\n") and text.endswith(";\n")
    assert ("IDENTIFIED WITH mysql_native_password BY 's3cret'" in text) is native
    assert text.count("IDENTIFIED BY 's3cret' WITH GRANT OPTION;") == 2 * grants
    assert text.count("CREATE USER IF NOT EXISTS") == 2 * (not grants)
    assert ("DELETE FROM mysql.user WHERE user <> 'powerprof';\nFLUSH PRIVILEGES;" in text) is emptied
    assert ("ALTER USER 'root'@'localhost' IDENTIFIED BY 's3cret';" in text) is root_changed
    assert text.count("'powerprof'@'localhost'") == text.count("'powerprof'@'127.0.0.1'") == (1 if grants else 2)


def test_empty_data_are_made_by_the_familys_own_program(tmp_path: Path) -> None:
    mysql = builds.build_initialise_command(_build("mysql", 8, 0, 36, basedir=tmp_path), Path("/t/data"))
    assert mysql[0] == "/opt/server/bin/program" and mysql[-1] == "--initialize-insecure"
    assert f"--basedir={tmp_path}" in mysql and "--datadir=/t/data" in mysql
    mariadb = _build("mariadb", 10, 5, 0, basedir=tmp_path)
    with pytest.raises(CapabilityError, match="mariadb-install-db is not installed"):
        builds.build_initialise_command(mariadb, Path("/t/data"))
    for place in ("bin/mysql_install_db", "scripts/mysql_install_db", "bin/mariadb-install-db"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).touch()
        assert builds.build_initialise_command(mariadb, Path("/t/data"))[0] == str(tmp_path / place)
    inside = _build("mariadb", 10, 5, 0, root=tmp_path)
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/mysql_install_db").touch()
    command = builds.build_initialise_command(inside, Path("/t/data"))
    assert command[0] == "/usr/bin/mysql_install_db" and "--auth-root-authentication-method=socket" in command
    assert builds.on_host(Path("/usr/bin/x"), tmp_path) == tmp_path / "usr/bin/x"
    assert builds.on_host(Path("/usr/bin/x"), None) == Path("/usr/bin/x")


@pytest.mark.parametrize(
    ("library", "hint"), [("libaio.so.1", "apt install libaio1"), ("libodd.so.9", "apt-file search libodd.so.9")]
)
def test_a_missing_library_has_its_package(library: str, hint: str) -> None:
    output = f"mysqld: error while loading shared libraries: {library}: cannot open shared object file"
    with pytest.raises(CapabilityError, match=f"needs {library}") as error:
        builds.raise_missing_library(output, Path("/mysqld"))
    assert error.value.hint == hint
    builds.raise_missing_library("another error", Path("/mysqld"))


def test_a_file_that_is_no_program_is_refused(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch(0o644)
    for file, reason in ((plain, "not an executable file"), (tmp_path / "none", "no such file")):
        with pytest.raises(PowerprofError, match=reason):
            builds.check_program(file)
        with pytest.raises(PowerprofError, match=reason):
            builds.find_build(file)
    builds.check_program(Path("/bin/sh"))


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
    assert builds._find_basedir(tmp_path / program) == (None if base is None else tmp_path / base)
    assert builds._find_basedir(Path("/usr/sbin/mariadbd")) is None


def _find(monkeypatch: pytest.MonkeyPatch, find: Any, output: str, code: int = 0) -> builds.ServerBuild:
    """Return the server of a program that prints `output`."""
    monkeypatch.setattr(builds.sandbox, "run", lambda *_, **__: Finished(("x",), code, output, "an error\n"))
    build: builds.ServerBuild = find(Path("/bin/sh"))
    return build


@pytest.mark.parametrize(
    ("output", "name"),
    [
        ("mariadbd  Ver 10.11.9-MariaDB-log for Linux", "MariaDB 10.11.9"),
        ("mysqld  Ver 8.0.36 for Linux on x86_64 (MySQL Community Server)", "MySQL 8.0.36"),
        ("mysqld  Ver 5.7.6-m16 for Linux", "MySQL 5.7.6"),
    ],
)
def test_a_program_prints_its_product_and_version(monkeypatch: pytest.MonkeyPatch, output: str, name: str) -> None:
    build = _find(monkeypatch, builds.find_build, f"{output}\n")
    assert (build.name, build.text) == (name, output)
    with pytest.raises(PowerprofError, match=r"is not a MariaDB or MySQL server .an error"):
        _find(monkeypatch, builds.find_build, output, 1)


@pytest.mark.parametrize("output", ["", "mysqld Ver 8.0", "sh 5.2"])
def test_another_program_is_no_server(monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    with pytest.raises(PowerprofError, match="is not a MariaDB or MySQL server"):
        _find(monkeypatch, builds.find_build, output)
    with pytest.raises(PowerprofError, match="is not a PostgreSQL server"):
        _find(monkeypatch, products.find_postgres_build, output)


def test_an_old_mysql_needs_its_empty_data(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CapabilityError, match=r"is MySQL 5.7.5: its empty data directory"):
        _find(monkeypatch, builds.find_build, "mysqld  Ver 5.7.5 for Linux")


@pytest.mark.parametrize(
    ("output", "version"),
    [("postgres (PostgreSQL) 15.18 (Debian)", (15, 18, 0)), ("postgres (PostgreSQL) 18beta1", (18, 0, 0))],
)
def test_postgres_has_two_numbers(monkeypatch: pytest.MonkeyPatch, output: str, version: tuple[int, int, int]) -> None:
    assert _find(monkeypatch, products.find_postgres_build, output).version == version
    with pytest.raises(PowerprofError, match=r"is not a PostgreSQL server .an error"):
        _find(monkeypatch, products.find_postgres_build, output, 1)
