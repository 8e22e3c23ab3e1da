# SPDX-License-Identifier: Apache-2.0
"""What a source of figures is, and the readings of idle counters that every residency source is turned into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from powerprof.records import EnergyReading


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
