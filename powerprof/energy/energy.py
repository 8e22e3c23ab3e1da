# SPDX-License-Identifier: Apache-2.0
"""Measure one window of this host's energy."""

from __future__ import annotations

import time

from msgspec.structs import replace

from powerprof.energy.request import EnergyRequest
from powerprof.energy.total import EnergyResult, host_energy
from powerprof.energy.windows import WindowEnergy
from powerprof.measure.sampling import WindowInterrupted, WindowMeter
from powerprof.model.records import Window, ended_by_signal
from powerprof.system.errors import CapabilityError


class EnergyInterrupted(WindowInterrupted):
    """SIGINT or SIGTERM ended the window early. `result` is the energy until then."""

    def __init__(self, message: str, partial: Window, result: EnergyResult) -> None:
        super().__init__(message, partial)
        self.result = result


def measure(request: EnergyRequest, duration_s: float) -> EnergyResult:
    """Meter this host for `duration_s` seconds.

    Raise CapabilityError if a named meter is missing or gives no figure, EnergyInterrupted on SIGINT and SIGTERM.
    """
    with WindowEnergy(request) as energy:
        start_s = time.monotonic()
        try:
            with WindowMeter(meters=energy.meters) as meter:
                window = meter.measure(duration_s)
        except WindowInterrupted as error:
            result = make_result(error.partial, energy, request.source, time.monotonic() - start_s)
            result = replace(result, ended=ended_by_signal(True))
            raise EnergyInterrupted(error.message, error.partial, result) from error
        return make_result(window, energy, request.source, time.monotonic() - start_s)


def make_result(window: Window, energy: WindowEnergy, choice: str, elapsed_s: float) -> EnergyResult:
    """Return the result of a window: its readings, with an estimate if no reading has a figure.

    `elapsed_s` replaces the window's length if its idle counters lack it.
    """
    meters = energy.meters
    notes = [f"energy source: {energy.source.why}", *(meters.notes if meters else ())]
    if meters is not None and choice not in ("auto", "none", "model"):
        for name in meters.names:
            mine = [r for r in window.energy if r.source == name]
            if name != "meter_log" and all(r.joules is None for r in mine):
                reasons = meters.notes_by_source.get(name)
                raise CapabilityError(
                    reasons[0] if reasons else f"{name}: present but it gave no figure",
                    "use another meter (--meter FILE), or the estimate (--meter model)",
                )
    completed = energy.complete(window)
    notes += energy.doubts_of(completed)
    return EnergyResult(
        started_at=window.started_at,
        energy_source=energy.source,
        window_s=elapsed_s if window.window_s is None else window.window_s,
        meters=completed.energy,
        total=host_energy(completed.energy),
        notes=notes,
    )
