# SPDX-License-Identifier: Apache-2.0
"""Settings of a host that forbid deep idle states: latency limits with their holders, disabled states, boot options.

A state is excluded if its exit latency exceeds the host's latency limit (/dev/cpu_dma_latency) or the CPU's own
(power/pm_qos_resume_latency_us). The governor haltpoll knows only the limit 0
(Documentation/power/pm_qos_interface.rst; drivers/cpuidle/governors). CPUs can have different states.
"""

from __future__ import annotations

import errno
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

import msgspec

from powerprof.measure.cpuidle import (
    LATENCY_DEVICE,
    CpuidleReader,
    format_cpu_list,
    online_cpus,
    read_driver,
    read_latency_us,
)
from powerprof.measure.idle_counters import StateInfo
from powerprof.model.text import join_words
from powerprof.system import paths
from powerprof.system.cgroups import service_of
from powerprof.system.errors import reason_of
from powerprof.system.files import try_text
from powerprof.system.foreign_text import whole
from powerprof.system.processes import label_of, list_pids, name_of
from powerprof.system.reader_process import link_of

# A host with more open files than this is searched in part.
_MOST_LINKS = 200_000
_SHOWN = 4  # holders in a sentence
# Boot options that limit idle states, with the driver that obeys them; None for any.
_BOOT_OPTIONS = {
    "idle": None,
    "nohlt": None,
    "cpuidle.off": None,
    "intel_idle.max_cstate": "intel_idle",
    "processor.max_cstate": "acpi_idle",
}
_TICK_OPTIONS = ("nohz", "nohz_full")
# The value 0 has no effect: acpi_idle takes over, or cpuidle stays.
_WITHOUT_EFFECT = (("intel_idle.max_cstate", "0"), ("cpuidle.off", "0"))
_CPUS = "devices/system/cpu"
_OF_EACH_CPU = {
    "frequency driver": "cpufreq/scaling_driver",
    "frequency governor": "cpufreq/scaling_governor",
    "energy preference (EPP)": "cpufreq/energy_performance_preference",
    "boost": "cpufreq/boost",
}
_OF_HOST = {
    "boost": f"{_CPUS}/cpufreq/boost",
    "turbo off": f"{_CPUS}/intel_pstate/no_turbo",
    "guest_halt_poll_ns": "module/haltpoll/parameters/guest_halt_poll_ns",
    "kvm.halt_poll_ns": "module/kvm/parameters/halt_poll_ns",
    "ASPM policy": "module/pcie_aspm/parameters/policy",
}
# Programs that apply profiles: the file with the profile's name, the line's beginning, and the name of the process.
_PROFILES = {
    "TuneD profile": (Path("/etc/tuned/active_profile"), "", "tuned"),
    "power-profiles-daemon profile": (Path("/var/lib/power-profiles-daemon/state.ini"), "Profile=", "power-profiles-"),
}


class LimitHolder(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds a latency limit open, and its system service."""

    pid: int
    name: str | None
    service: str | None


class IdleLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that forbids idle states.

    `setting` is cpu_dma_latency, pm_qos_resume_latency_us, disabled, idle governor or boot option. `excludes` are the
    states, None if unknown. `holders` are the processes that request it, None without any or if unknown. `cpus`: None
    for all. `polls`: it leaves these CPUs only a polling state.
    """

    setting: str
    value: str
    excludes: list[str] | None
    holders: list[LimitHolder] | None = None
    cpus: str | None = None
    polls: bool = False


class IdleLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What forbids deep idle on a host.

    `states` are shallowest first, each as the first CPU has it. `limits` forbid states. `settings` have an effect on
    idle power, by name. `unread` are unknown: this user may not read them.
    """

    states: list[StateInfo]
    limits: list[IdleLimit]
    settings: dict[str, str]
    unread: list[str]


def read_idle_limits(device: Path = LATENCY_DEVICE) -> IdleLimits:
    """Return what forbids deep idle here, or on the host of POWERPROF_SYSFS and POWERPROF_PROCFS. Change nothing.

    Raise PowerprofError for unreadable idle states.
    """
    with CpuidleReader() as reader:
        host = _Host({cpu: reader.states(cpu) for cpu in reader.cpus}, read_driver())
    states: dict[str, StateInfo] = {}
    for state in chain.from_iterable(host.states.values()):
        states.setdefault(state.name, state)
    settings = host.read_settings() | dict(_list_profiles())
    options = [word.partition("=")[::2] for word in host.read_command_line()]
    settings |= {f"boot option {name}": value for name, value in options if name in _TICK_OPTIONS}
    return IdleLimits(
        states=sorted(states.values(), key=lambda state: (not state.polling, state.latency_us or 0)),
        limits=[
            *host.read_latency_limit(device),
            *host.read_cpu_limits(),
            *host.list_other_limits(),
            *host.list_boot_limits(options),
        ],
        settings=settings,
        unread=host.unread,
    )


_Names = tuple[str, ...]


def _list_names(states: Sequence[StateInfo]) -> _Names:
    return tuple(state.name for state in states if not state.polling)


class _Host:
    """The idle states of a host by CPU, and what limits them. `unread` names the files that cannot be read."""

    def __init__(self, states: Mapping[int, Sequence[StateInfo]], driver: str | None) -> None:
        self.states, self.driver = states, driver
        self.unread: list[str] = []
        governors = (f"{_CPUS}/cpuidle/current_governor", f"{_CPUS}/cpuidle/current_governor_ro")
        self._governor = next((text for leaf in governors if (text := self._read(leaf, "the idle governor"))), None)

    def _read(self, leaf: str, name: str, root: Path | None = None) -> str | None:
        """Return the text of a file; None if it is absent, and also if it is unreadable, which `unread` notes."""
        path = (root or paths.sysfs()) / leaf
        text = try_text(path)
        if text is None and os.path.lexists(path) and name not in self.unread:
            self.unread.append(name)
        return text

    def read_settings(self) -> dict[str, str]:
        """Return the settings of the host, and of its online CPUs: their common value, or the CPUs of each value."""
        settings = {"idle driver": self.driver or "none"}
        if self._governor is not None:
            settings["idle governor"] = self._governor
        for name, leaf in _OF_EACH_CPU.items():
            cpus: dict[str, list[int]] = defaultdict(list)
            for cpu in online_cpus():
                if text := self._read(f"{_CPUS}/cpu{cpu}/{leaf}", f"the {name}"):
                    cpus[text].append(cpu)
            parts = [f"{text} on CPU {format_cpu_list(each)}" for text, each in cpus.items()]
            if cpus:
                settings[name] = next(iter(cpus)) if len(cpus) == 1 else ", ".join(parts)
        for name, leaf in _OF_HOST.items():
            if text := self._read(leaf, f"the {name}"):
                # The active one of several policies is in brackets.
                settings[name] = re.sub(r".*\[(\w+)\].*", r"\1", text)
        return settings

    def read_command_line(self) -> list[str]:
        """Return the options of the kernel, with _ for - in their names."""
        text = self._read("cmdline", "the kernel command line", paths.procfs()) or ""
        words = f" {text} ".partition(" -- ")[0].split()  # the rest is for init
        return [name.replace("-", "_") + equals + value for name, equals, value in (w.partition("=") for w in words)]

    def read_latency_limit(self, device: Path) -> list[IdleLimit]:
        """Return the latency limit of the host. It has no effect without cpuidle."""
        if device == LATENCY_DEVICE and not paths.is_this_host():
            self.unread.append("the latency limit of the recorded host")
            return []
        try:
            limit_us = read_latency_us(device)
        except OSError as error:
            # Every kernel with cpuidle has the device.
            reason = {errno.ENOENT: "a container hides it?", errno.EACCES: "only root may read it"}
            if self.states or error.errno != errno.ENOENT:
                self.unread.append(f"the latency limit ({device}: {reason.get(error.errno or 0, reason_of(error))})")
            return []
        if limit_us is None:
            return []
        holders = _find_holders(device)
        if holders is None:
            self.unread.append(f"the processes that hold {device}")
        value = f"{limit_us} µs"
        excluded = {cpu: (value, self._find_exceeding(cpu, limit_us)) for cpu in self.states}
        limits = self._merge("cpu_dma_latency", excluded, holders)
        return limits or [IdleLimit(setting="cpu_dma_latency", value=value, excludes=[], holders=holders)]

    def read_cpu_limits(self) -> list[IdleLimit]:
        """Return the limits that CPUs have themselves. 0 means no limit, and `n/a` means no latency at all."""
        excluded = {}
        for cpu in self.states:
            leaf = f"{_CPUS}/cpu{cpu}/power/pm_qos_resume_latency_us"
            text = self._read(leaf, f"the latency limit of CPU {cpu}")
            limit_us = 0 if text == "n/a" else whole(text) or None
            if limit_us is not None:
                excluded[cpu] = (f"{limit_us} µs", self._find_exceeding(cpu, limit_us))
        return self._merge("pm_qos_resume_latency_us", excluded)

    def list_other_limits(self) -> list[IdleLimit]:
        """Return the disabled states, and those that the idle governor does not know."""
        names = {cpu: _list_names([state for state in states if state.disabled]) for cpu, states in self.states.items()}
        limits = self._merge("disabled", {cpu: (join_words(list(each)), each) for cpu, each in names.items() if each})
        if self._governor == "haltpoll":
            # It knows states 0 and 1 (drivers/cpuidle/governors/haltpoll.c).
            deeper = {cpu: _list_names(states[2:]) for cpu, states in self.states.items()}
            limits += self._merge("idle governor", {cpu: ("haltpoll", each) for cpu, each in deeper.items() if each})
        return limits

    def list_boot_limits(self, options: Sequence[tuple[str, str]]) -> Iterator[IdleLimit]:
        """Return the boot options that limit idle states. The kernel leaves the excluded states out of its table."""
        for name, value in options:
            obeyed = name in _BOOT_OPTIONS and (self.driver is None or _BOOT_OPTIONS[name] in (None, self.driver))
            if not obeyed or (name, value) in _WITHOUT_EFFECT:
                continue
            if name == "nohlt" and any(states[0].polling for states in self.states.values()):
                continue  # an option of other architectures
            polls = name == "nohlt" or ((name, value) == ("idle", "poll") and not self.states)
            text = f"{name}={value}" if value else name
            yield IdleLimit(setting="boot option", value=text, excludes=["all"] if polls else None, polls=polls)

    def _find_exceeding(self, cpu: int, limit_us: int) -> _Names | None:
        """Return the states of a CPU that a latency limit excludes; None if the latency of a state is unknown.

        A limit of 0 leaves state 0, any other one the first state that is not disabled (drivers/cpuidle/governors).
        """
        states = self.states[cpu]
        if limit_us == 0:
            return _list_names(states[1:])
        if self._governor == "haltpoll":
            return ()
        first = next((state for state in states if not state.disabled), states[0])
        others = [state for state in states if state is not first and not state.polling]
        if any(state.latency_us is None for state in others):
            return None
        return _list_names([state for state in others if (state.latency_us or 0) > limit_us])

    def _merge(
        self, setting: str, excluded: Mapping[int, tuple[str, _Names | None]], holders: list[LimitHolder] | None = None
    ) -> list[IdleLimit]:
        """Return the limits of a setting from its value and its excluded states by CPU, one for all equal CPUs."""
        groups: dict[tuple[str, _Names | None, bool], list[int]] = defaultdict(list)
        for cpu, (value, names) in excluded.items():
            states = self.states[cpu]
            polls = bool(names) and states[0].polling and set(names or ()) == set(_list_names(states))
            groups[value, names, polls].append(cpu)
        return [
            IdleLimit(
                setting=setting,
                value=value,
                excludes=None if names is None else list(names),
                holders=holders,
                cpus=None if len(cpus) == len(self.states) else format_cpu_list(cpus),
                polls=polls,
            )
            for (value, names, polls), cpus in groups.items()
        ]


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
                if left < 0:
                    return None
                if link_of(entry.path) == str(device):
                    holders.append(LimitHolder(pid=pid, name=name_of(pid), service=service_of(pid)))
                    break
    return holders


def _list_profiles() -> Iterator[tuple[str, str]]:
    """Return the profiles of TuneD and power-profiles-daemon. Their files stay when the programs end."""
    if not paths.is_this_host():
        return
    for name, (path, start, program) in _PROFILES.items():
        lines = [
            line.removeprefix(start).strip() for line in (try_text(path) or "").splitlines() if line.startswith(start)
        ]
        if lines and lines[0]:
            # TuneD is a script of Python.
            runs = any(label_of(pid) == program for pid in list_pids())
            yield name, lines[0] if runs else f"{lines[0]} (not applied: {program} does not run)"


def holder_text(holder: LimitHolder) -> str:
    """Return a holder as `tuned.service`, or as `python3 812` without a service."""
    return holder.service or f"{holder.name or 'process'} {holder.pid}"


def limit_text(limit: IdleLimit) -> str:
    """Return a limit and the states that it excludes as a phrase."""
    where = f" on CPU {limit.cpus}" if limit.cpus else ""
    polls = ": CPUs poll" if limit.polls else ""
    if limit.setting == "disabled":
        return f"{limit.value} {'is' if len(limit.excludes or ()) == 1 else 'are'} disabled{where}{polls}"
    by = ""
    if limit.holders is not None:
        names = [holder_text(each) for each in limit.holders[:_SHOWN]]
        names += [f"{len(limit.holders) - _SHOWN} more"] if len(limit.holders) > _SHOWN else []
        by = f", held by {join_words(names) or 'the kernel or a process that this host does not show'}"
    name = "latency limit of" if limit.setting == "cpu_dma_latency" else limit.setting
    subject = f"{name} {limit.value}{where}{by}"
    if limit.excludes is None:
        return f"{subject}: the excluded idle states are unknown"
    states = "all idle states" if limit.polls else join_words(limit.excludes) or "no idle state"
    return f"{subject}{',' if by else ''} excludes {states}{polls}"


def limit_lines(limits: IdleLimits) -> list[str]:
    """Return one phrase for each limit that excludes states, or may exclude some."""
    return [limit_text(limit) for limit in limits.limits if limit.excludes != []]
