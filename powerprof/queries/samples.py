# SPDX-License-Identifier: Apache-2.0
"""The way by samples: which statement each thread is at, by its text in the server's memory."""

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
from powerprof.queries.join import Parts, is_connection_name, make_namer, make_row_id
from powerprof.queries.pricing import MeasuredStatements
from powerprof.queries.probes import TracedWindow
from powerprof.queries.records import Background, Share, Statement
from powerprof.queries.target import ServerTime, TracedServer, ask_server, rank_askers
from powerprof.statements.text import Family, NormalText, make_key
from powerprof.statistics.rates import proportion
from powerprof.system.closeable import Closeable
from powerprof.system.processes import database_of
from powerprof.tracing.statements import MomentSampler, SampledThread, ServerProcesses, StatementSamples

# Pure: how often a server was met at what → its parts, each with the interval of its share.

_ENDED = "ended processes"


@dataclass
class SampleCounts:
    """Samples by what they met."""

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
        """All."""
        return self.clients + self.background.total()

    @property
    def clients(self) -> int:
        """Those of clients' threads."""
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
        """A thread was met at a statement, of a client of this account."""
        if text not in self._keys:
            self._keys[text] = make_key(text, self.family)
        which = self._keys[text], schema
        self.statements[which] += count
        self.texts.setdefault(which, text)
        self.askers[which][account] += count
        if may_be_several:
            self.several.add(which)

    def add_background(self, name: str, tid: int, count: int) -> None:
        """A thread that executes no client's statement was met."""
        self.background[name] += count
        self.threads[name].add(tid)


def _parts_of(
    counts: SampleCounts, known: ServerReport, cpu_s: float, window_s: float, connections_count: int
) -> Parts:
    """Each sample stands for an equal part of the server's CPU time; percentages are of the counts themselves."""
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
        # Without its schema it has all calls, unless there is another row of it.
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
    """The parts, and on how many samples they stand."""
    family = moments.family
    name_of = make_namer(moments.texts, family, ((met.id, met.tid) for met in moments.met), known)
    clients = {met.tid for met in moments.met if _is_client(met, known, family)}
    counts = SampleCounts(family)
    several = {text.id for text in moments.texts if text.may_be_several}
    for met in moments.met:
        # Threads of MariaDB and MySQL that work by themselves execute statements as well, a replica's for one.
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
        return met.is_client or (name is not None and database_of(name) is not None)
    # One without a name came and went, or no thread's is known: then only a client's has a statement.
    return is_connection_name(name) if name is not None else bool(met.id or known.threads)


def _calls(known: ServerReport, family: Family) -> dict[tuple[str | None, str], int]:
    """By schema (None: all of them) and key of the text: how often the server counted it."""
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
        """What observes a window, for a runner."""
        return self._used, self._sampler

    def ready(self) -> None:
        """A window is near: the server is asked."""
        self._known = ask_server(self._server, running=False)

    def window(self, duration_s: float, energy: WindowEnergy) -> TracedWindow:
        """One window. The server is asked before and after it, never within.

        Raises PowerprofError where the server ended.
        """
        self.ready()
        with WindowMeter(meters=energy.meters) as meter:
            passed = run_window(duration_s, *self.parts, *meter.parts)
            window = meter.collect(passed)
        return self.taken(energy.complete(window), interrupted=passed.interrupted is not None)

    def taken(self, window: Window, *, interrupted: bool = False) -> TracedWindow:
        """What was sampled in a window that has ended, with the texts as clients sent them; `window` is the host in it,
        with its energy. Raises PowerprofError where the server ended."""
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
