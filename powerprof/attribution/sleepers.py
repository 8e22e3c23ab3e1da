# SPDX-License-Identifier: Apache-2.0
"""Who wakes a process's threads, and how long they sleep: what DTrace counted, as records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from powerprof.tracing.dtrace.output import DtraceFrame, SleepsTrace, WakersTrace

_WAKERS_LIMITS = (
    "a waking by an interrupt shows the thread that was interrupted: the idle task is 'swapper'",
    "stacks are of wakings by the process itself, by frame pointers: cut where a library has none",
)
_SLEEPS_LIMITS = ("sleeps and waits that began before the window are not counted",)


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


class WakersProfile(msgspec.Struct, frozen=True, kw_only=True):
    """`attribute --wakers`: rows by how often."""

    pid: int
    window_s: float
    wakings_count: int
    wakers: list[WakerRow]
    lost_count: int
    notes: list[str]
    limits: list[str]
    method: str = "dtrace"
    interrupted: bool = False
    id: str | None = None
    command: str = "attribute"
    started_at: str | None = None
    label: str | None = None
    host: dict[str, Any] = {}
    schema: Literal["powerprof.wakers/1"] = "powerprof.wakers/1"


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


class SleepsProfile(msgspec.Struct, frozen=True, kw_only=True):
    """`attribute --sleeps`: rows by number of sleeps."""

    pid: int
    window_s: float
    sleeps_count: int
    threads: list[SleepRow]
    lost_count: int
    notes: list[str]
    limits: list[str]
    method: str = "dtrace"
    interrupted: bool = False
    id: str | None = None
    command: str = "attribute"
    started_at: str | None = None
    label: str | None = None
    host: dict[str, Any] = {}
    schema: Literal["powerprof.sleeps/1"] = "powerprof.sleeps/1"


def wakers_profile(trace: WakersTrace, names: Mapping[int, str]) -> WakersProfile:
    """The report of one window; `names` are of threads by id."""
    total = sum(wakeup.count for wakeup in trace.wakeups)
    return WakersProfile(
        pid=trace.pid,
        window_s=trace.window_s,
        wakings_count=total,
        wakers=[
            WakerRow(
                tid=wakeup.sleeper_tid,
                thread=names.get(wakeup.sleeper_tid),
                waker_pid=wakeup.waker_pid,
                waker_tid=wakeup.waker_tid,
                waker_comm=wakeup.waker_comm,
                count=wakeup.count,
                rate_hz=wakeup.count / trace.window_s,
                percent=100.0 * wakeup.count / total,
                stack=wakeup.stack,
            )
            for wakeup in trace.wakeups
        ],
        lost_count=trace.lost_count,
        notes=trace.notes,
        limits=list(_WAKERS_LIMITS),
        interrupted=trace.interrupted,
    )


def sleeps_profile(trace: SleepsTrace, names: Mapping[int, str]) -> SleepsProfile:
    """The report of one window; `names` are of threads by id."""
    return SleepsProfile(
        pid=trace.pid,
        window_s=trace.window_s,
        sleeps_count=sum(thread.sleeps_count for thread in trace.threads),
        threads=[
            SleepRow(
                tid=thread.tid,
                thread=names.get(thread.tid),
                sleeps_count=thread.sleeps_count,
                sleeps_hz=thread.sleeps_count / trace.window_s,
                sleep_mean_ms=thread.sleep_mean_ms,
                sleep_max_ms=thread.sleep_max_ms,
                waits_count=thread.waits_count,
                wait_mean_ms=thread.wait_mean_ms,
                wait_max_ms=thread.wait_max_ms,
            )
            for thread in trace.threads
        ],
        lost_count=trace.lost_count,
        notes=trace.notes,
        limits=list(_SLEEPS_LIMITS),
        interrupted=trace.interrupted,
    )
