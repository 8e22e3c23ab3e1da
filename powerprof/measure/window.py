# SPDX-License-Identifier: Apache-2.0
"""The one way in which a window passes: edges, waiting, interruption, suspend, privileges, and what it cost us.

What observes it is passed in as parts (meters, residency, tracers, DTrace). Parts are opened, privileges are given up,
parts begin in order; then we sleep in the kernel until the deadline, and wake only where a part has to be read; parts
end in reverse order. Whoever passed a part in collects what it saw: each has a type of its own.
"""

from __future__ import annotations

import math
import os
import resource
import select
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from powerprof.measure.clock import Meters, SuspendClock, note_suspend
from powerprof.model.records import EnergyReading
from powerprof.system import caller, signals
from powerprof.system.errors import Interrupted, PowerprofError
from powerprof.system.files import try_text, whole

# poll() counts milliseconds in 31 bits.
_ASLEEP_AT_MOST_S = 1e6


class WindowPart:
    """What observes a window. A subclass implements what it needs; the rest does nothing."""

    @property
    def wake_descriptor(self) -> int | None:
        """A descriptor that is readable when something fills and has to be `read`."""
        return None

    @property
    def read_interval_s(self) -> float:
        """How long it can go without `read`, also where nothing calls."""
        return math.inf

    def open(self) -> None:
        """Take what needs a privilege. What it costs is in no window."""

    def begin(self) -> None:
        """The window begins."""

    def read(self) -> None:
        """Within the window: take what would be lost otherwise."""

    def end(self) -> None:
        """The window ends. What takes long and may come later belongs where the part is collected."""


@dataclass(frozen=True)
class PassedWindow:
    """A window that is over. `window_s`: from the last part's beginning to the first one's end.

    `tool_cpu_s`: our own CPU time, edges included; `tool_wakeups_count`: how often we gave the CPU up between them.
    `notes`: what is to be known of every figure of the window. `interrupted`: the signal that ended it early.
    """

    window_s: float
    tool_cpu_s: float
    tool_wakeups_count: int
    notes: list[str]
    interrupted: Interrupted | None = None


class OpenWindow:
    """A window that is open, from here to `end`; for work that is a window itself. Else see `pass_window`."""

    def __init__(self, *parts: WindowPart, settle: bool = False, source: str = "") -> None:
        """Open and begin. `settle`: give up what root may do in between, for the rest of this process, as far as the
        meters (`source`: --energy-source) can do without."""
        self._parts = parts
        for part in parts:
            part.open()
        if settle:
            caller.settle(True, source)
        self._suspended, self._cpu_s = SuspendClock(), time.process_time()
        for part in parts:
            part.begin()
        # After the edges: moving from CPU to CPU there is no wake-up of the window.
        self._switches, self._start_s = _switches(), time.monotonic()
        self._due_s = [self._start_s + part.read_interval_s for part in parts]

    def wait(self, duration_s: float, until: int | None = None) -> None:
        """As `wait_and_read`; what is due is so over all waits of the window, however short each is."""
        wait_and_read(self._parts, duration_s, until, self._due_s)

    def end(self, interrupted: Interrupted | None = None) -> PassedWindow:
        """Close. Raises PowerprofError where a part cannot, or the interrupt that ended the window."""
        window_s, switches = time.monotonic() - self._start_s, _switches()
        try:
            for part in reversed(self._parts):
                part.end()
        except PowerprofError as error:
            raise interrupted or error from error
        cpu_s = time.process_time() - self._cpu_s
        notes = note_suspend(self._suspended.since_s())
        return PassedWindow(window_s, cpu_s, switches - self._switches, notes, interrupted)


def run_window(
    length_s: float,
    *parts: WindowPart,
    until: int | None = None,
    settle: bool = False,
    source: str = "",
    hold: bool = False,
) -> PassedWindow:
    """Run one window. An interrupt ends it early.

    `hold`: signals wait from the window's end on, until what it gave is saved (`signals.release`).
    """
    running, interrupted = OpenWindow(*parts, settle=settle, source=source), None
    try:
        running.wait(length_s, until)
        if hold:
            signals.hold()
    except Interrupted as error:
        interrupted = error
    return running.end(interrupted)


def wait_and_read(
    parts: Sequence[WindowPart], duration_s: float, until: int | None = None, due_s: list[float] | None = None
) -> None:
    """Sleep for so long, or until the descriptor `until` is readable; parts are read when they call or are due.

    No signal is late, wherever the kernel delivers it (`signals.wakeup_descriptor`).
    """
    now_s = time.monotonic()
    deadline_s = now_s + duration_s
    due_s = [now_s + part.read_interval_s for part in parts] if due_s is None else due_s
    descriptor, poll = signals.wakeup_descriptor(), select.poll()
    for each in (until, descriptor, *(part.wake_descriptor for part in parts)):
        if each is not None:
            poll.register(each, select.POLLIN)
    while now_s < deadline_s:
        left_s = max(0.0, min(deadline_s, *due_s, now_s + _ASLEEP_AT_MOST_S) - now_s)
        ready = {each for each, _ in poll.poll(math.ceil(1e3 * left_s))}
        if descriptor is not None and descriptor in ready:
            os.read(descriptor, 64)
        if until in ready:
            return
        now_s = time.monotonic()
        for number, part in enumerate(parts):
            if part.wake_descriptor in ready or due_s[number] <= now_s < deadline_s:
                part.read()
                due_s[number] = time.monotonic() + part.read_interval_s
        now_s = time.monotonic()


class EnergySampler(WindowPart):
    """Energy meters: sampled at both edges, and in between before their counters wrap. Without any it does nothing."""

    def __init__(self, meters: Meters | None) -> None:
        self._meters = meters
        self._start_s = self._end_s = 0.0

    @property
    def read_interval_s(self) -> float:
        return (self._meters and self._meters.max_interval_s) or math.inf

    def begin(self) -> None:
        self.read()
        self._start_s = time.monotonic()

    def read(self) -> None:
        if self._meters is not None:
            self._meters.sample()

    def end(self) -> None:
        self._end_s = time.monotonic()
        self.read()

    def collect(self) -> tuple[list[EnergyReading], list[str]]:
        """The readings of the window, and what is to be known of them."""
        meters = self._meters
        return ([], []) if meters is None else (meters.readings(self._start_s, self._end_s), meters.notes())


def _switches() -> int:
    """How often this process gave the CPU up: each time a wake-up follows."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


# Being run when a wait is over, on a host whose scheduler promises shares of time and no moments.


@contextmanager
def realtime_scheduling() -> Iterator[None]:
    """While it lasts, the kernel runs this thread as soon as it wakes (SCHED_RR, at the lowest of its priorities).

    Where sessions or cgroups are scheduled as groups, Linux 6.18 left a thread that woke beside a busy server and its
    client waiting for up to ten seconds: clients ended before the windows that they were to fill. It is for threads
    that sleep and do little. Those that they start, and other programs, are scheduled as before. Without CAP_SYS_NICE,
    and for who has chosen a policy for us (chrt), nothing changes.
    """
    priority = os.sched_param(os.sched_get_priority_min(os.SCHED_RR))
    changed = False
    if os.sched_getscheduler(0) == os.SCHED_OTHER:
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, priority)
            changed = True
    try:
        yield
    finally:
        if changed:
            _as_before()


def _as_before() -> None:
    for policy in (os.SCHED_OTHER, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK):
        # The second is for who has given up privileges meanwhile: only root may take the flag back.
        with suppress(OSError):
            os.sched_setscheduler(0, policy, os.sched_param(0))
            return


# The CPU time that a control group used in a window, by the kernel's own count of it.
#
# Processes are moved into a group as well as started in it (`docker exec`, a container's health check), and one that
# ends before anybody has looked is in no figure. The group's own clock knows of all that ran.


def read_group_cpu_ns(folder: Path) -> int | None:
    """Since the group was made, with the groups below it; None where the kernel does not count it there."""
    used_us = whole((try_text(folder / "cpu.stat") or "").partition("usage_usec ")[2].partition("\n")[0])
    if used_us is not None:
        return 1000 * used_us
    return whole((try_text(folder / "cpuacct.usage") or "").strip())


class GroupCpuClock(WindowPart):
    """Without a group it does nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._before_ns: int | None = None
        self.used_ns: int | None = None

    def begin(self) -> None:
        self._before_ns = read_group_cpu_ns(self._folder) if self._folder is not None else None

    def end(self) -> None:
        after_ns = read_group_cpu_ns(self._folder) if self._folder is not None else None
        if after_ns is not None and self._before_ns is not None:
            self.used_ns = after_ns - self._before_ns
