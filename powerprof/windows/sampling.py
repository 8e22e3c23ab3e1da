# SPDX-License-Identifier: Apache-2.0
"""One window of measuring: an edge, sleep to an absolute deadline (`windows/runner.py`), an edge.

Nothing is polled in between, unless a meter's counter would wrap: the tool's own wake-ups are the noise of
the measurement. What is costly to read (/proc/stat, frequencies, meters) is read outside of the two edges.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta

import msgspec

from powerprof import paths
from powerprof.closeable import Closeable
from powerprof.errors import Interrupted, PowerprofError
from powerprof.records import Window
from powerprof.sources import cpufreq, disks, oslayer, procfs
from powerprof.sources.base import Meters
from powerprof.sources.cpuidle import online_cpus
from powerprof.text import Say
from powerprof.windows.counted import open_source
from powerprof.windows.residency import merge_notes
from powerprof.windows.runner import Metered, OpenWindow, Part, Passed, pass_window

_WAITED_S = 0.1
# The groups of processes that are servers, whose files' devices are listed separately.
_SERVERS = ("server", "mysqld")
_SHORTER = "interrupted: the window is shorter than asked"
_SHARES = ("user_percent", "system_percent", "irq_percent", "steal_percent")
_ACCOUNTED = (*_SHARES, "interrupts_hz", "context_switches_hz")


class WindowInterrupted(Interrupted):
    """SIGINT or SIGTERM arrived during a window; `partial` is what was measured until then."""

    def __init__(self, message: str, partial: Window) -> None:
        super().__init__(message)
        self.partial = partial


def now_text(ago_s: float = 0.0) -> str:
    """This moment, or the one so long ago, as RFC 3339 in UTC, to the millisecond."""
    return (datetime.now(UTC) - timedelta(seconds=ago_s)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class WindowMeter(Closeable, Part):
    """Measures windows over the same open counters. A context manager.

    `groups` names sets of processes whose CPU time is wanted. `parts` are it and its meters, for a runner.
    """

    def __init__(
        self,
        *,
        meters: Meters | None = None,
        groups: Mapping[str, Iterable[int]] | None = None,
        residency_source: str = "cpuidle",
    ) -> None:
        self._meters = Metered(meters)
        self.parts: tuple[Part, ...] = (self._meters, self)
        self._processes = procfs.ProcessTimes(groups or {})
        self._source = open_source(residency_source)
        self._announced_s: float | None = None
        self._started_at = ""
        servers = [pid for name in _SERVERS for pid in (groups or {}).get(name, ())]
        self._of_server, self._networks = disks.devices_of(servers), oslayer.networks_of(servers)
        self._migrations: oslayer.Migrations | None = None
        self._clocks: cpufreq.PerfClocks | None = None
        self._system: oslayer.Reading | None = None
        self._times: tuple[dict[str, dict[int, int]], dict[str, dict[int, int]]] = {}, {}

    def close(self) -> None:
        self._source.close()
        if self._migrations is not None:
            self._migrations.close()
        if self._clocks is not None:
            self._clocks.close()

    def follow(self, name: str, pids: Iterable[int]) -> None:
        """Another group, of processes that were not there yet."""
        self._processes.follow(name, pids)

    def open(self) -> None:
        if self._migrations is None and _has_proc():
            cpus = online_cpus()
            self._migrations, self._clocks = oslayer.Migrations(cpus), cpufreq.PerfClocks(cpus)

    def begin(self) -> None:
        self._started_at, self._system = now_text(), self._read_system()
        self._source.start(self._announced_s)
        # Within the edges: C0 begins on each CPU when its counters are read, and what reading the next one's costs us
        # would be nobody's share of it.
        self._times = self._processes.read(), {}

    def end(self) -> None:
        times, asked_s = self._processes.read(), time.monotonic()
        self._source.stop()
        if time.monotonic() - asked_s > _WAITED_S:  # for a program that measures in whole seconds
            times = self._processes.read()
        self._times = self._times[0], times

    def collect(self, passed: Passed) -> Window:
        """What happened between the edges. Raises PowerprofError where the source cannot tell."""
        energy, meter_notes = self._meters.collect()
        window = self._source.finish(self._started_at)
        wall_cpu_s = window.window_s * window.cpus if window.window_s else None
        processes, notes = procfs.process_times(*self._times, wall_cpu_s)
        before, after = self._system, self._read_system()
        spent = procfs.accounting(before.stat, after.stat) if before and after and before.stat and after.stat else None
        return msgspec.structs.replace(
            window,
            energy=energy,
            processes=processes,
            notes=merge_notes(window.notes, notes, passed.notes, meter_notes, [_SHORTER] if passed.interrupted else []),
            frequency_mhz=window.frequency_mhz or (procfs.frequency_mhz() if _has_proc() else None),
            system=oslayer.between(before, after, self._of_server) if before and after else None,
            tool_cpu_s=passed.tool_cpu_s,
            tool_wakeups_count=passed.tool_wakeups_count,
            **({} if spent is None else {name: getattr(spent, name) for name in _ACCOUNTED}),
        )

    def _read_system(self) -> oslayer.Reading | None:
        if not _has_proc():
            return None
        return oslayer.read(migrations=self._migrations, clocks=self._clocks, networks=self._networks)

    def open_window(self) -> None:
        """Begin a window in which the caller does something; not for powertop and turbostat, which must know when it
        ends."""
        self.running = OpenWindow(*self.parts)

    def close_window(self) -> Window:
        """End it, and say what happened in between. Raises PowerprofError where a counter cannot be read."""
        return self.collect(self.running.end())

    def measure(self, duration_s: float) -> Window:
        """One window of `duration_s`. Raises WindowInterrupted, or Interrupted where there is nothing of it."""
        self._announced_s = duration_s
        passed = pass_window(duration_s, *self.parts)
        try:
            window = self.collect(passed)
        except PowerprofError as error:
            raise passed.interrupted or error from error
        if passed.interrupted is not None:
            raise WindowInterrupted(passed.interrupted.message, window) from passed.interrupted
        return window

    def repeat(self, count: int, duration_s: float, what: str, say: Say) -> Iterator[Window]:
        """`count` windows, one after the other, each announced. Raises WindowInterrupted as `measure` does."""
        for number in range(1, count + 1):
            say(f"{what}: window {number} of {count}, {duration_s:g} s")
            yield self.measure(duration_s)


def _has_proc() -> bool:
    """Whether /proc belongs to the same host as sysfs: the running kernel is never mixed into a recorded one."""
    return paths.is_this_host() or str(paths.procfs()) != "/proc"
