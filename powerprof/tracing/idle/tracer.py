# SPDX-License-Identifier: Apache-2.0
"""Runs the idle-exit program and collects what it sums, without waking the CPUs that it measures.

Every idle exit of the window is summed in the kernel by its cause, and read once, at the end. Single periods come
through a ring buffer, as an even sample. Nothing of it wakes us, but where a buffer or a table is a quarter full.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy.typing as npt

from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.shared_numbers import Count
from powerprof.tracing.idle.aggregate import aggregate
from powerprof.tracing.idle.cpus import CpuWindows
from powerprof.tracing.idle.filling import Fillings
from powerprof.tracing.idle.running import RunTimeReader, RunTimes
from powerprof.tracing.idle.sample import Sample
from powerprof.tracing.idle.sums import IdleSums
from powerprof.windows.runner import Part

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class IdleTrace:
    """What was collected: `causes` are all idle exits of the window, summed (layout.CAUSE).

    `lost_count` exits found no place in the table of causes. `sample` holds single periods (layout.IDLE_EXIT, by time,
    open ones last): an even choice of one in `sample_1_in`, less `sample_lost_count` that did not fit into the ring
    buffer. `totals` are each CPU's own sums (layout.CPU_TOTAL), `ran` is how long threads ran. `addresses` holds kernel
    function names.
    """

    causes: Array
    lost_count: int
    sample: Array
    sample_1_in: int
    sample_lost_count: int
    totals: Array
    ran: RunTimes
    run_time_s: float | None = None
    addresses: dict[int, str] = field(default_factory=dict)


class TracePart(Protocol):
    """What is looked at beside idle exits: the tracer tells it what happens to the trace."""

    @property
    def unread_at_most_s(self) -> float:
        """How long it can go without `read`."""
        ...

    def begin(self, meanwhile: Callable[[], object]) -> None:
        """A window is near; the sums were reset. `meanwhile` is called now and then by what takes long."""

    def start(self) -> None:
        """The window opens: the first CPU's edge is next."""

    def read(self) -> None:
        """Ring buffers and full tables have been read."""

    def end(self) -> None:
        """The window is over, on every CPU."""

    def cut(self, counters: Sequence[int]) -> None:
        """A trace was taken, with the program's counters as they were then."""


class IdleTracer(Part):
    """The idle-exit program while it runs, and the parts that keep what it gives. Put together in `build.py`."""

    def __init__(
        self,
        program: LoadedProgram,
        sums: IdleSums,
        sample: Sample,
        name_functions: Callable[[set[int]], dict[int, str]],
        beside: TracePart | None = None,
    ) -> None:
        """`name_functions`: names of the kernel's functions at these addresses."""
        self.program, self.cpus = program, CpuWindows(program)
        self._sums, self._sample, self._beside = sums, sample, beside
        self._run_times = RunTimeReader(program)
        self._fillings = Fillings(program, sums.living)
        self._name_functions, self._functions = name_functions, dict[int, str]()
        self._counted = program.per_cpu_sum("counters")
        program.ring("calls", lambda table: None)

    def begin(self) -> None:
        """Forget what came before: a new window is near. Nothing is counted before the first of `cpus` opens."""
        self.cpus.forget()
        self._sample.begin()
        self._sums.forget()
        self._fillings.forget()
        self._drain()
        self._sample.clear()
        self._sums.clear()
        self._run_times.clear()
        self._counted = self.program.per_cpu_sum("counters")
        if self._beside is not None:
            self._beside.begin(self._drain_where_called)

    def start(self) -> None:
        """The window opens: to be called after `begin`, before the edge of the first CPU."""
        if self._beside is not None:
            self._beside.start()

    @property
    def calls(self) -> int | None:
        """Readable when a ring buffer or a table fills."""
        return self.program.map_descriptor("calls")

    @property
    def unread_at_most_s(self) -> float:
        return math.inf if self._beside is None else self._beside.unread_at_most_s

    def read(self) -> None:
        """Move what the ring buffers hold into our memory, and what tables hold that fill."""
        self._drain()
        if self._beside is not None:
            self._beside.read()

    def end(self) -> None:
        """The window is over: to be called after the edge of the last CPU, before `finish` collects what it left."""
        if self._beside is not None:
            self._beside.end()

    def finish(self) -> IdleTrace:
        """Everything since `begin` or the last `snapshot`, with the periods that were open at the CPUs' last edges."""
        return self._since(with_open=True)

    def snapshot(self) -> IdleTrace:
        """What came since `begin` or the last snapshot; tracing goes on.

        Nothing is in two snapshots, and nothing between two: a period is in the one in whose time its CPU idled again.
        What regularity needs (`period_ns` and its companions) goes on over snapshots. `totals` have the start of the
        CPUs' windows, and the sums since the last snapshot.
        """
        return self._since(with_open=False)

    def _drain(self) -> None:
        self.program.consume()
        self._sample.limit()
        self._fillings.drain(self._sums.gather)

    def _drain_where_called(self) -> None:
        if self.program.waits("calls"):
            self._drain()

    def _since(self, *, with_open: bool) -> IdleTrace:
        self.read()
        causes = self._sums.take_causes()
        totals, still_open = self.cpus.take(with_open=with_open)
        ran = self._run_times.since(totals)
        if len(still_open):
            causes = aggregate(still_open, causes)
        sample, sample_1_in = self._sample.take(still_open)
        counters = self.program.per_cpu_sum("counters")
        counted = [after - before for after, before in zip(counters, self._counted, strict=True)]
        self._counted = counters
        if self._beside is not None:
            self._beside.cut(counters)
        return IdleTrace(
            causes,
            counted[Count.LOST_EXITS],
            sample,
            sample_1_in,
            counted[Count.LOST_SAMPLES],
            totals,
            ran,
            self.program.run_time_s(),
            self._names_of(self._sums.functions_in(causes)),
        )

    def _names_of(self, addresses: set[int]) -> dict[int, str]:
        """Names of kernel functions; each is looked for once."""
        unknown = addresses - self._functions.keys()
        if unknown:
            self._functions.update(dict.fromkeys(unknown, "") | self._name_functions(unknown))
        return {address: self._functions[address] for address in addresses if self._functions[address]}
