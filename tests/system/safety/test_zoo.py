# SPDX-License-Identifier: Apache-2.0
"""Five verbs beside processes that keep their readers waiting. The nightly test has all verbs."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from powerprof.system.process_stat import read_process_stat
from powerprof.system.reader_process import PATIENCE_S, shared
from powerprof.system.reader_waits import ReaderWaits
from powerprof.system.tasks import look_up, parent_of, process_folder
from tests.conftest import Cli
from tests.programs.map_locking import LOCK_S
from tests.programs.zoo import cage
from tests.programs.zoo_rounds import Visitor, end_by_signal, visitor

pytestmark = pytest.mark.usefixtures("root_bpf")
_LINES = (
    "attribute --system --duration 2 --no-save",
    "watch --plain --no-ask --count 3 --interval 1 --meter none",
    "profile --pid COVERED,LOCKED,UPPER --duration 2 --no-save",
    "idle --clients 1 --duration 0.5 --repeat 3 --meter none --no-save",
    "doctor --pid COVERED",
)


@pytest.fixture(scope="module")
def beside(mariadbd: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    cli = Cli(tmp_path_factory.mktemp("zoo"))
    with cage(mariadbd) as place, visitor(cli, place, {}, mappers=20) as found:
        yield found


@pytest.mark.parametrize("line", _LINES)
def test_a_signal_ends_a_command_beside_the_zoo(beside: Visitor, line: str) -> None:
    """After KILL, too, nothing remains but abandoned readers. They end with the zoo."""
    for name in ("INT", "KILL"):
        beside.open()
        print(end_by_signal(beside, line, name, random.uniform(0.5, 3.5)))


def asleep_s(look: Callable[[int], object], pid: int) -> float:
    """Return the seconds for which this thread sleeps in a look at a process."""

    def awake_s() -> float:
        return sum(map(int, Path("/proc/thread-self/schedstat").read_text().split()[:2])) / 1e9

    began_s = time.monotonic() - awake_s()
    look(pid)
    return time.monotonic() - awake_s() - began_s


def test_no_look_waits_for_a_process_in_exec(beside: Visitor) -> None:
    """/proc/PID/stat does, so that any reader of it on the host waits for as long as an account wants."""
    beside.open()
    shared().waits = ReaderWaits()
    try:
        longest, until_s = dict.fromkeys((look_up, parent_of, process_folder, read_process_stat), 0.0), time.monotonic()
        while time.monotonic() < until_s + 2.5 * LOCK_S:
            for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
                for look, before_s in longest.items():
                    longest[look] = max(before_s, asleep_s(look, pid))
        assert longest.pop(read_process_stat) < PATIENCE_S + 0.5
        assert max(longest.values()) < 0.2
    finally:
        shared().waits = ReaderWaits()
        shared().close()
