# SPDX-License-Identifier: Apache-2.0
"""The durations in the help are those of the plans that the commands print when they start."""

from __future__ import annotations

import re
import shlex
from types import SimpleNamespace
from typing import Any, cast

import pytest

from powerprof.cli import output
from powerprof.cli.app import COMMANDS
from powerprof.cure.session import estimate_seconds
from powerprof.model.text import approximate_time
from tests.programs.in_process import Run, the_commands, up_to_the_first_window
from tools.pages.cli import commands, example_duration

__all__ = ["the_commands", "up_to_the_first_window"]

_PLANNED = ("idle", "compare", "run", "sweep", "study")
# Commands that measure one window of --duration.
_TRACES = ("attribute", "profile", "functions", "offcpu", "syscalls", "queries", "diagnose")
_ONE_WINDOW = ("residency", "energy", *_TRACES)


def _default(name: str, flag: str) -> Any:
    return next(option.default for option in commands()[name].options if option.name == flag)


@pytest.mark.parametrize("name", _ONE_WINDOW)
def test_the_duration_of_a_trace_is_that_of_its_window(name: str) -> None:
    words = shlex.split(COMMANDS[name].example)
    typed = words[words.index("--duration") + 1] if "--duration" in words else _default(name, "--duration")
    assert example_duration(name) == f"{float(typed):g} s plus a few seconds"


def test_the_duration_of_a_cure_is_that_which_it_counts_down() -> None:
    defaults = SimpleNamespace(most_pairs=_default("cure", "--pairs"), window_s=_default("cure", "--window"))
    assert example_duration("cure") == approximate_time(estimate_seconds(cast(Any, defaults)))


@pytest.mark.parametrize("name", _PLANNED)
@pytest.mark.parametrize("quick", [False, True])
def test_the_duration_of_the_example_is_that_of_its_plan(
    up_to_the_first_window: Run, monkeypatch: pytest.MonkeyPatch, name: str, quick: bool
) -> None:
    printed: list[str] = []
    monkeypatch.setattr(output, "print_progress", lambda text, quiet=False: printed.append(text))
    # Finding the server's version starts a program, which ends the run before its plan is printed.
    monkeypatch.setattr("powerprof.experiment.idle._server", lambda plan: None)
    in_help = example_duration(name).partition(", with --quick ")[2 if quick else 0]
    if not in_help:
        return
    ended = up_to_the_first_window([*shlex.split(COMMANDS[name].example), *(["--quick"] if quick else [])])
    planned = [match[1] for text in printed if (match := re.search(r"(?:: |, )(about [\d.]+ (?:s|min|h))$", text))]
    assert planned[:1] == [in_help], (printed, ended)
