# SPDX-License-Identifier: Apache-2.0
"""Trace slices of a window if tracing all of it would exceed the budget (`budget.py`).

Between slices the programs are detached, not merely idle. Each slice is a window with its own exact edges on each CPU,
and the whole window keeps the kernel's counters of idle states. The causes of a slice are read after it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec
import numpy as np

from powerprof.measure.clock import kernel_ns
from powerprof.measure.procfs import process_cpu_ns, read_stat
from powerprof.measure.window import WindowPart, read_group_cpu_ns
from powerprof.system.targets import Target
from powerprof.tracing.bpf.cost_meter import CostMeter
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.shared_numbers import CpuPhase, RunKind
from powerprof.tracing.budget import LOOK_S, SWITCH_COST_S, Budget, Reading, SliceController, Stratum
from powerprof.tracing.captures import Array, CpuEdge, count_reference_exits
from powerprof.tracing.idle_data import CAUSE_KEY, CPU_STATE, RUN_TIME, SUMS, WOKEN_KEY, RunTimes, sum_by_key

# The entries of one key in each slice.
SLICE_COUNT = np.dtype([("entry", "<u4"), ("slice", "<u4"), ("count", "<u8")])
# Entries of slices that are kept before they are summed: 7 MB.
_MOST_UNSUMMED = 20_000
# The interval of looks for new processes of a target, which take half a millisecond.
_MEMBERS_S = 5.0
# The field `asleep` of struct thread (threads.bpf.h), in words of four bytes, and the words of a thread.
_ASLEEP, _THREAD_WORDS = 2, 32


class TracedSlice(msgspec.Struct, frozen=True, array_like=True):
    """A part of the window that was traced, and the length of the window that it stands for, in seconds.

    `exits_count`: its traced idle exits. `reference_count`: the kernel's own count; None without one.
    """

    start_s: float
    traced_s: float
    stratum_s: float
    exits_count: int
    reference_count: int | None

    @property
    def weight(self) -> float:
        """The length of the stratum in lengths of the slice."""
        return self.stratum_s / self.traced_s if self.traced_s > 0 else 1.0


class SlicedTrace(msgspec.Struct, frozen=True, kw_only=True):
    """The slices of a window, and how the entries of its trace divide over them (SLICE_COUNT).

    Attributes:
        whole_count: the kernel's count of idle exits in the whole window; None without a counter.
        used_s: CPU time of the target in the whole window, by the kernel's clock; None if it is unknown.
    """

    slices: list[TracedSlice]
    whole_count: int | None
    used_s: float | None
    causes: bytes
    wakings: bytes = b""


class SliceSums:
    """Sums entries of slices by their key, and remembers how often each key occurred in each slice."""

    def __init__(self, key: Sequence[str], sums: Sequence[str], best: str) -> None:
        self._key, self._sums, self._best = tuple(key), tuple(sums), best
        self._whole: Array | None = None
        self._counts = np.zeros(0, dtype=SLICE_COUNT)
        self._pending: list[Array] = []
        self._number = 0

    def add(self, entries: Array) -> None:
        """Add the entries of the next slice."""
        self._pending.append(entries)
        if sum(map(len, self._pending)) > _MOST_UNSUMMED:
            self._fold()

    def finish(self) -> tuple[Array, Array]:
        """Return one entry per key, and the number of events of each in each slice (SLICE_COUNT)."""
        self._fold()
        assert self._whole is not None  # noqa: S101  a window has a slice
        return self._whole, self._counts

    def _fold(self) -> None:
        parts, first = self._pending, self._number
        self._pending, self._number = [], first + len(parts)
        if not parts:
            return
        base = self._whole if self._whole is not None else parts[0][:0]
        entries = np.concatenate([base, *parts])
        keys = np.zeros(len(entries), dtype=[(name, entries.dtype[name]) for name in self._key])
        for name in self._key:
            keys[name] = entries[name]
        # The order of `sum_by_key`.
        _, rows = np.unique(keys.view(f"V{keys.dtype.itemsize}").ravel(), return_inverse=True)
        rows = rows.reshape(-1)
        moved = self._counts.copy()
        moved["entry"] = rows[: len(base)][moved["entry"]] if len(moved) else moved["entry"]
        grown = np.zeros(len(entries) - len(base), dtype=SLICE_COUNT)
        grown["entry"], grown["count"] = rows[len(base) :], entries["count"][len(base) :]
        grown["slice"] = np.repeat(np.arange(first, self._number), [len(part) for part in parts])
        self._counts = sum_by_key(np.concatenate([moved, grown]), ("entry", "slice"), ("count",), "count")
        self._whole = sum_by_key(entries, self._key, self._sums, self._best)


def make_slice(stratum: Stratum, edges: Mapping[int, CpuEdge], exits_count: int) -> TracedSlice:
    """Return the slice of a stratum with its idle exits and the kernel's count."""
    reference = count_reference_exits(edges)
    spans_s = [(edge.end_ns - edge.start_ns) / 1e9 for edge in edges.values()]
    traced_s = sum(spans_s) / len(spans_s) if spans_s else 0.0
    return TracedSlice(
        stratum.traced_from_s,
        traced_s,
        max(stratum.end_s - stratum.start_s, traced_s),
        exits_count,
        None if reference is None else reference[1],
    )


def sum_edges(parts: Sequence[Mapping[int, CpuEdge]]) -> dict[int, CpuEdge]:
    """Return the sums of each CPU over slices. A counter that is unknown in one slice is unknown."""
    summed: dict[int, CpuEdge] = {}
    for part in parts:
        for cpu, edge in part.items():
            old = summed.get(cpu)
            if old is None:
                summed[cpu] = edge
                continue
            summed[cpu] = CpuEdge(
                cpu,
                old.start_ns,
                edge.end_ns,
                _add(old.usage_delta_count, edge.usage_delta_count),
                _add(old.event_count, edge.event_count),
                _add(old.traced_count, edge.traced_count),
            )
    return summed


def _add(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def scale_run_times(
    parts: Sequence[RunTimes],
    slices: Sequence[TracedSlice],
    used_s: float | None,
    pids: Collection[int] | None,
    own_pids: Collection[int] = (),
) -> RunTimes:
    """Return the running time of the whole window.

    `used_s`: the target's CPU time by the kernel's clock, which its threads add up to. `pids`: the target's processes,
    None for the whole system. `own_pids`: powerprof's, which run at the edges of slices and hardly between slices.
    """
    threads = np.concatenate([part.threads for part in parts])
    unseen = np.concatenate([np.full(len(part.threads), slices[at].weight - 1.0) for at, part in enumerate(parts)])
    unseen[np.isin(threads["pid"], list(own_pids))] = 0.0
    extra = np.array([part.weight - 1.0 for part in slices])
    others, target = np.array([part.others_ns for part in parts]), np.array([part.target_ns for part in parts])
    if pids is None:
        of_target = np.ones(len(threads), dtype=bool)
    else:
        of_target = (threads["kind"] == RunKind.TARGET) | np.isin(threads["pid"], list(pids))
    others_ns, target_ns = float(others.sum() + extra @ others), float(target.sum() + extra @ target)
    seen_ns = float(threads["ns"][of_target].sum() + target.sum())
    expected_ns = float(unseen[of_target] @ threads["ns"][of_target] + extra @ target)
    scale = 1.0
    if used_s is not None and expected_ns > 0:
        scale = max(0.0, 1e9 * used_s - seen_ns) / expected_ns
        target_ns = float(target.sum() + scale * (extra @ target))
    whole_ns = threads["ns"] * (1.0 + np.where(of_target, scale, 1.0) * unseen)
    sums: dict[tuple[int, int, int], float] = {}
    who = zip(threads["tid"].tolist(), threads["pid"].tolist(), threads["kind"].tolist(), strict=True)
    for key, ns in zip(who, whole_ns.tolist(), strict=True):
        sums[key] = sums.get(key, 0.0) + ns
    ran = np.zeros(len(sums), dtype=RUN_TIME)
    for number, ((tid, pid, kind), ns) in enumerate(sums.items()):
        ran[number] = (tid, pid, round(ns), kind)
    return RunTimes(ran, round(others_ns), round(target_ns))


class UseClock(WindowPart):
    """The CPU time of a target by the kernel's clock; of a system, of all CPUs outside idle."""

    def __init__(self, target: Target) -> None:
        self._target, self.used_s = target, 0.0
        self._seen: dict[int, int] = {}
        self._ended_ns = 0
        self._looked_s = -_MEMBERS_S

    def begin(self) -> None:
        """Begin the window."""
        self._first_s = self.read_s()

    def end(self) -> None:
        """End the window."""
        self.used_s = self.read_s() - self._first_s

    def follow(self, target: Target) -> None:
        """Change the target. Its earlier processes stay in the sum."""
        self._target, self._looked_s = target, -_MEMBERS_S

    def read_s(self) -> float:
        """Return the CPU time until now in seconds. Only differences have a meaning."""
        target = self._target
        if target.system:
            return _read_host_use_s()
        if target.cgroup is not None:
            return (read_group_cpu_ns(target.cgroup) or 0) / 1e9
        if time.monotonic() - self._looked_s >= _MEMBERS_S:
            self._looked_s = time.monotonic()
            self._seen |= dict.fromkeys(set(target.members() or target.pids) - self._seen.keys(), 0)
        for pid, last_ns in list(self._seen.items()):
            now_ns = process_cpu_ns(pid)
            if now_ns is None or now_ns < last_ns:
                # It ended, and its number may be another process's.
                self._ended_ns += self._seen.pop(pid)
            else:
                self._seen[pid] = now_ns
        return (self._ended_ns + sum(self._seen.values())) / 1e9


def _read_host_use_s() -> float:
    return sum(
        spent
        for cpu in read_stat().cpus.values()
        for name, spent in cpu.items()
        if name not in ("idle", "iowait", "steal", "guest", "guest_nice")
    )


def prepare_slice(program: LoadedProgram, cpus: Sequence[int]) -> None:
    """Forget what changed while the programs were detached, before they are attached again.

    The state of a CPU is unknown until it idles. A thread that was asleep may have been woken.
    """
    states = np.frombuffer(program.table_bytes("cpus"), dtype=CPU_STATE).copy()
    for name in ("hardirq", "softirq", "softirq_by_irq", "raised_by_irq", "vector", "timer_active", "threaded_irq"):
        states[name] = 0
    for name in ("running_tid", "is_task_awake", "meter_captures", "idled_ns"):
        states[name] = 0
    states["phase"], states["meter_start_ns"] = CpuPhase.UNKNOWN, kernel_ns()
    for cpu in cpus:
        program.put("cpus", cpu, states[cpu].tobytes())
    threads = program.map_array("threads")
    if threads is not None:
        words = np.frombuffer(threads, dtype="<u4").reshape(-1, _THREAD_WORDS)
        words[np.flatnonzero(words[:, _ASLEEP]), _ASLEEP] = 0


class Slicer(WindowPart):
    """The part of a window that attaches and detaches the programs. It begins after all others, and ends first.

    `open_edge` and `close_slice` belong to the owner of the edges and of the trace: `close_slice` ends the slice on
    every CPU, detaches, and stores the trace of the slice.
    """

    def __init__(
        self,
        meter: CostMeter,
        used: Callable[[], float],
        events: Callable[[], float],
        budget: Budget,
        duration_s: float,
        *,
        wake_descriptor: int | None,
        start_slice: Callable[[], None],
        end_slice: Callable[[], None],
        look_s: float = LOOK_S,
        switch_cost_s: float = SWITCH_COST_S,
    ) -> None:
        self._switch_cost_s = switch_cost_s
        self._meter, self._used, self._events, self._budget = meter, used, events, budget
        meter.is_driven = True
        self._duration_s, self._wake_descriptor = duration_s, wake_descriptor
        self._start_slice, self._end_slice, self._look_s = start_slice, end_slice, look_s

    @property
    def wake_descriptor(self) -> int | None:
        """The descriptor by which the kernel reports that many idle exits were traced: a storm is noticed at once."""
        return self._wake_descriptor

    @property
    def read_interval_s(self) -> float:
        """The time until the next look, in seconds."""
        return max(0.001, self._controller.next_look_s - self._elapsed_s())

    def begin(self) -> None:
        """Begin the window. The programs are attached."""
        self._start_s = time.monotonic()
        self._first_used, self._first_events = self._used(), self._events()
        seed = int.from_bytes(os.urandom(4), "little")
        self._controller = SliceController(self._budget, seed, self._duration_s, self._look_s, self._switch_cost_s)

    def read(self) -> None:
        """Look at the cost, and attach or detach."""
        if self._controller.look(self._read_clocks()) == self._controller.is_tracing:
            return
        if self._controller.is_tracing:
            self._end_slice()
            self._meter.pause()
        else:
            self._meter.resume()
            self._start_slice()
        self._controller.switched(self._read_clocks())

    def end(self) -> None:
        """End the window."""
        self._length_s, self.used_s = self._elapsed_s(), self._used() - self._first_used

    @property
    def is_tracing(self) -> bool:
        """Whether the programs are attached."""
        return self._controller.is_tracing

    def strata(self) -> list[Stratum]:
        """Return the parts of the window."""
        return self._controller.strata(self._length_s)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._start_s

    def _read_clocks(self) -> Reading:
        programs_s, used_s = self._meter.spent().whole_s, self._used() - self._first_used
        spent_s = programs_s + self._meter.own_s()
        return Reading(self._elapsed_s(), spent_s, programs_s, used_s, self._events() - self._first_events)


CAUSE_NAMES, WOKEN_NAMES = CAUSE_KEY.names or (), WOKEN_KEY.names or ()
CAUSE_SUMS = SUMS
