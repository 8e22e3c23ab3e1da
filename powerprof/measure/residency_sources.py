# SPDX-License-Identifier: Apache-2.0
"""The sources of a window's residency.

`cpuidle` counts the kernel's requests to the microsecond. `procfs` knows only idle and running. `powertop` and
`turbostat` run those programs for the length of the window.
"""

from __future__ import annotations

from typing import Literal, Protocol, get_args

from powerprof.measure import procfs
from powerprof.measure.cpuidle import CpuidleReader, online_cpus
from powerprof.measure.idle_counters import Snapshot
from powerprof.measure.idle_edges import read_edge
from powerprof.measure.idle_events import IdleEvents
from powerprof.measure.residency import compute_residency, note_unknown_cpus
from powerprof.model.records import Window
from powerprof.system import paths
from powerprof.system.errors import CapabilityError, UnknownNameError, UsageError

_NO_DRIVER = "no cpuidle driver: idle states are unknown, C0 is /proc/stat's"
SourceName = Literal["cpuidle", "procfs", "powertop", "turbostat"]


class ResidencySource(Protocol):
    """Measures one window at a time. `stop` ends it, possibly before the announced duration.

    `finish` returns the window afterwards. Its own cost is in no window.
    """

    def start(self, duration_s: float | None) -> None: ...

    def stop(self) -> None: ...

    def finish(self, started_at: str) -> Window: ...

    def close(self) -> None: ...


class CpuidleResidency:
    """The kernel's idle counters, with open idle periods at the edges resolved."""

    def __init__(self, reader: CpuidleReader) -> None:
        self._reader = reader
        self._before: Snapshot | None = None
        self._after: Snapshot | None = None

    def start(self, duration_s: float | None) -> None:
        self._before, self._after = read_edge(self._reader), None

    def stop(self) -> None:
        self._after = read_edge(self._reader)

    def finish(self, started_at: str) -> Window:
        if self._before is None or self._after is None:
            raise RuntimeError("the window was never opened")
        return compute_residency(self._before, self._after, started_at=started_at)

    def close(self) -> None:
        self._reader.close()


class ProcfsResidency:
    """/proc/stat: idle and running time in units of 10 ms, without idle states. It includes open idle periods.

    `events` counts the wake-ups, if possible.
    """

    def __init__(self, notes: tuple[str, ...] = (), events: IdleEvents | None = None) -> None:
        self._notes = notes
        self._events = events
        self._before: procfs.Stat | None = None
        self._after: procfs.Stat | None = None
        self._exits: tuple[dict[int, int], dict[int, int]] = ({}, {})

    def start(self, duration_s: float | None) -> None:
        self._exits = (self._count_exits(), {})
        self._before, self._after = procfs.read_stat(), None

    def stop(self) -> None:
        self._after = procfs.read_stat()
        self._exits = (self._exits[0], self._count_exits())

    def _count_exits(self) -> dict[int, int]:
        return {} if self._events is None else self._events.read()

    def _count_wakeups(self) -> int | None:
        before, after = self._exits
        both = set(before) & set(after)
        return sum(after[cpu] - before[cpu] for cpu in both) if both else None

    def finish(self, started_at: str) -> Window:
        after = self._after
        if self._before is None or after is None:
            raise RuntimeError("the window was never opened")
        spent = procfs.compute_accounting(self._before, after)
        times = procfs.compute_cpu_times(self._before, after)
        notes = [*self._notes, *note_unknown_cpus(times, "C0 is")]
        if times.unknown:
            notes.append("a container may show invented counters: measure outside of it")
        idle = None if spent is None else spent.idle_percent
        window_s, wakeups = (after.at_ns - self._before.at_ns) / 1e9, self._count_wakeups()
        return Window(
            started_at=started_at,
            window_s=window_s,
            cpus=len(times.spent),
            unknown_cpus_count=len(times.unknown),
            c0_percent=None if idle is None else 100.0 - idle,
            idle_percent=idle,
            wakeups_hz=None if wakeups is None or window_s <= 0 else wakeups / window_s,
            states=[],
            residency_source="procfs",
            residual_percent=None if idle is None else 0.0,
            notes=notes,
        )

    def close(self) -> None:
        self._before = None
        if self._events is not None:
            self._events.close()


def check_name(name: str) -> None:
    """Raise UsageError for an unknown source."""
    if name not in get_args(SourceName):
        raise UnknownNameError(f"no residency source {name!r}", name, get_args(SourceName))


def open_source(name: str) -> ResidencySource:
    """Return the source of that name. Without a cpuidle driver /proc/stat replaces cpuidle, with a note.

    Raise UsageError for an unknown name, CapabilityError (exit 3) without the program, PowerprofError for unreadable
    counters.
    """
    if name == "cpuidle":
        reader = CpuidleReader()
        if reader.cpus:
            return CpuidleResidency(reader)
        try:
            events = IdleEvents(online_cpus())
        except CapabilityError:
            return ProcfsResidency((f"{_NO_DRIVER}; wake-ups are known only where they are traced",))
        return ProcfsResidency((f"{_NO_DRIVER}, wake-ups are counted by perf",), events=events)
    if name == "procfs":
        return ProcfsResidency()
    check_name(name)
    if not paths.is_this_host():
        raise UsageError(
            f"{name} measures this host, but POWERPROF_SYSFS or POWERPROF_PROCFS is set",
            "unset them, or --residency-source cpuidle",
        )
    if name == "powertop":
        from powerprof.measure.powertop_residency import PowertopResidency

        return PowertopResidency()
    from powerprof.measure.turbostat_residency import TurbostatResidency

    return TurbostatResidency()
