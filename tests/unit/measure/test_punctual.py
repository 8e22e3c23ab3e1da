# SPDX-License-Identifier: Apache-2.0
"""The thread that waits for a window's end is run when it wakes; everybody else is scheduled as before."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from powerprof.measure.window import realtime_scheduling

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to real-time scheduling")
TELL = "import os; print(os.sched_getscheduler(0))"


def policies() -> list[int]:
    """Of this thread, of a thread that it starts, and of a program that it starts."""
    found = [os.sched_getscheduler(0)]
    thread = threading.Thread(target=lambda: found.append(os.sched_getscheduler(0)))
    thread.start()
    thread.join()
    return [*found, int(subprocess.run([sys.executable, "-c", TELL], capture_output=True, check=True).stdout)]


@ROOT
def test_only_the_thread_that_waits_is_run_at_once_and_only_meanwhile() -> None:
    before = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
    with realtime_scheduling():
        assert policies() == [os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.SCHED_OTHER, os.SCHED_OTHER]
        with realtime_scheduling():
            pass
        assert policies()[0] == os.SCHED_RR | os.SCHED_RESET_ON_FORK
    assert policies() == [os.SCHED_OTHER] * 3
    assert (os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)) == before


def test_it_ends_with_an_error_too() -> None:
    with pytest.raises(ZeroDivisionError), realtime_scheduling():
        _ = 1 / 0
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_policy_that_was_chosen_stays() -> None:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        with realtime_scheduling():
            assert os.sched_getscheduler(0) == os.SCHED_BATCH
        assert os.sched_getscheduler(0) == os.SCHED_BATCH
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def test_without_the_right_to_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with realtime_scheduling():
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


_GIVEN_UP = """
import os
from powerprof.measure.window import realtime_scheduling
with realtime_scheduling():
    inside = os.sched_getscheduler(0)
    os.setresuid(65534, 65534, 65534)
print(inside & ~os.SCHED_RESET_ON_FORK, os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK)
"""


@ROOT
def test_it_ends_for_who_has_given_up_root_meanwhile() -> None:
    done = subprocess.run([sys.executable, "-c", _GIVEN_UP], capture_output=True, check=True, encoding="utf-8")
    assert done.stdout.split() == [str(os.SCHED_RR), str(os.SCHED_OTHER)]
