# SPDX-License-Identifier: Apache-2.0
"""The kernel's monotonic clock, which BPF programs read, suspends of the host, and the records of idle counters.

In a time namespace (time_namespaces(7)) a process's CLOCK_MONOTONIC differs by a fixed offset. Without a correction the
edges of a window would be days away from the kernel's times.
"""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Protocol

import msgspec

from powerprof.model.records import EnergyReading
from powerprof.system import caller, signals
from powerprof.system.errors import Interrupted, PowerprofError
from powerprof.system.files import try_text, whole
from powerprof.system.own_processes import read_own_cost


def format_now(ago_s: float = 0.0) -> str:
    """Return this moment, or an earlier one, as RFC 3339 in UTC with milliseconds."""
    return (datetime.now(UTC) - timedelta(seconds=ago_s)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@cache
def _offset_ns() -> int:
    """Return our clock's offset. A process keeps its time namespace for life."""
    try:
        return parse_timens_offset(Path("/proc/self/timens_offsets").read_text())
    except OSError:
        return 0  # Linux before 5.6, or without such namespaces


def parse_timens_offset(offsets: str) -> int:
    """Return the offset of CLOCK_MONOTONIC in the text of timens_offsets: `monotonic SECONDS NANOSECONDS`."""
    for line in offsets.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "monotonic":
            return int(words[1]) * 1_000_000_000 + int(words[2])
    return 0


def kernel_ns() -> int:
    """Return CLOCK_MONOTONIC as the kernel has it in every namespace, like `bpf_ktime_get_ns`."""
    return time.monotonic_ns() - _offset_ns()


# Two clocks cannot be read at one moment. A reading that took longer is repeated, at most this many times.
_TOGETHER_NS, _TRIES = 50_000, 5
# A smaller difference comes from readings far apart. The shortest real suspend takes tens of ms to wake from.
_SUSPENDED_S = 0.01


def _suspended_ns() -> int:
    """Return the host's time in suspend since its start: CLOCK_BOOTTIME counts it, CLOCK_MONOTONIC does not."""
    best, took = 0, None
    for _ in range(_TRIES):
        before_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        after_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        if took is None or after_ns - before_ns < took:
            best, took = boot_ns - (before_ns + after_ns) // 2, after_ns - before_ns
        if took < _TOGETHER_NS:
            break
    return best


class SuspendClock:
    """Measures the time in suspend from one call to the next.

    In a time namespace both clocks have constant offsets: any growth of their difference is suspended time.
    """

    def __init__(self) -> None:
        self._at_ns = _suspended_ns()

    def since_s(self) -> float:
        """Return the seconds of suspend since the last call, or since construction."""
        now_ns = _suspended_ns()
        slept_s = (now_ns - self._at_ns) / 1e9
        if slept_s < _SUSPENDED_S:
            return 0.0
        self._at_ns = now_ns
        return slept_s


class WallOffset:
    """The offset of wall time to CLOCK_MONOTONIC, which changes with a suspend and with every setting of the clock."""

    def __init__(self) -> None:
        self._noted: list[tuple[float, float]] = []
        self.note(time.monotonic())

    def note(self, now_s: float) -> None:
        """Record the offset at this moment of CLOCK_MONOTONIC."""
        ahead_s = time.time() - time.monotonic()
        # Of three equal offsets the middle one adds nothing.
        if len(self._noted) > 1 and max(abs(ahead_s - known) for _, known in self._noted[-2:]) < _SUSPENDED_S:
            self._noted.pop()
        self._noted.append((now_s, ahead_s))

    def near(self, when_s: float) -> float:
        """Return the offset recorded closest to that moment."""
        return min(self._noted, key=lambda noted: abs(noted[0] - when_s))[1]


def note_suspend(seconds: float) -> list[str]:
    """Return the note of a window that was suspended for so long. Empty for 0."""
    if not seconds:
        return []
    return [
        f"the host was suspended for {seconds:.1f} s within this window: no figure counts that time, but what woke "
        "the CPUs when it resumed is in it"
    ]


# Energy meters as windows need them, and the readings of idle counters of every residency source.


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


class StateInfo(msgspec.Struct, frozen=True):
    """One idle state of one CPU. A `polling` state is a busy loop: it saves no energy and counts as running.

    Attributes:
        latency_us: exit latency; None if unknown.
        target_us: the length of idle from which the state saves energy; None if unknown.
    """

    name: str
    polling: bool
    disabled: bool = False
    latency_us: int | None = None
    target_us: int | None = None


class CpuReading(msgspec.Struct, frozen=True):
    """The idle counters of one CPU at one moment. The tuples are parallel to `states`.

    Attributes:
        at_ns: CLOCK_MONOTONIC. None if a recording has no time.
        above, below, rejected: None for a counter that this kernel lacks.
        resolved: no idle period was open at that moment, so the counters are complete.
        forced: the idle exits that the reading itself caused.
    """

    cpu: int
    at_ns: int | None
    states: tuple[StateInfo, ...]
    time_us: tuple[int, ...]
    usage: tuple[int, ...]
    above: tuple[int | None, ...]
    below: tuple[int | None, ...]
    rejected: tuple[int | None, ...]
    resolved: bool = False
    forced: tuple[int, ...] = ()

    @property
    def entries_count(self) -> int:
        """The number of idle entries: `usage`, and entries that the driver rejected, which end at once."""
        return sum(self.usage) + sum(count or 0 for count in self.rejected)


class Snapshot(msgspec.Struct, frozen=True):
    """The idle counters of all CPUs at one edge of a window. `notes` name missing parts."""

    cpus: Mapping[int, CpuReading]
    notes: tuple[str, ...] = msgspec.field(default=())


def is_polling(name: str, description: str) -> bool:
    """Return whether a state is a busy loop, by its name or description, never by its index.

    The kernel's polling state is POLL, "CPUIDLE CORE POLL IDLE" (drivers/cpuidle/poll_state.c); powerpc's is "snooze"
    (cpuidle-pseries.c, cpuidle-powernv.c). "haltpoll idle" is the halt of the haltpoll driver and no busy loop.
    """
    return name.casefold() in ("poll", "snooze") or description.casefold().startswith("cpuidle core poll")


# Run measurement windows: edges, waiting, interrupts, suspend, privileges and powerprof's own cost.
#
# Observers are passed in as parts (meters, residency, tracers, DTrace). A window opens its parts, gives up privileges,
# prepares the parts and begins them in order. Then it sleeps in the kernel until the deadline and wakes only to read a
# part. Parts end in reverse order. Each part has its own type of result, so its owner collects the result.

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
    of the window. `interrupted`: the signal that ended it early.
    """

    window_s: float
    tool_cpu_s: float
    tool_wakeups_count: int
    notes: list[str]
    interrupted: Interrupted | None = None


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
            caller.drop_privileges()
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
        return PassedWindow(window_s, cpu_s, switches, notes, interrupted)


def run_window(
    length_s: float, *parts: WindowPart, until: int | None = None, settle: bool = False, hold: bool = False
) -> PassedWindow:
    """Run one window of at most `length_s`. An interrupt ends it early.

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
