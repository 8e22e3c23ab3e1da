# SPDX-License-Identifier: Apache-2.0
"""`queries` against clients of ours that count their own statements, on a stripped MariaDB."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest

from powerprof.database.builds import ServerBuild
from powerprof.database.performance import Known
from powerprof.database.runtree import RunTree
from powerprof.database.server import PrivateServer
from powerprof.queries.join import parts_of
from powerprof.statements.identity import identity
from powerprof.tracing.queries import QueryTracer
from powerprof.tracing.statement_trace import StatementTrace
from powerprof.workloads.reading import read_workload
from tests.conftest import Cli

pytestmark = pytest.mark.usefixtures("root_bpf", "mariadbd")
_PERFORMANCE_SCHEMA_OFF = {"performance_schema": "OFF"}


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    with PrivateServer(settings={**_PERFORMANCE_SCHEMA_OFF, "max_connections": 1100}) as started:
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
    return {one.text: one for one in parts_of(trace, Known()).statements}


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
    assert {identity(text.encode()[:1023]) for text in texts} <= seen
    assert trace.cut_count == 1


def test_procedures_are_folded_into_their_call(server: PrivateServer) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS q")
        cursor.execute(
            "CREATE PROCEDURE q.p(n INT) BEGIN DECLARE s INT; SELECT BENCHMARK(n, SHA2('x', 256)) INTO s; END"
        )
        found = rows(traced(server, lambda: cursor.execute("CALL q.p(1000000)")))
    assert list(found) == ["CALL q.p(?)"]
    assert found["CALL q.p(?)"].c0_s > 0.05


def prepare(connection: Any, text: str) -> int:
    """COM_STMT_PREPARE; the server's number of the statement. PyMySQL has no prepared statements of the protocol."""
    connection._execute_command(22, text)
    packet = connection._read_packet()
    data = packet.get_all_data()
    number, columns, parameters = int.from_bytes(data[1:5], "little"), data[5], data[7]
    for count in (parameters, columns):
        for _ in range(count + 1 if count else 0):
            connection._read_packet()
    return number


def execute(connection: Any, number: int) -> None:
    """COM_STMT_EXECUTE without parameters; reads the one row."""
    connection._execute_command(23, number.to_bytes(4, "little") + b"\0\1\0\0\0")
    ends = 0
    while ends < 2:
        packet = connection._read_packet()
        ends += packet.is_eof_packet()


def test_prepared_statements_are_told_by_their_numbers(server: PrivateServer) -> None:
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
    assert [count for text, count in calls.items() if text.startswith("(prepared before the window")] == [1]


def test_the_command_says_that_it_adds_up(powerprof_cli: Cli, server: PrivateServer) -> None:
    stop = threading.Event()

    def client() -> None:
        with server.connect() as connection, connection.cursor() as cursor:
            while not stop.is_set():
                cursor.execute("SELECT BENCHMARK(20000, SHA2('x', 256))")
                time.sleep(0.002)

    worker = threading.Thread(target=client)
    worker.start()
    try:
        result = powerprof_cli(
            ["queries", "--socket", str(server.socket), "--duration", "1", "--no-save", "--json", "-"]
        )
    finally:
        stop.set()
        worker.join()
    assert result.code == 0, result.err
    found = json.loads(result.out)
    first = found["statements"][0]
    assert first["text"] == "SELECT BENCHMARK(?, SHA2(?, …))"
    parts = sum(one["c0_s"] for one in [*found["statements"], *found["background"]]) + found["other_c0_s"]
    assert parts == pytest.approx(found["server_c0_s"], rel=1e-9)
    assert abs(found["residual_c0_s"]) <= max(0.01 * found["server_c0_s"], 0.002)
    if found["joules"] is not None:
        joules = sum(one["joules"] for one in [*found["statements"], *found["background"], found["connections"]])
        assert joules == pytest.approx(found["joules"], rel=0.02)
        assert first["kind"] in ("measured", "estimated")


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_server_survives_every_ending_of_ours(
    server: PrivateServer, ending: signal.Signals, tmp_path: Path
) -> None:
    command = [str(Path(sys.executable).with_name("powerprof")), "queries", "--pid", str(server.pid)]
    terminal, side = os.openpty()
    process = subprocess.Popen(
        [*command, "--duration", "60", "--no-save"],
        stdout=subprocess.PIPE,
        stderr=side,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
    )
    os.close(side)
    with server.connect() as connection, connection.cursor() as cursor:
        said = b""
        while b"tracing the statements" not in said:
            said += os.read(terminal, 1000)
        until = time.monotonic() + 1
        while time.monotonic() < until:
            cursor.execute("SELECT 1")
            time.sleep(0.01)
        process.send_signal(ending)
        out, _ = process.communicate(timeout=60)
        for _ in range(100):
            cursor.execute("SELECT 1")
            assert cursor.fetchone() == (1,)
    os.close(terminal)
    if ending != signal.SIGKILL:
        assert process.returncode == 130
        assert b"Interrupted" in out
    server.check()


def test_what_is_no_server_is_refused(powerprof_cli: Cli) -> None:
    result = powerprof_cli(["queries", "--pid", str(os.getpid())])
    assert result.code == 2
    assert "is not a MariaDB, MySQL or PostgreSQL server" in result.err


def test_plans_and_a_workload_are_made_of_what_clients_sent(
    powerprof_cli: Cli, server: PrivateServer, tmp_path: Path
) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS q")
        connection.select_db("q")
        cursor.execute("CREATE TABLE IF NOT EXISTS q.t (id INT PRIMARY KEY, n INT)")
        cursor.execute("REPLACE INTO q.t SELECT seq, seq % 97 FROM seq_1_to_2000")
        stop = threading.Event()

        def client() -> None:
            while not stop.is_set():
                cursor.execute("SELECT COUNT(*) FROM t WHERE n = 42")

        worker = threading.Thread(target=client)
        worker.start()
        folder = tmp_path / "by-n"
        options = ["--explain", "--save-workload", str(folder), "--duration", "1", "--no-save", "--json", "-"]
        try:
            asked = powerprof_cli(["queries", "--socket", str(server.socket), *options])
            found = powerprof_cli(["queries", "--socket", str(server.socket), *options, "--yes"])
        finally:
            stop.set()
            worker.join()
    assert (asked.code, "nobody is there to agree" in asked.err) == (2, True)
    assert found.code == 0, found.err
    first = json.loads(found.out)["statements"][0]
    assert (first["text"], first["schema_name"]) == ("SELECT COUNT(*) FROM t WHERE n = ?", "q")
    assert (first["plan"][0]["table"], first["plan"][0]["access"]) == ("t", "ALL")
    assert "n = 42" not in found.out
    workload = read_workload(folder)
    assert workload.definition.load.sql == ["SELECT COUNT(*) FROM t WHERE n = 42"]
    assert workload.definition.load.database == "q"


def test_a_thousand_connections_are_all_counted(server: PrivateServer) -> None:
    connections = [server.connect() for _ in range(1000)]
    try:

        def work() -> None:
            for number, connection in enumerate(connections):
                connection.query(f"SELECT {number} FROM DUAL")

        trace = traced(server, work)
    finally:
        for connection in connections:
            connection.close()
    assert rows(trace)["SELECT ? FROM DUAL"].calls_count == 1000
    assert trace.lost_count == 0


@pytest.mark.historical("mysql-5.5.9")
def test_the_server_of_2011_is_counted_too(historical_build: ServerBuild) -> None:
    with PrivateServer(build=historical_build) as old, old.connect() as connection, connection.cursor() as cursor:

        def work() -> None:
            for number in range(100):
                cursor.execute(f"SELECT {number}")
            cursor.execute("SELECT BENCHMARK(1000000, MD5('x'))")

        trace = traced(old, work)
    found = rows(trace)
    assert found["SELECT ?"].calls_count == 100
    assert next(iter(found)) == "SELECT BENCHMARK(?, MD5(?))"
    assert sum(thread.cpu_ns for thread in trace.threads) == pytest.approx(trace.process_cpu_ns, rel=0.01, abs=2e6)


def test_shares_are_those_of_work_that_is_known(server: PrivateServer) -> None:
    """The same loop of the server, 1 : 2 : 5 as often: whatever the machine's speed, each has its part of the time."""
    parts = {"a": 1, "b": 2, "c": 5}

    def work() -> None:
        with server.connect() as connection, connection.cursor() as cursor:
            for _ in range(30):
                for name, times in parts.items():
                    cursor.execute(f"SELECT BENCHMARK({20_000 * times}, SHA2('x', 256)) AS {name}")

    found = rows(traced(server, work))
    spent = {name: found[f"SELECT BENCHMARK(?, SHA2(?, …)) AS {name}"] for name in parts}
    assert {one.calls_count for one in spent.values()} == {30}
    whole = sum(one.c0_s for one in spent.values())
    for name, times in parts.items():
        assert 100 * spent[name].c0_s / whole == pytest.approx(100 * times / sum(parts.values()), abs=3)


def test_older_kernels_count_the_same(server: PrivateServer) -> None:
    """Without uprobe_multi links and the tracepoint of sockets, as before Linux 6.3: the next wait ends a statement."""
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


def test_stacks_are_told_by_statement(powerprof_cli: Cli, server: PrivateServer, tmp_path: Path) -> None:
    stop = threading.Event()

    def client() -> None:
        with server.connect() as connection, connection.cursor() as cursor:
            while not stop.is_set():
                cursor.execute("SELECT BENCHMARK(200000, SHA2('x', 256))")
                cursor.execute("SELECT COUNT(*) FROM q.seq_1_to_200000 WHERE seq % 7 = 3")

    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS q")
    worker = threading.Thread(target=client)
    worker.start()
    page = tmp_path / "page.html"
    try:
        result = powerprof_cli(
            [
                *("queries", "--socket", str(server.socket), "--stacks", "--duration", "3", "--html", str(page)),
                *("--no-save", "--energy-source", "none", "--json", "-"),
            ]
        )
    finally:
        stop.set()
        worker.join()
    assert result.code == 0, result.err
    rows = {one["text"]: one for one in json.loads(result.out)["statements"]}
    benchmark, scan = (next(row for text, row in rows.items() if name in text) for name in ("BENCHMARK", "COUNT"))
    for row, function, other in ((benchmark, "Item_func_sha2", "Item_func_mod"), (scan, "Item_func_mod", "func_sha2")):
        # 99 samples a second of CPU time; what a neighbour takes of a CPU is neither a sample's nor the server's.
        count = sum(stack["count"] for stack in row["stacks"])
        assert count == pytest.approx(99 * row["c0_s"], rel=0.3, abs=10)
        labels = [" ".join(stack["frames"]) for stack in row["stacks"]]
        assert any(function in one for one in labels)
        assert not any(other in one for one in labels)
    assert page.read_text().count('class="flame"') >= 2


def test_watch_goes_on_when_the_server_comes_back(powerprof_cli: Cli, tmp_path: Path) -> None:
    with ExitStack() as stack:
        tree = stack.enter_context(RunTree())
        watched = stack.enter_context(PrivateServer(tree=tree, settings=_PERFORMANCE_SCHEMA_OFF))
        words = ["queries", "--socket", str(watched.socket), "--watch", "--json-lines", "--duration", "0.5"]
        process = powerprof_cli.start([*words, "--energy-source", "none"])
        stack.callback(process.wait, 60)
        stack.callback(process.terminate)  # it would wait for the server for ever

        def window_with(text: str) -> dict[str, Any]:
            """The first window in which clients were seen; each beginning is a statement of theirs."""
            assert process.stdout is not None
            for _ in range(60):
                time.sleep(0.3)  # what comes right after a line may lie between two windows
                with watched.connect() as connection, connection.cursor() as cursor:
                    cursor.execute(text)
                record = json.loads(process.stdout.readline())
                if any("answer" in one["text"] for one in record["statements"]):
                    return record
            raise AssertionError("no window with a statement of ours")

        first = window_with("SELECT 42 AS answer")
        watched.stop()
        shutil.rmtree(watched.directory)
        watched.start()
        watched.wait_ready()
        second = window_with("SELECT 43 AS answer")
        assert first["server"]["pid"] != second["server"]["pid"] == watched.pid
        for record in (first, second):
            parts = sum(one["c0_s"] for one in [*record["statements"], *record["background"]])
            assert parts + record["other_c0_s"] == pytest.approx(record["server_c0_s"], abs=1e-9)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130, err


@pytest.mark.parametrize(
    "words", [["--plain"], ["--count", "3"], ["--watch", "--stacks"], ["--watch", "--plain", "--json-lines"]]
)
def test_what_does_not_go_with_watch_is_refused(powerprof_cli: Cli, words: list[str]) -> None:
    result = powerprof_cli(["queries", "--pid", str(os.getpid()), *words])
    assert result.code == 2
    assert "--watch" in result.err or "exclude each other" in result.err
