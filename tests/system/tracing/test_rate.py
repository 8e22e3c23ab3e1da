# SPDX-License-Identifier: Apache-2.0
"""As many idle exits as this machine can make: all of them are in the sums, and the report is quick."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from powerprof.tracing.bpf.shared_numbers import WakeEvidence
from powerprof.tracing.idle_data import aggregate_exits
from tests.programs import injecting

EXITS = 30_000


@pytest.fixture(scope="module")
def exits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return injecting.build(tmp_path_factory.mktemp("exits"))


def test_no_exit_is_lost_at_any_rate_and_memory_stays(root_bpf: None, exits: Path) -> None:
    workers = os.cpu_count() or 1
    with injecting.tracer() as tracer:
        injecting.opened(tracer)
        spent_s = injecting.inject(exits, tracer, EXITS, workers)
        began = time.process_time()
        trace = tracer.snapshot()
        read_s = time.process_time() - began
    print(f"{workers * EXITS / spent_s:,.0f} idle exits/s on {workers} CPUs, read in {read_s * 1e3:.0f} ms")
    assert trace.lost_count == 0
    assert int(trace.causes["count"].sum()) == workers * EXITS
    assert set(trace.causes["evidence"].tolist()) == {WakeEvidence.NO_IPI}
    assert len(trace.causes) == 1
    # Every third one in each of three states, but for the ends.
    states = trace.causes["states"].sum(axis=0)[:3]
    assert states == pytest.approx([workers * EXITS / 3] * 3, abs=workers * injecting.SYNTHETIC)
    assert int(trace.totals["count"].sum()) == workers * EXITS
    # The sample that came through in time is of the same exits.
    assert len(trace.sample) + trace.sample_lost_count <= workers * EXITS
    assert len(aggregate_exits(trace.sample)) == 1
    assert read_s < 2.0
