# SPDX-License-Identifier: Apache-2.0
"""The limit of open files: raised to the need, refused below it, and the remedy."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from powerprof.system import open_files
from powerprof.system.open_files import TooManyFilesError

_NO_LIMIT = resource.RLIM_INFINITY


class Kernel:
    """The limits of a process, changed by the rules of setrlimit(2)."""

    def __init__(self, soft: int, hard: int, *, may_exceed: bool) -> None:
        self.limits, self.may_exceed = (soft, hard), may_exceed

    def read(self, _: int) -> tuple[int, int]:
        return self.limits

    def set(self, _: int, limits: tuple[int, int]) -> None:
        soft, hard = (float("inf") if limit == _NO_LIMIT else limit for limit in limits)
        if soft > hard:
            raise ValueError("current limit exceeds maximum limit")
        before = float("inf") if self.limits[1] == _NO_LIMIT else self.limits[1]
        if hard > before and not self.may_exceed:
            raise ValueError("not allowed to raise maximum limit")
        self.limits = limits


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Kernel]:
    """A function that replaces the limits of this process; the host has four CPUs."""

    def make(soft: int, hard: int, *, may_exceed: bool = False, uid: int = 0) -> Kernel:
        kernel = Kernel(soft, hard, may_exceed=may_exceed)
        monkeypatch.setattr(resource, "getrlimit", kernel.read)
        monkeypatch.setattr(resource, "setrlimit", kernel.set)
        monkeypatch.setattr(os, "geteuid", lambda: uid)
        monkeypatch.setattr(open_files, "is_delegated", lambda: False)
        monkeypatch.setattr(os, "cpu_count", lambda: 4)
        return kernel

    return make


def _draw_limits(seed: int, count: int) -> Iterator[tuple[int, int]]:
    draw = random.Random(seed)
    for _ in range(count):
        hard = draw.choice([draw.randint(20, 400), draw.randint(400, 5000), 1 << 20, _NO_LIMIT])
        most = 1 << 20 if hard == _NO_LIMIT else hard
        yield draw.choice([draw.randint(20, most), min(most, draw.randint(20, 400)), hard]), hard


@pytest.mark.parametrize(("soft", "hard"), list(_draw_limits(67, 40)))
def test_a_command_starts_if_the_hard_limit_allows_its_need(
    kernels: Callable[..., Kernel], soft: int, hard: int
) -> None:
    """288 files for four CPUs; as many as 1,024 are raised, and the shell's limit returns for its own programs."""
    kernel = kernels(soft, hard)
    allowed = _NO_LIMIT if hard == _NO_LIMIT else hard
    if allowed != _NO_LIMIT and allowed < 288:
        with pytest.raises(TooManyFilesError, match="powerprof needs 288"):
            open_files.prepare()
        return
    open_files.prepare()
    now = kernel.limits
    assert now[1] == hard
    assert now[0] == _NO_LIMIT or now[0] >= min(1024, 1 << 30 if hard == _NO_LIMIT else hard)
    spare = open_files.count_spare()
    assert spare == (now[0] if now[0] != _NO_LIMIT else 1 << 40) - 288
    open_files.restore()
    assert kernel.limits == (soft, hard)


@pytest.mark.parametrize(
    ("limits", "uid", "may_exceed", "remedy"),
    [
        ((90, 400), 1000, False, "raise the limit of this shell: sudo prlimit --pid $$ --nofile=1024"),
        ((90, 4096), 1000, False, "raise the limit: ulimit -n 1024"),
        ((2000, 4096), 1000, False, "raise the limit of this shell: sudo prlimit --pid $$ --nofile=8000"),
        ((90, 90), 0, True, "raise the limit: ulimit -n 1024"),
        ((90, 90), 0, False, "use another shell, or start the container with --ulimit nofile=1024"),
    ],
)
def test_the_remedy_is_one_that_this_account_may_use(
    kernels: Callable[..., Kernel], limits: tuple[int, int], uid: int, may_exceed: bool, remedy: str
) -> None:
    kernel = kernels(*limits, may_exceed=may_exceed, uid=uid)
    assert open_files.describe_remedy().startswith(remedy)
    assert kernel.limits == limits


@pytest.mark.parametrize(("may_exceed", "limits"), [(True, (1530, 1530)), (False, (1100, 1100))])
def test_root_raises_the_hard_limit_for_a_server(
    kernels: Callable[..., Kernel], may_exceed: bool, limits: tuple[int, int]
) -> None:
    kernel = kernels(1024, 1100, may_exceed=may_exceed)
    assert open_files.allow(1530, beyond_hard=True) is may_exceed
    assert kernel.limits == limits


_FULL = """
import os, resource, sys
from pathlib import Path
from powerprof.system.open_files import TooManyFilesError
from powerprof.system.reader_process import ReaderProcess
with ReaderProcess() as reader:
    mapped = [tuple(line.split()[0].split("-")) + (line.split()[4], line.split()[5])
              for line in Path("/proc/self/maps").read_text().splitlines() if "r-xp" in line and "/" in line][0]
    place = (int(mapped[0], 16), int(mapped[1], 16), int(mapped[2]), mapped[3])
    opened = reader.open_mapped(os.getpid(), place)
    os.close(opened.fd)
    kept = [os.dup(1) for _ in range(8)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, 4096))
    try:
        reader.open_mapped(os.getpid(), place)
    except TooManyFilesError as error:
        print(error.message)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    print(type(reader.open_mapped(os.getpid(), place)).__name__)
"""


def test_a_descriptor_that_finds_no_room_is_an_error_of_the_limit() -> None:
    """The kernel drops it and sets a flag of the message (MSG_CTRUNC, recvmsg(2)). The next request works again."""
    done = subprocess.run([sys.executable, "-c", _FULL], capture_output=True, encoding="utf-8", check=True, timeout=60)
    error, opened = done.stdout.splitlines()
    assert "open files; all are in use" in error
    assert opened == "Opened"
