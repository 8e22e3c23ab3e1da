# SPDX-License-Identifier: Apache-2.0
"""A sweep over servers: all are up, each is measured once a round, and an interrupted one goes on."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from powerprof.database import catalogue
from powerprof.database.mysql import find_build
from powerprof.energy.request import NO_METER
from powerprof.experiment import sweep as sweeps
from powerprof.experiment import sweep_rounds
from powerprof.experiment.bench_options import BenchOptions
from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.sweep_record import Sweep
from powerprof.report.kinds import lines_of
from powerprof.system.errors import Interrupted, UsageError
from powerprof.workloads.catalogue import find_one

_NAMES = ["one", "two"]


@pytest.fixture
def servers(mariadbd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's server under two names."""
    build = find_build(mariadbd)
    monkeypatch.setattr(catalogue, "load_build", lambda name: replace(build, text=f"{build.text} {name}"))
    monkeypatch.setattr(sweep_rounds, "START_S", 0.0)


@pytest.mark.usefixtures("servers")
def test_a_sweep_over_servers_continues_in_rounds() -> None:
    workload, condition = find_one("idle-connections:no-clients", [])
    trace_s = 0.7 if os.geteuid() == 0 else None
    options = ExperimentOptions(pairs=2, window_s=0.4, warm_up_pairs=0, energy=NO_METER, attribute_s=trace_s)
    begun = sweeps.start_sweep(workload, condition, "server", _NAMES, options)
    sweeps.check_room(begun, workload, BenchOptions(), options)
    said: list[str] = []
    saved: list[Sweep] = []

    def save_once(record: Sweep) -> Sweep:
        saved.append(record)
        if len(saved) == 1:
            raise Interrupted("interrupted")
        return record

    first = sweeps.continue_sweep(begun, workload, BenchOptions(), options, save=save_once, say=said.append)
    assert first.ended
    assert [point.value for point in first.points] == _NAMES
    assert [len(point.blocks) for point in first.points] == [1, 1]
    assert len(first.baseline) == 1
    read_again = msgspec.json.decode(msgspec.json.encode(first), type=Sweep)
    assert sweeps.restore_options(read_again, ExperimentOptions()).attribute_s == trace_s
    whole = sweeps.continue_sweep(
        read_again, workload, BenchOptions(), options, save=lambda record: record, say=said.append
    )
    assert whole.ended is None
    assert [len(point.blocks) for point in whole.points] == [2, 2]
    assert [point.blocks[0] for point in whole.points] == [point.blocks[0] for point in read_again.points]
    orders = [[line.split(" · ")[1] for line in said if line.startswith(f"round {n} of 2 · ")] for n in (1, 2)]
    assert [sorted(order) for order in orders] == [sorted(["no server", *_NAMES])] * 2
    assert orders[0] != orders[1]
    used = {metric.name: metric.estimate.mean for metric in whole.points[0].metrics}
    # An idle MariaDB uses well under a tenth of a CPU.
    assert 0 <= used["server_cpu_ms_per_s"] < 100
    text = "\n".join(lines_of(whole))
    if trace_s is not None:
        assert all(len(point.traced) == 2 for point in whole.points)
        assert "wake-ups of its threads" in text
        assert "fewest thread wake-ups with" in text
        # Its timer wakes it every 400 ms, whatever else runs on this host.
        assert used["server_wakings_hz"] > 1


@pytest.mark.usefixtures("servers")
def test_servers_of_a_sweep_are_the_servers() -> None:
    workload, condition = find_one("idle-connections:no-clients", [])
    begun = sweeps.start_sweep(workload, condition, "server", ["one"], ExperimentOptions())
    with pytest.raises(UsageError, match="are two servers"):
        sweeps.check_room(begun, workload, BenchOptions(server_binary=Path("/usr/sbin/mariadbd")), ExperimentOptions())
