# SPDX-License-Identifier: Apache-2.0
"""`queries --method samples` on a stripped PostgreSQL: which text each process has in its memory."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from powerprof.database.builds import ServerBuild
from powerprof.database.private_server import PrivateServer
from powerprof.measure.procfs import process_cpu_ns
from powerprof.queries.join import Parts
from powerprof.queries.target import TracedServer
from powerprof.tracing.statement_samples import StatementSamples
from tests.conftest import Cli
from tests.system.queries.moments import percents
from tests.system.queries.moments import sampled as sampled_at
from tests.system.queries.postgres_work import (
    BURN_TEXT,
    DATABASE,
    SCAN,
    alone_and_mixed,
    backend_of,
    busy,
    client,
    come_and_go,
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


def sampled(server: PrivateServer, work: Callable[[], object]) -> tuple[StatementSamples, Parts]:
    """What was met while `work` ran."""
    assert server.pid is not None
    return sampled_at(TracedServer(server.pid, "", None, None, "postgresql"), work)


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
    rounds, known = 60, dict[str, float]()
    with points(server) as handle:

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

        for text in texts:
            for mark in ("alone", "mixed"):
                handle.prepare(marked(text, mark).encode(), marked(text, mark).encode())
        backend = backend_of(handle)
        with one_cpu_with(backend):
            moments, parts = sampled(server, lambda: known.update(alone_and_mixed(backend, list(texts), turn, rounds)))
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
    # Some 3,600 samples: the standard deviation of a share is 0.8 points.
    for text in texts:
        assert 100 * found[text] / sum(found.values()) == pytest.approx(known[text], abs=3), text
    assert {one.schema_name for one in parts.statements} == {DATABASE}
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
    with scanned_in_parallel(server) as handle:
        moments, parts = sampled(server, lambda: [run(handle, SCAN) for _ in range(5)])
    (scan,) = parts.statements
    assert scan.text == SCAN
    assert len({met.tid for met in moments.met if met.id}) > 1
    assert parts.connections_count == 1


def test_processes_that_come_and_go_are_connections_and_what_they_execute(server: PrivateServer) -> None:
    moments, parts = sampled(server, lambda: come_and_go(server))
    (burn,) = parts.statements
    assert burn.text == BURN_TEXT
    # Their birth and end are no statement's; each of them is a client's, whether it lives or not.
    assert parts.connections.c0_s > 0.05 * burn.c0_s
    assert parts.connections_count == 20
    assert sum(one.c0_s for one in parts.background) < 0.5 * (burn.c0_s + parts.connections.c0_s)
    assert moments.lost_count == 0


@pytest.mark.nightly
@other_releases
def test_other_releases_are_told_too(historical_build: ServerBuild) -> None:
    with shop(historical_build) as other:
        test_sleep_has_no_share_and_what_functions_execute_is_their_callers(other)
        test_parallel_workers_are_part_of_the_statement(other)
        test_processes_that_come_and_go_are_connections_and_what_they_execute(other)


def test_the_command_says_what_samples_tell(powerprof_cli: Cli, server: PrivateServer) -> None:
    with busy(server) as backend:
        words = ["queries", "--pid", str(backend), "--duration", "1", "--method", "samples", "--no-save"]
        found = powerprof_cli([*words, "--json", "-"])
        printed = powerprof_cli(words)
    assert found.code == 0, found.err
    record = json.loads(found.out)
    assert (record["method"], record["server"]["pid"]) == ("samples", server.pid)
    assert record["server"]["version"] == server.version
    first = record["statements"][0]
    assert (first["text"], first["schema_name"]) == (BURN_TEXT, DATABASE)
    assert first["low_percent"] <= first["c0_percent"] <= first["high_percent"]
    assert (first["calls_count"], first["latency_ms"]) == (None, None)
    parts = sum(one["c0_s"] for one in [*record["statements"], *record["background"]]) + record["other_c0_s"]
    assert parts == pytest.approx(record["server_c0_s"], rel=1e-9)
    assert printed.code == 0, printed.err
    said = " ".join(printed.out.split())
    assert "shares by samples" in said
    assert "calls are unknown" in said


def test_a_commit_at_sync_and_the_answer_belong_to_their_statement(server: PrivateServer) -> None:
    """PostgreSQL clears the text before both. The CPU clock of the client's process has the time of each."""
    upsert = "INSERT INTO counted VALUES ($1::int, 1) ON CONFLICT (k) DO UPDATE SET v = counted.v + 1"
    texts = {upsert: 1500, "SELECT count(*) FROM points WHERE c LIKE $1": 150}
    known: dict[str, int] = {}
    with points(server) as handle:
        run(handle, "CREATE TABLE counted (k int PRIMARY KEY, v int)")
        for text in texts:
            handle.prepare(text[:6].encode(), text.encode())
        backend = backend_of(handle)

        def work() -> None:
            for text, times in texts.items():
                before_ns = process_cpu_ns(backend) or 0
                for turn in range(times):
                    handle.exec_prepared(text[:6].encode(), [str(turn % 100).encode()])
                known[text] = (process_cpu_ns(backend) or 0) - before_ns

        work()
        with one_cpu_with(backend):
            _, parts = sampled(server, work)
        run(handle, "DROP TABLE counted")
    rows = {one.text: one for one in parts.statements}
    for text, spent_ns in known.items():
        row = rows[re.sub(r"\$1|\b1\b", "?", text)]
        assert row.low_percent is not None and row.high_percent is not None
        whole = 100 * spent_ns / sum(known.values())
        assert row.low_percent - 2 <= whole <= row.high_percent + 2, text
    # Reading the requests, and the time in the process between two system calls of an answer.
    assert parts.connections.c0_s < 0.25 * sum(one.c0_s for one in parts.statements)
