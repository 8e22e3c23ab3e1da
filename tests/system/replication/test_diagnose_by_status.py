# SPDX-License-Identifier: Apache-2.0
"""`powerprof diagnose` without the right to trace: what status alone tells, and that it says so."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from powerprof.database import sql
from powerprof.database.private_server import PrivateServer
from powerprof.database.replication_status import read_replication_status
from powerprof.database.topology import ServerTopology
from powerprof.diagnosis import server_queries
from powerprof.diagnosis.collect import ServerReadings
from powerprof.diagnosis.evidence import DUMPS
from powerprof.system.errors import PowerprofError
from tests.conftest import Cli
from tests.programs.orphans import orphan, ring
from tests.programs.waiting import wait_until

pytestmark = pytest.mark.usefixtures("mariadbd")
OptionFile = Callable[[PrivateServer], Path]


def diagnose(cli: Cli, account: Path) -> dict[str, object]:
    """By an address on another host, as far as powerprof can tell: no process of it is seen."""
    arguments = ["diagnose", "--defaults-file", str(account), "--duration", "1.5", "--json", "-", "--no-save"]
    empty = account.parent / "proc"
    empty.mkdir(exist_ok=True)
    done = cli(arguments, env={"POWERPROF_PROCFS": str(empty)})
    assert done.code == 0, done.err
    found: dict[str, object] = json.loads(done.out)
    assert found["schema"] == "powerprof.diagnosis/1"
    return found


def faults(found: dict[str, object]) -> list[str]:
    findings = found["findings"]
    assert isinstance(findings, list)
    return [one["rule"] for one in findings if one["severity"] == "fault"]


def remedies(found: dict[str, object]) -> list[str]:
    findings = found["findings"]
    assert isinstance(findings, list)
    remedy = next(one["remedy"] for one in findings if one["severity"] == "fault")
    assert isinstance(remedy, list)
    return remedy


def apply(server: PrivateServer, remedy: str) -> None:
    """Do as the finding says: the statements behind its colon."""
    with server.connect() as connection:
        sql.execute(connection, *(part.strip() for part in remedy.rpartition(": ")[2].split(";")))


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    """Not a pooled server: its connections and statements are counted."""
    with PrivateServer() as started:
        yield started


def test_the_named_kill_ends_a_busy_client(powerprof_cli: Cli, option_file: OptionFile, server: PrivateServer) -> None:
    stop = threading.Event()
    # The second client sends nothing of the kind: ending it would mend nothing.
    clients = [threading.Thread(target=target, args=(server, stop)) for target in (_ask_until, _work_until)]
    for client in clients:
        client.start()
    try:
        found = diagnose(powerprof_cli, option_file(server))
        assert faults(found) == ["monitoring_client"]
        assert ", because the server counted " in remedies(found)[1]
        apply(server, remedies(found)[1].partition(", because")[0])
        assert faults(diagnose(powerprof_cli, option_file(server))) == [], "the remedy ended it"
    finally:
        stop.set()
        for client in clients:
            client.join()


def _work_until(server: PrivateServer, stop: threading.Event) -> None:
    with contextlib.suppress(PowerprofError), server.connect() as connection:
        while not stop.wait(0.005):
            sql.fetch_rows(connection, "SELECT 1, 2", columns=2)


def _ask_until(server: PrivateServer, stop: threading.Event) -> None:
    with contextlib.suppress(PowerprofError), server.connect() as connection:
        while not stop.wait(0.02):
            sql.fetch_rows(connection, "SHOW GLOBAL STATUS LIKE 'Threads%'", columns=2)


def test_an_event_that_runs_every_second_is_ended_by_either_remedy(
    powerprof_cli: Cli, option_file: OptionFile, server: PrivateServer
) -> None:
    with server.connect() as connection:
        sql.execute(
            *(connection, "CREATE DATABASE shop", "CREATE TABLE shop.t (n BIGINT)"),
            "SET GLOBAL event_scheduler = ON",
            "CREATE EVENT shop.refresh ON SCHEDULE EVERY 1 SECOND DO INSERT INTO shop.t VALUES (1)",
        )
    found = diagnose(powerprof_cli, option_file(server))
    assert faults(found) == ["event_scheduler"]
    # ALTER EVENT, and event_scheduler=OFF.
    for remedy in remedies(found)[:2]:
        with server.connect() as connection:
            sql.execute(connection, "ALTER EVENT shop.refresh ENABLE")
        apply(server, remedy.partition(" (or")[0].partition(" if ")[0])
        assert faults(diagnose(powerprof_cli, option_file(server))) == [], "the remedy ended it"


def test_an_orphan_event_and_a_healthy_ring(powerprof_cli: Cli, option_file: OptionFile) -> None:
    with ring() as topology:
        account = option_file(topology["node-1"].server)
        assert faults(diagnose(powerprof_cli, account)) == []
        orphan(topology["node-1"].server)
        found = diagnose(powerprof_cli, account)
        assert faults(found) == ["orphan_event"]
        evidence = found["evidence"]
        assert isinstance(evidence, dict)
        assert evidence["traced_s"] is None
        assert any("not traced" in note for note in evidence["notes"])
        assert topology["node-1"].server.login.password not in json.dumps(found)
        apply(topology["node-1"].server, remedies(found)[0])
        time.sleep(1)
        assert faults(diagnose(powerprof_cli, account)) == [], "the remedy ended it"


def test_a_replica_that_is_refused_by_its_source(powerprof_cli: Cli, option_file: OptionFile) -> None:
    with ServerTopology("primary-replica", 2) as topology:
        replica = topology["replica-1"].server
        with replica.connect() as connection:
            sql.execute(
                connection,
                "STOP SLAVE",
                "CHANGE MASTER TO MASTER_PASSWORD='wrong', MASTER_CONNECT_RETRY=5",
                "START SLAVE",
            )
            wait_until(lambda: read_replication_status(connection)[0].last_io_error, "a refusal")
        found = diagnose(powerprof_cli, option_file(replica))
        assert faults(found) == ["reconnect_loop"]
        assert faults(diagnose(powerprof_cli, option_file(topology["primary"].server))) == []
        apply(replica, remedies(found)[1])
        assert faults(diagnose(powerprof_cli, option_file(replica))) == [], "the remedy ended it"


def test_a_missing_server_is_reported(powerprof_cli: Cli) -> None:
    # Its own process ids: servers of other tests run on this host.
    alone = dataclasses.replace(powerprof_cli, within=("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"))
    done = alone(["diagnose"])
    missing = "error: no target was named, and no MariaDB, MySQL or PostgreSQL server was found on this host"
    assert (done.code, done.err.splitlines()[0]) == (2, missing)
    done = powerprof_cli(["diagnose", "--pid", str(os.getppid()), "--socket", "/nowhere/at/all"])
    assert done.code == 1
    assert done.err.startswith("error: cannot connect")


def test_only_evidence_of_the_rules_is_read(server: PrivateServer) -> None:
    with server.connect() as connection:
        counters, settings = server_queries.read_counters(connection), server_queries.read_settings(connection)
        everything = {str(name) for name, _ in sql.fetch_rows(connection, "SHOW GLOBAL STATUS", columns=2)}
    assert {"Com_select", "Com_show_status", "Com_show_slave_hosts", "Threads_connected", "Questions"} <= set(counters)
    assert {"Aborted_clients", "Innodb_history_list_length", "Binlog_commits"} <= set(counters)
    assert set(counters) - {DUMPS} < everything and len(counters) < len(everything) / 3
    assert {"server_id", "log_bin", "performance_schema"} <= set(settings) <= set(server_queries._VARIABLES)


def test_connections_of_other_instances_are_not_clients(server: PrivateServer) -> None:
    with server.connect() as client:
        _wait_until_alone(client, 1)
        with contextlib.ExitStack() as stack:

            def begin() -> ServerReadings:
                look = ServerReadings(stack.enter_context(server.connect()), [], server.pid)
                look.read_before()
                return look

            first, second = begin(), begin()
            first.read_after()
            begin()
            second.read_after()
        number = sql.fetch_scalar(client, "SELECT CONNECTION_ID()")
        for look, count in ((first, 1), (second, 2)):
            assert {one.id for one in look.facts.clients_before if one.user == server.login.user} == {number}
            assert {one.id for sample in look.facts.samples for one in sample if one.command == "Sleep"} == {number}
            assert look.facts.other_instances_count == count
        # A server without replicas is not asked for them, so no count of it shows powerprof.
        asked = sql.fetch_rows(client, "SHOW GLOBAL STATUS LIKE 'Com_show_slave_hosts'", columns=2)
        assert sql.parse_count(asked[0][1]) == 0


@pytest.mark.parametrize(("right", "hidden"), [("USAGE", 3), ("PROCESS", 0)])
def test_hidden_connections_are_counted(server: PrivateServer, right: str, hidden: int) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            control = stack.enter_context(server.connect())
        sql.execute(
            control,
            "CREATE OR REPLACE USER watcher@localhost IDENTIFIED BY 'a-b'",
            f"GRANT {right} ON *.* TO watcher@localhost",
        )
        _wait_until_alone(control, 3)
        login = server.login.with_account("watcher", "a-b")
        look = ServerReadings(stack.enter_context(sql.connect(login)), [], server.pid)
        look.read_before()
        look.read_after()
        assert look.facts.hidden_connections_count == hidden


def _wait_until_alone(connection: Any, count: int) -> None:
    """Wait until the connections of former tests are closed."""
    status = "SHOW GLOBAL STATUS LIKE 'Threads_connected'"
    wait_until(lambda: sql.fetch_rows(connection, status, columns=2) == [("Threads_connected", str(count))], "end")
