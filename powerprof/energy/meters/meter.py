# SPDX-License-Identifier: Apache-2.0
"""The interface of energy meters: open one, sample it, and read the energy of each domain between two samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from powerprof.measure.counters import CounterSample
from powerprof.measure.energy_series import EnergySeries, PowerSample, drop_old_samples
from powerprof.model.records import Kind, Scope
from powerprof.system import paths
from powerprof.system.errors import CapabilityError

SampleT = TypeVar("SampleT", CounterSample, PowerSample)


class DomainEnergy(msgspec.Struct, frozen=True):
    """The energy of one domain of one meter.

    Attributes:
        scope: the measured part of the host. Sums select domains by scope, never by name.
        inside: the domain of the same meter that includes this one.
        flaw: the reason why the domains of this scope have no total, if the meter knows one.
        repeats: further domains that show the same counter, which counts once.
        kind: `estimated` for a figure that another program computed with a model.
    """

    domain: str
    scope: Scope
    energy: EnergySeries
    inside: str | None = None
    flaw: str | None = None
    repeats: tuple[str, ...] = ()
    kind: Kind = "measured"


class Meter(Protocol):
    """An open meter of this host. Times are CLOCK_MONOTONIC seconds."""

    @property
    def name(self) -> str: ...

    @property
    def max_interval_s(self) -> float | None: ...

    @property
    def notes(self) -> Sequence[str]:
        """The notes on its readings, such as their delay."""
        ...

    def sample(self, now_s: float) -> None: ...

    def is_counting(self) -> bool | None:
        """Return whether a counter moved or a power reading is above 0. None if there are too few samples."""
        ...

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]: ...

    def drop_samples(self, before_s: float) -> None:
        """Drop samples that no window after `before_s` needs."""
        ...

    def close(self) -> None: ...


class SampledMeter(Generic[SampleT]):
    """A meter that keeps the samples of each of its channels, oldest first."""

    def __init__(self, channels_count: int, notes: Sequence[str] = ()) -> None:
        self._samples: list[list[SampleT]] = [[] for _ in range(channels_count)]
        self.notes = list(notes)

    def drop_samples(self, before_s: float) -> None:
        for samples in self._samples:
            drop_old_samples(samples, before_s)

    def close(self) -> None:
        for samples in self._samples:
            samples.clear()


def is_any_moving(counters: Sequence[Sequence[CounterSample]]) -> bool | None:
    """Return whether any counter moved. None before the second sample."""
    if not counters or len(counters[0]) < 2:
        return None
    return any(len({s.value for s in samples if s.value is not None}) > 1 for samples in counters)


class UnusableMeterError(CapabilityError):
    """A meter that this host has and that gives no figure now; the hint is the remedy."""


def require_this_host(reason: str) -> None:
    """Raise CapabilityError if POWERPROF_SYSFS or POWERPROF_PROCFS names the files of another host."""
    if not paths.is_this_host():
        raise CapabilityError(
            f"{reason}, and POWERPROF_SYSFS or POWERPROF_PROCFS is set", "unset POWERPROF_SYSFS POWERPROF_PROCFS"
        )


def distinct_names(domains: list[tuple[str, str | None]]) -> list[str]:
    """Return unique domain names: a name that occurs twice gets its parent as a prefix (`package-1/dram`)."""
    names = [name for name, _ in domains]
    return [f"{parent}/{name}" if parent and names.count(name) > 1 else name for name, parent in domains]


POWER_INTERVAL_S = 1.0
