# SPDX-License-Identifier: Apache-2.0
"""Settings of the host's idle states and frequencies for `cure --host` and conditions, as the driver accepts them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec

from powerprof.host.idle_limits import holder_text, read_idle_limits
from powerprof.measure.cpuidle import online_cpus
from powerprof.model.text import join_words
from powerprof.reversible.changed import change_temporarily
from powerprof.reversible.groups import describe_values
from powerprof.reversible.host_settings import (
    NO_LIMIT,
    TUNED_ADM,
    FileAway,
    HostFile,
    HostSetting,
    LatencyLimit,
    TunedProfile,
    list_tuned_profiles,
)
from powerprof.reversible.journal import SavedSetting
from powerprof.reversible.timer_slack import read_start_ticks
from powerprof.system import paths, signals
from powerprof.system.caller import is_delegated
from powerprof.system.errors import PowerprofError, UnknownNameError, UsageError
from powerprof.system.files import try_text
from powerprof.system.foreign_text import whole
from powerprof.system.next_steps import command_line
from powerprof.system.virtualisation import read_virtualisation

_WORDS = re.compile(r"([a-z-]{1,32})=([A-Za-z0-9_ .|-]{1,64})")
_STATE = re.compile(r"state([0-9]{1,2})")
_MAX_LATENCY_US = 1_000_000
_MAX_POLL_NS = 10_000_000


def parse_host_setting(words: str) -> tuple[str, str]:
    """Return `latency-limit=50` as name and value. Raise UsageError for an unknown name or an impossible value.

    A value can have alternatives, as in TuneD: `cpu-governor=schedutil|powersave`.
    """
    match = _WORDS.fullmatch(words)
    name, value = (match[1], match[2].strip()) if match else ("", "")
    if name not in _PLANS:
        names = join_words(list(_PLANS), last="or")
        raise UnknownNameError(
            f"--host {words[:60]!r} is not SETTING=VALUE with SETTING one of {names}",
            words.partition("=")[0],
            _PLANS,
            "such as " + _EXAMPLE,
        )
    most = {"latency-limit": _MAX_LATENCY_US, "halt-poll": _MAX_POLL_NS}.get(name)
    for each in value.split("|"):
        if most is None or (name == "latency-limit" and (each == NO_LIMIT or _STATE.fullmatch(each))):
            continue
        number = whole(each)
        if number is None or number > most:
            unit = "µs, none or stateN" if name == "latency-limit" else "ns"
            raise UsageError(f"--host {name}={value}: not a whole number from 0 to {most:,} {unit}", f"{name}=50")
    return name, value


def list_host_settings() -> list[str]:
    """Return the names of the settings."""
    return list(_PLANS)


MISSING = "this host has no such setting"
_EXAMPLE = "--host latency-limit=50"
# Units of values.
UNITS = {"latency-limit": " µs", "halt-poll": " ns"}


class HostChange(msgspec.Struct, frozen=True):
    """A setting of the host with its new value: its file in each CPU, or one other setting.

    Attributes:
        befores: the present value of each.
        lasting: how to keep the change.
    """

    settings: list[HostSetting]
    befores: list[str]
    lasting: str

    @property
    def name(self) -> str:
        """The name for people, without CPUs."""
        first = self.settings[0]
        return first.label if isinstance(first, HostFile) else first.name

    @property
    def value(self) -> str:
        """The new value."""
        return self.settings[0].value


def plan_host_setting(name: str, value: str) -> HostChange:
    """Return the change of a setting to the first alternative of `value` that the driver accepts. Raise UsageError."""
    if is_delegated():
        raise UsageError(
            "--host: under sudo, powerprof changes no setting of the host, which concerns all accounts",
            "run as root itself",
        )
    if not paths.is_this_host():
        raise UsageError("--host: POWERPROF_SYSFS or POWERPROF_PROCFS show another host", "unset them")
    settings, lasting = find_host_setting(name, value)
    befores = []
    for setting in settings:
        before = setting.read()
        if before is None:
            raise PowerprofError(f"cannot read {setting.name}", "run as root")
        befores.append(before)
    return HostChange(settings, befores, lasting)


def find_host_setting(name: str, value: str) -> tuple[list[HostSetting], str]:
    """Return a setting with its new value, per file, and the way to keep it. Raise UsageError if the driver refuses."""
    *alternatives, last = value.split("|")
    for each in alternatives:
        try:
            return _PLANS[name](each)
        except UsageError:
            continue
    return _PLANS[name](last)


class HostPlan(msgspec.Struct, frozen=True):
    """The changes of a condition on this host, and a reason for each setting that this host does not have."""

    changes: list[HostChange]
    skipped: list[str]


def plan_host_settings(words: Sequence[str]) -> HostPlan:
    """Return the possible changes. Raise PowerprofError if none is possible or none changes anything."""
    changes, skipped, missing = [], [], []
    for name, value in map(parse_host_setting, words):
        try:
            change = plan_host_setting(name, value)
        except UsageError as error:
            reason = error.message.removeprefix("--host").lstrip(": ")
            (missing.append(name) if reason.endswith(MISSING) else skipped.append(reason))
            continue
        if set(change.befores) != {change.value}:
            changes.append(change)
    if missing:
        skipped.insert(0, f"{join_words(missing)}: {MISSING}")
    if words and not changes:
        reason = "; ".join(skipped) or "this host has these settings now"
        raise PowerprofError(f"nothing to change: {reason}", "measure the present setting")
    return HostPlan(changes, skipped)


def is_possible(words: Sequence[str]) -> bool:
    """Return whether a condition with these settings can be measured here and now."""
    try:
        plan_host_settings(words)
    except PowerprofError:
        return False
    return True


class ConditionHost(msgspec.Struct):
    """The settings of this host during the windows of one condition. The journal restores them after a kill."""

    _words: tuple[str, ...] = ()
    _stack: ExitStack = msgspec.field(default_factory=ExitStack)

    def apply(self, words: Sequence[str]) -> None:
        """Change these settings and restore all others. Raise PowerprofError if that fails."""
        if tuple(words) == self._words:
            return
        with signals.uninterrupted():
            self.close()
            if words:
                self._stack.enter_context(_changed(plan_host_settings(words).changes))
                self._words = tuple(words)

    def close(self) -> None:
        """Restore all settings. Raise PowerprofError if one cannot be restored."""
        self._words = ()
        self._stack.close()


@contextmanager
def _changed(changes: Sequence[HostChange]) -> Iterator[None]:
    """Change settings within the block, with their old values in the journal. Raise PowerprofError if one stays."""
    own, ticks = os.getpid(), read_start_ticks(os.getpid())
    pairs = [pair for each in changes for pair in zip(each.settings, each.befores, strict=True)]
    with change_temporarily([SavedSetting(setting, before, own, ticks) for setting, before in pairs]):
        yield
    foreign: list[tuple[HostSetting, str]] = []
    for setting, before in pairs:
        with suppress(FileAway):  # It was restored before its CPU went offline.
            if (now := setting.read()) is not None and now != before:
                foreign.append((setting, now))
    if foreign:
        settings, values = zip(*foreign, strict=True)
        raise PowerprofError(
            f"another program set {describe_values(settings, values)} during the window; it stays so",
            "coordinate with whoever changed it",
        )


# A setting, per file, and the way to keep it.
_Plan = tuple[list[HostSetting], str]


def _plan_latency(value: str) -> _Plan:
    if _STATE.fullmatch(value):
        latency_us = whole(try_text(paths.sysfs() / f"devices/system/cpu/cpu0/cpuidle/{value}/latency") or "")
        if not latency_us:
            raise UsageError(
                f"--host latency-limit={value}: this host has no such idle state", command_line("residency")
            )
        value = str(latency_us)
    setting = LatencyLimit(value)
    now = NO_LIMIT
    with suppress(PowerprofError):  # Without root the limit is unknown, and the plan fails later.
        now = setting.read() or NO_LIMIT
    if now != NO_LIMIT and (value == NO_LIMIT or int(value) > int(now)):
        limit = next((each for each in read_idle_limits().limits if each.setting == "cpu_dma_latency"), None)
        holders = join_words([holder_text(each) for each in (limit and limit.holders) or []]) or "another process"
        raise UsageError(
            f"--host latency-limit={value}: {holders} holds the limit {now} µs, which powerprof cannot raise",
            "stop it, or choose another profile in it, then compare two saved runs",
        )
    return [
        setting
    ], f"a process that holds {value} µs in /dev/cpu_dma_latency, such as TuneD with force_latency={value}"


def _plan_choice(setting: str, label: str, leaf: str, choices: str, lasting: str, value: str) -> _Plan:
    """Return the plan of a setting with a list of choices next to it, in one file or in one of each CPU."""
    folder = paths.sysfs() / "devices/system/cpu"
    leaves = [leaf.format(cpu=cpu) for cpu in online_cpus()]
    files = _existing(setting, [folder / each for each in dict.fromkeys(leaves)])
    allowed = (try_text(Path(files[0]).parent / choices) or "").split()
    if allowed and value not in allowed:
        raise UsageError(
            f"--host {setting}={value}: the driver does not offer it", f"one of {join_words(allowed, last='or')}"
        )
    return [HostFile(label, file, value) for file in files], lasting.format(value)


_CHOICES = {
    "idle-governor": (
        *("the idle governor", "cpuidle/current_governor", "available_governors"),
        "the boot option cpuidle.governor={}",
    ),
    "cpu-governor": (
        *("the frequency governor", "cpu{cpu}/cpufreq/scaling_governor", "scaling_available_governors"),
        "cpupower frequency-set -g {} at each boot",
    ),
    "epp": (
        *("the energy preference (EPP)", "cpu{cpu}/cpufreq/energy_performance_preference"),
        *("energy_performance_available_preferences", "the same value written at each boot"),
    ),
}


def _plan_disabled_state(value: str) -> _Plan:
    states = sorted((paths.sysfs() / "devices/system/cpu").glob("cpu[0-9]*/cpuidle/state[0-9]*"))
    files = [str(folder / "disable") for folder in states if try_text(folder / "name") == value]
    if not files:
        names = list(dict.fromkeys(try_text(folder / "name") or "unknown" for folder in states))
        raise UsageError(
            f"--host disable-state={value}: this host has no idle state of this name",
            f"one of {join_words(names, last='or')}" if names else command_line("residency"),
        )
    flags: list[HostSetting] = [HostFile(f"the disable flag of {value}", file, "1") for file in files]
    return flags, "1 written to `disable` of the state at each boot"


def _plan_halt_poll(value: str) -> _Plan:
    module, leaf = ("haltpoll", "guest_halt_poll_ns") if read_virtualisation() else ("kvm", "halt_poll_ns")
    files = _existing("halt-poll", [paths.sysfs() / "module" / module / "parameters" / leaf])
    return [HostFile(f"{leaf} of {module}", file, value) for file in files], f"the boot option {module}.{leaf}={value}"


def _plan_profile(value: str) -> _Plan:
    if not TUNED_ADM.exists():
        raise UsageError(
            f"--host profile={value}: TuneD is not installed ({TUNED_ADM} is missing)", "apt install tuned"
        )
    profiles = list_tuned_profiles()
    if value not in profiles:
        raise UsageError(f"--host profile={value}: TuneD has no such profile", join_words(profiles, last="or"))
    return [TunedProfile(value)], f"tuned-adm profile {value}"


_PLANS: dict[str, Callable[[str], _Plan]] = {
    "latency-limit": _plan_latency,
    **{name: partial(_plan_choice, name, *words) for name, words in _CHOICES.items()},
    "disable-state": _plan_disabled_state,
    "halt-poll": _plan_halt_poll,
    "profile": _plan_profile,
}


def _existing(name: str, places: list[Path]) -> list[str]:
    found = [str(place) for place in places if place.exists()]
    if not found:
        raise UsageError(f"--host {name}: {MISSING}", f"{places[0]} is missing; see {command_line('doctor')}")
    return found
