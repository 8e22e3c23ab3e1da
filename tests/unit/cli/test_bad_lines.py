# SPDX-License-Identifier: Apache-2.0
"""Wrong command lines: each is named in one line, with a remedy that works and keeps the other options."""

from __future__ import annotations

import pytest

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
