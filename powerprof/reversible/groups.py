# SPDX-License-Identifier: Apache-2.0
"""Lines about several settings: the files of one setting of the host have one name and one command."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from powerprof.measure.cpuidle import format_cpu_list
from powerprof.reversible.host_settings import HostFile, write_command
from powerprof.reversible.kinds import Setting


def group_settings(settings: Sequence[Setting], keys: Sequence[Hashable]) -> list[list[int]]:
    """Return the numbers of the settings in groups: files with the same label and key together, all others alone."""
    groups: dict[Hashable, list[int]] = {}
    for number, (setting, key) in enumerate(zip(settings, keys, strict=True)):
        group = (setting.label, key) if isinstance(setting, HostFile) else number
        groups.setdefault(group, []).append(number)
    return list(groups.values())


def name_together(settings: Sequence[Setting]) -> str:
    """Return the name of the settings of one group, such as `the frequency governor on CPUs 0-7`."""
    first = settings[0]
    cpus = sorted({each.cpu for each in settings if isinstance(each, HostFile) and each.cpu is not None})
    if not isinstance(first, HostFile) or len(cpus) < 2:
        return first.name
    return f"{first.label} on CPUs {format_cpu_list(cpus)}"


def command_together(settings: Sequence[Setting], value: str) -> str:
    """Return the command that sets one value for the settings of one group."""
    places = [each.path for each in settings if isinstance(each, HostFile)]
    return write_command(value, places) if places else settings[0].by_hand(value)


def describe_values(settings: Sequence[Setting], values: Sequence[str]) -> str:
    """Return the settings with their values, such as `the frequency governor on CPUs 0-7 to powersave`."""
    groups = group_settings(settings, values)
    return ", ".join(f"{name_together([settings[each] for each in group])} to {values[group[0]]}" for group in groups)


def join_values(values: Sequence[str]) -> str:
    """Return the common value of settings, or their values joined by commas."""
    return values[0] if len(set(values)) == 1 else ",".join(values)
