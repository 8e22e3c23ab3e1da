"""One window of this host's energy: by its meters, or by the model where none gives a figure."""

from __future__ import annotations

import time
from pathlib import Path

from powerprof.energy.domains import total
from powerprof.energy.meters import MeterSet, open_meters
from powerprof.energy.model import ChosenModel, describe, estimate, model_for_this_host
from powerprof.energy.result import EnergyResult
from powerprof.errors import CapabilityError
from powerprof.records import EnergyReading, Window
from powerprof.sources.cpuidle import online_cpus
from powerprof.windows.sampling import WindowInterrupted, measure_window

_STEAL_SAID_PERCENT = 0.1


class EnergyInterrupted(WindowInterrupted):
    """The window was cut short; `result` is what it gave."""

    def __init__(self, message: str, partial: Window, result: EnergyResult) -> None:
        super().__init__(message, partial)
        self.result = result


def measure(choice: str, duration_s: float, *, meter_log: Path | None = None) -> EnergyResult:
    """Meter this host for `duration_s` seconds by `--energy-source` `choice`.

    Raises CapabilityError where a named meter is missing or gives no figure, EnergyInterrupted on SIGINT and SIGTERM.
    """
    with open_meters(choice, meter_log=meter_log) as meters:
        start_s = time.monotonic()
        try:
            window = measure_window(duration_s, meters=meters)
        except WindowInterrupted as error:
            if error.partial is None:
                raise
            result = judge(error.partial, meters, choice, time.monotonic() - start_s)
            raise EnergyInterrupted(error.message, error.partial, result) from error
        return judge(window, meters, choice, time.monotonic() - start_s)


def judge(window: Window, meters: MeterSet, choice: str, elapsed_s: float) -> EnergyResult:
    """The result of a window: its readings, or an estimate beside them where none of them has a figure.

    `elapsed_s` stands for the window's length where its idle counters gave none.
    """
    readings = list(window.energy)
    notes = [f"energy source: {meters.why}", *meters.notes()]
    if choice not in ("auto", "none", "model"):
        for name in meters.names:
            mine = [r for r in readings if r.source == name]
            if name != "meter_log" and all(r.joules is None for r in mine):
                reasons = [note for note in notes if note.startswith(f"{name}: ")]
                raise CapabilityError(
                    reasons[0] if reasons else f"{name}: present but it gave no figure",
                    "take another meter (--meter-log FILE), or the estimate (--energy-source model)",
                )
    if all(r.joules is None for r in readings):
        reading, said = estimate_window(window)
        readings.append(reading)
        notes += said
    window_s = elapsed_s if window.window_s is None else window.window_s
    return EnergyResult(window_s=window_s, meters=readings, total=total(readings), notes=notes)


def estimate_window(window: Window, chosen: ChosenModel | None = None) -> tuple[EnergyReading, list[str]]:
    """The model's energy for a window, and the reasons for doubt, the model's name first.

    Raises DataError where a user's model file is damaged.
    """
    model = chosen or model_for_this_host()
    stolen = window.steal_percent or 0.0
    # A CPU that the hypervisor gave to another guest is not idle to us, and burns nothing for us.
    c0_percent = None if window.c0_percent is None else max(window.c0_percent - stolen, 0.0)
    # Where no CPU left an idle state the window has none: they slept all along, and draw their floor or more.
    cpus = window.cpus or len(online_cpus())
    reading = estimate(model, cpus, window.window_s or 0.0, c0_percent, window.states)
    notes = [describe(model, reading), *(f"doubt: {doubt}" for doubt in model.doubts)]
    if stolen >= _STEAL_SAID_PERCENT:
        notes.append(f"doubt: {stolen:.1f} % of the time was stolen by other guests and is not counted as running")
    return reading, notes
