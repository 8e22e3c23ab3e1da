# SPDX-License-Identifier: Apache-2.0
"""What statements wait for, against clients that hold locks for known times."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from powerprof.database import disk_limits
from powerprof.database.builds import ServerBuild
from powerprof.database.private_server import PrivateServer
from powerprof.database.runtree import RunTree
from powerprof.database.server_report import ServerReport
from powerprof.measure.procfs import read_stat
from powerprof.queries.join import join_trace
from powerprof.queries.records import Statement
from powerprof.system.tasks import list_threads
from powerprof.tracing.captures import StatementTrace
from powerprof.tracing.statements import QueryTracer
from tests.conftest import each_release
from tests.system.queries.postgres_work import backend_of, client, shop

pytestmark = pytest.mark.usefixtures("root_bpf", "mariadbd", "counts_statements")
_HELD_S, _TIMES = 0.4, 2
UPDATE, READ, SLEEP = "UPDATE t SET b = b + ? WHERE a = ?", "SELECT b FROM t", "SELECT SLEEP(?)"


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    with PrivateServer(settings={"performance_schema": "OFF"}) as started:
        with started.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE x")
            cursor.execute("CREATE TABLE x.t (a INT PRIMARY KEY, b INT) ENGINE=InnoDB")
            cursor.execute("INSERT INTO x.t VALUES (1, 1)")
            connection.commit()
        yield started


def on_cpus_ms(*threads: str) -> float:
    """What threads ran and waited for a CPU: a busy host's doing, and no wait for a lock or disk."""
    return sum(sum(map(int, Path(f"/proc/{one}/schedstat").read_text().split()[:2])) for one in threads) / 1e6


class Blocked(NamedTuple):
    """Bounds of the time in which a server's thread waited for a lock or disk."""

    least_ms: float
    most_ms: float


def blocked(server_thread: str, work: Any) -> Blocked:
    """Return the time of `work` without the server's thread on a CPU or in a queue for one.

    This thread's own time on CPUs and in queues can be at the same time as the server's wait, or not.
    """
    before_ms, own_ms, began = on_cpus_ms(server_thread), on_cpus_ms("thread-self"), time.monotonic()
    work()
    most_ms = 1e3 * (time.monotonic() - began) - (on_cpus_ms(server_thread) - before_ms)
    return Blocked(most_ms - (on_cpus_ms("thread-self") - own_ms), most_ms)


def check_wait(waited_ms: float | None, truth: Sequence[Blocked]) -> None:
    """Check the mean wait of a statement with 5 % of tolerance."""
    least_ms, most_ms = (sum(bounds) / len(truth) for bounds in zip(*truth, strict=True))
    assert waited_ms is not None
    assert 0.95 * least_ms <= waited_ms <= 1.05 * most_ms, truth


def thread_of(server: PrivateServer, cursor: Any) -> str:
    """The server's thread that works for a client: the one that computes as it asks for that."""
    tasks = [f"{server.pid}/task/{tid}" for tid in list_threads(server.pid or 0)]
    before_ms = {one: on_cpus_ms(one) for one in tasks}
    cursor.execute("SELECT BENCHMARK(300000, SHA2('x', 256))")
    return max(tasks, key=lambda one: on_cpus_ms(one) - before_ms[one])


def holding(server: PrivateServer, begin: str, end: str, thread: str, work: Any) -> Blocked:
    """Bounds of the time that `work` was blocked: another connection executes `begin`, and `end` some time later."""
    held, asked = threading.Event(), threading.Event()

    def other() -> None:
        with server.connect(database="x") as connection, connection.cursor() as cursor:
            cursor.execute(begin)
            held.set()
            assert asked.wait(30)
            time.sleep(_HELD_S)
            cursor.execute(end)

    worker = threading.Thread(target=other)
    worker.start()
    assert held.wait(30)
    asked.set()
    waited = blocked(thread, work)
    worker.join()
    assert waited.least_ms > 100 * _HELD_S
    return waited


def stolen() -> float:
    """Seconds that interrupts and the hypervisor took of this host's CPUs since it began, by hundredths."""
    return sum(cpu.get(name, 0.0) for cpu in read_stat().cpus.values() for name in ("irq", "softirq", "steal"))


def rows_of(trace: StatementTrace) -> dict[str, Statement]:
    return {one.text: one for one in join_trace(trace, ServerReport()).statements}


def traced(server: PrivateServer, work: Any) -> StatementTrace:
    assert server.pid is not None
    with QueryTracer(server.pid) as tracer:
        assert tracer.dispatch.waits
        tracer.attach()
        tracer.begin(timed=False)
        work()
        tracer.end()
        return tracer.collect()


def test_waits_are_those_of_locks_that_were_held_for_known_times(server: PrivateServer) -> None:
    rows, tables = list[Blocked](), list[Blocked]()
    with server.connect(database="x") as connection, connection.cursor() as cursor:
        cursor.execute("SET autocommit = 1")
        thread = thread_of(server, cursor)

        def work() -> None:
            for _ in range(_TIMES):
                rows.append(
                    holding(
                        server,
                        "BEGIN NOT ATOMIC START TRANSACTION; SELECT b FROM t WHERE a = 1 FOR UPDATE; END",
                        "COMMIT",
                        thread,
                        lambda: cursor.execute("UPDATE t SET b = b + 1 WHERE a = 1"),
                    )
                )
                read = "SELECT b FROM t"
                tables.append(
                    holding(server, "LOCK TABLES t WRITE", "UNLOCK TABLES", thread, lambda: cursor.execute(read))
                )
            cursor.execute("SELECT SLEEP(0.3)")

        found = rows_of(traced(server, work))
    for text, name, truth in ((UPDATE, "row_lock", rows), (READ, "lock", tables)):
        one = found[text]
        assert one.waits_ms is not None
        assert one.calls_count == _TIMES
        waited = getattr(one.waits_ms, name)
        check_wait(waited, truth)
        others = ("row_lock", "lock", "latch", "disk", "client", "sleep", "other")
        assert sum(getattr(one.waits_ms, other) for other in others if other != name) < 0.05 * waited
    sleep = found[SLEEP].waits_ms
    assert sleep is not None
    assert sleep.sleep == pytest.approx(300, rel=0.05)


def test_cpu_and_waits_are_the_time_between_a_statements_ends(server: PrivateServer) -> None:
    """Of more clients that compute than there are CPUs."""

    def client() -> None:
        with server.connect(database="x") as connection, connection.cursor() as cursor:
            for _ in range(5):
                cursor.execute("SELECT BENCHMARK(100000, SHA2('x', 256))")

    def work() -> None:
        clients = [threading.Thread(target=client) for _ in range(6)]
        for one in clients:
            one.start()
        for one in clients:
            one.join()

    stolen_s = -stolen()
    trace = traced(server, work)
    stolen_s += stolen()
    (burn,) = [text.id for text in trace.texts if b"BENCHMARK" in text.text]
    uses = [use for use in trace.uses if use.id == burn]
    accounted_ns = sum(use.cpu_ns + sum(use.waits_ns) for use in uses)
    # What interrupts and the hypervisor took from a running thread is in its time alone.
    wall_ns = sum(use.wall_ns for use in uses)
    assert wall_ns * 0.99 - 1e9 * stolen_s <= accounted_ns <= wall_ns * 1.01
    one = rows_of(trace)["SELECT BENCHMARK(?, SHA2(?, …))"]
    assert one.waits_ms is not None
    assert one.waits_ms.run_queue is not None
    assert one.c0_ms_per_call is not None
    assert one.waits_ms.run_queue > one.c0_ms_per_call / 4
    assert one.latency_ms is not None
    assert one.latency_ms.p99 is not None
    assert one.latency_ms.p50 <= one.latency_ms.p95 <= one.latency_ms.p99


def test_postgresql_says_what_its_processes_wait_for() -> None:
    truth: dict[str, list[Blocked]] = {"update": [], "table": []}
    with shop() as server, client(server) as asking, client(server) as holder:
        asking.exec_(b"CREATE TABLE t (a int PRIMARY KEY, b int)")
        asking.exec_(b"INSERT INTO t VALUES (1, 1)")

        def held(kind: str, begin: bytes, statement: bytes) -> None:
            holder.exec_(b"BEGIN")
            holder.exec_(begin)

            def release() -> None:
                time.sleep(_HELD_S)
                holder.exec_(b"COMMIT")

            worker = threading.Thread(target=release)
            worker.start()
            truth[kind].append(blocked(str(backend_of(asking)), lambda: asking.exec_(statement)))
            worker.join()

        assert server.pid is not None
        with QueryTracer(server.pid, "postgresql") as tracer:
            tracer.attach()
            tracer.begin(timed=False)
            for _ in range(_TIMES):
                held("update", b"UPDATE t SET b = b - 1 WHERE a = 1", b"UPDATE t SET b = b + 1 WHERE a = 1")
                held("table", b"LOCK TABLE t", b"SELECT b FROM t")
            tracer.end()
            found = rows_of(tracer.collect())
    for text, name, times in ((UPDATE, "row_lock", truth["update"]), (READ, "lock", truth["table"])):
        one = found[text]
        assert one.waits_ms is not None
        assert one.calls_count == _TIMES
        check_wait(getattr(one.waits_ms, name), times)


@each_release("mysql-9.7", "mysql-5.5.9")
def test_other_releases_say_what_they_wait_for(historical_build: ServerBuild) -> None:
    """The calls are found in each program by itself; a server that is probed at a wrong place would end."""
    truth: list[Blocked] = []
    with PrivateServer(build=historical_build) as other:
        with other.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE x")
            cursor.execute("CREATE TABLE x.t (a INT PRIMARY KEY, b INT) ENGINE=InnoDB")
            cursor.execute("INSERT INTO x.t VALUES (1, 1)")
            cursor.execute("CREATE PROCEDURE x.hold() BEGIN START TRANSACTION; UPDATE x.t SET b = 7 WHERE a = 1; END")
            connection.commit()
        with other.connect(database="x") as connection, connection.cursor() as cursor:
            thread, update = thread_of(other, cursor), "UPDATE t SET b = b + 1 WHERE a = 1"

            def work() -> None:
                for _ in range(_TIMES):
                    truth.append(holding(other, "CALL hold()", "COMMIT", thread, lambda: cursor.execute(update)))

            found = rows_of(traced(other, work))
            cursor.execute("SELECT 1")
    waits = found[UPDATE].waits_ms
    assert waits is not None
    check_wait(waits.row_lock, truth)


@pytest.mark.slowdisk
def test_waits_for_a_disk_are_those_that_its_control_group_makes() -> None:
    """Each point select reads a page that is in no cache, from a disk that gives the server 20 a second."""
    settings = {
        "performance_schema": "OFF",
        "innodb_flush_method": "O_DIRECT",
        "innodb_buffer_pool_size": "8M",
        "innodb_read_ahead_threshold": "64",
    }
    truth: list[Blocked] = []

    with RunTree() as tree, PrivateServer(tree=tree, settings=settings) as slow:
        with slow.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE x")
            cursor.execute("CREATE TABLE x.big (a INT PRIMARY KEY, b CHAR(255), c CHAR(255)) ENGINE=InnoDB")
            cursor.execute("INSERT INTO x.big SELECT seq, REPEAT('b', 250), REPEAT('c', 250) FROM x.seq_1_to_60000")
            connection.commit()
            cursor.execute("SELECT COUNT(*), SUM(LENGTH(b)) FROM x.big WHERE a > 30000")  # the pool has other pages
        with slow.connect(database="x") as connection, connection.cursor() as cursor:
            cursor.execute("SELECT b FROM big WHERE a = 29999")  # the table is open, its root is read
            assert slow.pid is not None
            cursor.execute("SELECT TID FROM information_schema.PROCESSLIST WHERE ID = CONNECTION_ID()")
            thread = f"{slow.pid}/task/{cursor.fetchone()[0]}"
            disk_limits.limit_disk(tree, "slow", slow.directory, slow.pid, 20)

            def work() -> None:
                for number in range(1, 31):
                    read = f"SELECT b FROM big WHERE a = {number * 700}"
                    truth.append(blocked(thread, partial(cursor.execute, read)))

            try:
                one = rows_of(traced(slow, work))["SELECT b FROM big WHERE a = ?"]
            finally:
                disk_limits.limit_disk(tree, "slow", slow.directory, slow.pid, None)
    assert sum(each.least_ms for each in truth) > 35 * len(truth)  # the delay is there
    assert one.waits_ms is not None
    assert one.calls_count == 30
    check_wait(one.waits_ms.disk, truth)
