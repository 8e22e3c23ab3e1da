# SPDX-License-Identifier: Apache-2.0
"""A disk that control groups make slow, and that nothing is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from powerprof.database import disk_limits
from powerprof.database.runtree import RunTree
from powerprof.system.errors import CapabilityError

# Reads of a page, past the page cache, when told to; says how many a second there were.
_READER = """
import mmap, os, sys, time
sys.stdin.readline()
handle, page, count = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 16384), int(sys.argv[2])
start = time.monotonic()
for number in range(count):
    os.preadv(handle, [page], number * 7 % 64 * 16384)
print(count / (time.monotonic() - start))
"""
_KILLED = """
import os, pathlib, sys, time

from powerprof.database.runtree import RunTree
from powerprof.database.disk_limits import limit_disk
with RunTree() as tree:
    limit_disk(tree, "server-1", pathlib.Path(sys.argv[1]), os.getpid(), 100)
    print(tree.path.name, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    """Where groups are made that limit the disk of the tests."""
    try:
        disk_limits.find_disk(tmp_path)
        return disk_limits.find_group_root()
    except CapabilityError as error:
        pytest.skip(f"no capability: {error.message} ({error.hint})")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A megabyte on the disk."""
    path = tmp_path / "pages"
    with path.open("wb") as made:
        made.write(os.urandom(64 * 16384))
        made.flush()
        os.fsync(made.fileno())
    return path


def test_reads_wait_until_they_are_due(groups: Path, file: Path) -> None:
    with RunTree() as tree:
        reader = subprocess.Popen(
            [sys.executable, "-c", _READER, str(file), "150"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        disk_limits.limit_disk(tree, "server-1", file.parent, reader.pid, 100)
        group = groups / f"{tree.path.name}-server-1"
        assert str(reader.pid) in (group / "cgroup.procs").read_text().split()
        said, _ = reader.communicate("go\n", timeout=30)
        # The first of a slice of time are let through at once: 150 take a little less than 1.5 s; not limited, 20 ms.
        assert float(said) < 150
        # A second one of the same server, which was started again, joins it.
        other = subprocess.Popen(["sleep", "60"])
        disk_limits.limit_disk(tree, "server-1", file.parent, other.pid, 100)
        other.kill()
        other.wait()
    assert not group.exists()


def test_nothing_is_left_when_powerprof_is_killed(groups: Path, tmp_path: Path) -> None:
    killed = subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert killed.stdout is not None
    name = killed.stdout.readline().strip()
    assert (groups / f"{name}-server-1").is_dir()
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    deadline = time.monotonic() + 10
    while (groups / f"{name}-server-1").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
