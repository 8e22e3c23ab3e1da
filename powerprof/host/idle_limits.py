# SPDX-License-Identifier: Apache-2.0
"""Settings of a host that forbid deep idle states: latency limits with their holders, disabled states, boot options.

A state is excluded if its exit latency exceeds the latency limit of its CPU: the smaller of the host's limit
(/dev/cpu_dma_latency) and the CPU's own (power/pm_qos_resume_latency_us). The governor haltpoll knows only the limit 0
(Documentation/power/pm_qos_interface.rst; drivers/cpuidle/governors).
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from powerprof.measure.cpuidle import LATENCY_DEVICE, CpuidleReader, format_cpu_list, read_driver, read_latency_us
from powerprof.measure.window import StateInfo
from powerprof.model.text import join_words
from powerprof.system import paths
from powerprof.system.cgroups import service_of
from powerprof.system.files import reason_of, try_text, whole
from powerprof.system.processes import list_pids, name_of
from powerprof.system.reader_process import link_of

# A host with more open files than this is searched in part.
_MOST_LINKS = 200_000
_SHOWN = 4  # holders in a sentence
_BOOT_OPTIONS = ("idle", "intel_idle.max_cstate", "processor.max_cstate", "cpuidle.off")
_TICK_OPTIONS = ("nohz", "nohz_full")
_SETTINGS = {
    "idle governor": "devices/system/cpu/cpuidle/current_governor",
    "frequency driver": "devices/system/cpu/cpu0/cpufreq/scaling_driver",
    "frequency governor": "devices/system/cpu/cpu0/cpufreq/scaling_governor",
    "energy preference (EPP)": "devices/system/cpu/cpu0/cpufreq/energy_performance_preference",
    "boost": "devices/system/cpu/cpufreq/boost",
    "turbo off": "devices/system/cpu/intel_pstate/no_turbo",
    "guest_halt_poll_ns": "module/haltpoll/parameters/guest_halt_poll_ns",
    "kvm.halt_poll_ns": "module/kvm/parameters/halt_poll_ns",
    "ASPM policy": "module/pcie_aspm/parameters/policy",
}


class IdleState(msgspec.Struct, frozen=True, kw_only=True):
    """An idle state of the host. `latency_us` is its exit latency, `target_us` the idle time from which it pays."""

    name: str
    latency_us: int | None
    target_us: int | None
    polling: bool


class LimitHolder(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds a latency limit open, and its system service."""

    pid: int
    name: str | None
    service: str | None


class IdleLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that forbids idle states.

    `setting` is cpu_dma_latency, pm_qos_resume_latency_us, disabled or boot option. `excludes` are the states, None if
    unknown. `holders` are the processes that request it, None without any or if unknown. `cpus`: None for all.
    """

    setting: str
    value: str
    excludes: list[str] | None
    holders: list[LimitHolder] | None = None
    cpus: str | None = None


class IdleLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What forbids deep idle on a host.

    `states` are shallowest first. `limits` forbid states. `settings` have an effect on idle power, by name. `unread`
    are the limits that this user may not read.
    """

    states: list[IdleState]
    limits: list[IdleLimit]
    settings: dict[str, str]
    unread: list[str]

    @property
    def excluded(self) -> list[str]:
        """The names of the states that limits exclude, shallowest first."""
        names = {name for limit in self.limits for name in limit.excludes or ()}
        return [state.name for state in self.states if state.name in names]


def read_idle_limits(device: Path = LATENCY_DEVICE) -> IdleLimits:
    """Return what forbids deep idle here, or on the host of POWERPROF_SYSFS and POWERPROF_PROCFS. Change nothing.

    Raise PowerprofError for unreadable idle states.
    """
    with CpuidleReader() as reader:
        by_cpu = {cpu: reader.states(cpu) for cpu in reader.cpus}
    limits, unread = [], []
    governor = try_text(paths.sysfs() / _SETTINGS["idle governor"]) or try_text(
        paths.sysfs() / "devices/system/cpu/cpuidle/current_governor_ro"
    )
    host_us, problem = _read_host_limit_us(device)
    if problem is not None:
        unread.append(problem)
    if host_us is not None:
        states = [state for each in by_cpu.values() for state in each]
        holders = _find_holders(device)
        if holders is None:
            unread.append(f"the processes that hold {device}")
        excluded = _exceeding(states, host_us, governor)
        limits.append(IdleLimit(setting="cpu_dma_latency", value=f"{host_us} µs", excludes=excluded, holders=holders))
    limits += [*_cpu_limits(by_cpu, governor), *_disabled_states(by_cpu), *_boot_limits(by_cpu)]
    settings = {name: text for name, path in _SETTINGS.items() if (text := try_text(paths.sysfs() / path))}
    # The active one of several policies is in brackets.
    settings = {name: re.sub(r".*\[(\w+)\].*", r"\1", text) for name, text in settings.items()}
    settings = {"idle driver": read_driver() or "none"} | settings | dict(_profiles()) | dict(_tick_options())
    return IdleLimits(states=_merge(by_cpu), limits=limits, settings=settings, unread=unread)


def _merge(by_cpu: Mapping[int, Sequence[StateInfo]]) -> list[IdleState]:
    """Return each state once, with the values of the first CPU that has it."""
    merged: dict[str, IdleState] = {}
    for states in by_cpu.values():
        for state in states:
            merged.setdefault(
                state.name,
                IdleState(
                    name=state.name, latency_us=state.latency_us, target_us=state.target_us, polling=state.polling
                ),
            )
    return sorted(merged.values(), key=lambda state: (not state.polling, state.latency_us or 0))


def _exceeding(states: Sequence[StateInfo], limit_us: int, governor: str | None) -> list[str] | None:
    """Return the states that a latency limit excludes; None if the latency of a state is unknown."""
    if governor == "haltpoll" and limit_us > 0:
        return []
    names = {}
    for state in states:
        if state.polling:
            continue
        if state.latency_us is None:
            return None
        if state.latency_us > limit_us:
            names[state.name] = True
    return list(names)


def _read_host_limit_us(device: Path) -> tuple[int | None, str | None]:
    """Return the host's latency limit in µs, None without one, and what could not be read."""
    if device == LATENCY_DEVICE and not paths.is_this_host():
        return None, "the latency limit of the recorded host"
    try:
        return read_latency_us(device), None
    except FileNotFoundError:
        return None, None
    except PermissionError:
        return None, f"the latency limit ({device}: only root may read it)"
    except OSError as error:
        return None, f"the latency limit ({device}: {reason_of(error)})"


def _find_holders(device: Path) -> list[LimitHolder] | None:
    """Return the processes that hold the device open; None if some processes cannot be looked at."""
    if os.geteuid() != 0 or not paths.is_this_host():
        return None
    holders = []
    left = _MOST_LINKS
    for pid in list_pids():
        if pid == os.getpid():
            continue
        with suppress(OSError):
            for entry in os.scandir(paths.procfs() / str(pid) / "fd"):
                left -= 1
                if link_of(entry.path) == str(device):
                    holders.append(LimitHolder(pid=pid, name=name_of(pid), service=service_of(pid)))
                    break
        if left < 0:
            return None
    return holders


def _cpu_limits(by_cpu: Mapping[int, Sequence[StateInfo]], governor: str | None) -> Iterator[IdleLimit]:
    """Return the limits that CPUs have themselves. 0 means no limit, and `n/a` means no latency at all."""
    groups: dict[int, list[int]] = defaultdict(list)
    for cpu in by_cpu:
        text = try_text(paths.sysfs() / f"devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us")
        value = 0 if text == "n/a" else whole(text)
        if value is not None and (value > 0 or text == "n/a"):
            groups[value].append(cpu)
    for value, cpus in sorted(groups.items()):
        states = [state for cpu in cpus for state in by_cpu[cpu]]
        yield IdleLimit(
            setting="pm_qos_resume_latency_us",
            value=f"{value} µs",
            excludes=_exceeding(states, value, governor),
            cpus=_some(cpus, by_cpu),
        )


def _some(cpus: Sequence[int], all_cpus: Mapping[int, object]) -> str | None:
    return None if len(cpus) == len(all_cpus) else format_cpu_list(cpus)


def _disabled_states(by_cpu: Mapping[int, Sequence[StateInfo]]) -> Iterator[IdleLimit]:
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for cpu, states in by_cpu.items():
        names = tuple(state.name for state in states if state.disabled and not state.polling)
        if names:
            groups[names].append(cpu)
    for names, cpus in groups.items():
        value = join_words(list(names))
        yield IdleLimit(setting="disabled", value=value, excludes=list(names), cpus=_some(cpus, by_cpu))


def _boot_options(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for word in (try_text(paths.procfs() / "cmdline") or "").split():
        if word == "--":  # the rest is for init
            return
        name, equals, value = word.partition("=")
        if equals and name.replace("-", "_") in names:
            yield name, value


def _boot_limits(by_cpu: Mapping[int, Sequence[StateInfo]]) -> Iterator[IdleLimit]:
    """Return the boot options that limit idle states. The kernel leaves the excluded states out of its table."""
    for name, value in _boot_options(_BOOT_OPTIONS):
        if (name, value) == ("intel_idle.max_cstate", "0"):
            continue  # acpi_idle takes over
        is_all = (name, value) == ("idle", "poll") and not by_cpu
        yield IdleLimit(setting="boot option", value=f"{name}={value}", excludes=["all"] if is_all else None)


def _tick_options() -> Iterator[tuple[str, str]]:
    yield from ((f"boot option {name}", value) for name, value in _boot_options(_TICK_OPTIONS))


def _profiles() -> Iterator[tuple[str, str]]:
    """Return the active profiles of TuneD and power-profiles-daemon."""
    if not paths.is_this_host():
        return
    tuned = try_text(Path("/etc/tuned/active_profile"))
    if tuned:
        yield "TuneD profile", tuned
    for line in (try_text(Path("/var/lib/power-profiles-daemon/state.ini")) or "").splitlines():
        if line.startswith("Profile="):
            yield "power-profiles-daemon profile", line.partition("=")[2].strip()


# The text of limits. `doctor`, `residency` and `diagnose` print it.


def holder_text(holder: LimitHolder) -> str:
    """Return a holder as `tuned.service`, or as `python3 812` without a service."""
    return holder.service or f"{holder.name or 'process'} {holder.pid}"


def limit_text(limit: IdleLimit, states: Sequence[IdleState]) -> str:
    """Return a limit and the states that it excludes as a phrase."""
    where = f" on CPU {limit.cpus}" if limit.cpus else ""
    by = ""
    if limit.holders is not None:
        names = [holder_text(each) for each in limit.holders[:_SHOWN]]
        names += [f"{len(limit.holders) - _SHOWN} more"] if len(limit.holders) > _SHOWN else []
        by = f", held by {join_words(names) or 'the kernel or a process that this host does not show'}"
    if limit.setting == "disabled":
        return f"{limit.value} {'is' if len(limit.excludes or ()) == 1 else 'are'} disabled{where}"
    name = "latency limit of" if limit.setting == "cpu_dma_latency" else limit.setting
    subject = f"{name} {limit.value}{where}{by}"
    if limit.excludes is None:
        return f"{subject}: the excluded idle states are unknown"
    comma = "," if by else ""
    usable = {state.name for state in states if not state.polling}
    if limit.excludes == ["all"] or (usable and usable <= set(limit.excludes)):
        return f"{subject}{comma} excludes all idle states: CPUs poll"
    return f"{subject}{comma} excludes {join_words(limit.excludes) or 'no idle state'}"


def limit_lines(limits: IdleLimits) -> list[str]:
    """Return one phrase for each limit that excludes states, or may exclude some."""
    return [limit_text(limit, limits.states) for limit in limits.limits if limit.excludes != []]
