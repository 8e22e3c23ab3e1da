# SPDX-License-Identifier: Apache-2.0
"""Means of repeated windows, with 95 % intervals if there are several. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any

from powerprof import __version__
from powerprof.measure import oslayer
from powerprof.measure.residency import merge_notes
from powerprof.model.records import Estimate, Phase, Run, StateResidency, ToolCost, Window, ended_by_signal, metric_name
from powerprof.model.system_activity import OsRates
from powerprof.statistics.intervals import bounded_interval

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


def _average(values: Iterable[float | None]) -> float | None:
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
        average_residency_ms=counted or _average(state.average_residency_ms for state in states),
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
        window_s=_average(window.window_s for window in windows),
        cpus=max(w.cpus for w in windows),
        c0_percent=_average(window.c0_percent for window in windows),
        idle_percent=_average(window.idle_percent for window in windows),
        wakeups_hz=_average(window.wakeups_hz for window in windows),
        states=states,
        steal_percent=_average(window.steal_percent for window in windows),
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
