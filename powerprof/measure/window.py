# SPDX-License-Identifier: Apache-2.0
"""Run measurement windows: edges, waiting, interrupts, suspend, privileges and powerprof's own cost.

Observers are passed in as parts (meters, residency, tracers, DTrace). A window opens its parts, gives up privileges,
prepares the parts and begins them in order. Then it sleeps in the kernel until the deadline and wakes only to read a
part. Parts end in reverse order. Each part has its own type of result, so its owner collects the result.
"""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import msgspec

from powerprof.measure.clock import SuspendClock, note_suspend
from powerprof.model.records import Ended, EnergyReading, ended_by_signal
from powerprof.system import capabilities, signals
from powerprof.system.errors import Interrupted, PowerprofError
from powerprof.system.files import try_text
from powerprof.system.foreign_text import whole
from powerprof.system.own_processes import read_own_cost


class Meters(Protocol):
    """Energy meters. Sample them at both edges of a window, and within it at least every `max_interval_s`.

    With None the time between samples does not matter. With longer intervals the counters may wrap unseen.
    """

    @property
    def max_interval_s(self) -> float | None: ...

    def sample(self) -> None: ...

    def readings(self, start_s: float, end_s: float) -> list[EnergyReading]: ...

    @property
    def notes(self) -> list[str]:
        """The notes on the last `readings`."""
        ...


# poll() counts milliseconds in 31 bits.
_MAX_SLEEP_S = 1e6


class WindowPart:
    """An observer of a window. Every method does nothing until a subclass implements it."""

    @property
    def wake_descriptor(self) -> int | None:
        """A descriptor that becomes readable when the part has to be read."""
        return None

    @property
    def read_interval_s(self) -> float:
        """The longest time without `read`, in seconds. It applies even if no descriptor wakes the window."""
        return math.inf

    @property
    def is_over(self) -> bool:
        """Whether the window has nothing left to measure and ends early."""
        return False

    @property
    def early_end(self) -> Ended | None:
        """The reason why the part was over. It is read after the window."""
        return None

    def open(self) -> None:
        """Acquire everything that needs a privilege. Its cost is in no window."""

    def prepare(self) -> None:
        """Drop the data of earlier windows. All parts are prepared before the first one begins."""

    def begin(self) -> None:
        """Read the first edge of the window."""

    def read(self) -> None:
        """Save data during the window that would be lost otherwise."""

    def end(self) -> None:
        """Read the last edge of the window. Slow work belongs in the owner's `collect`."""


class PassedWindow(msgspec.Struct, frozen=True):
    """The result of a window.

    `window_s`: from the beginning of the last part to the end of the first one. `tool_cpu_s`: CPU time of powerprof and
    its helpers, edges included. `tool_wakeups_count`: their wake-ups between the edges. `notes` apply to every figure
    of the window. `interrupted`: the signal that ended it early. `ended`: its early end by a signal or by its target.
    """

    window_s: float
    tool_cpu_s: float
    tool_wakeups_count: int
    notes: list[str]
    interrupted: Interrupted | None = None
    ended: Ended | None = None


class OpenWindow:
    """A window that stays open until `end`, for callers whose own work fills it. See also `run_window`."""

    def __init__(self, *parts: WindowPart, settle: bool = False) -> None:
        """Open and begin the parts.

        `settle`: give up root's privileges in between, for the rest of this process.
        """
        self._parts = parts
        for part in parts:
            part.open()
        if settle:
            capabilities.drop_privileges()
        self._suspended, self._cost = SuspendClock(), read_own_cost()
        for part in parts:
            part.prepare()
        for part in parts:
            part.begin()
        # After the edges: moving from CPU to CPU there is not a wake-up of the window.
        self._edge_cost, self._start_s = read_own_cost(), time.monotonic()
        self._due_s = [self._start_s + part.read_interval_s for part in parts]

    def wait(self, duration_s: float, until: int | None = None) -> None:
        """Wait as `wait_and_read` does. The read intervals continue over short waits."""
        wait_and_read(self._parts, duration_s, until, self._due_s)

    def end(self, interrupted: Interrupted | None = None) -> PassedWindow:
        """End the parts. Raises PowerprofError if a part fails, or `interrupted` instead if it is set."""
        window_s, edge_cost = time.monotonic() - self._start_s, read_own_cost()
        try:
            for part in reversed(self._parts):
                part.end()
        except PowerprofError as error:
            raise interrupted or error from error
        cpu_s, _ = read_own_cost().since(self._cost)
        _, switches = edge_cost.since(self._edge_cost)
        notes = note_suspend(self._suspended.since_s())
        # After a signal to powerprof the target's end is no reason: the signal may have ended it too.
        ends = [] if interrupted else [end for part in self._parts if (end := part.early_end) is not None]
        ended = ends[0] if ends else ended_by_signal(interrupted is not None)
        return PassedWindow(window_s, cpu_s, switches, notes, interrupted, ended)


def run_window(
    length_s: float, *parts: WindowPart, until: int | None = None, settle: bool = False, hold: bool = False
) -> PassedWindow:
    """Run one window of at most `length_s`. An interrupt or the end of its target ends it early.

    `until` is explained at `wait_and_read`, `settle` at `OpenWindow`. `hold`: delay signals from the end
    of the window until its result is saved (`signals.release`).
    """
    running, interrupted = OpenWindow(*parts, settle=settle), None
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
    """Sleep until the time has passed or the descriptor `until` is readable, and read the parts that need it.

    `due_s`: the next reading time of each part (monotonic clock), updated in place. Signals wake the poll at once,
    whichever thread the kernel delivers them to (`signals.wakeup_descriptor`).
    """
    now_s = time.monotonic()
    deadline_s = now_s + duration_s
    due_s = [now_s + part.read_interval_s for part in parts] if due_s is None else due_s
    signal_fd, poll = signals.wakeup_descriptor(), select.poll()
    for descriptor in (until, signal_fd, *(part.wake_descriptor for part in parts)):
        if descriptor is not None:
            poll.register(descriptor, select.POLLIN)
    while now_s < deadline_s:
        left_s = max(0.0, min(deadline_s, *due_s, now_s + _MAX_SLEEP_S) - now_s)
        ready = {descriptor for descriptor, _ in poll.poll(math.ceil(1e3 * left_s))}
        if signal_fd is not None and signal_fd in ready:
            os.read(signal_fd, 64)
        if until in ready:
            return
        now_s = time.monotonic()
        for number, part in enumerate(parts):
            if part.wake_descriptor in ready or due_s[number] <= now_s < deadline_s:
                part.read()
                due_s[number] = time.monotonic() + part.read_interval_s
        if any(part.is_over for part in parts):
            return
        now_s = time.monotonic()


class EnergySampler(WindowPart):
    """Energy meters, sampled at both edges and before their counters wrap. Without meters it does nothing."""

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
        """Return the readings of the window and notes about them."""
        meters = self._meters
        return ([], []) if meters is None else (meters.readings(self._start_s, self._end_s), meters.notes)


@contextmanager
def realtime_scheduling() -> Iterator[None]:
    """Run this thread as soon as it wakes (SCHED_RR at the lowest priority) while the context is open.

    Linux 6.18 with group scheduling left a woken thread waiting for up to ten seconds next to a busy server, so clients
    ended before the windows that they were to fill. Use it for threads that sleep most of the time. Child processes
    and threads keep normal scheduling. Without CAP_SYS_NICE, or if the user has chosen a policy (chrt), this does
    nothing.
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
            _restore_scheduling()


def _restore_scheduling() -> None:
    """Return to SCHED_OTHER."""
    for policy in (os.SCHED_OTHER, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK):
        # Only root may clear the flag, so a process that has dropped its privileges keeps it.
        with suppress(OSError):
            os.sched_setscheduler(0, policy, os.sched_param(0))
            return


def read_group_cpu_ns(folder: Path) -> int | None:
    """Return the CPU time of a control group and its children in ns; None if the kernel does not count it there."""
    used_us = whole((try_text(folder / "cpu.stat") or "").partition("usage_usec ")[2].partition("\n")[0])
    if used_us is not None:
        return 1000 * used_us
    return whole((try_text(folder / "cpuacct.usage") or "").strip())


class GroupCpuClock(WindowPart):
    """The CPU time of a control group in a window, by the kernel's own count. Without a group it does nothing.

    Processes can be moved into a group (`docker exec`, health checks) and end before a tracer finds them. The group's
    clock counts them.
    """

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
