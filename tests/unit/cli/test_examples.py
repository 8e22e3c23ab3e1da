# SPDX-License-Identifier: Apache-2.0
"""The examples of the help and the README, typed as they stand, and their durations."""

from __future__ import annotations

import re
import shlex
from types import SimpleNamespace
from typing import Any, cast

import pytest

from powerprof.cli import terminal
from powerprof.cli.commands import COMMANDS
from powerprof.cure.session import estimate_seconds
from powerprof.model.text import approximate_time
from tests.conftest import REPOSITORY
from tests.programs.in_process import Ended, Run, the_commands, up_to_the_first_window
from tools.pages.cli import commands, example_duration
from tools.pages.pages import command_lines

__all__ = ["the_commands", "up_to_the_first_window"]

# What a new user has not, and is told how to get; a test has no terminal, and servers of other tests may run beside it.
_NOT_HERE = (
    r"no process is called (mysqld|mariadbd)$",
    r"\d+ (processes|servers) are called (mysqld|mariadbd)",
    r"only private servers of powerprof have this name: ",
    r"confirmation needs a terminal$",
    r"no process has this id$",
    r"no run '[a-z]+-\d+' in ",
    r"energy --calibrate needs a meter: ",
    r"not fetched",
)


def _fits(ended: Ended) -> bool:
    said = ended.err.partition("\n")[0].removeprefix("error: ")
    return ended.broke is None and (
        ended.began is not None or ended.code in (0, 3) or any(re.search(words, said) for words in _NOT_HERE)
    )


@pytest.mark.parametrize("name", commands())
def test_the_example_of_the_help_gets_to_its_first_window(name: str, up_to_the_first_window: Run) -> None:
    ended = up_to_the_first_window(shlex.split(COMMANDS[name].example))
    assert _fits(ended), ended


def test_the_lines_of_the_readme_get_to_their_first_window(up_to_the_first_window: Run) -> None:
    lines = [line.text for line in command_lines(REPOSITORY / "README.md") if " " in line.text]
    assert len(lines) >= 5
    wrong = [(line, ended) for line in lines if not _fits(ended := up_to_the_first_window(shlex.split(line)))]
    assert wrong == []


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
    defaults = SimpleNamespace(most_pairs=_default("cure", "--pairs"), window_s=_default("cure", "--duration"))
    assert example_duration("cure") == approximate_time(estimate_seconds(cast(Any, defaults)))


@pytest.mark.parametrize("name", _PLANNED)
@pytest.mark.parametrize("quick", [False, True])
def test_the_duration_of_the_example_is_that_of_its_plan(
    up_to_the_first_window: Run, monkeypatch: pytest.MonkeyPatch, name: str, quick: bool
) -> None:
    printed: list[str] = []
    monkeypatch.setattr(terminal, "print_progress", lambda text, quiet=False: printed.append(text))
    # Finding the server's version starts a program, which ends the run before its plan is printed.
    monkeypatch.setattr("powerprof.experiment.idle._server", lambda plan: None)
    in_help = example_duration(name).partition(", with --quick ")[2 if quick else 0]
    if not in_help:
        return
    ended = up_to_the_first_window([*shlex.split(COMMANDS[name].example), *(["--quick"] if quick else [])])
    planned = [match[1] for text in printed if (match := re.search(r"(?:: |, )(about [\d.]+ (?:s|min|h))$", text))]
    assert planned[:1] == [in_help], (printed, ended)
