# SPDX-License-Identifier: Apache-2.0
"""The durations in the help are those of the plans that the commands print when they start."""

from __future__ import annotations

import re
import shlex

import pytest

from powerprof.cli import output
from powerprof.cli.app import COMMANDS
from tests.contract.docs.cli import example_duration
from tests.contract.in_process import Run, the_commands, up_to_the_first_window

__all__ = ["the_commands", "up_to_the_first_window"]

_PLANNED = ("idle", "compare", "run", "sweep", "study")


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
