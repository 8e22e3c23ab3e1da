# SPDX-License-Identifier: Apache-2.0
"""The alerts about replication, on each product, and those about measuring: from a real fault to the alert and back."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from powerprof.database import sql
from powerprof.database.builds import ServerBuild
from powerprof.database.private_server import PrivateServer
from powerprof.database.server_options import ServerOptions
from powerprof.database.topology import MemberOptions, ServerTopology
from powerprof.system.errors import PowerprofError
from tests.conftest import Cli, each_release
from tests.programs.host_servers import postgresql
from tests.programs.ptracing import held_thread
from tests.programs.waiting import wait_until
from tests.system.diagnosis.test_diagnose import account
from tests.system.live.alert_faults import Fault, kill, prove, shortened_rules
from tests.system.live.engines import wait_for
from tests.system.live.test_export import exporter

pytestmark = pytest.mark.usefixtures("mariadbd", "root_bpf", "asks_every_server")
_WORDS = ("--interval", "4", "--ask-every", "4")
_PORTS = (33994, 33995)


def _run(server: PrivateServer, *pairs: tuple[str, str]) -> None:
    """Execute the statements that this product knows: the first words are MariaDB's."""
    with server.connect() as connection:
        for words in pairs:
            sql.run_first_known(lambda word: sql.fetch_rows(connection, word), *words)


_STOP, _START = ("STOP SLAVE", "STOP REPLICA"), ("START SLAVE", "START REPLICA")


@contextmanager
def _equal_server_id(replica: PrivateServer, other_id: int, own_id: int) -> Iterator[None]:
    """A replica with the server id of another one."""
    for number in (other_id, own_id):
        _run(replica, _STOP, (f"SET GLOBAL server_id = {number}",) * 2, _START)
        if number == other_id:
            yield


@contextmanager
def _row_that_is_there(primary: PrivateServer, replica: PrivateServer) -> Iterator[None]:
    """A replica whose SQL thread stops with error 1062."""
    with replica.connect() as here, primary.connect() as there:
        sql.execute(here, "INSERT INTO d.t VALUES (1)")
        sql.execute(there, "INSERT INTO d.t VALUES (1)")
    yield
    with replica.connect() as here:
        sql.execute(here, "DELETE FROM d.t")
    _run(replica, _STOP, _START)


def _prove_replication(cli: Cli, folder: Path, build: ServerBuild | None) -> None:
    members = {f"replica-{n}": MemberOptions(connect_retry_s=1) for n in (1, 2)}
    with ServerTopology("primary-replica", 3, members=members, options=ServerOptions(build=build)) as topology:
        names = ("primary", "replica-1", "replica-2")
        primary, first, second = (topology[name].server for name in names)
        files = [word for name in names for word in ("--defaults-file", str(account(topology[name].server, folder)))]
        with primary.connect() as connection:
            sql.execute(connection, "CREATE DATABASE d", "CREATE TABLE d.t (n INT PRIMARY KEY)")
        wait_until(partial(_has_table, first), "topology")
        ids = [
            sql.parse_count(sql.fetch_scalar(replica.connect(), "SELECT @@server_id")) for replica in (first, second)
        ]
        assert ids[0] is not None and ids[1] is not None
        with (
            exporter(cli, *_WORDS, "--meter", "none", *files) as (port, _),
            shortened_rules(folder, [f"127.0.0.1:{port}"]) as db,
        ):
            wait_for("three servers", lambda: db.value("count(powerprof_server_role)") == 3)
            prove(db, [Fault(["ReplicaStorm"], "", partial(_equal_server_id, second, ids[0], ids[1]))])
            broken = ["ReplicationStopped", "ReplicationBroken"]
            prove(db, [Fault(broken, "", partial(_row_that_is_there, primary, first))])
            assert db.value("min(powerprof_replication_lag_seconds)") is not None


def _read_id(server: PrivateServer) -> int:
    with server.connect() as connection:
        return int(sql.fetch_scalar(connection, "SELECT @@server_id"))


def _has_table(server: PrivateServer) -> bool:
    with server.connect() as connection:
        try:
            return sql.fetch_scalar(connection, "SELECT COUNT(*) FROM d.t") is not None
        except PowerprofError:
            return False


def test_faults_of_replication_raise_their_alerts_until_they_end(powerprof_cli: Cli, tmp_path: Path) -> None:
    _prove_replication(powerprof_cli, tmp_path, None)


@each_release("mysql-9.7", "mariadb-11.8")
def test_faults_of_replication_on_other_releases(
    historical_build: ServerBuild, powerprof_cli: Cli, tmp_path: Path
) -> None:
    _prove_replication(powerprof_cli, tmp_path, historical_build)


def test_a_standby_without_its_primary_does_not_replicate(
    powerprof_cli: Cli, server_folder: Path, tmp_path: Path
) -> None:
    with (
        postgresql(server_folder / "p", _PORTS[0]) as primary,
        postgresql(server_folder / "s", _PORTS[1], base=primary),
        exporter(powerprof_cli, *_WORDS, "--meter", "none") as (port, _),
        shortened_rules(tmp_path, [f"127.0.0.1:{port}"]) as db,
    ):
        both = {f"postgres:{_PORTS[0]}": "primary", f"postgres:{_PORTS[1]}": "replica"}

        def roles() -> bool:
            rows = db.query("powerprof_server_role")
            return both.items() <= {row["metric"]["server"]: row["metric"]["role"] for row in rows}.items()

        wait_for("primary and standby", roles)
        lag = f'powerprof_replication_lag_seconds{{server="postgres:{_PORTS[1]}"}}'
        assert db.value(lag) == 0.0
        prove(db, [Fault(["ReplicationBroken"], f":{_PORTS[1]}", partial(kill, primary))])


class _Log:
    """An external meter that writes a line per second, until it stops."""

    def __init__(self, path: Path) -> None:
        self._path, self._ended, self.is_on = path, threading.Event(), True
        path.write_text("time,watts\n")
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        while not self._ended.wait(1.0):
            if self.is_on:
                with self._path.open("a") as file:
                    file.write(f"{time.time():.3f},42.5\n")

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self.is_on = False
        yield
        self.is_on = True


@contextmanager
def _signalled(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    yield
    os.kill(pid, signal.SIGCONT)


def test_faults_of_measuring_raise_their_alerts_until_they_end(powerprof_cli: Cli, tmp_path: Path) -> None:
    log = _Log(tmp_path / "meter.csv")
    try:
        with (
            exporter(powerprof_cli, *_WORDS, "--meter", str(tmp_path / "meter.csv")) as (port, process),
            shortened_rules(tmp_path, [f"127.0.0.1:{port}"]) as db,
        ):
            # setpriv executes the exporter in its own process.
            wait_for("the meter reports", lambda: db.value("powerprof_meter_up"))
            prove(db, [Fault(["MeterDead"], "", log.stopped)])
            faults: Sequence[tuple[str, Callable[[], object]]] = [
                ("ExporterHangs", partial(held_thread, process.pid)),
                ("ExporterDown", partial(_signalled, process.pid)),
            ]
            for alert, make in faults:
                prove(db, [Fault([alert], "", make)])  # type: ignore[arg-type]
    finally:
        log.close()
