# SPDX-License-Identifier: Apache-2.0
"""Windows with probes, one or several with the same tracer, and the notes on a window."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from powerprof.database import performance
from powerprof.database.performance import Account, ServerReport, merge_reports
from powerprof.energy.windows import WindowEnergy
from powerprof.measure.sampling import WindowMeter
from powerprof.measure.window import WindowPart, run_window
from powerprof.model.identities import Family
from powerprof.model.records import Note, Window
from powerprof.model.statements import NormalText, make_key
from powerprof.queries.join import (
    UNKNOWN_PREPARED,
    Parts,
    StatementNames,
    is_connection_name,
    is_own_statement,
    join_trace,
    make_row_id,
    rank_askers,
)
from powerprof.queries.pricing import MeasuredStatements
from powerprof.queries.records import Background, Share, Statement
from powerprof.queries.target import ServerTime, TracedServer, ask_server
from powerprof.statistics.intervals import proportion
from powerprof.system.closeable import Closeable
from powerprof.system.server_roles import parse_database
from powerprof.tracing.captures import OnCpuCapture, RecordedText, StatementTrace, estimate_cpu_time
from powerprof.tracing.profile import SAMPLE_HZ as STACKS_HZ
from powerprof.tracing.profile import OnCpuTracer
from powerprof.tracing.statement_tables import MOST_TEXT_BYTES
from powerprof.tracing.statements import (
    SAMPLE_HZ,
    MomentSampler,
    QueryTracer,
    SampledThread,
    ServerProcesses,
    StatementSamples,
)

_CALL = re.compile(r"\s*CALL\b", re.IGNORECASE)


def _note_trace(
    trace: StatementTrace, known: ServerReport, server: TracedServer, statements: Sequence[Statement]
) -> list[Note]:
    """Return a note for each property of a window that could mislead a reader."""
    notes = []
    if any(_CALL.match(statement.text) for statement in statements):
        notes.append(Note("within_call"))
    if any(statement.text == UNKNOWN_PREPARED for statement in statements):
        notes.append(Note("prepared_before"))
    notes.append(_note_server(known, server))
    notes += _note_digests(known)
    notes += _note_texts(trace.cut_count, trace.unreadable_count, trace.lost_count)
    if trace.ends_by in ("do_command", "report"):
        notes.append(Note(f"ends_by_{trace.ends_by}"))
    if not trace.is_sure:
        notes.append(Note("messages_alike"))
    return notes


def _note_calls(known: ServerReport, server: TracedServer) -> Note:
    """Return the origin of the calls of sampled statements, or the reason why they are unknown."""
    if known.digests or known.statistics:
        return Note("samples_count_calls")
    if server.family == "postgresql":
        return Note("samples_without_statistics")
    return Note("samples_without_calls" if server.login is None else "samples_without_digests")


def _note_digests(known: ServerReport) -> list[Note]:
    """Return a note on calls that performance_schema had no room for."""
    return [Note("digests_lost", {"count": known.lost_digests_count})] if known.lost_digests_count else []


def note_samples(
    moments: StatementSamples, count: int, known: ServerReport, server: TracedServer, cpu_s: float
) -> list[Note]:
    """Return the notes on a window of samples of a server that ran for `cpu_s`."""
    sampled = estimate_cpu_time(count, 1e3 / SAMPLE_HZ, moments.sampled_ms)
    return [
        *moments.notes,
        *sampled.compare_with_clock(1e3 * cpu_s if moments.sampled_ms else None),
        Note("shares_of_samples", {"count": count, "hz": SAMPLE_HZ}),
        _note_calls(known, server),
        _note_server(known, server),
        *_note_digests(known),
        *_note_texts(moments.cut_count, moments.unreadable_count, moments.lost_count),
    ]


def _note_server(known: ServerReport, server: TracedServer) -> Note:
    if server.family == "postgresql":
        return Note("postgresql_counted" if known.statistics else "postgresql_not_asked")
    if server.login is None:
        return Note("no_login")
    return Note("rows_counted" if known.has_digests else "rows_unknown")


def _note_texts(cut_count: int, unreadable_count: int, lost_count: int) -> list[Note]:
    notes = []
    if cut_count:
        notes.append(Note("texts_cut", {"count": cut_count, "bytes": MOST_TEXT_BYTES}))
    if unreadable_count:
        notes.append(Note("texts_unreadable", {"count": unreadable_count}))
    if lost_count:
        notes.append(Note("table_full", {"count": lost_count}))
    return notes


_RECENT_S, _TRIAL_S = 0.5, 0.5
COSTLY_PERCENT = 3.0
"""Share of the server's CPU time above which samples are the better choice."""
_BUSY = 0.1  # of one CPU


def _name_version(number: str | None) -> str | None:
    """Return the version that the program of PostgreSQL shows, in the form of a version that a server reports."""
    return None if number is None else f"PostgreSQL {number}"


class TracedWindow(NamedTuple):
    """A window with the texts of clients. With probes it has the trace, and samples of stacks on request."""

    measured: MeasuredStatements
    texts: Sequence[RecordedText] = ()
    trace: StatementTrace | None = None
    stacks: OnCpuCapture | None = None


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
        self.ready()
        # Opening meters takes a while and is outside of the window.
        with WindowMeter(meters=energy.meters) as meter:
            passed = run_window(duration_s, self._tracer, *meter.parts, *self.parts[1:])
            window = meter.collect(passed)
        stacks = None if self._stack_tracer is None else self._stack_tracer.collect(passed)
        is_left = not self._again and self._tracer.detach()
        traced = self.finish_window(energy.complete(window), interrupted=passed.interrupted is not None)
        notes = [*traced.measured.notes, *([Note("probes_left")] if is_left else [])]
        return traced._replace(stacks=stacks, measured=replace(traced.measured, notes=notes))

    def finish_window(self, window: Window, *, interrupted: bool = False) -> TracedWindow:
        """Return the trace of a finished window; `window` describes the host in it, with its energy."""
        tracer, server = self._tracer, self._server
        trace = tracer.collect()
        after = ask_server(server, running=self._again)
        self._last = (time.monotonic(), after) if self._again else None
        known = performance.merge_reports(self._known, after)
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
            version=_name_version(tracer.dispatch.version),
            notes=_note_trace(trace, known, server, parts.statements),
            lost_count=trace.lost_count,
            unreadable_count=trace.unreadable_count,
            cut_count=trace.cut_count,
            interrupted=interrupted,
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


# Windows with samples: the statement of each thread, from its text in the server's memory.

_ENDED = "ended processes"


class SampleCounts(msgspec.Struct):
    """Numbers of samples by statement, background thread and account."""

    family: Family = "mysql"
    several: set[tuple[str, str | None]] = msgspec.field(default_factory=set)
    statements: Counter[tuple[str, str | None]] = msgspec.field(default_factory=Counter)
    texts: dict[tuple[str, str | None], NormalText] = msgspec.field(default_factory=dict)
    background: Counter[str] = msgspec.field(default_factory=Counter)
    threads: dict[str, set[int]] = msgspec.field(default_factory=lambda: defaultdict(set))
    askers: dict[tuple[str, str | None], Counter[Account | None]] = msgspec.field(
        default_factory=lambda: defaultdict(Counter)
    )
    connections: int = 0
    _keys: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def total(self) -> int:
        """All samples."""
        return self.clients + self.background.total()

    @property
    def clients(self) -> int:
        """Samples of threads of clients."""
        return self.statements.total() + self.connections

    def add_statement(
        self,
        text: NormalText,
        schema: str | None,
        count: int,
        *,
        account: Account | None = None,
        may_be_several: bool = False,
    ) -> None:
        """Count samples of a thread that executes a statement for this account."""
        if text not in self._keys:
            self._keys[text] = make_key(text, self.family)
        which = self._keys[text], schema
        self.statements[which] += count
        self.texts.setdefault(which, text)
        self.askers[which][account] += count
        if may_be_several:
            self.several.add(which)

    def add_background(self, name: str, tid: int, count: int) -> None:
        """Count samples of a thread that executes no client's statement."""
        self.background[name] += count
        self.threads[name].add(tid)


def _parts_of(
    counts: SampleCounts, names: StatementNames, cpu_s: float, window_s: float, connections_count: int
) -> Parts:
    """Return the parts of a server's CPU time with the interval of each share. Each sample stands for an equal part."""
    total, inside = counts.total, counts.clients

    def part_s(count: int) -> float:
        return cpu_s * (count / total) if total else 0.0

    def percent(count: int) -> float | None:
        return 100 * count / total if total else None

    statements = []
    for (name, schema), count in counts.statements.items():
        share = proportion(count, inside, of=total)
        statement = Statement(
            text=counts.texts[name, schema],
            id=make_row_id(name, schema),
            schema_name=schema,
            may_be_several=(name, schema) in counts.several,
            c0_s=part_s(count),
            c0_percent=share.percent,
            low_percent=share.low_percent,
            high_percent=share.high_percent,
            askers=rank_askers({account: (part_s(met), None) for account, met in counts.askers[name, schema].items()}),
        )
        if made := names.calls_of(name, schema):
            statement = msgspec.structs.replace(
                statement, calls_count=made, calls_hz=made / window_s, c0_ms_per_call=1e3 * statement.c0_s / made
            )
        statements.append(statement)
    background = [
        Background(thread=name, threads_count=len(counts.threads[name]), c0_s=part_s(count), c0_percent=percent(count))
        for name, count in counts.background.items()
    ]
    return Parts(
        statements=sorted(statements, key=lambda statement: (-statement.c0_s, statement.text)),
        background=sorted(background, key=lambda background: (-background.c0_s, background.thread)),
        connections=Share(c0_s=part_s(counts.connections), c0_percent=percent(counts.connections)),
        connections_count=connections_count,
    )


def join_moments(moments: StatementSamples, known: ServerReport, cpu_s: float, window_s: float) -> tuple[Parts, int]:
    """Return the parts and the number of samples."""
    family = moments.family
    names = StatementNames(moments.texts, family, ((met.id, met.tid) for met in moments.met), known, joined=True)
    clients = {met.tid for met in moments.met if _is_client(met, known, family)}
    counts = SampleCounts(family)
    several = {text.id for text in moments.texts if text.may_be_several}
    # A parallel worker has no text in its memory before and after the statement that it works for.
    workers = {met.tid: met.id for met in moments.met if met.id and met.tid not in clients}
    for met in moments.met:
        id = met.id or (workers.get(met.tid, 0) if family == "postgresql" else 0)
        # Background threads of MariaDB and MySQL execute statements too, such as those of a replica.
        if id and (met.tid in clients or family == "postgresql"):
            who = known.accounts.get(met.tid)
            is_several = id in several
            counts.add_statement(*names.name(id, met.tid), met.count, account=who, may_be_several=is_several)
        elif met.tid in clients:
            counts.connections += met.count
        else:
            name = known.threads.get(met.tid) or (_ENDED if family == "postgresql" else met.comm)
            counts.add_background(name, met.tid, met.count)
    return _parts_of(counts, names, cpu_s, window_s, len(clients)), counts.total


def _is_client(met: SampledThread, known: ServerReport, family: Family) -> bool:
    name = known.threads.get(met.tid)
    if family == "postgresql":
        return met.is_client or (name is not None and parse_database(name) is not None)
    # A thread without a name has ended, or no names are known. Only clients' threads have statements then.
    return is_connection_name(name) if name is not None else bool(met.id or known.threads)


def _count_all_calls(known: ServerReport) -> int | None:
    """Return the server's own number of calls of all statements but powerprof's; None if it counts none.

    A server that counts has counted powerprof's, so that no count at all is no zero.
    """
    if not (known.digests or known.statistics):
        return None
    digests = sum(count for (_, text), (count, *_) in known.digests.items() if not is_own_statement(text))
    return digests + known.lost_digests_count + sum(counts.calls for counts in known.statistics.values())


class Samples(Closeable):
    """The sampler of one server; a context manager that removes it. Raises CapabilityError, PowerprofError."""

    def __init__(self, server: TracedServer) -> None:
        self._server = server
        self._sampler = MomentSampler(server.pid, server.family)
        members = ServerProcesses(server.pid, is_family=server.family == "postgresql")
        self._used = ServerTime(server.label, members.cpu_ns)
        self._known = ServerReport()

    def close(self) -> None:
        self._sampler.close()

    @property
    def parts(self) -> tuple[WindowPart, ...]:
        """The parts that observe a window, for a runner."""
        return self._used, self._sampler

    def ready(self) -> None:
        """Query the server before a window."""
        self._known = ask_server(self._server, running=False)

    def trace_window(self, duration_s: float, energy: WindowEnergy) -> TracedWindow:
        """Sample one window. The server is queried before and after it, never within.

        Raises PowerprofError if the server has ended.
        """
        self.ready()
        with WindowMeter(meters=energy.meters) as meter:
            passed = run_window(duration_s, *self.parts, *meter.parts)
            window = meter.collect(passed)
        return self.finish_window(energy.complete(window), interrupted=passed.interrupted is not None)

    def finish_window(self, window: Window, *, interrupted: bool = False) -> TracedWindow:
        """Return the samples of a finished window; `window` describes the host in it, with its energy.

        Raises PowerprofError if the server has ended.
        """
        server = self._server
        cpu_s, window_s = self._used.collect()
        moments = self._sampler.collect()
        known = merge_reports(self._known, ask_server(server, running=False))
        parts, count = join_moments(moments, known, cpu_s, window_s)
        measured = MeasuredStatements(
            method="samples",
            parts=parts,
            known=known,
            window=window,
            window_s=window_s,
            process_cpu_s=cpu_s,
            cost_s=moments.cost_s,
            bpf_s=moments.bpf_s,
            seen_count=0,
            calls_count=_count_all_calls(known),
            version=_name_version(self._sampler.version),
            notes=note_samples(moments, count, known, server, cpu_s),
            lost_count=moments.lost_count,
            unreadable_count=moments.unreadable_count,
            cut_count=moments.cut_count,
            interrupted=interrupted,
        )
        return TracedWindow(measured, moments.texts)
