# SPDX-License-Identifier: Apache-2.0
"""Who wakes threads; and the two kinds of records that `offcpu` has replaced: saved ones are still read."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from powerprof.records import Notes
from powerprof.tracing.dtrace.output import DtraceFrame


class WakerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One thread that wakes another from one call path (`stack`: the waker's, innermost first).

    `thread` and `tid` are the woken one's, `waker_pid` 0 is the idle task.
    """

    tid: int
    thread: str | None
    waker_pid: int
    waker_tid: int
    waker_comm: str
    count: int
    rate_hz: float
    percent: float
    stack: list[DtraceFrame]


class SleepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One thread's sleeps, and its waits for a CPU once woken; None where there were none."""

    tid: int
    thread: str | None
    sleeps_count: int
    sleeps_hz: float
    sleep_mean_ms: float | None
    sleep_max_ms: float | None
    waits_count: int
    wait_mean_ms: float | None
    wait_max_ms: float | None


class SleepersWindow(msgspec.Struct, frozen=True, kw_only=True):
    """What records of sleeps and wakings have in common."""

    window_s: float
    lost_count: int
    notes: Notes
    limits: list[str]
    tool_cpu_s: float | None = None
    method: str = "dtrace"
    interrupted: bool = False
    id: str | None = None
    command: str = "attribute"
    started_at: str | None = None
    label: str | None = None
    host: dict[str, Any] = {}


class WakersProfile(SleepersWindow, frozen=True, kw_only=True):
    """`attribute --wakers` of versions before `offcpu`: rows by how often."""

    pid: int
    wakings_count: int
    wakers: list[WakerRow]
    schema: Literal["powerprof.wakers/1"] = "powerprof.wakers/1"


class SleepsProfile(SleepersWindow, frozen=True, kw_only=True):
    """`attribute --sleeps` of versions before `offcpu`: rows by number of sleeps."""

    pid: int
    sleeps_count: int
    threads: list[SleepRow]
    schema: Literal["powerprof.sleeps/1"] = "powerprof.sleeps/1"
