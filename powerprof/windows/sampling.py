# SPDX-License-Identifier: Apache-2.0
"""One window of measuring: an edge, sleep to an absolute deadline, an edge.

Nothing is polled in between, unless a meter's counter would wrap: the tool's own wake-ups are the noise of
the measurement. What is costly to read (/proc/stat, frequencies, meters) is read outside of the two edges.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta

import msgspec

from powerprof import paths
from powerprof.closeable import Closeable
from powerprof.errors import Interrupted, PowerprofError
from powerprof.records import Window
from powerprof.sources import procfs
from powerprof.sources.base import Meters
from powerprof.sources.clock import Suspended, suspended_note
from powerprof.text import Say
from powerprof.windows.counted import open_source
from powerprof.windows.residency import merge_notes

_WAITED_S = 0.1


class WindowInterrupted(Interrupted):
    """SIGINT or SIGTERM arrived during a window; `partial` is what was measured until then, if anything."""

    def __init__(self, message: str, partial: Window | None) -> None:
        super().__init__(message)
        self.partial = partial


def now_text(ago_s: float = 0.0) -> str:
    """This moment, or the one so long ago, as RFC 3339 in UTC, to the millisecond."""
    return (datetime.now(UTC) - timedelta(seconds=ago_s)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class WindowMeter(Closeable):
    """Opens and closes windows over the same open counters; a window lasts from `open` to `close_window`.

    `groups` names sets of processes whose CPU time is wanted. Use it as a context manager.
    """

    def __init__(
        self,
        *,
        meters: Meters | None = None,
        groups: Mapping[str, Iterable[int]] | None = None,
        residency_source: str = "cpuidle",
    ) -> None:
        self._meters = meters
        self._processes = procfs.ProcessTimes(groups or {})
        self._source = open_source(residency_source)
        self._started_at = ""
        self._stat: procfs.Stat | None = None
        self._times: dict[str, dict[int, int]] = {}
        self._suspended = Suspended()
        self._start_s = 0.0
        self._own = _own_use()

    def close(self) -> None:
        self._source.close()

    def open_window(self, duration_s: float | None = None) -> None:
        """Begin. `duration_s` must be known beforehand for powertop and turbostat only."""
        self._started_at = now_text()
        self._suspended.since_s()
        self._stat = _stat()
        if self._meters is not None:
            self._meters.sample()
        self._start_s = time.monotonic()
        cpu_s, _ = _own_use()
        self._source.start(duration_s)
        # The cost of the edges is ours too; the moves from CPU to CPU there are no wake-ups of the window.
        self._own = cpu_s, _own_use()[1]
        # Within the edges: C0 begins on each CPU when its counters are read, and what reading the next one's costs us
        # would be nobody's share of it.
        self._times = self._processes.read()

    def close_window(self) -> Window:
        """End, and say what happened in between. Raises PowerprofError where a counter cannot be read."""
        _, switches = _own_use()
        times, asked_s = self._processes.read(), time.monotonic()
        self._source.stop()
        cpu_s, _ = _own_use()
        end_s = time.monotonic()
        if end_s - asked_s > _WAITED_S:  # for a program that measures in whole seconds
            times = self._processes.read()
        energy, meter_notes = [], []
        if self._meters is not None:
            self._meters.sample()
            energy = self._meters.readings(self._start_s, end_s)
            meter_notes = self._meters.notes()
        window = self._source.finish(self._started_at)
        wall_cpu_s = window.window_s * window.cpus if window.window_s else None
        processes, notes = procfs.process_times(self._times, times, wall_cpu_s)
        stat = _stat()
        spent = procfs.accounting(self._stat, stat) if self._stat and stat else None
        notes += suspended_note(self._suspended.since_s())
        return msgspec.structs.replace(
            window,
            energy=energy,
            processes=processes,
            notes=merge_notes(window.notes, notes, meter_notes),
            frequency_mhz=window.frequency_mhz or (procfs.frequency_mhz() if _has_proc() else None),
            tool_cpu_s=cpu_s - self._own[0],
            tool_wakeups_count=switches - self._own[1],
            **(
                {}
                if spent is None
                else {
                    "user_percent": spent.user_percent,
                    "system_percent": spent.system_percent,
                    "irq_percent": spent.irq_percent,
                    "steal_percent": spent.steal_percent,
                    "interrupts_hz": spent.interrupts_hz,
                    "context_switches_hz": spent.context_switches_hz,
                }
            ),
        )

    def measure(self, duration_s: float, stop: threading.Event | None = None) -> Window:
        """One window of `duration_s`, shorter where `stop` is set. Raises WindowInterrupted."""
        self.open_window(duration_s)
        deadline_s = time.monotonic() + duration_s
        try:
            self._wait(deadline_s, stop)
        except Interrupted as error:
            try:
                partial = self.close_window()
            except PowerprofError:
                raise WindowInterrupted(error.message, None) from error
            note = "interrupted: the window is shorter than asked"
            partial = msgspec.structs.replace(partial, notes=[*partial.notes, note])
            raise WindowInterrupted(error.message, partial) from error
        return self.close_window()

    def measure_or_part(self, duration_s: float) -> tuple[Window, bool]:
        """As `measure`; the part that there is where it was interrupted, and whether it was.

        Raises WindowInterrupted where there is none.
        """
        try:
            return self.measure(duration_s), False
        except WindowInterrupted as error:
            if error.partial is None:
                raise
            return error.partial, True

    def repeat(self, count: int, duration_s: float, what: str, say: Say) -> Iterator[Window]:
        """`count` windows, one after the other, each announced. Raises WindowInterrupted as `measure` does."""
        for number in range(1, count + 1):
            say(f"{what}: window {number} of {count}, {duration_s:g} s")
            yield self.measure(duration_s)

    def _wait(self, deadline_s: float, stop: threading.Event | None) -> None:
        interval_s = self._meters.max_interval_s if self._meters is not None else None
        while (left_s := deadline_s - time.monotonic()) > 0:
            step_s = left_s if interval_s is None else min(left_s, interval_s)
            # Both sleep in the kernel until an absolute time: one wake-up.
            if stop is None:
                time.sleep(step_s)
            elif stop.wait(step_s):
                return
            if self._meters is not None and step_s < left_s:
                self._meters.sample()


def measure_window(
    duration_s: float,
    *,
    meters: Meters | None = None,
    groups: Mapping[str, Iterable[int]] | None = None,
    residency_source: str = "cpuidle",
    stop: threading.Event | None = None,
) -> Window:
    """Measure this host for `duration_s` seconds. Raises WindowInterrupted with `.partial` on SIGINT,
    SIGTERM.

    For several windows in a row keep one `WindowMeter`: its counters stay open.
    """
    with WindowMeter(meters=meters, groups=groups, residency_source=residency_source) as meter:
        return meter.measure(duration_s, stop)


def _own_use() -> tuple[float, int]:
    """CPU seconds of this process, and how often it gave the CPU up: each time a wake-up follows."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, used.ru_nvcsw


def _has_proc() -> bool:
    """Whether /proc belongs to the same host as sysfs: the running kernel is never mixed into a recorded one."""
    return paths.is_this_host() or str(paths.procfs()) != "/proc"


def _stat() -> procfs.Stat | None:
    try:
        return procfs.read_stat() if _has_proc() else None
    except PowerprofError:
        return None
