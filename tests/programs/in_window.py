# SPDX-License-Identifier: Apache-2.0
"""Whether a command is within its window, seen from outside by the system call in which it sleeps."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path
from typing import Any

from tests.programs.waiting import wait_until

_IS_ARM = os.uname().machine == "aarch64"
# poll takes milliseconds; where there is none ppoll does the same, with a pointer to a timespec.
_POLL = 73 if _IS_ARM else 7


def until_in_window(process: subprocess.Popen[Any], duration_s: float, *, whole: bool = True) -> None:
    """Wait until a command sleeps in its window of `duration_s`: how long its start takes is the host's affair.

    It sleeps through the `whole` window, as nothing else that it waits for; or for shorter, where its parts are read
    every so often, and then for a signal and at least one of them at once.
    """

    def is_in_it() -> bool:
        assert process.poll() is None, "its window was not seen"
        descriptors, asleep_s = _polls(process.pid)
        least_s = 0.0 if not whole and descriptors > 1 else duration_s / 2
        return least_s <= asleep_s <= duration_s and asleep_s > 0

    wait_until(is_in_it, "a window")


def _polls(pid: int) -> tuple[int, float]:
    """How many descriptors the main thread polls, and for how long at most; zeros where it does something else."""
    try:
        words = Path(f"/proc/{pid}/syscall").read_text().split()
        if words[0] != str(_POLL):
            return 0, 0.0
        descriptors, limit = int(words[2], 16), int(words[3], 16)
        if not _IS_ARM:
            return descriptors, limit / 1e3
        with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            seconds, nanoseconds = struct.unpack("qq", os.pread(memory.fileno(), 16, limit))
        return descriptors, float(seconds) + nanoseconds / 1e9
    except (OSError, struct.error):
        return 0, 0.0
