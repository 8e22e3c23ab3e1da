# SPDX-License-Identifier: Apache-2.0
"""The rows of an attribution as evidence."""

from __future__ import annotations

import pytest

from powerprof.diagnosis.thread_wakeups import compute_timers_hz, list_thread_wakeups
from powerprof.model.attribution import Waker
from tests.unit.live.records import attribution, cause, wakeup, waking


def test_timers_of_all_programs_are_counted_for_one_cpu() -> None:
    record = attribution(
        window_s=4.0,
        cpus=3,
        wakeups=[wakeup(30), wakeup(6, mechanism="tick"), wakeup(500, mechanism="device")],
        other_causes=[cause(50, mechanism="timer"), cause(10, mechanism="tick"), cause(700, mechanism="ipi")],
    )
    assert compute_timers_hz(record) == pytest.approx((30 + 6 + 50 + 10) / 4.0 / 3)
    assert compute_timers_hz(attribution(window_s=0.0, cpus=3)) is None
    assert compute_timers_hz(attribution(window_s=4.0, cpus=0)) is None


def test_rows_have_their_wakings_by_the_traced_window() -> None:
    waker = Waker(pid=5, comm="cron", server_name=None)
    named = Waker(pid=5, comm="mariadbd", server_name="thread/sql/manager")
    many = [f"f{number}" for number in range(30)]
    record = attribution(
        window_s=4.0,
        wakeups=[wakeup(30, *many, waker=waker), wakeup(2, wakings_count=None)],
        wakings_without_exit=[waking(waker=named)],
    )
    first, second, third = list_thread_wakeups(record)
    assert (first.rate_hz, first.wakings_hz, first.period_ms, first.waker) == (7.5, 22.5, 12.5, "cron")
    assert (first.tid, first.comm, first.name) == (71, "ib_pg", "thread/innodb/page_cleaner")
    assert [len(first.stack), first.stack[0], first.stack[-1]] == [24, "f0", "f23"]
    assert (second.rate_hz, second.wakings_hz, second.waker) == (0.5, None, None)
    assert (third.rate_hz, third.wakings_hz, third.period_ms, third.origin) == (0.0, 5.5, None, "other_thread")
    assert (third.tid, third.name, third.waker) == (72, None, "thread/sql/manager")
