# SPDX-License-Identifier: Apache-2.0
"""Windows with probes, one or several with the same tracer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from msgspec.structs import replace

from powerprof.database.server_report import ServerReport, merge_reports
from powerprof.energy.windows import WindowEnergy
from powerprof.measure.sampling import WindowMeter
from powerprof.measure.window import WindowPart, run_window
from powerprof.model.records import Ended, Note, Window
from powerprof.queries.join import UNKNOWN_PREPARED, is_call, join_trace
from powerprof.queries.pricing import MeasuredStatements
from powerprof.queries.records import Statement, StatementSlicing
from powerprof.queries.target import TracedServer, ask_after, ask_server
from powerprof.queries.windows import TracedWindow, name_version, note_reading
from powerprof.statistics.slices import bound_of_unseen
from powerprof.system.closeable import Closeable
from powerprof.tracing.bpf.cost_meter import CostMeter, EventCounter
from powerprof.tracing.budget import LEAST_CPUS_WITH_FIXED_COST, SHORTEST_S, Budget, base_of_cost_s
from powerprof.tracing.captures import StatementSlices, StatementTrace
from powerprof.tracing.profile import SAMPLE_HZ as STACKS_HZ
from powerprof.tracing.profile import OnCpuTracer
from powerprof.tracing.slices import UseClock
from powerprof.tracing.statement_slices import StatementSlicer
from powerprof.tracing.statements import QueryTracer


def _note_trace(
    trace: StatementTrace, known: ServerReport, server: TracedServer, statements: Sequence[Statement]
) -> list[Note]:
    """Return a note for each property of a window that could mislead a reader."""
    notes = []
    if any(is_call(statement.text) for statement in statements):
        notes.append(Note("within_call"))
    if known.may_hide_calls and (count := sum(map(_can_be_within_call, statements))):
        notes.append(Note("call_unknown", {"count": count}))
    if any(statement.text == UNKNOWN_PREPARED for statement in statements):
        notes.append(Note("prepared_before"))
    notes += note_reading(known, server, trace)
    if trace.ends_by in ("do_command", "report"):
        notes.append(Note(f"ends_by_{trace.ends_by}"))
    if not trace.is_sure:
        notes.append(Note("messages_alike"))
    return notes


def describe_slices(slices: StatementSlices, window_s: float) -> StatementSlicing:
    """Return the facts about the slices that a report prints."""
    return StatementSlicing(
        slices_count=len(slices.weights),
        traced_s=slices.traced_s,
        traced_percent=min(100.0, 100.0 * slices.traced_s / window_s) if window_s else 0.0,
        calls_by="server" if slices.is_counted_by_server else "time" if slices.whole_ns is None else "cpu",
        unseen_below_hz=bound_of_unseen(slices.traced_s),
    )


def _can_be_within_call(statement: Statement) -> bool:
    """Return whether all calls of a statement last through the window: then its text can be that of a procedure.

    Until the procedure ends, its CALL is known only from performance_schema.
    """
    calls = statement.calls_count or 0
    is_longer = calls == statement.began_before_count == statement.unfinished_count > 0
    return is_longer and not is_call(statement.text)


_RECENT_S, _TRIAL_S = 0.5, 0.5
# With fewer slices their scatter is unknown, and samples are better.
_LEAST_SLICES = 6
# Removing the probes costs half as much as placing them and reading a slice.
_REMOVAL = 1.5
# CPU time to place and remove the probes on a quiet host, until a trial has measured it.
_USUAL_SWITCH_S = 0.025
COSTLY_PERCENT = 3.0
"""Share of the server's CPU time above which samples are the better choice."""
_BUSY = 0.1  # of one CPU


class ProbeTrial(NamedTuple):
    """The result of a short trial: the server's CPU time in s, and the part that the probes used.

    `switch_s`: CPU time to place and remove the probes.
    """

    window_s: float
    server_s: float
    took_s: float
    statements_count: int
    switch_s: float = 0.0

    @property
    def percent(self) -> float:
        """The probes' share of the server's CPU time in percent."""
        return 100 * self.took_s / self.server_s if self.server_s > 0 else 0.0

    def are_slices_enough(self, max_cost: float, duration_s: float) -> bool:
        """Return whether probes within this bound show enough of a window; otherwise samples are the better choice.

        Samples see nothing of a server that hardly runs.
        """
        allowed_s = Budget(max_cost, LEAST_CPUS_WITH_FIXED_COST).allowed_s(self.server_s, self.window_s)
        if self.took_s <= allowed_s or self.server_s <= _BUSY * self.window_s:
            return True
        slice_s = self.switch_s + self.took_s / self.window_s * SHORTEST_S
        return allowed_s / self.window_s * duration_s >= _LEAST_SLICES * slice_s

    @property
    def is_costly(self) -> bool:
        """Whether samples are the better choice. Samples see nothing of a server that hardly runs."""
        return self.percent > COSTLY_PERCENT and self.server_s > _BUSY * self.window_s


class Probes(Closeable):
    """The tracer of one server; a context manager that removes it. Raises CapabilityError, PowerprofError.

    `stacks` adds samples of call stacks. With `again`, windows follow each other: the probes stay between them, and one
    report of the server is the end of one window and the start of the next.
    """

    def __init__(
        self, server: TracedServer, *, stacks: bool = False, stacks_hz: int = STACKS_HZ, again: bool = False
    ) -> None:
        self._server, self._again = server, again
        self._last: tuple[float, ServerReport] | None = None
        self._switch_s = _USUAL_SWITCH_S
        self._known = ServerReport()
        self._stack = ExitStack()
        try:
            self._tracer = self._stack.enter_context(QueryTracer(server.pid, server.family, stacks=stacks))
            self._stack_tracer: OnCpuTracer | None = None
            if stacks:
                self._stack_tracer = self._stack.enter_context(
                    OnCpuTracer(self._tracer.members.pids(), beside=self._tracer.program, frequency_hz=stacks_hz)
                )
        except BaseException:
            self._stack.close()
            raise

    def close(self) -> None:
        self._stack.close()

    def pause(self) -> None:
        """Remove the probes until the next window. They stay if a process keeps its memory map locked."""
        if self._tracer.program.is_attached:
            self._tracer.detach()

    @property
    def parts(self) -> tuple[WindowPart, ...]:
        """The parts that observe a window, for a runner."""
        return (self._tracer,) if self._stack_tracer is None else (self._tracer, self._stack_tracer)

    def ready(self) -> None:
        """Query the server and attach the probes before a window."""
        self._known = self._read_start()
        self._tracer.attach()

    def trace_window(self, duration_s: float, energy: WindowEnergy, max_cost: float | None = None) -> TracedWindow:
        """Trace one window, at most at this cost as a share of the server's CPU time; None: without a bound.

        The server is queried before and after the window, never within.
        """
        tracer, used = self._tracer, UseClock(self._server.target)
        budget = None if max_cost is None else Budget(max_cost, LEAST_CPUS_WITH_FIXED_COST)
        # Opening meters takes a while and is outside of the window.
        with (
            self._server.life() as life,
            WindowMeter(meters=energy.meters) as meter,
            EventCounter() as events,
            CostMeter(tracer.program, events.read, tracer.read_traps) as cost,
        ):
            self.ready()
            slicer = StatementSlicer(tracer, cost, used, events, budget, duration_s, self._switch_s)
            passed = run_window(duration_s, cost, used, slicer, *meter.parts, *self.parts[1:], life)
            window = meter.collect(passed)
            spent = cost.collect()
        stacks = None if self._stack_tracer is None else self._stack_tracer.collect(passed)
        is_left = (not self._again and tracer.detach()) or slicer.is_left
        traced = self._finish(slicer.collect, energy.complete(window), passed.ended)
        measured, base_s = traced.measured, base_of_cost_s(used.used_s, passed.window_s, LEAST_CPUS_WITH_FIXED_COST)
        measured = replace(
            measured,
            gap_before_s=slicer.gap_before_s,
            bpf_s=None if spent is None else spent.run_s,
            entry_s=None if spent is None else spent.entry_s,
            cost_s=None if spent is None else spent.whole_s,
            cost_percent=None if spent is None else 100 * (spent.whole_s + cost.process_s) / base_s,
            max_cost_percent=None if max_cost is None else 100 * max_cost,
            notes=[*measured.notes, *([Note("probes_left")] if is_left else [])],
        )
        return traced._replace(stacks=stacks, measured=measured)

    def finish_window(self, window: Window, *, ended: Ended | None = None) -> TracedWindow:
        """Return the trace of a finished window; `window` describes the host in it, with its energy."""
        return self._finish(lambda _: self._tracer.collect(), window, ended)

    def _finish(
        self, collect: Callable[[float | None], StatementTrace], window: Window, ended: Ended | None
    ) -> TracedWindow:
        """Return a finished window. `collect` returns its trace, from the server's own rate of statements."""
        tracer, server = self._tracer, self._server
        after = ask_after(server, ended, running=self._again)
        self._last = (time.monotonic(), after) if self._again else None
        known = merge_reports(self._known, after)
        trace = collect(known.statements_hz)
        parts = join_trace(trace, known)
        cost, sliced = trace.cost, trace.slices
        measured = MeasuredStatements(
            method="probes",
            parts=parts,
            known=known,
            window=window,
            window_s=trace.window_s,
            gap_before_s=tracer.gap_before_s,
            process_cpu_s=None if trace.process_cpu_ns is None else trace.process_cpu_ns / 1e9,
            cost_s=None if cost.bpf_s is None else cost.bpf_s + cost.trap_ns / 1e9,
            bpf_s=cost.bpf_s,
            seen_count=trace.dispatches_count,
            calls_count=sum(statement.calls_count or 0 for statement in parts.statements),
            version=name_version(tracer.dispatch.version),
            notes=_note_trace(trace, known, server, parts.statements),
            lost_count=trace.lost_count,
            unreadable_count=trace.unreadable_count,
            cut_count=trace.cut_count,
            ended=ended,
            slicing=None if sliced is None else describe_slices(sliced, trace.window_s),
        )
        return TracedWindow(measured, trace.texts, trace)

    def trial(self) -> ProbeTrial:
        """Measure the probes' CPU time in a short window."""
        tracer, began_s = self._tracer, time.process_time()
        tracer.attach()
        tracer.begin()
        time.sleep(_TRIAL_S)
        tracer.end()
        trace = tracer.collect()
        took_s = (trace.cost.bpf_s or 0.0) + trace.cost.trap_ns / 1e9
        switch_s = self._switch_s = _REMOVAL * (time.process_time() - began_s)
        return ProbeTrial(trace.window_s, (trace.process_cpu_ns or 0) / 1e9, took_s, trace.dispatches_count, switch_s)

    def _read_start(self) -> ServerReport:
        """Return the server's report at the start of a window, or the one at the end of a window just before."""
        if self._last is not None and time.monotonic() - self._last[0] < _RECENT_S:
            before = self._last[1]
        else:
            before = ask_server(self._server, running=True)
        return replace(before, running={**before.running, **self._tracer.running()})
