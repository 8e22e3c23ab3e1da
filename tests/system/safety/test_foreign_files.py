# SPDX-License-Identifier: Apache-2.0
"""Files on mounts that another account chose, changed after they were opened: this process never waits for them."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from powerprof.stacks.elf import read_elf
from powerprof.stacks.image import snapshot
from powerprof.stacks.symbols import read_perf_map
from powerprof.system import processes
from powerprof.system.child import SendPart, run_in_fork
from powerprof.system.reader_child import _LOCAL, _OVERLAY, _kind_of
from powerprof.system.reader_process import Opened, ReaderProcess, ReaderWaits, shared
from tests.programs import foreign_mounts, stalling

# A busy host delays a fork; a reader of a file without a server would wait until the test ends.
DEADLINE_S = 30.0
PATHS = ("perf map", "passwd", "mapped", "handed", "debug link")
# The account of the attacker as that of a server.
PASSWD = f"mysql:x:{stalling.UID}:{stalling.UID}::/:/bin/sh\n"


@dataclass
class Foreign:
    """The attacker's process `pid`, the file `place`, and a function that changes the file."""

    pid: int
    place: str
    change: Callable[[], None]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """The programs, in a folder that every account may enter."""
    if os.geteuid() != 0:
        pytest.skip("needs root: other accounts, and the files of their processes")
    place = stalling.build(Path("/tmp"))
    shutil.copy(foreign_mounts.__file__, place / "foreign_mounts.py")
    (place / "text").write_text(PASSWD + "1000 10 name\n")
    yield place
    shutil.rmtree(place)


@pytest.fixture
def fresh() -> Iterator[ReaderProcess]:
    """This process's reader without earlier waits."""
    shared().waits = ReaderWaits()
    yield shared()
    shared().waits = ReaderWaits()
    shared().close()


@contextmanager
def foreign(place: Path, kind: str, path: str) -> Iterator[Foreign]:
    """A process of the attacker with a file on a mount of that kind at that path."""
    room = Path(tempfile.mkdtemp(prefix="room-", dir=place))
    os.chown(room, stalling.UID, stalling.UID)
    source = place / ("text" if path in ("perf map", "passwd") else "waker")
    target = {"passwd": Path("/etc/passwd"), "handed": room / "handed"}.get(path, room / "file")
    words = [sys.executable, "-I", "-S", place / "foreign_mounts.py", place / "fuse", room, kind, source, target]
    daemon = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        user=stalling.UID,
        group=stalling.UID,
        extra_groups=[],
    )
    assert daemon.stdin is not None and daemon.stdout is not None
    stdin, stdout = daemon.stdin, daemon.stdout
    try:
        word, _, pid = stdout.readline().partition(" ")
        assert word == "ready", (kind, path)

        def change() -> None:
            stdin.write("\n")
            stdin.flush()
            assert stdout.readline() == "changed\n"

        yield Foreign(int(pid), str(target), change)
    finally:
        # Whoever waits gets an error now.
        daemon.kill()
        daemon.wait()
        shutil.rmtree(room, ignore_errors=True)


def open_all(reader: ReaderProcess, at: Foreign, path: str) -> list[Opened]:
    """What the reader hands over for a path."""
    if path in ("mapped", "handed"):
        mappings = [mapping for mapping in snapshot(at.pid, aside=reader).mappings if mapping.is_file]
        places = [(mapping.start, mapping.end, mapping.inode, mapping.path) for mapping in mappings]
        files = [reader.open_mapped(at.pid, one) for one in places]
    else:
        files = [reader.open_in_root(at.pid, Path(f"/proc/{at.pid}/root"), at.place)]
    return [file for file in files if isinstance(file, Opened)]


def use(reader: ReaderProcess, at: Foreign, path: str) -> None:
    """Do with a path as commands do."""
    if path == "passwd":
        assert stalling.UID not in processes._read_server_uids(at.pid)
    elif path == "perf map":
        read_perf_map(snapshot(at.pid, aside=reader))
    else:
        for opened in open_all(reader, at, path):
            with opened:
                read_elf(opened.fd, at.place)


# The kernel maps no file of proc as code.
CASES = [
    (kind, path, moment)
    for kind, path, moment in itertools.product(foreign_mounts.KINDS, PATHS, ("before", "between"))
    if path != "handed" or kind not in ("proc", "sysfs")
]


@pytest.mark.parametrize(("kind", "path", "moment"), random.Random().sample(CASES, 24))
def test_no_file_of_another_account_keeps_this_process_waiting(
    place: Path, fresh: ReaderProcess, kind: str, path: str, moment: str
) -> None:
    with foreign(place, kind, path) as at:
        if moment == "before":
            at.change()

            def look(say: SendPart) -> None:
                use(fresh, at, path)
                say(b"looked")

            fresh.maps(os.getpid())
            with fresh.lent():
                done = run_in_fork(look, DEADLINE_S)
                fresh.take_back(None)
            assert done.ended and done.parts == [b"looked"], (kind, path)
            return
        opened = open_all(fresh, at, path)
        contents = [os.pread(file.fd, 1 << 22, 0) for file in opened]
        at.change()
        if kind in ("proc", "sysfs"):
            assert path == "mapped" or opened == []
        elif kind.startswith("overlay"):
            # The FUSE of another user namespace refuses root.
            assert any(file.is_copy for file in opened), (kind, path)

        def read(say: SendPart) -> None:
            for file in opened:
                say(os.pread(file.fd, 1 << 22, 0))

        done = run_in_fork(read, DEADLINE_S)
        assert done.ended, (kind, path)
        for file, content, again in zip(opened, contents, done.parts, strict=True):
            magic = _kind_of(file.fd)
            assert file.is_copy or magic in _LOCAL, (kind, path, hex(magic))
            assert again == content or not file.is_copy
            assert magic != _OVERLAY
            os.close(file.fd)
