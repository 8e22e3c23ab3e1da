# SPDX-License-Identifier: Apache-2.0
"""Runs the idle-exit program and collects what it sums, without waking the CPUs that it measures.

Every idle exit of the window is summed in the kernel by its cause, and read once, at the end. Single periods come
through a ring buffer, as an even sample. Nothing of it wakes us, but where a buffer or a table is a quarter full.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from powerprof.closeable import Closeable
from powerprof.errors import CapabilityError
from powerprof.paths import is_this_host
from powerprof.processes.namespaces import check_process_ids
from powerprof.processes.tasks import ENDED
from powerprof.tracing.bpf import features
from powerprof.tracing.bpf.btf import Btf, kernel_btf
from powerprof.tracing.bpf.definitions import argument_definitions, possible_cpus, struct_definitions
from powerprof.tracing.bpf.halves import Halves
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.shared_enums import Shared
from powerprof.tracing.idle.aggregate import aggregate, sample_hash
from powerprof.tracing.idle.ended import ENOUGH, EndedThreads, summed_causes
from powerprof.tracing.idle.filling import Fillings
from powerprof.tracing.idle.layout import (
    CAUSE,
    CAUSE_KEY,
    CAUSE_STATES,
    CAUSE_SUM,
    CPU_STATE,
    CPU_TOTAL,
    HALF,
    IDLE_EXIT,
    WOKEN,
    Count,
    CpuPhase,
    Filling,
    Flag,
)
from powerprof.tracing.symbols.kernel import kernel_functions, tick_handler
from powerprof.windows.runner import Part

_FIELDS = {
    "task_struct_pid": ("task_struct", "pid"),
    "task_struct_tgid": ("task_struct", "tgid"),
    "task_struct_comm": ("task_struct", "comm"),
    "task_struct_stack": ("task_struct", "stack"),
    "task_struct_nvcsw": ("task_struct", "nvcsw"),
    "task_struct_nivcsw": ("task_struct", "nivcsw"),
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
# 2 MiB are 7,000 records: the reader is called when a quarter of that waits.
_RING_PAGES = 512
# Distinct causes in one window: some 300 on an idle server, some thousand with stacks under load.
_CAUSES, _CAUSES_WITH_STACKS = 8192, 32768
_SETTLE_S = 0.02
Array = npt.NDArray[Any]


# Records that a window keeps beside its sums: 11 MB, and one in two, four, … of them where more come.
SAMPLE_LIMIT = 50_000


@dataclass(frozen=True)
class IdleTrace:
    """What was collected: `causes` are all idle exits of the window, summed (layout.CAUSE).

    `lost_count` exits found no place in the table of causes. `sample` holds single periods (layout.IDLE_EXIT, by time,
    open ones last): an even choice of one in `sample_1_in`, less `sample_lost_count` that did not fit into the ring
    buffer. `totals` are each CPU's own sums (layout.CPU_TOTAL). `addresses` holds kernel function names.
    """

    causes: Array
    lost_count: int
    sample: Array
    sample_1_in: int
    sample_lost_count: int
    totals: Array
    run_time_s: float | None = None
    addresses: dict[int, str] = field(default_factory=dict)


def definitions(btf: Btf, *, stacks: bool) -> dict[str, int | str]:
    """What the program needs to know of the running kernel."""
    values: dict[str, int | str] = {"NR_CPUS": possible_cpus(), "EXIT_PAGES": _RING_PAGES, "STACKS": int(stacks)}
    values["DIRECT"] = int(features.reads_directly(btf))
    values["CAUSE_SLOTS"] = _CAUSES_WITH_STACKS if stacks else _CAUSES
    values.update(struct_definitions(btf, _FIELDS))
    if btf.has_field("task_struct", "on_cpu"):
        values["OFFSET_task_struct_on_cpu"] = btf.field_offset("task_struct", "on_cpu")
    values.update(features.interrupt_definitions(btf))
    values.update(argument_definitions(btf, "sched_switch", ("preempt", "prev", "next"), "prev_state"))
    values.update({f"HAVE_{name}": 1 for name in _OPTIONAL_TRACEPOINTS if btf.has_tracepoint(name)})
    return values


class IdleTracer(Closeable, Part):
    """The idle-exit program, loaded and running while the context is open."""

    def __init__(self, extra: Mapping[str, int | str] | None = None, btf: Btf | None = None) -> None:
        """Load and attach. Raises CapabilityError where this host or user may not.

        A recorded host cannot be traced: what is traced is the running kernel.
        """
        if not is_this_host():
            raise CapabilityError("cannot trace a recorded host", "unset POWERPROF_SYSFS and POWERPROF_PROCFS")
        features.need(features.RING_BUFFER)
        check_process_ids()
        btf = btf or kernel_btf()
        values = definitions(btf, stacks=bool(extra))
        self._direct = bool(values["DIRECT"])
        values.update(extra or {})
        self._sample = bytearray()
        self._mask = 0
        self._functions: dict[int, str] = {}
        self.program = LoadedProgram("idle.bpf.c", values, btf=btf)
        self._fillings = Fillings(self.program, self._living)
        self._causes = Halves(
            self.program,
            "causes",
            (CAUSE_KEY, CAUSE_SUM),
            ("flags", HALF),
            sums=("count", "running_ns", "idle_ns", "states"),
            turn=lambda half: self._share(Shared.CAUSE_HALF, half * HALF),
        )
        self._ended = EndedThreads()
        self._kept, self._had_many = np.zeros(0, dtype=CAUSE), False
        self.program.ring("exits", self._sample.extend)
        self.program.ring("calls", lambda table: None)
        # Not a definition: the kernel lies elsewhere after each boot.
        self._share(Shared.TICK_HANDLER, tick_handler())
        self.begin()

    def close(self) -> None:
        self.program.close()

    def begin(self) -> None:
        """Forget what came before: a new window is near. Nothing is counted before `open_cpu`."""
        cpus = self.program.slots("totals")
        for cpu in range(cpus):
            self.program.put("totals", cpu, bytes(CPU_TOTAL.itemsize))
        self._set_mask(0)
        self._kept, self._had_many = self._kept[:0], False
        self._fillings.forget()
        self.read()
        self._sample.clear()
        self._causes.clear()
        self._counted = self.program.per_cpu_sum("counters")
        self._totals = np.zeros(cpus, dtype=CPU_TOTAL)

    def open_cpu(self, cpu: int, at_ns: int) -> None:
        """One CPU's window begins: to be called while the caller keeps that CPU awake."""
        total = np.zeros((), dtype=CPU_TOTAL)
        total["start_ns"] = at_ns
        self.program.put("totals", cpu, total.tobytes())

    def close_cpu(self, cpu: int, at_ns: int) -> None:
        """One CPU's window ends: to be called while the caller keeps that CPU awake, so that nothing is added to its
        sums meanwhile."""
        total = np.frombuffer(self.program.get("totals", cpu), dtype=CPU_TOTAL)[0].copy()
        if total["start_ns"]:
            total["end_ns"] = at_ns
            self.program.put("totals", cpu, total.tobytes())

    @property
    def calls(self) -> int | None:
        """Readable when a ring buffer or a table fills."""
        return self.program.map_descriptor("calls")

    def read(self) -> None:
        """Move what the ring buffers hold into our memory, and what tables hold that fill."""
        self._drain()
        self._fillings.drain(self._gather)

    def _living(self) -> dict[Filling, int]:
        """What fills in this program; of tables, how many entries that are kept here are of threads that live."""
        return {Filling.CAUSES: int(np.sum(self._kept["next_tid"] < ENDED)), Filling.EXITS: 0}

    def _gather(self) -> None:
        """Keep here what the kernel's tables hold."""
        self._kept = np.concatenate([self._kept, self._causes.since(emptied=True)])
        self._fold()

    def _fold(self) -> None:
        """Where there are more causes than anybody reads, threads that have ended are told by name."""
        self._kept = summed_causes(self._kept)
        if self._are_many(len(self._kept)):
            self._kept, _ = self._ended.fold(self._kept, np.zeros(0, dtype=WOKEN))

    def _are_many(self, count: int) -> bool:
        """Once in a window they are: threads that end later are told by the same names."""
        self._had_many = self._had_many or count > ENOUGH
        return self._had_many

    def _drain(self) -> None:
        """What the ring buffers hold; the sample is kept within its limit."""
        self.program.consume()
        while len(self._sample) > SAMPLE_LIMIT * IDLE_EXIT.itemsize:
            self._set_mask(self._mask << 1 | 1)
            self._sample[:] = self._chosen(np.frombuffer(self._sample, dtype=IDLE_EXIT)).tobytes()

    def _share(self, index: int, value: int) -> None:
        self.program.put("shared", index, value.to_bytes(8, "little"))

    def without_sample(self) -> None:
        """Send no single periods until the next `begin`: for readers who need the sums alone."""
        self._set_mask(0xFFFFFFFF)

    def _set_mask(self, mask: int) -> None:
        self._mask = mask
        self._share(Shared.SAMPLE_MASK, mask)

    def _chosen(self, exits: Array) -> Array:
        chosen: Array = exits[sample_hash(exits["cpu"], exits["sequence"]) & np.uint64(self._mask) == 0]
        return chosen

    def start(self) -> None:
        """The window opens: to be called after `begin`, before the edge of the first CPU."""

    def end(self) -> None:
        """The window is over: to be called after the edge of the last CPU, before `finish` collects what it left."""

    def finish(self) -> IdleTrace:
        """Everything since `begin` or the last `snapshot`, with the periods that are still open."""
        # The exits of the window's own edge are added when those CPUs idle again.
        time.sleep(_SETTLE_S)
        return self._since(with_open=True)

    def snapshot(self) -> IdleTrace:
        """What came since `begin` or the last snapshot; tracing goes on.

        Nothing is in two snapshots, and nothing between two: a period is in the one in whose time its CPU idled again.
        What regularity needs (`period_ns` and its companions) goes on over snapshots. `totals` have the start of the
        CPUs' windows, and the sums since the last snapshot.
        """
        return self._since(with_open=False)

    def _since(self, *, with_open: bool) -> IdleTrace:
        self.read()
        self._kept = np.concatenate([self._kept, self._causes.since()])
        self._read_more()
        self._fold()
        causes, self._kept, self._had_many = self._kept, self._kept[:0], False
        now = np.frombuffer(self.program.table_bytes("totals"), dtype=CPU_TOTAL)
        totals = now.copy()
        for name in ("count", "idle_ns"):
            totals[name] -= self._totals[name]
        self._totals = now
        sample = self._chosen(np.frombuffer(self._sample, dtype=IDLE_EXIT))
        if with_open:
            still_open = self._open_periods(now)
            causes = aggregate(still_open, causes)
            _add_open(totals, still_open)
            sample = np.concatenate([sample, self._chosen(still_open)])
        is_open = sample["flags"] & np.uint32(Flag.OPEN) != 0
        mask = self._mask
        self._sample.clear()
        counters = self.program.per_cpu_sum("counters")
        counted = [after - before for after, before in zip(counters, self._counted, strict=True)]
        self._counted = counters
        return IdleTrace(
            causes,
            counted[Count.LOST_EXITS],
            sample[np.lexsort((sample["exit_ns"], is_open))],
            mask + 1,
            counted[Count.LOST_SAMPLES],
            totals,
            self.program.run_time_s(),
            self._names_of(self._addresses(causes)),
        )

    def _read_more(self) -> None:
        """What else the tables of this window hold."""

    def _names_of(self, addresses: set[int]) -> dict[int, str]:
        """Names of kernel functions; each is looked for once."""
        unknown = addresses - self._functions.keys()
        if unknown:
            self._functions.update(dict.fromkeys(unknown, "") | self._name_functions(unknown))
        return {address: self._functions[address] for address in addresses if self._functions[address]}

    def _name_functions(self, addresses: set[int]) -> dict[int, str]:
        return kernel_functions(addresses)

    def _addresses(self, causes: Array) -> set[int]:
        """Kernel functions to be named."""
        names = ("timer_function", "work_function", "waker_timer_function")
        return {int(value) for name in names for value in np.unique(causes[name])} - {0}

    def cpu_states(self) -> Array:
        """Where each CPU is now, as layout.CPU_STATE."""
        return np.frombuffer(self.program.table_bytes("cpus"), dtype=CPU_STATE)

    def _open_periods(self, totals: Array) -> Array:
        """CPUs that left idle within their windows and have been running since: their periods are in no sum yet."""
        states = self.cpu_states()
        still_open: Array = states["period"][np.isin(states["phase"], (CpuPhase.LEFT, CpuPhase.RUNNING))].copy()
        mine = totals[still_open["cpu"]]
        inside = (
            (mine["start_ns"] > 0)
            & (still_open["exit_ns"] >= mine["start_ns"])
            & (still_open["exit_ns"] <= mine["end_ns"])
        )
        still_open = still_open[inside]
        still_open["flags"] |= np.uint32(Flag.OPEN)
        still_open["next_ns"] = 0
        return still_open


def _add_open(totals: Array, still_open: Array) -> None:
    """Periods that the kernel has not added yet, to the sums of their CPUs."""
    for period in still_open:
        total, state = totals[period["cpu"]], min(int(period["state"]), CAUSE_STATES - 1)
        total["count"][state] += 1
        total["idle_ns"][state] += int(period["exit_ns"]) - max(int(period["enter_ns"]), int(total["start_ns"]))
        total["last_tgid"] = period["next_tgid"]
