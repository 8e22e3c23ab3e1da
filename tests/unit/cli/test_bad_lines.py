# SPDX-License-Identifier: Apache-2.0
"""Wrong command lines: each is named in one line, with a remedy that works and keeps the other options."""

from __future__ import annotations

import pytest

from powerprof.model.text import wrap
from powerprof.system.next_steps import find_commands
from tests.programs.in_process import Run, the_commands, up_to_the_first_window
from tests.unit.cli.bad_lines import KINDS, draw_lines, habits, judge

__all__ = ["the_commands", "up_to_the_first_window"]

SEED = 66


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_command_line_has_a_remedy_that_works(up_to_the_first_window: Run, kind: str) -> None:
    answers = [(bad, up_to_the_first_window(bad.words)) for bad in draw_lines(kind, SEED, 20)]
    faults = {bad.line: (judge(bad, ended), ended.err) for bad, ended in answers if judge(bad, ended)}
    assert len(answers) >= 3
    assert faults == {}


def test_a_command_line_of_habit_has_the_meant_one_as_remedy(up_to_the_first_window: Run) -> None:
    answers = [(bad, up_to_the_first_window(bad.words)) for bad in habits()]
    assert {bad.line: (judge(bad, ended), ended.err) for bad, ended in answers if judge(bad, ended)} == {}


@pytest.mark.parametrize("width", [40, 80])
def test_a_proposed_command_is_not_broken_inside_its_sentence(up_to_the_first_window: Run, width: int) -> None:
    """It has one line, or lines of its own that can be pasted together."""
    lines = [bad for kind in ("misspelled_option", "of_another_command") for bad in draw_lines(kind, SEED, 20)]
    hints = [up_to_the_first_window(bad.words).err.splitlines()[-1] for bad in (*lines, *habits())]
    commands = [(hint, hint[start:end]) for hint in hints for start, end in find_commands(hint)]
    assert len(commands) > 60
    for hint, command in commands:
        shown = wrap(hint, width)
        if len(command) < width - 1:
            assert any(command in line for line in shown), hint
            continue
        pasted = "\n".join(shown).replace(" \\\n", " ").splitlines()
        assert any(line.startswith(command) for line in pasted), hint
