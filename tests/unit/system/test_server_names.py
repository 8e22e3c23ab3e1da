# SPDX-License-Identifier: Apache-2.0
"""Names of database servers."""

from __future__ import annotations

import pytest

from powerprof.system.server_names import (
    guess_product,
    is_mysql_program,
    is_postgres_program,
    is_server_program,
    is_starter,
    list_meant_programs,
)


@pytest.mark.parametrize(
    ("name", "is_server"),
    [
        *[(name, True) for name in ("mysqld", "mariadbd", "mysqld-debug", "mariadbd-debug", "mysqld-max")],
        *[(name, False) for name in ("mysqldump", "mysqld_safe", "mariadbd-safe", "mariadbd-safe-helper")],
        *[(name, False) for name in ("mysqld_multi", "mysqld_exporter", "postgres", "mysql", "", None)],
    ],
)
def test_servers_are_recognised_by_their_names(name: str | None, is_server: bool) -> None:
    assert is_mysql_program(name) is is_server
    assert is_server_program(name) is (is_server or is_postgres_program(name))
    assert not (is_server and is_starter(name))


@pytest.mark.parametrize(
    ("name", "is_server"), [("postgres", True), ("postmaster", True), ("postgres-exporter", False)]
)
def test_servers_of_postgresql_are_recognised_by_their_names(name: str, is_server: bool) -> None:
    assert is_postgres_program(name) is is_server_program(name) is is_server


@pytest.mark.parametrize("word", ["mysql", "mysqld", "mariadb", "mariadbd", "postgresql", "postmaster"])
def test_a_typed_name_of_a_product_means_servers(word: str) -> None:
    assert all(is_server_program(program) for program in list_meant_programs(word))
    assert list_meant_programs("nginx") == ("nginx",)


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("postgres", "PostgreSQL"),
        ("mariadbd", "MariaDB"),
        ("mariadbd-debug", "MariaDB"),
        ("mysqld", "MySQL or MariaDB"),
        ("mysqld-max", "MySQL or MariaDB"),
    ],
)
def test_a_name_shows_a_product(name: str, product: str) -> None:
    assert guess_product(name) == product
