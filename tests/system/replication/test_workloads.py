# SPDX-License-Identifier: Apache-2.0
"""The shipped workloads of several servers, run for moments: what each server did, storms, and the cure."""

from __future__ import annotations

import pytest

from powerprof.experiment.bench_options import BenchOptions
from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.records import Block, LoadRun
from powerprof.experiment.run import run_condition
from powerprof.workloads.catalogue import find_condition
from powerprof.workloads.reading import resolve
from tests.programs.balance import counts_idle_exits

pytestmark = pytest.mark.usefixtures("mariadbd")


def run(condition: str, window_s: float = 1.0) -> tuple[LoadRun, list[Block]]:
    options = ExperimentOptions(pairs=1, window_s=window_s, warm_up_pairs=0, baseline_windows=1)
    record = run_condition(resolve(*find_condition(condition)), BenchOptions(), options, lambda said: None)
    return record, record.blocks


def test_an_orphan_goes_round_and_its_status_is_clean() -> None:
    _, (block,) = run("ring-orphan-event")
    first, second = block.members
    assert (first.name, second.name) == ("node-1", "node-2")
    for share in (first, second):
        assert share.commits_hz is not None
        assert share.commits_hz > 50  # 1,300/s on an idle machine
        assert share.c0_percent is not None
        assert share.c0_percent > 1
        assert share.relay_log_bytes_hz is not None
        assert share.relay_log_bytes_hz > 5000
        (status,) = share.replication
        assert (status.io_running, status.sql_running, status.last_io_error) == ("Yes", True, None)


def test_the_cured_ring_is_silent() -> None:
    record, (block,) = run("ring-orphan-event-cured-16-clients")
    assert [share.commits_hz for share in block.members] == [0.0, 0.0]
    assert all(share.replication[0].ignored_server_ids == (99,) for share in block.members)
    # A host without a cpuidle driver may have no CPU on which perf counts idle exits; then the window says so.
    unknown = any("wake-ups are known only where they are traced" in note for note in block.window.notes)
    assert (block.window.wakeups_hz is None) == unknown
    assert not (unknown and counts_idle_exits())
    names = {metric.name for metric in record.metrics}
    assert {"c0_percent:node-1", "watts:node-2"} <= names
    assert ("wakeups_hz" in names) != unknown


def test_mariadb_backs_off_where_a_server_id_is_duplicated() -> None:
    record, (block,) = run("replica-duplicate-id:replica-duplicate-id-retry-1s", 2.0)
    assert block.storm is not None
    assert not block.storm.began
    assert block.storm.raged_percent == 0.0
    assert block.storm.counter_hz < 10  # 1.8/s with MASTER_CONNECT_RETRY=1
    assert record.server is not None
    assert [share.name for share in block.members] == ["primary", "replica-1", "replica-2"]


@pytest.mark.parametrize(
    "condition", [pytest.param("primary-primary-16-clients", marks=pytest.mark.nightly), "replica-unique-id"]
)
def test_healthy_servers(condition: str) -> None:
    _, (block,) = run(condition, 0.5)
    states = [status for share in block.members for status in share.replication]
    assert len(states) == 2
    assert all(status.io_running == "Yes" and status.sql_running for status in states)
    assert all(share.connections_hz < 5 for share in block.members)
