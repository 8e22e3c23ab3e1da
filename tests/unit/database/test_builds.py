# SPDX-License-Identifier: Apache-2.0
"""Server programs: names, abilities, accounts and templates by family and version."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from powerprof.database import builds, mysql
from powerprof.system.errors import CapabilityError, PowerprofError


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
            mysql.find_build(file)
    builds.check_program(Path("/bin/sh"))


def test_a_path_of_another_root_is_below_it(tmp_path: Path) -> None:
    assert builds.on_host(Path("/usr/bin/x"), tmp_path) == tmp_path / "usr/bin/x"
    assert builds.on_host(Path("/usr/bin/x"), None) == Path("/usr/bin/x")
