# SPDX-License-Identifier: Apache-2.0
"""Windows in which a command runs, once or as often as fits, from its start to its end."""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

import msgspec

from powerprof import programs
from powerprof.errors import Interrupted, PowerprofError
from powerprof.experiment.records import Arm, Block
from powerprof.records import ProcessTime, Window
from powerprof.sources.procfs import children_cpu_s
from powerprof.windows.runner import OpenWindow
from powerprof.windows.sampling import WindowMeter

if TYPE_CHECKING:
    from powerprof.energy.windows import WindowEnergy

# A window of fewer seconds says more of its edges than of the command.
_MOST_EXECUTIONS = 10_000
_STDERR_BYTES = 4096
# What a shell says of a command that a signal ended.
_SIGNALLED = 128


@dataclass
class Command:
    """A command and how often it runs in a window of its own (found by the first execution)."""

    argv: tuple[str, ...]
    may_fail: bool
    executions_count: int = 1
    leftovers_count: int = field(default=0)


def fit(command: Command, window_s: float) -> None:
    """Execute once, and see how many executions are to be in a window of at least `window_s`.

    Raises PowerprofError where it cannot be started, or fails.
    """
    _, elapsed_s = _execute(command, OpenWindow())
    command.executions_count = max(1, min(_MOST_EXECUTIONS, math.ceil(window_s / max(elapsed_s, 1e-4))))


def measure_executions(
    command: Command, pair: int, arm: Arm, dropped: bool, energy: WindowEnergy, residency_source: str
) -> Block:
    """One window with all its executions. Raises PowerprofError where one of them cannot be started, or fails."""
    groups = {"powerprof": [os.getpid()]}
    with WindowMeter(meters=energy.meters, groups=groups, residency_source=residency_source) as meter:
        codes = []
        meter.open_window()
        before_s = children_cpu_s()
        for _ in range(command.executions_count):
            code, _elapsed_s = _execute(command, meter.running)
            codes.append(code)
        cpu_s = children_cpu_s() - before_s
        window = energy.complete(meter.close_window())
    return Block(
        pair=pair,
        arm=arm,
        dropped=dropped,
        attempts_count=1,
        queries=None,
        offered_hz=None,
        window=_with_command(window, cpu_s),
        client_cpu_s=cpu_s,
        executions_count=len(codes),
        exit_codes=sorted(set(codes)),
    )


def _with_command(window: Window, cpu_s: float) -> Window:
    wall_s = (window.window_s or 0.0) * window.cpus
    group = ProcessTime(name="command", cpu_s=cpu_s, percent=100 * cpu_s / wall_s if wall_s else None)
    return msgspec.structs.replace(window, processes=[group, *window.processes])


def _execute(command: Command, running: OpenWindow) -> tuple[int, float]:
    """Its exit code, as a shell says it, and how long it took; what it left running is ended. `running`: its window."""
    with tempfile.TemporaryFile() as stderr:
        start_s = time.monotonic()
        process = programs.start_typed(command.argv, stderr=stderr)
        try:
            _wait(process, running)
        except Interrupted:
            programs.end_session(process)
            raise
        elapsed_s = time.monotonic() - start_s
        command.leftovers_count += programs.end_session(process)
        code = process.returncode if process.returncode >= 0 else _SIGNALLED - process.returncode
        if code and not command.may_fail:
            raise PowerprofError(_failure(command.argv[0], code, stderr), "--allow-failure measures it nevertheless")
    return code, elapsed_s


def _wait(process: subprocess.Popen[bytes], running: OpenWindow) -> None:
    """Until it ends, asleep in the kernel: Popen.wait with a time-out would wake the CPU twenty times a second."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(process.pid)
        try:
            running.wait(math.inf, handle)
        finally:
            os.close(handle)
    process.wait()


def _failure(name: str, code: int, stderr: IO[bytes]) -> str:
    stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _STDERR_BYTES))
    lines = stderr.read(_STDERR_BYTES).decode("utf-8", "replace").strip().splitlines()
    last = f": {lines[-1].strip()[:300]}" if lines else ""
    return f"{name} ended with exit code {code}{last}"


def exit_codes(blocks: Sequence[Block]) -> list[int]:
    """All exit codes that were seen."""
    return sorted({code for block in blocks for code in block.exit_codes})
