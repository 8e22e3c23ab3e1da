# SPDX-License-Identifier: Apache-2.0
"""`powerprof diagnose` without the right to trace: what status alone tells, and that it says so."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from powerprof.database import sql
from powerprof.database.options import ServerOptions
from powerprof.database.server import PrivateServer
from powerprof.database.topology import Topology
from tests.conftest import Cli

pytestmark = pytest.mark.usefixtures("mariadbd")
OptionFile = Callable[[PrivateServer], Path]


def diagnose(cli: Cli, account: Path) -> dict[str, object]:
    """By an address on another host, as far as powerprof can tell: no process of it is seen."""
    started = time.monotonic()
    arguments = ["diagnose", "--defaults-file", str(account), "--duration", "1.5", "--json", "-", "--no-save"]
    empty = account.parent / "proc"
    empty.mkdir(exist_ok=True)
    done = cli(arguments, env={"POWERPROF_PROCFS": str(empty)})
    assert done.code == 0, done.err
    assert time.monotonic() - started < 15
    found: dict[str, object] = json.loads(done.out)
    assert found["schema"] == "powerprof.diagnosis/1"
    return found


def faults(found: dict[str, object]) -> list[str]:
    findings = found["findings"]
    assert isinstance(findings, list)
    return [one["rule"] for one in findings if one["severity"] == "fault"]


def test_an_orphan_event_and_a_healthy_ring(powerprof_cli: Cli, option_file: OptionFile) -> None:
    with Topology("ring", 2, options=ServerOptions(settings={"binlog-format": "STATEMENT"})) as topology:
        account = option_file(topology["node-1"].server)
        assert faults(diagnose(powerprof_cli, account)) == []
        with topology["node-1"].server.connect() as connection:
            sql.execute(
                connection,
                "CREATE DATABASE shop",
                "CREATE TABLE shop.t (n BIGINT)",
                "INSERT INTO shop.t VALUES (0)",
                "SET SESSION server_id=99",
                "UPDATE shop.t SET n=n+1",
            )
        found = diagnose(powerprof_cli, account)
        assert faults(found) == ["orphan_event"]
        evidence = found["evidence"]
        assert isinstance(evidence, dict)
        assert evidence["traced_s"] is None
        assert any("not traced" in note for note in evidence["notes"])
        assert topology["node-1"].server.login.password not in json.dumps(found)


def test_a_replica_that_is_refused_by_its_source(powerprof_cli: Cli, option_file: OptionFile) -> None:
    with Topology("primary-replica", 2) as topology:
        replica = topology["replica-1"].server
        with replica.connect() as connection:
            sql.execute(
                connection,
                "STOP SLAVE",
                "CHANGE MASTER TO MASTER_PASSWORD='wrong', MASTER_CONNECT_RETRY=5",
                "START SLAVE",
            )
        time.sleep(1)
        assert faults(diagnose(powerprof_cli, option_file(replica))) == ["reconnect_loop"]
        assert faults(diagnose(powerprof_cli, option_file(topology["primary"].server))) == []


def test_nobody_to_look_at(powerprof_cli: Cli) -> None:
    done = powerprof_cli(["diagnose"])
    assert (done.code, done.err.splitlines()[0]) == (2, "error: say which server")
    done = powerprof_cli(["diagnose", "--pid", str(os.getppid()), "--socket", "/nowhere/at/all"])
    assert done.code == 1
    assert done.err.startswith("error: cannot connect")
