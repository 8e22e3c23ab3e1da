# SPDX-License-Identifier: Apache-2.0
"""Runs the idle-exit program and collects what it sums, without waking the CPUs that it measures.

Every idle exit of the window is summed in the kernel by its cause, and read once, at the end. Single periods come
through a ring buffer, as an even sample. Nothing of it wakes us, but where a buffer or a table is a quarter full.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from powerprof.measure.clock import kernel_ns
from powerprof.measure.window import WindowPart
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.shared_numbers import CAUSE_STATES, Count, CpuPhase, FilledTable, Flag, Shared
from powerprof.tracing.idle_data import (
    CPU_STATE,
    CPU_TOTAL,
    FILL_LEVEL,
    IDLE_EXIT,
    TABLES,
    RunTimeReader,
    RunTimes,
    aggregate_exits,
    hash_periods,
    write_shared,
)
from powerprof.tracing.idle_stacks import IdleSums

# Each CPU's own window in the program: its edges, what was summed in it, and the period that is open at its end.

_LOOKS = 4


class CpuWindows:
    """The windows of one program's CPUs. Nothing is counted on a CPU before `open`."""

    def __init__(self, program: LoadedProgram) -> None:
        self._program = program
        self._last = np.zeros(program.slots("totals"), dtype=CPU_TOTAL)
        self._at_end: dict[int, Array] = {}

    def forget(self) -> None:
        """No window is open on any CPU."""
        self._last = np.zeros(len(self._last), dtype=CPU_TOTAL)
        self._at_end = {}
        for cpu, total in enumerate(self._last):
            self._program.put("totals", cpu, total.tobytes())

    def open(self, cpu: int, at_ns: int) -> None:
        """One CPU's window begins: to be called while the caller keeps that CPU awake."""
        total = np.zeros((), dtype=CPU_TOTAL)
        total["start_ns"] = at_ns
        self._program.put("totals", cpu, total.tobytes())

    def close(self, cpu: int, at_ns: int) -> None:
        """One CPU's window ends: to be called while the caller keeps that CPU awake, so that nothing is added to its
        sums meanwhile, and the period that is open stays what it is."""
        total = np.frombuffer(self._program.get("totals", cpu), dtype=CPU_TOTAL)[0].copy()
        if total["start_ns"]:
            total["end_ns"] = at_ns
            self._program.put("totals", cpu, total.tobytes())
            self._at_end[cpu] = np.frombuffer(self._program.get("cpus", cpu), dtype=CPU_STATE)

    def tell_polls(self, states: Iterable[int]) -> None:
        """Which idle states, by number, are polls: an interrupt does not end these."""
        write_shared(self._program, Shared.POLLS, sum(1 << number for number in states))

    def states(self) -> Array:
        """Where each CPU is now, as layout.CPU_STATE."""
        return np.frombuffer(self._program.table_bytes("cpus"), dtype=CPU_STATE)

    def take(self, *, with_open: bool) -> tuple[Array, Array]:
        """The windows with their sums since `forget` or the last call (layout.CPU_TOTAL), and the periods that are
        still open (layout.IDLE_EXIT), which the sums have as well; none unless `with_open`."""
        now = np.frombuffer(self._program.table_bytes("totals"), dtype=CPU_TOTAL)
        totals = now.copy()
        for name in ("count", "idle_ns", "unplaced_ns"):
            totals[name] -= self._last[name]
        self._last = now
        still_open = self._still_open(now) if with_open else np.zeros(0, dtype=IDLE_EXIT)
        for period in still_open:
            total, state = totals[period["cpu"]], min(int(period["state"]), CAUSE_STATES - 1)
            total["count"][state] += 1
            total["idle_ns"][state] += int(period["exit_ns"]) - max(int(period["enter_ns"]), int(total["start_ns"]))
            total["last_tgid"] = period["next_tgid"]
        return totals, still_open

    def idle_until_now(self) -> tuple[Array, Array]:
        """The sums of all windows so far (layout.CPU_TOTAL) with the idle time of the period that is open on each CPU,
        and when that was read (CLOCK_MONOTONIC, by CPU).

        The kernel sums a period when its CPU idles again. Sums and state are of one moment where a look before and one
        after agree; a CPU that changes at each look is off by one of its periods, which are short.
        """
        found, at_ns = np.zeros(len(self._last), dtype=CPU_TOTAL), np.zeros(len(self._last), dtype=np.uint64)
        left = np.ones(len(found), dtype=bool)
        for _ in range(_LOOKS):
            before, now_ns = self.states(), kernel_ns()
            totals = np.frombuffer(self._program.table_bytes("totals"), dtype=CPU_TOTAL)
            after = self.states()
            found[left], at_ns[left] = _with_open(totals, before, now_ns)[left], now_ns
            same = before["phase"] == after["phase"]
            left &= ~(same & (before["period"]["enter_ns"] == after["period"]["enter_ns"]))
            if not left.any():
                break
        return found, at_ns

    def _still_open(self, totals: Array) -> Array:
        """CPUs that had left idle and ran at their windows' ends: the kernel sums none of these periods.

        A CPU that has no last edge went away: what it ran last is as it was then.
        """
        states = self.states().copy()
        for cpu, state in self._at_end.items():
            states[cpu] = state[0]
        left_ns = states["period"]["exit_ns"]
        inside = (totals["start_ns"] > 0) & (left_ns >= totals["start_ns"])
        inside &= (totals["end_ns"] == 0) | (left_ns <= totals["end_ns"])
        runs = np.isin(states["phase"], (CpuPhase.LEFT, CpuPhase.RUNNING))
        still_open: Array = states["period"][inside & runs].copy()
        still_open["flags"] |= np.uint32(Flag.OPEN)
        still_open["next_ns"] = 0
        return still_open


def _with_open(totals: Array, states: Array, now_ns: int) -> Array:
    """The sums with what the period that is open on each CPU idled until now."""
    whole = totals.copy()
    opened = (totals["start_ns"] > 0) & (states["phase"] != CpuPhase.UNKNOWN)
    for cpu in np.flatnonzero(opened).tolist():
        period = states[cpu]["period"]
        idles = states[cpu]["phase"] == CpuPhase.IDLE
        end_ns = now_ns if idles else int(period["exit_ns"])
        begin_ns = max(int(period["enter_ns"]), int(totals[cpu]["start_ns"]))
        whole[cpu]["idle_ns"][min(int(period["state"]), CAUSE_STATES - 1)] += max(0, end_ns - begin_ns)
    return whole


# How much may come into a program's tables and ring buffers until the kernel calls their reader (filled.bpf.h).

_ENDLESS = 1 << 62


class FillLimits:
    """What fills in one program."""

    def __init__(self, program: LoadedProgram, living: Callable[[], Mapping[FilledTable, int]]) -> None:
        """`living`: what the program has of them and, of tables, how many of the entries read so far are of threads
        that live. The others may fill without end."""
        self._program, self._living = program, living
        self.forget()

    def forget(self) -> None:
        """Nothing has come yet."""
        self._allow(np.zeros(len(FilledTable), dtype=FILL_LEVEL))

    def drain(self, gather: Callable[[], object]) -> None:
        """Once the ring buffers are empty: full tables are emptied by `gather`, and the kernel may call again."""
        filled = self._read()
        tables = filled[list(TABLES)]
        if np.any(tables["amount"] >= tables["limit"]):
            # First: what is made meanwhile is in the half that is turned to.
            self._allow(np.zeros_like(filled))
            gather()
            self._allow(self._read())
        elif np.any(filled["is_called"]):
            self._allow(filled)

    def _read(self) -> Array:
        return np.frombuffer(self._program.table_bytes("filled"), dtype=FILL_LEVEL)

    def _allow(self, filled: Array) -> None:
        """What came so far, and how much may come until we are called again."""
        living = self._living()
        for filling in FilledTable:
            one = filled[filling].copy()
            one["limit"], one["is_called"] = self._limit(filling, int(one["amount"]), living), 0
            self._program.put("filled", filling, one.tobytes())

    def _limit(self, filling: FilledTable, amount: int, living: Mapping[FilledTable, int]) -> int:
        if filling not in living:
            return _ENDLESS
        slots = self._program.slots(filling.name.lower())
        if filling not in TABLES:
            return amount + slots // 4
        # What lives comes again, and a quarter of the room.
        return min(slots // 4 + living[filling], slots * 3 // 4)


# Single idle periods as records: an even choice of them, within a limit.

# Records that a window keeps beside its sums: 11 MB, and one in two, four, … of them where more come.
SAMPLE_LIMIT = 50_000
_NONE = 0xFFFFFFFF


class PeriodSample:
    """What came through the ring buffer of periods. `wanted` False: none is sent, for who needs the sums alone."""

    def __init__(self, program: LoadedProgram, *, wanted: bool = True) -> None:
        self._program, self._first_mask = program, 0 if wanted else _NONE
        self._records = bytearray()
        self._set_mask(self._first_mask)
        program.ring("exits", self._records.extend)

    def begin(self) -> None:
        """All are sent again, where any are."""
        self._set_mask(self._first_mask)

    def clear(self) -> None:
        """Forget what came."""
        self._records.clear()

    def limit(self) -> None:
        """Of those that are here, and that will come, keep half as often as it takes."""
        while len(self._records) > SAMPLE_LIMIT * IDLE_EXIT.itemsize:
            self._set_mask(self._mask << 1 | 1)
            self._records[:] = self._chosen(np.frombuffer(self._records, dtype=IDLE_EXIT)).tobytes()

    def take(self, still_open: Array) -> tuple[Array, int]:
        """Since `clear` or the last call, by time, those of `still_open` last; and of how many each is one."""
        sample = self._chosen(np.concatenate([np.frombuffer(self._records, dtype=IDLE_EXIT), still_open]))
        self._records.clear()
        is_open = sample["flags"] & np.uint32(Flag.OPEN) != 0
        return sample[np.lexsort((sample["exit_ns"], is_open))], self._mask + 1

    def _set_mask(self, mask: int) -> None:
        self._mask = mask
        write_shared(self._program, Shared.SAMPLE_MASK, mask)

    def _chosen(self, exits: Array) -> Array:
        chosen: Array = exits[hash_periods(exits["cpu"], exits["sequence"]) & np.uint64(self._mask) == 0]
        return chosen


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
    def read_interval_s(self) -> float:
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


class IdleTracer(WindowPart):
    """The idle-exit program while it runs, and the parts that keep what it gives. Put together in `build.py`."""

    def __init__(
        self,
        program: LoadedProgram,
        sums: IdleSums,
        sample: PeriodSample,
        name_functions: Callable[[set[int]], dict[int, str]],
        beside: TracePart | None = None,
    ) -> None:
        """`name_functions`: names of the kernel's functions at these addresses."""
        self.program, self.cpus = program, CpuWindows(program)
        self._sums, self._sample, self._beside = sums, sample, beside
        self._run_times = RunTimeReader(program)
        self._fillings = FillLimits(program, sums.living)
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
    def wake_descriptor(self) -> int | None:
        """Readable when a ring buffer or a table fills."""
        return self.program.map_descriptor("calls")

    @property
    def read_interval_s(self) -> float:
        return math.inf if self._beside is None else self._beside.read_interval_s

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
            causes = aggregate_exits(still_open, causes)
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
