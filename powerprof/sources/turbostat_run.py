# SPDX-License-Identifier: Apache-2.0
"""turbostat as a residency source: runs it for one window, and turns its tables into a window.

`C6%` is what the kernel requested: those are the states, and with C0 they sum to 100. `Busy%`, `CPU%c6`,
`Pkg%pc6` are what the hardware did (turbostat(8)): they are the achieved ones.
"""

from __future__ import annotations

from typing import Literal

from powerprof.errors import CapabilityError
from powerprof.records import StateResidency, Window
from powerprof.sources.base import is_polling
from powerprof.sources.timed_program import OUTPUT, Outcome, TimedProgram
from powerprof.sources.turbostat import TurbostatInterval, TurbostatLog, parse_turbostat
from powerprof.system_records import AchievedResidency


def _mean(log: TurbostatLog, column: str) -> float | None:
    """The column's mean over the intervals, each weighted by how long it was; None where it is in none."""
    total = weights = 0.0
    for interval in log.intervals:
        value = _of_system(interval, column)
        if value is not None:
            weight = interval.duration_s or 1.0
            total += weight * value
            weights += weight
    return total / weights if weights else None


def _of_system(interval: TurbostatInterval, column: str) -> float | None:
    if interval.system is not None:
        return interval.system.values.get(column)
    values = [row.values[column] for row in interval.cpus if column in row.values]
    return sum(values) / len(values) if values else None


def _states(log: TurbostatLog, cpus: int) -> list[StateResidency]:
    states = []
    for name in log.requested_states():
        percent, entries = _mean(log, f"{name}%"), _entries_hz(log, name)
        polling = is_polling(name, "")
        busy_ms = None if percent is None else percent / 100.0 * cpus * 1e3  # a second, over all CPUs
        states.append(
            StateResidency(
                name=name,
                polling=polling,
                residency_percent=0.0 if polling and percent is not None else percent,
                polling_percent=percent if polling else None,
                entries_hz=entries,
                average_residency_ms=busy_ms / entries if busy_ms and entries else None,
            )
        )
    return states


def _entries_hz(log: TurbostatLog, name: str) -> float | None:
    """Entries a second over all CPUs: the system row's count is their sum or, in other versions, their mean."""
    count = seconds = 0.0
    for interval in log.intervals:
        values = [row.values[name] for row in interval.cpus if name in row.values]
        if not values or not interval.duration_s:
            continue
        count += sum(values)
        seconds += interval.duration_s
    return count / seconds if seconds else None


def _scope(column: str) -> Literal["cpu", "core", "package"]:
    return "package" if column.startswith("P") else "core"


def window_from(log: TurbostatLog, started_at: str) -> Window:
    """The whole log as one window; C0 is what the requested states leave of the time."""
    cpus = max((len(interval.cpus) for interval in log.intervals), default=0)
    lengths = [interval.duration_s for interval in log.intervals]
    window_s = sum(length for length in lengths if length) if all(lengths) else None
    states = _states(log, cpus)
    shares = [state.residency_percent for state in states if not state.polling]
    idle = sum(share for share in shares if share is not None)
    known = bool(shares) and None not in shares
    rates = [state.entries_hz for state in states]
    columns = (("Busy%", "cpu"), *((column, _scope(column)) for column in log.achieved_columns()))
    achieved = [
        AchievedResidency(scope=scope, name=column, residency_percent=mean)
        for column, scope in columns
        if (mean := _mean(log, column)) is not None
    ]
    which = "states are what the kernel requested (C6%), achieved ones the hardware's (CPU%c6, Pkg%pc6)"
    return Window(
        started_at=started_at,
        window_s=window_s,
        cpus=cpus,
        states=states,
        achieved=achieved,
        c0_percent=max(0.0, 100.0 - idle) if known else None,
        idle_percent=min(100.0, idle) if known else None,
        residual_percent=max(0.0, idle - 100.0) if known else None,
        wakeups_hz=sum(rate or 0.0 for rate in rates) if rates and None not in rates else None,
        frequency_mhz=_mean(log, "Bzy_MHz"),
        residency_source="turbostat",
        notes=[*log.notes, which],
    )


class TurbostatResidency:
    """Runs turbostat for one interval as long as the window. Raises CapabilityError where it cannot run here."""

    def __init__(self) -> None:
        self._program = TimedProgram("turbostat", "linux-cpupower")
        self._outcome: Outcome | None = None

    def start(self, duration_s: float | None) -> None:
        if duration_s is None:
            raise RuntimeError("turbostat must know the length of the window in advance")
        self._program.launch(
            [
                "--enable",
                "Time_Of_Day_Seconds",
                "--interval",
                f"{max(0.1, duration_s):.3f}",
                "--num_iterations",
                "1",
                "--out",
                OUTPUT,
            ],
            duration_s,
        )

    def stop(self) -> None:
        self._outcome = self._program.outcome()

    def finish(self, started_at: str) -> Window:
        outcome = self._outcome
        if outcome is None:
            return self._program.unknown_window(started_at)
        table = self._program.report()
        if outcome.returncode != 0 or not table:
            message = outcome.messages[-1] if outcome.messages else f"exit {outcome.returncode}"
            reason = message.removeprefix("turbostat: ")[:200]
            hint = "it needs root and /dev/cpu/*/msr; or use --residency-source cpuidle"
            raise CapabilityError(f"turbostat cannot run here: {reason}", hint)
        return window_from(parse_turbostat(table, "turbostat's output"), started_at)

    def close(self) -> None:
        self._program.close()
