# SPDX-License-Identifier: Apache-2.0
"""The energy of a measured window: what the meters say, and where no meter has a figure, the estimate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from powerprof import files, paths
from powerprof.closeable import Closeable
from powerprof.energy.domains import Total
from powerprof.energy.meters import MeterSet, open_meters
from powerprof.energy.model import ChosenModel, describe, estimate, model_for_this_host
from powerprof.energy.split import Consumer, split_host
from powerprof.records import EnergyReading, EnergySource, EnergySplit, Kind, Window
from powerprof.sources.cpuidle import online_cpus

_SMT = "devices/system/cpu/smt/active"
_STEAL_SAID_PERCENT = 0.1


class WindowEnergy(Closeable):
    """The meters of a run and the model that stands in for them; a context manager that closes the meters.

    `choice` is that of `--energy-source`. Raises UsageError and CapabilityError as `open_meters` does, DataError where
    a user's model file is damaged.
    """

    def __init__(self, choice: str, meter_log: Path | None = None) -> None:
        # Read before anything is measured: a damaged file is to be said now, not after the run.
        self._model: ChosenModel | None = model_for_this_host() if choice.strip() != "none" else None
        self._set = open_meters(choice, meter_log=meter_log)

    def close(self) -> None:
        self._set.close()

    @property
    def meters(self) -> MeterSet | None:
        """To be sampled at the edges of a window; None where there is no meter."""
        return self._set if self._set.names else None

    @property
    def names(self) -> tuple[str, ...]:
        """The sources that are read."""
        return self._set.names

    def meter_notes(self) -> list[str]:
        """What is to be known of the meters' last readings."""
        return self._set.notes()

    def meter_notes_of(self, source: str) -> list[str]:
        """What is to be known of one source's last readings."""
        return self._set.notes_of(source)

    @property
    def source(self) -> EnergySource:
        """How the source was chosen, and the reasons to doubt an estimate."""
        metered = bool(self._set.names)
        doubts = list(self._model.doubts) if self._model and not metered else []
        return EnergySource(metered=metered, why=self._set.why, doubts=doubts)

    def complete(self, window: Window) -> Window:
        """The window with the meters' notes, and with the estimate added where no meter had a figure.

        In a run that has a meter the estimate does not stand in for it: `host_meters` takes one set for all windows.
        """
        notes = [note for note in self.meter_notes() if note not in window.notes]
        energy = list(window.energy)
        if self._model is not None and all(reading.joules is None for reading in energy):
            energy.append(estimate_window(self._model, window))
        return msgspec.structs.replace(window, energy=energy, notes=[*window.notes, *notes])

    def doubts_of(self, window: Window) -> list[str]:
        """The model's name and interval and the reasons to doubt it, where a completed window has its estimate."""
        return [] if self._model is None else estimate_doubts(self._model, window)

    def _pricing(self, kind: Kind | None) -> ChosenModel | None:
        """The model that knows the idle floor: the estimate's; of measured joules only one calibrated on this CPU."""
        model = self._model
        if kind is None or model is None or (kind == "measured" and model.model.range_from != "fit"):
            return None
        return model

    def idle_watts(self, cpus: int, kind: Kind | None) -> float | None:
        """What the host would draw asleep, where the figures are of that kind; None where no model knows."""
        model = self._pricing(kind)
        return None if model is None else estimate(model, cpus, 1.0, 0.0, []).watts

    def wakeup_joules(self, kind: Kind | None) -> float | None:
        """What a calibrated model says a wake-up costs beside the C0 time that follows it; None where none does."""
        model = self._pricing(kind)
        return model.model.wakeup.joules if model is not None and model.model.wakeup is not None else None

    def split(
        self,
        whole: Total,
        window_s: float,
        cpus: int,
        c0_percent: float | None,
        consumers: Sequence[Consumer],
        *,
        wakeups_count: float = 0.0,
        steal_percent: float | None = None,
    ) -> EnergySplit | None:
        """The host's energy over a window, split onto `consumers`; None where there is no figure to split."""
        return split_host(
            whole,
            window_s,
            c0_percent,
            cpus,
            consumers,
            idle_watts=self.idle_watts(cpus, whole.kind),
            wakeups_count=wakeups_count,
            wakeup_joules=self.wakeup_joules(whole.kind),
            steal_percent=steal_percent,
            smt=files.try_text(paths.sysfs() / _SMT) == "1",
        )


def estimate_window(model: ChosenModel, window: Window) -> EnergyReading:
    """The model's energy for a window."""
    # A CPU that the hypervisor gave to another guest is not idle to us, and burns nothing for us.
    stolen = window.steal_percent or 0.0
    c0_percent = None if window.c0_percent is None else max(window.c0_percent - stolen, 0.0)
    # Where no CPU left an idle state the window has none: they slept all along, and draw their floor or more.
    return estimate(model, window.cpus or len(online_cpus()), window.window_s, c0_percent, window.states)


def estimate_doubts(model: ChosenModel, window: Window) -> list[str]:
    """The model's name and interval and the reasons to doubt the estimate in a window; none where it has none."""
    reading = next((r for r in window.energy if r.source == "model"), None)
    if reading is None:
        return []
    notes = [describe(model, reading), *(f"doubt: {doubt}" for doubt in model.doubts)]
    stolen = window.steal_percent or 0.0
    if stolen >= _STEAL_SAID_PERCENT:
        notes.append(f"doubt: {stolen:.1f} % of the time was stolen by other guests and is not counted as running")
    return notes
