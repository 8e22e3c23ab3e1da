# SPDX-License-Identifier: Apache-2.0
"""Windows with samples: the statement of each thread, from its text in the server's memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import msgspec

from powerprof.database.clients.performance import Account, ServerReport, merge_reports
from powerprof.energy.windows import WindowEnergy
from powerprof.measure.sampling import WindowMeter
from powerprof.measure.window import WindowPart, run_window
from powerprof.model.records import Window
from powerprof.queries import probes as probing
from powerprof.queries.join import Parts, is_connection_name, make_namer, make_row_id, rank_askers
from powerprof.queries.pricing import MeasuredStatements
from powerprof.queries.probes import TracedWindow
from powerprof.queries.records import Background, Share, Statement
from powerprof.queries.target import ServerTime, TracedServer, ask_server
from powerprof.statements.text import Family, NormalText, make_key
from powerprof.statistics.rates import proportion
from powerprof.system.closeable import Closeable
from powerprof.system.processes import parse_database
from powerprof.tracing.statements import MomentSampler, SampledThread, ServerProcesses, StatementSamples

_ENDED = "ended processes"


@dataclass
class SampleCounts:
    """Numbers of samples by statement, background thread and account."""

    family: Family = "mysql"
    several: set[tuple[str, str | None]] = field(default_factory=set)
    statements: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    texts: dict[tuple[str, str | None], NormalText] = field(default_factory=dict)
    background: Counter[str] = field(default_factory=Counter)
    threads: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    askers: dict[tuple[str, str | None], Counter[Account | None]] = field(default_factory=lambda: defaultdict(Counter))
    connections: int = 0
    _keys: dict[str, str] = field(default_factory=dict)

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
    counts: SampleCounts, known: ServerReport, cpu_s: float, window_s: float, connections_count: int
) -> Parts:
    """Return the parts of a server's CPU time with the interval of each share. Each sample stands for an equal part."""
    total, inside = counts.total, counts.clients

    def part_s(count: int) -> float:
        return cpu_s * (count / total) if total else 0.0

    def percent(count: int) -> float | None:
        return 100 * count / total if total else None

    calls = _calls(known, counts.family)
    rows = Counter(text for text, _ in counts.statements)
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
        # A row without a schema gets all calls if it is the only row of its text.
        made = calls.get((schema, name)) or (calls.get((None, name)) if rows[name] == 1 else None)
        if made:
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
    name_of = make_namer(moments.texts, family, ((met.id, met.tid) for met in moments.met), known)
    clients = {met.tid for met in moments.met if _is_client(met, known, family)}
    counts = SampleCounts(family)
    several = {text.id for text in moments.texts if text.may_be_several}
    for met in moments.met:
        # Background threads of MariaDB and MySQL execute statements too, such as those of a replica.
        if met.id and (met.tid in clients or family == "postgresql"):
            who = known.accounts.get(met.tid)
            is_several = met.id in several
            counts.add_statement(*name_of(met.id, met.tid), met.count, account=who, may_be_several=is_several)
        elif met.tid in clients:
            counts.connections += met.count
        else:
            name = known.threads.get(met.tid) or (_ENDED if family == "postgresql" else met.comm)
            counts.add_background(name, met.tid, met.count)
    return _parts_of(counts, known, cpu_s, window_s, len(clients)), counts.total


def _is_client(met: SampledThread, known: ServerReport, family: Family) -> bool:
    name = known.threads.get(met.tid)
    if family == "postgresql":
        return met.is_client or (name is not None and parse_database(name) is not None)
    # A thread without a name has ended, or no names are known. Only clients' threads have statements then.
    return is_connection_name(name) if name is not None else bool(met.id or known.threads)


def _calls(known: ServerReport, family: Family) -> dict[tuple[str | None, str], int]:
    """Return the server's number of calls by schema (None: all schemas) and key of the text."""
    calls: dict[tuple[str | None, str], int] = defaultdict(int)
    for (schema, text), (count, *_) in known.digests.items():
        for where in {(schema, make_key(text, family)), (None, make_key(text, family))}:
            calls[where] += count
    for (schema, text), counts in known.statistics.items():
        for where in {(schema, make_key(text, family)), (None, make_key(text, family))}:
            calls[where] += counts.calls
    return calls


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
            notes=probing.note_samples(moments, count, known, server),
            lost_count=moments.lost_count,
            unreadable_count=moments.unreadable_count,
            cut_count=moments.cut_count,
            interrupted=interrupted,
        )
        return TracedWindow(measured, moments.texts)
