# SPDX-License-Identifier: Apache-2.0
"""Who is blamed is who ran then: not who has the number now, and not the kernel because of a name."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from powerprof.attribution import causes
from powerprof.measure.window import OpenWindow
from powerprof.model.records import Cause
from powerprof.system.tasks import look_up
from powerprof.tracing.idle import IdleTracer, WindowTracer, trace_exits

pytestmark = pytest.mark.alone  # judges the idleness or the speed of this host

_LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
_SLEEPS, _SLEEP_S, _WINDOWS = 40, 0.004, 20


def sleeps_as(name: str, number: int | None = None) -> int:
    """A process of this name that sleeps and ends; `number`: the one that it is to have. Returns its number."""
    for _ in range(200):
        if number is not None:
            _LAST_PID.write_text(str(number - 1))
        pid = os.fork()
        if not pid:
            if number is None or os.getpid() == number:
                Path("/proc/self/comm").write_text(name)
                for _ in range(_SLEEPS):
                    time.sleep(_SLEEP_S)
            os._exit(0)
        os.waitpid(pid, 0)
        if number in (None, pid):
            return pid
    pytest.fail(f"others took the number {number} each time")


def traced(tracer: IdleTracer, *names: str, again: bool) -> tuple[list[int], list[Cause]]:
    """Processes of these names, one after the other; with `again` they have one number."""
    with WindowTracer(tracer) as opened:
        running = OpenWindow(*opened.parts)
        pids: list[int] = []
        for name in names:
            pids.append(sleeps_as(name, pids[0] if again and pids else None))
        window = opened.collect(running.end())
    found = window.trace.causes
    rows = causes.group_causes(
        found,
        causes.classify_exits(found, window.state_names),
        window.window_s,
        look_up,
        functions=window.trace.addresses,
        interrupts={},
        own_pids=(os.getpid(),),
    )
    return pids, rows


def count_of(rows: list[Cause], name: str) -> int:
    return sum(row.count for row in rows if row.thread == name and row.process == name)


def test_two_processes_with_one_number_are_two(root_bpf: None) -> None:
    names = ("first-life", "second-life")
    with trace_exits() as tracer:
        for _ in range(_WINDOWS):
            pids, rows = traced(tracer, *names, again=True)
            assert len(set(pids)) == 1
            # On a busy host not each waking ends an idle period.
            assert all(count_of(rows, name) <= _SLEEPS + 2 for name in names)
            if all(count_of(rows, name) for name in names):
                return
    pytest.fail("other programs left them no idle CPU")


def test_a_program_with_a_kernel_thread_s_name_is_no_kernel_thread(root_bpf: None) -> None:
    with trace_exits() as tracer:
        for _ in range(_WINDOWS):
            _, rows = traced(tracer, "kworker/9:9-x", again=False)
            if mine := {row.process for row in rows if row.thread == "kworker/9:9-x"}:
                assert mine == {"kworker/9:9-x"}
                return
    pytest.fail("other programs left it no idle CPU")
