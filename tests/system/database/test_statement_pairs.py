# SPDX-License-Identifier: Apache-2.0
"""Normal forms against the servers' own: digests of performance_schema, query ids of pg_stat_statements."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from powerprof.database import sql
from powerprof.database.base import StatementError
from powerprof.database.builds import ServerBuild
from powerprof.database.private_server import PrivateServer
from powerprof.model.statements import make_key, normalise
from tests.conftest import each_release
from tests.programs.statement_pairs import (
    MARIADB_FINER,
    MYSQL,
    MYSQL_ANSI,
    MYSQL_COARSER,
    MYSQL_FINER,
    MYSQL_REFUSED,
    POSTGRESQL,
    POSTGRESQL_COARSER,
    POSTGRESQL_FINER,
)
from tests.system.queries.postgres_work import DATABASE, shop

_TABLES = (
    "CREATE TABLE t (a INT, b VARCHAR(20))",
    "CREATE TABLE four (a INT, b VARCHAR(20), c VARCHAR(20), d INT)",
    'CREATE TABLE "Attributes" ("InventoryId" INT)',
    'CREATE TABLE "Inventory" ("TenantId" INT)',
    'CREATE TABLE "Users" ("UserId" INT, "IsDeleted" INT)',
)
_DIGESTS = (
    "SELECT DIGEST, DIGEST_TEXT, COUNT_STAR FROM performance_schema.events_statements_summary_by_digest"
    " WHERE SCHEMA_NAME = 'pairs'"
)
Answer = TypeVar("Answer")
Digest = Callable[[str], tuple[str, str]]


def _execute(cursor: Any, text: str) -> None:
    """A statement that fails has a digest too."""
    try:
        cursor.execute(text)
        cursor.fetchall()
    except Exception as error:
        assert "syntax" not in str(error), (text, error)


def wait_for(condition: Callable[[], Answer]) -> Answer:
    """The first answer that is not empty."""
    until = time.monotonic() + 5
    while not (answer := condition()) and time.monotonic() < until:
        time.sleep(0.002)
    return answer


@contextmanager
def digests_of(build: ServerBuild | None) -> Iterator[Callable[[bool], Digest]]:
    """The digest and its text that a server has of a text, with or without ANSI_QUOTES."""
    with PrivateServer(build=build, settings={"performance_schema": "ON"}) as server:
        with server.connect() as connection:
            sql.execute(connection, "CREATE DATABASE pairs")
        with server.connect(database="pairs") as client, server.connect() as observer:
            cursor = client.cursor()
            cursor.execute("SET sql_mode = 'ANSI_QUOTES'")
            for table in _TABLES:
                cursor.execute(table)

            def seen() -> list[Any]:
                return [row for row in sql.fetch_rows(observer, _DIGESTS, columns=3) if row[2]]

            def digest(text: str, ansi: bool) -> tuple[str, str]:
                cursor.execute(f"SET sql_mode = '{'ANSI_QUOTES' if ansi else ''}'")
                wait_for(lambda: any("sql_mode" in str(row[1]) for row in seen()))
                sql.execute(observer, "TRUNCATE performance_schema.events_statements_summary_by_digest")
                _execute(cursor, text)
                # The server counts a statement after its answer.
                rows = wait_for(seen)
                assert len(rows) == 1, (text, rows)
                return str(rows[0][0]), str(rows[0][1])

            yield lambda ansi: lambda text: digest(text, ansi)


def differences(
    build: ServerBuild | None, finer: Collection[tuple[str, str]] = (), refused: Collection[tuple[str, str]] = ()
) -> list[tuple[object, ...]]:
    """Pairs of which the digest is not what the lists say, and texts whose normal form is not that of their digest."""
    wrong: list[tuple[object, ...]] = []
    with digests_of(build) as digest_of:
        for pairs, ansi in ((MYSQL, False), (MYSQL_ANSI, True)):
            for one, other, same in pairs:
                if (one, other) in refused:
                    continue
                (first, text), (second, another) = digest_of(ansi)(one), digest_of(ansi)(other)
                if (first == second) is not (same and (one, other) not in finer):
                    wrong.append((one, other, text, another, "digest"))
                if (key := make_key(normalise(one, ansi_quotes=ansi))) != make_key(text):
                    wrong.append((one, text, key, make_key(text), "key of the digest's text"))
        for one, other, why in MYSQL_COARSER:
            (first, text), (second, another) = digest_of(False)(one), digest_of(False)(other)
            keys = {make_key(text), make_key(another), make_key(normalise(one)), make_key(normalise(other))}
            if first == second or len(keys) > 1:
                wrong.append((one, text, another, keys, why))
    return wrong


def test_texts_with_one_digest_have_one_normal_form(mariadbd: Any) -> None:
    wrong = differences(None, MARIADB_FINER)
    assert not wrong, "\n".join(map(str, wrong))


@each_release("mysql-9.7")
def test_texts_with_one_digest_of_mysql_have_one_normal_form(historical_build: ServerBuild) -> None:
    wrong = differences(historical_build, MYSQL_FINER, MYSQL_REFUSED)
    assert not wrong, "\n".join(map(str, wrong))


@pytest.fixture(scope="module")
def query_id_of() -> Iterator[Callable[[str], str]]:
    """The query id that PostgreSQL has of a text."""
    with shop(settings={"compute_query_id": "on"}) as server, server.connect(database=DATABASE) as client:
        sql.execute(client, "CREATE TABLE t (a int, b text)")

        def query_id(text: str) -> str:
            """VERBOSE shows it, for what EXPLAIN can explain."""
            rows = sql.fetch_rows(client, f"EXPLAIN (VERBOSE, COSTS OFF) {text}", columns=1)
            return next(str(row[0]) for row in rows if str(row[0]).startswith("Query Identifier"))

        yield query_id


def test_texts_with_one_query_id_have_one_normal_form(query_id_of: Callable[[str], str]) -> None:
    wrong = []
    for one, other, same in POSTGRESQL:
        if (query_id_of(one) == query_id_of(other)) is not same:
            wrong.append((one, other, same))
    assert not wrong, "\n".join(map(str, wrong))


def test_normal_forms_differ_from_query_ids_where_it_is_said(query_id_of: Callable[[str], str]) -> None:
    wrong = []
    for pairs, same in ((POSTGRESQL_COARSER, False), (POSTGRESQL_FINER, True)):
        for one, other, why in pairs:
            try:
                if (query_id_of(one) == query_id_of(other)) is not same:
                    wrong.append((one, other, why))
            except StatementError:
                assert "savepoint" in why  # not explained
    assert not wrong, "\n".join(map(str, wrong))
