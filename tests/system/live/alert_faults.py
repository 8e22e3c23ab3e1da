# SPDX-License-Identifier: Apache-2.0
"""Real faults of real servers, each with the alert that it raises and that ends with it."""

from __future__ import annotations

import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from powerprof.database import sql
from powerprof.database.base import Sql
from powerprof.system.errors import PowerprofError
from tests.programs.host_servers import HostServer
from tests.system.live.engines import MONITORING, Prometheus, free_port, running, wait_for

_SERVERS = "tests/system/live/test_alerts.py::test_faults_of_servers_raise_their_alerts_until_they_end"
_REPLICAS = "tests/nightly/test_alert_matrix.py::test_faults_of_replication_raise_their_alerts_until_they_end"
_EXPORTERS = "tests/nightly/test_alert_matrix.py::test_faults_of_measuring_raise_their_alerts_until_they_end"
RAISED = {
    "Poller": _SERVERS,
    "ConnectionLeak": _SERVERS,
    "ServerDown": _SERVERS,
    "ServerStopped": _SERVERS,
    "WorkersRestart": _SERVERS,
    "ArchivingFails": _SERVERS,
    "HeldRows": _SERVERS,
    "AvoidableWork": _SERVERS,
    "ReplicaStorm": _REPLICAS,
    "ReplicationStopped": _REPLICAS,
    "ReplicationBroken": _REPLICAS,
    "OrphanRing": "tests/system/live/test_storm_alert.py::test_an_orphan_in_a_ring_is_an_alert_until_it_is_cured",
    "MeterDead": _EXPORTERS,
    "ExporterHangs": _EXPORTERS,
    "ExporterDown": _EXPORTERS,
}
"""The test that raises each alert by a real fault."""


class Fault(NamedTuple):
    """A fault: entering makes it and leaving ends it. `alerts` fire for the server with this part in its label."""

    alerts: Sequence[str]
    server: str
    make: Callable[[], AbstractContextManager[None]]


@contextmanager
def repeated(connect: Callable[[], Sql], work: Callable[[Any], object], every_s: float) -> Iterator[None]:
    """A client that does this work at this pace."""
    ended = threading.Event()

    def client() -> None:
        with suppress(PowerprofError), connect() as connection:
            while not ended.wait(every_s):
                work(connection)

    thread = threading.Thread(target=client)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def poll(server: HostServer) -> AbstractContextManager[None]:
    """A monitor that reads all counters twenty times a second."""
    return repeated(server.connect, lambda connection: sql.fetch_rows(connection, "SHOW GLOBAL STATUS"), 0.05)


@contextmanager
def leak(server: HostServer) -> Iterator[None]:
    """A client that opens three connections per second and closes none."""
    ended = threading.Event()
    with ExitStack() as stack:

        def client() -> None:
            with suppress(PowerprofError):
                while not ended.wait(0.33):
                    stack.enter_context(server.connect())

        thread = threading.Thread(target=client)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@contextmanager
def fail_archiving(server: HostServer) -> Iterator[None]:
    """An archive_command that fails."""
    server.run("ALTER SYSTEM SET archive_command = 'false'", "SELECT pg_catalog.pg_reload_conf()")
    # A segment without records is not switched.
    server.run("CREATE TABLE archived ()", "SELECT pg_catalog.pg_switch_wal()")
    yield
    server.run("DROP TABLE archived")
    server.run("ALTER SYSTEM SET archive_command = 'true'", "SELECT pg_catalog.pg_reload_conf()")


def make_subscription(server: HostServer, port: int) -> None:
    """Make a subscription of one database of a server to another of its databases."""
    table = "CREATE TABLE item (id int PRIMARY KEY)"
    address = f"host={server.folder} port={port} user=postgres dbname=postgres"
    server.run("CREATE DATABASE shop", table, "CREATE PUBLICATION items FOR TABLE item")
    server.run("SELECT pg_catalog.pg_create_logical_replication_slot('orders', 'pgoutput')")
    subscription = f"CREATE SUBSCRIPTION orders CONNECTION '{address}' PUBLICATION items"
    server.run_in("shop", table, f"{subscription} WITH (create_slot = false, copy_data = false)")


@contextmanager
def fail_subscription(server: HostServer) -> Iterator[None]:
    """A subscription that receives a row which is already there."""
    server.run_in("shop", "INSERT INTO item VALUES (1)")
    server.run("INSERT INTO item VALUES (1)")
    yield
    server.run_in("shop", "DELETE FROM item")


@contextmanager
def hold_rows(server: HostServer) -> Iterator[None]:
    """A client that leaves a transaction with a change open."""
    with server.connect() as connection:
        sql.execute(connection, "BEGIN", "CREATE TABLE held ()")
        yield


@contextmanager
def shorten_interval(server: HostServer) -> Iterator[None]:
    """A subscriber that reports its position every second."""
    setting = "wal_receiver_status_interval"
    server.run(f"ALTER SYSTEM SET {setting} = '1s'", "SELECT pg_catalog.pg_reload_conf()")
    yield
    server.run(f"ALTER SYSTEM RESET {setting}", "SELECT pg_catalog.pg_reload_conf()")


@contextmanager
def stop(server: HostServer) -> Iterator[None]:
    """A first process that a signal stops."""
    server.signal(signal.SIGSTOP)
    yield
    server.signal(signal.SIGCONT)


@contextmanager
def kill(server: HostServer) -> Iterator[None]:
    """A server that is killed."""
    server.end()
    yield
    server.start()


@contextmanager
def shortened_rules(folder: Path, targets: Sequence[str]) -> Iterator[Prometheus]:
    """Run a Prometheus with the shipped rules, whose times are seconds, and without an Alertmanager."""
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": list(targets)}]
    del config["alerting"]
    for name in config["rule_files"]:
        shutil.copy(MONITORING / name, folder / name)
    alerts = (MONITORING / "alerts.yml").read_text(encoding="utf-8")
    alerts = re.sub(r"for: \w+", "for: 1s", alerts).replace("> 600", "> 20").replace("[1h]", "[1m]")
    (folder / "alerts.yml").write_text(alerts)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    words = ["prometheus", "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}"]
    with running([*words, "--storage.tsdb.path=data", "--log.level=warn"], folder):
        db = Prometheus(port)
        wait_for("Prometheus answers", lambda: db.query("vector(1)"))
        yield db


def firing(db: Prometheus, alert: str, server: str) -> bool:
    """Return whether an alert fires for this server."""
    words = f'alertname="{alert}", alertstate="firing"' + (f', server=~".*{server}.*"' if server else "")
    return bool(db.query(f"ALERTS{{{words}}}"))


def prove(db: Prometheus, faults: Sequence[Fault]) -> None:
    """Make all faults: their alerts fire. End them: their alerts are resolved."""
    rows = {(alert, fault.server) for fault in faults for alert in fault.alerts}
    with ExitStack() as stack:
        for fault in faults:
            stack.enter_context(fault.make())
        _wait_until(lambda: {row for row in rows if not firing(db, *row)}, "alerts that did not fire")
    _wait_until(lambda: {row for row in rows if firing(db, *row)}, "alerts that were not resolved")


def _wait_until(look: Callable[[], set[tuple[str, str]]], problem: str) -> None:
    deadline = time.monotonic() + 150
    while rows := look():
        assert time.monotonic() < deadline, f"{problem}: {sorted(rows)}"
        time.sleep(0.5)
