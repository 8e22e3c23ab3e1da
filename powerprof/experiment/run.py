# SPDX-License-Identifier: Apache-2.0
"""Measure one condition or one command in repeated windows: `powerprof run`."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

import msgspec

from powerprof import __version__
from powerprof.energy.domains import note_unmetered_windows
from powerprof.energy.windows import WindowEnergy
from powerprof.experiment import phases
from powerprof.experiment.bench import Bench
from powerprof.experiment.bench_data import BenchOptions
from powerprof.experiment.block import Apparatus, measure_block
from powerprof.experiment.claims import choose_primary_metric
from powerprof.experiment.metrics import (
    add_mean,
    format_cost_so_far,
    list_measured,
    mean_baseline,
    note_below_idle,
    read_figures,
    system_of_blocks,
)
from powerprof.experiment.options import AROUND_S, ExperimentOptions, condition_record
from powerprof.experiment.plan import Offer, calibrate, check_options
from powerprof.experiment.records import Arm, Block, ConditionRecord, Design, LoadOptions, LoadRun, TraceSummary
from powerprof.experiment.threats import note_other_load
from powerprof.experiment.traced import trace_condition
from powerprof.measure.progress import Countdown, join_parts
from powerprof.measure.sampling import WindowMeter
from powerprof.measure.window import OpenWindow, format_now
from powerprof.model import text
from powerprof.model.records import EnergySource, Note, ProcessTime, ServerInfo, ToolCost, Window
from powerprof.model.text import Say
from powerprof.system import programs
from powerprof.system.errors import Interrupted, PowerprofError, UsageError
from powerprof.workloads.reading import Case


class _RunState(msgspec.Struct):
    """A run during its measurement. An early end keeps the measured windows."""

    condition: ConditionRecord
    asked: str
    options: ExperimentOptions
    offer: Offer | None = None
    baseline: list[Window] = msgspec.field(default_factory=list)
    blocks: list[Block] = msgspec.field(default_factory=list)
    energy_source: EnergySource | None = None
    notes: list[str | Note] = msgspec.field(default_factory=list)
    server: ServerInfo | None = None
    traced: TraceSummary | None = None
    interrupted: bool = False
    failure: str | None = None
    started_at: str = msgspec.field(default_factory=format_now)
    started_s: float = msgspec.field(default_factory=time.monotonic)
    started_cpu_s: float = msgspec.field(default_factory=time.process_time)

    @contextmanager
    def measuring(self) -> Iterator[WindowEnergy]:
        """Open the meters. Raise an error only if no window was measured before it."""
        try:
            with WindowEnergy(self.options.energy) as energy:
                self.energy_source = energy.source
                yield energy
        except Interrupted:
            if not self.blocks:
                raise
            self.interrupted = True
        except PowerprofError as error:
            if all(block.dropped for block in self.blocks):
                raise
            self.interrupted, self.failure = True, error.message

    def record(self, phase_names: tuple[str, str], *, is_command: bool) -> LoadRun:
        """Return the record of the run; `phase_names` are those of the idle windows and of the blocks."""
        from powerprof.host.describe import host_record

        cpu_s = time.process_time() - self.started_cpu_s
        cpu_percent = 100 * cpu_s / (time.monotonic() - self.started_s)
        options, offer = self.options, self.offer
        blocks = [block for block in self.blocks if not block.dropped] or self.blocks
        windows = [block.window for block in blocks]
        baseline = mean_baseline(self.baseline, self.blocks)
        metered = [window.energy for window in (*self.baseline, *(block.window for block in self.blocks))]
        metrics = [add_mean(figures) for figures in read_figures(blocks, baseline)]
        primary = choose_primary_metric(self.asked, list_measured(metrics))
        metrics.sort(key=lambda metric: metric.name != primary)
        queries = [metric for metric in metrics if metric.name == "queries_hz"]
        design: Design | None = "work" if is_command else None
        return LoadRun(
            command="run",
            started_at=self.started_at,
            host=host_record(),
            tool=ToolCost(version=__version__, cpu_s=cpu_s, wakeups_hz=None, cpu_percent=cpu_percent),
            phases=[
                phases.combine_windows(name, of)
                for name, of in zip(phase_names, (self.baseline, windows), strict=True)
                if of
            ],
            server=self.server,
            condition=self.condition,
            metrics=metrics,
            system=[] if is_command else system_of_blocks(queries, blocks),
            options=LoadOptions(
                primary_metric=primary,
                window_s=options.window_s,
                windows_count=len(blocks),
                design=offer.design if offer else design,
                offered_hz=offer.rate_hz if offer else None,
                queries_per_block=offer.queries if offer else None,
                energy_source=options.energy.source,
                residency_source=options.residency_source,
            ),
            traced=self.traced,
            blocks=[block for block in blocks if is_command or block.members or block.storm or block.slices],
            energy_source=self.energy_source,
            notes=[
                *dict.fromkeys(self.notes),
                *note_other_load(blocks),
                *note_below_idle((metric.name, metric.estimate.low) for metric in metrics),
                *note_unmetered_windows(metered, baseline.meters),
            ],
            interrupted=self.interrupted,
            failure=self.failure,
        )


def run_condition(case: Case, bench_options: BenchOptions, options: ExperimentOptions, say: Say) -> LoadRun:
    """Measure one condition. Raise PowerprofError if no window could be measured."""
    check_options([case], options)
    state = _RunState(condition_record(case), case.workload.definition.primary_metric, options)
    say(options.plan(1))
    progress = Countdown(say, options.seconds(1))
    with state.measuring() as energy, Bench([case], bench_options, state.notes.append) as bench:
        server = bench.server(case)
        state.server = ServerInfo(version=server.version, private=server.private, pid=server.pid)
        state.offer = offer = calibrate(bench, [case], options, progress)
        state.notes += offer.notes
        apparatus = Apparatus(bench, options, offer, energy.meters, energy.complete, progress, state.notes)
        state.baseline += apparatus.baseline("idle server")
        slots = list(apparatus.slots())
        for slot in slots:
            number = slot.pair - options.warm_up_pairs + 1
            label = "warm-up" if slot.dropped else f"{case.name}: window {number} of {options.pairs}"
            label = join_parts(label, format_cost_so_far(state.blocks))
            progress.step(label, slot.pair, len(slots), options.window_s + AROUND_S, options.attribute_s or 0.0)
            state.blocks.append(apparatus.repeated(partial(measure_block, apparatus, case, slot), [case], slot))
        if options.attribute_s is not None:
            state.traced = trace_condition(bench, case, "a", options.attribute_s, progress, offer.easy_rate_hz)
    return state.record(("server", case.name), is_command=False)


# Commands: each window has a whole number of executions, from start to end.

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
        window=_with_command(window, cpu_s),
        client_cpu_s=cpu_s,
        executions_count=len(executions),
        exit_codes=sorted({execution.code for execution in executions}),
    )


def _with_command(window: Window, cpu_s: float) -> Window:
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
        others = programs.list_children()
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
            raise PowerprofError(_failure(command.argv[0], code, stderr), "to measure it anyway: --allow-failure")
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


def _failure(name: str, code: int, stderr: IO[bytes]) -> str:
    stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _STDERR_BYTES))
    lines = stderr.read(_STDERR_BYTES).decode("utf-8", "replace").strip().splitlines()
    last = f": {lines[-1].strip()[:300]}" if lines else ""
    return f"{name} ended with exit code {code}{last}"


# The records of commands.

COMMAND_METRIC = "cpu_s_per_execution"
_NAME_LIMIT = 60
_COMMAND_SOURCES = ("cpuidle", "procfs")


def build_command_condition(argv: Sequence[str]) -> ConditionRecord:
    """Return a command as a condition; its words identify the work."""
    shown = [_as_text(word) for word in argv]
    digest = hashlib.sha256(json.dumps(list(argv)).encode()).hexdigest()[:16]
    return ConditionRecord(
        name=text.shorten(shlex.join(shown), _NAME_LIMIT),
        workload="command",
        title="",
        load={"kind": "command", "argv": shown, "directory": _as_text(str(Path.cwd()))},
        settings={},
        work=digest,
    )


def _as_text(word: str) -> str:
    """Return a word of a command line as UTF-8 text for a record: words and paths can hold any byte."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _check_source(options: ExperimentOptions) -> None:
    if options.residency_source not in _COMMAND_SOURCES:
        raise UsageError(
            f"--residency-source {options.residency_source} must know in advance how long a window is",
            "for a command: cpuidle or procfs",
        )


def _baseline(energy: WindowEnergy, options: ExperimentOptions, what: str, say: Say) -> Iterator[Window]:
    groups = {"powerprof": [os.getpid()]}
    with WindowMeter(meters=energy.meters, groups=groups, residency_source=options.residency_source) as meter:
        for window in meter.repeat(options.baseline_windows, options.baseline_s, what, say):
            yield energy.complete(window)


def _end_notes(commands: Sequence[Command], blocks: Sequence[Block]) -> list[str]:
    """Return notes on failed executions and leftover processes."""
    failed = sorted({code for block in blocks for code in block.exit_codes if code})
    left = sum(command.leftovers_count for command in commands)
    notes = []
    if failed:
        notes.append(
            f"ended with exit code {text.join_words([str(code) for code in failed])} in some executions or all"
        )
    if left:
        notes.append(f"{left} executions left processes running in the background, which were ended")
    return notes


def run_command(argv: Sequence[str], options: ExperimentOptions, say: Say, *, may_fail: bool) -> LoadRun:
    """Measure one command. Raise PowerprofError if no window could be measured."""
    _check_source(options)
    command = Command(tuple(argv), may_fail)
    state = _RunState(build_command_condition(argv), COMMAND_METRIC, options)
    say(options.plan(1))
    progress = Countdown(say, options.command_seconds(1))
    with state.measuring() as energy:
        progress(f"{argv[0]}: the first execution")
        fit_executions(command, options.window_s)
        state.baseline += _baseline(energy, options, "idle host", progress)
        for number in range(options.pairs):
            label = join_parts(f"{argv[0]}: window {number + 1} of {options.pairs}", format_cost_so_far(state.blocks))
            progress.step(label, number, options.pairs, options.window_s)
            state.blocks.append(measure_executions(command, number, "a", energy, options.residency_source))
    state.notes += _end_notes([command], state.blocks)
    return state.record(("baseline", "command"), is_command=True)
