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
from powerprof.sources import procfs
from powerprof.sources.base import Meters
from powerprof.text import Say
from powerprof.windows.counted import open_source
from powerprof.windows.residency import merge_notes
from powerprof.windows.runner import Metered, Part, Passed, Running, pass_window

_WAITED_S = 0.1


class WindowInterrupted(Interrupted):
    """SIGINT or SIGTERM arrived during a window; `partial` is what was measured until then."""

    def __init__(self, message: str, partial: Window) -> None:
        super().__init__(message)
        self.partial = partial


def now_text(ago_s: float = 0.0) -> str:
    """This moment, or the one so long ago, as RFC 3339 in UTC, to the millisecond."""
    return (datetime.now(UTC) - timedelta(seconds=ago_s)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class WindowMeter(Closeable, Part):
    """Measures windows over the same open counters; a window lasts from `open_window` to `close_window`.

    `groups` names sets of processes whose CPU time is wanted. Use it as a context manager.
    """

    def __init__(
        self,
        *,
        meters: Meters | None = None,
        groups: Mapping[str, Iterable[int]] | None = None,
        residency_source: str = "cpuidle",
    ) -> None:
        self._meters = Metered(meters)
        self._processes = procfs.ProcessTimes(groups or {})
        self._source = open_source(residency_source)
        self._announced_s: float | None = None
        self._started_at = ""
        self._stats: tuple[procfs.Stat | None, procfs.Stat | None] = None, None
        self._times: tuple[dict[str, dict[int, int]], dict[str, dict[int, int]]] = {}, {}

    def close(self) -> None:
        self._source.close()

    @property
    def unread_at_most_s(self) -> float:
        """As the meters have it."""
        return self._meters.unread_at_most_s

    def read(self) -> None:
        """Sample the meters."""
        self._meters.read()

    def begin(self) -> None:
        """One edge."""
        self._started_at = now_text()
        self._stats = _stat(), None
        self._meters.begin()
        self._source.start(self._announced_s)
        # Within the edges: C0 begins on each CPU when its counters are read, and what reading the next one's costs us
        # would be nobody's share of it.
        self._times = self._processes.read(), {}

    def end(self) -> None:
        """The other edge. Raises PowerprofError where a counter cannot be read."""
        times, asked_s = self._processes.read(), time.monotonic()
        self._source.stop()
        if time.monotonic() - asked_s > _WAITED_S:  # for a program that measures in whole seconds
            times = self._processes.read()
        self._times = self._times[0], times
        self._meters.end()

    def collect(self, passed: Passed) -> Window:
        """What happened between the edges. Raises PowerprofError where the source cannot tell."""
        energy, meter_notes = self._meters.collect()
        window = self._source.finish(self._started_at)
        wall_cpu_s = window.window_s * window.cpus if window.window_s else None
        processes, notes = procfs.process_times(*self._times, wall_cpu_s)
        before, after = self._stats[0], _stat()
        spent = procfs.accounting(before, after) if before and after else None
        return msgspec.structs.replace(
            window,
            energy=energy,
            processes=processes,
            notes=merge_notes(window.notes, notes, passed.notes, meter_notes),
            frequency_mhz=window.frequency_mhz or (procfs.frequency_mhz() if _has_proc() else None),
            tool_cpu_s=passed.tool_cpu_s,
            tool_wakeups_count=passed.tool_wakeups_count,
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

    def open_window(self) -> None:
        """Begin a window in which the caller does something; not for powertop and turbostat, which must know when it
        ends."""
        self._running = Running(self)

    def close_window(self) -> Window:
        """End it, and say what happened in between. Raises PowerprofError where a counter cannot be read."""
        return self.collect(self._running.end())

    def measure(self, duration_s: float) -> Window:
        """One window of `duration_s`. Raises WindowInterrupted, or Interrupted where there is nothing of it."""
        self._announced_s = duration_s
        passed = pass_window(duration_s, self)
        try:
            window = self.collect(passed)
        except PowerprofError as error:
            raise passed.interrupted or error from error
        if passed.interrupted is None:
            return window
        note = "interrupted: the window is shorter than asked"
        partial = msgspec.structs.replace(window, notes=[*window.notes, note])
        raise WindowInterrupted(passed.interrupted.message, partial) from passed.interrupted

    def measure_or_part(self, duration_s: float) -> tuple[Window, bool]:
        """As `measure`; the part that there is where it was interrupted, and whether it was."""
        try:
            return self.measure(duration_s), False
        except WindowInterrupted as error:
            return error.partial, True

    def repeat(self, count: int, duration_s: float, what: str, say: Say) -> Iterator[Window]:
        """`count` windows, one after the other, each announced. Raises WindowInterrupted as `measure` does."""
        for number in range(1, count + 1):
            say(f"{what}: window {number} of {count}, {duration_s:g} s")
            yield self.measure(duration_s)


def measure_window(
    duration_s: float,
    *,
    meters: Meters | None = None,
    groups: Mapping[str, Iterable[int]] | None = None,
    residency_source: str = "cpuidle",
) -> Window:
    """Measure this host for `duration_s` seconds. Raises WindowInterrupted with `.partial` on SIGINT,
    SIGTERM.

    For several windows in a row keep one `WindowMeter`: its counters stay open.
    """
    with WindowMeter(meters=meters, groups=groups, residency_source=residency_source) as meter:
        return meter.measure(duration_s)


def _has_proc() -> bool:
    """Whether /proc belongs to the same host as sysfs: the running kernel is never mixed into a recorded one."""
    return paths.is_this_host() or str(paths.procfs()) != "/proc"


def _stat() -> procfs.Stat | None:
    try:
        return procfs.read_stat() if _has_proc() else None
    except PowerprofError:
        return None
