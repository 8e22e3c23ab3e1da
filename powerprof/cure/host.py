# SPDX-License-Identifier: Apache-2.0
"""Settings of the host's idle states and frequencies that `cure --host` can try, with what the driver accepts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from powerprof.cure.records import Remedy
from powerprof.host.describe import read_virtualisation
from powerprof.host.idle_limits import holder_text, read_idle_limits
from powerprof.measure.cpuidle import online_cpus
from powerprof.model.text import join_words
from powerprof.reversible.host_settings import NO_LIMIT, HostFiles, LatencyLimit
from powerprof.system import paths
from powerprof.system.caller import is_delegated
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.files import try_text, whole
from powerprof.system.next_steps import command_line

_WORDS = re.compile(r"([a-z-]{1,32})=([A-Za-z0-9_ .-]{1,64})")
_MAX_LATENCY_US = 1_000_000
_MAX_POLL_NS = 10_000_000


def parse_host_setting(words: str) -> tuple[str, str]:
    """Return `latency-limit=50` as name and value. Raise UsageError for an unknown name or an impossible value."""
    match = _WORDS.fullmatch(words)
    name, value = (match[1], match[2].strip()) if match else ("", "")
    if name not in _PLANS:
        names = join_words(list(_PLANS), last="or")
        raise UsageError(
            f"--host {words[:60]!r} is not SETTING=VALUE with SETTING one of {names}", "such as " + _EXAMPLE
        )
    most = {"latency-limit": _MAX_LATENCY_US, "halt-poll": _MAX_POLL_NS}.get(name)
    if most is not None and not (name == "latency-limit" and value == NO_LIMIT):
        number = whole(value)
        if number is None or number > most:
            unit = "µs, or none" if name == "latency-limit" else "ns"
            raise UsageError(f"--host {name}={value}: not a whole number from 0 to {most:,} {unit}", f"{name}=50")
    return name, value


_EXAMPLE = "--host latency-limit=50"
_UNITS = {"latency-limit": " µs", "halt-poll": " ns"}


def plan_host_setting(name: str, value: str) -> tuple[HostFiles | LatencyLimit, str, Remedy]:
    """Return the setting, its present value and its description. Raise UsageError for what the driver refuses."""
    if is_delegated():
        raise UsageError(
            "--host: under sudo, cure changes no setting of the host, which concerns all accounts", "run as root itself"
        )
    if not paths.is_this_host():
        raise UsageError("--host: POWERPROF_SYSFS or POWERPROF_PROCFS show another host", "unset them")
    setting, lasting = find_host_setting(name, value)
    before = setting.read()
    if before is None:
        raise PowerprofError(f"cannot read {setting.name}", "run as root")
    unit = _UNITS.get(name, "")
    remedy = Remedy(
        kind="host",
        name=setting.name,
        from_value=f"{before}{unit if before.isdigit() else ''}",
        to_value=f"{setting.value}{unit if setting.value.isdigit() else ''}",
        lasting=lasting,
        delays="all programs of this host",
    )
    return setting, before, remedy


def find_host_setting(name: str, value: str) -> tuple[HostFiles | LatencyLimit, str]:
    """Return a setting with its new value, and the way to keep it. Raise UsageError for what the driver refuses."""
    return _PLANS[name](value)


def _plan_latency(value: str) -> tuple[LatencyLimit, str]:
    setting = LatencyLimit(value)
    limit = next((each for each in read_idle_limits().limits if each.setting == "cpu_dma_latency"), None)
    now_us = None if limit is None else whole(limit.value.partition(" ")[0])
    if limit is not None and now_us is not None and (value == NO_LIMIT or int(value) > now_us):
        holders = join_words([holder_text(each) for each in limit.holders or []]) or "another process"
        raise UsageError(
            f"--host latency-limit={value}: {holders} holds the limit {limit.value}, which powerprof cannot raise",
            "stop it, or choose another profile in it, then compare two saved runs",
        )
    return setting, f"a process that holds {value} µs in /dev/cpu_dma_latency, such as TuneD with force_latency={value}"


def _plan_idle_governor(value: str) -> tuple[HostFiles, str]:
    folder = paths.sysfs() / "devices/system/cpu/cpuidle"
    _check_choice("idle-governor", value, folder / "available_governors")
    files = _existing("idle-governor", [folder / "current_governor"])
    return HostFiles("the idle governor", files, value), f"the boot option cpuidle.governor={value}"


def _plan_cpu_governor(value: str) -> tuple[HostFiles, str]:
    files = _each_cpu("cpu-governor", "cpufreq/scaling_governor")
    _check_choice("cpu-governor", value, Path(files[0]).parent / "scaling_available_governors")
    return HostFiles("the frequency governor", files, value), f"cpupower frequency-set -g {value} at each boot"


def _plan_epp(value: str) -> tuple[HostFiles, str]:
    files = _each_cpu("epp", "cpufreq/energy_performance_preference")
    _check_choice("epp", value, Path(files[0]).parent / "energy_performance_available_preferences")
    return HostFiles("the energy preference (EPP)", files, value), "the same value written at each boot"


def _plan_disabled_state(value: str) -> tuple[HostFiles, str]:
    states = sorted((paths.sysfs() / "devices/system/cpu").glob("cpu[0-9]*/cpuidle/state[0-9]*"))
    files = [str(folder / "disable") for folder in states if try_text(folder / "name") == value]
    if not files:
        names = list(dict.fromkeys(try_text(folder / "name") or "unknown" for folder in states))
        raise UsageError(
            f"--host disable-state={value}: this host has no idle state of this name",
            f"one of {join_words(names, last='or')}" if names else command_line("residency"),
        )
    return HostFiles(f"the disabling of {value}", files, "1"), "1 written to `disable` of the state at each boot"


def _plan_halt_poll(value: str) -> tuple[HostFiles, str]:
    module, leaf = ("haltpoll", "guest_halt_poll_ns") if read_virtualisation() else ("kvm", "halt_poll_ns")
    files = _existing("halt-poll", [paths.sysfs() / "module" / module / "parameters" / leaf])
    return HostFiles(f"{leaf} of {module}", files, value), f"the boot option {module}.{leaf}={value}"


_PLANS: dict[str, Callable[[str], tuple[HostFiles | LatencyLimit, str]]] = {
    "latency-limit": _plan_latency,
    "idle-governor": _plan_idle_governor,
    "cpu-governor": _plan_cpu_governor,
    "epp": _plan_epp,
    "disable-state": _plan_disabled_state,
    "halt-poll": _plan_halt_poll,
}


def _each_cpu(name: str, leaf: str) -> list[str]:
    return _existing(name, [paths.sysfs() / f"devices/system/cpu/cpu{cpu}" / leaf for cpu in online_cpus()])


def _existing(name: str, places: list[Path]) -> list[str]:
    found = [str(place) for place in places if place.exists()]
    if not found:
        raise UsageError(f"--host {name}: this host has no such setting ({places[0]})", command_line("doctor"))
    return found


def _check_choice(name: str, value: str, choices: Path) -> None:
    allowed = (try_text(choices) or "").split()
    if allowed and value not in allowed:
        raise UsageError(
            f"--host {name}={value}: the driver does not offer it", f"one of {join_words(allowed, last='or')}"
        )
