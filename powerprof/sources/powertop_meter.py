# SPDX-License-Identifier: Apache-2.0
"""PowerTOP's own figure for the machine, where it has one: the battery's discharge, or its baseline estimate.

Both are estimates to us: PowerTOP fits them over past runs (src/parameters/learn.cpp of PowerTOP 2.14) and a report
does not say which battery sample they rest on.
"""

from __future__ import annotations

import re
import subprocess
from contextlib import closing
from pathlib import Path

from powerprof import paths, programs
from powerprof.errors import CapabilityError, PowerprofError
from powerprof.sources.meter import DomainEnergy
from powerprof.sources.series import PowerSample, forget, power_energy
from powerprof.sources.timed_program import OUTPUT, TimedProgram, nameless, text_of
from powerprof.untrusted import printable

_SECONDS = 5
_DISCHARGE = re.compile(r"battery reports a discharge rate of:?[\s;]*([\d.]+)\s*([mu]?)\s*W", re.I)
_BASELINE = re.compile(r"system baseline power is estimated at:?[\s;]*([\d.]+)\s*([mu]?)\s*W", re.I)
_PREFIX = {"": 1.0, "m": 1e-3, "u": 1e-6}


def report_watts(text: str) -> tuple[float, str] | None:
    """Watts in a PowerTOP report and which of its figures it is; None where it gives none or 0."""
    for pattern, name in ((_DISCHARGE, "battery discharge"), (_BASELINE, "system baseline")):
        match = pattern.search(text)
        if match:
            watts = float(match[1]) * _PREFIX[match[2].lower()]
            if watts > 0:
                return watts, name
    return None


class PowertopMeter:
    """PowerTOP run again and again beside us, five seconds a report."""

    name = "powertop"
    max_interval_s: float | None = float(_SECONDS)

    def __init__(self, program: Path) -> None:
        self._program = program
        self._report = nameless()
        self._samples: list[PowerSample] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._last: float | None = None

    def sample(self, now_s: float) -> None:
        if self._process is None or self._process.poll() is not None:
            self._collect()
            self._process = programs.start(
                [self._program, f"--csv={OUTPUT}", f"--time={_SECONDS}"], stdin=self._report, own_mounts=True
            )
        # Between two reports the last one stands; before the first one there is nothing to say.
        self._samples.append(PowerSample(now_s, self._last))

    def _collect(self) -> None:
        text = text_of(self._report)
        if text:
            reported = report_watts(text)
            self._last = reported[0] if reported else None
            self._report.truncate(0)

    def is_counting(self) -> bool | None:
        return None

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        return [DomainEnergy("machine", "model", power_energy(self._samples, start_s, end_s, 3.0 * _SECONDS))]

    def forget(self, before_s: float) -> None:
        forget(self._samples, before_s)

    def notes(self) -> list[str]:
        return ["powertop: its watts are an estimate, and running it is part of what is measured"]

    def close(self) -> None:
        if self._process is not None:
            programs.stop(self._process, patience_s=3.0)
            self._process = None
        self._report.close()


def open_powertop() -> PowertopMeter:
    """PowerTOP where it gives watts. Raises CapabilityError where it is absent or knows none."""
    if not paths.is_this_host():
        raise CapabilityError(
            "powertop: it reads the running machine, and POWERPROF_SYSFS or POWERPROF_PROCFS is set",
            "unset POWERPROF_SYSFS POWERPROF_PROCFS",
        )
    program = programs.need("powertop", "powertop")
    with closing(TimedProgram("powertop", "powertop")) as tried:
        try:
            tried.launch([f"--csv={OUTPUT}", "--time=1"], 1.0)
            outcome = tried.outcome()
        except PowerprofError as error:
            raise CapabilityError(f"powertop: it cannot run here ({error})", "run as root") from error
        if outcome is None or outcome.returncode != 0:
            why = printable(outcome.messages[-1])[:200] if outcome and outcome.messages else "it failed"
            raise CapabilityError(f"powertop: it cannot run here ({why})", "run as root")
        text = tried.report()
    if report_watts(text) is None:
        raise CapabilityError(
            "powertop: its report gives no watts (it needs a battery that discharges)",
            "unplug the power supply and run: powertop --calibrate; or use the estimate (--energy-source model)",
        )
    return PowertopMeter(program)
