# SPDX-License-Identifier: Apache-2.0
"""turbostat as a residency source: run it for one window, and convert its tables to a window.

`C6%` is the kernel's request: these are the states. `Busy%`, `CPU%c6` and `Pkg%pc6` are the hardware's
(turbostat(8)): they become the achieved residencies. C0 is `Busy%`. Without it, C0 is the time that the states leave,
if the header proves that the table has all of them.
"""

from __future__ import annotations

from typing import Literal

from powerprof.measure.idle_counters import is_polling
from powerprof.measure.program_output import OUTPUT, Outcome, TimedProgram
from powerprof.measure.turbostat import (
    COMPLETE,
    STATE,
    TurbostatInterval,
    TurbostatLog,
    find_usual_length,
    is_sum_or_mean,
    parse_turbostat,
)
from powerprof.model.records import AchievedResidency, StateResidency, Window
from powerprof.system.errors import CapabilityError

# Busy% rounds, and its two counters are read one after the other.
_MOST_BUSY = 105.0


def _average_column(log: TurbostatLog, column: str) -> float | None:
    """Return the column's mean over the intervals, weighted by their length. None if no interval has it."""
    total = weights = 0.0
    usual = find_usual_length(log.intervals) or 1.0
    for interval in log.intervals:
        value = _read_system_value(interval, column)
        if value is not None:
            weight = interval.duration_s or usual  # the length of the first table may be unknown
            total += weight * value
            weights += weight
    return total / weights if weights else None


def _read_system_value(interval: TurbostatInterval, column: str) -> float | None:
    if interval.system is not None:
        return interval.system.values.get(column)
    values = [row.values[column] for row in interval.cpus if column in row.values]
    return sum(values) / len(values) if values else None


def _make_states(log: TurbostatLog, cpus: int) -> list[StateResidency]:
    states = []
    for name in log.requested_states():
        percent, entries = _average_column(log, f"{name}%"), _compute_entries_hz(log, name)
        polling = is_polling(name, "")
        busy_ms = None if percent is None else percent / 100.0 * cpus * 1e3  # per second, over all CPUs
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


def _compute_entries_hz(log: TurbostatLog, name: str) -> float | None:
    """Return entries per second over all CPUs. None if CPUs are hidden: the system row has their sum or mean.

    The system row's count is a sum or, in other versions, a mean: it is only compared.
    """
    count = seconds = 0.0
    for interval in log.intervals:
        values = [row.values.get(name) for row in interval.cpus]
        known = [value for value in values if value is not None]
        whole = None if interval.system is None else interval.system.values.get(name)
        if not known or len(known) < len(values) or (whole is not None and not is_sum_or_mean(whole, known)):
            return None
        if interval.duration_s:
            count += sum(known)
            seconds += interval.duration_s
    return count / seconds if seconds else None


def make_turbostat_window(log: TurbostatLog, started_at: str) -> Window:
    """Return the whole log as one window. C0 is `Busy%`; without it, None unless the table has every idle state."""
    # A row of a CPU has its columns; rows of packages alone are no CPUs.
    is_per_cpu = any(c in ("CPU", "Busy%", "Avg_MHz", "IRQ") or STATE.fullmatch(c) for c in log.columns)
    cpus = max((len(interval.cpus) for interval in log.intervals), default=0) if is_per_cpu else 0
    lengths = [interval.duration_s for interval in log.intervals]
    window_s = sum(length for length in lengths if length) if all(lengths) else None
    states = _make_states(log, cpus)
    shares = [state.residency_percent for state in states if not state.polling]
    idle = sum(share for share in shares if share is not None)
    busy = _average_column(log, "Busy%")
    # Polling counts as running.
    has_all = bool(shares) and None not in shares and log.has_all_states(polling=False)
    is_possible = busy is not None and 0.0 <= busy <= _MOST_BUSY
    if busy is not None:
        c0 = min(100.0, busy) if is_possible else None
    else:
        c0 = max(0.0, 100.0 - idle) if has_all else None
    rates = [state.entries_hz for state in states]
    scopes: dict[str, Literal["cpu", "core", "package"]] = {"Busy%": "cpu"}
    scopes |= {column: "package" if column.startswith("P") else "core" for column in log.achieved_columns()}
    achieved = [
        AchievedResidency(scope=scope, name=column, residency_percent=mean)
        for column, scope in scopes.items()
        if (mean := _average_column(log, column)) is not None
    ]
    notes = list(log.notes)
    if states:
        notes.append("states are what the kernel requested (C6%), achieved ones the hardware's (CPU%c6, Pkg%pc6)")
    if busy is not None and not is_possible:
        notes.append(f"C0 is unknown: a Busy% of {busy:.2f} is impossible")
    elif busy is not None:
        apart = ": C0 and the requested states need not add up to 100 %" if states else ""
        notes.append(f"C0 is Busy%, which the hardware counts{apart}")
    elif c0 is None:
        notes.append(f"C0 is unknown: the table has no Busy%, and idle states may be hidden; {COMPLETE}")
    return Window(
        started_at=started_at,
        window_s=window_s,
        cpus=cpus,
        states=states,
        achieved=achieved,
        c0_percent=c0,
        idle_percent=None if c0 is None else 100.0 - c0,
        residual_percent=None if c0 is None else 0.0 if busy is not None else max(0.0, idle - 100.0),
        wakeups_hz=sum(rate or 0.0 for rate in rates)
        if rates and None not in rates and log.has_all_states(polling=True)
        else None,
        frequency_mhz=_average_column(log, "Bzy_MHz"),
        residency_source="turbostat",
        notes=notes,
    )


class TurbostatResidency:
    """Runs turbostat for one interval as long as the window. Raises CapabilityError if it cannot run here."""

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
        return make_turbostat_window(parse_turbostat(table, "turbostat's output"), started_at)

    def close(self) -> None:
        self._program.close()
