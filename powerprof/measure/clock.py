# SPDX-License-Identifier: Apache-2.0
"""The kernel's monotonic clock, which BPF programs read, the time of day, and suspends of the host.

In a time namespace (time_namespaces(7)) a process's CLOCK_MONOTONIC differs by a fixed offset. Without a correction the
edges of a window would be days away from the kernel's times.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

# Two clocks cannot be read at one moment. A reading that took longer is repeated, at most this many times.
_TOGETHER_NS, _TRIES = 50_000, 5


def format_now(ago_s: float = 0.0) -> str:
    """Return this moment, or an earlier one, as RFC 3339 in UTC with milliseconds."""
    return (datetime.now(UTC) - timedelta(seconds=ago_s)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@cache
def _read_offset_ns() -> int:
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
    return time.monotonic_ns() - _read_offset_ns()


# A smaller difference comes from readings far apart. The shortest real suspend takes tens of ms to wake from.
_SUSPENDED_S = 0.01


def _read_suspended_ns() -> int:
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
        self._at_ns = _read_suspended_ns()

    def since_s(self) -> float:
        """Return the seconds of suspend since the last call, or since construction."""
        now_ns = _read_suspended_ns()
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
