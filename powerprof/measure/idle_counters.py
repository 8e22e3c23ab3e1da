# SPDX-License-Identifier: Apache-2.0
"""The readings of idle counters, which every residency source fills. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class StateInfo(msgspec.Struct, frozen=True):
    """One idle state of one CPU. A `polling` state is a busy loop: it saves no energy and counts as running.

    Attributes:
        latency_us: exit latency; None if unknown.
        target_us: the length of idle from which the state saves energy; None if unknown.
    """

    name: str
    polling: bool
    disabled: bool = False
    latency_us: int | None = None
    target_us: int | None = None


class CpuReading(msgspec.Struct, frozen=True):
    """The idle counters of one CPU at one moment. The tuples are parallel to `states`.

    Attributes:
        at_ns: CLOCK_MONOTONIC. None if a recording has no time.
        above, below, rejected: None for a counter that this kernel lacks.
        resolved: no idle period was open at that moment, so the counters are complete.
        forced: the idle exits that the reading itself caused.
        life: a number of these counters. The kernel makes others, from 0 on, when a CPU comes back; 0: unknown.
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
    life: int = 0

    @property
    def entries_count(self) -> int:
        """The number of idle entries: `usage`, and entries that the driver rejected, which end at once."""
        return sum(self.usage) + sum(count or 0 for count in self.rejected)


class Snapshot(msgspec.Struct, frozen=True):
    """The idle counters of all CPUs at one edge of a window. `notes` name missing parts."""

    cpus: Mapping[int, CpuReading]
    notes: tuple[str, ...] = msgspec.field(default=())


def is_polling(name: str, description: str) -> bool:
    """Return whether a state is a busy loop, by its name or description, never by its index.

    The kernel's polling state is POLL, "CPUIDLE CORE POLL IDLE" (drivers/cpuidle/poll_state.c); powerpc's is "snooze"
    (cpuidle-pseries.c, cpuidle-powernv.c). "haltpoll idle" is the halt of the haltpoll driver and no busy loop.
    """
    return name.casefold() in ("poll", "snooze") or description.casefold().startswith("cpuidle core poll")
