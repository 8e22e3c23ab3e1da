# SPDX-License-Identifier: Apache-2.0
"""Wakings of a runtime's own scheduler are never given to a function of the program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs import ground_truth
from tests.root.attribution.conftest import Attributed

_SCHEDULER = {"runtime.findRunnable", "runtime.findrunnable", "runtime.stopm", "runtime.sysmon"}


@pytest.mark.parametrize("program", ["goroutines", "goroutines-stripped"])
def test_idle_go_thread_belongs_to_the_scheduler(
    attribute: Callable[..., Attributed], built: Callable[[str], Path], program: str
) -> None:
    with ground_truth.running(built(program)) as truth:
        found = attribute(truth["pid"], duration=3)
    rows = [row for row in found.rows if row["wakings_count"]]
    scheduler = [row for row in rows if _SCHEDULER & {frame["function"] for frame in row["stack"]}]
    in_all, at_scheduler = (sum(row["wakings_count"] for row in some) for some in (rows, scheduler))
    # The timer wakes a thread each period, which may wake others.
    rate = truth["rate_hz"]
    assert isinstance(rate, float | int)
    assert at_scheduler >= 0.95 * rate * found.record["wakings_window_s"]
    # What the runtime waits for beside it: locks, a collection.
    assert at_scheduler >= 0.9 * in_all
    named = {frame["function"] for row in rows for frame in row["stack"]}
    assert None not in named
    assert not {name for name in named if name and name.startswith("main.")} - {"main.main"}
    hints = [note for note in found.record["notes"] if note.startswith("Go: ")]
    assert len(hints) == 1
    assert "no goroutine ran" in hints[0]
