# SPDX-License-Identifier: Apache-2.0
"""Tests for reports of sleeping threads: records of wakers or sleeps alone, saved by older versions."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from powerprof.report.kinds import KIND_LOADERS

_COMMON = {"pid": 5, "window_s": 2.0, "lost_count": 0, "notes": [], "limits": ["of one process"], "tool_cpu_s": 0.5}
_WAKER = {"tid": 7, "thread": "worker", "waker_pid": 0, "waker_tid": 0, "waker_comm": "swapper", "stack": []}
_SLEEPER = {"tid": 7, "thread": "worker", "sleeps_count": 4, "sleeps_hz": 2.0}
_WAKERS = {
    "schema": "powerprof.wakers/1",
    "wakings_count": 4,
    "wakers": [{**_WAKER, "count": 4, "rate_hz": 2.0, "percent": 100.0}],
}
_SLEEPS = {
    "schema": "powerprof.sleeps/1",
    "sleeps_count": 4,
    "threads": [
        {
            **_SLEEPER,
            "sleep_mean_ms": 1.5,
            "sleep_max_ms": 3.0,
            "waits_count": 0,
            "wait_mean_ms": None,
            "wait_max_ms": None,
        }
    ],
}


@pytest.mark.parametrize(
    ("saved", "present", "absent"),
    [
        (
            _WAKERS,
            ("Woken 4 times in 2.0 s.", "worker 7 ← an interrupt (a timer or a device)", ": 500 ms of CPU time."),
            ("slept", "sleeps/s"),
        ),
        (_SLEEPS, ("the target slept 4 times in 2.0 s.", "1.500", "worker 7"), ("Woken", "wakings/s")),
    ],
    ids=["wakers", "sleeps"],
)
def test_older_record_shows_only_its_half(
    saved: dict[str, Any], present: tuple[str, ...], absent: tuple[str, ...]
) -> None:
    kind = KIND_LOADERS[saved["schema"]]()
    shown = "\n".join(kind.lines(msgspec.convert({**_COMMON, **saved}, kind.record), 100))
    assert all(part in shown for part in present)
    assert not any(part in shown for part in absent)
