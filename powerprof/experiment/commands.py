# SPDX-License-Identifier: Apache-2.0
"""Any command as a workload: what an execution costs, and which of two costs less."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from powerprof import __version__, text
from powerprof.energy.domains import unmetered
from powerprof.energy.windows import WindowEnergy
from powerprof.errors import Interrupted, PowerprofError, UsageError
from powerprof.experiment.collected import Collected
from powerprof.experiment.comparison_record import comparison
from powerprof.experiment.judge import phases
from powerprof.experiment.judge.answer import headline
from powerprof.experiment.judge.disturbance import leave_out
from powerprof.experiment.judge.metrics import baseline_of, figures_of, measured_names, with_mean
from powerprof.experiment.judge.threats import crowded
from powerprof.experiment.measure.executions import Command, exit_codes, fit, measure_executions
from powerprof.experiment.measure.order import block_order
from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.records import Arm, Block, Comparison, ConditionRecord, LoadOptions, LoadRun
from powerprof.records import EnergySource, ToolCost, Window
from powerprof.text import Say, counting_down
from powerprof.windows.sampling import WindowMeter, now_text

ASKED = "cpu_s_per_execution"
_NAME_LIMIT = 60
_SOURCES = ("cpuidle", "procfs")
_BASELINE_S = (0.5, 4.0)


def condition_of(argv: Sequence[str]) -> ConditionRecord:
    """A command as a condition: its words are the work."""
    shown = [_as_text(word) for word in argv]
    digest = hashlib.sha256(json.dumps(list(argv)).encode()).hexdigest()[:16]
    return ConditionRecord(
        name=text.cut(shlex.join(shown), _NAME_LIMIT),
        workload="command",
        title="",
        load={"kind": "command", "argv": shown, "directory": _as_text(str(Path.cwd()))},
        settings={},
        work=digest,
    )


def _as_text(word: str) -> str:
    """A word of a command line or a path as it can be saved: they may hold any byte, a record holds UTF-8."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _check(options: ExperimentOptions) -> None:
    if options.residency_source not in _SOURCES:
        raise UsageError(
            f"--residency-source {options.residency_source} must know in advance how long a window is",
            "for a command: cpuidle or procfs",
        )


def _baseline(energy: WindowEnergy, options: ExperimentOptions, what: str, say: Say) -> Iterator[Window]:
    shortest_s, longest_s = _BASELINE_S
    length_s = max(shortest_s, min(options.window_s, longest_s))
    groups = {"powerprof": [os.getpid()]}
    with WindowMeter(meters=energy.meters, groups=groups, residency_source=options.residency_source) as meter:
        for window in meter.repeat(options.baseline_windows, length_s, what, say):
            yield energy.complete(window)


def _end_notes(commands: Sequence[Command], blocks: Sequence[Block]) -> list[str]:
    """What a reader has to know of the commands' ends."""
    failed = [code for code in exit_codes(blocks) if code]
    left = sum(command.leftovers_count for command in commands)
    notes = []
    if failed:
        notes.append(f"ended with exit code {text.listed([str(code) for code in failed])} in some executions or all")
    if left:
        notes.append(f"{left} executions left processes running in the background, which were ended")
    return notes


def run_command(argv: Sequence[str], options: ExperimentOptions, say: Say, *, may_fail: bool) -> LoadRun:
    """Measure one command. Raises PowerprofError where not one window could be measured."""
    from powerprof.host.describe import host_record

    _check(options)
    started_at, started_s, started_cpu_s = now_text(), time.monotonic(), time.process_time()
    command = Command(tuple(argv), may_fail)
    baseline: list[Window] = []
    blocks: list[Block] = []
    failure: str | None = None
    source: EnergySource | None = None
    interrupted = False
    say(options.plan(1))
    say = counting_down(say, options.seconds(1))
    try:
        with WindowEnergy(options.energy) as energy:
            source = energy.source
            say(f"{argv[0]}: the first execution")
            fit(command, options.window_s)
            baseline += _baseline(energy, options, "idle host", say)
            for number in range(options.pairs):
                say(f"{argv[0]}: window {number + 1} of {options.pairs}")
                blocks.append(measure_executions(command, number, "a", False, energy, options.residency_source))
    except Interrupted:
        interrupted = True
        if not blocks:
            raise
    except PowerprofError as error:
        if not blocks:
            raise
        interrupted = True
        failure = error.message
    cpu_s = time.process_time() - started_cpu_s
    idle = baseline_of(baseline, blocks)
    metrics = [with_mean(figures) for figures in figures_of(blocks, idle)]
    primary = headline(ASKED, measured_names(metrics))
    metrics.sort(key=lambda metric: metric.name != primary)
    condition = condition_of(argv)
    windows = [block.window for block in blocks]
    return LoadRun(
        id=None,
        command="run",
        started_at=started_at,
        host=host_record(),
        tool=ToolCost(
            version=__version__, cpu_s=cpu_s, wakeups_hz=None, cpu_percent=100 * cpu_s / (time.monotonic() - started_s)
        ),
        phases=[phases.combine(name, of) for name, of in (("baseline", baseline), ("command", windows)) if of],
        condition=condition,
        metrics=metrics,
        options=LoadOptions(
            primary_metric=primary,
            window_s=options.window_s,
            windows_count=len(blocks),
            design="work",
            energy_source=options.energy.source,
            residency_source=options.residency_source,
        ),
        blocks=blocks,
        energy_source=source,
        notes=[
            *_end_notes([command], blocks),
            *crowded(blocks),
            *unmetered([window.energy for window in [*baseline, *windows]], idle.meters),
        ],
        interrupted=interrupted,
        failure=failure,
    )


def compare_commands(
    argv_a: Sequence[str], argv_b: Sequence[str], options: ExperimentOptions, say: Say, *, may_fail: bool
) -> Comparison:
    """Measure two commands in turns. Raises PowerprofError where not one pair could be measured."""
    _check(options)
    a, b = condition_of(argv_a), condition_of(argv_b)
    if a.name == b.name:
        b = msgspec.structs.replace(b, name=f"{b.name} (again)")
    commands: dict[Arm, Command] = {"a": Command(tuple(argv_a), may_fail), "b": Command(tuple(argv_b), may_fail)}
    collected = Collected((a, b), ASKED, options, now_text())
    started_cpu_s, started_s = time.process_time(), time.monotonic()
    say(options.plan(2))
    say = counting_down(say, options.seconds(2))
    try:
        with WindowEnergy(options.energy) as energy:
            collected.energy_source = energy.source
            collected.notes += options.notes
            for command in commands.values():
                say(f"{command.argv[0]}: the first execution")
                fit(command, options.window_s)
            collected.before += _baseline(energy, options, "idle baseline before", say)
            for number, pair in enumerate(block_order(options.pairs, options.seed)):
                for arm in pair:
                    say(f"pair {number + 1} of {options.pairs}: {commands[arm].argv[0]}")
                    collected.blocks.append(
                        measure_executions(commands[arm], number, arm, False, energy, options.residency_source)
                    )
            collected.blocks, left_out = leave_out(collected.blocks, options.pairs)
            collected.notes += left_out
            collected.after += _baseline(energy, options, "idle baseline after", say)
    except Interrupted:
        collected.interrupted = True
        if not collected.pairs:
            raise
    except PowerprofError as error:
        if not collected.pairs:
            raise
        collected.interrupted = True
        collected.failure = error.message
    collected.notes += _end_notes(list(commands.values()), collected.blocks)
    collected.own_cpu_s, collected.own_wall_s = time.process_time() - started_cpu_s, time.monotonic() - started_s
    return msgspec.structs.replace(comparison(collected), design="work")
