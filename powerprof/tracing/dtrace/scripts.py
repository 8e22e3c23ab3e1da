# SPDX-License-Identifier: Apache-2.0
"""Which of the shipped D scripts fits a system, and its parameters put in.

Scripts take no macro arguments: whatever is put into them is checked here first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from powerprof.errors import CapabilityError, UsageError
from powerprof.paths import data_dir
from powerprof.tracing.dtrace.backend import Dtrace

Question = Literal["function-profile", "wakeups", "sleep-wake-latency"]

MAX_FRAMES = 100
# A name or glob of the C language's names, C++'s by their mangled form: nothing that ends a probe description.
_FUNCTIONS = re.compile(r"[A-Za-z0-9_*?.$~]{1,256}")
_SYMBOL = re.compile(r"[A-Za-z0-9_.$]{1,1024}")
_MODULE = re.compile(r"[A-Za-z0-9_*?.+-]{0,128}")
_SCRIPTS: dict[str, dict[Question, str]] = {
    "Linux": {
        "function-profile": "function-profile-linux.d",
        "wakeups": "wakeups-linux.d",
        "sleep-wake-latency": "sleep-wake-latency-linux.d",
    },
    "SunOS": {
        "function-profile": "untried/function-profile.d",
        "wakeups": "untried/wakeups.d",
        "sleep-wake-latency": "untried/sleep-wake-latency.d",
    },
    "FreeBSD": {
        "function-profile": "untried/function-profile.d",
        "wakeups": "untried/wakeups-freebsd.d",
        "sleep-wake-latency": "untried/sleep-wake-latency-freebsd.d",
    },
    "Darwin": {"function-profile": "untried/function-profile.d", "wakeups": "untried/wakeups-macos.d"},
}


@dataclass(frozen=True)
class Probed:
    """A function by its symbol and module (`a.out` is the program itself), and the offsets where it is left."""

    module: str
    symbol: str
    exits: tuple[int, ...]


def pick(dtrace: Dtrace, question: Question) -> str:
    """The script for this system. Raises CapabilityError where there is none."""
    script = _SCRIPTS.get(dtrace.system, {}).get(question)
    if script is None:
        raise CapabilityError(f"no DTrace script for {question} on {dtrace.system}", "--backend bpf")
    return (Path(data_dir("probes")) / "dtrace" / script).read_text()


def render(text: str, *, pid: int, functions: str = "*", module: str = "a.out", frames: int = 40) -> str:
    """A script with its parameters put in. Raises UsageError for any that could be more than a parameter."""
    if not 0 < pid < 1 << 31:
        raise UsageError(f"{pid} is not a process id", "ps -e lists them")
    if not 0 < frames <= MAX_FRAMES:
        raise UsageError(f"{frames} frames make no sense", f"up to {MAX_FRAMES}")
    if not _FUNCTIONS.fullmatch(functions):
        raise UsageError(
            f"DTrace takes names with * and ?, not {functions[:60]!r}",
            "'handle_slave*'; a C++ function by its mangled name, '*handle_slave*'",
        )
    if not _MODULE.fullmatch(module):
        raise UsageError(f"not a module's name: {module[:60]!r}", "a.out is the program itself")
    return _fill(text, {"PID": str(pid), "FUNCTIONS": functions, "MODULE": module, "FRAMES": str(frames)})


def render_probes(text: str, *, pid: int, probes: Sequence[Probed]) -> str:
    """The Linux function profile with a probe per entry and per exit. Raises UsageError as `render` does."""
    if not probes:
        raise UsageError("no function to probe", "powerprof profile shows the functions that run")
    for probe in probes:
        if not _SYMBOL.fullmatch(probe.symbol) or not _MODULE.fullmatch(probe.module):
            raise UsageError(f"DTrace cannot name {probe.module[:60]}:{probe.symbol[:60]}", "--backend bpf can")
    places = [(f"pid{pid}:{probe.module}:{probe.symbol}", probe.exits) for probe in probes]
    entries = [f"{place}:entry" for place, _ in places]
    # A function without an exit (one that never returns) leaves the clause to the others; none has any: a probe that
    # never fires keeps the script whole.
    exits = [f"{place}:{offset:x}" for place, offsets in places for offset in offsets] or ["dtrace:::ERROR"]
    filled = _fill(text, {"ENTRIES": ",\n".join(entries), "EXITS": ",\n".join(exits)})
    return render(filled, pid=pid)


def _fill(text: str, values: dict[str, str]) -> str:
    return re.sub(r"@([A-Z]+)@", lambda match: values.get(match[1], match[0]), text)
