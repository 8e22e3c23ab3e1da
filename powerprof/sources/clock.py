# SPDX-License-Identifier: Apache-2.0
"""The kernel's own monotonic clock, which is what BPF programs read.

In a time namespace (time_namespaces(7)) a process's CLOCK_MONOTONIC is ahead of it or behind, by an offset that the
namespace was made with: edges of windows that were told in our time would lie days beside what the kernel counts.
"""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path


@cache
def _offset_ns() -> int:
    """By how much our clock is ahead. A process stays in the time namespace that it began in."""
    try:
        return ahead_ns(Path("/proc/self/timens_offsets").read_text())
    except OSError:
        return 0  # Linux before 5.6, or without such namespaces


def ahead_ns(offsets: str) -> int:
    """The offset of CLOCK_MONOTONIC in the text of timens_offsets: `monotonic SECONDS NANOSECONDS`."""
    for line in offsets.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "monotonic":
            return int(words[1]) * 1_000_000_000 + int(words[2])
    return 0


def kernel_ns() -> int:
    """CLOCK_MONOTONIC as the kernel has it: of any namespace, the same as `bpf_ktime_get_ns` says."""
    return time.monotonic_ns() - _offset_ns()
