# SPDX-License-Identifier: Apache-2.0
"""`run`, `compare` and `sweep` on a PostgreSQL of the user's: their database, its guard, and what is left."""

from __future__ import annotations

import json

import pytest

from powerprof.database import sql
from powerprof.database.base import StatementError
from powerprof.database.private_server import PrivateServer
from tests.conftest import Cli

_DATABASE = "powerprof_pg"
_WINDOWS = ("--duration", "0.3", "--meter", "none", "--json", "-")


def list_databases(server: PrivateServer) -> list[str]:
    with server.connect() as connection:
        return [name for (name,) in sql.fetch_rows(connection, "SELECT datname FROM pg_database ORDER BY 1")]


@pytest.mark.parametrize(
    "words",
    [
        ["run", "pg:sixteen-connections", "--repeat", "2"],
        ["run", "pg:index", "--repeat", "2"],
        ["compare", "pg:index", "pg:no-index", "--pairs", "3"],
        ["compare", "pg:pgbench-index", "pg:pgbench-no-index", "--pairs", "3"],
        ["sweep", "pg:index", "--clients", "1,2", "--repeat", "3"],
    ],
    ids=" ".join,
)
def test_workloads_leave_nothing_on_the_server(
    powerprof_cli: Cli, postgresql_server: PrivateServer, words: list[str], sysbench: None
) -> None:
    before = list_databases(postgresql_server)
    done = powerprof_cli([*words, "--server", f"powerprof@{postgresql_server.socket}", *_WINDOWS])
    assert done.code == 0, done.err
    assert json.loads(done.out)["ended"] is None
    assert list_databases(postgresql_server) == before
    assert postgresql_server.alive()


def test_a_database_of_another_maker_is_refused_and_stays(powerprof_cli: Cli, postgresql_server: PrivateServer) -> None:
    with postgresql_server.connect() as connection:
        sql.execute(connection, f"CREATE DATABASE {_DATABASE}")
    try:
        words = ["run", "pg:index", "--repeat", "2", "--server", f"powerprof@{postgresql_server.socket}", *_WINDOWS]
        refused = powerprof_cli(words)
        assert refused.code == 2
        assert f"the server has a schema {_DATABASE} that powerprof did not make" in refused.err
        assert _DATABASE in list_databases(postgresql_server)
    finally:
        with postgresql_server.connect() as connection:
            sql.execute(connection, f"DROP DATABASE {_DATABASE}")


def test_no_other_account_enters_the_database_of_a_workload(postgresql_server: PrivateServer) -> None:
    """Functions of another account in the schema `public` would otherwise run with the rights of this one."""
    dialect = sql.dialect_of_server(postgresql_server)
    dialect.create_schema(postgresql_server, _DATABASE)
    try:
        with postgresql_server.connect(database=_DATABASE) as connection:
            acl = sql.fetch_scalar(connection, f"SELECT datacl FROM pg_database WHERE datname = '{_DATABASE}'")
            assert acl == "{powerprof=CTc/powerprof}"
            assert (
                sql.fetch_scalar(connection, f"SELECT has_database_privilege('pg_monitor', '{_DATABASE}', 'CONNECT')")
                == "f"
            )
        assert dialect.is_own(postgresql_server, _DATABASE) is True
    finally:
        dialect.drop_schema(postgresql_server, _DATABASE)
    assert dialect.is_own(postgresql_server, _DATABASE) is None


def test_sessions_of_workloads_have_no_settings_of_others(postgresql_server: PrivateServer) -> None:
    from powerprof.database.postgres_wire import WORKLOAD_OPTIONS

    login = postgresql_server.login.with_session_options(WORKLOAD_OPTIONS)
    with sql.connect(login) as connection:
        assert sql.fetch_scalar(connection, "SHOW search_path") == "public"
        assert sql.fetch_scalar(connection, "SHOW role") == "none"
        assert sql.fetch_scalar(connection, "SHOW local_preload_libraries") == ""
    with sql.connect(login.with_session_options("-c search_path=")) as connection, pytest.raises(StatementError):
        sql.fetch_scalar(connection, "SELECT * FROM no_such_table")
