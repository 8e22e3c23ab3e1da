# SPDX-License-Identifier: Apache-2.0
"""Runs the idle-exit program and collects what it sends, without waking the CPUs that it measures.

Records come through a ring buffer that never wakes us; it is drained when a timer of ours says so, at most once
a second. Counts are kept in the kernel, so that a full buffer is a number and not a gap.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from powerprof.errors import CapabilityError
from powerprof.files import try_text
from powerprof.paths import is_this_host, procfs
from powerprof.processes.namespaces import check_process_ids
from powerprof.tracing import features
from powerprof.tracing.btf import Btf, kernel_btf
from powerprof.tracing.layout import CPU_STATE, IDLE_EXIT, Flag, Phase
from powerprof.tracing.program import Program, argument_definitions, possible_cpus, struct_definitions

_FIELDS = {
    "task_struct_pid": ("task_struct", "pid"),
    "task_struct_tgid": ("task_struct", "tgid"),
    "task_struct_comm": ("task_struct", "comm"),
    "task_struct_stack": ("task_struct", "stack"),
    "hrtimer_function": ("hrtimer", "function"),
    "timer_list_function": ("timer_list", "function"),
    "work_struct_func": ("work_struct", "func"),
}
_OPTIONAL_TRACEPOINTS = (
    "local_timer_entry",
    "reschedule_entry",
    "call_function_entry",
    "call_function_single_entry",
    "irq_work_entry",
    "x86_platform_ipi_entry",
    "thermal_apic_entry",
    "threshold_apic_entry",
    "deferred_error_apic_entry",
    "ipi_entry",
    "sched_wake_idle_without_ipi",
    "workqueue_execute_start",
)
_TICK_HANDLERS = ("tick_nohz_handler", "tick_sched_timer")
_RING_PAGES = 2048  # 8 MiB: four seconds of 10,000 idle exits a second
_SETTLE_S = 0.02


@dataclass(frozen=True)
class IdleTrace:
    """What was collected: `exits` in order of time (layout.IDLE_EXIT), open periods last.

    `lost_count` records did not fit into the ring buffer. `addresses` holds kernel function names.
    """

    exits: npt.NDArray[Any]
    lost_count: int
    run_time_s: float | None = None
    addresses: dict[int, str] = field(default_factory=dict)


def kernel_functions(wanted: Mapping[int, object] | set[int], names: tuple[str, ...] = ()) -> dict[int, str]:
    """Names of exactly these kernel addresses, and the addresses of these names, from kallsyms in one pass.

    Empty where kallsyms is hidden (kptr_restrict).
    """
    found: dict[int, str] = {}
    try:
        with (procfs() / "kallsyms").open() as file:
            for line in file:
                parts = line.split(maxsplit=3)
                if len(parts) < 3:
                    continue
                address = int(parts[0], 16)
                if address and (address in wanted or parts[2] in names):
                    found.setdefault(address, parts[2])
    except (OSError, ValueError):
        return found
    return found


def interrupt_names() -> dict[int, str]:
    """Device name by interrupt number, from /proc/interrupts: the last column, as people know it."""
    names: dict[int, str] = {}
    for line in (try_text(procfs() / "interrupts") or "").splitlines()[1:]:
        number, _, rest = line.partition(":")
        words = rest.split()
        if number.strip().isdigit() and words:
            names[int(number)] = words[-1]
    return names


def definitions(btf: Btf, *, stacks: bool) -> dict[str, int | str]:
    """What the program needs to know of the running kernel."""
    values: dict[str, int | str] = {"NR_CPUS": possible_cpus(), "EXIT_PAGES": _RING_PAGES, "STACKS": int(stacks)}
    values.update(struct_definitions(btf, _FIELDS))
    values.update(argument_definitions(btf, "sched_switch", ("preempt", "prev", "next"), "prev_state"))
    values.update({f"HAVE_{name}": 1 for name in _OPTIONAL_TRACEPOINTS if btf.has_tracepoint(name)})
    handlers = kernel_functions(set(), _TICK_HANDLERS)
    values["TICK_HANDLER"] = f"{next(iter(handlers), 0)}ULL"
    return values


class IdleTracer:
    """The idle-exit program, loaded and running while the context is open."""

    def __init__(self, extra: Mapping[str, int | str] | None = None) -> None:
        """Load and attach. Raises CapabilityError where this host or user may not.

        A recorded host cannot be traced: what is traced is the running kernel.
        """
        if not is_this_host():
            raise CapabilityError("cannot trace a recorded host", "unset POWERPROF_SYSFS and POWERPROF_PROCFS")
        features.need(features.RING_BUFFER)
        check_process_ids()
        values = definitions(kernel_btf(), stacks=bool(extra))
        values.update(extra or {})
        self._exits = bytearray()
        self.program = Program("idle.bpf.c", values)
        self.program.ring("exits", self._exits.extend)
        self._lost_before = 0
        self.begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.program.close()

    def begin(self) -> None:
        """Forget what came before: a new window is near."""
        self.drain()
        self._exits.clear()
        self._lost_before = self.program.per_cpu_sum("counters")[1]

    def drain(self) -> None:
        """Move what the ring buffer holds into our memory."""
        self.program.consume()

    def start(self) -> None:
        """The window is open: to be called at its very edge, after `begin`."""

    def end(self) -> None:
        """The window is over: to be called at its very edge, before `finish` collects what it left."""

    def finish(self) -> IdleTrace:
        """Everything collected since `begin`, with the periods that are still open."""
        # The exits of the window's own edge are sent when those CPUs idle again.
        time.sleep(_SETTLE_S)
        self.drain()
        lost = self.program.per_cpu_sum("counters")[1] - self._lost_before
        run_time_s = self.program.run_time_s()
        # Copied once: a busy minute is a hundred megabytes.
        self._exits += self._open_periods().tobytes()
        collected = np.frombuffer(self._exits, dtype=IDLE_EXIT)
        is_open = collected["flags"] & np.uint32(Flag.OPEN) != 0
        exits = collected[np.lexsort((collected["exit_ns"], is_open))]
        del collected, is_open
        self._exits.clear()
        return IdleTrace(exits, lost, run_time_s, kernel_functions(self._addresses(exits)))

    def _addresses(self, exits: npt.NDArray[Any]) -> set[int]:
        """Kernel functions to be named."""
        names = ("timer_function", "work_function", "waker_timer_function")
        return {int(value) for name in names for value in np.unique(exits[name])} - {0}

    def _open_periods(self) -> npt.NDArray[Any]:
        """CPUs that left idle and have been running since: their records are not sent yet."""
        states = self._states()
        found = states["period"][np.isin(states["phase"], (Phase.LEFT, Phase.RUNNING))].copy()
        found["flags"] |= np.uint32(Flag.OPEN)
        found["next_ns"] = 0
        return found

    def _states(self) -> npt.NDArray[Any]:
        return np.frombuffer(self.program.table_bytes("cpus"), dtype=CPU_STATE)
