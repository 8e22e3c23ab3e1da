# SPDX-License-Identifier: Apache-2.0
"""Clients behind the gate, and pairs whose conditions take turns."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from powerprof.database import sql
from powerprof.database.private_server import PrivateServer
from powerprof.experiment.load import Context, LoadFailed
from powerprof.experiment.sysbench_gate import GatedLoad
from powerprof.measure.procfs import process_cpu_ns
from powerprof.system.tasks import read_switches
from powerprof.workloads.definition import Load
from tests.conftest import Cli


@pytest.fixture(scope="module")
def server(mariadbd: Path) -> Iterator[PrivateServer]:
    """Not a pooled server: its statements are counted."""
    with PrivateServer() as started:
        yield started


def _load(server: PrivateServer, folder: Path, statement: str, clients: int = 2, rate_hz: float = 200.0) -> GatedLoad:
    load = Load(sql=[statement], clients=clients)
    return GatedLoad(load, load.sql, Context(server, server.login, folder), rate_hz, seed=5)


def _questions(server: PrivateServer) -> int:
    with server.connect() as connection:
        return int(sql.fetch_rows(connection, "SHOW GLOBAL STATUS LIKE 'Questions'")[0][1])


def test_the_gate_passes_statements_at_their_rate(server: PrivateServer, sysbench: Path, tmp_path: Path) -> None:
    with _load(server, tmp_path, "SELECT SLEEP(0.005)") as load:
        start = load.tally()
        assert start.done == 0
        own = -_questions(server) + _questions(server)
        asked = _questions(server)
        for turn in range(1, 11):
            load.open()
            time.sleep(0.2)
            load.shut(5.0)
            quiet = load.tally()
            used_ns, slept = process_cpu_ns(load.pids[0]), read_switches(load.pids[0])
            time.sleep(0.1)
            assert load.tally().done == quiet.done, turn
            # Asleep in the kernel: a thread goes to sleep once at most, and none spins.
            now = read_switches(load.pids[0])
            assert now.keys() == slept.keys(), turn
            assert max(now[tid] - slept[tid] for tid in now) <= 1, turn
            assert (process_cpu_ns(load.pids[0]) or 0) - (used_ns or 0) < 20_000_000
        result = load.tally().since(start)
        # Exact: no statement is under way.
        assert _questions(server) - asked - own == result.queries
    # 400 are due in two seconds; four deviations of a Poisson count are 80.
    assert 300 < (result.queries or 0) < 500
    assert 5.0 < (result.p50_ms or 0) < 40.0
    assert 5.0 < (result.mean_ms or 0) < 100.0
    assert (result.p50_ms or 0) <= (result.p95_ms or 0) <= (result.p99_ms or 0)


def test_latency_counts_from_when_a_statement_was_due(server: PrivateServer, sysbench: Path, tmp_path: Path) -> None:
    with _load(server, tmp_path, "SELECT SLEEP(0.02)", clients=1, rate_hz=200.0) as load:
        start = load.tally()
        load.open()
        time.sleep(0.5)
        load.shut(5.0)
        result = load.tally().since(start)
    # One client does 50/s of the 200/s that are due: the last ones wait for three quarters of the half second.
    assert 15 < (result.queries or 0) < 30
    assert (result.p99_ms or 0) > 200


def test_a_client_that_cannot_connect_or_is_killed_is_a_failed_load(
    server: PrivateServer, sysbench: Path, tmp_path: Path
) -> None:
    with pytest.raises(LoadFailed, match=r"sysbench failed with 1: .*NO_SUCH_SCHEMA"):
        load = Load(sql=["SELECT 1"], database="NO_SUCH_SCHEMA")
        with GatedLoad(load, load.sql, Context(server, server.login, tmp_path), 10.0, 1):
            pass
    with _load(server, tmp_path, "SELECT SLEEP(1)") as running:
        running.open()
        time.sleep(0.3)
        os.kill(running.pids[0], 9)
        with pytest.raises(LoadFailed, match="sysbench was killed by signal 9"):
            running.shut(5.0)


def test_a_failed_statement_ends_clients_at_the_gate(server: PrivateServer, sysbench: Path, tmp_path: Path) -> None:
    with _load(server, tmp_path, "SELECT NO_SUCH_COLUMN", clients=8, rate_hz=40.0) as load:
        load.open()
        time.sleep(0.05)
        started_s = time.monotonic()
        with pytest.raises(LoadFailed, match="NO_SUCH_COLUMN"):
            while True:
                load.shut(5.0)
                load.open()
                time.sleep(0.02)
        assert time.monotonic() - started_s < 3


WORKLOAD = """\
schema = "powerprof.workload/1"
name = "naps"
title = "Statements that wait"
[load]
clients = 2
rate_hz = 100
[conditions.short]
load.sql = ["SELECT SLEEP(0.002)"]
[conditions.long]
load.sql = ["SELECT SLEEP(0.008)"]
"""


def test_alternating_conditions_get_the_same_statements(
    powerprof_cli: Cli, mariadbd: Path, sysbench: Path, tmp_path: Path
) -> None:
    (tmp_path / "naps").mkdir()
    (tmp_path / "naps/workload.toml").write_text(WORKLOAD)
    words = ["compare", "short", "long", "--workloads", str(tmp_path), "--pairs", "3", "--duration", "0.5"]
    done = powerprof_cli([*words, "--meter", "none", "--json", "-"])
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert record["options"]["turn_s"] == 0.1  # ten statements a turn, at 100 a second
    pairs: dict[int, dict[str, dict[str, object]]] = {}
    for block in record["blocks"]:
        assert 0.5 <= block["window"]["window_s"] < 0.8
        assert 20 < block["queries"] < 90
        assert block["status"]["Questions"] == pytest.approx(block["queries"], abs=2)
        pairs.setdefault(block["pair"], {})[block["arm"]] = block
    for pair in pairs.values():
        # The same seed: the arrivals of both differ only by what the waiting for an answer leaves out.
        assert pair["a"]["queries"] == pytest.approx(pair["b"]["queries"], rel=0.3)
    metrics = {metric["name"]: metric for metric in record["metrics"]}
    # Each condition's own naps: a busy host makes them longer, never as long as the other's, and never shorter.
    assert 2.0 <= metrics["latency_p50_ms"]["a"]["mean"] < 8.0 <= metrics["latency_p50_ms"]["b"]["mean"]
    assert record["control"] is None


def test_invalid_turns_are_refused(powerprof_cli: Cli) -> None:
    done = powerprof_cli(["compare", "index", "no-index", "--turn", "-1"])
    assert done.code == 2
    assert done.err.startswith("error: --turn -1: must be 0 (whole windows) or between 0.05 and 60 s")
