# SPDX-License-Identifier: Apache-2.0
"""The open meters of a measurement, sampled together."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from powerprof.energy.layouts import read_topology
from powerprof.energy.meters.meter import DomainEnergy, Meter
from powerprof.energy.readings import make_readings, select_named
from powerprof.energy.reconcile import reconcile
from powerprof.energy.suspends import Gap, join_spans, subtract_gaps
from powerprof.energy.total import fill_containers
from powerprof.measure.clock import SuspendClock
from powerprof.model.records import EnergyReading
from powerprof.system.closeable import Closeable

_QUICK = ("rapl", "perf_power")
# RAPL counters move every millisecond: shorter windows are noise.
_SHORT_S = 0.1
# Older samples before a window are dropped, so that a run of a day needs no more memory than one of an hour.
_KEPT_S = 3600.0


class MeterSet(Closeable):
    """The open meters of a measurement. A context manager that closes them. `names` is empty without a meter.

    Call `sample` at both edges of every window and, within it, at least every `max_interval_s`.
    """

    def __init__(self, meters: list[Meter], why: str, selected: Mapping[str, Sequence[str]] | None = None) -> None:
        self._meters = meters
        self.why = why
        # The domains that the user named as the whole machine, by meter.
        self._selected = selected or {}
        # On the last readings: dropped samples, gaps, containment; and those of each source, such as a missing figure.
        self.notes: list[str] = []
        self.notes_by_source: dict[str, list[str]] = {}
        self._suspended = SuspendClock()
        self._sampled_s: dict[int, float] = {}
        self._gaps: dict[int, list[Gap]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The sources of the open meters."""
        return tuple(meter.name for meter in self._meters)

    @property
    def quick(self) -> bool:
        """Whether all meters suit windows of a fifth of a second: RAPL counts every ms, others lag behind."""
        return all(name in _QUICK for name in self.names)

    @property
    def max_interval_s(self) -> float | None:
        """The longest time between two samples without a loss. None if only the edges matter."""
        limits = [meter.max_interval_s for meter in self._meters if meter.max_interval_s is not None]
        return min(limits) if limits else None

    def sample(self, now_s: float | None = None) -> None:
        """Read every meter once, now (`now_s` replaces the clock)."""
        was_suspended = self._suspended.since_s() > 0
        for number, meter in enumerate(self._meters):
            at_s = time.monotonic() if now_s is None else now_s
            if was_suspended and number in self._sampled_s:
                self._gaps.setdefault(number, []).append((self._sampled_s[number], at_s))
            self._sampled_s[number] = at_s
            meter.sample(at_s)

    def readings(self, start_s: float, end_s: float) -> list[EnergyReading]:
        """Return the energy by domain between two moments of CLOCK_MONOTONIC, from the nearest samples.

        An unavailable figure is None and `notes` gives the reason. A counter without movement is not 0 W.
        """
        self.notes = []
        readings: list[EnergyReading] = []
        for number, meter in enumerate(self._meters):
            meter.drop_samples(start_s - _KEPT_S)
            energies = self._sum_awake(number, start_s, end_s)
            own_readings, notes = make_readings(meter.name, energies, start_s, end_s, read_topology())
            readings += select_named(own_readings, self._selected.get(meter.name, ()))
            self.notes_by_source[meter.name] = own_notes = [*notes, *meter.notes]
            self.notes += own_notes
            if end_s - start_s < _SHORT_S and meter.name in _QUICK:
                self.notes.append(f"{meter.name}: windows under 100 ms are mostly noise")
        readings = fill_containers(readings)
        self.notes = list(dict.fromkeys([*self.notes, *reconcile(readings)]))
        return readings

    def _sum_awake(self, number: int, start_s: float, end_s: float) -> list[DomainEnergy]:
        """Return the energy of one meter; if the host was suspended in the window, only for its time awake."""
        meter, gaps = self._meters[number], self._gaps.get(number, [])
        whole = meter.energies(start_s, end_s)
        if all(end <= start_s or begin >= end_s for begin, end in gaps):
            return whole
        parts = [(span, meter.energies(*span)) for span in subtract_gaps(start_s, end_s, gaps)]
        return join_spans(whole, parts, start_s, end_s)

    def close(self) -> None:
        """Close all meters. A second call has no effect."""
        while self._meters:
            self._meters.pop().close()
