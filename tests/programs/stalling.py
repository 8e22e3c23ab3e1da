# SPDX-License-Identifier: Apache-2.0
"""Processes of an ordinary account that keep their readers waiting: by an overlay over their own FUSE, by leases."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import REPOSITORY

LOOKUP, GETATTR, OPEN, READ = 1, 3, 14, 15
# No account has it.
UID = 54321


@dataclass(frozen=True)
class Stalling:
    """`pid` runs a program that wakes 200 times a second; `daemon` serves its files, or does not."""

    pid: int
    daemon: subprocess.Popen[str]


def build(folder: Path) -> Path:
    """A folder that every account may enter, with the programs and a node of /dev/fuse."""
    place = Path(tempfile.mkdtemp(prefix="stalling-", dir=folder))
    place.chmod(0o755)
    source = REPOSITORY / "tests/programs/stalling_files.c"
    subprocess.run(["gcc", "-O1", "-o", place / "stalling_files", source], check=True)
    waker = "#include <unistd.h>\nint main(void) { for (;;) usleep(5000); }\n"
    subprocess.run(["gcc", "-O1", "-x", "c", "-o", place / "waker", "-"], input=waker, text=True, check=True)
    os.mknod(place / "fuse", stat.S_IFCHR | 0o666, os.makedev(10, 229))
    (place / "fuse").chmod(0o666)
    return place


@contextmanager
def stalling(
    place: Path, *opcodes: int, name: str = "waker", uid: int = UID, armed: bool = True, delay_ms: int = 0
) -> Iterator[Stalling]:
    """A process whose program, working folder, error log and socket are files of its own FUSE below an overlay.

    From now on requests with these opcodes are answered after `delay_ms`, and never if that is 0; not before the file
    `armed` exists in its folder.
    """
    room = Path(tempfile.mkdtemp(prefix="room-", dir=place))
    os.chown(room, uid, uid)
    words = [place / "stalling_files", place / "fuse", room, place / "waker", name, str(delay_ms), *map(str, opcodes)]
    daemon = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, user=uid, group=uid, extra_groups=[])
    try:
        assert daemon.stdout is not None
        word, _, pid = daemon.stdout.readline().partition(" ")
        assert word == "ready"
        if armed:
            (room / "armed").touch()
        yield Stalling(int(pid), daemon)
    finally:
        # Whoever waits gets an error now.
        daemon.kill()
        daemon.wait()
        shutil.rmtree(room, ignore_errors=True)
