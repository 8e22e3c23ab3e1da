# SPDX-License-Identifier: Apache-2.0
"""`queries` on clients that ask in every way at once: each has the share that the clock of its own connection has."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import pymysql
import pytest
from pymysql.constants import CLIENT

from powerprof.database.builds import ServerBuild
from powerprof.database.private_server import PrivateServer
from powerprof.queries.join import Parts, join_trace
from powerprof.queries.target import TracedServer, ask_server
from powerprof.tracing.server_processes import read_run_ns
from powerprof.tracing.statements import QueryTracer
from tests.conftest import each_release
from tests.system.queries.mariadb_work import execute, prepare
from tests.system.queries.moments import sampled
from tests.system.queries.postgres_work import backend_of, client, shop
from tests.system.queries.postgres_work import run as ask

pytestmark = pytest.mark.usefixtures("root_bpf", "counts_statements")

COLUMNS = ", ".join(f"{number} AS a_column_of_many_{number}" for number in range(2600))
TRACE = "/* trace " + "0123456789abcdef " * 90 + "*/"
MARKS = ("prepared", "called", "several", "long_one", "long_other", "noted", "first_db", "second_db")


def burn(mark: str, times: int) -> str:
    return f"SELECT BENCHMARK({times}, SHA2('x', 256)) AS {mark}"


@dataclass
class Shape:
    """A way to ask: once, and the kernel's number of the thread that answers."""

    once: Callable[[], object]
    tid: int


def thread_of(connection: Any) -> int:
    with connection.cursor() as cursor:
        try:
            cursor.execute("SELECT TID FROM information_schema.PROCESSLIST WHERE ID = CONNECTION_ID()")
        except pymysql.MySQLError:
            cursor.execute("SELECT THREAD_OS_ID FROM performance_schema.threads WHERE PROCESSLIST_ID = CONNECTION_ID()")
        return int(cursor.fetchone()[0])


def shapes(server: PrivateServer, stack: ExitStack) -> dict[str, Shape]:
    """A connection for each way."""

    def connection(database: str) -> Any:
        options = {"database": database, "client_flag": CLIENT.MULTI_STATEMENTS}
        return stack.enter_context(closing(server.connect(**options)))

    with server.connect() as setting, setting.cursor() as cursor:
        for text in (
            "CREATE DATABASE one",
            "CREATE DATABASE two",
            "CREATE TABLE one.called (n INT)",
            f"CREATE TRIGGER one.t BEFORE INSERT ON one.called FOR EACH ROW SET @s = ({burn('called', 4000)})",
            f"CREATE PROCEDURE one.p() BEGIN DECLARE called INT; {burn('called', 8000).replace(' AS', ' INTO')};"
            " INSERT INTO one.called VALUES (1); DELETE FROM one.called; END",
        ):
            cursor.execute(text)

    def asking(text: str, database: str = "one") -> Shape:
        mine = connection(database)

        def once() -> None:
            with mine.cursor() as cursor:
                cursor.execute(text)
                while cursor.nextset():
                    pass

        return Shape(once, thread_of(mine))

    pooled = connection("one")
    number = prepare(pooled, burn("prepared", 14_000))
    return {
        "prepared": Shape(lambda: execute(pooled, number), thread_of(pooled)),
        "called": asking("CALL p()"),
        "several": asking(f"{burn('several', 6000)}; SELECT 2 AS several; {burn('several', 6000)}"),
        "long_one": asking(f"SELECT {COLUMNS}, {burn('long_one', 4000)[7:]}"),
        "long_other": asking(f"SELECT {COLUMNS}, {burn('long_other', 9000)[7:]}"),
        "noted": asking(f"{TRACE}{burn('noted', 16_000)}"),
        "first_db": asking(burn("somewhere", 9000)),
        "second_db": asking(burn("somewhere", 20_000), "two"),
    }


def at_once(made: Iterable[Shape], times: int) -> dict[int, int]:
    """Each client asks so many times, beside the others; thread → its CPU time by the scheduler."""
    made = list(made)
    before = {shape.tid: read_run_ns(shape.tid) or 0 for shape in made}
    clients = [threading.Thread(target=lambda one=shape: [one.once() for _ in range(times)]) for shape in made]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    time.sleep(0.05)  # the last answer comes before its thread has gone to wait
    return {tid: (read_run_ns(tid) or 0) - was for tid, was in before.items()}


def percents(spent: dict[str, float]) -> dict[str, float]:
    return {name: 100 * own / sum(spent.values()) for name, own in spent.items()}


def by_mark(parts: Parts, schemas: dict[str, str]) -> dict[str, float]:
    """What the rows of each shape sum to."""
    spent: dict[str, float] = defaultdict(float)
    for row in parts.statements:
        mark = next((mark for mark in MARKS if mark in row.text), None)
        if "somewhere" in row.text:
            mark = next(name for name, schema in schemas.items() if schema == row.schema_name)
        spent["called" if "CALL" in row.text else mark or row.text] += row.c0_s
    return spent


def check(found: dict[str, float], clock: dict[int, int], made: dict[str, Shape], points: float) -> None:
    known = percents({name: float(clock[shape.tid]) for name, shape in made.items()})
    told = percents({name: found.get(name, 0.0) for name in made})
    worst = max(abs(told[name] - known[name]) for name in made)
    print({name: (round(told[name], 2), round(known[name], 2)) for name in made})
    assert worst < points, {name: (round(told[name], 2), round(known[name], 2)) for name in made}
    others = {name: spent for name, spent in found.items() if name not in made}
    assert sum(others.values()) < 0.02 * sum(found.values()), others


def every_shape_has_its_share(build: ServerBuild | None, times: int, points: float) -> None:
    where = {"first_db": "one", "second_db": "two"}
    with PrivateServer(build=build, settings={"performance_schema": "OFF" if build is None else "ON"}) as server:
        reach = TracedServer(server.pid or 0, "", None, server.login)
        with ExitStack() as stack:
            made = shapes(server, stack)
            at_once(made.values(), 2)
            with QueryTracer(reach.pid) as tracer:
                tracer.attach()
                tracer.begin(timed=False)
                clock = at_once(made.values(), times)
                tracer.end()
                trace = tracer.collect()
            check(by_mark(join_trace(trace, ask_server(reach, running=False)), where), clock, made, points)
            assert trace.cut_count == trace.lost_count == 0
            clocks: list[dict[int, int]] = []
            _, parts = sampled(reach, lambda: clocks.append(at_once(made.values(), times)))
            check(by_mark(parts, where), clocks[0], made, points)


def test_every_shape_has_the_share_of_its_connection(mariadbd: Any) -> None:
    every_shape_has_its_share(None, 8, 2.5)


@pytest.mark.nightly
def test_every_shape_has_the_share_of_its_connection_within_a_point(mariadbd: Any) -> None:
    every_shape_has_its_share(None, 120, 1)


@pytest.mark.nightly
@each_release("mysql-9.7", "mariadb-11.8")
def test_every_shape_has_its_share_on_other_releases(historical_build: ServerBuild) -> None:
    every_shape_has_its_share(historical_build, 120, 1)


def every_shape_of_postgresql_has_its_share(build: ServerBuild | None, times: int, points: float) -> None:
    def burning(mark: str, rows: int) -> str:
        return f"SELECT (SELECT count(*) FROM generate_series(1, {rows}) n) AS {mark}"

    with shop(build) as server, ExitStack() as stack:
        names = ("prepared", "called", "long_one", "long_other", "noted", "several", "first_db")
        handles = {name: stack.enter_context(client(server)) for name in names}
        body = f"DECLARE called int; BEGIN {burning('x', 40_000)} INTO called; END"
        ask(handles["called"], f"CREATE FUNCTION p() RETURNS void LANGUAGE plpgsql AS $$ {body} $$")
        handles["prepared"].prepare(b"s", burning("prepared", 30_000).encode())
        ask(handles["first_db"], "BEGIN")
        ask(handles["first_db"], "DECLARE c CURSOR FOR SELECT n AS first_db FROM generate_series(1, 900000) n")
        columns = COLUMNS[: COLUMNS.index(", 1500 ")]
        texts = {
            "called": "SELECT p() AS called",
            "long_one": f"SELECT {columns}, {burning('long_one', 10_000)[7:]}",
            "long_other": f"SELECT {columns}, {burning('long_other', 25_000)[7:]}",
            "noted": f"{TRACE}{burning('noted', 60_000)}",
            "several": f"{burning('several', 9_000)}; {burning('several', 25_000)}",
            "first_db": "FETCH 3000 FROM c",
        }
        once: dict[str, Callable[[], object]] = {
            name: (lambda name=name, text=text: handles[name].exec_(text.encode()))  # type: ignore[misc]
            for name, text in texts.items()
        }
        once["prepared"] = lambda: handles["prepared"].exec_prepared(b"s", [])
        made = {name: Shape(once[name], backend_of(handle)) for name, handle in handles.items()}
        reach = TracedServer(server.pid or 0, "", None, None, "postgresql")
        with QueryTracer(reach.pid, "postgresql") as tracer:
            tracer.attach()
            tracer.begin(timed=False)
            clock = at_once(made.values(), times)
            tracer.end()
            trace = tracer.collect()
        check(by_mark(join_trace(trace, ask_server(reach, running=False)), {}), clock, made, points)
        del made["first_db"]  # by samples a FETCH has its own text
        clocks: list[dict[int, int]] = []
        _, parts = sampled(reach, lambda: clocks.append(at_once(made.values(), times)))
        check(by_mark(parts, {}), clocks[0], made, points)


def test_every_shape_of_postgresql_has_the_share_of_its_connection() -> None:
    every_shape_of_postgresql_has_its_share(None, 8, 2.5)


@pytest.mark.nightly
@each_release("postgresql-17")
def test_every_shape_of_postgresql_has_its_share_within_a_point(historical_build: ServerBuild) -> None:
    every_shape_of_postgresql_has_its_share(historical_build, 120, 1)
