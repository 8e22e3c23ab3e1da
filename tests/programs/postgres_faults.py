# SPDX-License-Identifier: Apache-2.0
"""Real faults of a real PostgreSQL for `diagnose` by SQL and by processes, and healthy servers next to them."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from powerprof.database import sql
from powerprof.database.private_server import PrivateServer
from powerprof.diagnosis.collect import ServerReadings, Subject, build_evidence, inspect_server
from powerprof.diagnosis.diagnose import diagnose
from powerprof.diagnosis.evidence import Evidence, Finding
from powerprof.system.errors import PowerprofError
from powerprof.system.targets import Target
from tests.programs.costly_loads import connect
from tests.programs.waiting import wait_until
from tests.system.queries.postgres_work import initialised_with

_SETTINGS = {"wal_level": "logical", "archive_mode": "on", "wal_init_zero": "off"}
_ROOM = {"max_connections": 100, "max_logical_replication_workers": 8, "max_worker_processes": 24}
_CHANGE = re.compile(r"(?:ALTER (?:SYSTEM|ROLE)|SELECT pg_catalog\.).*")


@contextmanager
def postgres() -> Iterator[PrivateServer]:
    """Yield a server with the superuser boss and the account app, which owns the database shop."""
    with pytest.MonkeyPatch.context() as patch:
        roles = ["CREATE ROLE boss SUPERUSER LOGIN", "CREATE ROLE app LOGIN CREATEDB", "CREATE DATABASE shop OWNER app"]
        initialised_with(patch, roles, "local all,replication boss,app trust\n")
        server = PrivateServer(family="postgresql", settings={**_SETTINGS, **_ROOM})
        server.__enter__()
    try:
        yield server
    finally:
        server.__exit__(None, None, None)


def do(server: PrivateServer, *statements: str, database: str = "shop", user: str = "boss") -> None:
    with connect(server, user, database) as connection:
        for statement in statements:
            sql.execute(connection, statement)


def ask(server: PrivateServer, statement: str) -> Any:
    with connect(server, "boss") as connection:
        return sql.fetch_scalar(connection, statement)


def set_up(server: PrivateServer, **settings: str) -> None:
    changes = [f"ALTER SYSTEM SET {name} = '{value}'" for name, value in settings.items()]
    do(server, *changes, "SELECT pg_reload_conf()")


@contextmanager
def loop(work: Callable[[], object], pause_s: float) -> Iterator[None]:
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(pause_s):
            with suppress(PowerprofError, OSError):
                work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(30)


@contextmanager
def repeated(server: PrivateServer, statement: str, pause_s: float, *first: str) -> Iterator[None]:
    """A client that sends a statement again and again on one connection."""
    with connect(server, "boss") as connection:
        sql.execute(connection, *first)
        with loop(lambda: sql.fetch_rows(connection, statement), pause_s):
            yield


Start = Callable[[PrivateServer], AbstractContextManager[object]]


@dataclass(frozen=True)
class Case:
    """A fault with its rule and the words of its sentence, or a healthy server.

    `settings` are set first. `by` is the look that finds it.
    """

    name: str
    start: Start = lambda _: nullcontext()
    rule: str = ""
    words: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    by: str = "sql"


def emit(kilobytes: int) -> str:
    return f"SELECT pg_logical_emit_message(false, 'x', repeat('x', {kilobytes} * 1024))"


def writing(server: PrivateServer) -> AbstractContextManager[None]:
    return repeated(server, emit(200), 0.05)


@contextmanager
def frequent_checkpoints(server: PrivateServer) -> Iterator[None]:
    counted = "SELECT checkpoints_req >= 4 AND checkpoints_req > checkpoints_timed FROM pg_stat_bgwriter"

    def fill() -> bool:
        do(server, emit(9000))
        return bool(ask(server, counted) == "t")

    wait_until(fill, "server")
    with repeated(server, emit(400), 0.05):
        yield


@contextmanager
def endless_vacuum(server: PrivateServer) -> Iterator[None]:
    do(
        server,
        "CREATE UNLOGGED TABLE slow (v text) WITH (fillfactor = 10)",
        "ALTER TABLE slow ALTER v SET STORAGE PLAIN",
        "INSERT INTO slow SELECT repeat('x', 900) FROM generate_series(1, 16000)",
    )
    wait_until(
        lambda: ask(server, "SELECT count(*) FROM pg_stat_progress_vacuum WHERE phase = 'scanning heap'") == "1",
        "server",
    )
    yield


@contextmanager
def idle_transaction(server: PrivateServer) -> Iterator[None]:
    with connect(server, "app") as connection:
        sql.execute(connection, "SET application_name = 'nightly report'", "BEGIN", "CREATE TABLE kept (v int)")
        yield
        with suppress(PowerprofError):
            sql.execute(connection, "ROLLBACK")


@contextmanager
def physical_slot(server: PrivateServer) -> Iterator[None]:
    do(server, "SELECT pg_create_physical_replication_slot('gone_standby', true)")
    advance(server)
    yield


@contextmanager
def logical_slot(server: PrivateServer) -> Iterator[None]:
    do(server, "SELECT pg_create_logical_replication_slot('gone_reader', 'test_decoding')")
    advance(server)
    yield


def advance(server: PrivateServer) -> None:
    """Move the end of the WAL by nine files."""
    for _ in range(9):
        do(server, emit(1), "SELECT pg_switch_wal()")


@contextmanager
def failing_archiver(server: PrivateServer) -> Iterator[None]:
    do(server, emit(1), "SELECT pg_switch_wal()")
    wait_until(lambda: ask(server, "SELECT failed_count > 0 FROM pg_stat_archiver") == "t", "server")
    yield


def subscribe(server: PrivateServer, name: str, table: str, *, user: str = "boss") -> None:
    address = f"host={server.socket.parent} user={user} dbname=postgres"
    do(
        server,
        f"CREATE TABLE {table} (id int PRIMARY KEY)",
        f"CREATE PUBLICATION {name} FOR TABLE {table}",
        f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')",
        database="postgres",
    )
    do(
        server,
        f"CREATE TABLE {table} (id int PRIMARY KEY)",
        f"CREATE SUBSCRIPTION {name} CONNECTION '{address}' PUBLICATION {name} WITH (create_slot = false, "
        "copy_data = false)",
    )


@contextmanager
def conflicting_subscription(server: PrivateServer) -> Iterator[None]:
    subscribe(server, "orders", "item")
    do(server, "INSERT INTO item VALUES (1)")
    do(server, "INSERT INTO item VALUES (1)", database="postgres")
    errors = "SELECT apply_error_count > 2 FROM pg_stat_subscription_stats WHERE subname = 'orders'"
    wait_until(lambda: ask(server, errors) == "t", "subscription")
    yield


@contextmanager
def unreachable_subscription(server: PrivateServer) -> Iterator[None]:
    do(
        server,
        "CREATE SUBSCRIPTION lost CONNECTION 'host=/nowhere dbname=x' PUBLICATION p WITH (connect = false)",
        "ALTER SUBSCRIPTION lost ENABLE",
    )
    time.sleep(1.0)
    yield


@contextmanager
def working_subscription(server: PrivateServer) -> Iterator[None]:
    subscribe(server, "fine", "fine")
    wait_until(
        lambda: ask(server, "SELECT count(pid) FROM pg_stat_subscription WHERE subname = 'fine'") == "1", "subscription"
    )
    yield


@contextmanager
def parallel(server: PrivateServer, pause_s: float) -> Iterator[None]:
    costs = ("parallel_setup_cost", "parallel_tuple_cost", "min_parallel_table_scan_size")
    do(server, "CREATE TABLE IF NOT EXISTS small AS SELECT n FROM generate_series(1, 5000) n", "ANALYZE small")
    with repeated(server, "SELECT sum(n) FROM small", pause_s, *(f"SET {name} = 0" for name in costs)):
        yield


@contextmanager
def storm(server: PrivateServer, script: str, *options: str, user: str) -> Iterator[None]:
    """Two clients of pgbench, which are faster than threads of this process."""
    file = server.socket.parent / "storm.sql"
    file.write_text(script)
    words = [f"{server.build.binary.parent}/pgbench", "-h", str(server.socket.parent), "-U", user, "-n", "-c", "2"]
    command = [*words, "-T", "600", "-f", str(file), *options, "shop"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            time.sleep(0.5)
            yield
        finally:
            process.kill()
            process.wait()


@contextmanager
def parallel_storm(server: PrivateServer) -> Iterator[None]:
    do(server, "CREATE TABLE IF NOT EXISTS small AS SELECT n FROM generate_series(1, 5000) n", "ANALYZE small")
    costs = ("parallel_setup_cost", "parallel_tuple_cost", "min_parallel_table_scan_size")
    script = "".join(f"SET {name} = 0;\n" for name in costs) + "SELECT sum(n) FROM small;\n"
    with storm(server, script, user="boss"):
        yield


@contextmanager
def connecting(server: PrivateServer, pause_s: float) -> Iterator[None]:
    def once() -> None:
        with connect(server, "app"):
            pass

    with loop(once, pause_s):
        yield


def spilling(server: PrivateServer, size: str, pause_s: float) -> AbstractContextManager[None]:
    sort = "SELECT count(*) FROM (SELECT n FROM generate_series(1, 150000) n ORDER BY 1 - n OFFSET 1) s"
    return repeated(server, sort, pause_s, f"SET work_mem = '{size}'")


@contextmanager
def spilled_decoding(server: PrivateServer) -> Iterator[None]:
    do(
        server,
        "SELECT pg_create_logical_replication_slot('spiller', 'test_decoding')",
        "CREATE TABLE decoded (n int, v text)",
    )
    words = ["pg_recvlogical", "-h", str(server.socket.parent), "-U", "boss", "-d", "shop", "-f", "/dev/null"]
    insert = "INSERT INTO decoded SELECT n, repeat('y', 200) FROM generate_series(1, 20000) n"
    with reading(server, *words, "--slot", "spiller", "--start"), repeated(server, insert, 0.1):
        yield


@contextmanager
def receiver(server: PrivateServer) -> Iterator[None]:
    """A standby that takes the WAL as it is written."""
    folder = server.socket.parent / "received"
    folder.mkdir(mode=0o700, exist_ok=True)
    words = ["pg_receivewal", "-h", str(server.socket.parent), "-U", "boss", "-D", str(folder)]
    do(server, "SELECT pg_create_physical_replication_slot('standby', true)")
    with reading(server, *words, "--slot", "standby", "--no-sync"):
        yield


@contextmanager
def reading(server: PrivateServer, program: str, *words: str) -> Iterator[None]:
    """A program of PostgreSQL that reads the WAL."""
    slot = words[words.index("--slot") + 1]
    with subprocess.Popen([f"{server.build.binary.parent}/{program}", *words], stderr=subprocess.DEVNULL) as process:
        try:
            active = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'"
            wait_until(lambda: ask(server, active) == "t", "server")
            yield
        finally:
            process.kill()
            process.wait()


FAULTS = (
    Case(
        "short naptime", rule="frequent_autovacuum", words="starts a worker", settings=(("autovacuum_naptime", "1s"),)
    ),
    Case(
        "low thresholds",
        rule="frequent_autovacuum",
        words="after 0 changed rows",
        settings=(("autovacuum_vacuum_scale_factor", "0"), ("autovacuum_vacuum_threshold", "0")),
    ),
    Case(
        "endless vacuum",
        endless_vacuum,
        "endless_vacuum",
        "Autovacuum of public.slow does not end",
        (
            *(("autovacuum_naptime", "1s"), ("autovacuum_vacuum_cost_delay", "100ms"), ("vacuum_cost_limit", "1")),
            *(("vacuum_cost_page_hit", "10000"), ("vacuum_cost_page_miss", "10000")),
        ),
    ),
    Case(
        "frequent checkpoints",
        frequent_checkpoints,
        "frequent_checkpoints",
        "max_wal_size requests a checkpoint every",
        (("max_wal_size", "32MB"), ("min_wal_size", "32MB")),
    ),
    Case("checkpoint_timeout", writing, "short_interval", "checkpoint_timeout", (("checkpoint_timeout", "30s"),)),
    Case("wal_writer_delay", writing, "short_interval", "wal_writer_delay", (("wal_writer_delay", "1ms"),)),
    Case("bgwriter_delay", writing, "short_interval", "bgwriter_delay", (("bgwriter_delay", "10ms"),)),
    Case("archive_timeout", writing, "short_interval", "archive_timeout", (("archive_timeout", "5s"),)),
    Case("wal_sender_timeout", receiver, "short_interval", "wal_sender_timeout", (("wal_sender_timeout", "2s"),)),
    Case(
        "wal_receiver_status_interval",
        working_subscription,
        "short_interval",
        "wal_receiver_status_interval",
        (("wal_receiver_status_interval", "1s"),),
    ),
    Case("physical slot", physical_slot, "inactive_slot", "physical replication slot gone_standby"),
    Case("logical slot", logical_slot, "inactive_slot", "logical replication slot gone_reader"),
    Case("archiver", failing_archiver, "failed_archiving", "archive_command fails", (("archive_command", "false"),)),
    Case(
        "conflicting subscription",
        conflicting_subscription,
        "restarted_worker",
        "The logical subscription orders fails",
        (("wal_retrieve_retry_interval", "100ms"),),
    ),
    Case("temporary files", lambda server: spilling(server, "64kB", 0.1), "temporary_files", "in the database shop"),
    Case(
        "spilled decoding",
        spilled_decoding,
        "spilled_decoding",
        "for the slot spiller",
        (("logical_decoding_work_mem", "64kB"),),
    ),
    Case("parallel workers", parallel_storm, "parallel_workers", "Queries start parallel workers", by="processes"),
    Case(
        "connections",
        lambda server: storm(server, "SELECT 1;\n", "-C", user="app"),
        "client_reconnect_loop",
        "app@localhost connects",
        by="processes",
    ),
    Case(
        "unreachable subscription",
        unreachable_subscription,
        "restarted_worker",
        "The logical subscription with number",
        (("wal_retrieve_retry_interval", "100ms"),),
        by="processes",
    ),
    # A logical slot is created only when earlier transactions have ended.
    Case("idle transaction", idle_transaction, "idle_transaction", "app@localhost leaves 1 transaction open"),
)
"""Twenty faults. Those by SQL can be present together."""


def list_findings(server: PrivateServer, duration_s: float = 2.0) -> dict[str, list[Finding]]:
    """Return the faults by SQL and those by processes, untraced. The largest consumer of CPU time is no fault."""
    with connect(server, "boss", "postgres") as connection:
        subject = Subject(None, "postgres", connection, server.version, None)
        by_sql = diagnose(inspect_server(subject, duration_s, lambda _: None).evidence)
    by_processes = diagnose(watch_processes(server, duration_s))
    return {
        name: [finding for finding in findings if finding.severity == "fault" and finding.rule != "main_consumer"]
        for name, findings in (("sql", by_sql), ("processes", by_processes))
    }


def watch_processes(server: PrivateServer, duration_s: float) -> Evidence:
    """Return the evidence of the processes alone, without a login and a trace."""
    target = Target(tuple(server.list_processes()), "postgres")
    readings = ServerReadings(None, [], server.pid, target)
    readings.read_before()
    readings.watch_starts(duration_s)
    readings.read_after()
    return build_evidence(
        Subject(server.pid, "postgres", None, "postgres", None, target), readings, None, duration_s, []
    )


def list_statements(findings: Sequence[Finding]) -> list[str]:
    """Return the statements that the remedies print for the server."""
    lines = [line for finding in findings for line in finding.remedy]
    texts = [match[0] for line in lines if (match := _CHANGE.search(line)) and "…" not in match[0]]
    return [statement for text in dict.fromkeys(texts) for statement in text.split("; ")]


@contextmanager
def together(cases: Sequence[Case]) -> Iterator[PrivateServer]:
    """Yield a server with all these cases."""
    with postgres() as server, ExitStack() as stack:
        set_up(server, **{"archive_command": "true", **dict(setting for case in cases for setting in case.settings)})
        for case in cases:
            stack.enter_context(case.start(server))
        yield server


# Healthy servers


@contextmanager
def open_for_a_moment(server: PrivateServer) -> Iterator[None]:
    with connect(server, "app") as connection:
        sql.execute(connection, "BEGIN", "CREATE TABLE moment (v int)")
        yield
        sql.execute(connection, "ROLLBACK")


@contextmanager
def pool(server: PrivateServer) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(connect(server, "app"))
        yield


@contextmanager
def recovered_archiver(server: PrivateServer) -> Iterator[None]:
    set_up(server, archive_command="false")
    do(server, emit(1), "SELECT pg_switch_wal()")
    wait_until(lambda: ask(server, "SELECT failed_count > 0 FROM pg_stat_archiver") == "t", "server")
    set_up(server, archive_command="true")
    archived = "SELECT last_archived_time > last_failed_time FROM pg_stat_archiver"
    wait_until(lambda: ask(server, archived) == "t", "server")
    yield


@contextmanager
def new_slot(server: PrivateServer) -> Iterator[None]:
    do(server, "SELECT pg_create_physical_replication_slot('new', true)")
    yield


@contextmanager
def disabled_subscription(server: PrivateServer) -> Iterator[None]:
    do(server, "CREATE SUBSCRIPTION off CONNECTION 'host=/nowhere dbname=x' PUBLICATION p WITH (connect = false)")
    yield


@contextmanager
def quick_vacuum(server: PrivateServer) -> Iterator[None]:
    do(server, "CREATE TABLE IF NOT EXISTS quick AS SELECT n FROM generate_series(1, 20000) n")
    with repeated(server, "VACUUM (DISABLE_PAGE_SKIPPING) quick", 0.2):
        yield


@contextmanager
def listening(server: PrivateServer) -> Iterator[None]:
    with connect(server, "app") as connection:
        sql.execute(connection, "LISTEN jobs")
        with repeated(server, "NOTIFY jobs", 0.2):
            yield


@contextmanager
def databases(server: PrivateServer) -> Iterator[None]:
    do(server, *(f"CREATE DATABASE other{number}" for number in range(3)))
    yield


@contextmanager
def bulk_load(server: PrivateServer) -> Iterator[None]:
    """One load that is larger than most, at full speed."""
    with repeated(server, emit(8000), 0.02):
        yield


HEALTHY = (
    Case("idle server"),
    Case("short delays without writes", settings=(("wal_writer_delay", "1ms"), ("bgwriter_delay", "10ms"))),
    Case("short checkpoints without writes", settings=(("checkpoint_timeout", "30s"), ("archive_timeout", "5s"))),
    Case("short sender timeout without senders", settings=(("wal_sender_timeout", "2s"),)),
    Case("short report without a source", settings=(("wal_receiver_status_interval", "1s"),)),
    Case("autovacuum off", settings=(("autovacuum", "off"), ("autovacuum_naptime", "1s"))),
    Case("transaction of a moment", open_for_a_moment),
    Case("pool", pool),
    Case("new slot", new_slot),
    Case("disabled subscription", disabled_subscription),
    Case("recovered archiver", recovered_archiver),
    Case("listener", listening),
    Case("several databases", databases),
    Case("vacuum of a small table", quick_vacuum),
    Case("small sort", lambda server: spilling(server, "64MB", 0.3)),
    Case("rare spill", lambda server: spilling(server, "1MB", 4.0)),
    Case("rare parallel query", lambda server: parallel(server, 0.5)),
    Case("few connections", lambda server: connecting(server, 0.7)),
    Case("working standby", receiver),
    Case("working subscription", working_subscription),
    Case("light writes", lambda server: repeated(server, emit(20), 0.1)),
    Case("bulk load", bulk_load),
)
"""Healthy servers. Those before `pool` write nothing."""
