# SPDX-License-Identifier: Apache-2.0
"""Tests for folded stacks."""

from __future__ import annotations

import pytest

from powerprof.report.stacks import fold_stacks
from tests.unit.report.sample_records import HOSTILE

HRTIMER_WAKEUP, TICK_FUNCTION = 0xFFFFFFFF81000100, 0xFFFFFFFF81000200


def test_folded_adds_equal_stacks_and_drops_empty_ones() -> None:
    assert fold_stacks([(("a", "b"), 1), (("a", "b"), 2.5), (("c",), 0)]) == "a;b 3.5\n"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_name_is_one_frame_on_one_line(name: str) -> None:
    text = fold_stacks([(("main", name, "leaf"), 7)])
    assert len(text.splitlines()) == 1
    stack, _, weight = text.rstrip("\n").rpartition(" ")
    assert weight == "7"
    first, middle, last = stack.split(";")
    assert (first, last) == ("main", "leaf")
    assert middle.replace("%3B", ";").replace("%0A", "\n").replace("%0D", "\r").replace("%00", "\x00").replace(
        "%09", "\t"
    ) == name.replace("%3B", ";")
