# SPDX-License-Identifier: Apache-2.0
"""From two readings of the idle counters to residencies: pure arithmetic.

    C0                   = wall time − Σ time in states that do not poll  (polling is a busy loop and counts as running)
    residency of a state = its time / wall time                           (all of them and C0 sum to 100 %)
    average residency    = its time / its entries
    wake-ups             = Σ entries of all states, polling ones too      (each entry ends with one idle exit)

The exits that reading the counters caused (`forced`) are taken out of entries and wake-ups and reported
beside them. Without wall time only shares of the idle time are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from powerprof.records import Notes, StateResidency, Window
from powerprof.sources.base import CpuReading, Snapshot
from powerprof.sources.cpuidle import list_of


@dataclass
class _StateTotal:
    """The sums of one state, by its name, over all CPUs that have it."""

    polling: bool
    time_us: int = 0
    entries: int = 0
    above: int | None = 0
    below: int | None = 0
    rejected: int | None = 0

    def add(self, before: CpuReading, after: CpuReading, index: int, forced: int) -> None:
        self.time_us += after.time_us[index] - before.time_us[index]
        self.entries += max(0, after.usage[index] - before.usage[index] - forced)
        self.above = _plus(self.above, before.above[index], after.above[index])
        self.below = _plus(self.below, before.below[index], after.below[index])
        self.rejected = _plus(self.rejected, before.rejected[index], after.rejected[index])


def _plus(total: int | None, before: int | None, after: int | None) -> int | None:
    return None if total is None or before is None or after is None else total + after - before


@dataclass
class _Sums:
    totals: dict[str, _StateTotal] = field(default_factory=dict)
    cpus: list[int] = field(default_factory=list)
    wall_us: float | None = 0.0
    forced: int = 0
    unresolved: list[int] = field(default_factory=list)
    unresolved_us: float = 0.0


def went_back(before: CpuReading, after: CpuReading) -> str | None:
    """Why these two readings of one CPU cannot be subtracted; None where they can."""
    if before.states != after.states:
        return "its set of idle states changed"
    for index, state in enumerate(before.states):
        pairs = ((before.time_us, after.time_us), (before.usage, after.usage))
        if any(new[index] < old[index] for old, new in pairs):
            return f"the counters of {state.name} went backwards"
    return None


def compute(before: Snapshot, after: Snapshot, *, started_at: str, elapsed_s: float | None = None) -> Window:
    """The residencies between two snapshots. `elapsed_s` is the wall time where the snapshots carry none.

    CPUs that are not in both, or whose counters cannot be subtracted, are left out, and `notes` say so.
    """
    notes = list(dict.fromkeys((*before.notes, *after.notes)))
    sums = _sum(before, after, elapsed_s, notes)
    if not sums.cpus:
        return Window(
            started_at=started_at,
            window_s=elapsed_s,
            cpus=0,
            c0_percent=None,
            idle_percent=None,
            wakeups_hz=None,
            states=[],
            notes=[*notes, "no CPU with idle counters at both ends"],
        )
    window_s = None if sums.wall_us is None else sums.wall_us / len(sums.cpus) / 1e6
    idle_us = sum(total.time_us for total in sums.totals.values() if not total.polling)
    raw_c0 = None if not sums.wall_us else 100.0 * (1.0 - idle_us / sums.wall_us)
    c0 = None if raw_c0 is None else max(0.0, raw_c0)
    if raw_c0 is None:
        notes.append("no wall time: percentages are shares of the idle time, C0 is unknown")
    if sums.unresolved:
        notes.append(_bound(sums))
    entries = sum(total.entries for total in sums.totals.values())
    return Window(
        started_at=started_at,
        window_s=window_s,
        cpus=len(sums.cpus),
        c0_percent=c0,
        idle_percent=None if c0 is None else 100.0 - c0,
        wakeups_hz=None if not window_s else entries / window_s,
        states=_states(sums.totals, sums.wall_us, window_s, idle_us),
        residual_percent=None if raw_c0 is None else max(0.0, -raw_c0),
        edge_exits_count=sums.forced,
        percent_of="idle_time" if raw_c0 is None else "wall_time",
        notes=notes,
    )


def _sum(before: Snapshot, after: Snapshot, elapsed_s: float | None, notes: list[str]) -> _Sums:
    sums = _Sums()
    both = sorted(set(before.cpus) & set(after.cpus))
    changed = sorted(set(before.cpus) ^ set(after.cpus))
    if changed:
        notes.append(f"CPU {list_of(changed)} came or went during the window: left out")
    silent = []
    for cpu in both:
        old, new = before.cpus[cpu], after.cpus[cpu]
        reason = went_back(old, new)
        if reason:
            notes.append(f"CPU {cpu}: {reason}: left out")
            continue
        resolved = old.resolved and new.resolved
        if not resolved and old.usage == new.usage:
            silent.append(cpu)
            continue
        _add(sums, old, new, elapsed_s, resolved)
    if silent:
        # Its counters stand still whether it slept all the time or ran all the time: they cannot tell which.
        which = list_of(silent)
        notes.append(f"CPU {which} entered and left no idle state (asleep or busy throughout): left out")
    return sums


def _add(sums: _Sums, old: CpuReading, new: CpuReading, elapsed_s: float | None, resolved: bool) -> None:
    sums.cpus.append(old.cpu)
    wall_us = None if elapsed_s is None else elapsed_s * 1e6
    if wall_us is None and old.at_ns is not None and new.at_ns is not None:
        wall_us = (new.at_ns - old.at_ns) / 1e3
    sums.wall_us = None if sums.wall_us is None or wall_us is None else sums.wall_us + wall_us
    for index, state in enumerate(old.states):
        total = sums.totals.setdefault(state.name, _StateTotal(state.polling))
        forced = new.forced[index] if new.forced else 0
        sums.forced += forced
        total.add(old, new, index, forced)
    if not resolved:
        sums.unresolved.append(old.cpu)
        exits = sum(new.usage) - sum(old.usage)
        sums.unresolved_us += 2.0 * (sum(new.time_us) - sum(old.time_us)) / max(1, exits)


def _bound(sums: _Sums) -> str:
    """Each edge may hide or show one open period: about one average residency of that CPU."""
    which = f"{len(sums.unresolved)} CPUs" if len(sums.unresolved) > 1 else f"CPU {sums.unresolved[0]}"
    text = f"idle periods open at the edges of {which} are not resolved"
    if not sums.wall_us:
        return text
    return f"{text}: about ±{100.0 * sums.unresolved_us / sums.wall_us:.2g} points of C0"


def _states(
    totals: Mapping[str, _StateTotal], wall_us: float | None, window_s: float | None, idle_us: int
) -> list[StateResidency]:
    base_us = wall_us or float(idle_us)
    residencies = []
    for name, total in totals.items():
        percent = 100.0 * total.time_us / base_us if base_us else None
        residencies.append(
            StateResidency(
                name=name,
                polling=total.polling,
                time_us=float(total.time_us),
                entries_count=total.entries,
                residency_percent=0.0 if total.polling and percent is not None else percent,
                polling_percent=percent if total.polling else None,
                average_residency_ms=total.time_us / total.entries / 1e3 if total.entries else None,
                entries_hz=_rate(total.entries, window_s),
                above_hz=_rate(total.above, window_s),
                below_hz=_rate(total.below, window_s),
                rejected_hz=_rate(total.rejected, window_s),
            )
        )
    return residencies


def _rate(count: int | None, window_s: float | None) -> float | None:
    return None if count is None or not window_s else count / window_s


def merge_notes(*lists: Notes) -> Notes:
    """Notes of several parts, without repetitions."""
    return list(dict.fromkeys(note for notes in lists for note in notes))
