# SPDX-License-Identifier: Apache-2.0
"""The interface of energy meters: sample them now, and read the energy of each domain afterwards."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from powerprof.measure.counters import CounterSample, EnergySeries, PowerSample, drop_old_samples
from powerprof.model.records import Scope
from powerprof.system import paths
from powerprof.system.errors import CapabilityError

SampleT = TypeVar("SampleT", CounterSample, PowerSample)


@dataclass(frozen=True)
class DomainEnergy:
    """The energy of one domain of one meter.

    Attributes:
        scope: the measured part of the host. Sums select domains by scope, never by name.
        inside: the domain of the same meter that includes this one.
    """

    domain: str
    scope: Scope
    energy: EnergySeries
    inside: str | None = None


class Meter(Protocol):
    """An open meter of this host. Times are CLOCK_MONOTONIC seconds."""

    @property
    def name(self) -> str: ...

    @property
    def max_interval_s(self) -> float | None: ...

    def sample(self, now_s: float) -> None: ...

    def is_counting(self) -> bool | None:
        """Return whether a counter moved or a power reading is above 0. None if there are too few samples."""
        ...

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]: ...

    def drop_samples(self, before_s: float) -> None:
        """Drop samples that no window after `before_s` needs."""
        ...

    def notes(self) -> list[str]: ...

    def close(self) -> None: ...


class SampledMeter(Generic[SampleT]):
    """A meter that keeps the samples of each of its channels, oldest first."""

    def __init__(self, channels_count: int, notes: Sequence[str] = ()) -> None:
        self._samples: list[list[SampleT]] = [[] for _ in range(channels_count)]
        self._notes = list(notes)

    def drop_samples(self, before_s: float) -> None:
        for samples in self._samples:
            drop_old_samples(samples, before_s)

    def notes(self) -> list[str]:
        return list(self._notes)

    def close(self) -> None:
        for samples in self._samples:
            samples.clear()


def is_any_moving(counters: Sequence[Sequence[CounterSample]]) -> bool | None:
    """Return whether any counter moved. None before the second sample."""
    if not counters or len(counters[0]) < 2:
        return None
    return any(len({s.value for s in samples if s.value is not None}) > 1 for samples in counters)


def require_this_host(reason: str) -> None:
    """Raise CapabilityError if POWERPROF_SYSFS or POWERPROF_PROCFS names the files of another host."""
    if not paths.is_this_host():
        raise CapabilityError(
            f"{reason}, and POWERPROF_SYSFS or POWERPROF_PROCFS is set", "unset POWERPROF_SYSFS POWERPROF_PROCFS"
        )


def rapl_scope(name: str) -> Scope:
    """Return the scope of a RAPL zone by its name, as in powercap's `name` files.

    Later packages have zones such as `psys-1`; some kernels write a literal `psys-%d`.
    """
    if re.fullmatch(r"package-\d+(-die-\d+)?", name):
        return "package"
    if re.fullmatch(r"psys(-(\d+|%d))?", name):
        return "psys"
    return "dram" if name == "dram" else "core" if name in ("core", "uncore") else "other"


def distinct_names(domains: list[tuple[str, str | None]]) -> list[str]:
    """Return unique domain names: a name that occurs twice gets its parent as a prefix (`package-1/dram`)."""
    names = [name for name, _ in domains]
    return [f"{parent}/{name}" if parent and names.count(name) > 1 else name for name, parent in domains]
