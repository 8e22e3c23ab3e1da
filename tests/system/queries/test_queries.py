# SPDX-License-Identifier: Apache-2.0
"""`queries` against clients of ours that count their own statements, on a stripped MariaDB."""

from __future__ import annotations

import errno
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest

from powerprof.database import sql
from powerprof.database.builds import ServerBuild
from powerprof.database.private_server import PrivateServer
from powerprof.database.server_report import ServerReport, merge_reports, read_report
from powerprof.database.settings import Setting
from powerprof.queries.join import UNKNOWN_PREPARED, join_trace
from powerprof.tracing import statements
from powerprof.tracing.bpf import syscalls
from powerprof.tracing.captures import StatementTrace
from powerprof.tracing.statements import QueryTracer
from tests.conftest import each_release
from tests.programs.mixes import ALONE, MIX, TIMES, mix_on
from tests.programs.statement_pairs import hash_statement
from tests.system.queries.mariadb_work import (
    BURN,
    BURN_TEXT,
    a_thousand_connections,
    execute,
    prepare,
    wait_until_alone,
)

pytestmark = pytest.mark.usefixtures("root_bpf", "mariadbd", "counts_statements")


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    with PrivateServer(
        settings={"performance_schema": "OFF", "max_connections": 1100, "thread_cache_size": 0}
    ) as started:
        yield started


def traced(server: PrivateServer, work: Any, **how: bool) -> StatementTrace:
    """What the kernel counted while `work` ran."""
    assert server.pid is not None
    with QueryTracer(server.pid, **how) as tracer:
        tracer.attach()
        tracer.begin()
        work()
        tracer.end()
        return tracer.collect()


def rows(trace: StatementTrace) -> dict[str, Any]:
    return {one.text: one for one in join_trace(trace, ServerReport()).statements}


def test_calls_are_exact_and_the_parts_are_the_process(server: PrivateServer) -> None:
    with server.connect() as first, server.connect() as second:

        def work() -> None:
            with first.cursor() as one, second.cursor() as other:
                for number in range(400):
                    one.execute(f"SELECT {number}, 'it''s {number}'")
                    if number % 4 == 0:
                        other.execute(
                            f"/* request {number} */ SELECT c FROM (SELECT {number} c) d WHERE c IN ({number},2)"
                        )
                one.execute("SELECT BENCHMARK(2000000, SHA2('x', 256))")

        trace = traced(server, work)
    found = rows(trace)
    assert found["SELECT ?, …"].calls_count == 400
    assert found["SELECT c FROM (SELECT ? c) d WHERE c IN (?, …)"].calls_count == 100
    (burn,) = [one for text, one in found.items() if "BENCHMARK" in text]
    assert burn.calls_count == 1
    assert next(iter(found)) == burn.text
    assert trace.lost_count == trace.unreadable_count == 0
    # Two counts of the scheduler, read a moment apart.
    assert trace.process_cpu_ns is not None
    assert sum(thread.cpu_ns for thread in trace.threads) == pytest.approx(trace.process_cpu_ns, rel=0.01, abs=2e6)


TABLES = {"Attributes": "InventoryId", "Inventory": "TenantId", "Users": "UserId", "Orders": "OrderId"}


def work_with_names(server: PrivateServer, times: int) -> None:
    """Statements that differ in names in double quotes, in a session with ANSI_QUOTES, and one of another session."""
    with server.connect() as ansi, server.connect() as usual, ansi.cursor() as cursor, usual.cursor() as other:
        cursor.execute("SET SESSION sql_mode = 'ANSI_QUOTES'")
        cursor.execute("CREATE DATABASE IF NOT EXISTS quoted")
        cursor.execute("USE quoted")
        for table, column in TABLES.items():
            cursor.execute(f'CREATE TABLE IF NOT EXISTS "{table}" ("{column}" INT, "IsDeleted" INT)')
        for number in range(times):
            for table, column in TABLES.items():
                cursor.execute(f'SELECT * FROM "{table}" WHERE "{column}"={number} AND "IsDeleted"=0')
            other.execute(f'SELECT "value {number}"')


def test_double_quotes_are_those_of_names_with_ansi_quotes(server: PrivateServer) -> None:
    found = rows(traced(server, lambda: work_with_names(server, 20)))
    for table, column in TABLES.items():
        assert found[f"SELECT * FROM `{table}` WHERE `{column}` = ? AND `IsDeleted` = ?"].calls_count == 20
    assert found["SELECT ?"].calls_count == 20


def test_long_and_prepared_texts_have_names_in_double_quotes(server: PrivateServer) -> None:
    columns = ", ".join(f'{number} AS "a long name of {number}"' for number in range(100))

    def work() -> None:
        with server.connect() as connection:
            with connection.cursor() as cursor:
                cursor.execute("SET SESSION sql_mode = 'ANSI_QUOTES'")
                for name in ("one", "other"):
                    cursor.execute(f'SELECT {columns}, 1 AS "{name}"')
            for name in ("one", "other"):
                number = prepare(connection, f'SELECT 1 AS "prepared {name}"')
                execute(connection, number)

    found = rows(traced(server, work))
    long = [text for text in found if text.startswith("SELECT ? AS `a long")]
    assert {text.rpartition(" ")[2] for text in long} == {"`one`", "`other`"}
    assert {text for text in found if text.startswith("SELECT ? AS `prepared")} == {
        "SELECT ? AS `prepared one`",
        "SELECT ? AS `prepared other`",
    }


def test_names_of_savepoints_and_nulls_are_values(server: PrivateServer) -> None:
    def work() -> None:
        with server.connect() as connection, connection.cursor() as cursor:
            for number in range(30):
                cursor.execute("BEGIN")
                cursor.execute(f"SAVEPOINT s{number}_x{number}")
                cursor.execute(f"SELECT {'NULL' if number % 2 else number}, {number}, {'NULL' if number % 3 else 1}")
                cursor.execute(f"RELEASE SAVEPOINT s{number}_x{number}")
                cursor.execute("COMMIT")

    trace = traced(server, work)
    found = rows(trace)
    texts = ("SAVEPOINT ?", "SELECT ?, …", "RELEASE SAVEPOINT ?")
    assert [found[text].calls_count for text in texts] == [30, 30, 30]
    # One identity, because a busy server draws more names than the tables have room for.
    assert len([text for text in trace.texts if text.text.startswith(b"SAVEPOINT")]) == 1


def test_a_statement_that_sleeps_costs_next_to_nothing(server: PrivateServer) -> None:
    with server.connect() as connection:

        def work() -> None:
            with connection.cursor() as cursor:
                cursor.execute("SELECT SLEEP(1)")
                cursor.execute("SELECT BENCHMARK(1000000, SHA2('x', 256))")

        found = rows(traced(server, work))
    sleep = found["SELECT SLEEP(?)"]
    assert sleep.c0_s < 0.02
    assert sleep.latency_ms.p50 == pytest.approx(1000, rel=0.15)
    assert found["SELECT BENCHMARK(?, SHA2(?, …))"].c0_s > 10 * sleep.c0_s


def test_a_statement_that_goes_on_has_its_time_too(server: PrivateServer) -> None:
    connection = server.connect()

    def burn() -> None:
        with suppress(pymysql.MySQLError), connection.cursor() as cursor:  # it is killed
            cursor.execute("SELECT BENCHMARK(20000000, SHA2('x', 256))")

    worker = threading.Thread(target=burn, daemon=True)

    def work() -> None:
        worker.start()
        time.sleep(0.6)

    trace = traced(server, work)
    (one,) = [one for text, one in rows(trace).items() if "BENCHMARK" in text]
    assert (one.calls_count, one.unfinished_count, one.latency_ms) == (1, 1, None)
    assert trace.process_cpu_ns is not None
    assert one.c0_s == pytest.approx(trace.process_cpu_ns / 1e9, rel=0.05, abs=0.01)
    with server.connect() as other, other.cursor() as cursor:
        cursor.execute(f"KILL {connection.thread_id()}")
    worker.join(30)


def test_the_kernel_computes_the_identity_that_python_does(server: PrivateServer) -> None:
    texts = [
        "SELECT 'a\\'b', 1.5e3, 0x1F, `x` FROM (SELECT 1 `x`) t -- end",
        'SELECT /* c */ 1 + 2 - 3 / 4, (5), -6 FROM DUAL WHERE \'ä\' = "q""uo"',
        "SELECT 1 # " + "long " * 400,
    ]
    with server.connect() as connection:

        def work() -> None:
            with connection.cursor() as cursor:
                for text in texts:
                    cursor.execute(text)

        trace = traced(server, work)
    seen = {one.id for one in trace.texts}
    assert {hash_statement(text.encode()) for text in texts} <= seen
    assert trace.cut_count == 0


COLUMNS = ", ".join(f"{number} AS a_long_column_name_{number}" for number in range(3000))


def test_long_texts_are_told_apart_by_their_ends_and_are_shown_whole(server: PrivateServer) -> None:
    """Column lists of 85 kB with another end each, lists of values that are a statement whatever their length, and
    comments before the statement that are longer than a buffer."""
    with server.connect() as connection:

        def work() -> None:
            with connection.cursor() as cursor:
                for number in range(6):
                    cursor.execute(f"SELECT {COLUMNS}, {number} AS one_end")
                    cursor.execute(f"SELECT {COLUMNS}, {number} AS other_end")
                    values = ", ".join(map(str, range(1000 + number)))
                    cursor.execute(f"SELECT 1 FROM DUAL WHERE 1 IN ({values}) AND 2 = 2")
                    for name in "ab":
                        cursor.execute(f"/* {'trace ' * 900} {number} */ -- and\n SELECT {number} AS {name}")

        trace = traced(server, work)
    calls = {(text[:24], text[-12:]): one.calls_count for text, one in rows(trace).items()}
    assert calls == {
        ("SELECT ? AS a_long_colum", "? AS one_end"): 6,
        ("SELECT ? AS a_long_colum", "AS other_end"): 6,
        ("SELECT ? FROM DUAL WHERE", "…) AND ? = ?"): 6,
        ("SELECT ? AS a", "ELECT ? AS a"): 6,
        ("SELECT ? AS b", "ELECT ? AS b"): 6,
    }
    assert trace.cut_count == trace.lost_count == trace.unreadable_count == 0


def test_procedures_are_folded_into_their_call(server: PrivateServer) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS q")
        cursor.execute(
            "CREATE PROCEDURE q.p(n INT) BEGIN DECLARE s INT; SELECT BENCHMARK(n, SHA2('x', 256)) INTO s; END"
        )
        found = rows(traced(server, lambda: cursor.execute("CALL q.p(1000000)")))
    assert list(found) == ["CALL q.p(?)"]
    assert found["CALL q.p(?)"].c0_s > 0.05


def test_where_the_kernel_refuses_the_hash_of_long_texts_their_beginning_stands_for_them(
    server: PrivateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = syscalls.load_program

    def refused(name: str, *words: Any, **options: Any) -> int:
        if name == "hash_pieces":
            raise syscalls.RefusedError(errno.E2BIG, "BPF program is too large")
        return load(name, *words, **options)

    monkeypatch.setattr(syscalls, "load_program", refused)
    with server.connect() as connection:
        texts = [f"SELECT {COLUMNS}, 1 AS {end}" for end in ("one_end", "other_end")]
        trace = traced(server, lambda: [connection.query(text) for text in texts])
    (row,) = rows(trace).values()
    assert (row.calls_count, row.may_be_several, trace.cut_count) == (2, True, 2)


def test_an_event_is_a_statement_of_its_name(server: PrivateServer) -> None:
    an_event_is_a_statement_of_its_name(server)


@pytest.mark.nightly
@each_release("mariadb-11.8", "mysql-9.7")
def test_other_releases_name_events_and_what_was_prepared_before(historical_build: ServerBuild) -> None:
    with PrivateServer(build=historical_build) as other:
        an_event_is_a_statement_of_its_name(other)
        test_prepared_statements_are_told_by_their_numbers(other)


def an_event_is_a_statement_of_its_name(server: PrivateServer) -> None:
    """No packet asks for it; what it executes, and a trigger, are within it."""
    with server.connect() as connection, connection.cursor() as cursor:
        for text in (
            "SET GLOBAL event_scheduler = OFF",
            "CREATE DATABASE IF NOT EXISTS q",
            "CREATE TABLE q.happened (n INT)",
            "CREATE TRIGGER q.t BEFORE INSERT ON q.happened FOR EACH ROW SET @s = BENCHMARK(200000, SHA2('x', 256))",
            "CREATE EVENT q.`each one` ON SCHEDULE AT CURRENT_TIMESTAMP + INTERVAL 1 SECOND"
            " DO BEGIN INSERT INTO q.happened VALUES (1); INSERT INTO q.happened VALUES (2); END",
        ):
            cursor.execute(text)

        def work() -> None:
            cursor.execute("SET GLOBAL event_scheduler = ON")
            until_s = time.monotonic() + 30
            while cursor.execute("SELECT * FROM q.happened") < 2 and time.monotonic() < until_s:
                time.sleep(0.1)
            time.sleep(0.1)
            cursor.execute("SET GLOBAL event_scheduler = OFF")

        trace = traced(server, work)
        cursor.execute("DROP TABLE q.happened")
    (event,) = [one for text, one in rows(trace).items() if text.startswith("(event")]
    body = "BEGIN INSERT INTO q.happened VALUES (?); INSERT INTO q.happened VALUES (?); END"
    assert (event.text, event.calls_count, event.unfinished_count) == (f"(event each one) {body}", 1, 0)
    assert trace.process_cpu_ns is not None
    assert event.c0_s > 0.5 * trace.process_cpu_ns / 1e9


def test_prepared_statements_are_told_by_their_numbers(server: PrivateServer, before_is: str = "SELECT ?") -> None:
    with server.connect() as old, server.connect() as new:
        before = prepare(old, "SELECT 'prepared long ago'")

        def work() -> None:
            numbers = [prepare(new, f"SELECT {name} FROM (SELECT 1 a, 2 b, 3 c) t") for name in "abc"]
            for repeat, number in enumerate(numbers, 1):
                for _ in range(10 * repeat):
                    execute(new, number)
            execute(old, before)
            later = prepare(old, "SELECT d FROM (SELECT 4 d) t")
            for _ in range(7):
                execute(old, later)

        found = rows(traced(server, work))
    calls = {text: one.calls_count for text, one in found.items()}
    for repeat, name in enumerate("abc", 1):
        assert calls[f"SELECT {name} FROM (SELECT ? a, ? b, ? c) t"] == 10 * repeat
        assert calls[f"(prepare) SELECT {name} FROM (SELECT ? a, ? b, ? c) t"] == 1
    assert calls["SELECT d FROM (SELECT ? d) t"] == 7
    assert calls[before_is] == 1, "prepared before the window: its text is read in the server's memory"


@pytest.mark.parametrize("sends", [True, False])
def test_a_pooled_connection_s_old_statement_is_never_the_new_one(server: PrivateServer, sends: bool) -> None:
    """It prepares one within the window, which it never executes, and goes on with the one of before."""
    with server.connect() as pooled:
        hot = prepare(pooled, "SELECT 'hot'")

        def work() -> None:
            other = prepare(pooled, "SELECT other FROM (SELECT 1 other) t")
            for _ in range(50):
                execute(pooled, hot)
            last = prepare(pooled, "SELECT last FROM (SELECT 1 last) t")
            for number, times in ((last, 3), (hot, 5), (other, 2), (last, 4)):
                for _ in range(times):
                    execute(pooled, number)

        calls = {text: one.calls_count for text, one in rows(traced(server, work, sends=sends)).items()}
    # Without the tracepoint of sockets nobody looks at the memory while it executes.
    assert calls["SELECT ?" if sends else UNKNOWN_PREPARED] == 55
    assert [calls[f"SELECT {name} FROM (SELECT ? {name}) t"] for name in ("other", "last")] == [2, 7]


@pytest.mark.parametrize("sends", [True, False])
def test_a_client_that_vanished_leaves_no_statement_to_the_next(server: PrivateServer, sends: bool) -> None:
    """It ends without COM_QUIT; the server frees its connection's memory and gives it to the next client."""
    texts = [f"SELECT {name} FROM (SELECT 1 {name}) t" for name in ("first", "second")]

    def work() -> None:
        for text in texts * 3:
            connection = server.connect()
            number = prepare(connection, text)
            for _ in range(10):
                execute(connection, number)
            connection._force_close()
            wait_until_alone(server)

    calls = {text: one.calls_count for text, one in rows(traced(server, work, sends=sends)).items()}
    assert [calls[f"SELECT {name} FROM (SELECT ? {name}) t"] for name in ("first", "second")] == [30, 30]
    assert UNKNOWN_PREPARED not in calls


def test_a_statement_that_could_not_be_prepared_takes_no_number(server: PrivateServer) -> None:
    with server.connect() as connection:

        def work() -> None:
            first = prepare(connection, "SELECT a FROM (SELECT 1 a) t")
            with suppress(pymysql.MySQLError):
                prepare(connection, "SELECT b FROM no_such.table_at_all")
            execute(connection, first)
            with connection.cursor() as cursor:
                cursor.execute("PREPARE named FROM 'SELECT 1'")  # takes a number, too
            third = prepare(connection, "SELECT c FROM (SELECT 1 c) t")
            execute(connection, first)
            execute(connection, third)

        calls = {text: one.calls_count for text, one in rows(traced(server, work)).items()}
    assert [calls[f"SELECT {name} FROM (SELECT ? {name}) t"] for name in "ac"] == [2, 1]
    assert UNKNOWN_PREPARED not in calls


@pytest.fixture(scope="module")
def encrypted() -> Iterator[PrivateServer]:
    """A server with its own certificate, and an account that needs encryption."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        key, own = Path(folder) / "key.pem", Path(folder) / "certificate.pem"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x", "-keyout", key]
        subprocess.run([*command, "-out", own], check=True, capture_output=True)
        key.chmod(0o644)
        settings: dict[str, Setting] = {"ssl_cert": str(own), "ssl_key": str(key)}
        with PrivateServer(settings=settings) as server:
            with server.connect() as connection:
                sql.execute(connection, "CREATE USER t@localhost IDENTIFIED BY 'x' REQUIRE SSL")
            yield server


@pytest.mark.parametrize("sends", [True, False])
def test_numbers_are_read_though_the_connection_is_encrypted(encrypted: PrivateServer, sends: bool) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pymysql.connect(unix_socket=str(encrypted.socket), user="t", password="x", ssl=context) as connection:
        old = prepare(connection, "SELECT 'prepared long ago'")

        def work() -> None:
            numbers = [prepare(connection, f"SELECT {name} FROM (SELECT 1 a, 2 b) t") for name in "ab"]
            for number, times in ((numbers[0], 5), (old, 2), (numbers[1], 3)):
                for _ in range(times):
                    execute(connection, number)

        calls = {text: one.calls_count for text, one in rows(traced(encrypted, work, sends=sends)).items()}
    assert [calls[f"SELECT {name} FROM (SELECT ? a, ? b) t"] for name in "ab"] == [5, 3]
    assert calls["SELECT ?" if sends else UNKNOWN_PREPARED] == 2


def test_the_server_names_what_was_prepared_before_the_window() -> None:
    with (
        PrivateServer(settings={"performance_schema": "ON"}) as asked,
        asked.connect() as ours,
        asked.connect() as pooled,
    ):
        hot = prepare(pooled, "SELECT hot FROM (SELECT 1 hot) t")
        before = read_report(ours, running=True)
        trace = traced(asked, lambda: [execute(pooled, hot) for _ in range(9)])
        known = merge_reports(before, read_report(ours, running=False))
    calls = {one.text: one.calls_count for one in join_trace(trace, known).statements}
    assert calls["SELECT hot FROM (SELECT ? hot) t"] == 9
    assert UNKNOWN_PREPARED not in calls


def test_a_thousand_connections_are_all_counted(server: PrivateServer) -> None:
    with a_thousand_connections(server) as connections:

        def work() -> None:
            for number, connection in enumerate(connections):
                connection.query(f"SELECT {number} FROM DUAL")

        trace = traced(server, work)
    assert rows(trace)["SELECT ? FROM DUAL"].calls_count == 1000
    assert trace.lost_count == 0


def test_connections_that_come_and_go_are_all_counted(server: PrivateServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread for each of them, and far more of them than the tables of threads have room for."""
    monkeypatch.setattr(statements, "_LEAST_THREADS", 64)
    times = 400

    def work() -> None:
        for number in range(times):
            with server.connect() as connection:
                connection.query(f"SELECT {number} FROM DUAL")
                connection.query(BURN.format(2000))

    trace = traced(server, work)
    found, parts = rows(trace), join_trace(trace, ServerReport())
    assert trace.lost_count == 0
    assert [found[text].calls_count for text in ("SELECT ? FROM DUAL", BURN_TEXT)] == [times, times]
    assert parts.connections_count == times
    assert len(trace.threads) < 200
    assert trace.process_cpu_ns is not None
    # With what a thread runs after the kernel has taken it off the process's clock: 2 %.
    assert sum(thread.cpu_ns for thread in trace.threads) == pytest.approx(trace.process_cpu_ns, rel=0.01)
    assert found[BURN_TEXT].c0_s > 0.3 * trace.process_cpu_ns / 1e9


@pytest.mark.historical("mysql-5.5.9")
def test_the_server_of_2011_is_counted_too(historical_build: ServerBuild) -> None:
    with PrivateServer(build=historical_build) as old, old.connect() as connection, connection.cursor() as cursor:

        def work() -> None:
            for number in range(100):
                cursor.execute(f"SELECT {number}")
            cursor.execute("SELECT BENCHMARK(1000000, MD5('x'))")

        trace = traced(old, work)
        # It does not show where its memory has the numbers of statements.
        test_prepared_statements_are_told_by_their_numbers(old, UNKNOWN_PREPARED)
    found = rows(trace)
    assert found["SELECT ?"].calls_count == 100
    assert next(iter(found)) == "SELECT BENCHMARK(?, MD5(?))"
    assert sum(thread.cpu_ns for thread in trace.threads) == pytest.approx(trace.process_cpu_ns, rel=0.01, abs=2e6)


@pytest.mark.parametrize("has_links", [True, False])
def test_older_kernels_count_the_same(
    server: PrivateServer, monkeypatch: pytest.MonkeyPatch, *, has_links: bool
) -> None:
    """Without uprobe_multi links and the tracepoint of sockets, as before Linux 6.3: the next wait ends a statement.

    Before Linux 5.15 there are no links to single probes either.
    """
    if not has_links:

        def invalid(*_: object) -> int:
            raise OSError(errno.EINVAL, "Invalid argument")

        monkeypatch.setattr(syscalls, "create_link", invalid)
    with server.connect() as connection, connection.cursor() as cursor:

        def work() -> None:
            for number in range(200):
                cursor.execute(f"SELECT {number}")
            cursor.execute("SELECT SLEEP(0.3)")
            time.sleep(0.3)

        trace = traced(server, work, multi=False, sends=False)
    found = rows(trace)
    assert trace.ends_by == "do_command"
    assert found["SELECT ?"].calls_count == 200
    assert 250 < found["SELECT SLEEP(?)"].latency_ms.p50 < 550
    assert found["SELECT SLEEP(?)"].c0_s < 0.02


def test_a_mix_has_the_shares_of_its_statements_alone(sysbench: Path, server: PrivateServer) -> None:
    with mix_on(server) as mix:
        assert server.pid is not None
        mix.run("--events=5", "--time=0")
        events = 100
        with QueryTracer(server.pid) as tracer:
            tracer.attach()
            tracer.begin(timed=False)
            known = mix.run(f"--events={events}", "--time=0")
            tracer.end()
            trace = tracer.collect()
    parts = join_trace(trace, ServerReport())
    found = {one.text: one for one in parts.statements}
    assert [found[text].calls_count for text in MIX] == [events * times for times in TIMES]
    assert [found[text].calls_count for text in ALONE] == [events * times for times in TIMES]
    # A statement alone was measured with the reading of its requests, which the report has in a part of its own.
    reading_s = parts.connections.c0_s / sum(one.calls_count or 0 for one in parts.statements)
    alone, mixture = (
        [found[text].c0_s + reading_s * (found[text].calls_count or 0) for text in texts] for texts in (ALONE, MIX)
    )
    # Of the same executions, so that neighbours who change a CPU's speed change both figures.
    for known_ns, one in zip(known.alone_ns, alone, strict=True):
        assert 100 * abs(one - known_ns / 1e9) / sum(alone) < 3
    assert sum(mixture) == pytest.approx(known.mix_ns / 1e9, rel=0.05)
    # Of other executions, each after another statement, whose data a busy neighbour has put out of the caches.
    for percent, one in zip(known.percent, mixture, strict=True):
        assert 100 * one / sum(mixture) == pytest.approx(percent, abs=6)
    # Two counts of the scheduler, read a moment apart.
    assert trace.process_cpu_ns is not None
    assert sum(thread.cpu_ns for thread in trace.threads) == pytest.approx(trace.process_cpu_ns, rel=0.01)
    explained_s = sum(one.c0_s for one in [*parts.statements, *parts.background, parts.connections])
    assert explained_s == pytest.approx(trace.process_cpu_ns / 1e9, rel=0.01)
