# SPDX-License-Identifier: Apache-2.0
"""The kernel's monotonic clock, which BPF programs read, suspends of the host, and the records of idle counters.

In a time namespace (time_namespaces(7)) a process's CLOCK_MONOTONIC differs by a fixed offset. Without a correction the
edges of a window would be days away from the kernel's times.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Protocol

from powerprof.model.records import EnergyReading


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

    def notes(self) -> list[str]:
        """Return notes on the last `readings`."""
        ...


@dataclass(frozen=True, slots=True)
class StateInfo:
    """One idle state of one CPU. A `polling` state is a busy loop: it saves no energy and counts as running."""

    name: str
    polling: bool
    disabled: bool = False


@dataclass(frozen=True, slots=True)
class CpuReading:
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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The idle counters of all CPUs at one edge of a window. `notes` name missing parts."""

    cpus: Mapping[int, CpuReading]
    notes: tuple[str, ...] = field(default=())


def is_polling(name: str, description: str) -> bool:
    """Return whether a state is a busy loop, by its name or description, never by its index.

    The kernel's polling state is POLL, "CPUIDLE CORE POLL IDLE" (drivers/cpuidle/poll_state.c); powerpc's is "snooze"
    (cpuidle-pseries.c, cpuidle-powernv.c). "haltpoll idle" is the halt of the haltpoll driver and no busy loop.
    """
    return name.casefold() in ("poll", "snooze") or description.casefold().startswith("cpuidle core poll")
