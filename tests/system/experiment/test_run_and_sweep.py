# SPDX-License-Identifier: Apache-2.0
"""run and sweep on a real server: saved, compared, and gone on with after an interruption."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from psutil import Process

from tests.conftest import REPOSITORY, Cli
from tests.programs.balance import counts_idle_exits
from tests.programs.in_window import until_in_window
from tests.programs.waiting import wait_until

QUICK = ["--duration", "0.4", "--meter", "none"]
PLAIN = """\
schema = "powerprof.workload/1"
name = "plain"
title = "no tables, so that a server is ready at once"
[load]
sql = ["SELECT 1"]
[conditions.one]
"""

_FEWER_ROWS = (
    *(("200000", "5000"), ("199900", "4900"), ("h.d < 2", "h.d < 1 AND g.d < 1 AND f.d < 5")),
    ('name = "oltp"', 'name = "small"'),
)


@pytest.fixture
def plain(tmp_path: Path) -> list[str]:
    """The words that name a workload without tables."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/workload.toml").write_text(PLAIN)
    return ["--workloads", str(tmp_path)]


def _saved_again(cli: Cli, first: str, second: str, **changes: object) -> None:
    """Save a run under a second name, with these changes."""
    runs = cli.home / "state/powerprof/runs"
    record = json.loads((runs / first / "run.json").read_text()) | {"id": second, **changes}
    (runs / second).mkdir()
    (runs / second / "run.json").write_text(json.dumps(record))


def test_two_saved_runs_are_compared(powerprof_cli: Cli, mariadbd: Path, sysbench: Path, plain: list[str]) -> None:
    done = powerprof_cli(["--quiet", "run", "plain:one", *plain, "--repeat", "2", *QUICK, "--rate", "100"])
    assert done.code == 0, done.err
    _saved_again(powerprof_cli, "run-0001", "run-0002")
    done = powerprof_cli(["compare", "run-0001", "run-0002", "--json", "-"])
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert record["options"] == {"a": "run-0001", "b": "run-0002"}
    server = record["metrics"][0]
    assert (server["name"], server["verdict"]) == ("c0_ms_per_query_server", "inconclusive")
    assert server["a"] == server["b"]
    assert record["differences"] == []


def test_only_the_waiting_thread_has_real_time_priority(
    powerprof_cli: Cli, mariadbd: Path, sysbench: Path, plain: list[str]
) -> None:
    words = [*("run", "plain:one", *plain, "--repeat", "2", "--duration", "1.5", "--rate", "50", "--meter"), "none"]
    process = powerprof_cli.start([*words, "--no-save"])
    try:
        # After the window in which the server is idle: there the thread has nobody to wait for.
        wait_until(lambda: os.sched_getscheduler(process.pid) != os.SCHED_OTHER, "a block")
        until_in_window(process, 1.5)
        policies = {each.name(): os.sched_getscheduler(each.pid) for each in Process(process.pid).children(True)}
        assert os.sched_getscheduler(process.pid) == os.SCHED_RR | os.SCHED_RESET_ON_FORK
        assert {"mariadbd", "sysbench"} <= set(policies)
        assert set(policies.values()) == {os.SCHED_OTHER}
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_an_interrupted_sweep_continues(powerprof_cli: Cli, mariadbd: Path, sysbench: Path, plain: list[str]) -> None:
    process = powerprof_cli.start(["sweep", "plain:one", *plain, "--clients", "1,2,3", "--repeat", "3", *QUICK])
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
    assert first["ended"]
    assert [point["value"] for point in first["points"]] == [1, 2, 3]
    rounds = min(len(point["blocks"]) for point in first["points"])
    assert 1 <= rounds < 3
    done = powerprof_cli(["sweep", "--resume", "sweep-0001", *plain, "--json", "-"])
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert [point["value"] for point in record["points"]] == [1, 2, 3]
    # Complete rounds are kept, the rest of one that was cut short is measured anew.
    for point, before in zip(record["points"], first["points"], strict=True):
        assert point["blocks"][:rounds] == before["blocks"][:rounds]
        assert [block["pair"] for block in point["blocks"]] == [0, 1, 2]
    assert record["ended"] is None
    assert [(pair["metric"], pair["a"], pair["b"]) for pair in record["compared"]] == [
        ("queries_hz", 1, 2),
        ("queries_hz", 1, 3),
        ("queries_hz", 2, 3),
    ]
    assert all(pair["ci95"] is not None for pair in record["compared"])
    starts = [[point["blocks"][number]["window"]["started_at"] for point in record["points"]] for number in range(3)]
    # A round is over before the next begins.
    assert max(starts[0]) < min(starts[1]) and max(starts[1]) < min(starts[2])
    os_layer = record["points"][2]["os"][0]
    assert os_layer["network_packets_hz"] is not None
    names = {metric["name"] for metric in record["points"][2]["metrics"]}
    assert {"queries_hz", "user_percent", "system_percent", "irq_percent", "context_switches_hz"} <= names
    # Without a cpuidle driver and where perf counts no idle exits they are unknown.
    counted = any(block["window"]["wakeups_hz"] is not None for block in record["points"][2]["blocks"])
    assert counted or not counts_idle_exits()
    assert ("wakeups_hz" in names) == counted


def test_a_start_up_setting_gets_a_start_per_round(
    powerprof_cli: Cli, mariadbd: Path, sysbench: Path, plain: list[str], tmp_path: Path
) -> None:
    buffers = (
        '[parameters]\nbuffers = { key = "server.my_cnf.innodb_buffer_pool_size", values = [16777216, 33554432] }\n'
    )
    (tmp_path / "plain/workload.toml").write_text(PLAIN + buffers)
    words = ["plain:one", *plain, "--set", "buffers", "--repeat", "3", "--rate", "100", *QUICK, "--json", "-"]
    done = powerprof_cli(["sweep", *words])
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert record["starts_count"] == 3
    assert [len(point["blocks"]) for point in record["points"]] == [3, 3]
    assert "3 starts of each server" in powerprof_cli(["report", record["id"]]).out


def test_transactions_are_swept_and_two_sweeps_compared(
    powerprof_cli: Cli, mariadbd: Path, sysbench: Path, tmp_path: Path
) -> None:
    # The published transaction on a fortieth of its rows: filling the tables of each point takes longest.
    (tmp_path / "small").mkdir()
    for name in ("workload.toml", "tables.sql"):
        text = (REPOSITORY / "workloads/oltp" / name).read_text()
        for old, new in _FEWER_ROWS:
            text = text.replace(old, new)
        (tmp_path / "small" / name).write_text(text)
    words = ["small:oltp-read-write", "--workloads", str(tmp_path), "--clients", "1,16", "--repeat", "3", *QUICK]
    done = powerprof_cli(["--quiet", "sweep", *words])
    assert done.code == 0, done.err
    # The second is the first without a point.
    saved = json.loads((powerprof_cli.home / "state/powerprof/runs/sweep-0001/run.json").read_text())
    _saved_again(powerprof_cli, "sweep-0001", "sweep-0002", points=saved["points"][1:])
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


def test_a_server_that_does_not_start_is_a_failed_point(
    powerprof_cli: Cli, mariadbd: Path, sysbench: Path, tmp_path: Path
) -> None:
    """Settings that need servers of their own: all are up, one is awake at a time."""
    (tmp_path / "plain").mkdir()
    flush = '[parameters]\nflush = { key = "server.my_cnf.innodb_flush_method", values = ["fsync", "nonsense"] }\n'
    (tmp_path / "plain/workload.toml").write_text(PLAIN + flush)
    words = ["plain:one", "--workloads", str(tmp_path), "--set", "flush", "--repeat", "3", *QUICK, "--json", "-"]
    done = powerprof_cli(["sweep", *words])
    assert done.code == 0, done.err
    record = json.loads(done.out)
    good, bad = record["points"]
    assert good["error"] is None, f"{good['error']}; {done.err}"
    assert (good["value"], len(good["blocks"])) == ("fsync", 3), record["notes"]
    assert (bad["value"], bad["blocks"]) == ("nonsense", [])
    assert "did not start" in bad["error"]
    # Tried again, it fails again, and what there is stays.
    again = powerprof_cli(["sweep", "--resume", "sweep-0001", "--workloads", str(tmp_path), "--json", "-"])
    assert [point["error"] for point in json.loads(again.out)["points"]] == [None, bad["error"]]
    assert json.loads(again.out)["points"][0] == good


def test_what_the_server_runs_is_sampled_at_each_point(
    root_bpf: None, powerprof_cli: Cli, mariadbd: Path, sysbench: Path, tmp_path: Path
) -> None:
    """sweep --on-cpu: a window per round and point."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/workload.toml").write_text(PLAIN.replace("SELECT 1", "SELECT BENCHMARK(20000, MD5('a'))"))
    words = ["--clients", "1,2", "--repeat", "3", "--duration", "0.4", "--meter", "none", "--on-cpu"]
    done = powerprof_cli(["sweep", "plain:one", "--workloads", str(tmp_path), *words, "--json", "-"], timeout=180)
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert record["options"]["on_cpu"] is True
    for point in record["points"]:
        assert point["error"] is None and len(point["on_cpu"]) == len(point["blocks"]) == 3
        for window in point["on_cpu"]:
            # 1.5 s of at least half a CPU, 997 times a second.
            assert window["samples_count"] > 300
            shares = {one["function"]: one["percent"] for one in window["functions"]}
            assert sum(shares.values()) == pytest.approx(100.0, abs=1.0)
            # The statement is MD5 and nothing else: its library is where the server runs.
            # Without its symbols a function is where it is entered, and MD5 is several.
            assert sum(one["percent"] for one in window["functions"] if "crypto" in one["module"]) > 10, shares
    printed = powerprof_cli(["report", "sweep-0001"])
    assert "Functions of the server, % of its samples, over clients" in printed.out


@pytest.mark.nightly
def test_the_highest_rate_is_below_the_capacity(powerprof_cli: Cli, mariadbd: Path, sysbench: Path) -> None:
    words = ["sweep", "index", "no-index", "--until", "p95=30ms", "--repeat", "4", "--duration", "1"]
    result = powerprof_cli([*words, "--json", "-"], timeout=300)
    assert result.code == 0, result.err
    record = json.loads(result.out)
    for side in (record["a"], record["b"]):
        assert len(side["values"]) == 4 and all(0 < value <= side["capacity_hz"] for value in side["values"])
    # A scan of 20,395 rows takes more than ten times an index's look-up.
    assert record["verdict"] == "b_lower" and record["ratio"]["b_over_a"] < 0.2
