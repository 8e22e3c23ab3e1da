# SPDX-License-Identifier: Apache-2.0
"""What the kernel offers: idle states, tracepoints, type information, and what this process may do."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from powerprof import paths
from powerprof.errors import CapabilityError, PowerprofError
from powerprof.files import try_text
from powerprof.host.capability import Capability, limited, missing, none, ok
from powerprof.host.describe import virtualisation
from powerprof.sources import cpuidle
from powerprof.tracing.bpf.btf import kernel_btf

# include/uapi/linux/capability.h
_SYS_PTRACE, _SYS_ADMIN, _PERFMON, _BPF = 19, 21, 38, 39
_WANTED = {"CAP_BPF": _BPF, "CAP_PERFMON": _PERFMON, "CAP_SYS_PTRACE": _SYS_PTRACE}


def effective_capabilities() -> int:
    """The bits of CapEff of this process; where procfs does not say, all for root and none otherwise."""
    for line in (try_text(paths.procfs() / "self/status") or "").splitlines():
        if line.startswith("CapEff:"):
            try:
                return int(line.split()[1], 16)
            except (IndexError, ValueError):
                break
    return (1 << 64) - 1 if os.geteuid() == 0 else 0


def is_privileged() -> bool:
    """Whether this process is root."""
    return os.geteuid() == 0


def run_as_root() -> str:
    """The command for what only root may do: sudo does not search a venv."""
    script = Path(sys.argv[0])
    return f"sudo {script if script.name == 'powerprof' else 'powerprof'} …"


def privileges() -> Capability:
    """May this process load BPF programs and read other processes' memory?"""
    bits = effective_capabilities()
    lacking = [name for name, bit in _WANTED.items() if not bits >> bit & 1]
    # Before Linux 5.8 CAP_SYS_ADMIN was all of them, and it still stands for the two new ones.
    if bits >> _SYS_ADMIN & 1:
        lacking = [name for name in lacking if name == "CAP_SYS_PTRACE"]
    who = "root" if is_privileged() else f"user {os.geteuid()}"
    if not lacking:
        return ok("privileges", f"{who} with {', '.join(_WANTED)}")
    words = ", ".join(lacking)
    if is_privileged():
        flags = " ".join(f"--cap-add={name.removeprefix('CAP_')}" for name in lacking)
        return missing("privileges", f"root without {words} (a container?)", f"docker run {flags} …")
    return missing("privileges", f"{who} without {words}; residency needs none of them", run_as_root())


def residency() -> Capability:
    """Idle states by cpuidle, or else idle time by /proc/stat."""
    driver = cpuidle.driver()
    with cpuidle.CpuidleReader() as reader:
        sets = {tuple(state.name for state in reader.states(cpu)) for cpu in reader.cpus}
    if sets:
        states = " · ".join(", ".join(names) for names in sorted(sets))
        return ok("residency", f"cpuidle, driver {driver or 'unknown'}: {states}")
    if not (try_text(paths.procfs() / "stat") or "").startswith("cpu"):
        return missing("residency", f"neither cpuidle states nor {paths.procfs() / 'stat'}")
    detail = "no cpuidle driver: idle time from /proc/stat, states unknown"
    if virtualisation() or not paths.is_this_host():
        return limited("residency", detail)
    return limited("residency", detail, "boot without cpuidle.off=1, idle=poll and nomwait")


def tracefs() -> Capability:
    """Only bpftrace and perf read it: powerprof's own programs are raw tracepoints."""
    for line in (try_text(paths.procfs() / "mounts") or "").splitlines():
        words = line.split()
        if len(words) > 2 and words[2] == "tracefs":
            return ok("tracefs", f"mounted at {words[1]}")
    return missing(
        "tracefs",
        "optional: not mounted; only bpftrace and perf need it",
        "mount -t tracefs tracefs /sys/kernel/tracing",
    )


def btf() -> Capability:
    """Type information of the running kernel, and the tracepoints that powerprof attaches to."""
    try:
        types = kernel_btf()
    except CapabilityError as error:
        return missing("btf", error.message, error.hint)
    except PowerprofError as error:
        return missing("btf", error.message)
    needed = ("cpu_idle", "sched_switch", "sched_waking", "irq_handler_entry", "hrtimer_expire_entry")
    absent = [name for name in needed if not types.has_tracepoint(name)]
    if absent:
        return limited("btf", f"this kernel lacks the tracepoint{'s'[: len(absent) > 1]} {', '.join(absent)}")
    return ok("btf", "of the running kernel, with the tracepoints that idle exits need")


def not_this_host(name: str) -> Capability:
    """For what only the running kernel can do, while sysfs or procfs show another one."""
    return none(name, "not looked for: POWERPROF_SYSFS or POWERPROF_PROCFS show another host")
