# SPDX-License-Identifier: Apache-2.0
"""The function profile by DTrace: which functions, which script, and what it found.

On Linux powerprof finds the functions itself: DTrace matches no readable C++ name, and its return probes end a process
whose exceptions pass them, so each place where a function is left is named by its offset instead. An offset is good for
one function only: a symbol that two of them bear is not probed.
"""

from __future__ import annotations

from powerprof.errors import UsageError
from powerprof.stacks.image import snapshot
from powerprof.stacks.store import TableStore
from powerprof.tracing.captures.functions import FunctionTrace
from powerprof.tracing.dtrace.backend import Dtrace, run_dtrace
from powerprof.tracing.dtrace.output import parse_functions
from powerprof.tracing.dtrace.scripts import Probed, pick, render, render_probes
from powerprof.tracing.symbols.exits import exits_of
from powerprof.tracing.symbols.patterns import find_functions, refuse_too_many


def trace_functions(
    dtrace: Dtrace, pid: int, pattern: str, duration_s: float, *, limit: int, settle: bool = False
) -> FunctionTrace:
    """Probe one window; `settle` as for `run_dtrace`.

    Raises UsageError, CapabilityError, PowerprofError, DataError.
    """
    text = pick(dtrace, "function-profile")
    if dtrace.system != "Linux":
        module, _, functions = pattern.rpartition(":")
        script = render(text, pid=pid, functions=functions, module=module or "a.out")
        return parse_functions(run_dtrace(dtrace, script, pid, duration_s, settle=settle), pattern)
    probes, refused = _probes(pid, pattern, limit)
    if not probes:
        name, why = refused[0]
        raise UsageError(f"'{pattern}': {name} cannot be probed ({why})", "--backend bpf")
    run = run_dtrace(dtrace, render_probes(text, pid=pid, probes=probes), pid, duration_s, settle=settle)
    return parse_functions(run, pattern, refused)


def _probes(pid: int, pattern: str, limit: int) -> tuple[list[Probed], list[tuple[str, str]]]:
    image = snapshot(pid)
    functions = find_functions(image, pattern, TableStore())
    refuse_too_many([functions], pattern, limit)
    probes: list[Probed] = []
    refused = list(functions.refused)
    for module in functions.modules:
        name = "a.out" if module.mapping.path == image.executable else module.mapping.module
        exits = exits_of(image, module)
        for function in module.functions:
            places = exits[function.vaddr]
            if function.symbol is None:
                refused.append((function.name, "no symbol of the file is its own: DTrace needs one"))
            elif isinstance(places, str):
                refused.append((function.name, f"where it returns is unknown: {places}"))
            else:
                probes.append(Probed(name, function.symbol, places))
    return probes, refused
