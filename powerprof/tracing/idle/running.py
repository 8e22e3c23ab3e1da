# SPDX-License-Identifier: Apache-2.0
"""How long each thread of the host ran, as the program sums it at its switches (probes/bpf/running.bpf.h)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from powerprof.tracing.bpf.btf import Btf
from powerprof.tracing.bpf.definitions import struct_definitions
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.shared_numbers import RunKind
from powerprof.tracing.idle.layout import RUN_SLOT, RUN_TIME

Array = npt.NDArray[Any]
_FIELDS = {
    "task_struct_flags": ("task_struct", "flags"),
    "task_struct_se": ("task_struct", "se"),
    "sched_entity_sum_exec_runtime": ("sched_entity", "sum_exec_runtime"),
}


def definitions(btf: Btf) -> dict[str, int]:
    """What running.bpf.h is compiled with."""
    state = "__state" if btf.has_field("task_struct", "__state") else "state"  # renamed by 2f064a59a11f
    return {**struct_definitions(btf, _FIELDS), "OFFSET_task_struct_state": btf.field_offset("task_struct", state)}


@dataclass(frozen=True)
class RunTimes:
    """Running time in a window, in ns: of each thread that lives (layout.RUN_TIME), and the sums of all that ended or
    found no slot, by whether they are the target's."""

    threads: Array
    others_ns: int = 0
    target_ns: int = 0


class RunTimeReader:
    """Reads one program's sums again and again; each call returns what came since the one before."""

    def __init__(self, program: LoadedProgram) -> None:
        self._program = program
        self._last = np.zeros(program.slots("run_times"), dtype=RUN_SLOT)

    def clear(self) -> None:
        """Forget everything: while no CPU's window is open, so that nothing is added meanwhile."""
        empty = bytes(RUN_SLOT.itemsize)
        for slot in np.flatnonzero(self._read()["who"]).tolist():
            self._program.put("run_times", slot, empty)
        self._last = np.zeros_like(self._last)

    def since(self, totals: Array) -> RunTimes:
        """What came since the last call. `totals`: what the CPUs' sums (layout.CPU_TOTAL) grew by, read before."""
        last, self._last = self._last, self._read()
        return between(last, self._last, totals["unplaced_ns"].sum(axis=0).tolist())

    def _read(self) -> Array:
        return np.frombuffer(self._program.table_bytes("run_times"), dtype=RUN_SLOT)


def between(last: Array, now: Array, unplaced_ns: Sequence[int]) -> RunTimes:
    """Pure: what threads ran between two looks at their slots (layout.RUN_SLOT), and what was added to the sums of
    others and the target's meanwhile."""
    same = now["who"] == last["who"]
    before = np.where(same, last["ns"], 0)
    ran = np.where(now["ns"] > before, now["ns"] - before, 0)
    chosen = (now["who"] != 0) & (ran > 0)
    threads = np.zeros(np.count_nonzero(chosen), dtype=RUN_TIME)
    threads["tid"], threads["pid"] = now["who"][chosen] & np.uint64(0xFFFFFFFF), now["who"][chosen] >> np.uint64(32)
    threads["ns"], threads["kind"] = ran[chosen], now["kind"][chosen]
    # A thread that ended took all that it ever ran to the sums: what it had run at the last look was counted then.
    ended, is_target = (last["who"] != 0) & ~same, last["kind"] == RunKind.TARGET
    counted_ns = [int(last["ns"][ended & (is_target == of_target)].sum()) for of_target in (False, True)]
    others_ns, target_ns = (max(0, int(sum_ns) - ns) for sum_ns, ns in zip(unplaced_ns, counted_ns, strict=True))
    return RunTimes(threads, others_ns, target_ns)
