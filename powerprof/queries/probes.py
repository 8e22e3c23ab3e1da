# SPDX-License-Identifier: Apache-2.0
"""Windows with probes, one or several with the same tracer."""

from __future__ import annotations

import time
from collections.abc import Sequence
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
from powerprof.queries.records import Statement
from powerprof.queries.target import TracedServer, ask_after, ask_server
from powerprof.queries.windows import TracedWindow, name_version, note_reading
from powerprof.system.closeable import Closeable
from powerprof.tracing.captures import StatementTrace
from powerprof.tracing.profile import SAMPLE_HZ as STACKS_HZ
from powerprof.tracing.profile import OnCpuTracer
from powerprof.tracing.statements import QueryTracer


def _note_trace(
    trace: StatementTrace, known: ServerReport, server: TracedServer, statements: Sequence[Statement]
) -> list[Note]:
    """Return a note for each property of a window that could mislead a reader."""
    notes = []
    if any(is_call(statement.text) for statement in statements):
        notes.append(Note("within_call"))
    if any(statement.text == UNKNOWN_PREPARED for statement in statements):
        notes.append(Note("prepared_before"))
    notes += note_reading(known, server, trace)
    if trace.ends_by in ("do_command", "report"):
        notes.append(Note(f"ends_by_{trace.ends_by}"))
    if not trace.is_sure:
        notes.append(Note("messages_alike"))
    return notes


_RECENT_S, _TRIAL_S = 0.5, 0.5
COSTLY_PERCENT = 3.0
"""Share of the server's CPU time above which samples are the better choice."""
_BUSY = 0.1  # of one CPU


class ProbeTrial(NamedTuple):
    """The result of a short trial: the server's CPU time in s, and the part that the probes used."""

    window_s: float
    server_s: float
    took_s: float
    statements_count: int

    @property
    def percent(self) -> float:
        """The probes' share of the server's CPU time in percent."""
        return 100 * self.took_s / self.server_s if self.server_s > 0 else 0.0

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

    @property
    def parts(self) -> tuple[WindowPart, ...]:
        """The parts that observe a window, for a runner."""
        return (self._tracer,) if self._stack_tracer is None else (self._tracer, self._stack_tracer)

    def ready(self) -> None:
        """Query the server and attach the probes before a window."""
        self._known = self._read_start()
        self._tracer.attach()

    def trace_window(self, duration_s: float, energy: WindowEnergy) -> TracedWindow:
        """Trace one window. The server is queried before and after it, never within."""
        # Opening meters takes a while and is outside of the window.
        with self._server.life() as life, WindowMeter(meters=energy.meters) as meter:
            self.ready()
            passed = run_window(duration_s, self._tracer, *meter.parts, *self.parts[1:], life)
            window = meter.collect(passed)
        stacks = None if self._stack_tracer is None else self._stack_tracer.collect(passed)
        is_left = not self._again and self._tracer.detach()
        traced = self.finish_window(energy.complete(window), ended=passed.ended)
        notes = [*traced.measured.notes, *([Note("probes_left")] if is_left else [])]
        return traced._replace(stacks=stacks, measured=replace(traced.measured, notes=notes))

    def finish_window(self, window: Window, *, ended: Ended | None = None) -> TracedWindow:
        """Return the trace of a finished window; `window` describes the host in it, with its energy."""
        tracer, server = self._tracer, self._server
        trace = tracer.collect()
        after = ask_after(server, ended, running=self._again)
        self._last = (time.monotonic(), after) if self._again else None
        known = merge_reports(self._known, after)
        parts = join_trace(trace, known)
        cost = trace.cost
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
        )
        return TracedWindow(measured, trace.texts, trace)

    def trial(self) -> ProbeTrial:
        """Measure the probes' CPU time in a short window."""
        tracer = self._tracer
        tracer.attach()
        tracer.begin()
        time.sleep(_TRIAL_S)
        tracer.end()
        trace = tracer.collect()
        took_s = (trace.cost.bpf_s or 0.0) + trace.cost.trap_ns / 1e9
        return ProbeTrial(trace.window_s, (trace.process_cpu_ns or 0) / 1e9, took_s, trace.dispatches_count)

    def _read_start(self) -> ServerReport:
        """Return the server's report at the start of a window, or the one at the end of a window just before."""
        if self._last is not None and time.monotonic() - self._last[0] < _RECENT_S:
            before = self._last[1]
        else:
            before = ask_server(self._server, running=True)
        return replace(before, running={**before.running, **self._tracer.running()})
