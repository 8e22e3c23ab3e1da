# SPDX-License-Identifier: Apache-2.0
"""The only reader of /proc/PID/stat, beside `descendants.py`, which has no procfs but this host's.

Not psutil, which tells neither the flags nor the page faults of a process.
"""

from __future__ import annotations

from typing import NamedTuple

from powerprof.files import try_text
from powerprof.paths import procfs


class ProcessStat(NamedTuple):
    """What the kernel says of a process or a thread (proc_pid_stat(5)). `comm` is as the process chose it. Times are in
    clock ticks: `reaped_ticks` what those used that it started and waited for, `started_ticks` after the boot."""

    comm: str
    flags: int
    minor_faults: int
    reaped_ticks: int
    started_ticks: int


def process_stat(pid: int) -> ProcessStat | None:
    """None where it has gone, or where the kernel says it in a way that is not understood."""
    # The name in field 2 may have blanks and brackets.
    name, _, rest = (try_text(procfs() / str(pid) / "stat") or "").partition("(")[2].rpartition(")")
    words = rest.split()
    try:
        return ProcessStat(name, int(words[6]), int(words[7]), int(words[13]) + int(words[14]), int(words[19]))
    except (IndexError, ValueError):
        return None
