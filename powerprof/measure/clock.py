# SPDX-License-Identifier: Apache-2.0
"""The kernel's own monotonic clock, which is what BPF programs read, and how long the host was suspended.

In a time namespace (time_namespaces(7)) a process's CLOCK_MONOTONIC is ahead of it or behind, by an offset that the
namespace was made with: edges of windows in our time would lie days beside what the kernel counts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

from powerprof.model.records import EnergyReading


@cache
def _offset_ns() -> int:
    """By how much our clock is ahead. A process stays in the time namespace that it began in."""
    try:
        return parse_timens_offset(Path("/proc/self/timens_offsets").read_text())
    except OSError:
        return 0  # Linux before 5.6, or without such namespaces


def parse_timens_offset(offsets: str) -> int:
    """The offset of CLOCK_MONOTONIC in the text of timens_offsets: `monotonic SECONDS NANOSECONDS`."""
    for line in offsets.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "monotonic":
            return int(words[1]) * 1_000_000_000 + int(words[2])
    return 0


def kernel_ns() -> int:
    """CLOCK_MONOTONIC as the kernel has it: of any namespace, the same as `bpf_ktime_get_ns` says."""
    return time.monotonic_ns() - _offset_ns()


# Two clocks cannot be read at one moment. A reading that took longer than this is taken again, so often at most.
_TOGETHER_NS, _TRIES = 50_000, 5
# Below it "suspended" is two readings that were taken far apart; the shortest real one takes tens of ms to wake from.
_SUSPENDED_S = 0.01


def _suspended_ns() -> int:
    """How long the host was suspended since it started: CLOCK_BOOTTIME runs meanwhile, CLOCK_MONOTONIC stands still."""
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
    """Tells from one asking to the next how long the host was suspended.

    In a time namespace both clocks have offsets, which never change while a process lives: what grows is time asleep.
    """

    def __init__(self) -> None:
        self._at_ns = _suspended_ns()

    def since_s(self) -> float:
        """Seconds of it since the last asking, or since this was made."""
        now_ns = _suspended_ns()
        slept_s = (now_ns - self._at_ns) / 1e9
        if slept_s < _SUSPENDED_S:
            return 0.0
        self._at_ns = now_ns
        return slept_s


class WallOffset:
    """By how much the clock on the wall is ahead of CLOCK_MONOTONIC, which a suspend and each setting of it change."""

    def __init__(self) -> None:
        self._noted: list[tuple[float, float]] = []
        self.note(time.monotonic())

    def note(self, now_s: float) -> None:
        """As it is at this moment of CLOCK_MONOTONIC."""
        ahead_s = time.time() - time.monotonic()
        # Two that are alike tell all between them.
        if len(self._noted) > 1 and max(abs(ahead_s - known) for _, known in self._noted[-2:]) < _SUSPENDED_S:
            self._noted.pop()
        self._noted.append((now_s, ahead_s))

    def near(self, when_s: float) -> float:
        """As it was nearest to that moment."""
        return min(self._noted, key=lambda noted: abs(noted[0] - when_s))[1]


def note_suspend(seconds: float) -> list[str]:
    """What a window says that held so much of it; nothing where there was none."""
    if not seconds:
        return []
    return [
        f"the host was suspended for {seconds:.1f} s within this window: no figure counts that time, but what woke "
        "the CPUs when it resumed is in it"
    ]


# What a source of figures is, and the readings of idle counters that every residency source is turned into.


class Meters(Protocol):
    """Energy meters as a window needs them. They are sampled at both ends, and in between at least every
    `max_interval_s` seconds (None: no need), or their counters wrap unseen."""

    @property
    def max_interval_s(self) -> float | None: ...

    def sample(self) -> None: ...

    def readings(self, start_s: float, end_s: float) -> list[EnergyReading]: ...

    def notes(self) -> list[str]:
        """What is to be known of the last `readings`."""
        ...


@dataclass(frozen=True, slots=True)
class StateInfo:
    """One idle state of one CPU. `polling` states spin: they save no energy and count as running."""

    name: str
    polling: bool
    disabled: bool = False


@dataclass(frozen=True, slots=True)
class CpuReading:
    """The idle counters of one CPU at one moment; the tuples run parallel to `states`.

    `at_ns` is CLOCK_MONOTONIC, None where a recording carries no time. `resolved`: no idle period was open at
    that moment, so the counters are complete. `forced` counts the idle exits that the reading itself caused.
    A counter that this kernel does not have is None.
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
        """How often the CPU was sent idle: `usage`, and what the driver turned down, which it leaves at once."""
        return sum(self.usage) + sum(count or 0 for count in self.rejected)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The idle counters of all CPUs at one edge of a window. `notes` say what could not be had."""

    cpus: Mapping[int, CpuReading]
    notes: tuple[str, ...] = field(default=())


def is_polling(name: str, description: str) -> bool:
    """Whether a state is a busy loop, by its name or description and never by its index.

    The kernel's polling state is POLL, "CPUIDLE CORE POLL IDLE" (drivers/cpuidle/poll_state.c); powerpc's is
    "snooze" (cpuidle-pseries.c, cpuidle-powernv.c). "haltpoll idle" is the halt of the haltpoll driver: no
    poll.
    """
    return name.casefold() in ("poll", "snooze") or description.casefold().startswith("cpuidle core poll")
