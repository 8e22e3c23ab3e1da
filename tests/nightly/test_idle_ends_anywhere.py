# SPDX-License-Identifier: Apache-2.0
"""Signals and kill -9 at many random moments of `powerprof idle`: nothing is left, what was measured is saved."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Sequence

import pytest

from tests.system.idle.ending import Idle, check_interrupted

TRIES = 20
Start = Callable[[Sequence[str]], Idle]


def moments(seed: int, length_s: float) -> list[float]:
    """One moment in each of equal stretches of a whole run, so that no phase is left out."""
    chance = random.Random(seed)
    return [(number + chance.random()) * length_s / TRIES for number in range(TRIES)]


@pytest.fixture(scope="session")
def whole_s(tmp_path_factory: pytest.TempPathFactory, warm_cache: object) -> float:
    """How long an undisturbed run takes here."""
    import shutil
    import tempfile
    from pathlib import Path

    from tests.conftest import Cli
    from tests.system.database.conftest import Room

    room = Room(Path(tempfile.mkdtemp(prefix="room-", dir="/tmp")))
    room.path.chmod(0o755)
    try:
        assert isinstance(warm_cache, Path)
        running = Idle.start(Cli(tmp_path_factory.mktemp("whole")), room, warm_cache)
        assert running.end() == 0
    finally:
        shutil.rmtree(room.path, ignore_errors=True)
    return time.monotonic() - running.started_s


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("part", range(TRIES))
def test_a_signal(root_bpf: None, idle: Start, whole_s: float, number: int, part: int) -> None:
    moment_s = moments(number, whole_s)[part]
    running = idle([])
    time.sleep(moment_s)
    running.send(number)
    check_interrupted(running, number, moment_s)


@pytest.mark.parametrize("part", range(TRIES))
def test_a_kill(root_bpf: None, idle: Start, whole_s: float, part: int) -> None:
    moment_s = moments(9, whole_s)[part]
    running = idle([])
    time.sleep(moment_s)
    running.send(signal.SIGKILL)
    assert running.end() in (-signal.SIGKILL, 0)


@pytest.mark.parametrize("child", ["server", "janitor"])
@pytest.mark.parametrize("part", range(TRIES))
def test_a_kill_of_a_child(root_bpf: None, idle: Start, whole_s: float, child: str, part: int) -> None:
    """At any moment of its life; where it does not live yet or any more, powerprof ends as if nothing were."""
    moment_s = moments(99 + part, whole_s)[part]
    running = idle([])
    time.sleep(moment_s)
    pid = running.children().get(child)
    if pid is not None:
        running.send(signal.SIGKILL, pid)
    code = running.end()
    if pid is None or child == "janitor":
        # A janitor that is killed before it said where the tree is: powerprof cannot know, and says so.
        assert code == 0 or "its janitor process did not start" in running.err
    else:
        # It may have died in the instant in which it was to be stopped anyway.
        assert code == 0 or (code == 1 and "SIGKILL" in running.err), running.err
        assert len(running.runs()) == 1
