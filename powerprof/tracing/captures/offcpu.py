# SPDX-License-Identifier: Apache-2.0
"""What a window of sleeps and wakings is, between its collection and its analysis."""

from __future__ import annotations

import msgspec


class ThreadSums(msgspec.Struct, frozen=True, kw_only=True):
    """One thread's sleeps by the kernel's state (name → count, ns), its waits once woken and when it was preempted."""

    pid: int
    tid: int
    comm: str
    states: dict[str, tuple[int, int]]
    sleep_max_ns: int
    waits_count: int
    wait_ns: int
    wait_max_ns: int
    preempted_count: int
    preempted_ns: int


class WakingSum(msgspec.Struct, frozen=True, kw_only=True):
    """How often a thread's sleep was ended by another one; `waker_tid` 0 is an interrupt."""

    tid: int
    waker_pid: int
    waker_tid: int
    waker_comm: str
    count: int


class OffCpuTrace(msgspec.Struct, frozen=True, kw_only=True):
    """What was summed in a window. `lost_count`: threads and wakers for which there was no room.

    `unseen_count`: switches to threads for which the kernel did not call the program; how long these had waited for a
    CPU is in no sum.
    """

    pids: list[int]
    window_s: float
    threads: list[ThreadSums]
    wakings: list[WakingSum]
    lost_count: int
    unseen_count: int
    notes: list[str]
    tool_cpu_s: float
    bpf_s: float | None
    interrupted: bool
