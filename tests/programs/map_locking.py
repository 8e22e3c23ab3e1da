# SPDX-License-Identifier: Apache-2.0
"""A process that keeps the lock of its memory map for some seconds, and the longest sleep of forks meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import REPOSITORY

# The program unlocks after 4 s at the latest.
LOCK_S = 3.0
_FORKING = """
import os, select, time
def slept():
    words = open("/proc/thread-self/schedstat").read().split()
    return time.monotonic() - (int(words[0]) + int(words[1])) / 1e9
longest = 0.0
print("ready", flush=True)
while not select.select([0], [], [], 0.005)[0]:
    before = slept()
    pid = os.fork()
    if not pid:
        os._exit(0)
    longest = max(longest, slept() - before)
    os.waitpid(pid, 0)
print(longest)
"""


def build(folder: Path) -> Path:
    """A folder that every account may enter, with the program and a node of /dev/fuse."""
    place = Path(tempfile.mkdtemp(prefix="locking-", dir=folder))
    place.chmod(0o755)
    source = REPOSITORY / "tests/programs/map_locker.c"
    subprocess.run(["gcc", "-O1", "-w", "-pthread", "-o", place / "map_locker", source], check=True)
    os.mknod(place / "fuse", stat.S_IFCHR | 0o666, os.makedev(10, 229))
    (place / "fuse").chmod(0o666)
    return place


@dataclass(frozen=True)
class Locker:
    """A process that has mapped a file."""

    pid: int
    process: subprocess.Popen[str]

    def lock(self) -> None:
        """Take the lock of its memory map for LOCK_S seconds."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("lock\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "locked\n"

    def wait(self) -> None:
        """Wait until the lock is free again."""
        assert self.process.stdout is not None and self.process.stdout.readline() == "free\n"


@contextmanager
def locking(place: Path, file: Path, uid: int, *options: str) -> Iterator[Locker]:
    """A process of an account that maps a file. `options`: see map_locker.c."""
    room = Path(tempfile.mkdtemp(prefix="room-", dir=place))
    os.chown(room, uid, uid)
    process = subprocess.Popen(
        [place / "map_locker", place / "fuse", room, file, str(LOCK_S), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        user=uid,
        group=uid,
        extra_groups=[],
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        word, _, pid = process.stdout.readline().partition(" ")
        assert word == "ready"
        yield Locker(int(pid), process)
    finally:
        # The session has the server of its file, and the reader of a process that has ended.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(room, ignore_errors=True)


class Forks:
    """Forks elsewhere on the host. `longest_s`: the longest sleep in one, without waits for a CPU, after `stop`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", _FORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None and self._process.stdout.readline() == "ready\n"
        self.longest_s: float | None = None

    def stop(self) -> None:
        """End the forks."""
        if self.longest_s is None:
            self.longest_s = float(self._process.communicate()[0])


@contextmanager
def forking() -> Iterator[Forks]:
    """Fork every 5 ms in another process as long as the block lasts."""
    forks = Forks()
    try:
        yield forks
    finally:
        forks.stop()
