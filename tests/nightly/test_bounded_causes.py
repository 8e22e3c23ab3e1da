# SPDX-License-Identifier: Apache-2.0
"""Loads of which each wake-up once was a cause: an hour of each keeps causes, memory and the saved run small."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from powerprof.attribution import capture
from tests.conftest import Cli
from tests.nightly.test_long_windows import SAMPLE_KIB, SAVED_BYTES, Long
from tests.system.attribution.conftest import programs_dir
from tests.system.attribution.test_bystanders import cgroup, program, running, steered

__all__ = ["program", "programs_dir", "steered"]

pytestmark = pytest.mark.usefixtures("root_bpf")

# A shorter one is a look at the test itself.
SECONDS = float(os.environ.get("POWERPROF_SOAK_SECONDS", "3600"))
MOST_CAUSES = 2000


@pytest.fixture(params=["steered packets", "throttled", "fork a request"])
def load(request: pytest.FixtureRequest, program: Path, tmp_path: Path) -> Iterator[int]:
    """A process under one of the loads; its number."""
    with ExitStack() as stack:
        if request.param == "steered packets":
            cpu = request.getfixturevalue("steered")
            found = stack.enter_context(running(program, "rps", 1000, cpu, min(os.sched_getaffinity(0))))
        elif request.param == "throttled":
            found = stack.enter_context(running(program, "spin"))
            stack.enter_context(cgroup("bounded", found["pid"], 15_000))
        else:
            found = stack.enter_context(running(program, "family", tmp_path / "notes", 4, 25))
        yield found["pid"]


def test_an_hour_keeps_causes_and_memory_bounded(load: int, powerprof_cli: Cli, tmp_path: Path) -> None:
    found = Long(powerprof_cli, load, SECONDS, tmp_path / "runs")
    found.check(SAMPLE_KIB)
    causes = len(capture.load(found.run / capture.FILE).cause_entries())
    print(f"{causes} causes")
    assert causes <= MOST_CAUSES
    assert found.saved_bytes <= SAVED_BYTES
