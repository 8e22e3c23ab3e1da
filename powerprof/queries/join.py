# SPDX-License-Identifier: Apache-2.0
"""Kernel counters joined with a server's report: statements, background threads and connections."""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import msgspec

from powerprof.database.server_report import MOST_TEXT, Account, ServerReport, list_own_statements
from powerprof.model.identities import ANSI_BIT, Family
from powerprof.model.statements import NO_TEXT, UNREADABLE, NormalText, label_text, make_key, normalise
from powerprof.queries.askers import rank_askers
from powerprof.queries.records import Background, Latency, Share, Statement, Waits
from powerprof.statistics.slices import SlicedCounts
from powerprof.system.foreign_text import printable
from powerprof.system.server_roles import parse_database
from powerprof.tracing.bpf.shared_numbers import (
    COM_EVENT,
    COM_QUERY,
    COM_STMT_EXECUTE,
    COM_STMT_PREPARE,
    FASTPATH,
    SQUARED_NS_LOG,
    OpenStatement,
    StatementWait,
)
from powerprof.tracing.captures import (
    NO_WAITS,
    RecordedText,
    StatementSlices,
    StatementTrace,
    StatementUse,
    ThreadUse,
    latency_class_range_ns,
)

UNKNOWN_PREPARED = label_text("(prepared before the window, or its number not seen: text unknown)")
# One thread per connection, or threads of a pool (MariaDB, MySQL).
_CONNECTIONS = ("thread/sql/one_connection", "thread/threadpool/worker_thread", "thread/thread_pool/tp_")
# include/my_command.h. Other commands are named by their number.
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
_MAX_COMMAND = 255
# The procedure that a server creates to execute an event (Event_job_data::construct_sp_sql).
_EVENT = re.compile(r"CREATE PROCEDURE ([`\"])((?:(?!\1).|\1\1)+)\1\(\) SQL SECURITY INVOKER ", re.DOTALL)
_CALL = re.compile(r"\s*CALL\b", re.IGNORECASE)
_AUTOVACUUM = b"autovacuum: "  # autovac_report_activity


class StatementSum(msgspec.Struct):
    """The sum of all identities and threads of one statement.

    The costs of a call are those of `whole` calls, which began and ended in the window. `began_before` and `unfinished`
    are numbers of calls; a call that is longer than the window is both.
    """

    text: NormalText = NO_TEXT
    calls: int = 0
    whole_calls: int = 0
    began_before: int = 0
    unfinished: int = 0
    cpu_ns: int = 0
    whole_cpu_ns: int = 0
    wakeups: int = 0
    whole_wakeups: int = 0
    faults: int = 0
    several: bool = False
    latencies: dict[int, float] = msgspec.field(default_factory=lambda: defaultdict(float))
    askers: dict[Account | None, list[int]] = msgspec.field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    squares: int = 0
    waits_ns: list[int] = msgspec.field(default_factory=lambda: [0] * len(NO_WAITS))
    by_slice_ns: dict[int, int] = msgspec.field(default_factory=lambda: defaultdict(int))

    def add_use(self, use: StatementUse) -> None:
        """Add the resources that a thread used for this statement."""
        self.calls += use.calls
        self.began_before += use.calls if use.began_before else 0
        self.unfinished += use.open_count
        self.cpu_ns += use.cpu_ns
        self.wakeups += use.wakeups
        self.faults += use.faults
        for number, cpu_ns in use.by_slice:
            self.by_slice_ns[number] += cpu_ns
        if not use.began_before and not use.open_count:
            self.whole_calls += use.calls
            self.whole_cpu_ns += use.cpu_ns
            self.whole_wakeups += use.wakeups
            self.squares += use.squares
            self.waits_ns = [was + now for was, now in zip(self.waits_ns, use.waits_ns, strict=True)]

    def add_asker(self, account: Account | None, cpu_ns: int, calls: int) -> None:
        """Add CPU time and calls of a client of this account."""
        self.askers[account][0] += cpu_ns
        self.askers[account][1] += calls


class Parts(msgspec.Struct, frozen=True):
    """The parts of a server's CPU time, largest first, without shares and joules."""

    statements: list[Statement]
    background: list[Background]
    connections: Share
    connections_count: int


def join_trace(trace: StatementTrace, known: ServerReport) -> Parts:
    """Join a traced window with the server's report."""
    if trace.family == "postgresql":
        trace, known = _drop_autovacuum(trace, known)
    sums: dict[tuple[str, str | None], StatementSum] = {}
    name_of = StatementNames(trace.texts, trace.family, ((use.id, use.tid) for use in trace.uses), known).name
    in_statements: dict[int, int] = defaultdict(int)
    whole_calls: dict[int, int] = defaultdict(int)
    uses = [use for use in trace.uses if not _is_background(use, trace.family, known)]
    for use in uses:
        whole_calls[use.id] += 0 if use.began_before or use.open_count else use.calls
    several = {text.id for text in trace.texts if text.may_be_several}

    def add_use(use: StatementUse, text: NormalText, schema: str | None) -> StatementSum:
        total = sums.setdefault((make_key(text, trace.family), schema), StatementSum(text))
        total.add_use(use)
        total.add_asker(known.accounts.get(use.tid), use.cpu_ns, use.calls)
        in_statements[use.tid] += use.cpu_ns
        return total

    for use in uses:
        text, schema = name_of(use.id, use.tid)
        running = known.running.get(use.tid, "") if use.began_before else ""
        # Until its end, the memory of a procedure has the text of its present statement.
        if running and (use.id <= _MAX_COMMAND or (use.open_count and is_call(running))):
            text, schema = _name_running(running, trace.family), known.schemas.get(use.tid)
        total = add_use(use, text, schema)
        total.several |= use.id in several
        if use.began_before or use.open_count:
            continue
        # Latency classes belong to an identity. Each thread gets its part by number of calls.
        for bucket, count in trace.latencies.get(use.id, {}).items():
            total.latencies[bucket] += count * use.calls / max(whole_calls[use.id], 1)
    connections = [thread for thread in trace.threads if _is_connection(thread, trace.family, known)]
    for thread in connections:
        # The kernel met it at no switch and no packet, so that only the server's report has its text.
        if thread.open is OpenStatement.UNKNOWN and not thread.statements and thread.tid in known.running:
            calls = int(not _is_helper(thread, known))
            use = StatementUse(
                0, thread.tid, calls, thread.cpu_ns, 0, thread.wakeups, 0, open_count=calls, began_before=True
            )
            add_use(use, _name_running(known.running[thread.tid], trace.family), known.schemas.get(thread.tid))
    between_ns = sum(thread.cpu_ns - in_statements[thread.tid] for thread in connections)
    ranges = None if trace.slices is None else ShareRanges(trace.slices)
    statements = [_build_statement(item, name, schema, trace, ranges) for (name, schema), item in sums.items()]
    return Parts(
        statements=sorted(
            statements, key=lambda statement: (-statement.c0_s, -(statement.calls_count or 0), statement.text)
        ),
        background=_join_background(trace, known),
        connections=Share(c0_s=between_ns / 1e9),
        connections_count=sum(thread.count for thread in connections if not _is_helper(thread, known)),
    )


def _drop_autovacuum(trace: StatementTrace, known: ServerReport) -> tuple[StatementTrace, ServerReport]:
    """Return trace and report with autovacuum workers as background: their reported texts are not SQL."""
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
    return quiet, msgspec.structs.replace(known, threads=names, running=running)


def count_calls(known: ServerReport, family: Family) -> dict[str, dict[str | None, int]]:
    """Return the server's own number of calls by key of the text and schema (None: no schema)."""
    calls: dict[str, dict[str | None, int]] = defaultdict(lambda: defaultdict(int))
    for (schema, text), (count, *_) in known.digests.items():
        calls[make_key(text, family)][schema] += count
    for (schema, text), counts in known.statistics.items():
        calls[make_key(text, family)][schema] += counts.calls
    return calls


class StatementNames:
    """The text and schema of each identity and thread, and the server's number of calls of each of these rows.

    Rules: threads that were gone before the server was queried have an unknown schema. If all others of the text, and
    the server's counts, have one schema, it is theirs too. Else they are a row without a schema. With `joined`, it is
    the only row of the text, because counts of several schemas cannot be divided.
    """

    def __init__(
        self,
        texts: Iterable[RecordedText],
        family: Family,
        met: Iterable[tuple[int, int]],
        known: ServerReport,
        *,
        joined: bool = False,
    ) -> None:
        """Name texts; `met` are identities with threads."""
        self._known, self._joined = known, joined
        self._named = {text.id: _name_text(text, known, family) for text in texts if text.id > _MAX_COMMAND}
        self._keys = {id: make_key(text, family) for id, text in self._named.items()}
        self._commands = _COMMANDS if family == "mysql" else _MESSAGES
        self._calls = count_calls(known, family)
        self._unknown: set[str] = set()
        self._schemas: dict[str, set[str | None]] = defaultdict(set)
        for id, tid in met:
            if (key := self._keys.get(id)) is None:
                continue
            if tid in known.schemas or tid in known.accounts:
                self._schemas[key].add(known.schemas.get(tid))
            else:
                self._unknown.add(key)
        if not known.lost_digests_count:
            for key in self._unknown:
                self._schemas[key] |= set(self._calls.get(key, ()))

    def name(self, id: int, tid: int) -> tuple[NormalText, str | None]:
        """Return text and schema of an identity that a thread executed."""
        if id not in self._named:
            return label_text(f"({self._commands.get(id, f'command {id}')})"), None
        key, own = self._keys[id], self._known.schemas.get(tid)
        if key in self._unknown:
            if len(self._schemas[key]) == 1:
                (own,) = self._schemas[key]
            elif self._joined and key in self._calls:
                own = None
        return self._named[id], own

    def calls_of(self, key: str, schema: str | None) -> int | None:
        """Return the server's number of calls of a row; None if unknown."""
        calls = self._calls.get(key, {})
        if schema is None and key in self._unknown:
            return None if self._known.lost_digests_count else sum(calls.values()) or None
        return calls.get(schema)


def _name_text(seen: RecordedText, known: ServerReport, family: Family) -> NormalText:
    if seen.command == COM_STMT_EXECUTE or seen.prepared_number:
        text = known.prepared.get((seen.tid, seen.prepared_number))
        return UNKNOWN_PREPARED if text is None else normalise(text, is_whole=len(text) < MOST_TEXT)
    original, event = seen.text.decode("utf-8", "surrogateescape"), ""
    if seen.command == COM_EVENT and (match := _EVENT.match(original)) is not None:
        original, event = original[match.end() :], f"(event {printable(match[2])}) "
    normal = normalise(original, family, is_whole=not seen.is_cut, ansi_quotes=bool(seen.id & ANSI_BIT))
    text = label_text(event, normal)
    if family == "mysql" and is_own_statement(text):
        text = label_text(OWN, text)
    if text == UNREADABLE:
        # The identity contains no values.
        text = label_text(f"(statement {seen.id:016x}: its values cannot be recognised)")
    if seen.is_cut:  # Another statement may begin with the same text.
        text = label_text("", text, f" … ({seen.hashed:,} bytes, {seen.id >> 40:06x})")
    return label_text("(prepare) ", text) if seen.command == COM_STMT_PREPARE else text


OWN = "(powerprof) "


@cache
def _own_keys() -> frozenset[str]:
    return frozenset(make_key(text) for text in list_own_statements())


def is_own_statement(text: str) -> bool:
    """Return whether a text without values is a statement of powerprof.

    Statements of this process are outside of the window; those of other ones (watch and export) may be within.
    """
    return make_key(text) in _own_keys()


def is_connection_name(name: str) -> bool:
    """Return whether a name of performance_schema belongs to a thread of a client."""
    return name.startswith(_CONNECTIONS)


def _name_running(text: str, family: Family) -> NormalText:
    return normalise(text, family, is_whole=len(text) < MOST_TEXT)


def _is_background(use: StatementUse, family: Family, known: ServerReport) -> bool:
    """Return whether a statement that began before the window is not a client's.

    Background threads of MariaDB and MySQL execute statements too, such as those of a replica.
    """
    name = known.threads.get(use.tid)
    return use.began_before and family != "postgresql" and name is not None and not is_connection_name(name)


def _is_connection(thread: ThreadUse, family: Family, known: ServerReport) -> bool:
    name = known.threads.get(thread.tid, "")
    return (
        bool(thread.statements)
        or (thread.open is OpenStatement.FOUND and (family == "postgresql" or not name))
        or thread.tid in known.running
        or is_connection_name(name)
        or parse_database(name) is not None
    )


def _is_helper(thread: ThreadUse, known: ServerReport) -> bool:
    """Return whether a process works for a statement of another process: a parallel worker of PostgreSQL."""
    return thread.is_helper or known.threads.get(thread.tid) == "parallel worker"


def _join_background(trace: StatementTrace, known: ServerReport) -> list[Background]:
    groups: dict[str, list[ThreadUse]] = defaultdict(list)
    for thread in trace.threads:
        if not _is_connection(thread, trace.family, known):
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


def is_call(text: str) -> bool:
    """Return whether a statement executes a stored procedure."""
    return _CALL.match(text) is not None


def make_row_id(name: str, schema: str | None) -> str:
    """Return the id of a row: six digits for its key and schema."""
    return hashlib.sha256(f"{schema or ''}\0{name}".encode("utf-8", "replace")).hexdigest()[:6]


class ShareRanges:
    """The intervals of shares in a server's CPU time, if only slices of a window were traced."""

    def __init__(self, slices: StatementSlices) -> None:
        self._whole_ns, self._length = slices.whole_ns, len(slices.weights)
        self._counts = SlicedCounts(slices.weights, slices.lengths_s, slices.used_ns, slices.whole_ns)

    def find(self, by_slice_ns: Mapping[int, int]) -> tuple[float | None, float | None]:
        """Return the 95 % interval of a share in percent, from its CPU time in each slice; None if it is unknown."""
        if not self._whole_ns:
            return None, None
        estimate = self._counts.estimate([by_slice_ns.get(number, 0) for number in range(self._length)])
        return 100 * estimate.low / self._whole_ns, min(100 * estimate.high / self._whole_ns, 100.0)


def _build_statement(
    total: StatementSum, name: str, schema: str | None, trace: StatementTrace, ranges: ShareRanges | None
) -> Statement:
    window_s, whole = trace.window_s, total.whole_calls
    low, high = (None, None) if ranges is None else ranges.find(total.by_slice_ns)
    return Statement(
        text=total.text,
        id=make_row_id(name, schema),
        schema_name=schema,
        calls_count=total.calls,
        calls_hz=_estimate_rate(total, window_s),
        unfinished_count=total.unfinished,
        began_before_count=total.began_before,
        may_be_several=total.several,
        c0_s=total.cpu_ns / 1e9,
        c0_ms_per_call=total.whole_cpu_ns / 1e6 / whole if whole else None,
        wakeups_count=total.wakeups,
        wakeups_per_call=total.whole_wakeups / whole if whole else None,
        page_faults_count=total.faults,
        c0_ms_deviation=_estimate_deviation(total),
        low_percent=low,
        high_percent=high,
        latency_ms=estimate_latency(total.latencies),
        askers=rank_askers({account: (cpu_ns / 1e9, count) for account, (cpu_ns, count) in total.askers.items()}),
        waits_ms=_average_waits(total.waits_ns, whole, trace) if whole else None,
    )


def _estimate_rate(total: StatementSum, window_s: float) -> float | None:
    """Return the calls per second: the mean of those that began and those that ended in the window.

    None if all calls are longer than the window, so that their rate is unknown.
    """
    edges = total.began_before + total.unfinished
    if window_s <= 0 or (edges and edges >= 2 * total.calls):
        return None
    return (total.calls - edges / 2) / window_s


def _estimate_deviation(total: StatementSum) -> float | None:
    """Return the standard deviation of a call's CPU time in ms; None for fewer than two whole calls."""
    whole = total.whole_calls
    if whole < 2 or not total.squares:
        return None
    mean, square = total.whole_cpu_ns / 1e6 / whole, total.squares * (2**SQUARED_NS_LOG / 1e6) ** 2 / whole
    return math.sqrt(max(square - mean * mean, 0.0) * whole / (whole - 1))


def _average_waits(sums_ns: Sequence[int], calls: int, trace: StatementTrace) -> Waits:
    """Return average waits per call."""
    each = {wait.name.lower(): sums_ns[wait] / 1e6 / calls for wait in StatementWait}
    known: dict[str, float | None] = {**each}
    if not trace.has_run_queue:
        known["run_queue"] = None
    if not trace.tells_locks:
        known["row_lock"] = known["lock"] = None
    return Waits(**known)  # type: ignore[arg-type]


def estimate_latency(classes: Mapping[int, float]) -> Latency | None:
    """Return median, 95th and 99th percentile of latency classes within 7 %; None without finished calls."""
    total = sum(classes.values())
    if not total:
        return None
    p50, p95, p99 = (_interpolate_quantile(classes, part * total) / 1e6 for part in (0.50, 0.95, 0.99))
    return Latency(p50=p50, p95=p95, p99=p99)


def _interpolate_quantile(classes: Mapping[int, float], wanted: float) -> float:
    below, high = 0.0, 0.0
    for bucket in sorted(classes):
        count = classes[bucket]
        low, high = latency_class_range_ns(bucket)
        if below + count >= wanted:
            return low + (high - low) * (wanted - below) / count
        below += count
    return high
