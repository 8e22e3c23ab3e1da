# SPDX-License-Identifier: Apache-2.0
"""Where a window's residency comes from: one small class a source, all with start, finish and close.

`cpuidle` is what the kernel requested, to the microsecond; `procfs` knows idle and running only; `powertop`
and `turbostat` are those programs, run for the length of the window.
"""

from __future__ import annotations

from typing import Literal, Protocol, get_args

from powerprof import paths
from powerprof.errors import CapabilityError, UsageError
from powerprof.records import Window
from powerprof.sources import procfs
from powerprof.sources.base import Snapshot
from powerprof.sources.cpuidle import CpuidleReader, online_cpus
from powerprof.sources.edges import edge_snapshot
from powerprof.sources.idle_events import IdleEvents
from powerprof.windows import residency

_NO_DRIVER = "no cpuidle driver: idle states are unknown, C0 is /proc/stat's"
Name = Literal["cpuidle", "procfs", "powertop", "turbostat"]


class ResidencySource(Protocol):
    """Measures one window at a time: `stop` is its end, which may come before the announced duration is over.

    `finish` says afterwards what was between; what that costs is in no window.
    """

    def start(self, duration_s: float | None) -> None: ...

    def stop(self) -> None: ...

    def finish(self, started_at: str) -> Window: ...

    def close(self) -> None: ...


class CpuidleResidency:
    """The kernel's idle counters, with the idle periods that are open at the edges resolved."""

    def __init__(self, reader: CpuidleReader) -> None:
        self._reader = reader
        self._before: Snapshot | None = None
        self._after: Snapshot | None = None

    def start(self, duration_s: float | None) -> None:
        self._before, self._after = edge_snapshot(self._reader), None

    def stop(self) -> None:
        self._after = edge_snapshot(self._reader)

    def finish(self, started_at: str) -> Window:
        if self._before is None or self._after is None:
            raise RuntimeError("the window was never opened")
        return residency.compute(self._before, self._after, started_at=started_at)

    def close(self) -> None:
        self._reader.close()


class ProcfsResidency:
    """/proc/stat: idle and running in units of 10 ms, no idle states. Open idle periods are in it already.

    `events` count the wake-ups, where they can be counted.
    """

    def __init__(self, notes: tuple[str, ...] = (), events: IdleEvents | None = None) -> None:
        self._notes = notes
        self._events = events
        self._before: procfs.Stat | None = None
        self._after: procfs.Stat | None = None
        self._exits: tuple[dict[int, int], dict[int, int]] = ({}, {})

    def start(self, duration_s: float | None) -> None:
        self._exits = (self._count(), {})
        self._before, self._after = procfs.read_stat(), None

    def stop(self) -> None:
        self._after = procfs.read_stat()
        self._exits = (self._exits[0], self._count())

    def _count(self) -> dict[int, int]:
        return {} if self._events is None else self._events.read()

    def _wakeups(self) -> int | None:
        before, after = self._exits
        both = set(before) & set(after)
        return sum(after[cpu] - before[cpu] for cpu in both) if both else None

    def finish(self, started_at: str) -> Window:
        after = self._after
        if self._before is None or after is None:
            raise RuntimeError("the window was never opened")
        spent = procfs.accounting(self._before, after)
        notes = list(self._notes)
        if spent is None:
            notes.append("/proc/stat stood still: C0 is unknown")
        idle = None if spent is None else spent.idle_percent
        window_s, wakeups = (after.at_ns - self._before.at_ns) / 1e9, self._wakeups()
        return Window(
            started_at=started_at,
            window_s=window_s,
            cpus=len(set(self._before.cpus) & set(after.cpus)),
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
    """Raises UsageError where there is no such source."""
    if name not in get_args(Name):
        raise UsageError(f"no residency source {name!r}", f"one of: {', '.join(get_args(Name))}")


def open_source(name: str) -> ResidencySource:
    """The source of that name; /proc/stat in place of cpuidle where the host has no driver, which notes say.

    Raises UsageError for an unknown name, CapabilityError (exit 3) where the program is missing,
    PowerprofError where counters cannot be read.
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
        from powerprof.sources.powertop_run import PowertopResidency

        return PowertopResidency()
    from powerprof.sources.turbostat_run import TurbostatResidency

    return TurbostatResidency()
