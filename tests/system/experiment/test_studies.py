# SPDX-License-Identifier: Apache-2.0
"""What the pages of docs/studies claim, in directions and factors, on short runs of the same conditions."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli

SHORT = ["--pairs", "3", "--duration", "0.5", "--meter", "none", "--no-save", "--json", "-"]


def _metrics(cli: Cli, a: str, b: str, *more: str) -> dict[str, Any]:
    done = cli(["compare", a, b, *SHORT, *more])
    assert done.code == 0, done.err
    return {metric["name"]: metric for metric in json.loads(done.out)["metrics"]}


def _ratio(metric: dict[str, Any]) -> float:
    return float(metric["b"]["mean"] / metric["a"]["mean"])


def test_kept_prepared_statements_save_round_trips(powerprof_cli: Cli, mariadbd: Path, sysbench: Path) -> None:
    found = _metrics(powerprof_cli, "server-prepared-cached", "server-prepared")
    for arm, trips in (("a", 1), ("b", 2)):
        assert found["round_trips_per_query"][arm]["mean"] == pytest.approx(trips, abs=0.02)
    assert _ratio(found["c0_ms_per_query_server"]) > 1.2


@pytest.mark.parametrize(
    ("key", "where", "error"),
    [
        ("", "counters = { Com_stmt_execute = 1 }", "Com_stmt_execute moved 0 times a query, and not 1"),
        (
            'checks = ["SELECT 1 FROM DUAL WHERE 1 = 0", "SELECT 7, 8"]',
            "",
            "consistency check 2 of the data failed: 7, 8",
        ),
    ],
)
def test_a_load_with_unexpected_counters_or_damaged_data_is_not_measured(
    powerprof_cli: Cli, mariadbd: Path, sysbench: Path, tmp_path: Path, key: str, where: str, error: str
) -> None:
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong/workload.toml").write_text(
        'schema = "powerprof.workload/1"\nname = "wrong"\ntitle = "t"\n'
        f'[load]\nsql = ["SELECT 1"]\n{key}\n[conditions.one]\n{where}\n'
    )
    done = powerprof_cli(["run", "wrong:one", "--workloads", str(tmp_path), "--repeat", "2", "--duration", "0.4"])
    assert done.code == 1
    assert f"wrong:one: {error}" in done.err


def test_a_buffer_above_the_threshold_is_faulted_in_for_every_connection(
    powerprof_cli: Cli, mariadbd: Path, sysbench: Path
) -> None:
    found = _metrics(powerprof_cli, "read-buffer-128k", "read-buffer-5m", "--turn", "0.25")
    faults = found["minor_faults_per_query"]
    # 5 MiB in pages of 4 KiB and one; a query is a connection.
    assert faults["a"]["mean"] <= 50
    assert 1200 <= faults["b"]["mean"] <= 1400


@pytest.fixture(scope="module")
def on_one_server(
    tmp_path_factory: pytest.TempPathFactory, shared_cache: Path, mariadbd: Path, sysbench: Path
) -> dict[int, dict[str, Any]]:
    """TPC-C on one server: the point of a sweep for each number of clients."""
    found = _sweep(Cli(tmp_path_factory.mktemp("tpcc"), shared_cache), "tpcc-single", "1,16")
    return {point["value"]: point for point in found}


def _sweep(cli: Cli, condition: str, clients: str) -> list[dict[str, Any]]:
    done = cli(["sweep", condition, "--clients", clients, "--repeat", "3", "--duration", "0.8", *SHORT[4:]])
    assert done.code == 0, done.err
    points: list[dict[str, Any]] = json.loads(done.out)["points"]
    return points


def _means(point: dict[str, Any]) -> dict[str, float]:
    return {metric["name"]: metric["estimate"]["mean"] for metric in point["metrics"]}


@pytest.mark.nightly  # test_tpcc_crash.py checks the data of this load.
def test_tpcc_keeps_its_data_intact(on_one_server: dict[int, dict[str, Any]]) -> None:
    assert list(on_one_server) == [1, 16]
    for point in on_one_server.values():
        assert point["error"] is None
        assert len(point["blocks"]) == 3
        for block in point["blocks"]:
            # 45 of 100 transactions are new orders, and one in a hundred of those is rolled back.
            share = block["queries"] / block["status"]["Com_commit"]
            assert 0.25 < share < 0.65
            assert block["p95_ms"] > 0


@pytest.mark.nightly
def test_a_router_answers_what_one_server_answers_and_costs_cpu_time(
    powerprof_cli: Cli, on_one_server: dict[int, dict[str, Any]]
) -> None:
    if not any(Path(folder, "mysql/plugin/ha_spider.so").exists() for folder in ("/usr/lib", "/usr/lib64")):
        pytest.skip("no capability: MariaDB's Spider engine (apt install mariadb-plugin-spider)")
    (routed,) = _sweep(powerprof_cli, "tpcc-routed-pair", "16")
    # The checks of the data join tables of both hosts; one that found a row would be the error here.
    assert routed["error"] is None
    metrics = _means(routed)
    assert {"c0_percent:router", "c0_percent:host-a", "c0_percent:host-b"} <= set(metrics)
    # 6.0 against 26.9 ms where it was measured.
    assert metrics["c0_ms_per_query_server"] > 1.5 * _means(on_one_server[16])["c0_ms_per_query_server"]


@pytest.mark.nightly
def test_a_second_server_helps_a_slow_disk(powerprof_cli: Cli, mariadbd: Path, sysbench: Path) -> None:
    options = ["--clients", "16", "--repeat", "3", "--duration", "6", *SHORT[4:]]
    found = []
    for condition in ("tpcc-disk-single", "tpcc-disk-routed-pair"):
        done = powerprof_cli(["sweep", condition, *options], timeout=300)
        assert done.code == 0, done.err
        (point,) = json.loads(done.out)["points"]
        assert point["error"] is None
        found.append(_means(point))
        # What the disks give is read, by each server's own (and by neighbours).
        assert point["os"][0]["disk_reads_hz"] > 1000
    single, pair = found
    # One server waits for its disk, and uses little of the CPUs.
    assert single["c0_ms_per_query_server"] * single["queries_hz"] < 0.3 * 1000 * (os.cpu_count() or 1)
    # 1.9 times where it was measured.
    assert pair["queries_hz"] > 1.1 * single["queries_hz"]


@pytest.mark.nightly
def test_early_page_writes_write_more(powerprof_cli: Cli, mariadbd: Path, sysbench: Path) -> None:
    options = ["--pairs", "3", "--duration", "2.4", *SHORT[4:]]
    done = powerprof_cli(["compare", "dirty-pages-high", "dirty-pages-low", *options])
    assert done.code == 0, done.err
    record = json.loads(done.out)
    for block in record["blocks"]:
        slices = block["slices"]
        assert len(slices["write_bytes"]) == len(slices["lengths_s"]) >= 5
        assert 2 < sum(slices["lengths_s"]) < 10
    found = {metric["name"]: metric for metric in record["metrics"]}
    if not found["write_bytes_hz"]["b"]["mean"]:
        pytest.skip("no capability: servers on a disk (TMPDIR is in memory, where nothing is written)")
    # A page that is changed again before it is written is written once.
    assert _ratio(found["write_bytes_hz"]) > 1.2
    for arm in ("a", "b"):
        assert found["write_bytes_peak_hz"][arm]["mean"] > 2 * found["write_bytes_hz"][arm]["mean"]
