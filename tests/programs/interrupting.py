# SPDX-License-Identifier: Apache-2.0
"""Ends traces at random instants, and asks the traced program whether it still lives."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import Cli
from tests.programs.remains import held_programs
from tests.programs.running import Running

BACKENDS: dict[str, tuple[str, ...]] = {
    "uprobes": ("functions", "truth_*", "--backend", "bpf"),
    "sampling": ("profile",),
    "dtrace": ("functions", "truth_*", "--backend", "dtrace"),
}
# How long after it has attached itself (DTrace needs some seconds more to begin); every fourth is ended before.
_LATEST_S = {"uprobes": 1.0, "sampling": 1.0, "dtrace": 5.0}
_ON_THE_WAY_S = 2.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
_LEFT_S = 120.0


@dataclass(frozen=True)
class Survival:
    """How many traces were ended, `attached` of them while they held their target; how many of the programs died of it,
    and what was left running.
    """

    traces: int
    attached: int
    killed: int
    left: int

    @property
    def unharmed(self) -> int:
        """Traces after whose end nobody was dead and nothing left."""
        return self.traces - self.killed - self.left


def keepers(pid: int) -> list[int]:
    """The processes that look after a DTrace of `pid`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(word.endswith(b"dtrace_keeper.py") for word in words) and str(pid).encode() in words:
                found.append(int(entry.name))
    return found


def tracer(pid: int) -> int:
    """Who holds the process by ptrace(2); 0 for nobody."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("TracerPid:"))


def wait_until_untraced(pid: int) -> bool:
    """Whether what traces a process has gone by itself, in time."""
    limit = time.monotonic() + _LEFT_S
    while keepers(pid) or tracer(pid):
        if time.monotonic() > limit:
            return False
        time.sleep(0.1)
    return True


def _is_attached(powerprof: int, target: int) -> bool:
    return bool(held_programs(powerprof) or tracer(target))


def _wait_until_attached(tracing: subprocess.Popen[str], target: int) -> None:
    limit = time.monotonic() + _LEFT_S
    while not _is_attached(tracing.pid, target) and tracing.poll() is None and time.monotonic() < limit:
        time.sleep(0.05)


def lives(target: Running) -> bool:
    """Let it throw, load a library, fork and execute: whether it comes out of that."""
    try:
        target.begin()
    except BrokenPipeError:
        return False
    return target.line() == "alive 10000 0\n"


def interrupt(cli: Cli, program: Path, backend: str, traces: int, env: dict[str, str], seed: int = 1) -> Survival:
    """End `traces` traces of one program by turns of INT, TERM and KILL; a dead program is replaced."""
    with tempfile.TemporaryDirectory(prefix="room-", dir="/tmp") as room:
        return _interrupt(cli, program, backend, traces, {**env, "TMPDIR": room}, random.Random(seed))


def _interrupt(
    cli: Cli, program: Path, backend: str, traces: int, env: dict[str, str], chance: random.Random
) -> Survival:
    target, attached, killed, left = Running(program), 0, 0, 0
    try:
        for number in range(traces):
            words = [*BACKENDS[backend], "--pid", str(target.pid), "--duration", "60", "--no-save"]
            tracing = cli.start(words, env)
            if number % 4 == 3:
                time.sleep(chance.uniform(0.1, _ON_THE_WAY_S))
            else:
                _wait_until_attached(tracing, target.pid)
                time.sleep(chance.uniform(0, _LATEST_S[backend]))
            attached += _is_attached(tracing.pid, target.pid)
            works = number % 2 == 1
            if works:
                target.begin()  # the signal comes while it throws, loads and forks
            tracing.send_signal(_SIGNALS[number % len(_SIGNALS)])
            try:
                tracing.communicate(timeout=_LEFT_S)
            except subprocess.TimeoutExpired:
                os.kill(tracing.pid, signal.SIGKILL)
                left += 1
            alive = target.line() == "alive 10000 0\n" if works else True
            untraced = target.process.poll() is not None or wait_until_untraced(target.pid)
            left += not untraced or any(Path(env["TMPDIR"]).iterdir())
            if not (alive and lives(target)):
                killed += 1
                target.end()
                target = Running(program)
    finally:
        target.end()
    return Survival(traces, attached, killed, left)
