# SPDX-License-Identifier: Apache-2.0
"""One window: an edge, sleep to an absolute deadline (`measure/window.py`), an edge.

The tool sleeps in between, unless a meter's counter could wrap: the tool's own wake-ups are the noise of the
measurement. Costly readings (/proc/stat, frequencies, meters) are outside of the two edges.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from statistics import fmean
from typing import Any

import msgspec

from powerprof import __version__
from powerprof.measure import oslayer, perf_events, procfs
from powerprof.measure.cpuidle import online_cpus
from powerprof.measure.residency import merge_notes, note_unknown_cpus, open_source
from powerprof.measure.window import EnergySampler, Meters, OpenWindow, PassedWindow, WindowPart, format_now, run_window
from powerprof.model.records import (
    Estimate,
    OsRates,
    Phase,
    Run,
    StateResidency,
    ToolCost,
    Window,
    ended_by_signal,
    metric_name,
)
from powerprof.model.text import Say
from powerprof.statistics.intervals import bounded_interval
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

    `groups` names sets of processes to account. `parts` are this meter and its energy meters, for a runner.
    """

    def __init__(
        self,
        *,
        meters: Meters | None = None,
        groups: Mapping[str, Iterable[int]] | None = None,
        residency_source: str = "cpuidle",
    ) -> None:
        self._meters = EnergySampler(meters)
        self.parts: tuple[WindowPart, ...] = (self._meters, self)
        self._processes = procfs.ProcessTimes(groups or {})
        self._source = open_source(residency_source)
        self._announced_s: float | None = None
        self._started_at = ""
        servers = [pid for name, pids in (groups or {}).items() if name not in _OTHERS for pid in pids]
        self._of_server, self._networks = oslayer.devices_of(servers), oslayer.networks_of(servers)
        self._migrations: oslayer.Migrations | None = None
        self._clocks: perf_events.PerfClocks | None = None
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
            self._migrations, self._clocks = oslayer.Migrations(cpus), perf_events.PerfClocks(cpus)

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
        """End the window and return it. Raise PowerprofError for an unreadable counter."""
        return self.collect(self.running.end())

    def measure(self, duration_s: float) -> Window:
        """Return one window of `duration_s`. Raise WindowInterrupted, or Interrupted without a usable part."""
        self._announced_s = duration_s
        passed = run_window(duration_s, *self.parts)
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


# Means of repeated windows, with 95 % intervals if there are several.

_METRICS: tuple[str, ...] = (
    *("c0_percent", "wakeups_hz", "steal_percent", "user_percent", "system_percent", "irq_percent"),
    *("interrupts_hz", "context_switches_hz", "frequency_mhz"),
)


def estimate(
    values: Iterable[float | None], floor: float | None = None, ceiling: float | None = None
) -> Estimate | None:
    """Return the `interval` of the known values. None without one."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return interval(known, floor, ceiling) if known else None


def interval(values: Sequence[float], floor: float | None = None, ceiling: float | None = None) -> Estimate:
    """Return the mean with Student's 95 % interval, within the possible range. A single value has no interval."""
    bounds = bounded_interval(values, floor, ceiling)
    return Estimate(mean=fmean(values), low=bounds.low if bounds else None, high=bounds.high if bounds else None)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _average_state(name: str, windows: Sequence[Window]) -> StateResidency:
    """Return the mean of one state over all windows. A window without the state did not enter it."""
    states = [state for window in windows for state in window.states if state.name == name]

    def mean(pick: Callable[[StateResidency], float | None]) -> float | None:
        values = [pick(state) for state in states]
        if None in values:
            return None
        return math.fsum(value or 0.0 for value in values) / len(windows)

    time_us = math.fsum(state.time_us for state in states)
    entries = sum(state.entries_count for state in states)
    counted = time_us / entries / 1e3 if entries and time_us else None
    return StateResidency(
        name=name,
        polling=states[0].polling,
        time_us=time_us,
        entries_count=entries,
        residency_percent=mean(lambda state: state.residency_percent),
        polling_percent=mean(lambda state: state.polling_percent),
        entries_hz=mean(lambda state: state.entries_hz),
        above_hz=mean(lambda state: state.above_hz),
        below_hz=mean(lambda state: state.below_hz),
        rejected_hz=mean(lambda state: state.rejected_hz),
        average_residency_ms=counted or _mean(state.average_residency_ms for state in states),
    )


def _join_system(windows: Sequence[Window]) -> OsRates | None:
    """Return the system rates over all windows. None if one window lacks them."""
    known = [(window.system, window.window_s) for window in windows if window.system and window.window_s]
    if not known or len(known) < len(windows):
        return None
    total, seconds = known[0]
    for rates, more_s in known[1:]:
        total, seconds = oslayer.join_os_rates(total, seconds, rates, more_s), seconds + more_s
    return total


def average_states(windows: Sequence[Window]) -> list[StateResidency]:
    """Return the means of all states by name, in order of first occurrence."""
    names = dict.fromkeys(state.name for window in windows for state in window.states)
    return [_average_state(name, windows) for name in names]


def make_phase(name: str, windows: Sequence[Window]) -> Phase:
    """Return the summary of the windows of a phase, which is not empty. Energy and causes are added elsewhere.

    `intervals` has the estimates by figure, for states as `residency_percent:C1`.
    """
    intervals = {}
    for metric in _METRICS:
        ceiling = 100.0 if metric.endswith("_percent") else None
        intervals[metric] = estimate((getattr(window, metric) for window in windows), 0.0, ceiling)
    states = average_states(windows)
    for state in states:
        shares = [
            next((other.residency_percent for other in window.states if other.name == state.name), 0.0)
            for window in windows
        ]
        intervals[metric_name("residency_percent", state.name)] = estimate(shares, 0.0, 100.0)
    return Phase(
        name=name,
        window_s=_mean(window.window_s for window in windows),
        cpus=max(w.cpus for w in windows),
        c0_percent=_mean(window.c0_percent for window in windows),
        idle_percent=_mean(window.idle_percent for window in windows),
        wakeups_hz=_mean(window.wakeups_hz for window in windows),
        states=states,
        steal_percent=_mean(window.steal_percent for window in windows),
        system=_join_system(windows),
        intervals={key: value for key, value in intervals.items() if value is not None and value.low is not None},
        windows=list(windows),
        notes=merge_notes(*(window.notes for window in windows)),
    )


def make_run(window: Window, *, host: dict[str, Any], interrupted: bool = False) -> Run:
    """Return the record of a run of one window, as `powerprof residency` saves it."""
    wakeups = window.tool_wakeups_count
    return Run(
        command="residency",
        started_at=window.started_at,
        host=host,
        tool=ToolCost(
            version=__version__,
            cpu_s=window.tool_cpu_s,
            wakeups_hz=wakeups / window.window_s if wakeups is not None and window.window_s else None,
        ),
        phases=[make_phase("residency", [window])],
        notes=window.notes,
        ended=ended_by_signal(interrupted),
    )


# Consecutive windows as one. Pure.

_RATES = (
    *("c0_percent", "idle_percent", "wakeups_hz", "steal_percent", "user_percent", "system_percent", "irq_percent"),
    *("interrupts_hz", "context_switches_hz", "residual_percent"),
)


def join_windows(windows: Sequence[Window]) -> Window:
    """Return consecutive windows, at least one, as one."""
    return reduce(join_two_windows, windows)


def join_two_windows(first: Window, second: Window) -> Window:
    """Return two consecutive windows as one. Rates and shares are weighted by time, energies are summed."""
    first_s, second_s = first.window_s or 0.0, second.window_s or 0.0
    total = first_s + second_s
    if not total:
        return first

    def mean(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else (a * first_s + b * second_s) / total

    later = {(reading.source, reading.domain): reading for reading in second.energy}
    energy = []
    for reading in first.energy:
        other = later.get((reading.source, reading.domain))
        joules = None
        if other is not None and other.joules is not None and reading.joules is not None:
            joules = reading.joules + other.joules
        energy.append(msgspec.structs.replace(reading, joules=joules, watts=None if joules is None else joules / total))
    cpu_s_of = {process.name: process.cpu_s for process in second.processes}
    processes = []
    for process in first.processes:
        cpu_s = process.cpu_s + cpu_s_of.get(process.name, 0.0)
        share = 100 * cpu_s / (total * first.cpus) if first.cpus else None
        processes.append(msgspec.structs.replace(process, cpu_s=cpu_s, percent=share))
    others = {state.name: state for state in second.states}
    states = []
    for state in first.states:
        same = others.get(state.name)
        if same is None:
            continue
        time_us, entries = state.time_us + same.time_us, state.entries_count + same.entries_count
        states.append(
            msgspec.structs.replace(
                state,
                time_us=time_us,
                entries_count=entries,
                entries_hz=entries / total,
                residency_percent=mean(state.residency_percent, same.residency_percent),
                average_residency_ms=time_us / entries / 1e3 if entries else None,
                above_hz=mean(state.above_hz, same.above_hz),
                below_hz=mean(state.below_hz, same.below_hz),
                rejected_hz=mean(state.rejected_hz, same.rejected_hz),
            )
        )

    def summed(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else a + b

    system = None
    if first.system is not None and second.system is not None:
        system = oslayer.join_os_rates(first.system, first_s, second.system, second_s)
    wakeups = summed(first.tool_wakeups_count, second.tool_wakeups_count)
    return msgspec.structs.replace(
        first,
        window_s=total,
        energy=energy,
        processes=processes,
        states=states,
        edge_exits_count=first.edge_exits_count + second.edge_exits_count,
        tool_cpu_s=summed(first.tool_cpu_s, second.tool_cpu_s),
        tool_wakeups_count=None if wakeups is None else int(wakeups),
        system=system,
        notes=list(dict.fromkeys([*first.notes, *second.notes])),
        **{name: mean(getattr(first, name), getattr(second, name)) for name in _RATES},
    )
