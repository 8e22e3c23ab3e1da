# SPDX-License-Identifier: Apache-2.0
"""Statements that are shorter or longer than the window: one row each, in every window and by both methods."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest

from powerprof.database import sql
from powerprof.database.builds import ServerBuild
from powerprof.database.private_server import PrivateServer
from powerprof.measure.procfs import process_cpu_ns
from powerprof.queries.comparison import compare_queries
from powerprof.queries.records import Queries
from tests.conftest import Cli, each_release
from tests.system.queries.mariadb_work import BURN, BURN_TEXT

pytestmark = pytest.mark.usefixtures("root_bpf", "counts_statements")
_WINDOW_S = 1.0
_LOOP = "DO $$ BEGIN FOR i IN 1..{} LOOP PERFORM i * 2; END LOOP; END $$"
_CALIBRATED, _LEAST_S = 200_000, 0.05


class Load(msgspec.Struct, frozen=True):
    """A statement with a number of rounds, and its text in a report."""

    family: str
    text: str
    shown: str


LOADS = {"mariadb": Load("mariadb", BURN, BURN_TEXT), "postgresql": Load("postgresql", _LOOP, "DO ?")}


@contextmanager
def repeating(server: PrivateServer, load: Load, cpu_s: float, *, fresh: bool = False) -> Iterator[None]:
    """A client that executes the statement again and again, for this CPU time each. `fresh`: a connection for each."""
    stop = threading.Event()

    def execute(rounds: int) -> None:
        with server.connect() as connection:
            sql.execute(connection, load.text.format(rounds))

    def seconds_of(work: Callable[[int], None], rounds: int) -> float:
        began = time.thread_time(), time.monotonic()
        work(rounds)
        return time.monotonic() - began[1]

    # The shortest of three is the least disturbed one.
    each_s = max(min(seconds_of(execute, _CALIBRATED) for _ in range(3)), _LEAST_S / 50) / _CALIBRATED

    def client() -> None:
        rounds = int(cpu_s / each_s)
        while not stop.is_set():
            if fresh:
                execute(rounds)
                continue
            with server.connect() as connection:
                while not stop.is_set():
                    sql.execute(connection, load.text.format(rounds))

    worker = threading.Thread(target=client)
    worker.start()
    try:
        time.sleep(0.7 * cpu_s + 0.2)
        yield
    finally:
        stop.set()
        worker.join()


def windows(cli: Cli, server: PrivateServer, method: str = "probes", count: int = 2) -> list[Queries]:
    """Windows one after the other."""
    found = []
    for _ in range(count):
        words = ["queries", "--pid", str(server.pid), "--duration", str(_WINDOW_S), "--method", method, "--no-save"]
        result = cli([*words, "--meter", "none", "--json", "-"])
        assert result.code == 0, result.err
        found.append(msgspec.convert(json.loads(result.out), Queries))
    return found


def check(found: list[Queries], load: Load, start_s: float = 0.0) -> None:
    """One row has the CPU time of the server's clients, and is the same in all windows. `start_s`: of connections."""
    for window in found:
        first = window.statements[0]
        assert first.text == load.shown
        clients_s = window.server_c0_s - sum(one.c0_s for one in window.background)
        assert first.c0_s == pytest.approx(clients_s, rel=0.02, abs=0.004 + start_s)
        assert abs(window.other_c0_s) < max(0.01 * window.server_c0_s, 0.004) + start_s
        assert [one.text for one in window.statements].count(first.text) == 1
    before, after = found
    assert {one.id for one in before.statements} == {one.id for one in after.statements}
    compared = compare_queries(before, after, "")
    assert [change.became for change in compared.statements if change.became in ("new", "gone")] == []


@pytest.fixture(scope="module", params=list(LOADS))
def at_work(request: pytest.FixtureRequest) -> Iterator[tuple[PrivateServer, Load]]:
    load = LOADS[request.param]
    with PrivateServer(family=load.family) as server:
        yield server, load


# With 0.8, some windows have a whole call between two parts, others two parts alone.
@pytest.mark.parametrize("lengths", [0.1, 0.8, 3.0])
def test_a_statement_is_one_row_whenever_it_began(
    powerprof_cli: Cli, at_work: tuple[PrivateServer, Load], lengths: float
) -> None:
    server, load = at_work
    with repeating(server, load, lengths * _WINDOW_S):
        found = windows(powerprof_cli, server)
    check(found, load)
    for window in found:
        first = window.statements[0]
        assert first.began_before_count == 1
        assert first.wakeups_count is not None and first.page_faults_count is not None
        if first.calls_count == 1:
            assert (first.unfinished_count, first.c0_ms_per_call, first.latency_ms) == (1, None, None)
            assert any("no call that began and ended within the window" in str(note) for note in window.notes)


# Nightly until its cause is known: on a slow guest, windows of PostgreSQL lacked up to half of such a statement's time.
@pytest.mark.nightly
def test_so_is_that_of_connections_that_come_and_go(powerprof_cli: Cli, at_work: tuple[PrivateServer, Load]) -> None:
    server, load = at_work
    with repeating(server, load, 0.6 * _WINDOW_S, fresh=True):
        check(windows(powerprof_cli, server), load, start_s=0.03)


def test_probes_and_samples_have_one_id_and_one_version(
    powerprof_cli: Cli, at_work: tuple[PrivateServer, Load]
) -> None:
    server, load = at_work
    with repeating(server, load, 1.5 * _WINDOW_S):
        (probed,), (sampled,) = (windows(powerprof_cli, server, method, 1) for method in ("probes", "samples"))
    check([probed, sampled], load)
    assert probed.server.version == sampled.server.version is not None


def test_a_procedure_is_its_call_where_the_server_tells(powerprof_cli: Cli) -> None:
    """In its thread's memory is the text of its present statement until it ends."""
    with PrivateServer(family="mariadb", settings={"performance_schema": "ON"}) as server:
        with server.connect() as connection:
            sql.execute(
                connection,
                "UPDATE performance_schema.setup_consumers SET ENABLED = 'YES'"
                " WHERE NAME = 'events_statements_current'",
            )
            sql.execute(connection, "CREATE DATABASE shop")
            sql.execute(
                connection,
                "CREATE PROCEDURE shop.burn() BEGIN DECLARE i INT DEFAULT 0; WHILE i < 100000 DO"
                " SELECT BENCHMARK(20000, SHA2('x', 256)) INTO @x; SET i = i + 1; END WHILE; END",
            )
        caller = server.connect()

        def call() -> None:
            with pytest.raises(Exception), caller.cursor() as cursor:  # it is killed
                cursor.execute("CALL shop.burn()")

        assert server.pid is not None
        began_ns = process_cpu_ns(server.pid) or 0
        worker = threading.Thread(target=call)
        worker.start()
        while (process_cpu_ns(server.pid) or 0) < began_ns + 200_000_000:
            time.sleep(0.02)
        found = windows(powerprof_cli, server)
        with server.connect() as connection:
            sql.execute(connection, f"KILL {caller.thread_id()}")
        worker.join()
    check(found, Load("mariadb", "", "CALL shop.burn()"))


@each_release("mysql-9.7")
def test_statements_of_another_release_are_one_row_too(powerprof_cli: Cli, historical_build: ServerBuild) -> None:
    with (
        PrivateServer(build=historical_build, family=historical_build.family) as server,
        repeating(server, LOADS["mariadb"], 1.5 * _WINDOW_S),
    ):
        check(windows(powerprof_cli, server), LOADS["mariadb"])
