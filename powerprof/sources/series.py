"""This host's counters as sources of a timeline. Their rows are for shapes over time: a window's residency
needs its edges resolved, which costs wake-ups, and is `sampling`'s."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from powerprof.sources import procfs
from powerprof.sources.base import Column
from powerprof.sources.cpuidle import CpuidleReader

_GROUPS = (
    ("user", ("user", "nice")),
    ("system", ("system",)),
    ("irq", ("irq", "softirq")),
    ("steal", ("steal",)),
    ("idle", ("idle", "iowait")),
)


class StatSource:
    """/proc/stat summed over all CPUs."""

    name = "procfs"
    columns = (
        *(Column(f"{name}_s", True) for name, _ in _GROUPS),
        Column("interrupts_count", True),
        Column("context_switches_count", True),
    )

    def __init__(self, root: Path | None = None) -> None:
        self._root = root

    def read(self) -> list[float]:
        """Raises PowerprofError."""
        stat = procfs.read_stat(self._root)
        sums = [math.fsum(cpu.get(name, 0.0) for cpu in stat.cpus.values() for name in names) for _, names in _GROUPS]
        return [*sums, float(stat.interrupts_count), float(stat.context_switches_count)]


class CpuidleSource:
    """Time and entries of each idle state, summed over the CPUs that have it; idle periods that are open are
    not in it.
    """

    name = "cpuidle"

    def __init__(self, reader: CpuidleReader) -> None:
        self._reader = reader
        self._states = list(dict.fromkeys(state.name for cpu in reader.cpus for state in reader.states(cpu)))
        self.columns = tuple(
            Column(f"{state}_{unit}", True) for state in self._states for unit in ("us", "entries_count")
        )

    def read(self) -> list[float]:
        """Raises PowerprofError."""
        sums = {state: [0, 0] for state in self._states}
        for reading in self._reader.snapshot().cpus.values():
            for state, time_us, usage in zip(reading.states, reading.time_us, reading.usage, strict=True):
                sums[state.name][0] += time_us
                sums[state.name][1] += usage
        return [float(value) for state in self._states for value in sums[state]]


class ProcessSource:
    """CPU seconds of named groups of processes; NaN once one of a group has ended."""

    name = "processes"

    def __init__(self, groups: Mapping[str, Iterable[int]]) -> None:
        self._groups = {name: tuple(pids) for name, pids in groups.items()}
        self._times = procfs.ProcessTimes(self._groups)
        self.columns = tuple(Column(f"{name}_cpu_s", True) for name in self._groups)

    def read(self) -> list[float]:
        times = self._times.read()
        return [
            sum(times[name].values()) / 1e9 if len(times[name]) == len(pids) else math.nan
            for name, pids in self._groups.items()
        ]
