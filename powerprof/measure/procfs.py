# SPDX-License-Identifier: Apache-2.0
"""What /proc says of a window: CPU accounting, interrupts, context switches, frequency, CPU time of
processes.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from powerprof.model.records import ProcessTime
from powerprof.system import files, paths
from powerprof.system.files import try_text, whole
from powerprof.system.paths import procfs
from powerprof.system.tasks import process_stat

_USER_HZ = 100  # the unit of /proc/stat for user space on every architecture (include/asm-generic/param.h)
_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice")
_CPUCLOCK_SCHED = 2  # include/linux/posix-timers.h: clock of a process = ~pid << 3 | CPUCLOCK_SCHED


@dataclass(frozen=True, slots=True)
class Stat:
    """/proc/stat at CLOCK_MONOTONIC `at_ns`. Times are seconds since boot by CPU, in the kernel's field
    names; `interrupts` are those that came by number.
    """

    at_ns: int
    cpus: Mapping[int, Mapping[str, float]]
    interrupts_count: int
    context_switches_count: int
    interrupts: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Accounting:
    """How CPU time was spent between two `Stat`, in percent of the accounted time of the CPUs in both."""

    cpus: int
    window_s: float
    user_percent: float
    system_percent: float
    irq_percent: float
    steal_percent: float
    idle_percent: float
    interrupts_hz: float
    context_switches_hz: float


def parse_stat(text: str, path: object, at_ns: int = 0) -> Stat:
    """Parse /proc/stat. Raises PowerprofError where it is none."""
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
    """This moment's /proc/stat. Raises PowerprofError."""
    path = (root or paths.procfs()) / "stat"
    at_ns = time.monotonic_ns()
    return parse_stat(files.read_text(path), path, at_ns)


def compute_accounting(before: Stat, after: Stat) -> Accounting | None:
    """What happened between two readings; None where no CPU was there at both or no time was accounted.

    Idle includes iowait: an idle CPU with a request outstanding. Guest time is in user already (proc(5)).
    The kernel may set idle and iowait back a little: a field never counts less than nothing.
    """
    both = set(before.cpus) & set(after.cpus)
    spent = dict.fromkeys(_FIELDS, 0.0)
    for cpu in both:
        for name, value in after.cpus[cpu].items():
            spent[name] += max(0.0, value - before.cpus[cpu].get(name, 0.0))
    total = sum(value for name, value in spent.items() if not name.startswith("guest"))
    window_s = (after.at_ns - before.at_ns) / 1e9
    if not both or total <= 0 or window_s <= 0:
        return None

    def percent(*names: str) -> float:
        return 100.0 * sum(spent[name] for name in names) / total

    return Accounting(
        len(both),
        window_s,
        percent("user", "nice"),
        percent("system"),
        percent("irq", "softirq"),
        percent("steal"),
        percent("idle", "iowait"),
        max(0, after.interrupts_count - before.interrupts_count) / window_s,
        max(0, after.context_switches_count - before.context_switches_count) / window_s,
    )


def read_frequency_mhz(sysfs: Path | None = None, procfs: Path | None = None) -> float | None:
    """The mean frequency of the CPUs now, from cpufreq or else /proc/cpuinfo; None where neither says.

    Some kernels interrupt the CPUs to answer: read it outside of the window. A guest's /proc/cpuinfo repeats
    one constant figure (the TSC's), which says nothing of the frequency: None for it.
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
    """CPU time of a process with all its threads, living and ended, to the nanosecond; None where it has
    gone.

    The clock of clock_getcpuclockid(3), which needs no privilege; running threads are counted up to now.
    """
    try:
        return time.clock_gettime_ns((~pid << 3) | _CPUCLOCK_SCHED)
    except OSError:
        return None


def own_peak_bytes() -> int | None:
    """The most memory that this process held at once.

    Not getrusage(2)'s `ru_maxrss`, which a program inherits from the process that started it (fs/exec.c).
    """
    peak = files.read_fields(Path("/proc/self/status")).get("VmHWM", "").split()
    return int(peak[0]) * 1024 if peak else None


def children_cpu_s() -> float:
    """CPU time of all that this process started, and that has ended and was waited for, with what that had started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def list_children(pid: int) -> list[int]:
    """The processes that its first thread started, in the order of their beginning; none where it is gone."""
    words = (files.try_text(paths.procfs() / str(pid) / f"task/{pid}/children") or "").split()
    return [int(word) for word in words if word.isdigit()]


def reaped_cpu_ns(pid: int) -> int:
    """What the processes used that a process has started and waited for, in steps of 10 ms. 0 where it is gone."""
    stat = process_stat(pid)
    return 0 if stat is None else stat.reaped_ticks * (1_000_000_000 // _USER_HZ)


def family_cpu_ns(pid: int) -> int | None:
    """As `process_cpu_ns`, with the processes that it started and those of them that have ended: a server that works
    in processes.
    """
    own = process_cpu_ns(pid)
    if own is None:
        return None
    return own + reaped_cpu_ns(pid) + sum(process_cpu_ns(child) or 0 for child in list_children(pid))


class ProcessTimes:
    """CPU time of named groups of processes between two calls, each with the processes that it started; powerprof
    itself without, for those are the servers and clients."""

    def __init__(self, groups: Mapping[str, Iterable[int]]) -> None:
        self._pids = {name: tuple(pids) for name, pids in groups.items()}

    def follow(self, name: str, pids: Iterable[int]) -> None:
        """From the next call on, another group."""
        self._pids[name] = tuple(pids)

    def read(self) -> dict[str, dict[int, int]]:
        """Nanoseconds by pid of each group; processes that have gone are absent."""
        times_of: dict[str, dict[int, int]] = {}
        for name, pids in self._pids.items():
            times = ((pid, process_cpu_ns(pid) if pid == os.getpid() else family_cpu_ns(pid)) for pid in pids)
            times_of[name] = {pid: value for pid, value in times if value is not None}
        return times_of


def compute_process_times(
    before: Mapping[str, Mapping[int, int]], after: Mapping[str, Mapping[int, int]], wall_cpu_s: float | None
) -> tuple[list[ProcessTime], list[str]]:
    """What each group used, in seconds and in percent of `wall_cpu_s` (all CPUs' wall time), and what is
    missing.
    """
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


# Interrupts that no tracepoint shows, by the kernel's own count in /proc/interrupts.
#
# Linux traces the vectors of x86 that belong to APIC and kernel (arch/x86/kernel/irq.c), and every interrupt with a
# handler. It does not trace hypervisors' callbacks (Xen's events, Hyper-V's bus, page faults that KVM completes later),
# Hyper-V's timer, posted interrupts and NMIs. They end idle periods too; what ended those is then seen by what they did
# (a timer that expired, a softirq, a thread that was woken), or unknown.

# The kernel's names of the rows: arch_show_interrupts().
UNSEEN = {
    "HYP": "hypervisor callbacks",
    "HRE": "Hyper-V reenlightenment",
    "HVS": "Hyper-V timers",
    "PIN": "posted interrupts",
    "NPI": "nested posted interrupts",
    "PIW": "posted wake-ups",
    "NMI": "NMIs",
}


_TIMERS = ("LOC", "HVS")  # of x86, and those of Hyper-V instead


def read_timer_interrupts() -> int | None:
    """Interrupts of the CPUs' own timers since boot, over all CPUs; None where no row is known to be theirs."""
    total = None
    for line in (try_text(procfs() / "interrupts") or "").splitlines()[1:]:
        name, _, rest = line.partition(":")
        if name.strip() in _TIMERS or "arch_timer" in rest:
            figures = [whole(word) for word in rest.split()]
            total = (total or 0) + sum(
                figure for figure in takewhile(lambda one: one is not None, figures) if figure is not None
            )
    return total


def read_unseen_counts() -> dict[str, int]:
    """How many of each there were since boot, over all CPUs; rows that this machine lacks are left out."""
    counts = {}
    for line in (try_text(procfs() / "interrupts") or "").splitlines()[1:]:
        name, colon, rest = line.partition(":")
        if colon and name.strip() in UNSEEN:
            figures = [whole(word) for word in rest.split()]
            counts[name.strip()] = sum(figure for figure in figures if figure is not None)
    return counts


def count_unseen(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """How many came meanwhile, by what they are, of those that came."""
    came = {UNSEEN[name]: count - before.get(name, 0) for name, count in after.items()}
    return {name: count for name, count in came.items() if count > 0}
