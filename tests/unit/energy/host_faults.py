# SPDX-License-Identifier: Apache-2.0
"""Faults of a channel: it cannot be read, goes, comes, stands still, or lacks a file. The host's power is unchanged."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

from tests.unit.energy.simulated_host import UNREADABLE, WINDOW_S, Host, Signal, between

_COUNTER = re.compile(r"class/powercap/.*/energy_uj|class/hwmon/.*/energy\d+_input")
_FIGURE = re.compile(
    rf"{_COUNTER.pattern}|class/hwmon/.*/(power\d+_(input|average)|(in|curr)[123]_input)"
    r"|class/power_supply/(?!AC)[^/]*/(power|current|voltage)_now"
)
_NAME = re.compile(r"class/powercap/[^/]*/(name|max_energy_range_uj)|class/hwmon/.*/(power|energy|in)[1-9]\d*_label")


def _pick(host: Host, draw: Random, pattern: re.Pattern[str]) -> str | None:
    paths = sorted(path for path in host.files if pattern.fullmatch(path))
    return draw.choice(paths) if paths else None


def _replace_folder(host: Host, path: str, change: Callable[[Signal], Signal]) -> None:
    folder = path.rsplit("/", 1)[0]
    # A zone goes with its children: intel-rapl:1:0 lies in intel-rapl:1.
    for name in host.files:
        if name.startswith((f"{folder}/", f"{folder}:")):
            host.files[name] = change(host.files[name])


def _hide(host: Host, draw: Random, path: str) -> str:
    host.files[path] = lambda time_s: UNREADABLE
    return "cannot be read"


def _hide_for_a_while(host: Host, draw: Random, path: str) -> str:
    start_s = draw.randint(1, 6)
    end_s, signal = start_s + draw.randint(1, 3), host.files[path]
    host.files[path] = lambda time_s: UNREADABLE if start_s <= time_s < end_s else signal(time_s)
    return f"cannot be read from {start_s} to {end_s} s"


def _remove(host: Host, draw: Random, path: str) -> str:
    at_s = draw.randint(1, WINDOW_S - 1)
    _replace_folder(host, path, lambda signal: between(signal, 0, at_s))
    return f"goes at {at_s} s"


def _add(host: Host, draw: Random, path: str) -> str:
    at_s = draw.randint(1, WINDOW_S - 1)
    _replace_folder(host, path, lambda signal: between(signal, at_s))
    return f"comes at {at_s} s"


def _leave_out(host: Host, draw: Random, path: str) -> str:
    del host.files[path]
    return "is missing"


def _freeze(host: Host, draw: Random, path: str) -> str:
    at_s, signal = draw.randint(0, WINDOW_S - 1), host.files[path]
    host.files[path] = lambda time_s: signal(min(time_s, at_s))
    return f"stands still from {at_s} s on"


_Fault = Callable[[Host, Random, str], str]
_FAULTS: tuple[tuple[_Fault, re.Pattern[str]], ...] = (
    (_hide, _FIGURE),
    (_hide_for_a_while, _FIGURE),
    (_remove, _FIGURE),
    (_add, _FIGURE),
    (_leave_out, _FIGURE),
    (_leave_out, _NAME),
    (_freeze, _COUNTER),
)


def break_channel(host: Host, draw: Random) -> bool:
    """Break one channel of a host, and describe it in the name. Return False if the host has no such channel."""
    fault, pattern = draw.choice(_FAULTS)
    path = _pick(host, draw, pattern)
    if path is None:
        return False
    host.name += f" ({path.removeprefix('class/')} {fault(host, draw, path)})"
    if host.demand == "figure":
        host.demand = "either"
    return True


def break_memory(host: Host, draw: Random) -> bool:
    """Break the counter of one memory zone. Return False if the host has no such zone."""
    zones = sorted(
        path.removesuffix("/name")
        for path, signal in host.files.items()
        if re.fullmatch(r"class/powercap/.*/name", path) and (signal(0.0) or "").endswith("dram")
    )
    if not zones:
        return False
    zone, fault = draw.choice(zones), draw.choice((_hide, _hide_for_a_while, _remove, _add, _leave_out, _freeze))
    host.name += f" (memory {zone.removeprefix('class/')} {fault(host, draw, f'{zone}/energy_uj')})"
    host.demand = "either"
    return True
