# SPDX-License-Identifier: Apache-2.0
"""Profile functions by DTrace.

powerprof finds the functions itself: DTrace matches no readable C++ name, and its return probes end a process whose
exceptions pass them. Each exit is named by its offset instead. An offset is valid for one function only, so a symbol
of two functions is not probed.
"""

from __future__ import annotations

from powerprof.measure.window import WindowPart
from powerprof.stacks.image import ProcessImage, snapshot
from powerprof.stacks.store import TableStore, open_probed
from powerprof.system.errors import UsageError
from powerprof.system.reader_process import Opened
from powerprof.tracing.bpf.btf import read_kernel_btf
from powerprof.tracing.bpf.kernel_memory import KernelMemory
from powerprof.tracing.bpf.mapped_files import MappedFile
from powerprof.tracing.captures import FunctionTrace
from powerprof.tracing.dtrace import Dtrace, ProbedFunction, read_script, render_probes, run_dtrace
from powerprof.tracing.dtrace_output import parse_functions
from powerprof.tracing.function_exits import read_exits
from powerprof.tracing.function_places import find_probed
from powerprof.tracing.symbols import MatchedFunctions, refuse_too_many


def trace_functions(
    dtrace: Dtrace, pid: int, pattern: str, duration_s: float, *parts: WindowPart, limit: int, settle: bool = False
) -> FunctionTrace:
    """Profile functions for one window; `settle`: see `run_dtrace`."""
    text = read_script("function-profile")
    probes, refused = _find_probes(pid, pattern, limit)
    if not probes:
        name, why = refused[0]
        raise UsageError(f"'{pattern}': {name} cannot be probed ({why})", "--backend bpf")
    run = run_dtrace(dtrace, render_probes(text, pid=pid, probes=probes), pid, duration_s, *parts, settle=settle)
    return parse_functions(run, pattern, refused)


def _find_probes(pid: int, pattern: str, limit: int) -> tuple[list[ProbedFunction], list[tuple[str, str]]]:
    image = snapshot(pid)
    functions = find_probed(image, pattern, TableStore())
    refuse_too_many([functions], pattern, limit)
    probes: list[ProbedFunction] = []
    refused = list(functions.refused)
    _require_fit(image, functions)
    for module in functions.modules:
        name = "a.out" if module.mapping.path == image.executable else module.mapping.module
        exits = read_exits(image, module)
        for function in module.functions:
            places = exits[function.vaddr]
            if function.symbol is None:
                refused.append((function.name, "no symbol of the file is its own: DTrace needs one"))
            elif isinstance(places, str):
                refused.append((function.name, f"where it returns is unknown: {places}"))
            else:
                probes.append(ProbedFunction(name, function.symbol, places))
    return probes, refused


def _require_fit(image: ProcessImage, functions: MatchedFunctions) -> None:
    """Raise UnfitFileError if a process could stop the host while DTrace places its probes, which are uprobes."""
    with KernelMemory(read_kernel_btf()) as memory:
        for module in functions.modules:
            opened = open_probed(image, module.mapping)
            if isinstance(opened, Opened):
                with opened:
                    MappedFile.find(memory, opened.fd).require_fit([image.pid])
