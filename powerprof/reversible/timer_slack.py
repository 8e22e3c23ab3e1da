# SPDX-License-Identifier: Apache-2.0
"""Timer slack of threads: a kind of setting."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from powerprof.reversible.host_settings import Lasting
from powerprof.system import errors, files, paths
from powerprof.system.errors import PowerprofError
from powerprof.system.process_stat import read_process_stat

_PF_EXITING = 0x4  # include/linux/sched.h


class TimerSlack(msgspec.Struct, frozen=True, tag="timer_slack"):
    """The timer slack of a thread in ns (proc_pid_timerslack_ns(5)): the longest extra delay of its wake-ups.

    Attributes:
        started_ticks: the start of the thread (field 22 of stat), since a later thread may have its number.
    """

    tid: int
    started_ticks: int
    value: str
    lasts: ClassVar[Lasting] = "process"  # slack ends with its thread

    @property
    def name(self) -> str:
        """The name for people."""
        return f"the timer slack of thread {self.tid}"

    def read(self) -> str | None:
        """Return the present slack; None if the thread has ended. Raise PowerprofError."""
        if read_start_ticks(self.tid) != self.started_ticks:
            return None
        return files.read_text(paths.procfs() / str(self.tid) / "timerslack_ns")

    def write(self, value: str) -> str | None:
        """Set the slack and return it as read back; None if the thread has ended. Raise PowerprofError."""
        if read_start_ticks(self.tid) != self.started_ticks:
            return None
        try:
            (paths.procfs() / str(self.tid) / "timerslack_ns").write_text(value)
        except OSError as error:
            raise PowerprofError(
                f"cannot change {self.name} ({errors.reason_of(error)})", "run as root, with CAP_SYS_NICE"
            ) from error
        return self.read()

    def by_hand(self, value: str) -> str:
        """Return the command that sets a value."""
        return f"echo {value} > /proc/{self.tid}/timerslack_ns"


def read_start_ticks(tid: int) -> int | None:
    """Return the start of a thread in clock ticks since boot; None if it has ended or is a zombie."""
    stat = read_process_stat(tid)
    return None if stat is None or stat.flags & _PF_EXITING else stat.started_ticks
