# SPDX-License-Identifier: Apache-2.0
"""Figures of /proc: CPU accounting, interrupts, context switches, frequency, and CPU time of processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from powerprof.model.records import ProcessTime
from powerprof.system import files, paths
from powerprof.system.process_stat import read_process_stat

_USER_HZ = 100  # the unit of /proc/stat for user space on every architecture (include/asm-generic/param.h)
_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice")
_RUNNING, _IDLE = ("user", "nice", "system", "irq", "softirq", "steal"), ("idle", "iowait")
# No counter of a running host has counted for a century.
_LONGEST_S = 100 * 365 * 86400.0
# The kernel sets idle time back by some ticks. It rounds each field down to 10 ms, and counts in ticks of 1 to 10 ms.
_SET_BACK_S, _SLACK_S, _SLACK = 0.05, 0.1, 0.02
# lxcfs and others update a CPU's times once in a while: less than this share of a window has other reasons.
_LEAST = 0.7
_CPUCLOCK_SCHED = 2  # include/linux/posix-timers.h: clock of a process = ~pid << 3 | CPUCLOCK_SCHED


class Stat(msgspec.Struct, frozen=True):
    """/proc/stat at CLOCK_MONOTONIC `at_ns`, read within `read_ns`.

    Attributes:
        cpus: seconds since boot by CPU, in the kernel's field names.
        interrupts: the non-zero counts by interrupt number.
    """

    at_ns: int
    cpus: Mapping[int, Mapping[str, float]]
    interrupts_count: int
    context_switches_count: int
    interrupts: Mapping[int, int] = msgspec.field(default_factory=dict)
    read_ns: int = 0


class Accounting(msgspec.Struct, frozen=True):
    """The use of CPU time between two `Stat`, in percent of the accounted time of the known CPUs."""

    cpus: int
    window_s: float
    user_percent: float
    system_percent: float
    irq_percent: float
    steal_percent: float
    idle_percent: float
    interrupts_hz: float | None
    context_switches_hz: float | None


def parse_stat(text: str, path: object, at_ns: int = 0) -> Stat:
    """Return the figures of /proc/stat. Raise PowerprofError for another text."""
    cpus: dict[int, dict[str, float]] = {}
    counts = {"intr": 0, "ctxt": 0}
    interrupts: dict[int, int] = {}
    for line in text.splitlines():
        words = line.split()
        try:
            if words and words[0] in counts:
                counts[words[0]] = int(words[1])
                if words[0] == "intr":
                    interrupts = {number: int(word) for number, word in enumerate(words[2:]) if word != "0"}
            elif words and words[0].startswith("cpu") and words[0] != "cpu":
                ticks = [int(word) / _USER_HZ for word in words[1:]]
                cpus[int(words[0][3:])] = dict(zip(_FIELDS, ticks, strict=False))
        except (ValueError, IndexError):
            raise files.not_understood(path, f"not understood: {line[:40]!r}") from None
    if not cpus:
        raise files.not_understood(path, "no CPU in it")
    return Stat(at_ns, cpus, counts["intr"], counts["ctxt"], interrupts)


def read_stat(root: Path | None = None) -> Stat:
    """Return this moment's /proc/stat. Raise PowerprofError."""
    path = (root or paths.procfs()) / "stat"
    at_ns = time.monotonic_ns()
    text = files.read_text(path)
    return replace(parse_stat(text, path, at_ns), read_ns=time.monotonic_ns() - at_ns)


class CpuTimes(msgspec.Struct, frozen=True):
    """The seconds that each CPU spent between two `Stat`, by the kernel's field names; `idle` includes iowait.

    Attributes:
        unknown: the CPUs without figures and the reason. They are in no sum.
        partial: the share of the window, in percent, that /proc/stat accounts for, if that is not all of it.
    """

    spent: Mapping[int, Mapping[str, float]]
    unknown: Mapping[int, str]
    partial: Mapping[int, float]


def compute_cpu_times(before: Stat, after: Stat) -> CpuTimes:
    """Return the CPU time between two readings, of the CPUs whose counters are possible.

    The counters of a CPU are possible if none goes backwards and all together grow by the time that passed. Containers
    and hypervisors print others (lxcfs): then the CPU is unknown.
    """
    spent: dict[int, dict[str, float]] = {}
    unknown: dict[int, str] = {}
    partial: dict[int, float] = {}
    for cpu in sorted(set(before.cpus) | set(after.cpus)):
        if cpu not in before.cpus or cpu not in after.cpus:
            unknown[cpu] = "the CPU is in one of the two readings only"
            continue
        deltas = _subtract_fields(before.cpus[cpu], after.cpus[cpu])
        share = deltas if isinstance(deltas, str) else _check_total(deltas, before, after)
        if isinstance(deltas, str) or isinstance(share, str):
            unknown[cpu] = str(share)
            continue
        spent[cpu] = deltas
        if share is not None:
            partial[cpu] = share
    return CpuTimes(spent, unknown, partial)


def _subtract_fields(old: Mapping[str, float], new: Mapping[str, float]) -> dict[str, float] | str:
    """Return the seconds by field, or the reason why they are impossible. User includes guest time (proc(5)).

    The kernel moves time between idle and iowait, so only their sum may not go backwards.
    """
    for name in (*_RUNNING, *_IDLE):
        if not 0 <= new.get(name, 0.0) <= _LONGEST_S or not 0 <= old.get(name, 0.0) <= _LONGEST_S:
            return f"the {name} time is impossible ({new.get(name, 0.0):.3g} s)"
    if "idle" not in new or "idle" not in old:
        return "the idle time is missing"
    deltas = {name: new.get(name, 0.0) - old.get(name, 0.0) for name in _RUNNING}
    deltas["idle"] = sum(new.get(name, 0.0) - old.get(name, 0.0) for name in _IDLE)
    for name, seconds in deltas.items():
        if seconds < -_SET_BACK_S:
            return f"the {name} time went backwards"
    return {name: max(0.0, seconds) for name, seconds in deltas.items()}


def _check_total(deltas: Mapping[str, float], before: Stat, after: Stat) -> float | str | None:
    """Return the share of the window that is accounted for, in percent, None for all of it, or a reason against it."""
    total, idle = sum(deltas.values()), deltas["idle"]
    if total <= 0:
        return "its counters stand still"
    if after.at_ns <= before.at_ns:
        return None
    shortest_s = (after.at_ns - before.at_ns - before.read_ns) / 1e9
    longest_s = (after.at_ns - before.at_ns + after.read_ns) / 1e9
    if total > longest_s * (1 + _SLACK) + _SLACK_S:
        return "its times grew by more than the time that passed"
    if total >= shortest_s * (1 - _SLACK) - _SLACK_S:
        return None
    if idle == 0:
        return "the idle time stands still"
    if idle == total:
        return "the running time stands still"
    if total < shortest_s * _LEAST:
        return "its times grew by much less than the time that passed"
    return 100.0 * total / shortest_s


def compute_accounting(before: Stat, after: Stat) -> Accounting | None:
    """Return the use of CPU time between two readings. None without a CPU whose counters are possible."""
    times = compute_cpu_times(before, after)
    total = sum(sum(fields.values()) for fields in times.spent.values())
    window_s = (after.at_ns - before.at_ns) / 1e9
    if not times.spent or window_s <= 0:
        return None

    def percent(*names: str) -> float:
        return 100.0 * sum(fields[name] for fields in times.spent.values() for name in names) / total

    def rate(old: int, new: int) -> float | None:
        # A running host has had some. A count of 0 is a missing line.
        return (new - old) / window_s if new >= old and new > 0 else None

    return Accounting(
        len(times.spent),
        window_s,
        percent("user", "nice"),
        percent("system"),
        percent("irq", "softirq"),
        percent("steal"),
        percent("idle"),
        rate(before.interrupts_count, after.interrupts_count),
        rate(before.context_switches_count, after.context_switches_count),
    )


def read_frequency_mhz(sysfs: Path | None = None, procfs: Path | None = None) -> float | None:
    """Return the mean frequency of the CPUs now, from cpufreq or else /proc/cpuinfo. None if neither shows it.

    Some kernels interrupt the CPUs to answer: call it outside of windows. A guest's /proc/cpuinfo repeats one constant
    figure (the TSC's), so the result is None there.
    """
    folder = (sysfs or paths.sysfs()) / "devices/system/cpu/cpufreq"
    frequencies = [files.try_int(path) for path in sorted(folder.glob("policy*/scaling_cur_freq"))]
    khz = [value for value in frequencies if value is not None]
    if khz:
        return sum(khz) / len(khz) / 1e3
    text = files.try_text((procfs or paths.procfs()) / "cpuinfo") or ""
    if any(line.startswith("flags") and " hypervisor" in line for line in text.splitlines()):
        return None
    mhz = []
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "cpu MHz":
            try:
                mhz.append(float(value))
            except ValueError:
                return None
    return sum(mhz) / len(mhz) if mhz else None


def process_cpu_ns(pid: int) -> int | None:
    """Return the CPU time of a process with all its threads, also ended ones, in nanoseconds.

    None if it no longer exists.

    The clock of clock_getcpuclockid(3) needs no privilege and counts running threads up to now.
    """
    try:
        return time.clock_gettime_ns((~pid << 3) | _CPUCLOCK_SCHED)
    except OSError:
        return None


def own_peak_bytes() -> int | None:
    """Return the largest memory of this process so far.

    `ru_maxrss` of getrusage(2) is inherited from the parent process (fs/exec.c) and is not used.
    """
    peak = files.read_fields(Path("/proc/self/status")).get("VmHWM", "").split()
    return int(peak[0]) * 1024 if peak else None


def list_children(pid: int) -> list[int]:
    """Return the processes that the first thread of a process started, in order of start.

    Empty if it no longer exists.
    """
    words = (files.try_text(paths.procfs() / str(pid) / f"task/{pid}/children") or "").split()
    return [int(word) for word in words if word.isdigit()]


def reaped_cpu_ns(pid: int) -> int:
    """Return the CPU time of the children that a process has waited for, in steps of 10 ms.

    0 if it no longer exists.
    """
    stat = read_process_stat(pid)
    return 0 if stat is None else stat.reaped_ticks * (1_000_000_000 // _USER_HZ)


def family_cpu_ns(pid: int) -> int | None:
    """Return `process_cpu_ns` plus the time of a process's children, also ended ones. None if it no longer exists."""
    own = process_cpu_ns(pid)
    if own is None:
        return None
    return own + reaped_cpu_ns(pid) + sum(process_cpu_ns(child) or 0 for child in list_children(pid))


class ProcessTimes:
    """CPU time of named groups of processes, each with its child processes.

    powerprof itself counts without its children: these are the servers and clients.
    """

    def __init__(self, groups: Mapping[str, Iterable[int]]) -> None:
        self._pids = {name: tuple(pids) for name, pids in groups.items()}

    def follow(self, name: str, pids: Iterable[int]) -> None:
        """Add or replace a group from the next call on."""
        self._pids[name] = tuple(pids)

    def read(self) -> dict[str, dict[int, int]]:
        """Return nanoseconds by pid for each group. Processes that no longer exist are left out."""
        times_of: dict[str, dict[int, int]] = {}
        for name, pids in self._pids.items():
            times = ((pid, process_cpu_ns(pid) if pid == os.getpid() else family_cpu_ns(pid)) for pid in pids)
            times_of[name] = {pid: value for pid, value in times if value is not None}
        return times_of


def compute_process_times(
    before: Mapping[str, Mapping[int, int]], after: Mapping[str, Mapping[int, int]], wall_cpu_s: float | None
) -> tuple[list[ProcessTime], list[str]]:
    """Return each group's CPU time in seconds and in percent of `wall_cpu_s` (all CPUs' wall time), and notes."""
    times, notes = [], []
    for name, old in before.items():
        new = after.get(name, {})
        both = sorted(set(old) & set(new))
        ended: Sequence[int] = sorted(set(old) - set(new))
        if ended:
            shown = ", ".join(str(pid) for pid in ended[:5])
            notes.append(f"{name}: process {shown} ended during the window: its CPU time is not counted")
        cpu_s = sum(new[pid] - old[pid] for pid in both) / 1e9
        percent = 100.0 * cpu_s / wall_cpu_s if wall_cpu_s else None
        times.append(ProcessTime(name=name, cpu_s=cpu_s, percent=percent))
    return times, notes
