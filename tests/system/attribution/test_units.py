# SPDX-License-Identifier: Apache-2.0
"""Which service or container wakes the CPUs: those that live, and those that start a program four times a second."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.conftest import Cli

WINDOWS = 6
CONTAINER = f"{os.getpid():08x}" * 8
pytestmark = pytest.mark.alone  # judges the idleness of this host

SLEEPER = "import time\nwhile True: time.sleep(0.05)"
# A health probe as a container's runtime starts it: a new program each time, gone at once.
PROBE = "import os, subprocess, time\nwhile True:\n subprocess.run(['/bin/sleep', '0.01']); time.sleep(0.24)"


def _unified() -> Path:
    places = [Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")]
    return next(place for place in places if (place / "cgroup.controllers").exists())


@contextmanager
def running(group: str, program: str) -> Iterator[None]:
    """A Python program in a control group of that path."""
    folder = _unified() / group
    folder.mkdir(parents=True)
    procs = str(folder / "cgroup.procs")
    enter = f"open({procs!r}, 'w').write('0')\n"
    try:
        with subprocess.Popen([sys.executable, "-S", "-c", enter + program]) as process:
            try:
                yield
            finally:
                process.kill()
    finally:
        time.sleep(0.1)
        folder.rmdir()


def test_rows_by_unit_add_up_to_the_host(powerprof_cli: Cli) -> None:
    """The machine is given some windows in which others leave the CPUs to idle."""
    slice_name = f"powerprof-test-{os.getpid()}.slice"
    options = "--duration 2 --meter none --no-save --json -"
    try:
        with ExitStack() as stack:
            stack.enter_context(running(f"{slice_name}/sleeper.service", SLEEPER))
            stack.enter_context(running(f"{slice_name}/docker-{CONTAINER}.scope", PROBE))
            time.sleep(0.5)
            for _ in range(WINDOWS):
                done = powerprof_cli(
                    ["--quiet", "attribute", "--max-cost", "none", "--system", "--by", "unit", *options.split()]
                )
                assert done.code == 0, done.err
                record = json.loads(done.out)
                counts: Counter[tuple[str, bool]] = Counter()
                for row in record["wakeups"]:
                    counts[row["thread"]["unit"], row["thread"]["comm"] == "sleep"] += row["count"]
                exits = sum(row["count"] for row in [*record["wakeups"], *record["other_causes"]])
                assert exits == record["conservation"]["idle_exits_count"] - record["conservation"]["lost_count"]
                # Other tests' sleeps are in no unit.
                probes = {unit: count for (unit, is_probe), count in counts.items() if is_probe and unit != "no unit"}
                # 20 a second on an idle host, and 4 probes, which wake a CPU for their start, on another CPU, and their
                # sleep; on a busy one fewer of them end an idle period.
                assert counts["sleeper.service", False] <= 42
                assert sum(probes.values()) <= 3 * 9
                if counts["sleeper.service", False] >= 5 and probes:
                    break
    finally:
        (_unified() / slice_name).rmdir()
    assert counts["sleeper.service", False] >= 5
    assert list(probes) == [f"container {CONTAINER[:12]} (docker)"]
