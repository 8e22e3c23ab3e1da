# SPDX-License-Identifier: Apache-2.0
"""Without root: residency is measured, what is missing is said, and the exit code is 0."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, Cli, CliResult
from tests.programs.balance import counts_idle_exits
from tests.programs.unprivileged import NOBODY, as_nobody


@pytest.fixture
def nobody(root: None) -> Iterator[Callable[[Sequence[str]], CliResult]]:
    """Runs powerprof as nobody, with a home and a TMPDIR of nobody's."""
    with tempfile.TemporaryDirectory(prefix="nobody-", dir="/tmp") as folder:
        home = Path(folder)
        os.chown(home, NOBODY, NOBODY)
        environment = {
            **Cli(home).environment(),
            "TMPDIR": folder,
            # The tests' own interpreter writes bytecode beside the sources; nobody may not.
            "PYTHONDONTWRITEBYTECODE": "1",
        }

        def run(args: Sequence[str]) -> CliResult:
            done = subprocess.run(
                [*as_nobody(), sys.executable, "-m", "powerprof", *args],
                env=environment,
                cwd=REPOSITORY,
                capture_output=True,
                encoding="utf-8",
                timeout=120,
                check=False,
                stdin=subprocess.DEVNULL,
            )
            assert list(home.glob("powerprof-*")) == []
            return CliResult(done.returncode, done.stdout, done.stderr)

        yield run


def test_idle_gives_residency_and_says_what_is_missing(
    nobody: Callable[[Sequence[str]], CliResult], mariadbd: Path
) -> None:
    done = nobody(["idle", "--clients", "3", "--duration", "0.3", "--repeat", "2"])
    assert (done.code, done.err) == (0, "")
    assert "cannot load BPF programs: not permitted (run as root" in " ".join(done.out.split())
    assert "Saved as idle-0001." in done.out
    assert "events lost" not in done.out
    run = json.loads(nobody(["report", "idle-0001", "--json", "-"]).out)
    assert [phase["name"] for phase in run["phases"]] == ["baseline", "server", "clients", "baseline-after"]
    for phase in run["phases"]:
        idle = [state["residency_percent"] for state in phase["states"]]
        total = phase["c0_percent"] + (sum(idle) if counts_idle_exits() else phase["idle_percent"])
        assert total == pytest.approx(100, abs=0.5)
        assert phase["causes"] == []
        assert phase["conservation"] is None
    (note,) = (note for note in run["notes"] if note.startswith("causes unknown"))
    assert note == "causes unknown: cannot load BPF programs: not permitted (run as root)"
    assert (run["tool"]["wakeups_hz"], run["tool"]["lost_count"]) == (None, None)


def test_residency_alone_needs_nothing(nobody: Callable[[Sequence[str]], CliResult]) -> None:
    done = nobody(["residency", "--duration", "0.2"])
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("The CPUs ran ")
