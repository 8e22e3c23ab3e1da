# SPDX-License-Identifier: Apache-2.0
"""Pure: what the kernel counted for identities and threads → statements, background threads, and what is left over."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import msgspec

from powerprof.database.clients.performance import MOST_TEXT, Account, ServerReport, list_own_statements
from powerprof.queries.records import Background, Latency, Share, Statement, Waits
from powerprof.queries.target import rank_askers
from powerprof.statements.text import NO_TEXT, UNREADABLE, Family, NormalText, label_text, make_key, normalise
from powerprof.system.files import printable
from powerprof.system.processes import database_of
from powerprof.tracing.bpf.shared_numbers import (
    COM_EVENT,
    COM_QUERY,
    COM_STMT_EXECUTE,
    COM_STMT_PREPARE,
    FASTPATH,
    SQUARED_NS_LOG,
    StatementWait,
)
from powerprof.tracing.captures import NO_WAITS, RecordedText, StatementTrace, ThreadUse, latency_class_range_ns

UNKNOWN_PREPARED = label_text("(prepared before the window, or its number not seen: text unknown)")
BEGAN_BEFORE = "(began before the window)"
# A thread of its own, or one of a pool's (MariaDB's, MySQL's).
_CONNECTIONS = ("thread/sql/one_connection", "thread/threadpool/worker_thread", "thread/thread_pool/tp_")
# include/my_command.h; what else a packet can ask for is called by its number.
_COMMANDS = {
    0: "COM_SLEEP",
    1: "COM_QUIT",
    2: "COM_INIT_DB",
    3: "COM_QUERY, its text not readable",
    4: "COM_FIELD_LIST",
    7: "COM_REFRESH",
    8: "COM_SHUTDOWN",
    9: "COM_STATISTICS",
    10: "COM_PROCESS_INFO",
    12: "COM_PROCESS_KILL",
    14: "COM_PING",
    17: "COM_CHANGE_USER",
    18: "COM_BINLOG_DUMP: feeds a replica",
    21: "COM_REGISTER_SLAVE",
    22: "COM_STMT_PREPARE, its text not readable",
    24: "COM_STMT_SEND_LONG_DATA",
    25: "COM_STMT_CLOSE",
    26: "COM_STMT_RESET",
    27: "COM_SET_OPTION",
    28: "COM_STMT_FETCH",
    30: "COM_BINLOG_DUMP_GTID: feeds a replica",
    31: "COM_RESET_CONNECTION",
}
_MESSAGES = {COM_QUERY: "a statement, its text not readable", FASTPATH: "a function called by its number"}
_MOST_COMMANDS = 255
# What a server makes of an event to execute it (Event_job_data::construct_sp_sql).
_EVENT = re.compile(r"CREATE PROCEDURE ([`\"])((?:(?!\1).|\1\1)+)\1\(\) SQL SECURITY INVOKER ", re.DOTALL)
_AUTOVACUUM = b"autovacuum: "  # autovac_report_activity


@dataclass
class _Sum:
    """What all identities and threads of one statement add up to."""

    text: NormalText = NO_TEXT
    calls: int = 0
    unfinished: int = 0
    cpu_ns: int = 0
    wakeups: int = 0
    faults: int = 0
    before: bool = False
    several: bool = False
    latencies: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    askers: dict[Account | None, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    squares: int = 0
    waits_ns: list[int] = field(default_factory=lambda: [0] * len(NO_WAITS))

    def asked_by(self, account: Account | None, cpu_ns: int, calls: int) -> None:
        """A client of this account had these of it executed."""
        self.askers[account][0] += cpu_ns
        self.askers[account][1] += calls


@dataclass(frozen=True)
class Parts:
    """The parts of a server's CPU time, most first; shares and joules are not in them yet."""

    statements: list[Statement]
    background: list[Background]
    connections: Share
    connections_count: int


def join_trace(trace: StatementTrace, known: ServerReport) -> Parts:
    """Put a window together with what the server reported of it."""
    if trace.family == "postgresql":
        trace, known = _without_autovacuum(trace, known)
    sums: dict[tuple[str, str | None], _Sum] = {}
    name_of = make_namer(trace.texts, trace.family, ((use.id, use.tid) for use in trace.uses), known)
    in_statements: dict[int, int] = defaultdict(int)
    calls_of: dict[int, int] = defaultdict(int)
    for use in trace.uses:
        calls_of[use.id] += use.calls
    several = {text.id for text in trace.texts if text.may_be_several}
    for use in trace.uses:
        text, schema = name_of(use.id, use.tid)
        total = sums.setdefault((make_key(text, trace.family), schema), _Sum(text))
        total.several |= use.id in several
        total.calls += use.calls
        total.unfinished += use.open_count
        total.cpu_ns += use.cpu_ns
        total.wakeups += use.wakeups
        total.faults += use.faults
        total.squares += use.squares
        total.asked_by(known.accounts.get(use.tid), use.cpu_ns, use.calls)
        total.waits_ns = [was + now for was, now in zip(total.waits_ns, use.waits_ns, strict=True)]
        in_statements[use.tid] += use.cpu_ns
        # The classes are of an identity, whoever executed it: each thread is taken to have had its part of them.
        for bucket, count in trace.latencies.get(use.id, {}).items():
            total.latencies[bucket] += count * use.calls / calls_of[use.id]
    connections = [thread for thread in trace.threads if _is_connection(thread, known)]
    for thread in connections:
        if (running := known.running.get(thread.tid)) is not None:
            used = thread.before_ns if thread.statements else thread.cpu_ns
            text = label_text(f"{BEGAN_BEFORE} ", normalise(running, trace.family, is_whole=len(running) < MOST_TEXT))
            total = sums.setdefault(
                (make_key(text, trace.family), known.schemas.get(thread.tid)), _Sum(text, before=True)
            )
            if not _is_helper(thread, known):
                total.calls += 1
                total.unfinished += not thread.statements
            total.cpu_ns += used
            total.asked_by(known.accounts.get(thread.tid), used, 1)
            in_statements[thread.tid] += used
    between_ns = sum(thread.cpu_ns - in_statements[thread.tid] for thread in connections)
    statements = [_statement(item, name, schema, trace) for (name, schema), item in sums.items()]
    return Parts(
        statements=sorted(
            statements, key=lambda statement: (-statement.c0_s, -(statement.calls_count or 0), statement.text)
        ),
        background=_background(trace, known),
        connections=Share(c0_s=between_ns / 1e9),
        connections_count=sum(thread.count for thread in connections if not _is_helper(thread, known)),
    )


def _without_autovacuum(trace: StatementTrace, known: ServerReport) -> tuple[StatementTrace, ServerReport]:
    """Its workers say what they do as a client's process does, in words that are no SQL: they are background."""
    texts = {text.id for text in trace.texts if text.text.startswith(_AUTOVACUUM)}
    tids = {use.tid for use in trace.uses if use.id in texts and use.tid}
    quiet = msgspec.structs.replace(
        trace,
        uses=[use for use in trace.uses if use.tid not in tids],
        threads=[
            msgspec.structs.replace(thread, statements=0) if thread.tid in tids else thread for thread in trace.threads
        ],
    )
    running = {tid: text for tid, text in known.running.items() if not text.startswith(_AUTOVACUUM.decode())}
    names = {**known.threads, **dict.fromkeys(tids, "autovacuum worker")}
    return quiet, dataclasses.replace(known, threads=names, running=running)


def make_namer(
    texts: Iterable[RecordedText], family: Family, met: Iterable[tuple[int, int]], known: ServerReport
) -> Callable[[int, int], tuple[NormalText, str | None]]:
    """What tells the text and the schema of an identity that a thread executed; `met` are the identities of threads."""
    named = {text.id: _text_of(text, known, family) for text in texts if text.id > _MOST_COMMANDS}
    commands = _COMMANDS if family == "mysql" else _MESSAGES

    where: dict[int, set[str]] = defaultdict(set)
    if family == "postgresql":
        # Workers do not say in which database, and who has ended cannot: it is that of the others, if they are in one.
        for id, tid in met:
            if tid in known.schemas:
                where[id].add(known.schemas[tid])

    def name_of(id: int, tid: int) -> tuple[NormalText, str | None]:
        if id in named:
            others = where.get(id, set())
            return named[id], known.schemas.get(tid) or (next(iter(others)) if len(others) == 1 else None)
        return label_text(f"({commands.get(id, f'command {id}')})"), None

    return name_of


def _text_of(seen: RecordedText, known: ServerReport, family: Family) -> NormalText:
    if seen.command == COM_STMT_EXECUTE or seen.prepared_number:
        text = known.prepared.get((seen.tid, seen.prepared_number))
        return UNKNOWN_PREPARED if text is None else normalise(text, is_whole=len(text) < MOST_TEXT)
    original, event = seen.text.decode("utf-8", "surrogateescape"), ""
    if seen.command == COM_EVENT and (found := _EVENT.match(original)) is not None:
        original, event = original[found.end() :], f"(event {printable(found[2])}) "
    text = label_text(event, normalise(original, family, is_whole=not seen.is_cut))
    if family == "mysql" and is_own_statement(text):
        text = label_text(OWN, text)
    if text == UNREADABLE:
        # The identity sees no values.
        text = label_text(f"(statement {seen.id:016x}: the values in it cannot be recognised)")
    if seen.is_cut:  # another one may begin with the same
        text = label_text("", text, f" … ({seen.hashed:,} bytes, {seen.id >> 40:06x})")
    return label_text("(prepare) ", text) if seen.command == COM_STMT_PREPARE else text


OWN = "(powerprof) "


@cache
def _own() -> frozenset[str]:
    return frozenset(make_key(text) for text in list_own_statements())


def is_own_statement(text: str) -> bool:
    """Whether a text without values is one that powerprof asks: this one's looks lie outside of the window, others'
    (of watch and export) within."""
    return make_key(text) in _own()


def is_connection_name(name: str) -> bool:
    """Whether performance_schema calls a thread of a client so."""
    return name.startswith(_CONNECTIONS)


def _is_connection(thread: ThreadUse, known: ServerReport) -> bool:
    name = known.threads.get(thread.tid, "")
    return (
        bool(thread.statements)
        or thread.tid in known.running
        or is_connection_name(name)
        or database_of(name) is not None
    )


def _is_helper(thread: ThreadUse, known: ServerReport) -> bool:
    """Whether it works for a statement that another process executes."""
    return known.threads.get(thread.tid) == "parallel worker"


def _background(trace: StatementTrace, known: ServerReport) -> list[Background]:
    groups: dict[str, list[ThreadUse]] = defaultdict(list)
    for thread in trace.threads:
        if not _is_connection(thread, known):
            groups[known.threads.get(thread.tid, thread.comm)].append(thread)
    rows = [
        Background(
            thread=name,
            threads_count=sum(thread.count for thread in threads),
            c0_s=sum(thread.cpu_ns for thread in threads) / 1e9,
            wakeups_count=sum(thread.wakeups for thread in threads),
        )
        for name, threads in groups.items()
    ]
    return sorted(rows, key=lambda background: (-background.c0_s, background.thread))


def make_row_id(name: str, schema: str | None) -> str:
    """Of a row: six digits of its key and schema."""
    return hashlib.sha256(f"{schema or ''}\0{name}".encode("utf-8", "replace")).hexdigest()[:6]


def _statement(total: _Sum, name: str, schema: str | None, trace: StatementTrace) -> Statement:
    calls, window_s = total.calls or 1, trace.window_s
    return Statement(
        text=total.text,
        id=make_row_id(name, schema),
        schema_name=schema,
        calls_count=total.calls,
        calls_hz=total.calls / window_s if window_s > 0 else None,
        unfinished_count=total.unfinished,
        began_before=total.before,
        may_be_several=total.several,
        c0_s=total.cpu_ns / 1e9,
        c0_ms_per_call=total.cpu_ns / 1e6 / calls,
        wakeups_count=None if total.before else total.wakeups,
        wakeups_per_call=None if total.before else total.wakeups / calls,
        page_faults_count=None if total.before else total.faults,
        c0_ms_deviation=_deviation(total),
        latency_ms=estimate_latency(total.latencies),
        askers=rank_askers({account: (cpu_ns / 1e9, count) for account, (cpu_ns, count) in total.askers.items()}),
        waits_ms=None if total.before else _waits(total.waits_ns, calls, trace),
    )


def _deviation(total: _Sum) -> float | None:
    """Standard deviation of a call's CPU time in ms; None of fewer than two that ended."""
    ended = total.calls - total.unfinished
    if ended < 2 or not total.squares:
        return None
    mean, square = total.cpu_ns / 1e6 / total.calls, total.squares * (2**SQUARED_NS_LOG / 1e6) ** 2 / ended
    return math.sqrt(max(square - mean * mean, 0.0) * ended / (ended - 1))


def _waits(sums_ns: Sequence[int], calls: int, trace: StatementTrace) -> Waits:
    """Of a call."""
    each = {wait.name.lower(): sums_ns[wait] / 1e6 / calls for wait in StatementWait}
    known: dict[str, float | None] = {**each}
    if not trace.has_run_queue:
        known["run_queue"] = None
    if not trace.tells_locks:
        known["row_lock"] = known["lock"] = None
    return Waits(**known)  # type: ignore[arg-type]


def estimate_latency(classes: Mapping[int, float]) -> Latency | None:
    """The median, the 95th and the 99th percentile of counted classes, within 7 %; None where none ended."""
    total = sum(classes.values())
    if not total:
        return None
    p50, p95, p99 = (_quantile(classes, part * total) / 1e6 for part in (0.50, 0.95, 0.99))
    return Latency(p50=p50, p95=p95, p99=p99)


def _quantile(classes: Mapping[int, float], wanted: float) -> float:
    below, high = 0.0, 0.0
    for bucket in sorted(classes):
        count = classes[bucket]
        low, high = latency_class_range_ns(bucket)
        if below + count >= wanted:
            return low + (high - low) * (wanted - below) / count
        below += count
    return high
