# SPDX-License-Identifier: Apache-2.0
"""P-states: the time at each requested frequency, the limits of the drivers, and the real frequency of running CPUs.

Drivers that choose from a table keep `stats/time_in_state` (Documentation/cpu-freq/cpufreq-stats.rst). In their
active modes intel_pstate and amd-pstate leave the choice to the hardware and do not keep it. Then only APERF and
MPERF know: while a CPU runs, they count at its own and at a fixed frequency (Intel SDM volume 3, "IA32_MPERF and
IA32_APERF"). perf's `msr` unit reads them.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from powerprof.measure.cpuidle import format_cpu_list, parse_cpu_list
from powerprof.measure.perf_events import open_counter, read_counter
from powerprof.model.system_activity import CpuFrequency, Frequencies, FrequencyLimits, PState
from powerprof.system import open_files
from powerprof.system.errors import PowerprofError
from powerprof.system.files import try_int, try_text
from powerprof.system.foreign_text import whole
from powerprof.system.paths import is_this_host, sysfs

_MSR = "bus/event_source/devices/msr"
_CLOCKS = ("aperf", "mperf", "tsc")
_FILES_SHARE = 8  # of the spare open files
Clocks = tuple[int, int, int]  # aperf, mperf, tsc


class Policy(msgspec.Struct, frozen=True):
    """CPUs that share a frequency, and the ticks (10 ms) since boot at each frequency in kHz.

    No ticks without a counter.
    """

    cpus: tuple[int, ...]
    ticks: Mapping[int, int]


class FrequencyReading(msgspec.Struct, frozen=True):
    """The counters at one moment of CLOCK_MONOTONIC."""

    at_s: float
    policies: Mapping[str, Policy]
    clocks: Mapping[int, Clocks] = msgspec.field(default_factory=dict)


class PerfClocks:
    """APERF, MPERF and TSC of each CPU. Empty if perf lacks these events or refuses them."""

    def __init__(self, cpus: Sequence[int]) -> None:
        self._descriptors: dict[int, list[int]] = {}
        unit = sysfs() / _MSR
        kind, events = try_int(unit / "type"), [_read_event(unit, clock) for clock in _CLOCKS]
        limit = open_files.count_spare() // _FILES_SHARE
        if not is_this_host() or kind is None or None in events or len(_CLOCKS) * len(cpus) > limit:
            return
        try:
            for cpu in cpus:
                self._descriptors[cpu] = []
                for event in events:
                    self._descriptors[cpu].append(open_counter(kind, event or 0, cpu))
        except OSError:
            self.close()

    def read(self) -> dict[int, Clocks]:
        """Return the clocks by CPU, without CPUs that no longer exist."""
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
        """Close the descriptors."""
        for descriptor in (each for descriptors in self._descriptors.values() for each in descriptors):
            os.close(descriptor)
        self._descriptors.clear()


def _read_event(unit: Path, name: str) -> int | None:
    match = re.fullmatch(r"event=0x([0-9a-f]{1,8})", try_text(unit / "events" / name) or "")
    return int(match[1], 16) if match else None


def _list_policies() -> list[Path]:
    folder = sysfs() / "devices/system/cpu/cpufreq"
    return sorted(folder.glob("policy[0-9]*"), key=lambda path: (len(path.name), path.name))


def _read_cpus(policy: Path) -> tuple[int, ...]:
    # "affected_cpus" lists those that are online, separated by blanks.
    text = (try_text(policy / "affected_cpus") or "").replace(" ", ",")
    try:
        return tuple(parse_cpu_list(text, policy))
    except PowerprofError:
        return ()


def read_frequencies(clocks: PerfClocks | None = None) -> FrequencyReading:
    """Return the counters of this moment."""
    policies = {}
    for policy in _list_policies():
        text = try_text(policy / "stats/time_in_state") or ""
        rows = [[whole(word) for word in line.split()] for line in text.splitlines()]
        ticks = {row[0]: row[1] for row in rows if len(row) == 2 and row[0] is not None and row[1] is not None}
        policies[policy.name] = Policy(_read_cpus(policy), ticks)
    return FrequencyReading(time.monotonic(), policies, clocks.read() if clocks else {})


def read_limits() -> list[FrequencyLimits]:
    """Return the limits of the drivers' choice, one entry for all CPUs with the same limits."""
    import msgspec

    cpus_of: dict[FrequencyLimits, list[int]] = {}
    for policy in _list_policies():
        limits = FrequencyLimits(
            cpus="",
            driver=try_text(policy / "scaling_driver"),
            governor=try_text(policy / "scaling_governor"),
            preference=try_text(policy / "energy_performance_preference"),
            minimum_mhz=_read_mhz(policy / "scaling_min_freq"),
            maximum_mhz=_read_mhz(policy / "scaling_max_freq"),
            hardware_minimum_mhz=_read_mhz(policy / "cpuinfo_min_freq"),
            hardware_maximum_mhz=_read_mhz(policy / "cpuinfo_max_freq"),
            base_mhz=_read_mhz(policy / "base_frequency"),
        )
        cpus_of.setdefault(limits, []).extend(_read_cpus(policy))
    return [msgspec.structs.replace(limits, cpus=format_cpu_list(cpus)) for limits, cpus in cpus_of.items()]


def _read_mhz(path: Path) -> float | None:
    khz = try_int(path)
    return None if khz is None else khz / 1e3


def read_pstate_status() -> str | None:
    """Return the mode of intel_pstate or amd-pstate (active, passive, guided, off). None without these drivers."""
    folder = sysfs() / "devices/system/cpu"
    return next((text for name in ("intel_pstate", "amd_pstate") if (text := try_text(folder / name / "status"))), None)


def read_turbo() -> bool | None:
    """Return whether CPUs may run above their base frequency. None if no file shows it."""
    folder = sysfs() / "devices/system/cpu"
    off, boost = try_int(folder / "intel_pstate/no_turbo"), try_int(folder / "cpufreq/boost")
    return off == 0 if off is not None else None if boost is None else boost == 1


def compute_frequencies(before: FrequencyReading, after: FrequencyReading) -> Frequencies | None:
    """Return the P-states between two readings. None on a host without cpufreq and without APERF."""
    seconds = after.at_s - before.at_s
    if seconds <= 0 or not (after.policies or after.clocks):
        return None
    ticks = {
        cpu: spent
        for name, policy in after.policies.items()
        if (old := before.policies.get(name)) is not None and (spent := _subtract_ticks(old.ticks, policy.ticks))
        for cpu in policy.cpus
    }
    ran = {
        cpu: (new[0] - was[0], new[1] - was[1], (new[2] - was[2]) / seconds)
        for cpu, new in after.clocks.items()
        if (was := before.clocks.get(cpu)) is not None and new[1] > was[1]
    }
    cpus = [
        CpuFrequency(
            cpu=cpu, states=_make_states(ticks.get(cpu, {})), busy_mhz=_average_mhz([ran[cpu]] if cpu in ran else [])
        )
        for cpu in sorted({*ticks, *ran})
    ]
    return Frequencies(
        states=_average_states([cpu.states for cpu in cpus if cpu.states]),
        cpus=cpus,
        limits=read_limits(),
        busy_mhz=_average_mhz(ran.values()),
        status=read_pstate_status(),
        turbo=read_turbo(),
    )


def _subtract_ticks(old: Mapping[int, int], new: Mapping[int, int]) -> dict[int, int]:
    """Return the ticks at each frequency.

    Empty if the counters were reset between (`stats/reset`, a CPU that came back).
    """
    spent = {khz: count - old.get(khz, 0) for khz, count in new.items()}
    return spent if sum(spent.values()) > 0 and min(spent.values()) >= 0 else {}


def _make_states(ticks: Mapping[int, int]) -> list[PState]:
    whole_time = sum(ticks.values())
    return [PState(mhz=khz / 1e3, residency_percent=100 * n / whole_time) for khz, n in sorted(ticks.items())]


def _average_mhz(ran: Iterable[tuple[int, int, float]]) -> float | None:
    """Return Σ APERF ÷ Σ MPERF of the frequency at which MPERF counts, the TSC's."""
    clocks = list(ran)
    mperf = sum(clock[1] for clock in clocks)
    return sum(aperf * tsc_hz for aperf, _, tsc_hz in clocks) / mperf / 1e6 if mperf else None


def _average_states(lists: Sequence[Sequence[PState]]) -> list[PState]:
    """Return the mean of several lists. A frequency missing in a list was not requested in it."""
    sums: dict[float, float] = {}
    for states in lists:
        for state in states:
            sums[state.mhz] = sums.get(state.mhz, 0.0) + state.residency_percent
    return [PState(mhz=mhz, residency_percent=total / len(lists)) for mhz, total in sorted(sums.items())]


def join_frequencies(first: Frequencies, first_s: float, second: Frequencies, second_s: float) -> Frequencies:
    """Return two consecutive windows as one, with the limits of the second.

    Frequencies of running CPUs are weighted by time: a record does not contain how long the CPUs ran.
    """

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
