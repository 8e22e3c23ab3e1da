# SPDX-License-Identifier: Apache-2.0
"""run and sweep on a real server: saved, compared, and gone on with after an interruption."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from tests.conftest import Cli

QUICK = ["--duration", "0.4", "--energy-source", "none"]
PLAIN = """\
schema = "powerprof.workload/1"
name = "plain"
title = "no tables, so that a server is ready at once"
[load]
sql = ["SELECT 1"]
[conditions.one]
"""


@pytest.fixture
def plain(tmp_path: Path) -> list[str]:
    """The words that name a workload without tables."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/workload.toml").write_text(PLAIN)
    return ["--workloads", str(tmp_path)]


def test_two_saved_runs_are_compared(powerprof_cli: Cli, mariadbd: Path, sysbench: Path, plain: list[str]) -> None:
    for _ in range(2):
        done = powerprof_cli(["run", "plain:one", *plain, "--repeat", "2", *QUICK, "--rate", "100", "--quiet"])
        assert done.code == 0, done.err
    done = powerprof_cli(["compare", "run-0001", "run-0002", "--json", "-"])
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert record["options"] == {"a": "run-0001", "b": "run-0002"}
    assert record["metrics"][0]["name"] == "c0_ms_per_query_server"
    assert record["differences"] == []


def test_a_sweep_goes_on_where_it_was_interrupted(
    powerprof_cli: Cli, mariadbd: Path, sysbench: Path, plain: list[str]
) -> None:
    process = powerprof_cli.start(["sweep", "plain:one", *plain, "--clients", "1,2,3", "--repeat", "1", *QUICK])
    saved = powerprof_cli.home / "state/powerprof/runs/sweep-0001/run.json"
    deadline = time.monotonic() + 60
    while not (saved.is_file() and json.loads(saved.read_text())["points"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "powerprof sweep --resume sweep-0001" in err
    first = json.loads(saved.read_text())
    assert first["interrupted"]
    assert 1 <= len(first["points"]) < 3
    done = powerprof_cli(["sweep", "--resume", "sweep-0001", *plain, "--json", "-"])
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert [point["value"] for point in record["points"]] == [1, 2, 3]
    assert record["points"][0] == first["points"][0]
    assert not record["interrupted"]
    os_layer = record["points"][2]["os"][0]
    assert os_layer["network_packets_hz"] is not None
    names = {metric["name"] for metric in record["points"][2]["metrics"]}
    assert {"queries_hz", "user_percent", "system_percent", "irq_percent", "context_switches_hz", "wakeups_hz"} <= names


def test_transactions_are_swept_and_two_sweeps_compared(powerprof_cli: Cli, mariadbd: Path, sysbench: Path) -> None:
    done = powerprof_cli(["sweep", "oltp-read-write", "--clients", "1,16", "--repeat", "2", *QUICK, "--quiet"])
    assert done.code == 0, done.err
    # The second is the first without a point: the tables of each point take longest.
    runs = powerprof_cli.home / "state/powerprof/runs"
    second = json.loads((runs / "sweep-0001/run.json").read_text())
    second |= {"id": "sweep-0002", "points": second["points"][1:]}
    (runs / "sweep-0002").mkdir()
    (runs / "sweep-0002/run.json").write_text(json.dumps(second))
    done = powerprof_cli(["compare", "sweep-0001", "sweep-0002", "--json", "-"])
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert record["schema"] == "powerprof.sweepcomparison/1"
    assert [point["value"] for point in record["points"]] == [16]
    assert record["notes"] == ["clients 1: not measured in both sweeps"]
    assert record["metric"] == "queries_hz"
    metrics = {metric["name"]: metric for metric in record["points"][0]["metrics"]}
    # The transaction is what is counted: 14 selects of it read 410 rows by key or range, and four change one each.
    assert 350 < metrics["rows_examined_per_query"]["a"]["mean"] < 900
    # 19 statements, each a question and an answer.
    assert metrics["context_switches_per_query"]["a"]["mean"] > 10
