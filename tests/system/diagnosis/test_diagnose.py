# SPDX-License-Identifier: Apache-2.0
"""`powerprof diagnose` with its traced window: who polls, on which thread, and silence for healthy servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from powerprof.database import sql
from powerprof.database.private_server import PrivateServer
from powerprof.database.server_options import ServerOptions
from powerprof.database.topology import MemberOptions, ServerTopology
from tests.conftest import REPOSITORY, Cli
from tests.programs.option_files import write_options
from tests.programs.orphans import orphan, ring
from tests.system.queries.postgres_work import DATABASE, shop

pytestmark = pytest.mark.usefixtures("mariadbd", "root_bpf", "counts_statements")

_POLLER = """
import sys, time
from pathlib import Path
from powerprof.database.given import given_server
with given_server(defaults_file=Path(sys.argv[1])) as server, server.connect() as connection:
    with connection.cursor() as cursor:
        while True:
            cursor.execute("SHOW GLOBAL STATUS")
            cursor.fetchall()
            time.sleep(0.25)  # after a stall it catches up with nothing
"""


def account(server: PrivateServer, folder: Path) -> Path:
    return write_options(folder / f"{server.options.name}.cnf", server.login)


def diagnose(cli: Cli, server: PrivateServer, folder: Path, duration_s: float = 2.0) -> list[Any]:
    """Return the findings that are faults."""
    words = ["diagnose", "--pid", str(server.pid), "--defaults-file", str(account(server, folder))]
    done = cli([*words, "--duration", str(duration_s), "--json", "-", "--no-save"])
    assert done.code == 0, done.err
    found = json.loads(done.out)
    # A machine with far more to do than CPUs ends a window late.
    assert found["evidence"]["traced_s"] > 0.9 * duration_s
    return [one for one in found["findings"] if one["severity"] == "fault"]


def test_a_monitor_is_a_fault_by_its_cost_at_a_low_rate(
    powerprof_cli: Cli, tmp_path: Path, pooled_server: Callable[..., PrivateServer]
) -> None:
    server = pooled_server()
    poller = subprocess.Popen([sys.executable, "-c", _POLLER, str(account(server, tmp_path))], cwd=REPOSITORY)
    try:
        time.sleep(0.7)
        (fault,) = diagnose(powerprof_cli, server, tmp_path, 3.0)
    finally:
        poller.kill()
        poller.wait()
    assert fault["rule"] == "monitoring_client"
    assert "sends SHOW GLOBAL STATUS" in fault["text"]
    assert "of this server's CPU time" in fault["text"]
    assert 2 < fault["rate_hz"] < 4.5  # a busy machine lets it ask less often
    assert any(frame.startswith(("do_command", "my_net_read")) for frame in fault["stack"])


def test_the_threads_of_an_orphan_event_are_named(powerprof_cli: Cli, tmp_path: Path) -> None:
    with ring() as topology:
        server = topology["node-1"].server
        orphan(server)
        (fault,) = diagnose(powerprof_cli, server, tmp_path)
    assert fault["rule"] == "orphan_event"
    # Also on a busy host, where the replication threads end no idle period.
    assert fault["stack"]


def test_a_duplicated_id_on_both_sides(powerprof_cli: Cli, tmp_path: Path) -> None:
    members = {name: MemberOptions(server_id=2, connect_retry_s=1) for name in ("replica-1", "replica-2")}
    with ServerTopology("primary-replica", 3, members=members) as topology:
        time.sleep(3)
        for name in ("replica-1", "primary"):
            (fault,) = diagnose(powerprof_cli, topology[name].server, tmp_path)
            assert fault["rule"] == "duplicate_server_id", name
            assert "SET GLOBAL server_id" in fault["remedy"][0]
        statements = fault["remedy"][0].rpartition(": ")[2].replace("ANOTHER", "3").split("; ")
        with topology["replica-1"].server.connect() as connection:
            sql.execute(connection, *statements)
        time.sleep(2)
        # The error logs of the other two, where nothing was started by hand, are believed for a while longer.
        assert diagnose(powerprof_cli, topology["replica-1"].server, tmp_path) == [], "mended"


def test_a_pool_that_looks_for_stalls_is_slowed_by_the_setting_named(powerprof_cli: Cli, tmp_path: Path) -> None:
    pool = {"thread-handling": "pool-of-threads", "thread-pool-stall-limit": "10"}
    with PrivateServer(ServerOptions(settings=pool)) as server:
        (fault,) = diagnose(powerprof_cli, server, tmp_path)
        assert fault["rule"] == "polling_wait"
        assert fault["remedy"][0] == "a longer thread_pool_stall_limit, which is 10 ms"
        assert 30 < fault["rate_hz"] < 110
        with server.connect() as connection:
            sql.execute(connection, "SET GLOBAL thread_pool_stall_limit=1000")
        assert diagnose(powerprof_cli, server, tmp_path) == []


def test_an_interrupt_in_the_window_of_statements_ends_with_the_partial_result(
    powerprof_cli: Cli, tmp_path: Path, pooled_server: Callable[..., PrivateServer]
) -> None:
    server = pooled_server()
    command = [sys.executable, "-m", "powerprof", "diagnose", "--pid", str(server.pid), "--no-save"]
    terminal, side = os.openpty()  # only a terminal gets the progress
    process = subprocess.Popen(
        [*command, "--defaults-file", str(account(server, tmp_path)), "--duration", "1"],
        stdout=subprocess.PIPE,
        stderr=side,
        text=True,
        cwd=REPOSITORY,
        env=powerprof_cli.environment(),
    )
    os.close(side)
    progress = b""
    while b"measuring statements" not in progress:
        progress += os.read(terminal, 4096)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    os.close(terminal)
    assert process.returncode == 130, out
    assert out.startswith("Interrupted: partial results.\nNo known problem")


def test_a_stopped_server_is_named_and_asked_nothing(
    powerprof_cli: Cli, pooled_server: Callable[..., PrivateServer]
) -> None:
    server = pooled_server()
    server.pause()
    try:
        done = powerprof_cli(["diagnose", "--pid", str(server.pid), "--duration", "1", "--no-save"])
    finally:
        server.resume()
    assert done.code == 0, done.err
    words = " ".join(done.out.split())
    assert words.startswith(f"Process {server.pid} of this server is stopped")
    assert f"kill -CONT {server.pid}" in words


@pytest.mark.nightly
def test_fifty_looks_at_a_healthy_pair(powerprof_cli: Cli, tmp_path: Path) -> None:
    with ServerTopology("primary-replica", 2) as topology:
        for number in range(50):
            member = topology.members[number % 2]
            assert diagnose(powerprof_cli, member.server, tmp_path, 5.0) == [], number


def test_a_repeated_scan_of_postgresql_is_a_fault(powerprof_cli: Cli) -> None:
    with shop() as server, server.connect(database=DATABASE) as connection:
        sql.execute(
            connection,
            "CREATE TABLE orders (id int PRIMARY KEY, customer int)",
            "INSERT INTO orders SELECT n, n % 997 FROM generate_series(1, 60000) n",
        )
        ended = threading.Event()

        def scan() -> None:
            while not ended.wait(0.1):
                sql.fetch_rows(connection, "SELECT id FROM orders WHERE customer = -1")

        scanning = threading.Thread(target=scan)
        scanning.start()
        try:
            done = powerprof_cli(["diagnose", "--pid", str(server.pid), "--duration", "1", "--json", "-", "--no-save"])
        finally:
            ended.set()
            scanning.join()
    assert done.code == 0, done.err
    found = json.loads(done.out)
    (fault,) = [one for one in found["findings"] if one["severity"] == "fault"]
    assert fault["rule"] == "table_poller"
    assert 3 < fault["rate_hz"] < 11
    assert "SELECT id FROM orders WHERE customer = " in fault["evidence"][0]
    assert f"queries --pid {server.pid}" in fault["remedy"][-1]
    assert found["not_visible"] == []
