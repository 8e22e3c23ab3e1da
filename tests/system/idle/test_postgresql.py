# SPDX-License-Identifier: Apache-2.0
"""`idle` of PostgreSQL: a private server and one of the user's; addresses of the other product."""

from __future__ import annotations

import json
import re
from pathlib import Path

from powerprof.database.private_server import PrivateServer
from tests.conftest import Cli
from tests.programs.working_client import working

_ROLES = re.compile(
    "background writer|checkpointer|walwriter|autovacuum launcher|logical replication launcher|postgres"
)
_WINDOWS = ("--duration", "0.3", "--repeat", "2", "--meter", "none")


def test_a_private_postgresql_has_its_processes_in_the_report(powerprof_cli: Cli, root_bpf: None) -> None:
    words = ["idle", "--server-build", "postgresql", "--clients", "8", "--duration", "2", "--repeat", "2"]
    done = powerprof_cli([*words, "--meter", "none", "--json", "-"])
    assert done.code == 0, done.err
    run = json.loads(done.out)
    assert run["server"]["version"].startswith("PostgreSQL ") and run["server"]["private"]
    phases = {phase["name"]: phase for phase in run["phases"]}
    assert list(phases) == ["baseline", "server", "clients", "baseline-after"]
    for name in ("server", "clients"):
        counted = phases[name]["server_exits"]
        # An idle 15 wakes 5 to 10 times a second: its background writer alone every 200 ms.
        assert 1 < counted["wakings_hz"] < 60, counted
        assert _ROLES.match(counted["most_woken"]), counted
        own = [row for row in phases[name]["causes"] if row["process"] == "postgres"]
        assert sum(row["count"] for row in own) >= counted["count"] or counted["count"] == 0
    report = " ".join(powerprof_cli(["report", run["id"]]).out.split())
    assert re.match(r"(An idle PostgreSQL \d+ wakes|The processes of an idle PostgreSQL \d+ wake) ", report), report


def test_a_postgresql_of_the_users_is_measured_and_refused_while_it_works(
    powerprof_cli: Cli, postgresql_server: PrivateServer
) -> None:
    words = [
        "idle",
        "--server",
        f"powerprof@{postgresql_server.socket}",
        "--clients",
        "20",
        *_WINDOWS,
        "--no-causes",
        "--json",
        "-",
    ]
    done = powerprof_cli(words)
    assert (done.code, done.err) == (0, "")
    run = json.loads(done.out)
    assert [phase["name"] for phase in run["phases"]] == ["server", "clients"]
    assert (run["server"]["private"], run["server"]["pid"]) == (False, postgresql_server.pid)
    assert run["server"]["version"] == postgresql_server.version
    with working(postgresql_server, pause_s=0.02):
        refused = powerprof_cli(words)
    assert (refused.code, refused.out) == (1, "")
    assert re.search(r"this server is not idle: [\d.]+ requests/s from 1 client \([\d.]+ % of one CPU\)", refused.err)
    assert f"attribute --pid {postgresql_server.pid}" in refused.err


def test_diagnose_takes_an_address_of_postgresql(powerprof_cli: Cli, postgresql_server: PrivateServer) -> None:
    words = ["diagnose", "--server", f"powerprof@{postgresql_server.socket}", "--duration", "1", "--no-save", "--json"]
    done = powerprof_cli([*words, "-"])
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["server"]["version"] == postgresql_server.version
    assert {"29 settings", "replication slots (0)", "walsenders (0)"} <= set(found["looked_at"])
    assert not any("settings" in part for part in found["not_looked_at"])


def test_an_address_of_the_other_product_is_recognised(
    powerprof_cli: Cli, postgresql_server: PrivateServer, mariadbd: Path, tmp_path: Path
) -> None:
    refused = powerprof_cli(["attribute", "--duration", "1", "--socket", str(postgresql_server.socket)])
    assert refused.code == 2 and "is a PostgreSQL server, and this command" in refused.err, refused.err
    for command in ("diagnose", "queries"):
        refused = powerprof_cli([command, "--socket", str(postgresql_server.socket), "--duration", "1"])
        assert refused.code == 1 and "cannot connect to" in refused.err and "pg_hba.conf" in refused.err, refused.err
    other = tmp_path / "db.sock"
    other.symlink_to(postgresql_server.socket)
    refused = powerprof_cli(["idle", "--server", f"powerprof@{other}", "--clients", "1", *_WINDOWS])
    assert refused.code == 1
    assert refused.err.startswith(f"error: powerprof@{other} is a PostgreSQL server\n"), refused.err
    with PrivateServer() as maria:
        disguised = tmp_path / ".s.PGSQL.5432"
        disguised.symlink_to(maria.socket)
        refused = powerprof_cli(["idle", "--server", f"powerprof@{disguised}", "--clients", "1", *_WINDOWS])
    assert refused.code == 1 and "it does not speak PostgreSQL's protocol" in refused.err, refused.err
