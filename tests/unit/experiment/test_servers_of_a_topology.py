# SPDX-License-Identifier: Apache-2.0
"""Figures of each server: relay logs that are purged while they are counted, watts by share of C0, storms."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from powerprof.experiment.metrics import Baseline, read_figures
from powerprof.experiment.observers import list_relay_logs, sum_relay_bytes
from powerprof.experiment.records import MemberShare, StormShare
from powerprof.report.run import topology_lines
from tests.unit.experiment import builders


def test_relay_logs_are_counted_by_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "relay.000007").write_bytes(b"x" * 70)
    (tmp_path / "relay.index").write_bytes(b"x" * 999)
    (tmp_path / "binlog.000007").write_bytes(b"x" * 999)
    assert list_relay_logs(tmp_path) == {7: 70}
    assert list_relay_logs(tmp_path / "gone") == {}


@pytest.mark.parametrize(
    ("before", "after", "written"),
    [
        ({7: 70}, {7: 100}, 30.0),
        ({7: 70}, {7: 100, 8: 10}, 40.0),
        ({7: 100}, {107: 100}, 100 + 99 * 100.0),
        ({7: 70}, {}, None),
    ],
)
def test_what_was_written_between_two_looks(
    before: dict[int, int], after: dict[int, int], written: float | None
) -> None:
    assert sum_relay_bytes(before, after) == written


def share(name: str, cpu_s: float, connections_hz: float = 0.0) -> MemberShare:
    return MemberShare(
        name=name,
        pid=1,
        cpu_s=cpu_s,
        c0_percent=25 * cpu_s,
        connections_hz=connections_hz,
        commits_hz=None,
        relay_log_bytes_hz=0.0,
    )


def test_watts_of_a_server_are_its_share_of_what_is_above_the_idle_host() -> None:
    # 2 CPUs, 2 s, C0 10 % = 0.4 CPU seconds; 3 W of which 1 W is idle: 4 J above it.
    block = msgspec.structs.replace(
        builders.block(0, "a"), members=[share("node-1", 0.3), share("node-2", 0.1, connections_hz=9.0)]
    )
    metrics = {one.name: one for one in read_figures([block], Baseline(0.0, 0.0, 1.0))}
    assert metrics["watts:node-1"].values[0] == pytest.approx(1.5)
    assert metrics["watts:node-2"].values[0] == pytest.approx(0.5)
    assert metrics["c0_percent:node-1"].values[0] == pytest.approx(7.5)
    assert "connections_hz:node-2" in metrics
    assert "relay_log_bytes_hz:node-1" not in metrics


def storm(began: bool, raged: float, counter_hz: float) -> StormShare:
    return StormShare(began=began, raged_percent=raged, restarts_count=2, counter="Connections", counter_hz=counter_hz)


def test_a_storm_is_told_with_its_share_of_the_time_or_as_backed_off() -> None:
    raging = [msgspec.structs.replace(builders.block(n, "b"), storm=storm(True, 80.0 + n, 600.0)) for n in range(3)]
    assert "was active 81 % of the time and was restarted 6 times" in " ".join(topology_lines("x", raging, 200))
    calm = [msgspec.structs.replace(builders.block(0, "b"), storm=storm(False, 0.0, 0.07))]
    assert "backs off (Connections 0.07/s)" in " ".join(topology_lines("x", calm, 200))
