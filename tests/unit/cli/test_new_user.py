# SPDX-License-Identifier: Apache-2.0
"""The list of commands, typed as a new user would: what the help and the README show works as it stands."""

from __future__ import annotations

import re
import shlex

import pytest

from powerprof.cli.app import COMMANDS
from tests.conftest import REPOSITORY
from tests.programs.in_process import Ended, Run, the_commands, up_to_the_first_window
from tools.pages.cli import commands
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
