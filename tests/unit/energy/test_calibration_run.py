# SPDX-License-Identifier: Apache-2.0
"""The steps of a calibration: loads that start and are gone, and no fit over steps that were not metered."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from powerprof.energy.calibrate import Level, calibrate, run_load
from powerprof.system.errors import PowerprofError


def test_a_load_runs_on_its_cpus_and_is_gone_afterwards() -> None:
    before = {child.pid for child in psutil.Process().children()}
    cpu = min(os.sched_getaffinity(0))
    with run_load(Level("full", 1.0, 1_000, 0), [cpu]):
        deadline = time.monotonic() + 10
        (child,) = [c for c in psutil.Process().children() if c.pid not in before]
        while child.cpu_times().user < 0.02 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert child.cpu_times().user >= 0.02
        assert child.cpu_affinity() == [cpu]
    assert not child.is_running()


def test_idle_starts_nothing() -> None:
    before = len(psutil.Process().children())
    with run_load(Level("idle", 0.0, 0, 0), [0, 1]):
        assert len(psutil.Process().children()) == before


def test_a_step_without_energy_ends_the_calibration(tmp_path: Path) -> None:
    log = tmp_path / "wall.csv"
    log.write_text(f"time,watts\n{time.time():.3f},2\n")
    said: list[str] = []
    with pytest.raises(PowerprofError, match="step 'idle' has no measured energy"):
        calibrate(
            "meter_log", meter_log=log, step_s=0.2, repeats=1, levels=[Level("idle", 0.0, 0, 0)], progress=said.append
        )
    assert said == ["step 1 of 1: idle"]
