# SPDX-License-Identifier: Apache-2.0
"""P-states: how long cpufreq requested each frequency, what its drivers may choose, and what the CPUs really ran at.

`stats/time_in_state` (Documentation/cpu-freq/cpufreq-stats.rst) is kept by drivers that choose from a table. In their
active modes intel_pstate and amd-pstate let the hardware choose and keep none: then only APERF and MPERF know, which
count while a CPU runs, at its own and at a fixed frequency (Intel SDM volume 3, "IA32_MPERF and IA32_APERF"); perf's
`msr` unit reads them.
"""

from __future__ import annotations

import math
import os
import re
import resource
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from powerprof.measure.cpuidle import format_cpu_list, parse_cpu_list
from powerprof.measure.perf_events import open_counter, read_counter
from powerprof.model.records import CpuFrequency, Frequencies, FrequencyLimits, PState
from powerprof.system.errors import PowerprofError
from powerprof.system.files import try_int, try_text, whole
from powerprof.system.paths import is_this_host, sysfs

_MSR = "bus/event_source/devices/msr"
_CLOCKS = ("aperf", "mperf", "tsc")
_FILES_SHARE = 8  # of the files that this process may open: what it counts with must not starve what it measures with

Clocks = tuple[int, int, int]  # aperf, mperf, tsc


@dataclass(frozen=True)
class Policy:
    """CPUs that share a frequency, and the ticks (10 ms) since boot at each, by kHz; none where nothing counts."""

    cpus: tuple[int, ...]
    ticks: Mapping[int, int]


@dataclass(frozen=True)
class FrequencyReading:
    """The counters at one moment of CLOCK_MONOTONIC."""

    at_s: float
    policies: Mapping[str, Policy]
    clocks: Mapping[int, Clocks] = field(default_factory=dict)


class PerfClocks:
    """APERF, MPERF and TSC of each CPU; none where perf has no such events or does not let us."""

    def __init__(self, cpus: Sequence[int]) -> None:
        self._descriptors: dict[int, list[int]] = {}
        unit = sysfs() / _MSR
        kind, events = try_int(unit / "type"), [_event(unit, clock) for clock in _CLOCKS]
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _FILES_SHARE
        if not is_this_host() or kind is None or None in events or len(_CLOCKS) * len(cpus) > most:
            return
        try:
            for cpu in cpus:
                self._descriptors[cpu] = []
                for event in events:
                    self._descriptors[cpu].append(open_counter(kind, event or 0, cpu))
        except OSError:
            self.close()

    def read(self) -> dict[int, Clocks]:
        """By CPU; one that has gone is left out."""
        clocks = {}
        for cpu, descriptors in self._descriptors.items():
            try:
                counts = [read_counter(descriptor) for descriptor in descriptors]
            except OSError:
                continue
            known = [count for count in counts if count is not None]
            if len(known) == len(_CLOCKS):
                clocks[cpu] = (known[0], known[1], known[2])
        return clocks

    def close(self) -> None:
        """Give the descriptors back."""
        for descriptor in (each for descriptors in self._descriptors.values() for each in descriptors):
            os.close(descriptor)
        self._descriptors.clear()


def _event(unit: Path, name: str) -> int | None:
    match = re.fullmatch(r"event=0x([0-9a-f]{1,8})", try_text(unit / "events" / name) or "")
    return int(match[1], 16) if match else None


def _policies() -> list[Path]:
    folder = sysfs() / "devices/system/cpu/cpufreq"
    return sorted(folder.glob("policy[0-9]*"), key=lambda path: (len(path.name), path.name))


def _cpus_of(policy: Path) -> tuple[int, ...]:
    # "affected_cpus" are those that are online, separated by blanks.
    text = (try_text(policy / "affected_cpus") or "").replace(" ", ",")
    try:
        return tuple(parse_cpu_list(text, policy))
    except PowerprofError:
        return ()


def read_frequencies(clocks: PerfClocks | None = None) -> FrequencyReading:
    """This moment's counters."""
    policies = {}
    for policy in _policies():
        text = try_text(policy / "stats/time_in_state") or ""
        rows = [[whole(word) for word in line.split()] for line in text.splitlines()]
        ticks = {row[0]: row[1] for row in rows if len(row) == 2 and row[0] is not None and row[1] is not None}
        policies[policy.name] = Policy(_cpus_of(policy), ticks)
    return FrequencyReading(time.monotonic(), policies, clocks.read() if clocks else {})


def read_limits() -> list[FrequencyLimits]:
    """What the drivers may choose, CPUs with the same limits in one line."""
    alike: dict[FrequencyLimits, list[int]] = {}
    for policy in _policies():
        found = FrequencyLimits(
            cpus="",
            driver=try_text(policy / "scaling_driver"),
            governor=try_text(policy / "scaling_governor"),
            preference=try_text(policy / "energy_performance_preference"),
            minimum_mhz=_mhz(policy / "scaling_min_freq"),
            maximum_mhz=_mhz(policy / "scaling_max_freq"),
            hardware_minimum_mhz=_mhz(policy / "cpuinfo_min_freq"),
            hardware_maximum_mhz=_mhz(policy / "cpuinfo_max_freq"),
            base_mhz=_mhz(policy / "base_frequency"),
        )
        alike.setdefault(found, []).extend(_cpus_of(policy))
    return [_with_cpus(found, cpus) for found, cpus in alike.items()]


def _with_cpus(found: FrequencyLimits, cpus: Sequence[int]) -> FrequencyLimits:
    import msgspec

    return msgspec.structs.replace(found, cpus=format_cpu_list(cpus))


def _mhz(path: Path) -> float | None:
    khz = try_int(path)
    return None if khz is None else khz / 1e3


def read_pstate_status() -> str | None:
    """The mode of intel_pstate or amd-pstate (active, passive, guided, off); None where neither is there."""
    folder = sysfs() / "devices/system/cpu"
    return next((text for name in ("intel_pstate", "amd_pstate") if (text := try_text(folder / name / "status"))), None)


def read_turbo() -> bool | None:
    """Whether CPUs may run above their base frequency; None where nothing says."""
    folder = sysfs() / "devices/system/cpu"
    off, boost = try_int(folder / "intel_pstate/no_turbo"), try_int(folder / "cpufreq/boost")
    return off == 0 if off is not None else None if boost is None else boost == 1


def compute_frequencies(before: FrequencyReading, after: FrequencyReading) -> Frequencies | None:
    """P-states of the time between two readings; None on a host without cpufreq and without APERF."""
    seconds = after.at_s - before.at_s
    if seconds <= 0 or not (after.policies or after.clocks):
        return None
    ticks = {
        cpu: spent
        for name, policy in after.policies.items()
        if (old := before.policies.get(name)) is not None and (spent := _spent(old.ticks, policy.ticks))
        for cpu in policy.cpus
    }
    ran = {
        cpu: (new[0] - was[0], new[1] - was[1], (new[2] - was[2]) / seconds)
        for cpu, new in after.clocks.items()
        if (was := before.clocks.get(cpu)) is not None and new[1] > was[1]
    }
    cpus = [
        CpuFrequency(cpu=cpu, states=_shares(ticks.get(cpu, {})), busy_mhz=_busy_mhz([ran[cpu]] if cpu in ran else []))
        for cpu in sorted({*ticks, *ran})
    ]
    return Frequencies(
        states=_mean([cpu.states for cpu in cpus if cpu.states]),
        cpus=cpus,
        limits=read_limits(),
        busy_mhz=_busy_mhz(ran.values()),
        status=read_pstate_status(),
        turbo=read_turbo(),
    )


def _spent(old: Mapping[int, int], new: Mapping[int, int]) -> dict[int, int]:
    """Ticks at each frequency; none where the counters were reset meanwhile (`stats/reset`, a CPU that came back)."""
    spent = {khz: count - old.get(khz, 0) for khz, count in new.items()}
    return spent if sum(spent.values()) > 0 and min(spent.values()) >= 0 else {}


def _shares(ticks: Mapping[int, int]) -> list[PState]:
    whole_time = sum(ticks.values())
    return [PState(mhz=khz / 1e3, residency_percent=100 * n / whole_time) for khz, n in sorted(ticks.items())]


def _busy_mhz(ran: Iterable[tuple[int, int, float]]) -> float | None:
    """Σ APERF ÷ Σ MPERF of the frequency at which MPERF counts, the TSC's."""
    each = list(ran)
    mperf = sum(one[1] for one in each)
    return sum(aperf * tsc_hz for aperf, _, tsc_hz in each) / mperf / 1e6 if mperf else None


def _mean(each: Sequence[Sequence[PState]]) -> list[PState]:
    """The mean of several lists that are alike; a frequency that one lacks was not requested in it."""
    sums: dict[float, float] = {}
    for states in each:
        for state in states:
            sums[state.mhz] = sums.get(state.mhz, 0.0) + state.residency_percent
    return [PState(mhz=mhz, residency_percent=total / len(each)) for mhz, total in sorted(sums.items())]


def join_frequencies(first: Frequencies, first_s: float, second: Frequencies, second_s: float) -> Frequencies:
    """Two windows that follow one another as one; limits are the later ones'. Running frequencies are weighted by
    time, for how long the CPUs ran is not in a record."""

    def states(a: Sequence[PState], b: Sequence[PState]) -> list[PState]:
        if not a or not b:
            return [*a, *b]
        shares = {state.mhz: state.residency_percent * first_s for state in a}
        for state in b:
            shares[state.mhz] = shares.get(state.mhz, 0.0) + state.residency_percent * second_s
        total = math.fsum((first_s, second_s))
        return [PState(mhz=mhz, residency_percent=share / total) for mhz, share in sorted(shares.items())]

    def mhz(a: float | None, b: float | None) -> float | None:
        return (
            (b if a is None else a) if a is None or b is None else (a * first_s + b * second_s) / (first_s + second_s)
        )

    old, new = ({cpu.cpu: cpu for cpu in each.cpus} for each in (first, second))
    both = sorted(set(old) & set(new))
    return Frequencies(
        states=states(first.states, second.states),
        cpus=[
            CpuFrequency(
                cpu=cpu,
                states=states(old[cpu].states, new[cpu].states),
                busy_mhz=mhz(old[cpu].busy_mhz, new[cpu].busy_mhz),
            )
            for cpu in both
        ],
        limits=second.limits,
        busy_mhz=mhz(first.busy_mhz, second.busy_mhz),
        status=second.status,
        turbo=second.turbo,
    )
