# SPDX-License-Identifier: Apache-2.0
"""PowerTOP as a residency source: `powertop --csv`, run as long as the window."""

from __future__ import annotations

import math
from typing import Literal

from powerprof.measure.idle_counters import is_polling
from powerprof.measure.powertop import PowertopReport, is_hardware_state, parse_powertop
from powerprof.measure.program_output import OUTPUT, Outcome, TimedProgram
from powerprof.model.records import AchievedResidency, StateResidency, Window
from powerprof.system.errors import CapabilityError, PowerprofError


def _make_state(report: PowertopReport, name: str) -> StateResidency:
    cells = [cpu.states[name] for cpu in report.cpus.values() if name in cpu.states]
    percent = sum(cell[0] for cell in cells) / len(report.cpus)
    # Entries are percent ÷ average. Their sum gives the average over the CPUs if each is known.
    used = [(share, ms) for share, ms in cells if share > 0]
    known = [(share, ms) for share, ms in used if ms]
    is_complete = bool(known) and len(known) == len(used)
    average = sum(share for share, _ in known) / sum(share / ms for share, ms in known) if is_complete else None
    polling = is_polling(name, "")
    return StateResidency(
        name=name,
        polling=polling,
        residency_percent=0.0 if polling else percent,
        polling_percent=percent if polling else None,
        average_residency_ms=average,
        entries_hz=None,
    )


def _make_achieved(report: PowertopReport) -> list[AchievedResidency]:
    """Return the means over all packages, cores and CPUs."""
    percents: dict[tuple[Literal["cpu", "core", "package"], str], list[float]] = {}
    for (scope, _), block in report.hardware.items():
        for name, percent in block.items():
            if is_hardware_state(name):
                percents.setdefault((scope, name), []).append(percent)
    for cpu in report.cpus.values():
        if cpu.active_percent is not None:
            percents.setdefault(("cpu", "C0 active"), []).append(cpu.active_percent)
    return [
        AchievedResidency(scope=scope, name=name, residency_percent=sum(values) / len(values))
        for (scope, name), values in percents.items()
    ]


def make_powertop_window(report: PowertopReport, started_at: str, window_s: float | None) -> Window:
    """Return the report as a window of means over the CPUs.

    C0 is the time that the requested states leave, as in every source. PowerTOP's own `C0 active` (from APERF and
    MPERF, if they exist) is among the achieved residencies.
    """
    names = list(dict.fromkeys(name for cpu in report.cpus.values() for name in cpu.states))
    states = [_make_state(report, name) for name in names]
    idle = sum(state.residency_percent or 0.0 for state in states) if states else None
    achieved = _make_achieved(report)
    version = f"PowerTOP {report.version}" if report.version else "PowerTOP"
    return Window(
        started_at=started_at,
        window_s=window_s,
        cpus=len(report.cpus),
        states=states,
        achieved=achieved,
        c0_percent=None if idle is None else max(0.0, 100.0 - idle),
        idle_percent=None if idle is None else min(100.0, idle),
        residual_percent=None if idle is None else max(0.0, idle - 100.0),
        wakeups_hz=report.wakeups_hz,
        residency_source="powertop",
        notes=[f"as {version} counts: residency to 0.1 %, wake-ups are the events that it credits"],
    )


class PowertopResidency:
    """Runs `powertop --csv` as long as the window, in whole seconds. `report` has the causes too.

    Raises CapabilityError if it is not installed or this user is not root.
    """

    def __init__(self) -> None:
        self._program = TimedProgram("powertop", "powertop")
        self._outcome: Outcome | None = None
        self._seconds = 0
        self.report: PowertopReport | None = None

    def start(self, duration_s: float | None) -> None:
        if duration_s is None:
            raise RuntimeError("powertop must know the length of the window in advance")
        self._seconds = max(1, math.ceil(duration_s))
        self._program.launch([f"--csv={OUTPUT}", f"--time={self._seconds}"], duration_s)

    def stop(self) -> None:
        self._outcome = self._program.outcome()

    def finish(self, started_at: str) -> Window:
        outcome = self._outcome
        if outcome is None:
            return self._program.unknown_window(started_at)
        if outcome.returncode != 0:
            reason = outcome.messages[0] if outcome.messages else f"exit {outcome.returncode}"
            if "root privileges" in reason:
                raise CapabilityError("powertop needs root", "run with sudo, or --residency-source cpuidle")
            raise PowerprofError(
                f"powertop failed: {reason[:200]}", "--residency-source cpuidle reads the kernel's own counters"
            )
        self.report = parse_powertop(self._program.report(), "PowerTOP's report")
        return make_powertop_window(self.report, started_at, float(self._seconds))

    def close(self) -> None:
        self._program.close()
