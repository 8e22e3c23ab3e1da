# SPDX-License-Identifier: Apache-2.0
"""Numbers of clients: none, some hundred; and a server of the user's."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Sequence

from powerprof.database import sql
from powerprof.database.private_server import PrivateServer
from tests.conftest import Cli
from tests.programs.option_files import write_options
from tests.system.idle.ending import Idle

Start = Callable[[Sequence[str]], Idle]


def test_no_clients_measures_the_server_alone(idle: Start) -> None:
    running = idle(["--clients", "0", "--no-causes", "--json", "-"])
    assert running.end() == 0, running.err
    run = json.loads(running.out)
    assert [phase["name"] for phase in run["phases"]] == ["baseline", "server", "baseline-after"]
    assert run["options"]["clients_count"] == 0


def test_five_hundred_clients(idle: Start) -> None:
    running = idle(["--clients", "500", "--no-causes", "--json", "-"])
    assert running.end() == 0, running.err
    run = json.loads(running.out)
    assert [phase["name"] for phase in run["phases"]] == ["baseline", "server", "clients", "baseline-after"]
    assert not [note for note in run["notes"] if "closed by the server" in note]


def work_until(server: PrivateServer, ended: threading.Event) -> None:
    with server.connect() as connection:
        while not ended.wait(0.05):
            sql.fetch_rows(connection, "SELECT 1")


def test_a_server_of_the_users(powerprof_cli: Cli) -> None:
    """It is measured without a baseline, is not changed, and runs on afterwards."""
    with PrivateServer(connections=40) as server:
        options = powerprof_cli.home / "my.cnf"
        powerprof_cli.home.mkdir(parents=True, exist_ok=True)
        write_options(options, server.login, socket=False)
        words = ["idle", "--clients", "20", "--duration", "0.2", "--repeat", "2", "--energy-source", "none"]
        words += ["--no-causes", "--socket", str(server.socket), "--defaults-file", str(options), "--json", "-"]
        done = powerprof_cli(words)
        assert (done.code, done.err) == (0, "")
        working = threading.Event()
        client = threading.Thread(target=work_until, args=(server, working))
        client.start()
        try:
            refused = powerprof_cli(words)
        finally:
            working.set()
            client.join()
        assert (refused.code, refused.out) == (1, "")
        load = re.search(
            r"this server is not idle: ([\d.]+) statements/s from 1 client \([\d.]+ % of one CPU\)", refused.err
        )
        assert load is not None and 10 < float(load[1]) < 21, refused.err
        assert f"attribute --pid {server.pid}" in refused.err
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Threads_connected'")
            assert int(cursor.fetchone()[1]) <= 2
    run = json.loads(done.out)
    assert [phase["name"] for phase in run["phases"]] == ["server", "clients"]
    assert (run["server"]["private"], run["server"]["pid"]) == (False, server.pid)
    assert server.login.password not in done.out
    assert "a given server: no baseline without the server" in run["notes"]
    assert run["statements_hz"] == 0.0
