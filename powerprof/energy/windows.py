# SPDX-License-Identifier: Apache-2.0
"""The energy of a measured window by the meters, or by the estimate if no meter has a figure, and its split."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from powerprof.energy.choice import open_meters
from powerprof.energy.meter_set import MeterSet
from powerprof.energy.model import ChosenModel, describe_estimate, estimate, estimate_active_share, model_for_this_host
from powerprof.energy.request import DEFAULT_REQUEST, EnergyRequest
from powerprof.energy.split import Consumer, split_host_energy
from powerprof.energy.total import Total
from powerprof.measure.cpuidle import online_cpus
from powerprof.model.records import EnergyReading, EnergySource, EnergySplit, Kind, Window
from powerprof.system import files, paths
from powerprof.system.closeable import Closeable
from powerprof.system.next_steps import command_line

_SMT = "devices/system/cpu/smt/active"
_STEAL_NOTED_PERCENT = 0.1


class IdleFloor(msgspec.Struct, frozen=True):
    """Watts of the host asleep. If they are a model's share, the power above them is between the two other figures."""

    watts: float
    active_low_watts: float | None = None
    active_high_watts: float | None = None
    note: str | None = None


class WindowEnergy(Closeable):
    """The meters of a run and the model for windows without a figure. A context manager that closes the meters.

    Raises UsageError and CapabilityError like `open_meters`, UsageError for an unknown CPU name, and DataError for a
    damaged user model.
    """

    def __init__(self, request: EnergyRequest = DEFAULT_REQUEST) -> None:
        is_unmetered = request.source.strip() == "none"
        # Read the models first: a damaged file is then reported before the run.
        self._model: ChosenModel | None = None if is_unmetered else model_for_this_host(request)
        self._set = open_meters(request.source, meter_log=request.meter_log)

    def close(self) -> None:
        self._set.close()

    @property
    def meters(self) -> MeterSet | None:
        """The meters to sample at the edges of a window. None without a meter."""
        return self._set if self._set.names else None

    @property
    def source(self) -> EnergySource:
        """The choice of the source, and the reasons to doubt an estimate."""
        metered = bool(self._set.names)
        doubts = list(self._model.doubts) if self._model and not metered else []
        return EnergySource(metered=metered, why=self._set.why, doubts=doubts)

    def complete(self, window: Window) -> Window:
        """Return the window with the meters' notes, and with the estimate if no meter had a figure.

        In a run with a meter the estimate does not replace it: `host_meters` takes one set for all windows.
        """
        notes = [note for note in self._set.notes if note not in window.notes]
        energy = list(window.energy)
        if self._model is not None and all(reading.joules is None for reading in energy):
            energy.append(estimate_window(self._model, window))
        return msgspec.structs.replace(window, energy=energy, notes=[*window.notes, *notes])

    def doubts_of(self, window: Window) -> list[str]:
        """Return the model's name, its interval and the reasons to doubt it, if a completed window has its estimate."""
        return [] if self._model is None else estimate_doubts(self._model, window)

    def _find_pricing_model(self, kind: Kind | None) -> ChosenModel | None:
        """Return the model with the idle floor: the estimate's, or for measured joules one calibrated on this CPU."""
        model = self._model
        if kind is None or model is None or (kind == "measured" and model.model.range_from != "fit"):
            return None
        return model

    def floor(
        self, whole: Total, cpus: int, c0_percent: float | None, steal_percent: float | None = None
    ) -> IdleFloor | None:
        """Return the host's power asleep. None if no model knows it.

        For measured joules it comes from a model calibrated on this CPU, or else from the share in a model of its
        generation.
        """
        model = self._find_pricing_model(whole.kind)
        is_other_model = whole.kind == "estimated" and whole.source != "model"
        if model is not None and not is_other_model:
            watts = estimate(model, cpus, 1.0, 0.0, []).watts
            return None if watts is None else IdleFloor(watts)
        if self._model is None or whole.source == "model" or whole.watts is None or c0_percent is None:
            return None
        typical, least, most = estimate_active_share(self._model, max(c0_percent - (steal_percent or 0.0), 0.0))
        note = (
            f"idle floor: {100 * (1 - typical):.0f} % of the measured power ({100 * (1 - most):.0f} to "
            f'{100 * (1 - least):.0f} % possible), as the model "{self._model.title}" has it at this load; '
            f"to measure it: {command_line('energy --calibrate')}"
        )
        return IdleFloor(whole.watts * (1 - typical), least * whole.watts, most * whole.watts, note)

    def wakeup_joules(self, kind: Kind | None) -> float | None:
        """Return the cost of a wake-up besides its C0 time by a calibrated model. None without one."""
        model = self._find_pricing_model(kind)
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
        idle_watts: float | None = None,
    ) -> EnergySplit | None:
        """Return the host's energy over a window, split onto `consumers`. None without a figure to split.

        `idle_watts` is the measured floor, if any; otherwise a model's floor is used.
        """
        floor = IdleFloor(idle_watts) if idle_watts is not None else self.floor(whole, cpus, c0_percent, steal_percent)
        split = split_host_energy(
            whole,
            window_s,
            c0_percent,
            cpus,
            consumers,
            idle_watts=None if floor is None else floor.watts,
            wakeups_count=wakeups_count,
            wakeup_joules=self.wakeup_joules(whole.kind),
            steal_percent=steal_percent,
            smt=files.try_text(paths.sysfs() / _SMT) == "1",
        )
        if split is None or floor is None or floor.note is None:
            return split
        return msgspec.structs.replace(
            split,
            kind="estimated",
            active_low_joules=None if floor.active_low_watts is None else floor.active_low_watts * window_s,
            active_high_joules=None if floor.active_high_watts is None else floor.active_high_watts * window_s,
            notes=[floor.note, *split.notes],
        )


def estimate_window(model: ChosenModel, window: Window) -> EnergyReading:
    """Return the model's energy for a window."""
    # The hypervisor gave this time to another guest: the CPU was not idle, and drew no energy for this guest.
    stolen = window.steal_percent or 0.0
    is_known = window.c0_percent is not None and not window.unknown_cpus_count
    c0_percent = max((window.c0_percent or 0.0) - stolen, 0.0) if is_known else None
    # A window in which no CPU left an idle state has no CPUs: they slept and drew their floor or more.
    cpus = window.cpus + window.unknown_cpus_count or len(online_cpus())
    return estimate(model, cpus, window.window_s, c0_percent, window.states)


def estimate_doubts(model: ChosenModel, window: Window) -> list[str]:
    """Return the model's name, its interval and the reasons to doubt its estimate in a window.

    Empty without an estimate.
    """
    reading = next((r for r in window.energy if r.source == "model"), None)
    if reading is None:
        return []
    notes = [describe_estimate(model, reading), *(f"doubt: {doubt}" for doubt in model.doubts)]
    stolen = window.steal_percent or 0.0
    if stolen >= _STEAL_NOTED_PERCENT:
        notes.append(f"doubt: {stolen:.1f} % of the time was stolen by other guests and is not counted as running")
    return notes
