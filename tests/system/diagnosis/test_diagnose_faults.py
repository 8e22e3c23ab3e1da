# SPDX-License-Identifier: Apache-2.0
"""Faults that once passed for a healthy server, on real servers of MariaDB, MySQL and Redis: each is named."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from powerprof.database import sql
from powerprof.database.builds import ServerBuild
from powerprof.database.private_server import PrivateServer
from powerprof.database.server_options import ServerOptions
from powerprof.database.topology import ServerTopology
from powerprof.system.errors import PowerprofError
from tests.conftest import Cli, each_release
from tests.programs.waiting import wait_until
from tests.system.diagnosis.test_diagnose import diagnose

pytestmark = pytest.mark.usefixtures("mariadbd", "root_bpf", "counts_statements")
_PACE_S = 1 / 19.4


@contextmanager
def repeated(server: PrivateServer, work: Callable[[Any], object], every_s: float) -> Iterator[None]:
    """A client that does it at that pace."""
    ended = threading.Event()

    def client() -> None:
        with suppress(PowerprofError), server.connect() as connection:
            moment = time.monotonic()
            while not ended.is_set():
                work(connection)
                moment += every_s
                time.sleep(max(0.0, moment - time.monotonic()))

    thread = threading.Thread(target=client)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def first(server: PrivateServer, *statements: str) -> None:
    with server.connect() as connection:
        sql.run_first_known(lambda statement: sql.fetch_rows(connection, statement), *statements)


def a_poller_of_a_job_table_is_named(cli: Cli, server: PrivateServer, folder: Path) -> None:
    with server.connect() as connection:
        sql.execute(
            connection,
            "CREATE DATABASE jobs",
            "CREATE TABLE jobs.t (id INT AUTO_INCREMENT PRIMARY KEY, state VARCHAR(9))",
            "INSERT INTO jobs.t (state) VALUES ('done'), ('done'), ('done')",
        )
    look = "SELECT id FROM jobs.t WHERE state = 'new'"
    with repeated(server, lambda connection: sql.fetch_rows(connection, look), _PACE_S):
        time.sleep(0.5)
        found = diagnose(cli, server, folder)
    (fault,) = [one for one in found if one["rule"] == "table_poller"]
    assert "scans a whole table" in fault["text"]
    assert 10 < fault["rate_hz"] < 21  # a busy host lets it ask less often
    assert "Index the WHERE columns" in fault["remedy"][0]


def a_dead_sql_thread_is_named(cli: Cli, topology: ServerTopology, folder: Path) -> None:
    """Error 1062, also while it is started again and again."""
    primary, replica = topology["primary"].server, topology["replica-1"].server
    with primary.connect() as there, replica.connect() as here:
        sql.execute(there, "CREATE DATABASE d", "CREATE TABLE d.t (n INT PRIMARY KEY)")
        wait_until(lambda: bool(sql.fetch_rows(here, "SHOW TABLES FROM d")) if has(here, "d") else False, "server")
        sql.execute(here, "INSERT INTO d.t VALUES (1)")
        sql.execute(there, "INSERT INTO d.t VALUES (1)")
    time.sleep(1.5)
    modern = "MySQL" in replica.version
    start = "START REPLICA" if modern else "START SLAVE"
    for again in (False, True):
        if again:

            def started(connection: Any) -> None:
                with suppress(PowerprofError):
                    sql.fetch_rows(connection, start)

            with repeated(replica, started, 0.2):
                time.sleep(0.5)
                found = diagnose(cli, replica, folder)
        else:
            found = diagnose(cli, replica, folder)
        (fault,) = [one for one in found if one["rule"] == "replication_stopped"]
        assert "stops with error 1062" in fault["text"] or "1062" in " ".join(fault["evidence"]), fault
        assert (f"{start} is issued " in fault["text"]) is again
        assert start in " ".join(fault["remedy"])
        assert not (modern and "SLAVE" in " ".join([fault["text"], *fault["evidence"], *fault["remedy"]]))


def a_replica_that_retries_is_named_at_its_source(cli: Cli, topology: ServerTopology, folder: Path) -> None:
    """One whose password is wrong, once a second."""
    primary, replica = topology["primary"].server, topology["replica-1"].server
    first(replica, "STOP SLAVE", "STOP REPLICA")
    first(
        replica,
        "CHANGE MASTER TO MASTER_PASSWORD='wrong', MASTER_CONNECT_RETRY=1",
        "CHANGE REPLICATION SOURCE TO SOURCE_PASSWORD='wrong', SOURCE_CONNECT_RETRY=1",
    )
    first(replica, "START SLAVE", "START REPLICA")
    time.sleep(2.5)
    found = diagnose(cli, primary, folder)
    (fault,) = [one for one in found if one["rule"] in ("replica_refused", "client_reconnect_loop")]
    assert "replica" in fault["text"], fault
    assert 0.3 < fault["rate_hz"] < 2.5


def an_event_that_uses_cpu_is_named(cli: Cli, server: PrivateServer, folder: Path) -> None:
    with server.connect() as connection:
        sql.execute(
            connection,
            "CREATE DATABASE IF NOT EXISTS busy",
            "CREATE EVENT busy.burn ON SCHEDULE EVERY 1 SECOND DO SET @s = BENCHMARK(6000000, SHA2('x', 256))",
            "SET GLOBAL event_scheduler = ON",
        )
    time.sleep(1.5)
    found = diagnose(cli, server, folder)
    (fault,) = [one for one in found if one["rule"] == "event_cpu"]
    assert "burn" in " ".join([fault["text"], *fault["evidence"], *fault["remedy"]])
    first(server, "DROP EVENT busy.burn")


def has(connection: Any, schema: str) -> bool:
    return (schema,) in sql.fetch_rows(connection, "SHOW DATABASES")


def all_of(cli: Cli, build: ServerBuild | None, folder: Path) -> None:
    with PrivateServer(ServerOptions(build=build)) as server:
        a_poller_of_a_job_table_is_named(cli, server, folder)
        an_event_that_uses_cpu_is_named(cli, server, folder)
    with ServerTopology("primary-replica", 2, options=ServerOptions(build=build)) as topology:
        a_dead_sql_thread_is_named(cli, topology, folder)
        a_replica_that_retries_is_named_at_its_source(cli, topology, folder)


def test_each_fault_is_named(powerprof_cli: Cli, tmp_path: Path) -> None:
    all_of(powerprof_cli, None, tmp_path)


@pytest.mark.nightly
@each_release("mysql-9.7", "mariadb-11.8")
def test_each_fault_is_named_on_other_releases(
    historical_build: ServerBuild, powerprof_cli: Cli, tmp_path: Path
) -> None:
    all_of(powerprof_cli, historical_build, tmp_path)


def test_redis_is_told_which_setting_wakes_it(powerprof_cli: Cli, tmp_path: Path) -> None:
    words = ["redis-server", "--port", "0", "--unixsocket", str(tmp_path / "r.sock"), "--dir", str(tmp_path),
             "--save", "", "--appendonly", "no"]  # fmt: skip
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as redis:
        try:
            wait_until(lambda: (tmp_path / "r.sock").exists(), "server")
            done = powerprof_cli(["diagnose", "--pid", str(redis.pid), "--duration", "2", "--json", "-", "--no-save"])
        finally:
            redis.kill()
    assert done.code == 0, done.err
    (fault,) = [one for one in json.loads(done.out)["findings"] if one["severity"] == "fault"]
    assert "serverCron" in fault["text"]
    assert 7 < fault["rate_hz"] < 12
    assert fault["remedy"][0].startswith("hz=1 in redis.conf, or CONFIG SET hz")
