# SPDX-License-Identifier: Apache-2.0
"""Timer slack of threads."""

from __future__ import annotations

import pytest

from powerprof.reversible.timer_slack import TimerSlack, read_start_ticks
from tests.conftest import Tree
from tests.unit.reversible.conftest import thread_files


def test_slack_is_that_of_the_same_thread(fake_tree: Tree) -> None:
    host = fake_tree({**thread_files(77), **thread_files(78, 4243)})
    setting, other = TimerSlack(77, 4242, "60000"), TimerSlack(78, 4242, "60000")
    assert setting.read() == "50000"
    assert setting.write("60000") == "60000"
    assert (host / "proc/77/timerslack_ns").read_text() == "60000"
    assert other.read() is None and other.write("60000") is None
    assert (host / "proc/78/timerslack_ns").read_text() == "50000"
    assert TimerSlack(79, 4242, "1").write("1") is None
    assert setting.by_hand("7") == "echo 7 > /proc/77/timerslack_ns"


@pytest.mark.parametrize(("flags", "ticks"), [(0, 4242), (0x40, 4242), (0x400000, 4242), (0x4, None), (0x404, None)])
def test_an_exiting_thread_has_ended(fake_tree: Tree, flags: int, ticks: int | None) -> None:
    fake_tree(thread_files(77, flags=flags))
    assert read_start_ticks(77) == ticks
    assert read_start_ticks(78) is None
