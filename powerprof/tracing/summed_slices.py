# SPDX-License-Identifier: Apache-2.0
"""Trace sums of calls or sleeps in slices of a window if tracing all of it would exceed the budget (`budget.py`).

Between slices the programs are detached. Each slice is a window of its tracer. The sums of the whole window are those
of the slices, each times the length of its stratum.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from powerprof.measure.window import PassedWindow, WindowPart, run_window
from powerprof.model.records import CostBound
from powerprof.statistics.slices import SlicedCounts, bound_of_unseen
from powerprof.system.targets import Target
from powerprof.tracing.bpf.cost_meter import CostMeter
from powerprof.tracing.budget import LEAST_CPUS_WITH_FIXED_COST, Budget, base_of_cost_s
from powerprof.tracing.captures import FunctionTrace, OffCpuTrace, SyscallTrace
from powerprof.tracing.slices import Slicer, UseClock

T = TypeVar("T", OffCpuTrace, SyscallTrace, FunctionTrace)
C_co = TypeVar("C_co", covariant=True)
R = TypeVar("R", bound=msgspec.Struct)
# A second of the target's CPU time counts as this many events: tracing calls costs in proportion to this time.
_EVENTS_OF_CPU_S = 1e5
_INSTANT_S = 2e-3


class SumsTracer(Protocol[C_co]):
    """A tracer whose windows can follow each other."""

    @property
    def read_interval_s(self) -> float: ...

    def open(self) -> None: ...

    def begin(self) -> None: ...

    def read(self) -> None: ...

    def end(self) -> None: ...

    def collect(self, passed: PassedWindow) -> C_co: ...

    def meter(self, events: Callable[[], float]) -> CostMeter:
        """Return the meter of the tracer's cost. `events` returns a number that grows as the traced events do."""
        ...


class TraceSlicer(Slicer, Generic[T]):
    """The part of a window that traces slices, or all of it while that costs less than the budget."""

    def __init__(
        self, tracer: SumsTracer[T], meter: CostMeter, used: UseClock, budget: Budget | None, duration_s: float
    ) -> None:
        super().__init__(
            meter,
            used.read_s,
            lambda: _EVENTS_OF_CPU_S * used.read_s(),
            budget or Budget(math.inf),
            duration_s,
            wake_descriptor=None,
            start_slice=self._start,
            end_slice=self._end,
        )
        self._tracer: SumsTracer[T] = tracer
        self.traces: list[T] = []
        self._is_open, self._is_bounded = False, budget is not None

    @property
    def read_interval_s(self) -> float:
        """The time until the next look, in seconds."""
        look_s = super().read_interval_s if self._is_bounded else math.inf
        return min(look_s, self._tracer.read_interval_s if self._is_open else math.inf)

    def open(self) -> None:
        """Acquire everything that needs a privilege."""
        self._tracer.open()

    def begin(self) -> None:
        """Begin the window, and its first slice."""
        self._begin_slice()
        super().begin()

    def read(self) -> None:
        """Let the tracer save its data, and look at the cost when it is time."""
        if self._is_open:
            self._tracer.read()
        if self._is_bounded and super().read_interval_s <= _INSTANT_S:
            super().read()

    def end(self) -> None:
        """End the window, and the present slice."""
        self._finish()
        super().end()

    def collect(self, passed: PassedWindow) -> tuple[T, CostBound]:
        """Return the trace of the window, estimated if only slices were traced, and the facts about its cost."""
        strata = self.strata()
        if len(self.traces) < len(strata):
            is_whole = len(strata) == 1 and self.is_tracing
            self.traces.append(self._tracer.collect(passed if is_whole else self._pass_slice()))
        traces, lengths_s = self.traces, [part.end_s - part.start_s for part in strata]
        scale = SliceScale([part.weight for part in strata], [trace.window_s for trace in traces])
        bound = CostBound(max_cost_percent=100.0 * self._budget.share if self._is_bounded else None)
        if len(traces) > 1 or not self.is_tracing:
            bound = replace(
                bound,
                slices_count=len(traces),
                traced_percent=min(100.0, 100.0 * scale.traced_s / max(sum(lengths_s), 1e-9)),
                unseen_below_hz=bound_of_unseen(scale.traced_s),
            )
        if not bound.slices_count:
            return traces[0], bound
        return _merge(traces, scale, passed), bound

    def _begin_slice(self) -> None:
        self._began_s = time.monotonic()
        self._tracer.begin()
        self._is_open = True

    def _start(self) -> None:
        self._tracer.open()
        self._begin_slice()

    def _end(self) -> None:
        self._finish()
        self.traces.append(self._tracer.collect(self._pass_slice()))

    def _finish(self) -> None:
        """End the present slice. A signal may arrive at any moment: a slice ends once."""
        if self._is_open:
            self._is_open = False
            self._tracer.end()
            self._ended_s = time.monotonic()

    def _pass_slice(self) -> PassedWindow:
        return PassedWindow(max(self._ended_s - self._began_s, 1e-6), 0.0, 0, [])


class SliceScale:
    """The scale of sums over slices."""

    def __init__(self, weights: Sequence[float], lengths_s: Sequence[float]) -> None:
        self.weights, self.traced_s = list(weights), sum(lengths_s)
        # No other counter knows the whole window.
        self._estimates = SlicedCounts(weights, lengths_s, [0] * len(weights), None)

    def merge(
        self,
        parts: Sequence[Sequence[R]],
        key: Sequence[str],
        sums: Sequence[str],
        largest: Sequence[str] = (),
        count: str | None = None,
    ) -> list[R]:
        """Return one row per key of all slices: `sums` are scaled, of `largest` the largest remains.

        `count`: the field whose 95 % interval becomes `low_count` and `high_count`.
        """
        groups: dict[tuple[Any, ...], list[tuple[int, R]]] = {}
        for number, rows in enumerate(parts):
            for row in rows:
                groups.setdefault(tuple(getattr(row, name) for name in key), []).append((number, row))
        merged = []
        for rows_of_key in groups.values():
            values: dict[str, Any] = {}
            for name in sums:
                known = [(number, getattr(row, name)) for number, row in rows_of_key]
                has_all = all(value is not None for _, value in known)
                values[name] = round(sum(self.weights[number] * value for number, value in known)) if has_all else None
            values |= {name: max(getattr(row, name) for _, row in rows_of_key) for name in largest}
            if count is not None:
                values |= self.interval([(number, getattr(row, count)) for number, row in rows_of_key])
            merged.append(replace(rows_of_key[0][1], **values))
        return merged

    def interval(self, counts: Sequence[tuple[int, int]]) -> dict[str, float]:
        """Return the interval of a count from its numbers in slices."""
        seen = [0.0] * len(self.weights)
        for number, count in counts:
            seen[number] += count
        estimate = self._estimates.estimate(seen)
        return {"low_count": estimate.low, "high_count": estimate.high}


def _merge(traces: Sequence[T], scale: SliceScale, passed: PassedWindow) -> T:
    first = traces[0]
    common = {
        "window_s": passed.window_s,
        "ended": passed.ended,
        "tool_cpu_s": passed.tool_cpu_s,
        "notes": list(dict.fromkeys([*passed.notes, *(note for trace in traces for note in trace.notes)])),
        "lost_count": sum(trace.lost_count for trace in traces),
    }
    merge: Callable[[Any, SliceScale], dict[str, Any]] = _MERGES[type(first)]
    return replace(first, **common, **merge(traces, scale))


def _merge_sleeps(traces: Sequence[OffCpuTrace], scale: SliceScale) -> dict[str, Any]:
    threads = scale.merge(
        [trace.threads for trace in traces],
        ("pid", "tid"),
        ("waits_count", "wait_ns", "preempted_count", "preempted_ns"),
        ("sleep_max_ns", "wait_max_ns"),
    )
    states: dict[tuple[int, int], dict[str, list[float]]] = {}
    counts: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number, trace in enumerate(traces):
        for row in trace.threads:
            counts.setdefault((row.pid, row.tid), []).append((number, sum(count for count, _ in row.states.values())))
            for name, (count, ns) in row.states.items():
                state = states.setdefault((row.pid, row.tid), {}).setdefault(name, [0.0, 0.0])
                state[0] += scale.weights[number] * count
                state[1] += scale.weights[number] * ns
    return {
        "threads": [
            replace(
                row,
                states={
                    name: (round(count), round(ns)) for name, (count, ns) in states.get((row.pid, row.tid), {}).items()
                },
                **scale.interval(counts[row.pid, row.tid]),
            )
            for row in threads
        ],
        "wakings": scale.merge(
            [trace.wakings for trace in traces], ("tid", "waker_pid", "waker_tid"), ("count",), count="count"
        ),
        "pids": list(dict.fromkeys(pid for trace in traces for pid in trace.pids)),
        "unseen_count": sum(trace.unseen_count for trace in traces),
    }


def _merge_calls(traces: Sequence[SyscallTrace], scale: SliceScale) -> dict[str, Any]:
    uses = ("reads_count", "read_bytes", "writes_count", "write_bytes", "syncs_count", "sync_ns")
    return {
        "calls": scale.merge(
            [trace.calls for trace in traces],
            ("pid", "tid", "name", "operation"),
            ("count", "errors_count", "ns"),
            ("longest_ns",),
            "count",
        ),
        "files": scale.merge([trace.files for trace in traces], ("pid", "tid", "path", "mode"), uses),
        "waiting": traces[-1].waiting,
        "exited_names": {tid: name for trace in traces for tid, name in trace.exited_names.items()},
        "pids": list(dict.fromkeys(pid for trace in traces for pid in trace.pids)),
        "parts_count": sum(trace.parts_count for trace in traces),
    }


def _merge_functions(traces: Sequence[FunctionTrace], scale: SliceScale) -> dict[str, Any]:
    sums = ("calls", "returns", "abandoned", "wall_ns", "cpu_ns", "self_wall_ns", "self_cpu_ns")
    return {
        "functions": scale.merge(
            [trace.functions for trace in traces],
            ("name", "module", "vaddr"),
            (*sums, "children", "stepped_children", "unfinished"),
            count="calls",
        ),
        "hits_count": sum(trace.hits_count for trace in traces),
        "unmatched_count": sum(trace.unmatched_count for trace in traces),
        "too_deep_count": sum(trace.too_deep_count for trace in traces),
    }


_MERGES: dict[type, Callable[[Any, SliceScale], dict[str, Any]]] = {
    OffCpuTrace: _merge_sleeps,
    SyscallTrace: _merge_calls,
    FunctionTrace: _merge_functions,
}


def measure_bounded(
    tracer: SumsTracer[T],
    target: Target,
    share: float | None,
    duration_s: float,
    *parts: WindowPart,
    settle: bool = False,
) -> tuple[T, CostBound]:
    """Measure for `duration_s`, at most at this cost as a share of the target's CPU time; None: without a bound.

    `settle`: give up root's privileges once nothing is left to open.
    """
    used = UseClock(target)
    meter = tracer.meter(lambda: _EVENTS_OF_CPU_S * used.read_s())
    with meter:
        slicer = TraceSlicer(
            tracer, meter, used, None if share is None else Budget(share, LEAST_CPUS_WITH_FIXED_COST), duration_s
        )
        passed = run_window(duration_s, meter, used, slicer, *parts, settle=settle)
        spent = meter.collect()
        trace, bound = slicer.collect(passed)
    programs_s = None if spent is None else spent.whole_s
    if isinstance(trace, FunctionTrace):
        # The meter takes each call for one of the most expensive kind.
        programs_s = sum(_probes_s(part) for part in slicer.traces if isinstance(part, FunctionTrace))
        trace = replace(trace, process_cpu_s=used.used_s) if bound.slices_count else trace
    if programs_s is None:
        return trace, bound
    cost_percent = (
        100.0
        * (programs_s + meter.process_s)
        / base_of_cost_s(used.used_s, passed.window_s, LEAST_CPUS_WITH_FIXED_COST)
    )
    return trace, replace(bound, cost_percent=cost_percent, programs_s=programs_s)


def _probes_s(trace: FunctionTrace) -> float:
    """Return the CPU time of the probes of traced calls, in seconds."""
    costs = {False: trace.cost, True: trace.stepped_cost}
    each = {is_stepped: 0.0 if cost is None else cost.call_ns / 1e9 for is_stepped, cost in costs.items()}
    return sum(function.calls * each[function.stepped] for function in trace.functions)
