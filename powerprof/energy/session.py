# SPDX-License-Identifier: Apache-2.0
"""One window of this host's energy: by its meters, or by the model where none gives a figure."""

from __future__ import annotations

import time

from powerprof.energy.domains import host_energy
from powerprof.energy.request import EnergyRequest
from powerprof.energy.result import EnergyResult
from powerprof.energy.windows import WindowEnergy
from powerprof.errors import CapabilityError
from powerprof.records import Window
from powerprof.windows.sampling import WindowInterrupted, WindowMeter


class EnergyInterrupted(WindowInterrupted):
    """The window was cut short; `result` is what it gave."""

    def __init__(self, message: str, partial: Window, result: EnergyResult) -> None:
        super().__init__(message, partial)
        self.result = result


def measure(request: EnergyRequest, duration_s: float) -> EnergyResult:
    """Meter this host for `duration_s` seconds as the request says.

    Raises CapabilityError where a named meter is missing or gives no figure, EnergyInterrupted on SIGINT and SIGTERM.
    """
    with WindowEnergy(request) as energy:
        start_s = time.monotonic()
        try:
            with WindowMeter(meters=energy.meters) as meter:
                window = meter.measure(duration_s)
        except WindowInterrupted as error:
            result = judge(error.partial, energy, request.source, time.monotonic() - start_s)
            raise EnergyInterrupted(error.message, error.partial, result) from error
        return judge(window, energy, request.source, time.monotonic() - start_s)


def judge(window: Window, energy: WindowEnergy, choice: str, elapsed_s: float) -> EnergyResult:
    """The result of a window: its readings, or an estimate beside them where none of them has a figure.

    `elapsed_s` stands for the window's length where its idle counters gave none.
    """
    notes = [f"energy source: {energy.source.why}", *energy.meter_notes()]
    if choice not in ("auto", "none", "model"):
        for name in energy.names:
            mine = [r for r in window.energy if r.source == name]
            if name != "meter_log" and all(r.joules is None for r in mine):
                reasons = energy.meter_notes_of(name)
                raise CapabilityError(
                    reasons[0] if reasons else f"{name}: present but it gave no figure",
                    "use another meter (--meter-log FILE), or the estimate (--energy-source model)",
                )
    completed = energy.complete(window)
    notes += energy.doubts_of(completed)
    return EnergyResult(
        window_s=elapsed_s if window.window_s is None else window.window_s,
        meters=completed.energy,
        total=host_energy(completed.energy),
        notes=notes,
    )
