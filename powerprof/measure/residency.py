# SPDX-License-Identifier: Apache-2.0
"""Residencies from two readings of the idle counters. Pure.

    C0                   = wall time − Σ time in states that do not poll  (polling is a busy loop and counts as
        running)
    residency of a state = its time / wall time                           (all of them and C0 sum to 100 %)
    average residency    = its time / its entries
    wake-ups             = Σ entries of all states, polling ones too      (each entry ends with one idle exit)

The exits that reading the counters caused (`forced`) are subtracted from entries and wake-ups and reported separately.
Without wall time only shares of the idle time are known.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from powerprof.measure import procfs
from powerprof.measure.cpuidle import format_cpu_list
from powerprof.measure.idle_counters import CpuReading, Snapshot
from powerprof.model.records import Notes, StateResidency, Window

# The clocks of idle times and of windows differ by this share and time at most.
_CLOCKS, _CLOCKS_US = 0.05, 50_000.0


class _StateTotal(msgspec.Struct):
    """The sums of one state, by its name, over all CPUs with this state."""

    polling: bool
    time_us: int = 0
    entries: int = 0
    above: int | None = 0
    below: int | None = 0
    rejected: int | None = 0

    def add(self, before: CpuReading, after: CpuReading, index: int, forced: int) -> None:
        self.time_us += after.time_us[index] - before.time_us[index]
        self.entries += max(0, after.usage[index] - before.usage[index] - forced)
        self.above = _add_delta(self.above, before.above[index], after.above[index])
        self.below = _add_delta(self.below, before.below[index], after.below[index])
        self.rejected = _add_delta(self.rejected, before.rejected[index], after.rejected[index])


def _add_delta(total: int | None, before: int | None, after: int | None) -> int | None:
    return None if total is None or before is None or after is None else total + after - before


class _Sums(msgspec.Struct):
    totals: dict[str, _StateTotal] = msgspec.field(default_factory=dict)
    cpus: list[int] = msgspec.field(default_factory=list)
    unknown: int = 0
    wall_us: float | None = 0.0
    forced: int = 0
    unresolved: list[int] = msgspec.field(default_factory=list)
    unresolved_us: float = 0.0


def find_inconsistency(before: CpuReading, after: CpuReading) -> str | None:
    """Return the reason why two readings of one CPU cannot be subtracted. None if they can."""
    if before.states != after.states:
        return "its set of idle states changed"
    if before.life != after.life:
        return "it went offline and came back, or its idle driver or governor changed"
    for index, state in enumerate(before.states):
        pairs = ((before.time_us, after.time_us), (before.usage, after.usage))
        if any(new[index] < old[index] for old, new in pairs):
            return f"the counters of {state.name} went backwards"
    return None


def compute_residency(before: Snapshot, after: Snapshot, *, started_at: str, elapsed_s: float | None = None) -> Window:
    """Return the residencies between two snapshots. `elapsed_s` is the wall time of snapshots without times.

    CPUs missing in one of them, or with counters that cannot be subtracted, are left out with a note.
    """
    notes = list(dict.fromkeys((*before.notes, *after.notes)))
    sums = _sum_cpus(before, after, elapsed_s, notes)
    if not sums.cpus:
        return Window(
            started_at=started_at,
            window_s=elapsed_s,
            cpus=0,
            unknown_cpus_count=sums.unknown,
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
        notes.append(_note_unresolved(sums))
    entries = sum(total.entries for total in sums.totals.values())
    return Window(
        started_at=started_at,
        window_s=window_s,
        cpus=len(sums.cpus),
        unknown_cpus_count=sums.unknown,
        c0_percent=c0,
        idle_percent=None if c0 is None else 100.0 - c0,
        wakeups_hz=None if not window_s else entries / window_s,
        states=_make_states(sums.totals, sums.wall_us, window_s, idle_us),
        residual_percent=None if raw_c0 is None else max(0.0, -raw_c0),
        edge_exits_count=sums.forced,
        percent_of="idle_time" if raw_c0 is None else "wall_time",
        notes=notes,
    )


def _sum_cpus(before: Snapshot, after: Snapshot, elapsed_s: float | None, notes: list[str]) -> _Sums:
    sums = _Sums()
    both = sorted(set(before.cpus) & set(after.cpus))
    changed = sorted(set(before.cpus) ^ set(after.cpus))
    if changed:
        notes.append(f"CPU {format_cpu_list(changed)} came or went during the window: left out")
        sums.unknown += len(changed)
    silent = []
    for cpu in both:
        old, new = before.cpus[cpu], after.cpus[cpu]
        reason = find_inconsistency(old, new)
        if reason:
            notes.append(f"CPU {cpu}: {reason}: left out")
            sums.unknown += 1
            continue
        is_resolved = old.resolved and new.resolved
        if not is_resolved and old.usage == new.usage:
            silent.append(cpu)
            continue
        if is_resolved and _is_too_long(old, new):
            notes.append(f"CPU {cpu}: its idle time grew by more than the time that passed: left out")
            sums.unknown += 1
            continue
        _add_cpu(sums, old, new, elapsed_s, is_resolved)
    if silent:
        # The counters stand still if the CPU slept or ran throughout: they cannot distinguish the two.
        sums.unknown += len(silent)
        cpus = format_cpu_list(silent)
        notes.append(f"CPU {cpus} entered and left no idle state (asleep or busy throughout): left out")
    return sums


def _is_too_long(old: CpuReading, new: CpuReading) -> bool:
    """Return whether a CPU was idle for longer than the time between its two edges, without open idle periods."""
    if old.at_ns is None or new.at_ns is None:
        return False
    idle_us = sum(new.time_us) - sum(old.time_us)
    return idle_us > (new.at_ns - old.at_ns) / 1e3 * (1 + _CLOCKS) + _CLOCKS_US


def _add_cpu(sums: _Sums, old: CpuReading, new: CpuReading, elapsed_s: float | None, is_resolved: bool) -> None:
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
    if not is_resolved:
        sums.unresolved.append(old.cpu)
        exits = sum(new.usage) - sum(old.usage)
        sums.unresolved_us += 2.0 * (sum(new.time_us) - sum(old.time_us)) / max(1, exits)


def _note_unresolved(sums: _Sums) -> str:
    """Return a note with the bound of the error: each edge may hide one period of about average length."""
    cpus = f"{len(sums.unresolved)} CPUs" if len(sums.unresolved) > 1 else f"CPU {sums.unresolved[0]}"
    text = f"idle periods open at the edges of {cpus} are not resolved"
    if not sums.wall_us:
        return text
    return f"{text}: about ±{100.0 * sums.unresolved_us / sums.wall_us:.2g} points of C0"


def _make_states(
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
                entries_hz=_compute_rate(total.entries, window_s),
                above_hz=_compute_rate(total.above, window_s),
                below_hz=_compute_rate(total.below, window_s),
                rejected_hz=_compute_rate(total.rejected, window_s),
            )
        )
    return residencies


def _compute_rate(count: int | None, window_s: float | None) -> float | None:
    return None if count is None or not window_s else count / window_s


def note_unknown_cpus(times: procfs.CpuTimes, figures: str) -> Notes:
    """Return a note for each reason why figures of CPUs are unknown or cover a part of the window."""
    reasons = {
        reason: [cpu for cpu, why in times.unknown.items() if why == reason] for reason in times.unknown.values()
    }
    notes = [
        f"CPU {format_cpu_list(cpus)}: {figures} unknown, because in /proc/stat {reason}"
        for reason, cpus in reasons.items()
    ]
    if times.partial:
        least = min(times.partial.values())
        notes.append(f"CPU {format_cpu_list(list(times.partial))}: /proc/stat accounts for {least:.0f} % of the window")
    return notes


def merge_notes(*lists: Notes) -> Notes:
    """Return the notes of several parts without repetitions."""
    return list(dict.fromkeys(note for notes in lists for note in notes))
