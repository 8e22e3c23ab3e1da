# SPDX-License-Identifier: Apache-2.0
"""`queries` on a stripped PostgreSQL, against clients of ours that count their own statements."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from msgspec.structs import replace
from psycopg import pq

from powerprof.database.builds import ServerBuild
from powerprof.database.pg_stat_statements import find_statistics_database
from powerprof.database.private_server import PrivateServer
from powerprof.database.server_report import merge_reports
from powerprof.measure.procfs import process_cpu_ns
from powerprof.queries.join import Parts, join_trace
from powerprof.queries.pricing import add_statistics
from powerprof.queries.records import Statement
from powerprof.queries.target import TracedServer, ask_server
from powerprof.tracing import postgresql_places, statements
from powerprof.tracing.captures import StatementTrace
from powerprof.tracing.statements import QueryTracer
from tests.programs.statement_pairs import hash_statement
from tests.system.queries.moments import sampled
from tests.system.queries.postgres_work import (
    BURN,
    BURN_TEXT,
    DATABASE,
    SCAN,
    alone_and_mixed,
    backend_of,
    client,
    come_and_go,
    initialised_with,
    other_releases,
    points,
    run,
    scanned_in_parallel,
    shop,
)

pytestmark = pytest.mark.usefixtures("root_bpf", "counts_statements")


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    with shop() as started:
        yield started


@dataclass(frozen=True)
class Traced:
    """A window, and what the processes called themselves at its end."""

    trace: StatementTrace
    parts: Parts

    @property
    def rows(self) -> dict[str, Statement]:
        return {statement.text: statement for statement in self.parts.statements}

    @property
    def calls(self) -> dict[str, int]:
        return {statement.text: statement.calls_count or 0 for statement in self.parts.statements}

    @property
    def process_s(self) -> float:
        """What the kernel counted for all processes."""
        assert self.trace.process_cpu_ns is not None
        return self.trace.process_cpu_ns / 1e9


def traced(
    server: PrivateServer, work: Callable[[], object], *, before: Callable[[], object] = lambda: None, **how: bool
) -> Traced:
    """What the kernel counted while `work` ran; `before` just before the window begins."""
    with QueryTracer(server.pid, "postgresql", **how) as tracer:
        tracer.attach()
        before()
        running = tracer.running()
        tracer.begin()
        work()
        time.sleep(0.05)  # the last packet is sent before its process has gone to wait
        tracer.end()
        trace = tracer.collect()
    known = ask_server(TracedServer(server.pid, "postgres", None, None, "postgresql"), running=False)
    return Traced(trace, join_trace(trace, replace(known, running=running)))


def test_calls_of_every_protocol_are_exact_and_the_parts_are_the_processes(server: PrivateServer) -> None:
    by_every_protocol(server)


@pytest.mark.nightly
@other_releases
def test_other_releases_are_counted_too(historical_build: ServerBuild) -> None:
    with shop(historical_build) as other:
        by_every_protocol(other)


def by_every_protocol(server: PrivateServer) -> None:
    """Work of known calls, and that they are what is counted."""
    with client(server) as first, client(server) as second:

        def work() -> None:
            for number in range(400):
                run(first, f"SELECT {number}, 'it''s {number}', 'C:\\'")
                if number % 4 == 0:
                    # Parse, Bind, Execute and Sync of an unnamed statement.
                    second.exec_params(b"SELECT $1::int + 1 AS unnamed", [b"%d" % number])
            for times, name in enumerate((b"a", b"b", b"c"), 1):
                first.prepare(name, b"SELECT $1::text AS named_" + name)
                for _ in range(10 * times):
                    first.exec_prepared(name, [b"x"])
            run(second, 'SELECT 1 AS "Quoted"')
            run(second, 'SELECT 1 AS "Other"')
            run(first, BURN.format(1_000_000))

        window = traced(server, work)
    assert window.calls == {
        "SELECT ?, …": 400,
        "SELECT ?::int + ? AS unnamed": 100,
        **{f"SELECT ?::text AS named_{name}": 10 * times for times, name in enumerate("abc", 1)},
        **{f"(prepare) SELECT ?::text AS named_{name}": 1 for name in "abc"},
        'SELECT ? AS "Quoted"': 1,
        'SELECT ? AS "Other"': 1,
        BURN_TEXT: 1,
    }
    assert {statement.schema_name for statement in window.parts.statements} == {DATABASE}
    assert window.parts.statements[0].text.startswith("SELECT count")
    trace = window.trace
    assert trace.is_sure
    assert trace.lost_count == trace.unreadable_count == 0
    # Two counts of the scheduler, read a moment apart.
    assert sum(thread.cpu_ns for thread in trace.threads) / 1e9 == pytest.approx(window.process_s, rel=0.01, abs=2e-3)
    every = [*window.parts.statements, *window.parts.background, window.parts.connections]
    assert sum(part.c0_s for part in every) == pytest.approx(window.process_s, rel=0.01, abs=2e-3)


def test_fetches_belong_to_the_query_of_their_cursor(server: PrivateServer) -> None:
    fetches_belong_to_their_cursor(server)


@pytest.mark.nightly
@other_releases
def test_fetches_belong_to_the_query_of_their_cursor_elsewhere(historical_build: ServerBuild) -> None:
    with shop(historical_build) as other:
        fetches_belong_to_their_cursor(other)


def fetches_belong_to_their_cursor(server: PrivateServer) -> None:
    """Also of one that was declared before the window; two of one name in turn; a function's loop is its caller's."""
    rows = "FROM generate_series(1, 200000) n ORDER BY md5(n::text)"
    with client(server) as handle, client(server) as other:
        run(other, "BEGIN")
        run(other, f"DECLARE c CURSOR FOR SELECT n AS before {rows}")

        def work() -> None:
            run(handle, "BEGIN")
            for name in ("one", "two"):
                run(handle, f"DECLARE c CURSOR FOR SELECT n AS {name} {rows}")
                for _ in range(3):
                    run(handle, "FETCH 10 FROM c")
                run(handle, "CLOSE c")
            run(handle, "COMMIT")
            for _ in range(4):
                run(other, "fetch 5 from c")
            run(
                other,
                "DO $$ DECLARE r record; BEGIN FOR r IN SELECT 1 FROM generate_series(1, 99) LOOP END LOOP; END $$",
            )

        window = traced(server, work)
    found = {
        name: window.rows[f"DECLARE c CURSOR FOR SELECT n AS {name} FROM generate_series(?, …) n ORDER BY md5(n::text)"]
        for name in ("one", "two", "before")
    }
    assert {name: one.calls_count for name, one in found.items()} == {"one": 1, "two": 1, "before": 0}
    assert not [text for text in window.rows if "fetch" in text.lower()]
    assert all(one.c0_s > 0.05 for one in found.values()), "the sort is done by the first fetch"
    assert window.calls["DO ?"] == 1


def test_a_pipeline_of_one_statement_has_as_many_calls(server: PrivateServer) -> None:
    with client(server) as handle:
        handle.prepare(b"", b"SELECT $1::int AS batch")

        def work() -> None:
            handle.enter_pipeline_mode()
            for number in range(50):
                handle.send_query_prepared(b"", [b"%d" % number])
            handle.pipeline_sync()
            while True:
                result = handle.get_result()
                if result is not None and result.status == pq.ExecStatus.PIPELINE_SYNC:
                    break
            handle.exit_pipeline_mode()

        assert traced(server, work).calls == {"SELECT ?::int AS batch": 50}


def test_a_build_that_tells_no_messages_apart_counts_what_lies_between_two_idle_reports(
    server: PrivateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_places, "_TITLES", {})
    with client(server) as handle:

        def work() -> None:
            handle.prepare(b"once", b"SELECT $1::int AS kept")
            for number in range(30):
                run(handle, f"SELECT {number}")
                handle.exec_params(b"SELECT $1::int AS unnamed", [b"1"])
                handle.exec_prepared(b"once", [b"1"])

        window = traced(server, work)
    assert not window.trace.is_sure
    assert window.calls == {"SELECT ?": 30, "SELECT ?::int AS unnamed": 30, "SELECT ?::int AS kept": 31}


def test_a_statement_that_sleeps_costs_next_to_nothing(server: PrivateServer) -> None:
    with client(server) as handle:

        def work() -> None:
            run(handle, "SELECT pg_sleep(0.4)")
            run(handle, BURN.format(1_000_000))

        found = traced(server, work).rows
    sleep = found["SELECT pg_sleep(?)"]
    assert sleep.c0_s < 0.02
    assert sleep.latency_ms is not None
    # The quantile lies within 15 % in its bucket.
    assert 340 < sleep.latency_ms.p50 < 700
    assert found[BURN_TEXT].c0_s > 5 * sleep.c0_s


def test_what_runs_at_both_ends_of_the_window_has_its_time(server: PrivateServer) -> None:
    with client(server) as handle:
        backend = backend_of(handle)
        before_ns, until_s = process_cpu_ns(backend) or 0, time.monotonic() + 60
        handle.send_query(BURN.format(10**9).encode())
        while (process_cpu_ns(backend) or 0) - before_ns < 100_000_000 and time.monotonic() < until_s:
            time.sleep(0.01)
        window = traced(server, lambda: time.sleep(0.6))
        handle.get_cancel().cancel()
        while handle.get_result() is not None:
            pass
    (before,) = window.parts.statements
    assert (before.text, before.calls_count) == (BURN_TEXT, 1)
    assert (before.unfinished_count, before.began_before_count) == (1, 1)
    assert (before.c0_ms_per_call, before.latency_ms, before.waits_ms) == (None, None, None)
    assert before.wakeups_count is not None
    assert before.c0_s == pytest.approx(window.process_s, rel=0.05, abs=0.01)


def test_a_process_that_ends_had_no_more_before_its_first_statement_than_it_used(server: PrivateServer) -> None:
    with client(server) as handle:
        run(handle, BURN.format(1_000_000))  # CPU time of which the window knows nothing

        def before() -> None:
            handle.send_query(b"SELECT pg_sleep(0.5)")
            time.sleep(0.1)

        def work() -> None:
            while handle.get_result() is not None:
                pass
            run(handle, BURN.format(100_000))
            handle.finish()
            time.sleep(0.1)

        window = traced(server, work, before=before)
    sleep = window.rows["SELECT pg_sleep(?)"]
    assert sleep.c0_s < 0.01
    assert (sleep.calls_count, sleep.unfinished_count, sleep.began_before_count) == (1, 0, 1)
    assert window.parts.connections.c0_s > -0.001
    assert sum(thread.cpu_ns for thread in window.trace.threads) / 1e9 == pytest.approx(
        window.process_s, rel=0.01, abs=0.02
    )


def test_the_kernel_computes_the_identity_that_python_does(server: PrivateServer) -> None:
    texts = [
        """SELECT 'a\\', E'it\\'s', "t"."x" FROM (SELECT 1 AS x) "t" -- end""",
        "SELECT /* c */ 1 + 2 - 3 / 4, (5), -6, 8 # 3 WHERE 'ä' = 'q''uo' AND 'e' || E'' = $$e$$",
        "SELECT 1 -- " + "long " * 400,
    ]
    with client(server) as handle:
        trace = traced(server, lambda: [run(handle, text) for text in texts]).trace
    assert {hash_statement(text.encode(), "postgresql") for text in texts} <= {seen.id for seen in trace.texts}
    assert trace.cut_count == 0


def test_long_texts_are_told_apart_by_their_ends_by_every_protocol(server: PrivateServer) -> None:
    columns = ", ".join(f"{number} AS a_long_column_name_{number}" for number in range(1500))
    ends = ("one_end", "other_end")
    with client(server) as handle:

        def work() -> None:
            for number in range(4):
                for end in ends:
                    run(handle, f"/* {'trace ' * 900} */ SELECT {columns}, {number} AS {end}")
                    handle.exec_params(f"SELECT {columns}, $1::int AS extended_{end}".encode(), [b"1"])

        window = traced(server, work)
    calls = {text.rpartition(" ")[2]: count for text, count in window.calls.items()}
    assert calls == {**dict.fromkeys(ends, 4), **{f"extended_{end}": 4 for end in ends}}
    assert window.trace.cut_count == window.trace.unreadable_count == 0


def test_parallel_workers_are_part_of_the_statement(server: PrivateServer) -> None:
    with scanned_in_parallel(server) as handle:
        window = traced(server, lambda: [run(handle, SCAN) for _ in range(10)])
    (scan,) = window.parts.statements
    assert (scan.text, scan.calls_count, scan.unfinished_count) == (SCAN, 10, 0)
    assert len({use.tid for use in window.trace.uses}) > 1
    # The rest is the first process's, which starts the workers. Of ended ones the kernel tells in steps of 10 ms.
    assert scan.c0_s == pytest.approx(window.process_s, rel=0.2, abs=0.03)
    # From birth to end: also the memory that a worker gives back.
    assert window.parts.connections.c0_s < 0.01 * window.process_s
    assert window.parts.connections_count == 1


def test_more_workers_than_the_tables_have_room_for_are_no_connections(
    server: PrivateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "_LEAST_THREADS", 64)
    with scanned_in_parallel(server) as handle:
        window = traced(server, lambda: [run(handle, SCAN) for _ in range(60)])
    (scan,) = window.parts.statements
    assert scan.calls_count == 60
    assert window.parts.connections.c0_s < 0.01 * window.process_s
    assert window.parts.connections_count == 1


def test_processes_that_come_and_go_are_counted(server: PrivateServer) -> None:
    window = traced(server, lambda: come_and_go(server))
    (burn,) = window.parts.statements
    assert burn.calls_count == window.parts.connections_count == 20
    # Their birth and end are no statement's.
    assert window.parts.connections.c0_s > 0
    # Of ended ones the kernel tells in steps of 10 ms, of two kinds of time.
    counted_s = sum(thread.cpu_ns for thread in window.trace.threads) / 1e9
    assert counted_s == pytest.approx(window.process_s, rel=0.01, abs=0.02)


def test_more_processes_than_the_tables_have_room_for_are_counted(
    server: PrivateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "_LEAST_THREADS", 64)
    window = traced(server, lambda: come_and_go(server, 150))
    (burn,) = window.parts.statements
    assert window.trace.lost_count == 0
    assert burn.calls_count == window.parts.connections_count == 150
    counted_s = sum(thread.cpu_ns for thread in window.trace.threads) / 1e9
    assert counted_s == pytest.approx(window.process_s, rel=0.02, abs=0.02)
    assert len(window.trace.threads) < 100


def test_shares_are_those_of_statements_alone(server: PrivateServer) -> None:
    """The CPU clock of the client's process says what each costs alone, in turn with all of them as a mix."""
    texts = {
        "SELECT k FROM points WHERE id = {0}": 60,
        "SELECT sum(k) FROM points WHERE id BETWEEN {0} AND {0} + 400": 12,
        "SELECT k FROM points WHERE id BETWEEN {0} AND {0} + 100 ORDER BY c": 8,
        "SELECT count(*) FROM points WHERE c LIKE '{0}%'": 1,
    }
    known: dict[str, float] = {}
    with points(server) as handle:

        def turn(text: str, mark: str) -> None:
            for number in range(texts[text]):
                run(handle, text.format(100 + number).replace("points", f"points {mark}"))

        backend = backend_of(handle)
        window = traced(server, lambda: known.update(alone_and_mixed(backend, list(texts), turn, 40)))
    found = [one for one in window.parts.statements if "mixed" in one.text]
    assert sorted(one.calls_count or 0 for one in found) == sorted(40 * times for times in texts.values())
    # A statement alone was measured with the reading of its requests, which the report has in a part of its own.
    reading_s = window.parts.connections.c0_s / sum(window.calls.values())
    by_calls = {one.calls_count: one.c0_s + reading_s * (one.calls_count or 0) for one in found}
    whole = sum(by_calls.values())
    for text, times in texts.items():
        assert 100 * by_calls[40 * times] / whole == pytest.approx(known[text], abs=3), text


def test_older_kernels_count_the_same(server: PrivateServer) -> None:
    """Without uprobe_multi links and the tracepoint of sockets, as before Linux 6.3: the idle report is the end."""
    with client(server) as handle:

        def work() -> None:
            for number in range(200):
                run(handle, f"SELECT {number}")
            run(handle, "SELECT pg_sleep(0.3)")
            time.sleep(0.3)

        window = traced(server, work, multi=False, sends=False)
    found = window.rows
    assert window.trace.ends_by == "report"
    assert found["SELECT ?"].calls_count == 200
    sleep = found["SELECT pg_sleep(?)"]
    assert sleep.latency_ms is not None
    assert 250 < sleep.latency_ms.p50 < 550
    assert sleep.c0_s < 0.02


def test_rows_and_query_ids_are_those_of_pg_stat_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    """By probes and by samples: those of a statement that is known by its text, whatever its values."""

    initialised_with(monkeypatch, ["CREATE EXTENSION pg_stat_statements"])
    with shop(settings={"shared_preload_libraries": "pg_stat_statements"}) as server, client(server) as handle:
        login = find_statistics_database(server.login, (DATABASE, "postgres"))
        assert login is not None
        assert login.database == "postgres"
        reach = TracedServer(server.pid or 0, "postgres", None, login, "postgresql")

        def work() -> None:
            for number in range(20):
                run(handle, f"SELECT n AS found FROM generate_series(1, {20_000 + number}) n LIMIT 3")

        known = ask_server(reach, running=False)
        parts = traced(server, work).parts
        between = ask_server(reach, running=False)
        by_probes = add_statistics(parts.statements, merge_reports(known, between).statistics)
        _, sampled_parts = sampled(reach, work)
        counts = ask_server(reach, running=False).statistics
        (number,) = [str(one.query_id) for (_, text), one in counts.items() if "AS found" in text]
    text = "SELECT n AS found FROM generate_series(?, …) n LIMIT ?"
    (one,) = [statement for statement in by_probes if statement.text == text]
    assert (one.calls_count, one.rows_sent_per_call, one.rows_examined_per_call, one.query_id) == (20, 3, None, number)
    (other,) = [statement for statement in sampled_parts.statements if statement.text == text]
    assert other.calls_count == 20
