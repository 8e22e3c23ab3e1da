# SPDX-License-Identifier: Apache-2.0
"""Limits for the time that processes of other accounts may cost their reader, and the time spent so far.

The limits apply to all processes of people together, and to all processes of system accounts together: those of people
hide no server of a system account. A process that has kept its reader waiting is not read again.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from powerprof.system import signals


class WaitLimits(msgspec.Struct, frozen=True):
    """The limits of a run: abandoned children, and seconds of sleep and of CPU time of its readers."""

    left_behind: int
    waited_s: float
    worked_s: float


# The files of system accounts may be on a slow disk. The limits recover slowly with time.
OF_PEOPLE = WaitLimits(16, 20.0, 20.0)
OF_SYSTEM = WaitLimits(16, 25.0, float("inf"))
# The limits of all processes once a signal has arrived.
AFTER_SIGNAL = WaitLimits(2, 0.5, 1.0)
_WAITS_FORGIVEN, _WORK_FORGIVEN = 0.005, 0.02
_MAX_NOTED = 10_000


class Waits(msgspec.Struct, array_like=True):
    """The cost of processes: abandoned children, and seconds of sleep and of CPU time of readers."""

    left_behind: int = 0
    waited_s: float = 0.0
    since_s: float = 0.0
    worked_s: float = 0.0

    def add(self, waited_s: float, worked_s: float, left_behind: int) -> None:
        """Count the cost of a request."""
        now_s = time.monotonic()
        passed_s = now_s - self.since_s
        self.waited_s = max(0.0, self.waited_s - _WAITS_FORGIVEN * passed_s) + waited_s
        self.worked_s = max(0.0, self.worked_s - _WORK_FORGIVEN * passed_s) + worked_s
        self.since_s = now_s
        self.left_behind += left_behind

    def is_exhausted(self, limits: WaitLimits) -> bool:
        """Return whether one of the limits is reached."""
        return (
            self.left_behind >= limits.left_behind
            or self.waited_s >= limits.waited_s
            or self.worked_s >= limits.worked_s
        )


class ReaderWaits(msgspec.Struct, array_like=True):
    """The processes that were left out, and the cost of those of people, of system accounts, and after a signal."""

    silent: list[int] = []
    of_people: Waits = msgspec.field(default_factory=Waits)
    of_system: Waits = msgspec.field(default_factory=Waits)
    after_signal: Waits = msgspec.field(default_factory=Waits)

    def is_left_out(self, pid: int, is_person: bool) -> bool:
        """Return whether a process is not to be read, and note it. `pid` is 0 for files of no process."""
        total, limits = (self.of_people, OF_PEOPLE) if is_person else (self.of_system, OF_SYSTEM)
        is_late = signals.has_arrived() and self.after_signal.is_exhausted(AFTER_SIGNAL)
        if not (pid and pid in self.silent) and not total.is_exhausted(limits) and not is_late:
            return False
        self.leave_out(pid)
        return True

    def leave_out(self, pid: int) -> None:
        """Note a process that is not read."""
        if pid not in self.silent and len(self.silent) < _MAX_NOTED:
            self.silent.append(pid)

    def add(self, is_person: bool, waited_s: float, worked_s: float = 0.0, left_behind: int = 0) -> None:
        """Count the cost of a request."""
        totals = [self.of_people if is_person else self.of_system]
        for total in [*totals, self.after_signal] if signals.has_arrived() else totals:
            total.add(max(0.0, waited_s), worked_s, left_behind)

    def notes(self) -> list[str]:
        """Return notes on the processes that were left out."""
        if not self.silent:
            return []
        shown = ", ".join(map(str, self.silent[:5]))
        more = f" and {len(self.silent) - 5:,} more" if len(self.silent) > 5 else ""
        return [
            f"processes {shown}{more} were left out: they kept a reader of their memory or files waiting or busy, or "
            "other processes did"
        ]


class ChildSleep:
    """The sleep of a child since its request or its last answer."""

    def __init__(self, pid: int) -> None:
        self._base = Path(f"/proc/{pid}")
        self._began_s, self._awake_s = time.monotonic(), self._read_awake_s()

    def slept_s(self) -> float:
        """Return the seconds asleep; 0 while the child is on a CPU or waits for one."""
        asleep_s = time.monotonic() - self._began_s - (self._read_awake_s() - self._awake_s)
        return 0.0 if self._runs() else asleep_s

    def _runs(self) -> bool:
        try:
            return (self._base / "stat").read_bytes().rpartition(b")")[2].split()[:1] == [b"R"]
        except OSError:
            return False

    def _read_awake_s(self) -> float:
        """Return the seconds on a CPU or waiting for one (Documentation/scheduler/sched-stats.rst); 0 if unknown."""
        try:
            return sum(int(word) for word in (self._base / "schedstat").read_bytes().split()[:2]) / 1e9
        except (OSError, ValueError):
            return 0.0
