# SPDX-License-Identifier: Apache-2.0
"""`powerprof doctor` on this host and on one with nothing: exit code 0, three columns, `powerprof.doctor/1`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import Cli
from tests.programs.unprivileged import as_nobody

STATUSES = {"ok", "missing", "none", "limited"}


def test_json_is_all_that_stdout_holds(powerprof_cli: Cli) -> None:
    done = powerprof_cli(["doctor", "--json", "-"])
    assert done.code == 0
    report = json.loads(done.out)
    assert report["schema"] == "powerprof.doctor/1"
    assert len(report["capabilities"]) == 21
    for capability in report["capabilities"]:
        assert set(capability) == {"name", "status", "detail", "remedy"}
        assert capability["status"] in STATUSES
        assert capability["detail"]


def test_a_host_with_nothing(powerprof_cli: Cli, tmp_path: Path) -> None:
    target = tmp_path / "doctor.json"
    for name in ("sys", "proc"):
        (tmp_path / name).mkdir()
    empty = {"POWERPROF_SYSFS": str(tmp_path / "sys"), "POWERPROF_PROCFS": str(tmp_path / "proc"), "PATH": ""}
    done = powerprof_cli(["doctor", "--json", str(target)], env=empty)
    assert done.code == 0
    assert done.err == ""
    assert max(map(len, done.out.splitlines())) <= 80
    found = {entry["name"]: entry for entry in json.loads(target.read_text())["capabilities"]}
    assert [line.split()[:2] for line in done.out.splitlines() if not line.startswith(" ")] == [
        [name, entry["status"]] for name, entry in found.items()
    ]
    assert found["residency"]["status"] == "missing"
    assert "\n" not in "".join(entry["detail"] for entry in found.values())


def test_unprivileged_it_names_what_only_root_may(tmp_path: Path, root: None) -> None:
    """As nobody, with no home: an answer all the same, and the way to become root where that is what lacks."""
    done = subprocess.run(
        [*as_nobody(), sys.executable, "-P", "-m", "powerprof", "doctor", "--json", "-"],
        capture_output=True,
        encoding="utf-8",
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
        cwd="/",
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = {entry["name"]: entry for entry in json.loads(done.stdout)["capabilities"]}
    assert found["privileges"]["status"] == "missing"
    assert found["tracing"]["status"] == "missing"
    assert "sudo" in found["privileges"]["remedy"]
    assert found["residency"]["status"] in ("ok", "limited")
