# SPDX-License-Identifier: Apache-2.0
"""Windows with samples: the statement of each thread, from its text in the server's memory."""

from __future__ import annotations

from collections import Counter, defaultdict

import msgspec

from powerprof.database.server_report import Account, ServerReport, merge_reports
from powerprof.energy.windows import WindowEnergy
from powerprof.measure.sampling import WindowMeter
from powerprof.measure.window import WindowPart, run_window
from powerprof.model.identities import Family
from powerprof.model.records import Ended, Note, Window
from powerprof.model.statements import NormalText, make_key
from powerprof.queries.askers import rank_askers
from powerprof.queries.join import Parts, StatementNames, is_connection_name, is_own_statement, make_row_id
from powerprof.queries.pricing import MeasuredStatements
from powerprof.queries.records import Background, Share, Statement
from powerprof.queries.target import ServerTime, TracedServer, ask_after, ask_server
from powerprof.queries.windows import TracedWindow, name_version, note_reading
from powerprof.statistics.counts import proportion
from powerprof.system.closeable import Closeable
from powerprof.system.server_roles import ENDED_PROCESSES, parse_database
from powerprof.tracing.captures import estimate_cpu_time
from powerprof.tracing.server_processes import ServerProcesses
from powerprof.tracing.statement_samples import SAMPLE_HZ, MomentSampler, SampledThread, StatementSamples


def _note_calls(known: ServerReport, server: TracedServer) -> Note:
    """Return the origin of the calls of sampled statements, or the reason why they are unknown."""
    if known.digests or known.statistics:
        return Note("samples_count_calls")
    if server.family == "postgresql":
        return Note("samples_without_statistics")
    return Note("samples_without_calls" if server.login is None else "samples_without_digests")


def note_samples(
    moments: StatementSamples, count: int, known: ServerReport, server: TracedServer, cpu_s: float | None
) -> list[Note]:
    """Return the notes on a window of samples of a server that ran for `cpu_s`; None is unknown."""
    sampled = estimate_cpu_time(count, 1e3 / SAMPLE_HZ, moments.sampled_ms)
    return [
        *moments.notes,
        *sampled.compare_with_clock(1e3 * cpu_s if moments.sampled_ms and cpu_s is not None else None),
        Note("shares_of_samples", {"count": count, "hz": SAMPLE_HZ}),
        _note_calls(known, server),
        *note_reading(known, server, moments),
    ]


class SampleCounts(msgspec.Struct):
    """Numbers of samples by statement, background thread and account.

    `between` has the samples without a text of the threads that executed a statement, by statement and thread.
    """

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
    between: dict[tuple[str, str | None], dict[int, int]] = msgspec.field(default_factory=lambda: defaultdict(dict))
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
        between: tuple[int, int] | None = None,
    ) -> None:
        """Count samples of a thread that executes a statement for this account.

        `between` is the thread with its samples without a text, any of which may belong to this statement.
        """
        if text not in self._keys:
            self._keys[text] = make_key(text, self.family)
        which = self._keys[text], schema
        self.statements[which] += count
        self.texts.setdefault(which, text)
        self.askers[which][account] += count
        if may_be_several:
            self.several.add(which)
        if between is not None:
            self.between[which].update([between])

    def add_background(self, name: str, tid: int, count: int) -> None:
        """Count samples of a thread that executes no client's statement."""
        self.background[name] += count
        self.threads[name].add(tid)


def _build_parts(
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
        most = min(count + sum(counts.between[name, schema].values()), inside)
        statement = Statement(
            text=counts.texts[name, schema],
            id=make_row_id(name, schema),
            schema_name=schema,
            may_be_several=(name, schema) in counts.several,
            c0_s=part_s(count),
            c0_percent=share.percent,
            low_percent=share.low_percent,
            high_percent=proportion(most, inside, of=total).high_percent,
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
    # PostgreSQL clears the text at the end of each message. Its commit at a later Sync has none.
    between = {met.tid: met.count for met in moments.met if not met.id and met.tid in clients}
    for met in moments.met:
        id = met.id or (workers.get(met.tid, 0) if family == "postgresql" else 0)
        # Background threads of MariaDB and MySQL execute statements too, such as those of a replica.
        if id and (met.tid in clients or family == "postgresql"):
            who = known.accounts.get(met.tid)
            own = (met.tid, between[met.tid]) if family == "postgresql" and met.tid in between else None
            counts.add_statement(
                *names.name(id, met.tid), met.count, account=who, may_be_several=id in several, between=own
            )
        elif met.tid in clients:
            counts.connections += met.count
        else:
            name = known.threads.get(met.tid) or (ENDED_PROCESSES if family == "postgresql" else met.comm)
            counts.add_background(name, met.tid, met.count)
    return _build_parts(counts, names, cpu_s, window_s, len(clients)), counts.total


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
        self._used = ServerTime(members.cpu_ns)
        self._known = ServerReport()

    def close(self) -> None:
        self._sampler.close()

    def pause(self) -> None:
        """Do nothing: between windows no sample is taken."""

    @property
    def parts(self) -> tuple[WindowPart, ...]:
        """The parts that observe a window, for a runner."""
        return self._used, self._sampler

    def ready(self) -> None:
        """Query the server before a window."""
        self._known = ask_server(self._server, running=False)

    def trace_window(self, duration_s: float, energy: WindowEnergy) -> TracedWindow:
        """Sample one window. The server is queried before and after it, never within."""
        with self._server.life() as life, WindowMeter(meters=energy.meters) as meter:
            self.ready()
            passed = run_window(duration_s, *self.parts, *meter.parts, life)
            window = meter.collect(passed)
        return self.finish_window(energy.complete(window), ended=passed.ended)

    def finish_window(self, window: Window, *, ended: Ended | None = None) -> TracedWindow:
        """Return the samples of a finished window; `window` describes the host in it, with its energy.

        The CPU time of a server that has ended is that of its samples.
        """
        server = self._server
        cpu_s, window_s = self._used.collect()
        moments = self._sampler.collect()
        known = merge_reports(self._known, ask_after(server, ended, running=False))
        sampled_s = sum(met.count for met in moments.met) / SAMPLE_HZ
        parts, count = join_moments(moments, known, sampled_s if cpu_s is None else cpu_s, window_s)
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
            version=name_version(self._sampler.version),
            notes=note_samples(moments, count, known, server, cpu_s) if ended is None else [],
            lost_count=moments.lost_count,
            unreadable_count=moments.unreadable_count,
            cut_count=moments.cut_count,
            ended=ended,
        )
        return TracedWindow(measured, moments.texts)
