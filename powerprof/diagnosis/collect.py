# SPDX-License-Identifier: Apache-2.0
"""One look at a server: ask, trace, ask again. The questions lie outside of the traced window."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from powerprof.database.clients import sql
from powerprof.database.clients.base import StatementError
from powerprof.database.clients.given import is_server_name, read_local_thread_names
from powerprof.diagnosis import asking
from powerprof.diagnosis.evidence import (
    ASKABLE,
    DeniedAccount,
    Evidence,
    LogSummary,
    ReplicaHost,
    ReplicationChannel,
    ThreadCpu,
    ThreadWakeups,
)
from powerprof.measure.procfs import process_cpu_ns
from powerprof.measure.window import run_window
from powerprof.model.text import Say
from powerprof.statements.text import limit_texts, normalise_replication_error
from powerprof.system import paths
from powerprof.system.errors import CapabilityError
from powerprof.system.files import printable, try_text, whole
from powerprof.system.paths import procfs
from powerprof.system.processes import Target, language_of
from powerprof.system.reader_process import shared
from powerprof.system.tasks import look_up

if TYPE_CHECKING:
    from powerprof.attribution.capture import Capture
    from powerprof.database.clients.base import Sql
    from powerprof.model.attribution import Attribution, Wakeup, Waking


# Logins that a server refused, by account, by its own count: MySQL keeps one (performance_schema), MariaDB's error log
# has them (`serverlog`).

_MOST_NAME = 100
# ER_ACCESS_DENIED_ERROR, ER_ACCESS_DENIED_NO_PASSWORD_ERROR
_DENIED = (
    "SELECT USER, HOST, SUM(SUM_ERROR_RAISED), TIMESTAMPDIFF(SECOND, MAX(LAST_SEEN), NOW()), "
    "TIMESTAMPDIFF(SECOND, MIN(FIRST_SEEN), MAX(LAST_SEEN)) "
    "FROM performance_schema.events_errors_summary_by_account_by_error WHERE ERROR_NUMBER IN (1045, 1698) "
    "AND SUM_ERROR_RAISED > 0 AND USER IS NOT NULL GROUP BY USER, HOST ORDER BY 3 DESC LIMIT 200"
)


def denied(connection: Sql) -> list[DeniedAccount]:
    """Since the server was started; empty where it does not count them, or may not be asked."""
    try:
        rows = sql.fetch_rows(connection, _DENIED, columns=5)
    except StatementError as error:
        if error.number >= 2000 or error.number == 0:  # the connection was lost, or is of no use
            raise
        return []
    found = []
    for user, host, total, last_s, span_s in rows:
        count = sql.parse_count(total)
        if count:
            name = printable(f"{str(user)[:_MOST_NAME]}@{str(host or '')[:_MOST_NAME]}")
            found.append(
                DeniedAccount(
                    account=name,
                    count=count,
                    window_count=0,
                    last_s=max(sql.parse_number(last_s) or 0.0, 0.0),
                    span_s=max(sql.parse_number(span_s) or 0.0, 0.0),
                )
            )
    return found


def between(before: Sequence[DeniedAccount], after: Sequence[DeniedAccount]) -> list[DeniedAccount]:
    """Those of the end, with how many of theirs came in the window."""
    then: Mapping[str, int] = {one.account: one.count for one in before}
    return [
        DeniedAccount(
            account=one.account,
            count=one.count,
            window_count=max(0, one.count - then.get(one.account, 0)),
            last_s=one.last_s,
            span_s=one.span_s,
        )
        for one in after
    ]


# What the server's error log says of replication: its end is read, counted and forgotten.

_END_BYTES = 256 << 10
SPAN_S = 600.0
_TEXT = 1000
# 2026-11-20 11:33:57 · 261120 11:33:57 · 2026-11-20T11:33:57.123456Z
_WHEN = re.compile(r"(?:(\d{4})-(\d\d)-(\d\d)|(\d\d)(\d\d)(\d\d))[ T]+(\d{1,2}):(\d\d):(\d\d)(?:\.\d+)?(Z)?")
_DUMP = re.compile(r"Start binlog_dump to (?:slave|replica)_server\((\d{1,10})\)")
_SAME = re.compile(r"same server[_ ]?(?:uuid|id)", re.IGNORECASE)
_RETRY = "reconnecting to retry"
# Behind the words in brackets: within a statement that a line quotes, it is a value of a client's.
_SERVERLOG_DENIED = re.compile(
    r"^[^\[\]]{0,80}(?:\[[\w-]{1,40}\] ){1,4}Access denied for user '([^']{0,80})'@'([^']{0,255})'"
)
# MariaDB: "Slave SQL: Error …"; MySQL: "Replica SQL for channel '': Error …" and workers' "Worker 1 failed executing".
# Looked for behind the first [ERROR] of a line: a client's statement stands in it, and 64 KB that say [ERROR] again and
# again took 9 s where each was tried. A channel's name has at most 64 characters.
_SQL_ERROR = re.compile(r"\b(?:Slave|Replica) SQL(?: for channel '[^']{0,64}')?: (.*)")
_STARTED = re.compile("I/O thread: (Start asynchronous replication|connected to master)|ready for connections")


def read_log_end(pid: int) -> str | None:
    """The end of what the process writes to stderr, if that is a file: a server's error log is (log_error too)."""
    data = shared().read(pid, procfs() / str(pid) / "fd/2", _END_BYTES, from_end=True)
    return None if data is None else data.decode("utf-8", errors="replace")


def summarise(text: str, now_s: float | None = None) -> LogSummary:
    """Pure but for the clock and the time zone: count what the last ten minutes of a log say."""
    now_s = time.time() if now_s is None else now_s
    same = retries = sql_errors = 0
    sql_error: str | None = None
    sql_last: float | None = None
    denied: dict[str, int] = {}
    denied_lasts: dict[str, float] = {}
    dumps: dict[str, int] = {}
    lasts: dict[str, float] = {}
    first: float | None = None
    when: float | None = None
    last: float | None = None
    for line in text.splitlines():
        when = _moment(line) or when
        if when is None or not 0 <= now_s - when + 1 <= SPAN_S:
            continue
        first = when if first is None else min(first, when)
        if _STARTED.search(line):
            same = retries = 0
        elif _SAME.search(line):
            same, last = same + 1, now_s - when
        elif _RETRY in line:
            retries += 1
        elif dump := _DUMP.search(line):
            dumps[dump[1]] = dumps.get(dump[1], 0) + 1
            lasts[dump[1]] = now_s - when
        elif refused := _SERVERLOG_DENIED.search(line):
            account = f"{refused[1]}@{refused[2]}"
            denied[account] = denied.get(account, 0) + 1
            denied_lasts[account] = now_s - when
        elif failed := _SQL_ERROR.search(line.partition("[ERROR]")[2]):
            sql_error, sql_errors, sql_last = failed[1][:_TEXT], sql_errors + 1, now_s - when
    span = max(0.0, now_s - first) if first is not None else 0.0
    return LogSummary(
        span_s=span,
        same_id_count=same,
        same_id_last_s=last if same else None,
        retries_count=retries,
        dump_starts=_most(dumps),
        dump_last_s={key: lasts[key] for key in _most(dumps)},
        denied=_most(denied),
        denied_last_s={key: denied_lasts[key] for key in _most(denied)},
        sql_error=None if sql_error is None else normalise_replication_error(sql_error),
        sql_errors_count=sql_errors,
        sql_error_last_s=sql_last,
    )


def _most(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda entry: -entry[1])[:32])


def _moment(line: str) -> float | None:
    stamp = _WHEN.match(line)
    if not stamp:
        return None
    year = int(stamp[1]) if stamp[1] else 2000 + int(stamp[4])
    month, day = (int(stamp[2]), int(stamp[3])) if stamp[1] else (int(stamp[5]), int(stamp[6]))
    try:
        moment = datetime(year, month, day, int(stamp[7]), int(stamp[8]), int(stamp[9]))
        return (moment.astimezone() if not stamp[10] else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def log_of(pid: int | None) -> LogSummary | None:
    """The summary for a process of this host; None where its log cannot be read."""
    text = read_log_end(pid) if pid is not None else None
    return summarise(text) if text is not None else None


# CPU time of a process and of its threads, between two moments.

_MOST = 16


@dataclass(frozen=True)
class CpuTimes:
    """Nanoseconds at a moment: of the process with threads that have ended, and of each thread."""

    at_s: float
    process_ns: int
    threads_ns: Mapping[int, int]


def read(pid: int) -> CpuTimes | None:
    """Now; None where the process has gone. Threads by schedstat (Documentation/scheduler/sched-stats.rst)."""
    folder = paths.procfs() / str(pid) / "task"
    try:
        tids = [int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()]
    except OSError:
        return None
    threads: dict[int, int] = {}
    for tid in tids:
        words = (try_text(folder / str(tid) / "schedstat") or "").split()
        spent = whole(words[0]) if words else None
        if spent is not None:
            threads[tid] = spent
    process = process_cpu_ns(pid)
    return None if process is None else CpuTimes(time.monotonic(), process, threads)


def cpu_time_between(
    before: CpuTimes | None, after: CpuTimes | None, pid: int, names: Mapping[int, str]
) -> dict[str, Any]:
    """The fields of the evidence; none where one of the two is missing. A thread of the second moment alone is new:
    all of it is of the window."""
    if before is None or after is None or after.at_s <= before.at_s:
        return {}
    span_ns = (after.at_s - before.at_s) * 1e9
    spent = {tid: max(0, value - before.threads_ns.get(tid, 0)) for tid, value in after.threads_ns.items()}
    process = max(0, after.process_ns - before.process_ns)
    most = sorted(spent, key=lambda tid: -spent[tid])[:_MOST]
    return {
        "cpu_percent": 100.0 * process / span_ns,
        "threads_cpu": [
            ThreadCpu(tid=tid, comm=look_up(tid, pid).comm, name=names.get(tid), percent=100.0 * spent[tid] / span_ns)
            for tid in most
            if spent[tid]
        ],
        "ended_cpu_percent": 100.0 * max(0, process - sum(spent.values())) / span_ns,
    }


_SAMPLES = 8
_SAMPLE_S = 0.04
_ROWS = 80
_FRAMES = 24
_TIMERS = ("timer", "tick")
# Reading a word takes some 10 µs; at each edge of a window all statements together may take half a second.
_MOST_WORDS = 40_000


@dataclass(frozen=True)
class Subject:
    """The server: its process on this host, its connection; one of the two may be None.

    `target` has all its processes, where it works in several.
    """

    pid: int | None
    label: str
    connection: Sql | None
    version: str
    address: str | None
    target: Target | None = None


@dataclass(frozen=True)
class Look:
    """What one look yields: the evidence, and the trace that it was made from (None: not traced).

    `interrupted`: SIGINT or SIGTERM ended it early.
    """

    evidence: Evidence
    attribution: Attribution | None
    capture: Capture | None
    interrupted: bool

    @property
    def files(self) -> dict[str, bytes]:
        """What is kept beside the diagnosis."""
        from powerprof.attribution import capture

        return {capture.FILE: capture.encode(self.capture)} if self.capture is not None else {}


def look(subject: Subject, duration_s: float, say: Say) -> Look:
    """Look at the server for `duration_s`. Raises PowerprofError where it goes away meanwhile."""
    notes: list[str] = []
    asked = Asked(subject.connection, notes, subject.pid)
    asked.before()
    cpu_before = None if subject.pid is None else read(subject.pid)
    started_s = time.monotonic()
    capture = attribution = None
    if subject.pid is not None:
        try:
            capture, attribution = _trace(subject, asked, duration_s, say)
        except CapabilityError as error:
            notes.append(f"not traced, so which thread wakes is unknown: {error.message}")
    else:
        notes.append("not traced: the server runs on another host, or its process was not found")
    left_s = duration_s - (time.monotonic() - started_s)
    interrupted = attribution is not None and attribution.interrupted
    if attribution is None and left_s > 0:
        say(f"watching {subject.label} for {left_s:.0f} s")
        interrupted = run_window(left_s).interrupted is not None
    cpu_after = None if subject.pid is None else read(subject.pid)
    asked.after()
    asked.facts |= cpu_time_between(cpu_before, cpu_after, subject.pid or 0, asked.names)
    evidence = evidence_of(subject, asked, attribution, duration_s, notes)
    return Look(evidence, attribution, capture, interrupted)


def evidence_of(
    subject: Subject, asked: Asked, attribution: Attribution | None, duration_s: float, notes: list[str]
) -> Evidence:
    """What was asked before and after a window, with the server's wake-ups in it (None: not traced)."""
    return Evidence(
        version=subject.version,
        family=_family(subject),
        pid=subject.pid,
        language=None if subject.pid is None else language_of(subject.pid),
        cpus=attribution.cpus if attribution else None,
        timers_hz=timers_hz(attribution) if attribution else None,
        window_s=asked.window_s or duration_s,
        traced_s=attribution.window_s if attribution else None,
        exits_hz=sum(wakeup.rate_hz for wakeup in attribution.wakeups) if attribution else None,
        wakeups=[] if attribution is None else rows_of(attribution),
        log=log_of(subject.pid) if _family(subject) in ASKABLE else None,
        asked=subject.connection is not None,
        notes=notes,
        **asked.facts,
    )


def _family(subject: Subject) -> str:
    """`mariadb`, `mysql`, else the name of the program."""
    if "mariadb" in subject.version.lower():
        return "mariadb"
    return "mysql" if subject.connection is not None or is_server_name(subject.label) else subject.label


def timers_hz(attribution: Attribution) -> float | None:
    """How often timers end idle periods of one CPU, whosever they are."""
    if not attribution.window_s or not attribution.cpus:
        return None
    own = sum(row.count for row in attribution.wakeups if row.mechanism in _TIMERS)
    others = sum(cause.count for cause in attribution.other_causes if cause.mechanism in _TIMERS)
    return (own + others) / attribution.window_s / attribution.cpus


def _trace(subject: Subject, asked: Asked, duration_s: float, say: Say) -> tuple[Capture, Attribution]:
    import msgspec

    from powerprof.attribution import attribute, blame
    from powerprof.attribution.requests import AttributeRequest
    from powerprof.attribution.sites import SiteStacks

    target = subject.target or Target((subject.pid or 0,), subject.label)
    taken = attribute.trace_target(target, AttributeRequest(duration_s=duration_s), asked.thread_names, say)
    say("unwinding and naming")
    stacks = SiteStacks(taken)
    record = blame.build_attribution(taken, stacks)
    return msgspec.structs.replace(taken, named=stacks.export_names()), record


def rows_of(attribution: Attribution) -> list[ThreadWakeups]:
    """The rows of most idle exits, then those that were woken most and ended none: on a busy host, all of them."""
    window_s = attribution.window_s
    ended = [
        _row(
            cause,
            rate_hz=cause.rate_hz,
            wakings_hz=None if cause.wakings_count is None or not window_s else cause.wakings_count / window_s,
            period_ms=cause.period_ms,
        )
        for cause in attribution.wakeups[:_ROWS]
    ]
    ended_none = attribution.wakings_without_exit[:_ROWS]
    return ended + [_row(cause, rate_hz=0.0, wakings_hz=cause.wakings_hz, period_ms=None) for cause in ended_none]


def _row(cause: Wakeup | Waking, *, rate_hz: float, wakings_hz: float | None, period_ms: float | None) -> ThreadWakeups:
    waker = cause.waker
    return ThreadWakeups(
        tid=cause.thread.tid,
        comm=cause.thread.comm,
        name=cause.thread.server_name,
        origin=cause.origin,
        rate_hz=rate_hz,
        wakings_hz=wakings_hz,
        period_ms=period_ms,
        stack=[frame.label for frame in cause.stack[:_FRAMES]],
        waker=None if waker is None else (waker.server_name or waker.comm),
    )


class Asked:
    """What the server says before and after; nothing where there is no connection."""

    def __init__(self, connection: Sql | None, notes: list[str], pid: int | None) -> None:
        self._connection = connection
        self._pid = pid
        self._notes = notes
        self._began_s = 0.0
        self._end: tuple[str, int] | None = None
        self._statements: dict[int, dict[str, int]] = {}
        self._denied: list[DeniedAccount] = []
        self._named_count = 0
        self.names: Mapping[int, str] = {}
        self.window_s = 0.0
        self.facts: dict[str, Any] = {}

    def thread_names(self) -> Mapping[int, str]:
        """performance_schema's names of the server's threads."""
        if self._connection is not None:
            self._named_count += 1
            self.names = sql.read_thread_names(self._connection, self._pid)
        elif self._pid is not None:
            self.names = read_local_thread_names(self._pid)
        return self.names

    def _ask(self, what: str, question: Callable[[Sql], Any], otherwise: Any) -> Any:
        if self._connection is None:
            return otherwise
        connection = self._connection
        return asking.quietly(lambda: question(connection), otherwise, what, self._notes)

    @limit_texts(_MOST_WORDS)
    def before(self) -> None:
        """Everything that needs two readings; the counters last."""
        if self._connection is None:
            return
        self.facts["variables"] = self._ask("settings", asking.variables, {})
        self.facts["channels_before"] = self._ask("replication", asking.channels, [])
        self.facts["clients_before"] = self._ask("the process list", asking.clients, [])
        self.facts["events"] = self._ask("scheduled events", asking.events, [])
        self.facts["replica_accounts"] = asking.replica_accounts(self._connection)
        self.facts["tids"] = asking.connection_threads(self._connection, self._pid)
        self._end = self._ask("the binary log", asking.log_end, None)
        self._statements = asking.statements_by_connection(self._connection)
        self._denied = denied(self._connection)
        self.facts["status_before"] = asking.status(self._connection)
        self._began_s = time.monotonic()

    @limit_texts(_MOST_WORDS)
    def after(self) -> None:
        """The counters first."""
        if self._connection is None:
            return
        self.facts["status_after"] = asking.status(self._connection)
        self.window_s = time.monotonic() - self._began_s
        # Counters move before they are shown: the second SHOW STATUS has counted itself, the first one too.
        self.facts["own_counts"] = self._own_counts()
        self.facts["denied"] = between(self._denied, denied(self._connection))
        self.facts["last_statements"] = asking.last_statements(self._connection)
        self.facts["statements_by_connection"] = _moved(
            self._statements, asking.statements_by_connection(self._connection)
        )
        self.facts["channels_after"] = self._ask("replication", asking.channels, [])
        if self.facts["events"]:
            self.facts["events_after"] = self._ask("scheduled events", asking.events, [])
        if self._end is not None:
            end = self._ask("the binary log", asking.log_end, None)
            if end is not None and end[0] == self._end[0]:
                self.facts["position_before_bytes"], self.facts["position_after_bytes"] = self._end[1], end[1]
                if end[1] > self._end[1]:
                    since = self._end
                    self.facts["logged"] = self._ask("the binary log", lambda sql_: asking.logged(sql_, since), [])
        self._sample(self._connection)

    def _own_counts(self) -> dict[str, int]:
        """Of powerprof's statements between the two: the first SHOW STATUS with the question after it, and names."""
        asked, shown = self._named_count + 1, len(self.facts["status_before"])
        return {
            "Com_show_status": 1,
            "Com_select": asked,
            "Select_scan": asked + 1,
            "Rows_sent": shown + 1 + self._named_count * len(self.names),
            "Handler_read_rnd_next": shown + 1 + self._named_count * len(self.names),
        }

    def _sample(self, connection: Sql) -> None:
        """The process list and the list of replicas, some times shortly after one another."""
        samples: list[list[asking.RawClient]] = []
        hosts: dict[ReplicaHost, None] = {}
        seen: list[ReplicationChannel] = []
        replicates = bool(self.facts["channels_before"] or self.facts["channels_after"])
        began_s = time.monotonic()
        for number in range(_SAMPLES):
            if number:
                time.sleep(_SAMPLE_S)
            samples.append(asking.raw_clients(connection))
            if replicates:
                seen += self._ask("replication", asking.channels, [])
            hosts.update(dict.fromkeys(self._ask("the list of replicas", asking.replicas, [])))
        self.facts["samples_span_s"] = time.monotonic() - began_s
        self.facts["samples"] = [asking.with_statements(sample) for sample in samples]
        self.facts["replicas"] = list(hosts)
        self.facts["channels_seen"] = seen


def _moved(before: Mapping[int, dict[str, int]], after: Mapping[int, dict[str, int]]) -> dict[int, dict[str, int]]:
    """What each connection sent between the two, of those that sent anything."""
    moved = {
        number: {name: count - before.get(number, {}).get(name, 0) for name, count in counts.items()}
        for number, counts in after.items()
    }
    return {
        number: sent
        for number, counts in moved.items()
        if (sent := {name: count for name, count in counts.items() if count > 0})
    }
