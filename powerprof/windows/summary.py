# SPDX-License-Identifier: Apache-2.0
"""Repeated windows put together: means, and 95 % intervals where the repetition gives one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any

from powerprof import __version__
from powerprof.records import Estimate, Phase, Run, StateResidency, ToolCost, Window, metric_of
from powerprof.sources import oslayer
from powerprof.statistics import bounded_interval
from powerprof.system_records import OsRates
from powerprof.windows.residency import merge_notes

_METRICS: tuple[str, ...] = (
    "c0_percent",
    "wakeups_hz",
    "steal_percent",
    "user_percent",
    "system_percent",
    "irq_percent",
    "interrupts_hz",
    "context_switches_hz",
    "frequency_mhz",
)


def estimate(
    values: Iterable[float | None], floor: float | None = None, ceiling: float | None = None
) -> Estimate | None:
    """As `interval` over the known values; None where there is none."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return interval(known, floor, ceiling) if known else None


def interval(values: Sequence[float], floor: float | None = None, ceiling: float | None = None) -> Estimate:
    """The mean with Student's 95 % interval, within what is possible. One value alone has none."""
    bounds = bounded_interval(values, floor, ceiling)
    return Estimate(mean=fmean(values), low=bounds.low if bounds else None, high=bounds.high if bounds else None)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _state(name: str, windows: Sequence[Window]) -> StateResidency:
    """The mean of one state over all windows: one that a window does not have was not entered in it."""
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


def _system(windows: Sequence[Window]) -> OsRates | None:
    """What the system did in all of them; None where one does not know."""
    known = [(window.system, window.window_s) for window in windows if window.system and window.window_s]
    if not known or len(known) < len(windows):
        return None
    total, seconds = known[0]
    for rates, more_s in known[1:]:
        total, seconds = oslayer.joined(total, seconds, rates, more_s), seconds + more_s
    return total


def states_of(windows: Sequence[Window]) -> list[StateResidency]:
    """The states of all windows by name, in the order in which they are first seen."""
    names = dict.fromkeys(state.name for window in windows for state in window.states)
    return [_state(name, windows) for name in names]


def phase_of(name: str, windows: Sequence[Window]) -> Phase:
    """Put the windows of a phase together; energy and causes are not this module's. `windows` is not empty.

    `intervals` holds the estimates by the name of the figure, a state's as `residency_percent:C1`.
    """
    intervals = {}
    for metric in _METRICS:
        ceiling = 100.0 if metric.endswith("_percent") else None
        intervals[metric] = estimate((getattr(window, metric) for window in windows), 0.0, ceiling)
    states = states_of(windows)
    for state in states:
        shares = [
            next((other.residency_percent for other in window.states if other.name == state.name), 0.0)
            for window in windows
        ]
        intervals[metric_of("residency_percent", state.name)] = estimate(shares, 0.0, 100.0)
    return Phase(
        name=name,
        window_s=_mean(window.window_s for window in windows),
        cpus=max(w.cpus for w in windows),
        c0_percent=_mean(window.c0_percent for window in windows),
        idle_percent=_mean(window.idle_percent for window in windows),
        wakeups_hz=_mean(window.wakeups_hz for window in windows),
        states=states,
        steal_percent=_mean(window.steal_percent for window in windows),
        system=_system(windows),
        intervals={key: value for key, value in intervals.items() if value is not None and value.low is not None},
        windows=list(windows),
        notes=merge_notes(*(window.notes for window in windows)),
    )


def run_of(window: Window, *, host: dict[str, Any], interrupted: bool = False) -> Run:
    """The record of a run that is one window: `powerprof residency`."""
    wakeups = window.tool_wakeups_count
    return Run(
        id=None,
        command="residency",
        started_at=window.started_at,
        host=host,
        tool=ToolCost(
            version=__version__,
            cpu_s=window.tool_cpu_s,
            wakeups_hz=wakeups / window.window_s if wakeups is not None and window.window_s else None,
        ),
        phases=[phase_of("residency", [window])],
        notes=window.notes,
        interrupted=interrupted,
    )
