# SPDX-License-Identifier: Apache-2.0
"""`--quick`: few and short windows, and the report says so. `--quiet`: a run that is saved and says nothing."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import Cli


def test_few_and_short_windows_which_the_report_says(powerprof_cli: Cli, mariadbd: Path) -> None:
    done = powerprof_cli(["idle", "--quick", "--clients", "2", "--no-causes", "--json", "-"])
    assert done.code == 0, done.err
    run = json.loads(done.out)
    assert {phase["name"]: len(phase["windows"]) for phase in run["phases"]} == {
        "baseline": 3,
        "server": 3,
        "clients": 3,
        "baseline-after": 2,
    }
    for phase in run["phases"]:
        # On a busy host the edges of a window come late; never early.
        assert all(1.49 < window["window_s"] < 3.0 for window in phase["windows"])
    assert "--quick: 3 windows of 1.5 s per phase; for narrower intervals, leave it out" in run["notes"]
    report = powerprof_cli(["report", run["id"]])
    assert "for narrower intervals, leave it out" in " ".join(report.out.split())


def test_quiet_is_quiet_and_saves(powerprof_cli: Cli, mariadbd: Path) -> None:
    args = ["idle", "--clients", "0", "--duration", "0.05", "--repeat", "2", "--energy-source", "none", "--no-causes"]
    done = powerprof_cli([*args, "--quiet"])
    assert (done.code, done.out, done.err) == (0, "", "")
    assert len(list((powerprof_cli.home / "state/powerprof/runs").glob("*/run.json"))) == 1
