# SPDX-License-Identifier: Apache-2.0
"""Combine windows into phases, compare phases, and judge the cost of an idle server."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any, Literal

import msgspec

from powerprof.energy.split import Consumer
from powerprof.energy.total import HostMeters, host_energy, host_meters, mean_host_energy, note_unmetered_windows
from powerprof.energy.windows import WindowEnergy
from powerprof.measure.means import make_phase
from powerprof.measure.residency import merge_notes
from powerprof.model.metrics import unit_of
from powerprof.model.records import (
    Cause,
    Conservation,
    Delta,
    EnergyReading,
    Estimate,
    IdleRun,
    Note,
    Phase,
    ServerExits,
    Window,
    limits_of,
    metric_name,
)
from powerprof.statistics.intervals import cut_difference, welch_interval
from powerprof.statistics.verdicts import Claim, judge_claim

COMPARED = ("c0_percent", "wakeups_hz")


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean; None if there is no value or one is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def difference(
    before: Sequence[float], after: Sequence[float], limits: tuple[float | None, float | None] = (None, None)
) -> Estimate:
    """Return mean(after) − mean(before) with Welch's 95 % interval, cut at possible values of a metric with limits."""
    mean_before = sum(before) / len(before)
    mean = sum(after) / len(after) - mean_before
    interval = welch_interval(before, after)
    if interval is None:
        return Estimate(mean=mean, low=None, high=None)
    low, high = cut_difference((interval.low, interval.high), mean, (mean_before, mean_before), limits)
    return Estimate(mean=mean, low=low, high=high)


def _limits_of(metric: str) -> tuple[float | None, float | None]:
    # The uncertainty of a power model is beside the interval, which is not cut.
    return (None, None) if metric.startswith("watts") else limits_of(metric, unit_of(metric))


def _combine_energy(windows: Sequence[Window]) -> list[EnergyReading]:
    """Return every domain over all windows: the sum of joules and the mean of watts.

    Both are unknown if a window lacks them. An estimate that replaced a meter in some windows only is left out.
    """
    by_domain: dict[tuple[str, str, str], list[EnergyReading]] = {}
    for reading in (reading for window in windows for reading in window.energy):
        by_domain.setdefault((reading.source, reading.domain, reading.kind), []).append(reading)
    energies = []
    for same in by_domain.values():
        whole = len(same) == len(windows)
        if not whole and same[0].kind == "estimated":
            continue
        joules = [other.joules for other in same if other.joules is not None]
        energies.append(
            msgspec.structs.replace(
                same[0],
                joules=sum(joules) if len(joules) == len(windows) else None,
                watts=_mean([other.watts for other in same]) if whole else None,
                low_watts=_mean([other.low_watts for other in same]),
                high_watts=_mean([other.high_watts for other in same]),
                dropped_samples_count=sum(other.dropped_samples_count for other in same),
                unsummed=next((other.unsummed for other in same if other.unsummed is not None), None),
            )
        )
    return energies


def window_values(windows: Sequence[Window], metric: str) -> list[float]:
    """Return a figure of every window; empty if one is unknown."""
    numbers: list[Any] = [getattr(window, metric) for window in windows]
    return [] if None in numbers else numbers


def domain_watts(windows: Sequence[Window], source: str, domain: str) -> list[float]:
    """Return the watts of one domain in every window; empty if one is unknown."""
    watts_each = [
        next((r.watts for r in window.energy if r.source == source and r.domain == domain), None) for window in windows
    ]
    return [watts for watts in watts_each if watts is not None] if None not in watts_each else []


def combine_windows(
    name: str,
    windows: Sequence[Window],
    *,
    causes: Sequence[Cause] = (),
    conservation: Conservation | None = None,
    traced_window_s: float | None = None,
    server_exits: ServerExits | None = None,
) -> Phase:
    """Return one phase from at least one window, with the energy of all of them."""
    phase = make_phase(name, windows)
    notes: list[str | Note] = []
    if phase.wakeups_hz is None and conservation is not None and conservation.idle_exits_count and traced_window_s:
        rate = conservation.idle_exits_count / traced_window_s
        phase = msgspec.structs.replace(phase, wakeups_hz=rate)
        notes = [Note("wakeups_of_traced_window")]
    combined: Phase = msgspec.structs.replace(
        phase,
        energy=_combine_energy(windows),
        causes=list(causes),
        conservation=conservation,
        traced_window_s=traced_window_s,
        server_exits=server_exits,
        notes=merge_notes(phase.notes, notes),
    )
    return combined


def compare_phases(before: Phase, after: Phase, meters: HostMeters | None = None) -> list[Delta]:
    """Return the changes between two phases: C0, wake-ups, every common idle state, and watts.

    `watts` are the host's by the run's `meters`, over the windows that have them. The watts of every single meter
    follow.
    """
    changes = []

    def add(metric: str, old: Sequence[float], new: Sequence[float]) -> None:
        if old and new:
            change = difference(old, new, _limits_of(metric))
            changes.append(Delta(metric=metric, from_phase=before.name, to_phase=after.name, difference=change))

    for metric in COMPARED:
        add(metric, window_values(before.windows, metric), window_values(after.windows, metric))
    for state in after.states:
        if not state.polling:
            add(
                metric_name("residency_percent", state.name),
                *(_list_residencies(p, state.name) for p in (before, after)),
            )
    add("watts", *([w for w in host_watts(p, meters) if w is not None] for p in (before, after)))
    for reading in after.energy:
        metric = metric_name("watts", reading.source, reading.domain)
        add(metric, *(domain_watts(p.windows, reading.source, reading.domain) for p in (before, after)))
    return changes


def host_watts(phase: Phase, meters: HostMeters | None) -> list[float | None]:
    """Return the host's watts in every window by the run's meters; None for windows that lack them."""
    return [host_energy(window.energy, meters).watts for window in phase.windows]


def find_run_meters(phases: Sequence[Phase]) -> HostMeters | None:
    """Return the one set of meters that represents the host in all windows of these phases."""
    return host_meters(_list_readings(phases))


def note_unmetered(phases: Sequence[Phase], meters: HostMeters | None) -> list[str]:
    """Return a note if windows lack the run's meters."""
    return note_unmetered_windows(_list_readings(phases), meters)


def _list_readings(phases: Sequence[Phase]) -> list[list[EnergyReading]]:
    return [window.energy for phase in phases for window in phase.windows]


def _list_residencies(phase: Phase, name: str) -> list[float]:
    percents = [
        next((state.residency_percent for state in window.states if state.name == name), None)
        for window in phase.windows
    ]
    return [value for value in percents if value is not None] if None not in percents else []


# costs: above 0 beyond its interval and the drift. nothing: the interval contains 0 or less, and a server cannot reduce
# the earlier use of the host. drift: the host itself changed as much. single: one window per phase, so the scatter is
# unknown. others: the CPUs ran for longer than the server accounts for, so other programs changed, too.
Finding = Literal["costs", "nothing", "drift", "single", "others"]
_DRIFT_SHARE = 1 / 3
# Idle exits and interrupts of the server are not in its own CPU time. A change of C0 beyond this many points and this
# multiple of its CPU time is not its own.
_OWN_POINTS, _OWN_TIMES = 1.0, 3.0


class Cost(msgspec.Struct, frozen=True):
    """One figure of the last phase compared with the first, and its verdict."""

    metric: str
    difference: Estimate
    finding: Finding

    @property
    def claim(self) -> Claim:
        """What the interval permits to say; a cost that the drift explains has a hint only."""
        low, high = self.difference.low, self.difference.high
        ends = None if low is None or high is None else (low, high)
        return judge_claim("b_higher" if self.finding == "costs" else "inconclusive", ends)


def find_delta(run: IdleRun, before: str, after: str, metric: str) -> Delta | None:
    """Return the change of a metric between two phases of a run; None if the run does not have it."""
    return next((d for d in run.deltas if (d.from_phase, d.to_phase, d.metric) == (before, after, metric)), None)


def judge_costs(run: IdleRun, first: Phase, last: Phase) -> list[Cost]:
    """Return the verdicts on wake-ups and C0, if both phases have them."""
    after = next((phase for phase in run.phases if phase.name == "baseline-after"), None)
    judged = []
    is_of_others = _is_of_others(run, first, last)
    for metric in ("wakeups_hz", "c0_percent"):
        delta = find_delta(run, first.name, last.name, metric)
        if delta is not None:
            at_end = window_values(after.windows, metric) if after is not None and first.name == "baseline" else []
            before, measured = (window_values(phase.windows, metric) for phase in (first, last))
            # A record without windows has only their summary. The printed interval decides whether 0 is possible.
            found = _judge_interval(delta.difference)
            if found == "costs" and before and measured and judge_cost(before, measured, at_end) != "costs":
                found = "drift"
            if is_of_others and found != "single":
                found = "others"
            judged.append(Cost(metric, delta.difference, found))
    return judged


def server_points(phase: Phase, pid_name: str | None) -> float | None:
    """Return the server's own CPU time in a phase, in percent of all CPUs; None if it is unknown.

    `pid_name` is the server's group of processes; None in a phase without the server, which is 0.
    """
    if pid_name is None:
        return 0.0
    used_s = [group.cpu_s for window in phase.windows for group in window.processes if group.name == pid_name]
    wall_s = sum(window.window_s or 0.0 for window in phase.windows) * phase.cpus
    return 100.0 * sum(used_s) / wall_s if used_s and wall_s > 0 else None


def own_change(first: Phase, last: Phase) -> float | None:
    """Return the change of the server's own CPU time between two phases, in points of C0; None if it is unknown."""
    names = [_server_group(phase) for phase in (first, last)]
    if names[1] is None or (names[0] is None and first.name != "baseline"):
        return None
    points = [server_points(phase, name) for phase, name in zip((first, last), names, strict=True)]
    return None if points[0] is None or points[1] is None else points[1] - points[0]


def _server_group(phase: Phase) -> str | None:
    """Return the group of the server's processes in the windows of a phase."""
    names = (group.name for window in phase.windows for group in window.processes)
    return next((name for name in names if name not in ("powerprof", "rest")), None)


def _is_of_others(run: IdleRun, first: Phase, last: Phase) -> bool:
    """Return whether the host's C0 changed by more than the server can explain, beyond the interval."""
    delta, own = find_delta(run, first.name, last.name, "c0_percent"), own_change(first, last)
    if delta is None or own is None or delta.difference.low is None or delta.difference.high is None:
        return False
    surely = max(delta.difference.low, -delta.difference.high, 0.0)
    return surely > _OWN_POINTS + _OWN_TIMES * abs(own)


def _judge_interval(change: Estimate) -> Finding:
    if change.low is None:
        return "single"
    return "costs" if change.low > 0 else "nothing"


def judge_cost(before: Sequence[float], measured: Sequence[float], after: Sequence[float]) -> Finding:
    """Return whether `measured` exceeds the host's own figure `before` and, if available, `after`.

    A cost must exceed the earlier figure by more than the interval. It must exceed all baseline windows together by
    more than their interval, which includes their drift. And it must be at least three times the change of the
    baseline.
    """
    if not before or not measured:
        return "single"
    change = welch_interval(before, measured)
    if change is None:
        return "single"
    if change.low <= 0:
        return "nothing"
    if after:
        together = welch_interval([*before, *after], measured)
        moved = abs(fmean(after) - fmean(before))
        if together is None or together.low <= 0 or moved >= _DRIFT_SHARE * (fmean(measured) - fmean(before)):
            return "drift"
    return "costs"


def split_phase_energy(
    phase: Phase, energy: WindowEnergy, meters: HostMeters | None, baseline: Phase | None = None
) -> Phase:
    """Split the joules of a phase between the groups of processes with known CPU time and the rest of C0.

    `baseline` is the idle host; its measured power is the floor.
    """
    window_s = sum(window.window_s or 0.0 for window in phase.windows)
    used: dict[str, float] = {}
    for window in phase.windows:
        for group in window.processes:
            if group.name != "rest":
                used[group.name] = used.get(group.name, 0.0) + group.cpu_s
    c0_s = (phase.c0_percent or 0.0) / 100 * phase.cpus * window_s
    stolen_s = (phase.steal_percent or 0.0) / 100 * phase.cpus * window_s
    # Process clocks and idle counters are read at slightly different moments, so clamp the rest at 0.
    rest = max(0.0, c0_s - stolen_s - sum(used.values()))
    consumers = [Consumer(name=name, c0_s=cpu_s) for name, cpu_s in used.items()]
    consumers.append(Consumer(name="rest of the system", c0_s=rest))
    whole = mean_host_energy([window.energy for window in phase.windows], meters)
    idle = None if baseline is None else mean_host_energy([window.energy for window in baseline.windows], meters)
    split = energy.split(
        whole,
        window_s,
        phase.cpus,
        phase.c0_percent,
        consumers,
        steal_percent=phase.steal_percent,
        idle_watts=idle.watts if idle is not None and idle.kind == "measured" else None,
    )
    return msgspec.structs.replace(phase, energy_split=split)
