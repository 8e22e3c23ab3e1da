# SPDX-License-Identifier: Apache-2.0
"""Probes of the kernel: privileges, idle states, tracepoints and type information."""

from __future__ import annotations

import os

from powerprof.host.capabilities import Capability, is_root, limited, missing, none, ok
from powerprof.host.idle_limits import limit_lines, limit_text, read_idle_limits
from powerprof.measure import cpuidle
from powerprof.system import paths
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.files import try_text
from powerprof.system.next_steps import command_line
from powerprof.system.virtualisation import read_virtualisation
from powerprof.tracing.bpf.btf import read_kernel_btf

# Bits of include/uapi/linux/capability.h.
_SYS_PTRACE, _SYS_ADMIN, _PERFMON, _BPF = 19, 21, 38, 39
_NEEDED_CAPABILITIES = {"CAP_BPF": _BPF, "CAP_PERFMON": _PERFMON, "CAP_SYS_PTRACE": _SYS_PTRACE}


def effective_capabilities() -> int:
    """Return CapEff of this process as bits; without procfs, all bits for root and none otherwise."""
    for line in (try_text(paths.procfs() / "self/status") or "").splitlines():
        if line.startswith("CapEff:"):
            try:
                return int(line.split()[1], 16)
            except (IndexError, ValueError):
                break
    return (1 << 64) - 1 if is_root() else 0


def probe_privileges() -> Capability:
    """Return whether this process may load BPF programs and read the memory of other processes."""
    bits = effective_capabilities()
    absent = [name for name, bit in _NEEDED_CAPABILITIES.items() if not bits >> bit & 1]
    # CAP_SYS_ADMIN includes the two capabilities that Linux 5.8 added.
    if bits >> _SYS_ADMIN & 1:
        absent = [name for name in absent if name == "CAP_SYS_PTRACE"]
    account = "root" if is_root() else f"user {os.geteuid()}"
    if not absent:
        return ok("privileges", f"{account} with {', '.join(_NEEDED_CAPABILITIES)}")
    names = ", ".join(absent)
    if is_root():
        flags = " ".join(f"--cap-add={name.removeprefix('CAP_')}" for name in absent)
        return missing("privileges", f"root without {names} (a container?)", f"docker run {flags} …")
    return missing("privileges", f"{account} without {names}; residency needs none of them", command_line("doctor"))


def probe_residency() -> Capability:
    """Return whether there are idle states of cpuidle, or else idle times in /proc/stat."""
    driver = cpuidle.read_driver()
    with cpuidle.CpuidleReader() as reader:
        sets = {tuple(state.name for state in reader.states(cpu)) for cpu in reader.cpus}
    if sets:
        states = " · ".join(", ".join(names) for names in sorted(sets))
        return ok("residency", f"cpuidle, driver {driver or 'unknown'}: {states}")
    if not (try_text(paths.procfs() / "stat") or "").startswith("cpu"):
        return missing("residency", f"neither cpuidle states nor {paths.procfs() / 'stat'}")
    detail = "no cpuidle driver: idle time from /proc/stat, states unknown"
    if read_virtualisation() or not paths.is_this_host():
        return limited("residency", detail)
    return limited("residency", detail, "boot without cpuidle.off=1, idle=poll and nomwait")


def probe_deep_idle() -> Capability:
    """Return whether the host's settings permit its deepest idle states."""
    limits = read_idle_limits()
    settings = ", ".join(f"{name} {value}" for name, value in limits.settings.items())
    lines = limit_lines(limits)
    unread = [f"{what} is unknown" for what in limits.unread]
    if not limits.states:
        return none("deep_idle", "; ".join(["no idle states", *lines, *unread, settings]))
    if lines:
        return limited("deep_idle", "; ".join([*lines, *unread, settings]))
    if unread:
        return limited("deep_idle", "; ".join([*unread, settings]), command_line("doctor"))
    without_effect = [f"{limit_text(limit)}; " for limit in limits.limits]
    return ok("deep_idle", f"no setting forbids an idle state; {''.join(without_effect)}{settings}")


def probe_tracefs() -> Capability:
    """Return whether tracefs is mounted. Only bpftrace and perf need it; powerprof uses raw tracepoints."""
    for line in (try_text(paths.procfs() / "mounts") or "").splitlines():
        words = line.split()
        if len(words) > 2 and words[2] == "tracefs":
            return ok("tracefs", f"mounted at {words[1]}")
    return missing(
        "tracefs",
        "optional: not mounted; only bpftrace and perf need it",
        "mount -t tracefs tracefs /sys/kernel/tracing",
    )


def probe_btf() -> Capability:
    """Return whether the running kernel has type information and the tracepoints of idle exits."""
    try:
        types = read_kernel_btf()
    except PowerprofError as error:
        return missing("btf", error.message, error.hint if isinstance(error, CapabilityError) else None)
    needed = ("cpu_idle", "sched_switch", "sched_waking", "irq_handler_entry", "hrtimer_expire_entry")
    absent = [name for name in needed if not types.has_tracepoint(name)]
    if absent:
        return limited("btf", f"this kernel lacks the tracepoint{'s'[: len(absent) > 1]} {', '.join(absent)}")
    return ok("btf", "of the running kernel, with the tracepoints that idle exits need")
