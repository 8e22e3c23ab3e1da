# SPDX-License-Identifier: Apache-2.0
"""Records of wakers and of sleeps alone, which versions before `offcpu` saved, are shown as one of `offcpu` is."""

from __future__ import annotations

from typing import Any

import msgspec

from powerprof.report.kinds import KIND_LOADERS

_COMMON = {"pid": 5, "window_s": 2.0, "lost_count": 0, "notes": [], "limits": ["of one process"], "tool_cpu_s": 0.5}


def _shown(record: dict[str, Any]) -> str:
    kind = KIND_LOADERS[record["schema"]]()
    saved = msgspec.convert({**_COMMON, **record}, kind.record)
    return "\n".join(kind.lines(saved, 100))


def test_wakers_alone_say_who_wakes_and_nothing_of_sleeps() -> None:
    row = {"tid": 7, "thread": "worker", "waker_pid": 0, "waker_tid": 0, "waker_comm": "swapper", "stack": []}
    row |= {"count": 4, "rate_hz": 2.0, "percent": 100.0}
    shown = _shown({"schema": "powerprof.wakers/1", "wakings_count": 4, "wakers": [row]})
    assert "Woken 4 times in 2.0 s." in shown
    assert "worker 7 ← an interrupt (a timer or a device)" in shown
    assert "powerprof itself: 500 ms of CPU time." in shown
    assert "slept" not in shown and "sleeps/s" not in shown


def test_sleeps_alone_say_how_long_and_nothing_of_wakers() -> None:
    row = {"tid": 7, "thread": "worker", "sleeps_count": 4, "sleeps_hz": 2.0, "sleep_mean_ms": 1.5, "sleep_max_ms": 3.0}
    row |= {"waits_count": 0, "wait_mean_ms": None, "wait_max_ms": None}
    shown = _shown({"schema": "powerprof.sleeps/1", "sleeps_count": 4, "threads": [row]})
    assert "the target slept 4 times in 2.0 s." in shown
    assert "1.500" in shown and "worker 7" in shown
    assert "Woken" not in shown and "wakings/s" not in shown
