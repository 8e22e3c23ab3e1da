# SPDX-License-Identifier: Apache-2.0
"""Execute commands in windows: each has a whole number of executions, from start to end."""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
import time
from contextlib import suppress
from typing import IO

import msgspec

from powerprof.energy.windows import WindowEnergy
from powerprof.experiment.records import Arm, Block
from powerprof.measure.sampling import WindowMeter
from powerprof.measure.window import OpenWindow
from powerprof.model.records import ProcessTime, Window
from powerprof.system import descendants, programs
from powerprof.system.errors import Interrupted, PowerprofError

# Shorter commands run up to this many times per window.
_MOST_EXECUTIONS = 10_000
_STDERR_BYTES = 4096
# A shell reports 128 + the signal of a killed command.
_SIGNALLED = 128


class Command(msgspec.Struct):
    """A command and its number of executions per window, which the first execution determines."""

    argv: tuple[str, ...]
    may_fail: bool
    executions_count: int = 1
    leftovers_count: int = msgspec.field(default=0)


def fit_executions(command: Command, window_s: float) -> None:
    """Execute once and set the number of executions for a window of at least `window_s`.

    Raises PowerprofError if the command cannot be started or fails.
    """
    execution = _execute(command, OpenWindow())
    command.executions_count = max(1, min(_MOST_EXECUTIONS, math.ceil(window_s / max(execution.elapsed_s, 1e-4))))


def measure_executions(command: Command, pair: int, arm: Arm, energy: WindowEnergy, residency_source: str) -> Block:
    """Measure one window of executions. Raise PowerprofError if one cannot be started or fails."""
    groups = {"powerprof": [os.getpid()]}
    with WindowMeter(meters=energy.meters, groups=groups, residency_source=residency_source) as meter:
        meter.open_window()
        executions = [_execute(command, meter.running) for _ in range(command.executions_count)]
        cpu_s = math.fsum(execution.cpu_s for execution in executions)
        window = energy.complete(meter.close_window())
    return Block(
        pair=pair,
        arm=arm,
        dropped=False,
        attempts_count=1,
        queries=None,
        offered_hz=None,
        window=_add_command(window, cpu_s),
        client_cpu_s=cpu_s,
        executions_count=len(executions),
        exit_codes=sorted({execution.code for execution in executions}),
    )


def _add_command(window: Window, cpu_s: float) -> Window:
    wall_s = (window.window_s or 0.0) * window.cpus
    group = ProcessTime(name="command", cpu_s=cpu_s, percent=100 * cpu_s / wall_s if wall_s else None)
    return msgspec.structs.replace(window, processes=[group, *window.processes])


class _Execution(msgspec.Struct, frozen=True):
    """Exit code, duration, and CPU time with that of all descendants."""

    code: int
    elapsed_s: float
    cpu_s: float


def _execute(command: Command, running: OpenWindow) -> _Execution:
    """Run the command and end its leftover processes."""
    with tempfile.TemporaryFile() as stderr:
        others = descendants.list_children()
        start_s = time.monotonic()
        process = programs.start_typed(command.argv, stderr=stderr)
        try:
            cpu_s = _wait(process, running)
        except Interrupted:
            programs.end_session(process, others)
            raise
        elapsed_s = time.monotonic() - start_s
        leftovers = programs.end_session(process, others)
        command.leftovers_count += leftovers.were_running
        code = process.returncode if process.returncode >= 0 else _SIGNALLED - process.returncode
        if code and not command.may_fail:
            raise PowerprofError(
                _explain_failure(command.argv[0], code, stderr), "to measure it anyway: --allow-failure"
            )
    return _Execution(code, elapsed_s, cpu_s + leftovers.cpu_s)


def _wait(process: subprocess.Popen[bytes], running: OpenWindow) -> float:
    """Wait for the process asleep in the kernel and return its CPU seconds.

    Popen.wait with a time-out would wake the CPU 20 times a second.
    """
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(process.pid)
        try:
            running.wait(math.inf, handle)
        finally:
            os.close(handle)
    return programs.wait_for_cost(process) or 0.0


def _explain_failure(name: str, code: int, stderr: IO[bytes]) -> str:
    stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _STDERR_BYTES))
    lines = stderr.read(_STDERR_BYTES).decode("utf-8", "replace").strip().splitlines()
    last = f": {lines[-1].strip()[:300]}" if lines else ""
    return f"{name} ended with exit code {code}{last}"
