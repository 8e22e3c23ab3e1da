# SPDX-License-Identifier: Apache-2.0
"""/proc/PID/stat: psutil provides neither the page faults of a process nor the start of its stack.

Since Linux 6.18, the file waits for an exec(2) of the process, which its account can stop; /proc/PID/status does not.
The reader process reads it for processes of other people.
"""

from __future__ import annotations

from typing import NamedTuple

from powerprof.system.files import try_text
from powerprof.system.paths import procfs
from powerprof.system.reader_process import is_of_person, shared


class ProcessStat(NamedTuple):
    """The kernel's figures of a process or thread (proc_pid_stat(5)).

    Attributes:
        comm: the name, as the process chose it.
        reaped_ticks: CPU time of the ended children that it waited for, in clock ticks.
        started_ticks: start time in clock ticks after the boot.
        start_stack: the address at which the stack begins, another one after each exec; 0 if it may not be read.
    """

    comm: str
    flags: int
    minor_faults: int
    reaped_ticks: int
    started_ticks: int
    start_stack: int = 0


def read_process_stat(pid: int) -> ProcessStat | None:
    """Return the figures of a process or thread; None if it has ended, is not readable or its format is unknown."""
    if is_of_person(pid):
        text = (shared().proc_file(pid, "stat", 4096, of_thread=True) or b"").decode("utf-8", "surrogateescape")
    else:
        text = try_text(procfs() / str(pid) / "stat") or ""
    # The name in field 2 may contain blanks and brackets.
    name, _, rest = text.partition("(")[2].rpartition(")")
    words = rest.split()
    try:
        reaped_ticks, start_stack = int(words[13]) + int(words[14]), int(words[25]) if len(words) > 25 else 0
        return ProcessStat(name, int(words[6]), int(words[7]), reaped_ticks, int(words[19]), start_stack)
    except (IndexError, ValueError):
        return None
