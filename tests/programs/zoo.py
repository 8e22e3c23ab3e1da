# SPDX-License-Identifier: Apache-2.0
"""Processes of ordinary accounts, called database servers, each of which keeps its readers waiting in another way."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.programs import map_locking, stalling, upper_layer
from tests.programs.stalling import GETATTR, LOOKUP, OPEN, READ

# No account has them.
FIRST_UID = 54321
# Every inhabitant ends by itself after ten minutes.
LIFE_S = 600.0
_MAPPERS_SOURCE = r"""
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int count, char **words) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(600);
    char *space = mmap(NULL, 4096L * 65000, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (long page = 0; page < 65000; page += 2)
        if (mprotect(space + 4096 * page, 4096, PROT_READ | PROT_EXEC))
            return 1;
    for (int i = 0; i < atoi(words[1]); i++)
        if (!fork()) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            prctl(PR_SET_NAME, i % 2 ? "mariadbd" : "postgres");
            for (;;)
                usleep(500000);
        }
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
"""


@dataclass
class Zoo:
    """The inhabitants. `pids` has one process of each kind."""

    pids: dict[str, int] = field(default_factory=dict)
    began_s: float = field(default_factory=time.monotonic)

    @property
    def is_old(self) -> bool:
        """Whether its inhabitants have used up half of their time."""
        return time.monotonic() - self.began_s > LIFE_S / 2


@contextmanager
def cage(server: Path) -> Iterator[Path]:
    """Yield a folder that every account may enter, with the programs and a copy of `server` to be mapped."""
    place = stalling.build(Path("/tmp"))
    try:
        source = REPOSITORY / "tests/programs/map_locker.c"
        # The program's file name is the name of its process.
        subprocess.run(["gcc", "-O1", "-w", "-pthread", "-o", place / "mariadbd", source], check=True)
        shutil.copy(place / "mariadbd", place / "map_locker")
        words = ["gcc", "-O1", "-x", "c", "-o", str(place / "mappers"), "-"]
        subprocess.run(words, input=_MAPPERS_SOURCE, text=True, check=True)
        shutil.copy(place / "waker", place / "postgres")
        shutil.copy(upper_layer.__file__, place / "upper_layer.py")
        (place / "server").mkdir(0o755)
        shutil.copy(server, place / "server/mariadbd")
        yield place
    finally:
        shutil.rmtree(place)


@contextmanager
def _process(uid: int, *words: str | Path) -> Iterator[list[str]]:
    """Start a program as an account. Yield its lines up to "ready"."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, user=uid, group=uid, extra_groups=[])
    try:
        lines: list[str] = []
        assert process.stdout is not None
        while not lines or not lines[-1].startswith("ready"):
            line = process.stdout.readline()
            assert line, (words, lines)
            lines.append(line.strip())
        yield lines
    finally:
        process.kill()
        process.wait()


def _room(stack: ExitStack, place: Path, uid: int) -> Path:
    """Return a folder of an account, which is removed after its processes have ended."""
    room = Path(tempfile.mkdtemp(prefix="room-", dir=place))
    os.chown(room, uid, uid)
    stack.callback(shutil.rmtree, room, ignore_errors=True)
    return room


def _lock(stack: ExitStack, place: Path, uid: int, *options: str) -> list[int]:
    """Start a process that locks its memory map again and again. Return its number and that of the covered one."""
    room = _room(stack, place, uid)
    words = ["fuse", room, "server/mariadbd", str(map_locking.LOCK_S), "writer", "always", *options]
    paths = [place / word if word in ("fuse", "server/mariadbd") else word for word in words]
    lines = stack.enter_context(_process(uid, place / "mariadbd", *paths))
    pids = [int(line.split()[1]) for line in lines]
    stack.callback(lambda: [Path(f"/tmp/perf-{pid}.map").unlink(missing_ok=True) for pid in pids])
    return pids


@contextmanager
def zoo(place: Path, *, mappers: int = 20) -> Iterator[Zoo]:
    """Start the inhabitants, and end all of them.

    They are: a memory map that is locked for 3 s again and again, while a writer waits; the same with its lock of
    exec(2), below an overlay; that process's command line over the perf map and over /etc/passwd of another; a program
    on an overlay over FUSE that answers nothing; one that answers each request after 45 ms; one whose reads never end;
    a program on an overlay, moved to its
    upper layer in FUSE without answers; and `mappers` processes with 65,000 mappings each.
    """
    found = Zoo()
    uids = iter(range(FIRST_UID, FIRST_UID + 100))
    with ExitStack() as stack:
        found.pids["locked"] = _lock(stack, place, next(uids))[-1]
        found.pids["exec"] = _lock(stack, place, next(uids), "exec", "overlay")[-1]
        found.pids["covered"], _ = _lock(stack, place, next(uids), str(place / "postgres"))
        for kind, opcodes, name, delay_ms in (
            ("stalled", (OPEN, GETATTR, LOOKUP, READ), "mariadbd", 0),
            ("slow", (OPEN, GETATTR, LOOKUP, READ), "postgres", 45),
            ("endless", (READ,), "mariadbd", 0),
        ):
            one = stalling.stalling(place, *opcodes, name=name, uid=next(uids), delay_ms=delay_ms)
            found.pids[kind] = stack.enter_context(one).pid
        uid = next(uids)
        upper = [sys.executable, "-I", "-S", place / "upper_layer.py"]
        words = [*upper, place / "fuse", _room(stack, place, uid), place / "postgres", "postgres"]
        found.pids["upper"] = int(stack.enter_context(_process(uid, *words))[-1].split()[1])
        stack.enter_context(_process(next(uids), place / "mappers", str(mappers)))
        yield found
