# SPDX-License-Identifier: Apache-2.0
"""What a window of counted functions is, by uprobes or by DTrace: can be saved and judged elsewhere."""

from __future__ import annotations

import msgspec

from powerprof.tracing.bpf.probe_cost import ProbeCost


class FunctionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """One function's sums over the window. Times are as measured, the probes' own time within.

    `wall_ns`, `cpu_ns`: from entry to return of outermost calls; `self_…`: without probed functions that it called.
    `abandoned`: calls left without a return (longjmp, exception, or more than 64 return probes deep), None where not
    counted; `unfinished`: still open at the window's end; `children`: direct calls of probed functions. `stepped`: its
    probe costs a second trap.
    """

    name: str
    module: str
    vaddr: int
    calls: int
    returns: int
    abandoned: int | None
    unfinished: int
    wall_ns: int | None
    cpu_ns: int | None
    self_wall_ns: int | None
    self_cpu_ns: int | None
    children: int
    stepped_children: int
    stepped: bool


class FunctionTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A window of function counts as it was collected; `attribution.functions` makes the report of it.

    The costs are None where the backend does not measure them (DTrace). `tool_cpu_s`: powerprof's own CPU time in the
    window, and DTrace's from its start to its end.
    """

    pattern: str
    pids: list[int]
    window_s: float
    functions: list[FunctionCounts]
    hits_count: int
    cost: ProbeCost | None
    stepped_cost: ProbeCost | None
    process_cpu_s: float | None
    unmatched_count: int
    too_deep_count: int
    lost_count: int
    refused: list[tuple[str, str]]
    notes: list[str]
    method: str
    tool_cpu_s: float
    interrupted: bool = False
