# SPDX-License-Identifier: Apache-2.0
"""`queries --method samples` on a stripped PostgreSQL: which text each process has in its memory."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from powerprof.database.builds import ServerBuild
from powerprof.database.server import PrivateServer
from powerprof.queries.join import Parts
from powerprof.queries.reach import Reach
from powerprof.sources.procfs import process_cpu_ns
from powerprof.tracing.moments import Moments
from tests.conftest import Cli
from tests.root.moments import percents
from tests.root.moments import sampled as sampled_at
from tests.root.test_queries_postgres import busy, client, make_database, run

pytestmark = pytest.mark.usefixtures("root_bpf")
_BURN = "SELECT count(*) FROM generate_series(1, {}) n"


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    with PrivateServer(family="postgresql", settings={"autovacuum": False}) as started:
        make_database(started)
        yield started


def sampled(server: PrivateServer, work: Callable[[], object]) -> tuple[Moments, Parts]:
    """What was met while `work` ran."""
    assert server.pid is not None
    return sampled_at(Reach(server.pid, "", None, None, "postgresql"), work)


@contextmanager
def one_cpu_with(pid: int) -> Iterator[None]:
    """This thread and a process on one CPU: waking a CPU that sleeps costs the answer more."""
    allowed = os.sched_getaffinity(0)
    for which in (0, pid):
        os.sched_setaffinity(which, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def test_shares_are_those_of_statements_alone_by_each_protocol(server: PrivateServer) -> None:
    """The CPU clock of the client's process says what each costs alone, in turn with all of them as a mix."""
    texts = {
        "SELECT k FROM points WHERE id = $1": 60,
        "SELECT sum(k) FROM points WHERE id BETWEEN $1 AND $1 + 400": 12,
        "SELECT k FROM points WHERE id BETWEEN $1 AND $1 + 100 ORDER BY c": 8,
        "SELECT count(*) FROM points WHERE c LIKE $1::text || '%'": 1,
    }
    spent, rounds = dict.fromkeys(texts, 0), 100
    with client(server) as handle:
        run(
            handle,
            "CREATE TABLE points AS SELECT n AS id, n % 97 AS k, md5(n::text) AS c FROM generate_series(1, 9999) n",
        )
        run(handle, "ALTER TABLE points ADD PRIMARY KEY (id)")
        run(handle, "ANALYZE points")
        backend = int(run(handle, "SELECT pg_backend_pid()"))

        def marked(text: str, mark: str) -> str:
            return text.replace("points", f"points {mark}")

        def turn(text: str, mark: str) -> None:
            """By the simple protocol, unnamed and prepared, each for a third."""
            said = marked(text, mark)
            for number in range(texts[text]):
                value = str(100 + number)
                if number % 3 == 0:
                    run(handle, said.replace("$1::text", f"'{value}'").replace("$1", value))
                elif number % 3 == 1:
                    handle.exec_params(said.encode(), [value.encode()])
                else:
                    handle.exec_prepared(said.encode(), [value.encode()])

        def clock_ns() -> int:
            """When the process has gone to wait: it answers before, and is counted to where it is switched out."""
            last: int | None = -1
            now = process_cpu_ns(backend)
            while now != last:
                time.sleep(0.0003)
                last, now = now, process_cpu_ns(backend)
            assert now is not None
            return now

        def work() -> None:
            for _ in range(rounds):
                for text in texts:
                    before = clock_ns()
                    turn(text, "alone")
                    spent[text] += clock_ns() - before
                for text in texts:
                    turn(text, "mixed")

        for text in texts:
            for mark in ("alone", "mixed"):
                handle.prepare(marked(text, mark).encode(), marked(text, mark).encode())
        with one_cpu_with(backend):
            moments, parts = sampled(server, work)
        run(handle, "DROP TABLE points")
    assert moments.lost_count == moments.unreadable_count == 0
    # A statement alone was measured with the reading of its requests, which the report has in a part of its own.
    reading_s = parts.connections.c0_s / (2 * rounds * sum(texts.values()))
    found = dict.fromkeys(texts, 0.0)
    for text, times in texts.items():
        # The text of the simple protocol has values where the others have parameters: both are `?`.
        plain = re.sub(r"\$1|\b\d+\b|'%'", "?", text)
        for mark in ("alone", "mixed"):
            same = {marked(plain, mark), marked(plain, mark).replace("?::text", "?")}
            rows = [one for one in parts.statements if one.text in same]
            assert rows, text
            found[text] += sum(one.c0_s for one in rows) + reading_s * rounds * times
    # Some 6,000 samples: the standard deviation of a share is 0.6 points.
    for text in texts:
        known = 100 * spent[text] / sum(spent.values())
        assert 100 * found[text] / sum(found.values()) == pytest.approx(known, abs=3), text
    assert {one.schema_name for one in parts.statements} == {"shop"}
    assert parts.connections_count == 1


def test_sleep_has_no_share_and_what_functions_execute_is_their_callers(server: PrivateServer) -> None:
    with client(server) as handle:
        run(
            handle,
            "CREATE FUNCTION burn(n int) RETURNS bigint LANGUAGE plpgsql AS"
            " $$ DECLARE c bigint; BEGIN SELECT count(*) INTO c FROM generate_series(1, n); RETURN c; END $$",
        )

        def work() -> None:
            run(handle, "SELECT pg_sleep(0.3)")
            run(handle, "SELECT burn(2000000)")

        _, parts = sampled(server, work)
    shares = percents(parts)
    assert shares["SELECT burn(?)"] > 95
    assert shares.get("SELECT pg_sleep(?)", 0.0) < 1
    first = parts.statements[0]
    assert (first.calls_count, first.wakeups_count, first.latency_ms) == (None, None, None)
    assert first.low_percent is not None
    assert first.high_percent is not None
    assert first.low_percent < first.high_percent


def test_parallel_workers_are_part_of_the_statement(server: PrivateServer) -> None:
    with client(server) as handle:
        run(handle, "CREATE TABLE wide AS SELECT n, n % 97 AS k FROM generate_series(1, 400000) n")
        for setting in ("parallel_setup_cost", "parallel_tuple_cost", "min_parallel_table_scan_size"):
            run(handle, f"SET {setting} = 0")
        run(handle, "SET max_parallel_workers_per_gather = 2")
        moments, parts = sampled(server, lambda: [run(handle, "SELECT sum(k * n) FROM wide") for _ in range(5)])
        run(handle, "DROP TABLE wide")
    (scan,) = parts.statements
    assert scan.text == "SELECT sum(k * n) FROM wide"
    assert len({met.tid for met in moments.met if met.id}) > 1
    assert parts.connections_count == 1


def test_processes_that_come_and_go_are_connections_and_what_they_execute(server: PrivateServer) -> None:
    def work() -> None:
        for _ in range(20):
            with client(server) as handle:
                run(handle, _BURN.format(100_000))

    moments, parts = sampled(server, work)
    (burn,) = parts.statements
    assert burn.text == "SELECT count(*) FROM generate_series(?, …) n"
    # Their birth and end are no statement's; each of them is a client's, whether it lives or not.
    assert parts.connections.c0_s > 0.05 * burn.c0_s
    assert parts.connections_count == 20
    assert sum(one.c0_s for one in parts.background) < 0.5 * (burn.c0_s + parts.connections.c0_s)
    assert moments.lost_count == 0


@pytest.mark.soak
@pytest.mark.parametrize(
    "release",
    [
        pytest.param(name, marks=pytest.mark.historical(name))
        for name in ("postgresql-13", "postgresql-17", "postgresql-18")
    ],
)
def test_other_releases_are_told_too(historical_build: ServerBuild, release: str) -> None:
    with PrivateServer(build=historical_build, settings={"autovacuum": False}) as other:
        make_database(other)
        test_sleep_has_no_share_and_what_functions_execute_is_their_callers(other)
        test_parallel_workers_are_part_of_the_statement(other)
        test_processes_that_come_and_go_are_connections_and_what_they_execute(other)


def test_the_command_says_what_samples_tell(powerprof_cli: Cli, server: PrivateServer) -> None:
    with busy(server) as backend:
        words = ["queries", "--pid", str(backend), "--duration", "2", "--method", "samples", "--no-save"]
        found = powerprof_cli([*words, "--json", "-"])
        printed = powerprof_cli(words)
    assert found.code == 0, found.err
    record = json.loads(found.out)
    assert (record["method"], record["server"]["pid"]) == ("samples", server.pid)
    first = record["statements"][0]
    assert (first["text"], first["schema_name"]) == ("SELECT count(*) FROM generate_series(?, …) n", "shop")
    assert first["low_percent"] <= first["c0_percent"] <= first["high_percent"]
    assert (first["calls_count"], first["latency_ms"]) == (None, None)
    parts = sum(one["c0_s"] for one in [*record["statements"], *record["background"]]) + record["other_c0_s"]
    assert parts == pytest.approx(record["server_c0_s"], rel=1e-9)
    assert printed.code == 0, printed.err
    said = " ".join(printed.out.split())
    assert "shares by samples" in said
    assert "calls are not known" in said
