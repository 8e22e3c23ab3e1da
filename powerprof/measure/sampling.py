# SPDX-License-Identifier: Apache-2.0
"""One window: an edge, sleep to an absolute deadline (`measure/window.py`), an edge.

The tool sleeps in between, unless a meter's counter could wrap: the tool's own wake-ups are the noise of the
measurement. Costly readings (/proc/stat, frequencies, meters) are outside of the two edges.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from powerprof.measure import disks, oslayer, procfs
from powerprof.measure.clock import format_now
from powerprof.measure.cpuidle import online_cpus
from powerprof.measure.pstates import PerfClocks
from powerprof.measure.residency import merge_notes, note_unknown_cpus
from powerprof.measure.residency_sources import open_source
from powerprof.measure.target_life import TargetLife, raise_ended
from powerprof.measure.window import EnergySampler, Meters, OpenWindow, PassedWindow, WindowPart, run_window
from powerprof.model.records import Window
from powerprof.model.text import Say
from powerprof.system import paths
from powerprof.system.closeable import Closeable
from powerprof.system.errors import Interrupted, PowerprofError

_WAITED_S = 0.1
# Groups of processes that are not servers. The devices of the servers' files are listed separately.
_OTHERS = ("powerprof", "client")
_SHORTER = "interrupted: the window is shorter than asked"
_SHARES = ("user_percent", "system_percent", "irq_percent", "steal_percent")
_ACCOUNTED = (*_SHARES, "interrupts_hz", "context_switches_hz")


class WindowInterrupted(Interrupted):
    """SIGINT or SIGTERM ended a window early. `partial` is the window until then."""

    def __init__(self, message: str, partial: Window) -> None:
        super().__init__(message)
        self.partial = partial


class WindowMeter(Closeable, WindowPart):
    """Measures windows over the same open counters. A context manager.

    `groups` names sets of processes to account. `life` is that of the target. `parts` are this meter, its energy meters
    and the life, for a runner.
    """

    def __init__(
        self,
        *,
        meters: Meters | None = None,
        groups: Mapping[str, Iterable[int]] | None = None,
        residency_source: str = "cpuidle",
        life: TargetLife | None = None,
    ) -> None:
        self._meters = EnergySampler(meters)
        self.parts: tuple[WindowPart, ...] = (self._meters, self, *([] if life is None else [life]))
        self._processes = procfs.ProcessTimes(groups or {})
        self._source = open_source(residency_source)
        self._announced_s: float | None = None
        self._started_at = ""
        servers = [pid for name, pids in (groups or {}).items() if name not in _OTHERS for pid in pids]
        self._of_server, self._networks = disks.devices_of(servers), oslayer.networks_of(servers)
        self._migrations: oslayer.Migrations | None = None
        self._clocks: PerfClocks | None = None
        self._system: oslayer.OsReading | None = None
        self._times: tuple[dict[str, dict[int, int]], dict[str, dict[int, int]]] = {}, {}

    def close(self) -> None:
        self._source.close()
        if self._migrations is not None:
            self._migrations.close()
        if self._clocks is not None:
            self._clocks.close()

    def follow(self, name: str, pids: Iterable[int]) -> None:
        """Add or replace a group of processes."""
        self._processes.follow(name, pids)

    def open(self) -> None:
        if self._migrations is None and _has_own_procfs():
            cpus = online_cpus()
            self._migrations, self._clocks = oslayer.Migrations(cpus), PerfClocks(cpus)

    def begin(self) -> None:
        self._started_at, self._system = format_now(), self._read_system()
        self._source.start(self._announced_s)
        # Inside the edges: C0 of each CPU begins when its counters are read. Otherwise no group is charged for reading
        # the next CPU's counters.
        self._times = self._processes.read(), {}

    def end(self) -> None:
        times, stop_s = self._processes.read(), time.monotonic()
        self._source.stop()
        if time.monotonic() - stop_s > _WAITED_S:  # it waited for a program that measures whole seconds
            times = self._processes.read()
        self._times = self._times[0], times

    def collect(self, passed: PassedWindow) -> Window:
        """Return the window between the edges. Raise PowerprofError if the source cannot measure it."""
        energy, meter_notes = self._meters.collect()
        window = self._source.finish(self._started_at)
        wall_cpu_s = window.window_s * (window.cpus + window.unknown_cpus_count) if window.window_s else None
        processes, notes = procfs.compute_process_times(*self._times, wall_cpu_s)
        before, after = self._system, self._read_system()
        spent = None
        if before and after and before.stat and after.stat:
            spent = procfs.compute_accounting(before.stat, after.stat)
            if window.residency_source != "procfs":
                times = procfs.compute_cpu_times(before.stat, after.stat)
                notes += map(str, note_unknown_cpus(times, "user and system time are"))
        return msgspec.structs.replace(
            window,
            energy=energy,
            processes=processes,
            notes=merge_notes(window.notes, notes, passed.notes, meter_notes, [_SHORTER] if passed.interrupted else []),
            frequency_mhz=window.frequency_mhz or (procfs.read_frequency_mhz() if _has_own_procfs() else None),
            system=oslayer.compute_os_rates(before, after, self._of_server) if before and after else None,
            tool_cpu_s=passed.tool_cpu_s,
            tool_wakeups_count=passed.tool_wakeups_count,
            **({} if spent is None else {name: getattr(spent, name) for name in _ACCOUNTED}),
        )

    def _read_system(self) -> oslayer.OsReading | None:
        if not _has_own_procfs():
            return None
        return oslayer.read_counters(migrations=self._migrations, clocks=self._clocks, networks=self._networks)

    def open_window(self) -> None:
        """Begin a window for work of the caller.

        PowerTOP and turbostat cannot serve it: they need its length in advance.
        """
        self.running = OpenWindow(*self.parts)

    def close_window(self) -> Window:
        """End the window and return it. Raise PowerprofError for an unreadable counter or if the target ended."""
        passed = self.running.end()
        if passed.ended is not None:
            raise_ended(passed.ended)
        return self.collect(passed)

    def measure(self, duration_s: float) -> Window:
        """Return one window of `duration_s`.

        Raise WindowInterrupted, Interrupted without a usable part, or TargetEndedError.
        """
        self._announced_s = duration_s
        passed = run_window(duration_s, *self.parts)
        if passed.interrupted is None and passed.ended is not None:
            raise_ended(passed.ended)
        try:
            window = self.collect(passed)
        except PowerprofError as error:
            raise passed.interrupted or error from error
        if passed.interrupted is not None:
            raise WindowInterrupted(passed.interrupted.message, window) from passed.interrupted
        return window

    def repeat(self, count: int, duration_s: float, what: str, say: Say) -> Iterator[Window]:
        """Yield `count` consecutive windows, each with an announcement. Raise WindowInterrupted like `measure`."""
        for number in range(1, count + 1):
            say(f"{what}: window {number} of {count}")
            yield self.measure(duration_s)


def _has_own_procfs() -> bool:
    """Return whether /proc belongs to the host of sysfs: recorded files are never mixed with the running kernel's."""
    return paths.is_this_host() or str(paths.procfs()) != "/proc"
