# SPDX-License-Identifier: Apache-2.0
"""`queries` without probes: samples of the texts in a server's memory."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest

from powerprof.database.builds import ServerBuild
from powerprof.database.private_server import PrivateServer
from powerprof.database.settings import Setting
from powerprof.measure.procfs import process_cpu_ns
from powerprof.model.statements import make_key
from powerprof.queries.join import Parts
from powerprof.queries.records import Statement
from powerprof.queries.target import TracedServer
from powerprof.system.errors import CapabilityError
from powerprof.tracing.statement_samples import MomentSampler, StatementSamples
from tests.conftest import Cli, each_release
from tests.programs.mixes import ALONE, MIX, TIMES, mix_on
from tests.programs.waiting import wait_until
from tests.system.queries.mariadb_work import BURN, BURN_TEXT, a_thousand_connections, asking, execute, prepare
from tests.system.queries.moments import percents
from tests.system.queries.moments import sampled as sampled_at

pytestmark = pytest.mark.usefixtures("root_bpf", "mariadbd", "counts_statements")


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    with PrivateServer(settings={"performance_schema": "OFF", "max_connections": 1100}) as started:
        yield started


def sampled(server: PrivateServer, work: Callable[[], object]) -> tuple[StatementSamples, Parts]:
    """What was met while `work` ran."""
    assert server.pid is not None
    return sampled_at(TracedServer(server.pid, "", None, server.login), work)


def burns_for(pid: int, seconds: float) -> None:
    """Wait until a process has used so much CPU time."""
    before_ns = process_cpu_ns(pid) or 0
    wait_until(lambda: (process_cpu_ns(pid) or 0) - before_ns > 1e9 * seconds, f"{seconds} s of CPU time")


def rows(parts: Parts) -> dict[str, Statement]:
    return {statement.text: statement for statement in parts.statements}


def test_a_mix_of_short_statements_has_the_shares_of_its_statements_alone(
    sysbench: Path, server: PrivateServer
) -> None:
    with mix_on(server) as mix:
        mix.run("--events=5", "--time=0")
        found = []
        moments, parts = sampled(server, lambda: found.append(mix.run("--events=100", "--time=0")))
    (known,) = found
    assert moments.lost_count == moments.unreadable_count == 0
    # A statement alone was measured with the reading of its requests, which the report has in a part of its own.
    reading_s = parts.connections.c0_s / (2 * known.events * sum(TIMES))
    alike = {make_key(one.text): one.c0_s for one in parts.statements}
    alone, mixture = (
        [alike[make_key(text)] + reading_s * known.events * times for text, times in zip(texts, TIMES, strict=True)]
        for texts in (ALONE, MIX)
    )
    for percent, one in zip(known.percent, mixture, strict=True):
        assert 100 * one / sum(mixture) == pytest.approx(percent, abs=3)
    assert sum(alone) == pytest.approx(sum(mixture), rel=0.15)


def test_work_that_is_known_has_its_share_and_sleep_has_none(server: PrivateServer) -> None:
    parts = {"a": 1, "b": 2, "c": 5}

    def work() -> None:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT SLEEP(0.3)")
            for _ in range(60):
                for name, times in parts.items():
                    cursor.execute(f"{BURN.format(20_000 * times)} AS {name}")

    _, found = sampled(server, work)
    shares = percents(found)
    for name, times in parts.items():
        assert shares[f"SELECT BENCHMARK(?, SHA2(?, …)) AS {name}"] == pytest.approx(
            100 * times / sum(parts.values()), abs=3
        )
    assert shares.get("SELECT SLEEP(?)", 0.0) < 1
    first = found.statements[0]
    assert (first.calls_count, first.wakeups_count, first.latency_ms) == (None, None, None)
    assert first.low_percent is not None
    assert first.high_percent is not None
    assert first.low_percent < 62.5 < first.high_percent + 3


def test_prepared_statements_are_told_by_their_texts_also_of_before_the_window(server: PrivateServer) -> None:
    with server.connect() as connection:
        number = prepare(connection, "SELECT BENCHMARK(30000, SHA2('x', 256)) AS kept")
        _, parts = sampled(server, lambda: [execute(connection, number) for _ in range(30)])
    assert percents(parts)["SELECT BENCHMARK(?, SHA2(?, …)) AS kept"] > 95


def test_long_texts_are_told_apart_by_their_ends(server: PrivateServer) -> None:
    columns = ", ".join(f"{number} AS a_long_column_name_{number}" for number in range(500))
    with server.connect() as connection, connection.cursor() as cursor:

        def work() -> None:
            for _ in range(20):
                for end, times in (("one_end", 1), ("other_end", 3)):
                    cursor.execute(
                        f"/* {'trace ' * 900} */ SELECT {columns}, {BURN.format(10_000 * times)[7:]} AS {end}"
                    )

        moments, parts = sampled(server, work)
    ends = {text.rpartition(" ")[2]: share for text, share in percents(parts).items()}
    assert set(ends) == {"one_end", "other_end"}
    assert ends["one_end"] < ends["other_end"]
    assert moments.cut_count == 0


def test_what_a_procedure_executes_is_told_by_its_own_text(server: PrivateServer) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS q")
        cursor.execute("CREATE TABLE IF NOT EXISTS q.kept (n INT)")
        cursor.execute(
            "CREATE PROCEDURE q.inner_ones() BEGIN DECLARE i INT DEFAULT 0; WHILE i < 30 DO"
            " INSERT INTO q.kept SELECT BENCHMARK(20000, SHA2('x', 256)); SET i = i + 1; END WHILE; END"
        )
        _, parts = sampled(server, lambda: cursor.execute("CALL q.inner_ones()"))
    shares = percents(parts)
    (inner,) = [share for text, share in shares.items() if text.startswith("INSERT INTO q.kept")]
    assert inner > 90


def test_what_runs_already_when_the_window_begins_is_told(server: PrivateServer) -> None:
    connection = server.connect()

    def burn() -> None:
        with suppress(pymysql.MySQLError), connection.cursor() as cursor:  # it is killed
            cursor.execute(BURN.format(2_000_000_000))

    worker = threading.Thread(target=burn, daemon=True)
    worker.start()
    assert server.pid is not None
    burns_for(server.pid, 0.1)
    # Not for a time: beside a busy host that has its CPU time late, nothing of it would be met.
    _, parts = sampled(server, lambda: burns_for(server.pid or 0, 0.4))
    assert percents(parts)[BURN_TEXT] > 95
    with server.connect() as other, other.cursor() as cursor:
        cursor.execute(f"KILL {connection.thread_id()}")
    worker.join(30)


def test_a_thousand_connections_are_one_statement(server: PrivateServer) -> None:
    with a_thousand_connections(server) as connections:

        def work() -> None:
            for number, connection in enumerate(connections):
                connection.query(f"{BURN.format(3000 + number % 2)} FROM DUAL")

        moments, parts = sampled(server, work)
    assert percents(parts)[f"{BURN_TEXT} FROM DUAL"] > 95
    assert moments.lost_count == 0
    assert 200 < parts.connections_count <= 1001


def test_threads_of_a_pool_are_told_too() -> None:
    with PrivateServer(settings={"thread_handling": "pool-of-threads", "thread_pool_size": 2}) as pooled:
        test_prepared_statements_are_told_by_their_texts_also_of_before_the_window(pooled)
        test_a_thousand_texts_are_one_statement_or_as_many(pooled)


def test_a_thousand_texts_are_one_statement_or_as_many(server: PrivateServer) -> None:
    with server.connect() as connection, connection.cursor() as cursor:

        def work() -> None:
            for number in range(1000):
                cursor.execute(f"SELECT BENCHMARK(1500, SHA2('{number}', 256))")
                cursor.execute(f"SELECT BENCHMARK(1500, SHA2('x', 256)) AS c{number}")

        moments, parts = sampled(server, work)
    shares = percents(parts)
    assert shares[BURN_TEXT] == pytest.approx(50, abs=5)
    assert len(shares) > 300
    assert moments.lost_count == 0


@pytest.mark.nightly
@each_release("mariadb-11.8", "mysql-9.7")
def test_other_releases_are_told_too(historical_build: ServerBuild) -> None:
    with PrivateServer(build=historical_build) as other:
        test_what_a_procedure_executes_is_told_by_its_own_text(other)
        test_what_runs_already_when_the_window_begins_is_told(other)
        test_prepared_statements_are_told_by_their_texts_also_of_before_the_window(other)


def test_the_command_says_what_samples_tell(
    powerprof_cli: Cli, tmp_path: Path, pooled_server: Callable[..., PrivateServer]
) -> None:
    asked_server = pooled_server()
    with asking(asked_server, BURN.format(100_000)):
        words = ["queries", "--socket", str(asked_server.socket), "--method", "samples", "--no-save", "--duration", "1"]
        plain = powerprof_cli(words)
        found = powerprof_cli([*words, "--explain", "--yes", "--save-workload", str(tmp_path / "made"), "--json", "-"])
        stacks = powerprof_cli([*words, "--stacks"])
    assert plain.code == 0, plain.err
    assert "shares by samples" in plain.out
    assert "95 % intervals" in " ".join(plain.out.split())
    assert found.code == 0, found.err
    record = json.loads(found.out)
    first = record["statements"][0]
    assert (record["method"], first["text"]) == ("samples", BURN_TEXT)
    assert first["c0_percent"] > 80
    assert first["low_percent"] < first["c0_percent"] < first["high_percent"] + 1e-9
    assert first["calls_count"] > 10, "performance_schema is on: the server's own count"
    assert first["latency_ms"] is None
    parts = sum(one["c0_s"] for one in [*record["statements"], *record["background"]]) + record["other_c0_s"]
    assert parts == pytest.approx(record["server_c0_s"], rel=1e-9)
    # A calibrated sample takes some µs, and each CPU has 149 a second.
    assert 0 < record["tracing"]["percent"] < 5
    assert "BENCHMARK(100000" in (tmp_path / "made" / "workload.toml").read_text()
    assert (stacks.code, "--stacks needs" in stacks.err) == (2, True)


def test_each_statement_of_short_connections_has_its_calls_once() -> None:
    """Most connections are gone when the server is queried. One stays, whose schema is known."""
    made = []

    def ask(connection: pymysql.connections.Connection[Any]) -> None:
        with connection.cursor() as cursor:
            cursor.execute(BURN.format(20_000 + len(made)))
        made.append(1)

    def work() -> None:
        for _ in range(150):
            with counting.connect(database="shop") as connection:
                ask(connection)
            ask(stays)

    with PrivateServer(settings={"performance_schema": "ON", "thread_cache_size": 0}) as counting:
        with counting.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop")
        with counting.connect(database="shop") as stays:
            _, parts = sampled(counting, work)
    burns = [one for one in parts.statements if one.text == BURN_TEXT]
    assert [(one.calls_count, one.schema_name) for one in burns] == [(300, "shop")]
    assert percents(parts)[BURN_TEXT] > 90


def test_names_in_double_quotes_are_told_in_samples_too(server: PrivateServer) -> None:
    def work() -> None:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_mode = 'ANSI_QUOTES'")
            for number in range(20):
                for name in ("one", "other"):
                    cursor.execute(f'{BURN.format(20_000 + number)} AS "{name}"')

    _, parts = sampled(server, work)
    assert {one.text for one in parts.statements if "BENCHMARK" in one.text} == {
        f"{BURN_TEXT} AS `{name}`" for name in ("one", "other")
    }


def test_calls_that_nothing_counts_are_unknown(powerprof_cli: Cli, server: PrivateServer) -> None:
    words = ["queries", "--socket", str(server.socket), "--method", "samples", "--no-save", "--duration", "1"]
    with asking(server, BURN.format(100_000)):
        plain, found = powerprof_cli(words), powerprof_cli([*words, "--json", "-"])
    record = json.loads(found.out)
    assert (record["calls_count"], record["statements"][0]["calls_count"]) == (None, None)
    printed = " ".join(plain.out.split())
    assert "number of statements unknown" in printed
    assert "calls are unknown, because performance_schema is off" in printed
    assert "executed no statements" not in printed


def test_lost_digests_are_named(powerprof_cli: Cli) -> None:
    settings: dict[str, Setting] = {"performance_schema": "ON", "performance_schema_digests_size": 8}
    texts = [f"{BURN.format(20_000)} AS c{number}" for number in range(12)]
    with PrivateServer(settings=settings) as small, asking(small, *texts):
        time.sleep(0.2)
        words = ["queries", "--socket", str(small.socket), "--method", "samples", "--no-save", "--duration", "1"]
        found = powerprof_cli([*words, "--json", "-"])
    record = json.loads(found.out)
    assert any(
        "performance_schema had no room for" in str(note) or "digests_lost" in str(note) for note in record["notes"]
    )
    counts = [one["calls_count"] for one in record["statements"] if "BENCHMARK" in one["text"]]
    assert None in counts
    assert record["calls_count"] > sum(count or 0 for count in counts)


@pytest.mark.historical("mysql-5.5.9")
def test_a_server_that_does_not_tell_where_its_texts_are_is_refused(historical_build: ServerBuild) -> None:
    with PrivateServer(build=historical_build) as old, pytest.raises(CapabilityError, match="where a thread has"):
        assert old.pid is not None
        MomentSampler(old.pid)


def test_an_account_to_which_performance_schema_is_closed_has_samples(
    powerprof_cli: Cli, tmp_path: Path, pooled_server: Callable[..., PrivateServer]
) -> None:
    account, closed = tmp_path / "account.cnf", pooled_server()
    with asking(closed, BURN.format(100_000)):
        with closed.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE USER other@localhost IDENTIFIED BY 'x'")
        account.write_text(f"[client]\nuser=other\npassword=x\nsocket={closed.socket}\n")
        account.chmod(0o600)
        words = ["queries", "--defaults-file", str(account), "--duration", "1", "--no-save"]
        found = powerprof_cli([*words, "--method", "samples", "--json", "-"])
    assert found.code == 0, found.err
    assert json.loads(found.out)["statements"][0]["text"] == BURN_TEXT
