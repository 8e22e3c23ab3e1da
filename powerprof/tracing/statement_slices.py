# SPDX-License-Identifier: Apache-2.0
"""Trace the statements of a server in slices of a window if tracing all of it would exceed the budget (`budget.py`).

Between slices the probes are removed and the programs are detached. The kernel's clock of the server covers the whole
window, and so does the server's own counter of statements if it can be read. The statements of the slices are shares of
these totals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from powerprof.statistics.slices import SlicedCounts
from powerprof.system.errors import PowerprofError
from powerprof.system.tasks import has_ended
from powerprof.tracing.bpf.cost_meter import CostMeter, EventCounter
from powerprof.tracing.bpf.shared_numbers import COM_QUERY, COM_STMT_PREPARE
from powerprof.tracing.budget import Budget
from powerprof.tracing.captures import (
    NO_WAITS,
    RecordedText,
    StatementSlices,
    StatementTrace,
    StatementUse,
    ThreadUse,
    TraceCost,
)
from powerprof.tracing.slices import Slicer, UseClock
from powerprof.tracing.statements import QueryTracer

# The server's counter of statements is used if it grew, relative to the slices, as the server's CPU time did, within
# this factor. Otherwise it counts other things, such as each statement of a text with several.
_PLAUSIBLE = 1.5


class StatementSlicer(Slicer):
    """The part of a window that places and removes the probes. The tracer is attached when the window begins."""

    def __init__(
        self,
        tracer: QueryTracer,
        meter: CostMeter,
        used: UseClock,
        events: EventCounter,
        budget: Budget | None,
        duration_s: float,
        switch_cost_s: float,
    ) -> None:
        """Bound the cost of a window of this length; `budget` None traces all of it.

        `switch_cost_s`: the expected cost to place and remove the probes.
        """
        super().__init__(
            meter,
            used.read_s,
            events.read,
            budget or Budget(math.inf),
            duration_s,
            wake_descriptor=None,
            start_slice=self._start,
            end_slice=self._end,
            switch_cost_s=switch_cost_s,
        )
        self._tracer = tracer
        self._traces: list[StatementTrace] = []
        self._is_bounded = meter.is_driven = budget is not None
        self._is_open = False
        # Whether a helper process has to remove the probes of a slice.
        self.is_left = False

    @property
    def read_interval_s(self) -> float:
        """The time until the next look, in seconds."""
        return super().read_interval_s if self._is_bounded else math.inf

    def begin(self) -> None:
        """Begin the window."""
        self._tracer.begin(timed=False)
        # Each slice begins anew.
        self.gap_before_s = self._tracer.gap_before_s
        self._is_open = True
        self._first_ns = self._tracer.members.cpu_ns()
        super().begin()

    def end(self) -> None:
        """End the window, and the present slice."""
        self._finish()
        super().end()
        self._last_ns = self._tracer.members.cpu_ns()

    def collect(self, statements_hz: float | None) -> StatementTrace:
        """Return the trace of the window. `statements_hz`: the server's own count per second; None without one.

        Raises PowerprofError if no slice fitted into the window.
        """
        strata = self.strata()
        if len(self._traces) < len(strata):
            self._traces.append(self._tracer.collect())
        if len(strata) == 1 and self.is_tracing:
            return self._traces[0]
        used_ns = None if self._first_ns is None or self._last_ns is None else self._last_ns - self._first_ns
        lengths_s = [part.end_s - part.start_s for part in strata]
        return sum_slices(self._traces, lengths_s[: len(self._traces)], used_ns, statements_hz)

    def _start(self) -> None:
        try:
            self._tracer.attach()
        except PowerprofError:
            if has_ended(self._tracer.pid):
                return  # the window ends now
            raise
        self._tracer.begin(timed=False)
        self._is_open = True

    def _end(self) -> None:
        self._finish()
        self.is_left |= self._tracer.detach()
        self._traces.append(self._tracer.collect())
        # A sampler of call stacks meets no statement between slices.
        self._tracer.forget()

    def _finish(self) -> None:
        """End the present slice. A signal may arrive at any moment: a slice ends once."""
        if self._is_open:
            self._is_open = False
            self._tracer.end()


class _Scales(NamedTuple):
    """The whole window's part for each unit that a slice saw: of CPU time, of calls, and of anything else."""

    cpu: Sequence[float]
    calls: Sequence[float]
    time: Sequence[float]


def sum_slices(
    traces: Sequence[StatementTrace], lengths_s: Sequence[float], used_ns: int | None, statements_hz: float | None
) -> StatementTrace:
    """Return the estimate of a whole window from at least one slice. `lengths_s`: of the strata.

    `used_ns`: the server's CPU time in the window. `statements_hz`: the server's own count of statements per second.
    Both are None if they are unknown.
    """
    if not traces:
        raise PowerprofError("no statement was traced within the bound of the cost", "use --method samples")
    traced_s = [trace.window_s for trace in traces]
    lengths_s = [max(length_s, part_s) for length_s, part_s in zip(lengths_s, traced_s, strict=True)]
    weights = [length_s / part_s if part_s > 0 else 1.0 for length_s, part_s in zip(lengths_s, traced_s, strict=True)]
    texts = {text.id: text for trace in traces for text in trace.texts}
    used = [trace.process_cpu_ns or 0 for trace in traces]
    calls = [_count_statements(trace.uses, texts) for trace in traces]
    window_s = sum(lengths_s)
    counted = None if statements_hz is None else statements_hz * window_s
    used_growth, counted_growth = _growth(weights, used, used_ns), _growth(weights, calls, counted)
    is_counted = (
        counted_growth is not None
        and used_growth is not None
        and used_growth / _PLAUSIBLE <= counted_growth <= used_growth * _PLAUSIBLE
    )
    # Without the server's count, calls follow its CPU time.
    whole_calls = counted if is_counted else (used_growth or 1.0) * sum(map(float.__mul__, weights, map(float, calls)))
    scales = _Scales(
        SlicedCounts(weights, traced_s, used, used_ns).weights.tolist(),
        SlicedCounts(weights, traced_s, calls, whole_calls).weights.tolist(),
        weights,
    )
    slices = StatementSlices(
        weights=weights, lengths_s=traced_s, used_ns=used, whole_ns=used_ns, is_counted_by_server=is_counted
    )
    return replace(
        traces[0],
        window_s=window_s,
        process_cpu_ns=used_ns,
        uses=_sum_uses(traces, scales),
        texts=list(texts.values()),
        threads=_sum_threads(traces, scales),
        latencies=_sum_latencies(traces, scales),
        dispatches_count=sum(trace.dispatches_count for trace in traces),
        lost_count=sum(trace.lost_count for trace in traces),
        unreadable_count=sum(trace.unreadable_count for trace in traces),
        cut_count=sum(trace.cut_count for trace in traces),
        cost=TraceCost(bpf_s=None, trap_ns=sum(trace.cost.trap_ns for trace in traces)),
        slices=slices,
    )


def _growth(weights: Sequence[float], seen: Sequence[int], whole: float | None) -> float | None:
    """Return a whole count relative to the one that the slices let expect; None if one of them is unknown."""
    expected = sum(weight * count for weight, count in zip(weights, seen, strict=True))
    return whole / expected if whole is not None and expected > 0 else None


def _count_statements(uses: Iterable[StatementUse], texts: dict[int, RecordedText]) -> int:
    """Return the calls that a server counts as statements: no preparations and other commands."""
    return sum(
        use.calls
        for use in uses
        if use.id == COM_QUERY or ((text := texts.get(use.id)) is not None and text.command != COM_STMT_PREPARE)
    )


def _sum_uses(traces: Sequence[StatementTrace], scales: _Scales) -> list[StatementUse]:
    """Return one use of each statement by each thread.

    A call that a slice saw in part counts half: other slices can see its other part. A call that lasted longer than its
    slices is one call that began before the window and has not ended.
    """
    groups: dict[tuple[int, int], list[tuple[int, StatementUse]]] = {}
    for number, trace in enumerate(traces):
        for use in trace.uses:
            groups.setdefault((use.id, use.tid), []).append((number, use))
    return [_sum_use(id, tid, parts, scales) for (id, tid), parts in groups.items()]


def _sum_use(id: int, tid: int, parts: Sequence[tuple[int, StatementUse]], scales: _Scales) -> StatementUse:
    calls = whole_calls = squares = 0.0
    waits_ns = [0.0] * len(NO_WAITS)
    by_slice: dict[int, int] = {}
    for number, use in parts:
        scale = scales.calls[number]
        by_slice[number] = by_slice.get(number, 0) + use.cpu_ns
        edges = (use.calls if use.began_before else 0) + use.open_count
        calls += scale * (use.calls - edges / 2)
        if not edges:
            whole_calls += scale * use.calls
            squares += scale * use.squares
            waits_ns = [was + scale * now for was, now in zip(waits_ns, use.waits_ns, strict=True)]
    to_all = calls / whole_calls if whole_calls else 0.0
    is_long = not calls and any(use.calls for _, use in parts)
    return StatementUse(
        id,
        tid,
        1 if is_long else max(round(calls), int(calls > 0)),
        round(sum(scales.cpu[number] * use.cpu_ns for number, use in parts)),
        round(sum(scales.time[number] * use.wall_ns for number, use in parts)),
        round(sum(scales.calls[number] * use.wakeups for number, use in parts)),
        round(sum(scales.calls[number] * use.faults for number, use in parts)),
        open_count=int(is_long),
        waits_ns=tuple(round(to_all * wait_ns) for wait_ns in waits_ns),
        squares=round(to_all * squares),
        began_before=is_long,
        by_slice=tuple(sorted(by_slice.items())),
    )


def _sum_threads(traces: Sequence[StatementTrace], scales: _Scales) -> list[ThreadUse]:
    """Return one use of each thread, and the sums of ended threads."""
    groups: dict[tuple[int, str, bool, bool], list[tuple[int, ThreadUse]]] = {}
    for number, trace in enumerate(traces):
        for thread in trace.threads:
            # Ended threads are sums: of those without a statement, with statements, and of helpers.
            has_work = thread.tid > 0 or thread.statements > 0
            which = thread.tid, "" if thread.tid else thread.comm, not thread.tid and thread.is_helper, has_work
            groups.setdefault(which, []).append((number, thread))
    return [_sum_thread(parts, scales) for parts in groups.values()]


def _sum_thread(parts: Sequence[tuple[int, ThreadUse]], scales: _Scales) -> ThreadUse:
    _, first = parts[0]
    count = 1 if first.tid else round(sum(scales.time[number] * thread.count for number, thread in parts))
    return replace(
        first,
        comm=parts[-1][1].comm,
        cpu_ns=round(sum(scales.cpu[number] * thread.cpu_ns for number, thread in parts)),
        wakeups=round(sum(scales.time[number] * thread.wakeups for number, thread in parts)),
        statements=round(sum(scales.calls[number] * thread.statements for number, thread in parts)),
        before_ns=first.before_ns,
        count=count,
        open=max(thread.open for _, thread in parts),
    )


def _sum_latencies(traces: Sequence[StatementTrace], scales: _Scales) -> dict[int, dict[int, float]]:
    """Return the calls by identity and class of time."""
    summed: dict[int, dict[int, float]] = {}
    for number, trace in enumerate(traces):
        for id, classes in trace.latencies.items():
            whole = summed.setdefault(id, {})
            for bucket, count in classes.items():
                whole[bucket] = whole.get(bucket, 0.0) + scales.calls[number] * count
    return summed
