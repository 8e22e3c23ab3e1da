# SPDX-License-Identifier: Apache-2.0
"""The CPU time that a control group used in a window, by the kernel's own count of it.

Processes are moved into a group as well as started in it (`docker exec`, a container's health check), and one that ends
before anybody has looked is in no figure. The group's own clock knows of all that ran.
"""

from __future__ import annotations

from pathlib import Path

from powerprof.files import try_text
from powerprof.untrusted import whole
from powerprof.windows.runner import Part


def group_cpu_ns(folder: Path) -> int | None:
    """Since the group was made, with the groups below it; None where the kernel does not count it there."""
    used_us = whole((try_text(folder / "cpu.stat") or "").partition("usage_usec ")[2].partition("\n")[0])
    if used_us is not None:
        return 1000 * used_us
    return whole((try_text(folder / "cpuacct.usage") or "").strip())


class GroupClock(Part):
    """Without a group it does nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._before_ns: int | None = None
        self.used_ns: int | None = None

    def begin(self) -> None:
        self._before_ns = group_cpu_ns(self._folder) if self._folder is not None else None

    def end(self) -> None:
        after_ns = group_cpu_ns(self._folder) if self._folder is not None else None
        if after_ns is not None and self._before_ns is not None:
            self.used_ns = after_ns - self._before_ns
