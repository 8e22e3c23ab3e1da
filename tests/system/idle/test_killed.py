# SPDX-License-Identifier: Apache-2.0
"""kill -9 of powerprof or of one of its children: nothing stays, and what can be saved is."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from tests.programs.waiting import wait_until
from tests.system.idle.ending import Idle

Start = Callable[[Sequence[str]], Idle]


def both(running: Idle) -> dict[str, int]:
    """Its children, once both run."""
    return wait_until(lambda: found if len(found := running.children()) == 2 else {}, "both children")


def test_kill_of_powerprof_while_it_traces(root_bpf: None, idle: Start) -> None:
    running = idle(["--duration", "5", "--repeat", "2"])
    running.wait_traced()
    running.send(signal.SIGKILL)
    assert running.programs
    assert running.end() == -signal.SIGKILL


def test_kill_of_powerprof_while_its_server_runs(idle: Start) -> None:
    running = idle(["--no-causes"])
    both(running)
    running.send(signal.SIGKILL)
    assert running.end() == -signal.SIGKILL


def test_kill_of_the_server(idle: Start) -> None:
    """The baseline is not lost, and the error says what happened."""
    running = idle(["--no-causes"])
    running.send(signal.SIGKILL, both(running)["server"])
    assert running.end() == 1
    first = running.err.splitlines()[0]
    assert first.startswith("error: the private server ")
    assert "was killed by SIGKILL" in first
    (run,) = running.runs()
    assert run["ended"]["how"] == "failed"
    assert run["phases"][0]["name"] == "baseline"
    assert run["ended"]["why"].startswith("the private server ")
    assert running.err.splitlines()[1] == f"hint: the measured part is saved as {run['id']}"


def test_kill_of_the_janitor(idle: Start) -> None:
    """Its work is done by powerprof itself."""
    running = idle(["--no-causes"])
    running.send(signal.SIGKILL, both(running)["janitor"])
    assert running.end() == 0, running.err
    assert len(running.runs()) == 1


def test_kill_of_the_janitor_and_then_of_powerprof(idle: Start) -> None:
    """The server still dies with powerprof; only the tree has nobody who removes it, and no process is in it."""
    running = idle(["--no-causes"])
    children = both(running)
    running.send(signal.SIGKILL, children["janitor"])
    wait_until(lambda: "janitor" not in running.children(), "its end")
    running.send(signal.SIGKILL)
    running.process.communicate(timeout=60)
    wait_until(lambda: not running.room.processes(), "no process")
