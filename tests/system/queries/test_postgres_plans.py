# SPDX-License-Identifier: Apache-2.0
"""Plans of PostgreSQL's statements: by an account that only reads, and without executing code of other accounts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from powerprof.database import sql
from powerprof.database.base import ExplainedStep, Login, StatementError
from powerprof.database.builds import ServerBuild
from powerprof.database.plans import explain
from powerprof.database.private_server import PrivateServer
from powerprof.database.readers import check_only_reads
from powerprof.model.statement_strings import replace_strings
from powerprof.system.errors import PowerprofError
from tests.conftest import Cli
from tests.programs.option_files import write_options
from tests.system.queries.postgres_work import client, initialised_with, other_releases, run

pytestmark = pytest.mark.usefixtures("root_bpf")
_COUNT = "PERFORM nextval('eve.executed'); RETURN {}; END"
# eve may change her functions at any time, and each of these counts its executions.
_TRAPS = (
    *("CREATE SCHEMA eve", "GRANT USAGE ON SCHEMA eve TO PUBLIC", "CREATE SEQUENCE eve.executed"),
    "GRANT ALL ON SEQUENCE eve.executed TO PUBLIC",
    "CREATE FUNCTION eve.mark(bigint) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN "
    + _COUNT.format("$1") + " $$",
    "CREATE FUNCTION eve.is(bigint) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN "
    + _COUNT.format("true") + " $$",
    "CREATE FUNCTION eve.lower(varchar) RETURNS bigint IMMUTABLE LANGUAGE sql AS 'SELECT eve.mark(1)'",
    "CREATE FUNCTION eve.join(numeric, int) RETURNS bigint IMMUTABLE LANGUAGE sql AS 'SELECT eve.mark(1)'",
    "CREATE OPERATOR eve.|| (LEFTARG = numeric, RIGHTARG = int, FUNCTION = eve.join)",
    "CREATE FUNCTION eve.same(int, int) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT eve.is($1)'",
    "CREATE OPERATOR eve.= (LEFTARG = int, RIGHTARG = int, FUNCTION = eve.same)",
    "CREATE DOMAIN eve.posint AS bigint CHECK (eve.is(VALUE))",
    "CREATE TYPE eve.pair AS (a eve.posint)",
    "CREATE TABLE eve.plain (id bigint PRIMARY KEY, n bigint)",
    "CREATE TABLE eve.indexed (id bigint)",
    "CREATE INDEX ON eve.indexed (id) WHERE eve.mark(1) = id",
    "CREATE TABLE eve.checked (id bigint CHECK (eve.mark(2) = 2)) ",
    "CREATE TABLE eve.parent (id bigint) PARTITION BY RANGE (id)",
    "CREATE TABLE eve.child PARTITION OF eve.parent (CHECK (eve.mark(3) = 3)) FOR VALUES FROM (1) TO (9)",
    "CREATE TABLE eve.domains (id eve.posint[])",
    "CREATE TABLE eve.pairs (id eve.pair)",
    "CREATE TABLE eve.secured (id bigint)",
    "CREATE POLICY p ON eve.secured USING (eve.is(id))",
    "ALTER TABLE eve.secured ENABLE ROW LEVEL SECURITY",
    "CREATE VIEW eve.seen AS SELECT eve.mark(4) AS id",
    "CREATE FUNCTION eve.one() RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN " + _COUNT.format("1") + " $$",
)  # fmt: skip
_HOSTILE = {
    "SELECT * FROM orders WHERE eve.mark(1) = 1": "could execute eve.mark, a function of another account",
    "SELECT * FROM orders WHERE 1 OPERATOR(eve.=) 1": "could execute eve.same, a function of another account",
    "SELECT lower(c::varchar) FROM orders": "could execute eve.lower, a function of another account",
    "SELECT 1.5::numeric || 1": "could execute eve.join, a function of another account",
    "SELECT 1::eve.posint": "could execute eve.is, a function of another account",
    "SELECT * FROM eve.indexed": "could execute eve.mark, a function of another account",
    "SELECT * FROM eve.checked": "could execute eve.mark, a function of another account",
    "SELECT * FROM eve.parent": "could execute eve.mark, a function of another account",
    "SELECT * FROM eve.domains WHERE id = '{1}'": "could execute eve.is, a function of another account",
    "SELECT * FROM eve.pairs WHERE id = '(1)'": "could execute eve.is, a function of another account",
    "SELECT 1::text::eve.pair": "could execute eve.is, a function of another account",
    "SELECT * FROM eve.secured": "row security protects its table",
    "SELECT * FROM eve.seen": "it reads a view",
    "SELECT count(*) FROM pg_settings": "it reads a view",
    "SELECT * FROM eve.one()": "could execute eve.one, a function of another account",
    "SELECT 1; SELECT eve.mark(1)": "it may be several statements",
    "SELECT * FROM nowhere": "its tables are not in the schemas that a new session of its account searches",
    "SELECT 1) OR EXISTS (SELECT 2": "the server refused it, error 42601",
}


@contextmanager
def _shop(build: ServerBuild | None = None) -> Iterator[PrivateServer]:
    """A server with the accounts root, which only reads, owner, who has tables, and eve, whose schema has traps."""
    with pytest.MonkeyPatch.context() as patched:
        initialised_with(
            patched,
            [
                *("CREATE ROLE root LOGIN", "CREATE ROLE owner LOGIN", "CREATE ROLE eve LOGIN"),
                *("CREATE ROLE reader LOGIN PASSWORD 'r3ad'", "CREATE DATABASE shop OWNER owner"),
            ],
            "local all root peer\nlocal all owner trust\nlocal all eve trust\nlocal all reader scram-sha-256\n",
        )
        with PrivateServer(family="postgresql", build=build, settings={"autovacuum": False}) as server:
            with client(server, "owner", "shop") as owner:
                run(owner, "CREATE SCHEMA app")
                run(owner, "GRANT USAGE ON SCHEMA app TO PUBLIC")
                run(owner, "GRANT CREATE ON DATABASE shop TO eve")
                run(owner, "CREATE TABLE app.orders AS SELECT n AS id, n % 9 AS state, md5(n::text) AS c"
                    " FROM generate_series(1, 60000) n")  # fmt: skip
                run(owner, "ALTER TABLE app.orders ADD PRIMARY KEY (id)")
                run(owner, "ANALYZE app.orders")
                run(owner, "GRANT SELECT ON app.orders TO PUBLIC")
                run(owner, "ALTER DATABASE shop SET search_path = app, public, eve")
            with client(server, "eve", "shop") as eve:
                for statement in _TRAPS:
                    run(eve, statement)
                run(eve, "GRANT SELECT ON ALL TABLES IN SCHEMA eve TO PUBLIC")
            yield server


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    with _shop() as started:
        yield started


def _explain(server: PrivateServer, text: str) -> list[ExplainedStep]:
    login = Login(user="root", socket=server.socket, family="postgresql")
    return explain(login, replace_strings(text, "postgresql"), "shop", "owner")


def _check_plans(server: PrivateServer) -> None:
    by_key = ExplainedStep("orders", "Index Scan", "orders_pkey", 1, None)
    assert _explain(server, "SELECT c FROM orders WHERE id = 5") == [by_key]
    (step,) = _explain(server, "SELECT c FROM orders WHERE id = $1")
    assert step == by_key
    (step,) = _explain(server, "SELECT c FROM orders WHERE c = 'a' AND id > 0 ORDER BY state")
    assert step == ExplainedStep("orders", "Seq Scan", None, 60_000, "Filter; Sort")
    (step,) = _explain(server, "SELECT * FROM orders ORDER BY c")
    assert step == ExplainedStep("orders", "Seq Scan", None, 60_000, "Sort on disk")
    assert _explain(server, "SELECT now() - interval '1 day', date '2024-01-01', E'\\'', $q$a$q$") == []


def test_plans_of_this_hosts_release(server: PrivateServer) -> None:
    _check_plans(server)


@other_releases
def test_plans_of_other_releases(historical_build: ServerBuild) -> None:
    with _shop(historical_build) as server:
        _check_plans(server)
        _check_traps(server)


_RESET = "SELECT setval('eve.executed', 1, false)"
_EXECUTED = "SELECT is_called FROM eve.executed"


def _check_traps(server: PrivateServer) -> None:
    with client(server, "eve", "shop") as eve:
        for text in ("SELECT eve.mark(1)", "SELECT * FROM eve.indexed WHERE id = 3", "SELECT * FROM eve.seen"):
            run(eve, _RESET)
            run(eve, f"EXPLAIN {text}")
            assert run(eve, _EXECUTED) == b"t", "planning executes this"
        run(eve, _RESET)
    answers = dict.fromkeys(_HOSTILE, "planned")
    for text in _HOSTILE:
        try:
            _explain(server, text)
        except StatementError as error:
            answers[text] = error.message
    assert {text: answer for text, answer in answers.items() if _HOSTILE[text] not in answer} == {}
    with client(server, "eve", "shop") as eve:
        assert run(eve, _EXECUTED) == b"f"


def test_no_code_of_another_account_is_executed(server: PrivateServer) -> None:
    _check_traps(server)
    with client(server, "eve", "shop") as eve:
        assert run(eve, "SELECT count(*) FROM pg_class WHERE relname = 'powerprof_explained'") == b"0"


def test_an_account_that_may_write_makes_no_plan(server: PrivateServer) -> None:
    for login in (Login(user="owner", socket=server.socket, family="postgresql", database="shop"), server.login):
        with sql.connect(login) as connection, pytest.raises(PowerprofError, match="may do more than SELECT"):
            check_only_reads(connection, login)


@contextmanager
def _busy(server: PrivateServer) -> Iterator[None]:
    stop = threading.Event()

    def ask() -> None:
        with client(server, "owner", "shop") as handle:
            while not stop.is_set():
                run(handle, "SELECT count(*) FROM orders WHERE c = 's3cret'")
                time.sleep(0.002)

    worker = threading.Thread(target=ask)
    worker.start()
    try:
        yield
    finally:
        stop.set()
        worker.join()


@pytest.mark.parametrize("words", [[], ["--method", "samples"]])
def test_the_command_shows_generic_plans(powerprof_cli: Cli, server: PrivateServer, words: list[str]) -> None:
    with _busy(server):
        common = ["queries", "--pid", str(server.pid), "--duration", "1", "--no-save", "--json", "-", "--yes", *words]
        result = powerprof_cli([*common, "--explain"])
    assert result.code == 0, result.err
    assert "for each string, as root@" in result.err
    record = json.loads(result.out)
    first = record["statements"][0]
    assert first["text"] == "SELECT count(*) FROM orders WHERE c = ?", record["notes"]
    (step,) = first["plan"]
    assert (step["table"], step["access"], step["rows_count"], step["extra"]) == (
        "orders",
        "Seq Scan",
        60_000,
        "Filter",
    )
    assert "s3cret" not in result.out + result.err


def test_an_account_in_a_file_makes_the_plans(powerprof_cli: Cli, server: PrivateServer, tmp_path: Path) -> None:
    file = write_options(tmp_path / "reader.cnf", Login(user="reader", password="r3ad"))
    with _busy(server):
        common = ["queries", "--pid", str(server.pid), "--duration", "1", "--no-save", "--json", "-", "--yes"]
        result = powerprof_cli([*common, "--explain-as", str(file)])
    assert result.code == 0, result.err
    assert "as reader@" in result.err and "r3ad" not in result.out + result.err
    assert json.loads(result.out)["statements"][0]["plan"]


def test_a_workload_is_refused_with_the_reason(powerprof_cli: Cli, server: PrivateServer) -> None:
    result = powerprof_cli(["queries", "--pid", str(server.pid), "--save-workload", "shop", "--yes"])
    assert result.code == 2
    assert "texts of PostgreSQL often have parameters without their values" in result.err
