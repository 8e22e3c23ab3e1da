# SPDX-License-Identifier: Apache-2.0
"""Processes that join a traced target: their CPU time is in the sum, or a note states it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from powerprof.measure.procfs import process_cpu_ns
from powerprof.system.targets import resolve
from powerprof.tracing import followed as followed_module
from powerprof.tracing.followed import FollowedProcesses

# Each line of the input starts a child that uses 50 ms of CPU time, and then stays or ends.
_FORKER = """
import os, sys, time
print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()
    if not child:
        while time.process_time() < 0.05:
            pass
        print("done", flush=True)
        if line.strip() == "stay":
            time.sleep(60)
        os._exit(0)
    if line.strip() == "end":
        os.waitpid(child, 0)
        print("reaped", flush=True)
"""


@contextmanager
def _forker() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", _FORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        start_new_session=True,
    ) as process:
        try:
            assert _answer(process) == "ready"
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _answer(process: subprocess.Popen[str]) -> str:
    return process.stdout.readline().strip()


def _order(process: subprocess.Popen[str], word: str) -> None:
    process.stdin.write(f"{word}\n")
    assert _answer(process) == "done"
    if word == "end":
        assert _answer(process) == "reaped"


def test_sum_covers_processes_that_join() -> None:
    with _forker() as process:
        target = resolve([str(process.pid)])
        followed = FollowedProcesses(target.pids, target.find_members)
        followed.begin()
        _order(process, "stay")
        (joined,) = followed.find_new()
        followed.end()
        own_ns = process_cpu_ns(joined)
        assert own_ns is not None and own_ns >= 50_000_000
        assert own_ns <= (followed.cpu_ns() or 0) <= own_ns + 50_000_000
        assert (followed.pids, followed.joined_count) == ([process.pid, joined], 1)
        assert followed.notes() == [
            "1 process joined the target in the window: up to 0.2 s at their start are not covered"
        ]


def test_note_states_the_time_of_processes_that_no_look_has_seen() -> None:
    with _forker() as process:
        target = resolve([str(process.pid)])
        followed = FollowedProcesses(target.pids, target.find_members)
        followed.begin()
        for _ in range(3):
            _order(process, "end")
        followed.end()
        (note,) = followed.notes()
        unseen = re.search(r"used ([0-9.]+) s of CPU time", note)
        assert unseen is not None and 0.14 <= float(unseen[1]) <= 0.25
        assert (followed.cpu_ns() or 0) < 50_000_000


def _clocks(monkeypatch: pytest.MonkeyPatch) -> tuple[dict[int, int], dict[int, int], list[int]]:
    """Replace the kernel's clocks: CPU time of living processes and of their ended children, and the members."""
    own, children, members = {1: 100 * _MS, 2: 60 * _MS}, {1: 500 * _MS, 2: 40 * _MS}, [1, 2]
    monkeypatch.setattr(followed_module, "process_cpu_ns", own.get)
    monkeypatch.setattr(followed_module, "reaped_cpu_ns", lambda pid: children.get(pid, 0))
    return own, children, members


_MS = 1_000_000


def test_time_is_that_of_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes ran for 50 and 7 ms, and the third one joined: all of its time is in the window."""
    own, _, members = _clocks(monkeypatch)
    followed = FollowedProcesses([1, 2], lambda: members)
    followed.begin()
    members.append(3)
    own.update({1: 150 * _MS, 2: 67 * _MS, 3: 30 * _MS})
    assert followed.find_new() == [3]
    own.update({3: 33 * _MS})
    followed.end()
    assert (followed.cpu_ns(), followed.joined_count, followed.unseen_ns()) == (90 * _MS, 1, 0)
    # A process that ended keeps its last time.
    own[3] = own[1] = 0
    del own[3], own[1]
    assert followed.cpu_ns() == 90 * _MS


@pytest.mark.parametrize(("grown_ms", "unseen_ms"), [(90, 57), (43, 10), (42, 0), (20, 0)])
def test_unseen_time_is_without_seen_children(monkeypatch: pytest.MonkeyPatch, grown_ms: int, unseen_ms: int) -> None:
    """The sum of ended children grew by the 33 ms of a process that was seen, and by others. A tick is no time."""
    own, children, members = _clocks(monkeypatch)
    followed = FollowedProcesses([1, 2], lambda: members)
    followed.begin()
    members.append(3)
    own[3] = 33 * _MS
    followed.find_new()
    del own[3]
    children[1] += (grown_ms - 3) * _MS
    children[2] += 3 * _MS
    assert followed.unseen_ns() == unseen_ms * _MS
    assert FollowedProcesses([1, 2]).unseen_ns() == 0


def test_time_of_fixed_processes_needs_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    own, _, _ = _clocks(monkeypatch)
    followed = FollowedProcesses([1, 2])
    followed.begin()
    own.update({1: 150 * _MS, 2: 67 * _MS})
    followed.end()
    assert followed.cpu_ns() == 57 * _MS and followed.notes() == []
    del own[2]
    followed.end()
    assert followed.cpu_ns() is None and FollowedProcesses([]).cpu_ns() is None
