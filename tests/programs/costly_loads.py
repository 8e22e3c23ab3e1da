# SPDX-License-Identifier: Apache-2.0
"""Real servers with one costly cause each, and healthy servers, for the first sentence of `diagnose`.

`python -m tests.programs.costly_loads [mysql-9.7] [NAME...]` prints the first sentence for each of them.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from powerprof.database import sql
from powerprof.database.base import Login
from powerprof.database.builds import ServerBuild
from powerprof.database.catalogue import load_build
from powerprof.database.private_server import PrivateServer
from powerprof.database.server_options import ServerOptions
from powerprof.database.settings import Setting
from powerprof.database.topology import ServerTopology
from powerprof.diagnosis.evidence import Diagnosis
from powerprof.report.diagnosis import answer_of, document
from powerprof.report.document import View
from powerprof.report.render.terminal import render_terminal
from powerprof.system.errors import PowerprofError
from tests.programs.option_files import write_options
from tests.programs.waiting import wait_until
from tests.system.queries.postgres_work import initialised_with

Work = Callable[[Any], object]
_PASSWORD = "costly-loads"


@dataclass
class Place:
    """What to diagnose: a process, and the option file of an account if the server has one."""

    pid: int
    options: Path | None = None


# MariaDB has tables of numbers.
_SEQUENCES = (2000, 60_000, 80_000, 300_000)


def _create_sequence(most: int) -> str:
    numbers = (
        f"WITH RECURSIVE n (seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM n WHERE seq < {most}) SELECT seq FROM n"
    )
    return f"CREATE TABLE shop.seq_1_to_{most} AS {numbers}"


@dataclass
class Servers:
    """The servers that loads share. Each is started by the first load that needs it."""

    stack: ExitStack
    folder: Path
    build: ServerBuild | None = None
    running: dict[str, PrivateServer] = field(default_factory=dict)

    def mariadb(self) -> PrivateServer:
        """Return a MariaDB, or the MySQL of `build`, with the schema `shop` and the accounts app, mon and web."""
        if "mariadb" not in self.running:
            options = ServerOptions(settings={"max_connections": 400}, build=self.build)
            server = self.stack.enter_context(PrivateServer(options))
            with server.connect() as connection:
                sql.execute(connection, "CREATE DATABASE shop")
                if "MySQL" in server.version:
                    sql.execute(connection, "SET cte_max_recursion_depth = 1000000", *map(_create_sequence, _SEQUENCES))
                for name in ("app", "mon", "web"):
                    sql.execute(connection, f"CREATE USER {name}@localhost IDENTIFIED BY '{_PASSWORD}'")
                    sql.execute(connection, f"GRANT ALL ON *.* TO {name}@localhost")
            self.running["mariadb"] = server
        return self.running["mariadb"]

    def postgres(self) -> PrivateServer:
        """Return a PostgreSQL with the database `shop` and the roles app, mon and web."""
        if "postgres" not in self.running:
            settings = {"autovacuum": False, "wal_level": "logical", "max_connections": 200}
            self.running["postgres"] = self.stack.enter_context(postgres_with(settings))
        return self.running["postgres"]

    def place(self, server: PrivateServer) -> Place:
        """Return the server with an account for powerprof."""
        if server.login.family == "postgresql":
            return Place(server.pid)
        return Place(server.pid, write_options(self.folder / f"{server.pid}.cnf", server.login))


@contextmanager
def postgres_with(settings: Mapping[str, Setting]) -> Iterator[PrivateServer]:
    """Yield a PostgreSQL of these settings, with the database `shop` and its roles."""
    roles = [f"CREATE ROLE {name} LOGIN REPLICATION CREATEDB IN ROLE pg_monitor" for name in ("app", "mon", "web")]
    with pytest.MonkeyPatch.context() as patch:
        initialised_with(patch, roles, "local all,replication app,mon,web trust\n")
        server = PrivateServer(family="postgresql", settings=settings)
        server.__enter__()
    try:
        with connect(server, "app", "postgres") as connection:
            sql.execute(connection, "CREATE DATABASE shop")
        with connect(server, "app") as connection:
            sql.execute(connection, "GRANT ALL ON SCHEMA public TO PUBLIC")
        yield server
    finally:
        server.__exit__(None, None, None)


def connect(server: PrivateServer, user: str, database: str = "shop") -> Any:
    """Return a connection of an account."""
    login: Login = server.login.with_account(user, _PASSWORD)
    return sql.connect(login, timeout_s=30, database=database)


@contextmanager
def repeated(server: PrivateServer, user: str, work: Work, pause_s: float = 0.0, clients: int = 1) -> Iterator[None]:
    """Clients that do it again and again on their connections."""
    ended = threading.Event()

    def client() -> None:
        with suppress(PowerprofError, OSError), connect(server, user) as connection:
            while not ended.is_set():
                work(connection)
                ended.wait(pause_s)

    with _threads(client, clients, ended, server):
        yield


@contextmanager
def reconnected(server: PrivateServer, user: str, work: Work, pause_s: float = 0.0) -> Iterator[None]:
    """A client that connects for each piece of work."""
    ended = threading.Event()

    def client() -> None:
        while not ended.is_set():
            with suppress(PowerprofError, OSError), connect(server, user) as connection:
                work(connection)
            ended.wait(pause_s)

    with _threads(client, 1, ended, server):
        yield


@contextmanager
def _threads(client: Callable[[], None], count: int, ended: threading.Event, server: PrivateServer) -> Iterator[None]:
    threads = [threading.Thread(target=client, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    try:
        yield
    finally:
        ended.set()
        _end_statements(server)
        for thread in threads:
            thread.join(30)


def _end_statements(server: PrivateServer) -> None:
    """End the statements of the loads, which may take seconds."""
    with suppress(PowerprofError), server.connect() as connection:
        if server.login.family == "postgresql":
            them = "usename IN ('app', 'mon', 'web')"
            sql.fetch_rows(connection, f"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE {them}")
            return
        rows = sql.fetch_rows(
            connection, "SELECT ID FROM information_schema.processlist WHERE USER IN ('app', 'mon', 'web')"
        )
        for (number,) in rows:
            with suppress(PowerprofError):
                sql.execute(connection, f"KILL QUERY {number}")


def fetch(statement: str) -> Work:
    return lambda connection: sql.fetch_rows(connection, statement)


def change(statement: str) -> Work:
    return lambda connection: sql.execute(connection, statement)


def prepare(server: PrivateServer, *statements: str) -> None:
    with connect(server, "app") as connection:
        sql.execute(connection, *statements)


# MariaDB


@contextmanager
def long_statement(servers: Servers) -> Iterator[Place]:
    server = servers.mariadb()
    with repeated(server, "app", fetch("SELECT BENCHMARK(4000000, SHA2(RAND(), 256))")):
        yield servers.place(server)


@contextmanager
def information_schema(servers: Servers) -> Iterator[Place]:
    server = servers.mariadb()
    with connect(server, "app") as connection:
        for number in range(250):
            sql.execute(connection, f"CREATE TABLE IF NOT EXISTS shop.small{number} (id INT PRIMARY KEY, v INT)")
    text = (
        "SELECT TABLE_SCHEMA, TABLE_NAME, IFNULL(ENGINE, 'NONE') e, IFNULL(TABLE_ROWS, '0') n FROM "
        "information_schema.tables WHERE TABLE_SCHEMA NOT IN ('mysql', 'performance_schema', 'sys')"
    )
    with repeated(server, "mon", fetch(text), 0.06):
        yield servers.place(server)


@contextmanager
def table_scan(servers: Servers) -> Iterator[Place]:
    server = servers.mariadb()
    prepare(
        server,
        "CREATE TABLE IF NOT EXISTS shop.orders (id INT PRIMARY KEY, customer INT, note CHAR(80))",
        "REPLACE INTO shop.orders SELECT seq, seq % 997, seq FROM seq_1_to_60000",
    )
    with repeated(server, "app", fetch("SELECT id FROM shop.orders WHERE customer = 5"), 0.1):
        yield servers.place(server)


@contextmanager
def temporary_tables(servers: Servers) -> Iterator[Place]:
    server = servers.mariadb()
    text = "SELECT k, COUNT(*) FROM (SELECT seq * 7 % 40009 AS k FROM seq_1_to_80000) s GROUP BY k ORDER BY 2 LIMIT 3"

    def spill(connection: Any) -> None:
        sql.execute(connection, "SET SESSION tmp_table_size = 16384, max_heap_table_size = 16384")
        sql.fetch_rows(connection, text)

    with repeated(server, "app", spill, 0.05):
        yield servers.place(server)


@contextmanager
def big_sort(servers: Servers) -> Iterator[Place]:
    server = servers.mariadb()
    text = "SELECT seq FROM seq_1_to_300000 ORDER BY SHA2(seq, 256) LIMIT 5"
    with repeated(server, "web", fetch(text), 0.1):
        yield servers.place(server)


@contextmanager
def leak(servers: Servers) -> Iterator[Place]:
    with _leaked(servers.mariadb()) as server:
        yield servers.place(server)


@contextmanager
def postgres_leak(servers: Servers) -> Iterator[Place]:
    with _leaked(servers.postgres()) as server:
        yield servers.place(server)


@contextmanager
def _leaked(server: PrivateServer) -> Iterator[PrivateServer]:
    ended = threading.Event()
    held: list[Any] = []

    def client() -> None:
        while not ended.is_set() and len(held) < 180:
            with suppress(PowerprofError):
                held.append(connect(server, "web"))
                sql.fetch_rows(held[-1], "SELECT 1")
            ended.wait(0.1)

    with _threads(client, 1, ended, server):
        yield server
    for connection in held:
        with suppress(PowerprofError, OSError):
            connection.close()


@contextmanager
def reconnects(servers: Servers) -> Iterator[Place]:
    server = servers.mariadb()
    with reconnected(server, "web", fetch("SELECT 1"), 0.005):
        yield servers.place(server)


@contextmanager
def reconnects_with_work(servers: Servers) -> Iterator[Place]:
    """A client that reconnects, whose statement is the cost."""
    server = servers.mariadb()
    with reconnected(server, "app", fetch("SELECT BENCHMARK(150000, SHA2(RAND(), 512))"), 0.1):
        yield servers.place(server)


@contextmanager
def event(servers: Servers) -> Iterator[Place]:
    server = servers.mariadb()
    prepare(
        server,
        "CREATE EVENT shop.burn ON SCHEDULE EVERY 1 SECOND DO SET @s = BENCHMARK(600000, SHA2(RAND(), 256))",
        "SET GLOBAL event_scheduler = ON",
    )
    time.sleep(1.2)
    try:
        yield servers.place(server)
    finally:
        prepare(server, "DROP EVENT shop.burn", "SET GLOBAL event_scheduler = OFF")


@contextmanager
def applier(servers: Servers) -> Iterator[Place]:
    """A replica that looks for each changed row in a table without a key."""
    options = ServerOptions(settings={"binlog-format": "ROW"})
    with ServerTopology("primary-replica", 2, options=options) as topology, ExitStack() as stack:
        primary, replica = topology["primary"].server, topology["replica-1"].server
        with primary.connect() as connection:
            sql.execute(
                connection,
                "CREATE DATABASE shop",
                "USE shop",
                "CREATE TABLE nokey (n INT, v INT)",
                "INSERT INTO nokey SELECT seq, 0 FROM seq_1_to_20000",
                f"CREATE USER app@localhost IDENTIFIED BY '{_PASSWORD}'",
                "GRANT ALL ON *.* TO app@localhost",
                "CREATE INDEX n ON shop.nokey (n)",
            )
        with replica.connect() as connection:

            def has_rows() -> bool:
                with suppress(PowerprofError):
                    return bool(sql.fetch_rows(connection, "SELECT 1 FROM shop.nokey FORCE INDEX (n) LIMIT 1"))
                return False

            wait_until(has_rows, "the table on the replica")
            sql.execute(connection, "DROP INDEX n ON shop.nokey")
        numbers = iter(range(1, 10_000_000))
        stack.enter_context(
            repeated(
                primary,
                "app",
                lambda connection: sql.execute(
                    connection, f"UPDATE shop.nokey SET v = v + 1 WHERE n = {19_000 + next(numbers) % 999}"
                ),
                0.02,
            )
        )
        time.sleep(0.5)
        yield servers.place(replica)


# PostgreSQL


@contextmanager
def procedural_loop(servers: Servers) -> Iterator[Place]:
    server = servers.postgres()
    text = "DO $$ BEGIN FOR i IN 1..9000000 LOOP PERFORM 1; END LOOP; END $$"
    with repeated(server, "app", change(text)):
        yield servers.place(server)


@contextmanager
def queue_poll(servers: Servers) -> Iterator[Place]:
    server = servers.postgres()
    prepare(
        server,
        "DROP TABLE IF EXISTS jobs",
        "CREATE TABLE jobs (id bigserial PRIMARY KEY, state text NOT NULL, run_at timestamptz NOT NULL, payload text)",
        "INSERT INTO jobs (state, run_at, payload) "
        "SELECT 'done', now() - interval '1 day', repeat('x', 100) FROM generate_series(1, 20000)",
        "CREATE INDEX ON jobs (state, run_at)",
        "ANALYZE jobs",
    )
    text = (
        "UPDATE jobs SET state = 'running' WHERE id = (SELECT id FROM jobs WHERE state = 'queued' AND run_at <= now() "
        "ORDER BY run_at FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING id"
    )
    with repeated(server, "app", fetch(text), 0.05, clients=8):
        yield servers.place(server)


@contextmanager
def jit(servers: Servers) -> Iterator[Place]:
    server = servers.postgres()
    prepare(
        server,
        "CREATE TABLE IF NOT EXISTS points AS SELECT n AS id, n % 97 AS k FROM generate_series(1, 2000) n",
        "ANALYZE points",
    )

    def compiled(connection: Any) -> None:
        sql.execute(connection, "SET jit = on", "SET jit_above_cost = 0", "SET jit_optimize_above_cost = 0")
        sql.execute(connection, "SET jit_inline_above_cost = 0")
        sql.fetch_rows(connection, "SELECT k, sum(id), avg(id * 2), max(id + k) FROM points WHERE id > 5 GROUP BY k")

    with repeated(server, "app", compiled, 0.05):
        yield servers.place(server)


@contextmanager
def walsender(servers: Servers) -> Iterator[Place]:
    """A subscriber of few changes, for whom the server decodes all of them."""
    server = servers.postgres()
    prepare(server, "CREATE TABLE IF NOT EXISTS busy (id serial PRIMARY KEY, v text)")
    with connect(server, "web") as connection:
        sql.fetch_rows(connection, "SELECT pg_create_logical_replication_slot('reader', 'test_decoding')")
    words = ["/usr/lib/postgresql/15/bin/pg_recvlogical", "-h", str(server.socket.parent), "-U", "web", "-d", "shop"]
    # The socket belongs to the server's account.
    with subprocess.Popen(
        [*words, "--slot", "reader", "--start", "-f", "/dev/null"], env={"PGPASSWORD": _PASSWORD}
    ) as reader:
        text = "INSERT INTO busy (v) SELECT repeat('x', 20) FROM generate_series(1, 3000)"
        try:
            with repeated(server, "app", change(text), 0.05):
                yield servers.place(server)
        finally:
            reader.kill()
            reader.wait()
            time.sleep(0.3)
            with connect(server, "web") as connection:
                sql.fetch_rows(connection, "SELECT pg_drop_replication_slot('reader')")
            prepare(server, "DROP TABLE busy")


@contextmanager
def autovacuum(servers: Servers) -> Iterator[Place]:
    settings = {
        "autovacuum": True,
        "autovacuum_naptime": "1s",
        "autovacuum_vacuum_cost_delay": "0",
        "autovacuum_vacuum_threshold": 50,
        "autovacuum_vacuum_scale_factor": "0",
        "autovacuum_max_workers": 3,
        "vacuum_cost_limit": 10000,
    }
    with postgres_with(settings) as server:
        prepare(
            server,
            "CREATE TABLE big AS SELECT n AS id, n % 7 AS k, md5(n::text) AS v FROM generate_series(1, 400000) n",
            "CREATE INDEX ON big (k)",
            "CREATE INDEX ON big (v)",
            "CREATE INDEX ON big (id)",
            "ALTER TABLE big SET (vacuum_index_cleanup = on)",
        )
        numbers = iter(range(1, 10_000_000))

        def touch(connection: Any) -> None:
            first = 100 * (next(numbers) % 4000)
            sql.execute(connection, f"UPDATE big SET k = k + 1 WHERE id BETWEEN {first} AND {first + 30}")

        with repeated(server, "app", touch, 0.25):
            time.sleep(2)
            yield servers.place(server)


@contextmanager
def postgres_scan(servers: Servers) -> Iterator[Place]:
    server = servers.postgres()
    prepare(
        server,
        "CREATE TABLE IF NOT EXISTS orders AS SELECT n AS id, n % 997 AS customer FROM generate_series(1, 80000) n",
    )
    with repeated(server, "app", fetch("SELECT id FROM orders WHERE customer = -1"), 0.05):
        yield servers.place(server)


@contextmanager
def postgres_reconnects(servers: Servers) -> Iterator[Place]:
    server = servers.postgres()
    with reconnected(server, "web", fetch("SELECT 1"), 0.01):
        yield servers.place(server)


@contextmanager
def idle_in_transaction(servers: Servers) -> Iterator[Place]:
    """A transaction that is left open, so that each look at a hot row passes all its old versions."""
    server = servers.postgres()
    prepare(
        server,
        "DROP TABLE IF EXISTS hot",
        "CREATE TABLE hot (id int PRIMARY KEY, n int) WITH (fillfactor = 10)",
        "INSERT INTO hot VALUES (1, 0)",
        "GRANT SELECT ON hot TO PUBLIC",
    )
    with connect(server, "web") as forgotten:
        sql.execute(forgotten, "BEGIN ISOLATION LEVEL REPEATABLE READ")
        sql.fetch_rows(forgotten, "SELECT count(*) FROM hot")
        with connect(server, "app") as connection:
            sql.execute(connection, "DO $$ BEGIN FOR i IN 1..20000 LOOP UPDATE hot SET n = n + 1; END LOOP; END $$")
        with repeated(server, "app", fetch("SELECT n FROM hot WHERE id = 1"), 0.002):
            yield servers.place(server)
        sql.execute(forgotten, "ROLLBACK")


# Other programs


@contextmanager
def program(*words: str) -> Iterator[Place]:
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            time.sleep(1.0)
            yield Place(process.pid)
        finally:
            process.kill()


def node(servers: Servers) -> AbstractContextManager[Place]:
    script = "setInterval(() => { const end = Date.now() + 60; let n = 0; while (Date.now() < end) n++; }, 200)"
    return program("node", "-e", script)


@contextmanager
def redis_scan(servers: Servers) -> Iterator[Place]:
    place = str(servers.folder / "redis.sock")
    words = ("redis-server", "--port", "0", "--unixsocket", place, "--save", "", "--appendonly", "no", "--hz", "1")
    with program(*words, "--dir", str(servers.folder)) as server:
        fill = "for i=1,200000 do redis.call('SET','key'..i,i) end"
        subprocess.run(["redis-cli", "-s", place, "EVAL", fill, "0"], check=True, stdout=subprocess.DEVNULL)
        load = f"while redis-cli -s {place} KEYS 'none*'; do sleep 0.05; done"
        with program("sh", "-c", load):
            yield server


@contextmanager
def neighbour(servers: Servers) -> Iterator[Place]:
    """A healthy server on a host whose CPU time another program uses."""
    with program(sys.executable, "-c", "while True: sum(range(10000))"), healthy_idle(servers) as place:
        yield place


# Healthy servers


@contextmanager
def healthy_idle(servers: Servers) -> Iterator[Place]:
    yield servers.place(servers.mariadb())


@contextmanager
def postgres_idle(servers: Servers) -> Iterator[Place]:
    yield servers.place(servers.postgres())


def serve_shop(texts: Sequence[str]) -> Callable[[Any], None]:
    """Return a client that sends these statements with other numbers each time."""
    numbers = iter(range(10_000_000))

    def serve(connection: Any) -> None:
        for text in texts:
            number = next(numbers) % 1900
            sql.fetch_rows(connection, text.format(number, number))
            time.sleep(0.008)  # on a busy host a statement costs more, and all of them must stay below 3 % of a CPU

    return serve


@contextmanager
def mixed(servers: Servers) -> Iterator[Place]:
    """A shop: ten kinds of cheap statements, none of which has most of the CPU time."""
    server = servers.mariadb()
    prepare(
        server,
        "CREATE TABLE IF NOT EXISTS shop.stock (id INT PRIMARY KEY, k INT, v INT, KEY (k))",
        "REPLACE INTO shop.stock SELECT seq, seq % 100, 0 FROM seq_1_to_2000",
    )
    texts = [
        *(f"SELECT v FROM shop.stock WHERE id = {{}} AND {number} = {number}" for number in range(2)),
        "SELECT k FROM shop.stock WHERE id = {} OR id = 3",
        "SELECT COUNT(*) FROM shop.stock WHERE k = {} % 100",
        "SELECT MAX(v) FROM shop.stock WHERE id BETWEEN {} AND 30 + {}",
        "SELECT id, k FROM shop.stock WHERE id = {}",
        "SELECT v + 1 FROM shop.stock WHERE id > {} LIMIT 2",
    ]
    with repeated(server, "app", serve_shop(texts), 0.02, clients=2):
        yield servers.place(server)


@contextmanager
def postgres_mixed(servers: Servers) -> Iterator[Place]:
    server = servers.postgres()
    prepare(
        server,
        "CREATE TABLE IF NOT EXISTS stock (id int PRIMARY KEY, k int, v int)",
        "INSERT INTO stock SELECT n, n % 100, 0 FROM generate_series(1, 2000) n ON CONFLICT DO NOTHING",
        "CREATE INDEX IF NOT EXISTS stock_k ON stock (k)",
        "ANALYZE stock",
    )
    texts = [
        "SELECT v FROM stock WHERE id = {}",
        "SELECT k FROM stock WHERE id = {} OR id = 3",
        "SELECT count(*) FROM stock WHERE k = {} % 100",
        "SELECT max(v) FROM stock WHERE id BETWEEN {} AND 30 + {}",
        "SELECT id, k FROM stock WHERE id = {}",
        "SELECT v + 1 FROM stock WHERE id > {} ORDER BY id LIMIT 2",
    ]
    with repeated(server, "app", serve_shop(texts), 0.02, clients=2):
        yield servers.place(server)


@contextmanager
def scraped(servers: Servers) -> Iterator[Place]:
    """An exporter that scrapes every 3 s."""
    server = servers.mariadb()
    with repeated(server, "mon", fetch("SHOW GLOBAL STATUS LIKE 'Threads%'"), 3.0):
        yield servers.place(server)


@contextmanager
def postgres_scraped(servers: Servers) -> Iterator[Place]:
    server = servers.postgres()
    with repeated(server, "mon", fetch("SELECT count(*) FROM pg_stat_activity"), 3.0):
        yield servers.place(server)


@contextmanager
def waiting(servers: Servers, server: PrivateServer) -> Iterator[Place]:
    """Many connections that wait for work."""
    with ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(connect(server, "app"))
        yield servers.place(server)


def pool(servers: Servers) -> AbstractContextManager[Place]:
    return waiting(servers, servers.mariadb())


def postgres_pool(servers: Servers) -> AbstractContextManager[Place]:
    return waiting(servers, servers.postgres())


@contextmanager
def pool_that_grows_once(servers: Servers) -> Iterator[Place]:
    """A pool that opens ten connections in the window, uses them, and keeps them."""
    server = servers.mariadb()
    ended = threading.Event()
    held: list[Any] = []

    def client() -> None:
        ended.wait(1.5)
        for _ in range(10):
            with suppress(PowerprofError):
                held.append(connect(server, "web"))

    with _threads(client, 1, ended, server):
        yield servers.place(server)
    for connection in held:
        with suppress(PowerprofError, OSError):
            connection.close()


@contextmanager
def slow_heartbeat(servers: Servers) -> Iterator[Place]:
    """A health check that connects every two seconds."""
    server = servers.mariadb()
    with reconnected(server, "web", fetch("SELECT 1"), 2.0):
        yield servers.place(server)


@contextmanager
def light_queue(servers: Servers) -> Iterator[Place]:
    """A worker that looks at its queue once a second."""
    server = servers.postgres()
    prepare(server, "CREATE TABLE IF NOT EXISTS few (id int PRIMARY KEY, state text)")
    with repeated(server, "app", fetch("SELECT id FROM few WHERE id = 1 AND state = 'new'"), 1.0):
        yield servers.place(server)


@contextmanager
def replica(servers: Servers) -> Iterator[Place]:
    """A replica of an idle source."""
    with ServerTopology("primary-replica", 2) as topology:
        time.sleep(1)
        yield servers.place(topology["replica-1"].server)


@contextmanager
def redis_idle(servers: Servers) -> Iterator[Place]:
    words = ("redis-server", "--port", "0", "--save", "", "--appendonly", "no", "--hz", "1")
    with program(*words, "--unixsocket", str(servers.folder / "idle.sock"), "--dir", str(servers.folder)) as place:
        yield place


def node_idle(servers: Servers) -> AbstractContextManager[Place]:
    return program("node", "-e", "setInterval(() => {}, 5000)")


@contextmanager
def transaction_at_work(servers: Servers) -> Iterator[Place]:
    """Short transactions that end."""
    server = servers.postgres()

    def work(connection: Any) -> None:
        sql.execute(connection, "BEGIN")
        sql.fetch_rows(connection, "SELECT 1")
        sql.execute(connection, "COMMIT")

    with repeated(server, "app", work, 0.5):
        yield servers.place(server)


@dataclass(frozen=True)
class Load:
    """A server with its cause, and the words that the first sentence must contain; none for a healthy server."""

    name: str
    start: Callable[[Servers], AbstractContextManager[Place]]
    words: tuple[str, ...] = ()


COSTLY = (
    Load("long statement", long_statement, ("app@localhost", r"SELECT BENCHMARK\(", "% of")),
    Load("information_schema", information_schema, ("mon@localhost", "information_schema")),
    Load("table scan", table_scan, ("app@localhost", "whole table")),
    Load("temporary tables", temporary_tables, ("app@localhost", "GROUP BY|SELECT k")),
    Load("big sort", big_sort, ("web@localhost", "ORDER BY|SELECT seq")),
    Load("leak", leak, ("web@localhost", "leak|without closing|never closes")),
    Load("reconnects", reconnects, ("web@localhost", "connect")),
    Load("reconnects with work", reconnects_with_work, ("app@localhost", "SELECT BENCHMARK")),
    Load("event", event, ("shop.burn",)),
    Load("applier", applier, ("replication|replica", "appl|SQL thread|slave_sql")),
    Load("procedural loop", procedural_loop, ("app@localhost", r"DO ")),
    Load("queue poll", queue_poll, ("app@localhost", "UPDATE jobs", "times/s")),
    Load("jit", jit, ("app@localhost", "JIT")),
    Load("walsender", walsender, ("walsender", "web")),
    Load("autovacuum", autovacuum, ("[Aa]utovacuum",)),
    Load("postgres scan", postgres_scan, ("app@localhost", "whole table")),
    Load("postgres reconnects", postgres_reconnects, ("web@localhost", "connect")),
    Load("postgres leak", postgres_leak, ("web@localhost", "does not close")),
    Load("idle in transaction", idle_in_transaction, ("app@localhost", "SELECT n FROM hot", "transaction of web")),
    Load("node", node, ("node", "% of one CPU")),
    Load("redis scan", redis_scan, ("redis", "% of one CPU")),
)
HEALTHY = (
    Load("idle MariaDB", healthy_idle),
    Load("idle PostgreSQL", postgres_idle),
    Load("shop on MariaDB", mixed),
    Load("shop on PostgreSQL", postgres_mixed),
    Load("scraped MariaDB", scraped),
    Load("scraped PostgreSQL", postgres_scraped),
    Load("pool of MariaDB", pool),
    Load("pool of PostgreSQL", postgres_pool),
    Load("pool that grows once", pool_that_grows_once),
    Load("slow heartbeat", slow_heartbeat),
    Load("light queue", light_queue),
    Load("replica", replica),
    Load("idle redis", redis_idle),
    Load("idle node", node_idle),
    Load("short transactions", transaction_at_work),
    Load("neighbour", neighbour, ("Another program of this host uses",)),
)


OF_MYSQL = (
    *("long statement", "information_schema", "table scan", "temporary tables", "big sort", "leak", "reconnects"),
    *("reconnects with work", "event", "shop on MariaDB"),
)
"""The loads that also run on MySQL. Its own threads wake often enough for a fault: an idle one is not silent."""


@contextmanager
def shared_servers(build: ServerBuild | None = None) -> Iterator[Servers]:
    """Yield the servers; `build` replaces MariaDB."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        Path(folder).chmod(0o711)
        yield Servers(stack, Path(folder), build)


def names_cause(load: Load, first: str) -> bool:
    """Return whether the first sentence names the cause, or is silent for a healthy server."""
    if first.startswith(("No known problem", "Not visible")) is not (load in HEALTHY):
        return False
    return all(re.search(word, first) for word in load.words)


def diagnose(place: Place, duration_s: float = 3.0) -> Diagnosis:
    """Return the record of the command."""
    named = [] if place.options is None else ["--defaults-file", str(place.options)]
    words = ["diagnose", "--pid", str(place.pid), *named, "--duration", str(duration_s), "--no-save", "--json", "-"]
    command = [sys.executable, "-m", "powerprof", *words]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout, type=Diagnosis)


def main(names: Sequence[str]) -> int:
    right = wrong = 0
    release = next((name for name in names if re.fullmatch(r"mysql-[\d.]+", name)), None)
    names = [name for name in names if name != release]
    with shared_servers(load_build(release) if release else None) as servers:
        for load in (*COSTLY, *HEALTHY):
            if (names and load.name not in names) or (release and load.name not in OF_MYSQL):
                continue
            began_s = time.monotonic()
            with load.start(servers) as place:
                found = diagnose(place)
            first = answer_of(found)
            is_right = names_cause(load, first)
            right, wrong = right + is_right, wrong + (not is_right)
            print(f"{'ok ' if is_right else 'BAD'} {time.monotonic() - began_s:4.1f} s  {load.name}: {first}")
            if names:
                print(*render_terminal(document(found, View(everything=True)), 140), sep="\n")
            sys.stdout.flush()
    print(f"{right} right, {wrong} wrong")
    return wrong


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
