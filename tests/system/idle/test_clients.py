# SPDX-License-Identifier: Apache-2.0
"""Numbers of clients: none, some hundred; and a server of the user's. `--quick` and `--quiet`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from powerprof.database import sql
from powerprof.database.private_server import PrivateServer
from tests.conftest import Cli
from tests.programs.option_files import write_options
from tests.programs.working_client import working


def test_quick_windows_of_five_hundred_clients(powerprof_cli: Cli, mariadbd: Path) -> None:
    """Few and short windows, which the report names."""
    done = powerprof_cli(["idle", "--quick", "--clients", "500", "--no-causes", "--json", "-"])
    assert done.code == 0, done.err
    run = json.loads(done.out)
    windows = {phase["name"]: len(phase["windows"]) for phase in run["phases"]}
    assert windows == {"baseline": 3, "server": 3, "clients": 3, "baseline-after": 2}
    for phase in run["phases"]:
        # On a busy host the edges of a window come late; never early.
        assert all(1.49 < window["window_s"] < 3.0 for window in phase["windows"])
    assert "--quick: 3 windows of 1.5 s per phase; for narrower intervals, leave it out" in run["notes"]
    assert not [note for note in run["notes"] if "closed by the server" in note]
    report = powerprof_cli(["report", run["id"]])
    assert "for narrower intervals, leave it out" in " ".join(report.out.split())


def test_no_clients_measures_the_server_alone_and_quiet_prints_nothing(powerprof_cli: Cli, mariadbd: Path) -> None:
    args = [
        "--quiet",
        "idle",
        "--clients",
        "0",
        "--duration",
        "0.05",
        "--repeat",
        "2",
        "--meter",
        "none",
        "--no-causes",
    ]
    done = powerprof_cli(args)
    assert (done.code, done.out, done.err) == (0, "", "")
    (path,) = (powerprof_cli.home / "state/powerprof/runs").glob("*/run.json")
    run = json.loads(path.read_text())
    assert [phase["name"] for phase in run["phases"]] == ["baseline", "server", "baseline-after"]
    assert run["options"]["clients_count"] == 0


@pytest.mark.usefixtures("counts_statements")
def test_a_server_of_the_users(powerprof_cli: Cli) -> None:
    """It is measured without a baseline, is not changed, and runs on afterwards."""
    with PrivateServer(connections=40) as server:
        with server.connect() as connection:
            # Traces of the host by other tests log in with these accounts and read the names of threads.
            sql.execute(connection, "DROP USER IF EXISTS root@localhost", "DROP USER IF EXISTS mysql@localhost")
        options = powerprof_cli.home / "my.cnf"
        powerprof_cli.home.mkdir(parents=True, exist_ok=True)
        write_options(options, server.login, socket=False)
        words = ["idle", "--clients", "20", "--duration", "0.2", "--repeat", "2", "--meter", "none"]
        words += ["--no-causes", "--socket", str(server.socket), "--defaults-file", str(options), "--json", "-"]
        done = powerprof_cli(words)
        assert (done.code, done.err) == (0, "")
        with working(server, pause_s=0.05):
            refused = powerprof_cli(words)
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
