# SPDX-License-Identifier: Apache-2.0
"""Processes of another account that lie: `python -m tests.nightly.hostile_processes FIRST COUNT` until its input ends.

Each has a program, a name, a command line, a perf map and, where control groups can be made, a group of its own.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.nightly.fuzz.mutate import bent

_UID = 65534
_NAMES = (
    *(b"mariadbd", b"mysqld", b"postgres", b"java", b"node", b"python3", b"(sd-pam)", b") R 1 (", b"\x1b[31m"),
    *(b"a\nb", b"a\rTgid:\t1", b"\xff\xfe", b"=1+1"),
)
_GROUPS = (
    b"docker-" + b"0123456789abcdef" * 4 + b".scope",
    b"kubepods-burstable-pod01234567_89ab_cdef_0123_456789abcdef.slice",
    b"mariadb.service",
    b"evil\\x0a\\x1b.service",
    b"lxc.payload.x",
    b"=cmd|' /C calc'!A0.scope",
)
_HIERARCHIES = ("/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup")
_MAPS = (
    b"7f0000001000 40 a_function\n7f0000002000 20 Class::method(int)\n" * 20,
    b"7f0000001000 40 py::f:/tmp/x.py\n7f0000001020 40 LazyCompile:~g file.js:1\n" * 20,
)


def _become(program: Path, name: bytes, number: int, room: Path) -> None:
    """In the child: another account, with a file of symbols that lies, and a program that may not even start."""
    os.setgroups([])
    os.setresgid(_UID, _UID, _UID)
    os.setresuid(_UID, _UID, _UID)
    os.chdir(room)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for handle in range(3):
        os.dup2(nowhere, handle)
    with suppress(OSError), open(f"/tmp/perf-{os.getpid()}.map", "xb") as file:  # noqa: PTH123
        file.write(bent(_MAPS, number))
    with suppress(OSError, ValueError):
        os.execve(program, [name, b"1", b"600"], {b"A": name})
    # One that cannot start is a small program of that name: a fork of this interpreter would be all of its libraries.
    os.execve("/usr/bin/vmstat", [name, b"1", b"600"], {b"A": name})


def _program(number: int, sleeper: bytes, room: Path) -> tuple[Path, bytes]:
    """A program of that number, bent behind its program headers so that most still run; and its name."""
    chance = random.Random(number)
    name = chance.choice((*_NAMES, bent(_NAMES, number)[:15])).replace(b"\0", b"?").replace(b"/", b"_") or b"x"
    folder = room / str(number)
    folder.mkdir()
    program = folder / os.fsdecode(name[:200] if name not in (b".", b"..") else b"x")
    data = bytearray(sleeper)
    for _ in range(chance.choice((0, 1, 3, 20))):
        place = chance.choice((chance.randrange(40, 64), chance.randrange(len(data) - 4096, len(data) - 8)))
        data[place : place + 8] = struct.pack(
            "<Q", chance.choice((0, 1, 1 << 63, (1 << 64) - 1, 0xFFFFFFFFFFFF0000, chance.getrandbits(64)))
        )
    with suppress(OSError):
        program.write_bytes(data)
        program.chmod(0o755)
    return program, name


def _into_group(pid: int, number: int) -> Path | None:
    """Put a process into a group whose name lies; None where none can be made."""
    name = bent(_GROUPS, number).replace(b"\0", b"").replace(b"/", b"_").replace(b"\n", b"")[:200]
    for hierarchy in _HIERARCHIES:
        group = Path(hierarchy) / f"hostile{os.getpid()}.slice" / os.fsdecode(name or b"x")
        with suppress(OSError, ValueError):
            group.mkdir(parents=True, exist_ok=True)
            (group / "cgroup.procs").write_text(str(pid))
            return group
    return None


def main(first: int, count: int) -> None:
    """Start them, print their numbers, and end them when standard input ends."""
    sleeper = Path(shutil.which("vmstat") or "/usr/bin/vmstat").read_bytes()
    room = Path(tempfile.mkdtemp(prefix="hostile-", dir="/tmp"))
    room.chmod(0o755)
    pids, groups = [], set()
    try:
        for number in range(first, first + count):
            program, name = _program(number, sleeper, room)
            pid = os.fork()
            if pid == 0:
                try:
                    _become(program, name, number, room)
                finally:
                    os._exit(1)
            pids.append(pid)
            if number % 2:
                groups.add(_into_group(pid, number))
        time.sleep(0.3)
        print(*pids, flush=True)
        sys.stdin.read()
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            Path(f"/tmp/perf-{pid}.map").unlink(missing_ok=True)
        shutil.rmtree(room)
        for group in groups - {None}:
            _remove(group)


def _remove(group: Path) -> None:
    for _ in range(50):
        with suppress(OSError):
            group.rmdir()
        with suppress(OSError):
            group.parent.rmdir()
        if not group.exists():
            return
        time.sleep(0.02)


@contextmanager
def hostile_processes(first: int, count: int) -> Iterator[list[int]]:
    """That many, with these numbers; their process ids."""
    with helper("tests.nightly.hostile_processes", str(first), str(count)) as process:
        assert process.stdout is not None
        yield [int(word) for word in process.stdout.readline().split()]


@contextmanager
def helper(module: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A program of the tests that works until its input ends, and may have a last word."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait(timeout=60)
        process.stdout.close()
    assert process.returncode == 0


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
