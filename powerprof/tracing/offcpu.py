# SPDX-License-Identifier: Apache-2.0
"""Sum sleeps, waits for a CPU and wakings of threads in the kernel, and read the sums at the end of a window."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from powerprof.measure.window import PassedWindow, WindowPart, run_window
from powerprof.system.own_processes import own_pids
from powerprof.system.tasks import clean
from powerprof.tracing.bpf import features
from powerprof.tracing.bpf.btf import Btf, read_kernel_btf
from powerprof.tracing.bpf.definitions import build_struct_definitions, build_switch_definitions
from powerprof.tracing.bpf.shared_numbers import REASONS, OffCpuReason
from powerprof.tracing.bpf.summing_program import SummingProgram
from powerprof.tracing.bpf.task_definitions import build_task_definitions
from powerprof.tracing.captures import OffCpuTrace, ThreadSums, WakingSum
from powerprof.tracing.followed import FollowedProcesses

_PREEMPTED = OffCpuReason.PREEMPTED
_STATES = tuple(why for why in OffCpuReason if why is not _PREEMPTED)
_THREADS, _WAKERS = 16384, 65536
_OPTIONAL_TRACEPOINTS = ("local_timer_entry", "irq_work_entry", "call_function_single_entry")
_THREAD = np.dtype(
    [
        *((name, "<u8") for name in ("out_ns", "woken_ns", "waker")),
        ("counts", "<u8", REASONS),
        ("off_ns", "<u8", REASONS),
        *((name, "<u8") for name in ("sleep_max_ns", "waits", "wait_ns", "wait_max_ns", "reason")),
        ("comm", "S16"),
        ("waker_comm", "S16"),
    ]
)
_WAKER_KEY = np.dtype([("sleeper", "<u8"), ("waker", "<u8")])
_WAKER = np.dtype([("count", "<u8"), ("comm", "S16")])


def build_offcpu_definitions(btf: Btf, *, every_process: bool) -> dict[str, int | str]:
    """Return the definitions of offcpu.bpf.c for this kernel."""
    return {
        "EVERY_PROCESS": int(every_process),
        "THREADS": _THREADS,
        "WAKERS": _WAKERS,
        "DIRECT": int(features.can_read_directly(btf)),
        **build_task_definitions(btf),
        **build_struct_definitions(btf, {"task_struct_comm": ("task_struct", "comm")}),
        **build_switch_definitions(btf),
        **features.build_interrupt_definitions(btf),
        **{f"HAVE_{name}": int(btf.has_tracepoint(name)) for name in _OPTIONAL_TRACEPOINTS},
    }


class OffCpuTracer(SummingProgram):
    """The loaded program that sums sleeps. A context manager that removes it."""

    def __init__(self, pids: Sequence[int] | None, find_members: Callable[[], Sequence[int]] | None = None) -> None:
        """Load the program for these processes, or for every process if `pids` is None. New threads count.

        `find_members`: the present processes of a target that others may join.

        Raises CapabilityError if this host or user may not.
        """
        btf = read_kernel_btf()
        definitions = build_offcpu_definitions(btf, every_process=pids is None)
        super().__init__(
            "offcpu.bpf.c",
            definitions,
            btf,
            None if pids is None else FollowedProcesses(pids, find_members),
            ("threads", "wakers"),
        )

    def measure(self, duration_s: float, *parts: WindowPart, settle: bool = False) -> OffCpuTrace:
        """Measure for `duration_s`, with other parts of the window.

        `settle`: give up root's privileges once nothing is left to open.
        """
        return self.collect(run_window(duration_s, self, *parts, settle=settle))

    def collect(self, passed: PassedWindow) -> OffCpuTrace:
        """Return the sums of the window."""
        began_s = time.process_time()
        threads, wakings = self._threads(), self._wakings()
        bpf_s = self.bpf_s()
        lost, unseen = self.counters()
        return OffCpuTrace(
            pids=self.pids(),
            window_s=passed.window_s,
            threads=threads,
            wakings=wakings,
            lost_count=lost,
            unseen_count=unseen,
            notes=[*passed.notes, *self.notes()],
            tool_cpu_s=passed.tool_cpu_s + time.process_time() - began_s,
            bpf_s=bpf_s,
            ended=passed.ended,
        )

    def _threads(self) -> list[ThreadSums]:
        own = own_pids()
        keys, values = self.rows("threads")
        sums = []
        for who, row in zip(np.frombuffer(keys, "<u8"), np.frombuffer(values, _THREAD), strict=True):
            states = {why.name.lower(): (int(row["counts"][why]), int(row["off_ns"][why])) for why in _STATES}
            thread = ThreadSums(
                pid=int(who) >> 32,
                tid=int(who) & 0xFFFFFFFF,
                comm=clean(bytes(row["comm"])),
                states={name: state for name, state in states.items() if state[0]},
                sleep_max_ns=int(row["sleep_max_ns"]),
                waits_count=int(row["waits"]),
                wait_ns=int(row["wait_ns"]),
                wait_max_ns=int(row["wait_max_ns"]),
                preempted_count=int(row["counts"][_PREEMPTED]),
                preempted_ns=int(row["off_ns"][_PREEMPTED]),
            )
            if thread.pid not in own:
                sums.append(thread)
        return sums

    def _wakings(self) -> list[WakingSum]:
        own = own_pids()
        keys, values = self.rows("wakers")
        pairs = zip(np.frombuffer(keys, _WAKER_KEY), np.frombuffer(values, _WAKER), strict=True)
        return [
            WakingSum(
                tid=int(key["sleeper"]) & 0xFFFFFFFF,
                waker_pid=int(key["waker"]) >> 32,
                waker_tid=int(key["waker"]) & 0xFFFFFFFF,
                waker_comm=clean(bytes(row["comm"])) if key["waker"] else "interrupt",
                count=int(row["count"]),
            )
            for key, row in pairs
            if int(key["sleeper"]) >> 32 not in own
        ]
