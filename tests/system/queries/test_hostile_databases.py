# SPDX-License-Identifier: Apache-2.0
"""Databases whose owner wants powerprof, who is a superuser, to execute what the owner has made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from powerprof.database import pg_stat_statements, sql
from powerprof.database.base import Login, StatementError
from powerprof.database.builds import ServerBuild
from powerprof.database.pg_stat_statements import find_statistics_database, read_statistics
from powerprof.database.private_server import PrivateServer
from powerprof.diagnosis import server_queries
from tests.conftest import Cli, each_release
from tests.programs.option_files import write_options
from tests.system.live.test_export import exporter, scrape
from tests.system.queries.mariadb_work import asking
from tests.system.queries.postgres_work import client, initialised_with, run

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn

pytestmark = pytest.mark.usefixtures("root_bpf")
_VIEWS = ("class", "database", "depend", "extension", "namespace", "roles", "settings", "stat_activity", "tables")
_FUNCTIONS = {
    "left(text, int)": "text",
    "current_setting(text)": "text",
    "current_setting(text, boolean)": "text",
    "now()": "timestamptz",
    **{f"same({kind}, {other})": "boolean" for kind, other in (pair.split("=") for pair in (
        *('name=name', 'name=text', 'text=text', 'oid=oid', 'oid=regclass', '"char"="char"', '"char"=text', "int=int"),
    ))},
}  # fmt: skip


def traps(schema: str) -> Iterator[str]:
    """Objects in a schema with the names of those that powerprof uses: each counts that it was executed, in a sequence,
    which no rollback sets back, and makes `eve` a superuser if a superuser executes it."""
    yield f"CREATE SEQUENCE {schema}.executed"
    yield f"GRANT ALL ON {schema}.executed TO PUBLIC"
    yield (
        f"CREATE FUNCTION {schema}.mark() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN"
        f" PERFORM pg_catalog.nextval('{schema}.executed');"
        " IF pg_catalog.current_setting('is_superuser') OPERATOR(pg_catalog.=) 'on' THEN"
        " ALTER ROLE eve SUPERUSER; END IF; RETURN true; END $$"
    )
    for name in _VIEWS:
        yield f"CREATE VIEW {schema}.pg_{name} AS SELECT x.* FROM pg_catalog.pg_{name} x WHERE {schema}.mark()"
        yield f"GRANT SELECT ON {schema}.pg_{name} TO PUBLIC"
    for name, result in _FUNCTIONS.items():
        body = f"BEGIN PERFORM {schema}.mark(); RETURN NULL; END"
        yield f"CREATE FUNCTION {schema}.{name} RETURNS {result} LANGUAGE plpgsql AS $$ {body} $$"
        if name.startswith("same"):
            left, right = name.removeprefix("same(").removesuffix(")").split(", ")
            yield f"CREATE OPERATOR {schema}.= (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = {schema}.same)"
    step = f"'SELECT 1::bigint FROM {schema}.mark()'"
    yield f"CREATE FUNCTION {schema}.step(bigint) RETURNS bigint LANGUAGE sql AS {step}"
    yield f"CREATE AGGREGATE {schema}.count(*) (SFUNC = {schema}.step, STYPE = bigint, INITCOND = '0')"
    yield f"CREATE DOMAIN {schema}.regclass AS pg_catalog.regclass CHECK ({schema}.mark())"
    yield f"CREATE DOMAIN {schema}.timestamptz AS pg_catalog.timestamptz CHECK ({schema}.mark())"


_TRAPPED = (("aaa", "evil"), ("ours", "public"))


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    """The superuser `root`, the account `eve` with her database `aaa`, and a database `ours` of root's in whose schema
    `public` everybody may create objects and whose search_path begins with it."""
    with pytest.MonkeyPatch.context() as patched:
        initialised_with(
            patched,
            [
                *("CREATE ROLE root SUPERUSER LOGIN", "CREATE ROLE eve LOGIN"),
                *("CREATE DATABASE aaa OWNER eve", "CREATE DATABASE ours OWNER root"),
            ],
            "local all root peer\nlocal all eve trust\n",
        )
        settings = {"shared_preload_libraries": "pg_stat_statements", "autovacuum": False}
        with PrivateServer(family="postgresql", settings=settings) as started:
            with client(started, "root", "ours") as root, client(started, "eve", "ours") as eve:
                run(root, "CREATE EXTENSION pg_stat_statements")
                run(root, "GRANT CREATE ON SCHEMA public TO PUBLIC")
                run(root, "ALTER DATABASE ours SET search_path = public, pg_catalog")
                for statement in traps("public"):
                    run(eve, statement)
            with client(started, "eve", "aaa") as eve:
                run(eve, "CREATE SCHEMA evil")
                run(eve, "GRANT USAGE ON SCHEMA evil TO PUBLIC")
                run(eve, "ALTER DATABASE aaa SET search_path = evil, pg_catalog")
                for statement in traps("evil"):
                    run(eve, statement)
            yield started


@pytest.fixture
def eve(server: PrivateServer) -> Iterator[PGconn]:
    """A client of `eve` in her database, whose title has the database's name; afterwards she must be what she was."""
    with client(server, "root", "postgres") as root:
        run(root, "ALTER ROLE eve NOSUPERUSER")
    for database, schema in _TRAPPED:
        with client(server, "eve", database) as handle:
            run(handle, f"SELECT pg_catalog.setval('{schema}.executed', 1, false)")
    with client(server, "eve", "aaa") as handle:
        yield handle
    assert executed(server) == {"aaa": False, "ours": False}
    with client(server, "root", "postgres") as root:
        assert run(root, "SELECT rolsuper FROM pg_roles WHERE rolname = 'eve'") == b"f", "eve became a superuser"


def executed(server: PrivateServer) -> dict[str, bool]:
    """Return by database whether one of its traps was executed."""
    called = {}
    for database, schema in _TRAPPED:
        with client(server, "eve", database) as handle:
            called[database] = run(handle, f"SELECT is_called FROM {schema}.executed") == b"t"
    return called


def login_of(server: PrivateServer, user: str = "root", session_options: str | None = None) -> Login:
    return Login(user=user, socket=server.socket, family="postgresql", session_options=session_options)


@pytest.mark.usefixtures("eve")
@pytest.mark.parametrize("method", ["probes", "samples"])
def test_queries_executes_nothing_of_a_database(powerprof_cli: Cli, server: PrivateServer, method: str) -> None:
    words = ["queries", "--pid", str(server.pid), "--duration", "1", "--method", method, "--no-save", "--json", "-"]
    with client(server, "eve", "ours"):
        result = powerprof_cli(words)
    assert result.code == 0, result.err
    # The database of a superuser was asked in spite of its search_path.
    assert any("come from pg_stat_statements" in note for note in json.loads(result.out)["notes"])


@pytest.mark.usefixtures("eve", "asks_every_server")
def test_watch_and_export_execute_nothing_of_a_database(powerprof_cli: Cli, server: PrivateServer) -> None:
    result = powerprof_cli(["watch", "--system", "--interval", "1", "--count", "1"])
    assert result.code == 0, result.err
    with (
        client(server, "eve", "ours"),
        exporter(powerprof_cli, "--statements", str(server.pid), "--interval", "1", limited=False) as (port, _),
    ):
        assert any(name.startswith("powerprof_statement") for name, _ in scrape(port))


@pytest.mark.usefixtures("eve")
@pytest.mark.parametrize(
    "command",
    ["diagnose --no-save --duration 1", "cure", pytest.param("attribute --no-save", marks=pytest.mark.nightly)],
)
def test_other_commands_execute_nothing_of_a_database(powerprof_cli: Cli, server: PrivateServer, command: str) -> None:
    result = powerprof_cli([*command.split(), "--pid", str(server.pid)])
    assert "Traceback" not in result.err
    assert result.code in (0, 1)


@pytest.mark.usefixtures("eve")
@pytest.mark.parametrize(
    ("who", "altered"), [("eve", "DATABASE aaa"), ("root", "ROLE root"), ("root", "ROLE root IN DATABASE aaa")]
)
def test_a_session_keeps_the_settings_of_others_out(server: PrivateServer, who: str, altered: str) -> None:
    shown = "SELECT current_user, session_user, pg_catalog.current_setting('search_path')"
    names = {"search_path": "evil, pg_catalog", "role": "eve", "session_authorization": "eve"}
    with client(server, who, "postgres") as handle:
        for name, value in names.items():
            run(handle, f"ALTER {altered} SET {name} = {value}")
    try:
        with sql.connect(login_of(server).in_database("aaa")) as connection:
            assert sql.fetch_rows(connection, shown) == [("root", "root", "")]
        with sql.connect(login_of(server, session_options="").in_database("aaa")) as connection:
            assert sql.fetch_rows(connection, shown) == [("eve", "root", "evil, pg_catalog")], "the settings do no harm"
        if who == "eve":
            # A library of the folder for plugins, which is loaded as the session begins.
            with client(server, who, "postgres") as handle:
                run(handle, f"ALTER {altered} SET local_preload_libraries = absent")
            sql.connect(login_of(server).in_database("aaa")).close()
    finally:
        with client(server, who, "postgres") as handle:
            run(handle, "SET ROLE NONE")
            for name in (*names, "local_preload_libraries"):
                run(handle, f"ALTER {altered} RESET {name}")
        with client(server, "eve", "postgres") as handle:
            run(handle, "ALTER DATABASE aaa SET search_path = evil, pg_catalog")


@pytest.mark.usefixtures("eve")
@pytest.mark.parametrize("database", ["aaa", "ours"])
def test_statements_are_qualified_also_where_the_search_path_is_hostile(server: PrivateServer, database: str) -> None:
    """The second layer without the first: a session with the settings of the database."""
    login = login_of(server, session_options="-c role=none -c statement_timeout=0").in_database(database)
    with sql.connect(login) as connection:
        assert sql.fetch_scalar(connection, "SHOW search_path").startswith(("evil", "public"))
        assert bool(read_statistics(connection)) == (database == "ours")
        assert ("ours",) in sql.fetch_rows(connection, pg_stat_statements._SUPERUSER_DATABASES)
        assert sql.fetch_rows(connection, pg_stat_statements._EVENT_TRIGGERS)[0][1] == "on"
        assert sql.dialect_of(connection).read_room(connection)[2] >= 2
        assert sql.fetch_rows(connection, sql._DATABASE.format(database)) == [("t" if database == "ours" else "f",)]
        assert sql.fetch_rows(connection, sql._MARKED) == []


def test_the_traps_are_traps(server: PrivateServer) -> None:
    """What this file relies on: each trap counts when a session with that search_path names it without its schema."""
    login = login_of(server, "eve", "").in_database("ours")
    used = (
        *(f"SELECT 1 FROM pg_{name}" for name in _VIEWS),
        *("SELECT left('a', 1)", "SELECT current_setting('a')", "SELECT current_setting('a', true)", "SELECT now()"),
        *("SELECT count(*)", "SELECT 1 FROM pg_catalog.pg_class WHERE relname = 'x'", "SELECT 1 WHERE 1 = 1"),
        *("SELECT oid FROM pg_catalog.pg_class WHERE relkind = 'v'", "SELECT 'pg_catalog.pg_class'::regclass"),
        "SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace",
    )
    with sql.connect(login) as connection:
        for statement in used:
            sql.execute(connection, "SELECT pg_catalog.setval('public.executed', 1, false)", statement)
            assert sql.fetch_scalar(connection, "SELECT is_called FROM public.executed") == "t", statement
        sql.execute(connection, "SELECT pg_catalog.setval('public.executed', 1, false)")


@pytest.mark.usefixtures("eve")
def test_only_databases_of_superusers_are_connected_to(server: PrivateServer) -> None:
    login = login_of(server)
    found = find_statistics_database(login, ["aaa", "ours"])
    assert found is not None
    assert found.database == "ours"
    assert find_statistics_database(login, ["aaa"]) is None
    with client(server, "root", "postgres") as root:
        run(root, "ALTER DATABASE ours OWNER TO eve")
        try:
            assert find_statistics_database(login, ["aaa", "ours"]) is None
        finally:
            run(root, "ALTER DATABASE ours OWNER TO root")


@pytest.mark.usefixtures("eve")
def test_a_view_that_is_not_the_extensions_is_not_read(server: PrivateServer) -> None:
    """The extension in a schema of eve's, whose view was taken out of it: its name leads to hers."""
    with client(server, "root", "ours") as root, client(server, "eve", "ours") as eve:
        run(root, "DROP EXTENSION pg_stat_statements")
        run(root, "CREATE SCHEMA hers AUTHORIZATION eve")
        run(root, "CREATE EXTENSION pg_stat_statements SCHEMA hers")
        login = login_of(server).in_database("ours")
        try:
            with sql.connect(login) as connection:
                assert read_statistics(connection)
                run(root, "ALTER EXTENSION pg_stat_statements DROP VIEW hers.pg_stat_statements")
                assert read_statistics(connection) == {}
                run(eve, "DROP VIEW hers.pg_stat_statements")
                run(
                    eve,
                    "CREATE VIEW hers.pg_stat_statements AS SELECT 1::oid AS dbid, 'x'::text AS query, 1 AS queryid,"
                    " 1 AS calls, 1 AS rows FROM public.mark()",
                )
                run(eve, "GRANT SELECT ON hers.pg_stat_statements TO PUBLIC")
                assert read_statistics(connection) == {}
        finally:
            run(root, "DROP EXTENSION pg_stat_statements")
            run(root, "DROP SCHEMA hers CASCADE")
            run(root, "CREATE EXTENSION pg_stat_statements SCHEMA public")


@each_release("postgresql-17")
def test_no_trigger_of_a_login_is_executed(historical_build: ServerBuild, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a superuser creates such a trigger, but its function may be replaced by the function's owner."""
    statements = ("CREATE ROLE root SUPERUSER LOGIN", "CREATE ROLE eve LOGIN", "CREATE DATABASE ours OWNER root")
    initialised_with(monkeypatch, statements, "local all root peer\nlocal all eve trust\n")
    settings = {"shared_preload_libraries": "pg_stat_statements"}
    with PrivateServer(build=historical_build, settings=settings) as server, client(server, "root", "ours") as root:
        for statement in (
            "CREATE EXTENSION pg_stat_statements",
            "CREATE SEQUENCE executed",
            "CREATE FUNCTION hers() RETURNS event_trigger LANGUAGE plpgsql"
            " AS $$ BEGIN PERFORM nextval('public.executed'); END $$",
            "ALTER FUNCTION hers() OWNER TO eve",
            "CREATE EVENT TRIGGER of_login ON login EXECUTE FUNCTION hers()",
        ):
            run(root, statement)
        found = find_statistics_database(login_of(server), ["ours"])
        assert found is not None
        with sql.connect(found) as connection:
            assert read_statistics(connection)
        assert run(root, "SELECT is_called FROM executed") == b"f"
        sql.connect(login_of(server).in_database("ours")).close()
        assert run(root, "SELECT is_called FROM executed") == b"t", "the trigger is none"


_NATIVE = {
    **dict.fromkeys(("connection_id()", "user()", "version()", "now()", "current_user()"), "INT"),
    **dict.fromkeys(
        ("left(a TEXT, b INT)", "md5(a TEXT)", "concat(a TEXT, b TEXT)", "get_lock(a TEXT, b INT)"), "TEXT"
    ),
    **dict.fromkeys(("is_free_lock(a TEXT)", "count(a INT)", "sum(a INT)", "max(a INT)", "min(a INT)"), "INT"),
    **dict.fromkeys(("substring(a TEXT, b INT, c INT)", "substring_index(a TEXT, b TEXT, c INT)"), "TEXT"),
    "timestampdiff(a INT, b DATETIME, c DATETIME)": "INT",
}
_TABLES = ("threads", "processlist", "events", "schemata", "tables", "user_privileges", "global_status", "user")
_MARKED = "SELECT who FROM evil.executed"


def mysql_traps() -> Iterator[str]:
    """Objects of `eve` in her schema with the names of those that powerprof uses: each notes any other account."""
    yield "CREATE TABLE evil.executed (who TEXT)"
    yield "CREATE TABLE evil.t (id INT PRIMARY KEY, n INT)"
    yield (
        "CREATE FUNCTION evil.mark() RETURNS INT SQL SECURITY INVOKER BEGIN IF CURRENT_USER() NOT LIKE 'eve@%' THEN"
        " INSERT INTO evil.executed VALUES (CURRENT_USER()); END IF; RETURN 1; END"
    )
    for name, result in _NATIVE.items():
        function = f"`{name.replace('(', '`(', 1)}"
        yield f"CREATE FUNCTION evil.{function} RETURNS {result} SQL SECURITY INVOKER RETURN evil.mark()"
    for name in _TABLES:
        yield f"CREATE SQL SECURITY INVOKER VIEW evil.{name} AS SELECT id, n, evil.mark() FROM evil.t WHERE evil.mark()"
    yield "CREATE TRIGGER evil.b BEFORE INSERT ON evil.t FOR EACH ROW SET NEW.n = evil.mark()"
    yield "CREATE EVENT evil.tick ON SCHEDULE EVERY 1 SECOND DO SELECT evil.mark()"
    yield "INSERT INTO evil.t VALUES (1, 1), (2, 2)"


@pytest.fixture(scope="module")
def mariadb() -> Iterator[PrivateServer]:
    """The administrator `root`, who comes by the socket, and `eve` with all rights on the schema `evil`. The view
    mysql.user is one that calls her function, as any account could make it that may change the schema mysql."""
    with PrivateServer(settings={"event_scheduler": True, "performance_schema": True}) as started:
        with started.connect() as connection:
            with suppress(StatementError):
                sql.execute(connection, "INSTALL SONAME 'auth_socket'")
            sql.execute(
                connection,
                "CREATE OR REPLACE USER root@localhost IDENTIFIED VIA unix_socket",
                "GRANT ALL ON *.* TO root@localhost WITH GRANT OPTION",
                *("CREATE USER eve@localhost IDENTIFIED BY 'eve'", "CREATE DATABASE evil"),
                "GRANT ALL ON evil.* TO eve@localhost",
            )
        with sql.connect(started.login.with_account("eve", "eve")) as hers:
            sql.execute(hers, *mysql_traps())
        with started.connect() as connection:
            sql.execute(
                connection,
                # Its LIMIT keeps conditions of the reader out: it is executed whatever is looked for.
                "CREATE OR REPLACE SQL SECURITY INVOKER VIEW mysql.user AS SELECT *, 'Y' AS Repl_slave_priv,"
                " 'N' AS Super_priv FROM mysql.global_priv WHERE evil.mark() LIMIT 1000",
            )
        yield started


@pytest.fixture
def her_client(mariadb: PrivateServer) -> Iterator[None]:
    """A client of `eve` that works; afterwards no other account has executed what is hers."""
    text = "SELECT n FROM evil.t WHERE id = evil.mark()"
    with mariadb.connect() as connection:
        sql.execute(connection, "DELETE FROM evil.executed")
        with asking(
            mariadb, text, "SELECT n FROM threads", login=mariadb.login.with_account("eve", "eve").in_database("evil")
        ):
            yield
        assert sql.fetch_rows(connection, _MARKED) == []


def options_of(server: PrivateServer, folder: Path) -> list[str]:
    """Return the words that name an option file with the hostile schema as the one to begin in."""
    path = write_options(folder / "my.cnf", server.login)
    path.write_text(path.read_text() + "database=evil\n")
    return ["--defaults-file", str(path)]


@pytest.mark.usefixtures("her_client", "mariadbd")
@pytest.mark.parametrize(
    ("command", "given"),
    [
        ("queries --no-save --method samples --duration 1", False),
        ("queries --no-save --explain --yes --duration 1", True),
        ("diagnose --no-save --duration 1", True),
        ("cure", True),
        pytest.param("attribute --no-save", False, marks=pytest.mark.nightly),
    ],
)
def test_commands_execute_nothing_of_a_schema(
    powerprof_cli: Cli, mariadb: PrivateServer, tmp_path: Path, command: str, given: bool
) -> None:
    words = [*command.split(), "--pid", str(mariadb.pid), *(options_of(mariadb, tmp_path) if given else [])]
    result = powerprof_cli(words)
    assert result.code == 0, result.err


@pytest.mark.usefixtures("her_client", "mariadbd", "asks_every_server")
def test_watch_and_export_execute_nothing_of_a_schema(
    powerprof_cli: Cli, mariadb: PrivateServer, tmp_path: Path
) -> None:
    words = ["watch", "--system", "--interval", "1", "--count", "1"]
    result = powerprof_cli([*words, *options_of(mariadb, tmp_path)])
    assert result.code == 0, result.err
    with exporter(powerprof_cli, "--statements", str(mariadb.pid), "--interval", "1", limited=False) as (port, _):
        assert any(name.startswith("powerprof_statement") for name, _ in scrape(port))


@pytest.mark.usefixtures("her_client", "mariadbd")
def test_accounts_of_replicas_are_known_without_mysql_user(mariadb: PrivateServer) -> None:
    with mariadb.connect() as connection:
        sql.execute(
            connection,
            "CREATE OR REPLACE USER `re@'p`@'10.0.0.%', boss@localhost",
            "GRANT REPLICATION SLAVE ON *.* TO `re@'p`@'10.0.0.%', boss@localhost",
            "GRANT SUPER ON *.* TO boss@localhost",
        )
        assert server_queries.read_replica_accounts(connection) == ["re@'p@10.0.0.%"]


@pytest.mark.usefixtures("mariadbd")
def test_the_schemas_traps_are_traps(mariadb: PrivateServer) -> None:
    with mariadb.connect(database="evil") as connection:
        for statement in (*(f"SELECT * FROM {name}" for name in _TABLES), "SELECT evil.connection_id()"):
            sql.execute(connection, "DELETE FROM evil.executed", statement)
            assert sql.fetch_rows(connection, _MARKED), statement
        sql.execute(connection, "DELETE FROM evil.executed", "SELECT * FROM mysql.user")
        assert sql.fetch_rows(connection, _MARKED)
        sql.execute(connection, "DELETE FROM evil.executed")
