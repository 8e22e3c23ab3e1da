# SPDX-License-Identifier: Apache-2.0
"""The records of commands, and the windows of the idle host around them."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from powerprof.energy.windows import WindowEnergy
from powerprof.experiment.executions import Command
from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.records import Block, ConditionRecord
from powerprof.measure.sampling import WindowMeter
from powerprof.model import text
from powerprof.model.records import Window
from powerprof.model.text import Say
from powerprof.system.errors import UsageError

COMMAND_METRIC = "cpu_s_per_execution"
_NAME_LIMIT = 60
_COMMAND_SOURCES = ("cpuidle", "procfs")


def build_command_condition(argv: Sequence[str]) -> ConditionRecord:
    """Return a command as a condition; its words identify the work."""
    shown = [_decode(word) for word in argv]
    digest = hashlib.sha256(json.dumps(list(argv)).encode()).hexdigest()[:16]
    return ConditionRecord(
        name=text.shorten(shlex.join(shown), _NAME_LIMIT),
        workload="command",
        title="",
        load={"kind": "command", "argv": shown, "directory": _decode(str(Path.cwd()))},
        settings={},
        work=digest,
    )


def _decode(word: str) -> str:
    """Return a word of a command line as UTF-8 text for a record: words and paths can hold any byte."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def check_source(options: ExperimentOptions) -> None:
    """Raise UsageError for a source of idle states that needs a window of known length."""
    if options.residency_source not in _COMMAND_SOURCES:
        raise UsageError(
            f"--residency-source {options.residency_source} must know in advance how long a window is",
            "for a command: cpuidle or procfs",
        )


def measure_baseline(energy: WindowEnergy, options: ExperimentOptions, what: str, say: Say) -> Iterator[Window]:
    """Measure the windows of the idle host."""
    groups = {"powerprof": [os.getpid()]}
    with WindowMeter(meters=energy.meters, groups=groups, residency_source=options.residency_source) as meter:
        for window in meter.repeat(options.baseline_windows, options.baseline_s, what, say):
            yield energy.complete(window)


def note_endings(commands: Sequence[Command], blocks: Sequence[Block]) -> list[str]:
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
