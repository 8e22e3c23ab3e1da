# SPDX-License-Identifier: Apache-2.0
"""A process that executes another program at the same addresses: each stack has the names of its own program.

It would end the window of a target. Among the processes of a group it goes on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from powerprof.system.program_search import need
from tests.conftest import Cli
from tests.system.attribution.conftest import HERE, Attributed, running
from tests.system.attribution.test_bystanders import cgroup

Attribute = Callable[..., Attributed]


@pytest.fixture
def pid(programs_dir: Path) -> Iterator[int]:
    programs = [programs_dir / "executed-first", programs_dir / "executed-second"]
    for program, words in zip(programs, ([], ["-DSECOND"]), strict=True):
        flags = ["-O1", "-no-pie", "-fno-optimize-sibling-calls", "-Wall", "-Wextra", "-Werror", *words]
        subprocess.run([need("gcc", "gcc"), *flags, "-o", program, HERE / "executed.c"], check=True)
    with running(*programs) as first:
        yield first["pid"]


def test_wakings_have_the_names_of_their_program(pid: int, attribute: Attribute) -> None:
    with cgroup("executed", pid) as group:
        window = attribute(group, by="--cgroup", duration=4, halfway=lambda: os.kill(pid, signal.SIGUSR1))
    counts: dict[str, int] = {}
    for row in window.rows:
        for frame in row["stack"]:
            counts[frame["function"]] = counts.get(frame["function"], 0) + (row["wakings_count"] or 0)
    assert min(counts["first_nap"], counts["second_nap"]) >= 50
    for row in window.rows:
        functions = {frame["function"] for frame in row["stack"]}
        assert not {"first_nap", "second_nap"} <= functions
        assert not row["wakings_count"] or not row["stack_complete"] or functions & {"first_nap", "second_nap"}


def test_samples_have_the_names_of_their_program(pid: int, powerprof_cli: Cli) -> None:
    with cgroup("executed", pid) as group:
        _sample(pid, group, powerprof_cli)


def _sample(pid: int, group: Path, powerprof_cli: Cli) -> None:
    process = powerprof_cli.start(["profile", "--cgroup", str(group), "--duration", "2.5", "--no-save", "--json", "-"])
    time.sleep(0.5)
    until_s = time.monotonic() + 60
    while not any("bpf" in os.readlink(link) for link in Path(f"/proc/{process.pid}/fd").iterdir()):
        assert time.monotonic() < until_s
        time.sleep(0.05)
    time.sleep(1.2)
    os.kill(pid, signal.SIGUSR1)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    modules = {row["function"]: row["module"] for row in json.loads(out)["functions"]}
    assert modules["first_burn"] == "executed-first" and modules["second_burn"] == "executed-second"
