# SPDX-License-Identifier: Apache-2.0
"""The collection of evidence: query the server, trace it, query it again. Queries run outside the traced window."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec.structs import asdict

from powerprof.database import sql
from powerprof.database.local_login import read_local_thread_names
from powerprof.diagnosis import postgres_queries, server_queries
from powerprof.diagnosis.cpu_times import (
    CpuTimes,
    OtherProcesses,
    WaitingTransactions,
    add_titles,
    compute_cpu_shares,
    read_cpu_times,
)
from powerprof.diagnosis.evidence import (
    DUMPS,
    SQL_FAMILIES,
    CpuShares,
    DeniedAccount,
    Evidence,
    LogSummary,
    Neighbour,
    ReplicaHost,
    ReplicationChannel,
    ServerFacts,
    StartsWatch,
    StatementWindow,
)
from powerprof.diagnosis.process_starts import WATCH_S, watch_starts
from powerprof.diagnosis.statement_window import measure_statements
from powerprof.diagnosis.thread_wakeups import compute_timers_hz, list_thread_wakeups
from powerprof.measure.progress import announce
from powerprof.measure.target_life import TargetLife, raise_ended
from powerprof.measure.window import run_window
from powerprof.model.records import Ended, ended_by_signal
from powerprof.model.statements import limit_texts, normalise_replication_error
from powerprof.model.text import Say
from powerprof.system import signals
from powerprof.system.errors import CapabilityError, Interrupted, PowerprofError
from powerprof.system.processes import language_of, name_of
from powerprof.system.reader_process import shared
from powerprof.system.server_names import is_mysql_program, is_postgres_program
from powerprof.system.targets import Target
from powerprof.system.tasks import is_stopped, process_folder

if TYPE_CHECKING:
    from powerprof.attribution.capture import Capture
    from powerprof.database.base import Login, Sql
    from powerprof.model.attribution import Attribution


T = TypeVar("T")

_LOG_END_BYTES = 256 << 10
_LOG_SPAN_S = 600.0
_MOST_ERROR = 1000
# 2026-11-20 11:33:57 · 261120 11:33:57 · 2026-11-20T11:33:57.123456Z
_WHEN = re.compile(r"(?:(\d{4})-(\d\d)-(\d\d)|(\d\d)(\d\d)(\d\d))[ T]+(\d{1,2}):(\d\d):(\d\d)(?:\.\d+)?(Z)?")
_DUMP = re.compile(r"Start binlog_dump to (?:slave|replica)_server\((\d{1,10})\)")
_SAME = re.compile(r"same server[_ ]?(?:uuid|id)", re.IGNORECASE)
# The match begins with the words in brackets. Elsewhere the same words may be a value in a quoted statement.
_DENIED = re.compile(r"^[^\[\]]{0,80}(?:\[[\w-]{1,40}\] ){1,4}Access denied for user '([^']{0,80})'@'([^']{0,255})'")
# MariaDB prints "Slave SQL: Error ...". MySQL prints "Replica SQL for channel '': Error ..." and, for workers,
# "Worker 1 failed executing". Only the text after the first [ERROR] of a line is searched, because the line may quote
# a client's statement: a search from each [ERROR] in 64 KB of them took 9 s. Channel names have at most 64 characters.
_SQL_ERROR = re.compile(r"\b(?:Slave|Replica) SQL(?: for channel '[^']{0,64}')?: (.*)")
_STARTED = re.compile("I/O thread: (Start asynchronous replication|connected to master)|ready for connections")


def read_log_end(pid: int) -> str | None:
    """Return the end of the file that the process uses as stderr, the error log of a server; None if unreadable."""
    data = shared().read(pid, process_folder(pid) / "fd/2", _LOG_END_BYTES, from_end=True)
    return None if data is None else data.decode("utf-8", errors="replace")


def summarise_log(text: str, now_s: float | None = None) -> LogSummary:
    """Return the counts of replication messages in the last ten minutes of an error log.

    Times without a zone are local times. `now_s` is in seconds since the epoch.
    """
    now_s = time.time() if now_s is None else now_s
    same_ids = retries = sql_errors = 0
    sql_error: str | None = None
    sql_error_last_s: float | None = None
    denied: dict[str, int] = {}
    denied_last_s: dict[str, float] = {}
    dumps: dict[str, int] = {}
    dump_last_s: dict[str, float] = {}
    first_s: float | None = None
    line_s: float | None = None
    same_id_last_s: float | None = None
    for line in text.splitlines():
        # A line without a time continues the line before it.
        line_s = _parse_time(line) or line_s
        if line_s is None or not 0 <= now_s - line_s + 1 <= _LOG_SPAN_S:
            continue
        first_s = line_s if first_s is None else min(first_s, line_s)
        age_s = now_s - line_s
        if _STARTED.search(line):
            same_ids = retries = 0
        elif _SAME.search(line):
            same_ids, same_id_last_s = same_ids + 1, age_s
        elif "reconnecting to retry" in line:
            retries += 1
        elif dump := _DUMP.search(line):
            dumps[dump[1]] = dumps.get(dump[1], 0) + 1
            dump_last_s[dump[1]] = age_s
        elif denial := _DENIED.search(line):
            account = f"{denial[1]}@{denial[2]}"
            denied[account] = denied.get(account, 0) + 1
            denied_last_s[account] = age_s
        elif error := _SQL_ERROR.search(line.partition("[ERROR]")[2]):
            sql_error, sql_errors, sql_error_last_s = error[1][:_MOST_ERROR], sql_errors + 1, age_s
    dumps, denied = _select_most_frequent(dumps), _select_most_frequent(denied)
    return LogSummary(
        span_s=max(0.0, now_s - first_s) if first_s is not None else 0.0,
        same_id_count=same_ids,
        same_id_last_s=same_id_last_s if same_ids else None,
        retries_count=retries,
        dump_starts=dumps,
        dump_last_s={server_id: dump_last_s[server_id] for server_id in dumps},
        denied=denied,
        denied_last_s={account: denied_last_s[account] for account in denied},
        sql_error=None if sql_error is None else normalise_replication_error(sql_error),
        sql_errors_count=sql_errors,
        sql_error_last_s=sql_error_last_s,
    )


def _select_most_frequent(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda entry: -entry[1])[:32])


def _parse_time(line: str) -> float | None:
    """Return the time at the beginning of a log line in seconds since the epoch; None without one."""
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


_SAMPLES = 8
_REPLICA_COUNTERS = ("Com_register_slave", "Com_binlog_dump", DUMPS)
_SAMPLE_S = 0.04
# Reading a word takes about 10 µs. At each end of a window all statements together may take half a second.
_MOST_WORDS = 40_000


class Subject(msgspec.Struct, frozen=True):
    """The server to inspect.

    Attributes:
        pid: Its process on this host; None if it is unknown. Either this or `connection` is present.
        target: All its processes, if it has several.
    """

    pid: int | None
    label: str
    connection: Sql | None
    version: str
    address: str | None
    target: Target | None = None
    login: Login | None = None

    @property
    def processes(self) -> Target:
        """The processes of the server; without a process on this host none ever ends."""
        return self.target or Target(() if self.pid is None else (self.pid,), self.label)


class Inspection(msgspec.Struct, frozen=True):
    """The evidence about a server and its trace, which is None if the server was not traced.

    Attributes:
        ended: The early end of the inspection, by a signal or because the server stopped.
        refusal: The reason why the server was not traced, if this host or user may not.
    """

    evidence: Evidence
    attribution: Attribution | None
    capture: Capture | None
    ended: Ended | None
    refusal: CapabilityError | None = None

    @property
    def files(self) -> dict[str, bytes]:
        """The files to save with the diagnosis."""
        from powerprof.attribution import capture

        return {capture.FILE: capture.encode(self.capture)} if self.capture is not None else {}


def inspect_server(subject: Subject, duration_s: float, say: Say) -> Inspection:
    """Return the evidence of `duration_s` seconds. Raise PowerprofError if the server ends during the inspection."""
    with TargetLife(subject.processes) as life:
        return _inspect(subject, duration_s, life, say)


def _inspect(subject: Subject, duration_s: float, life: TargetLife, say: Say) -> Inspection:
    notes: list[str] = []
    if subject.pid is not None and is_stopped(subject.pid):
        notes.append("not traced: the server is stopped")
        return Inspection(build_silent_evidence(subject, None, duration_s, notes), None, None, None)
    readings = ServerReadings(subject.connection, notes, subject.pid, subject.target)
    readings.read_before()
    others = OtherProcesses()
    started_s = time.monotonic()
    capture = attribution = refusal = None
    if subject.pid is not None:
        try:
            capture, attribution = _trace(subject, readings, duration_s, say)
        except CapabilityError as error:
            refusal = error
            notes.append(f"not traced, so which thread wakes is unknown: {error.message}")
    else:
        notes.append("not traced: the server runs on another host, or its process was not found")
    left_s = duration_s - (time.monotonic() - started_s)
    ended = None if attribution is None else attribution.ended
    if attribution is None and left_s > 0:
        announce(say, f"watching {subject.label}", left_s)
        ended = run_window(left_s, life).ended
    if ended is not None and ended.is_of_target:
        if ended.how not in ("target_stopped", "target_frozen"):
            raise_ended(ended)
        evidence = build_silent_evidence(subject, attribution, ended.after_s or duration_s, notes)
        return Inspection(evidence, attribution, capture, ended, refusal)
    readings.read_after()
    readings.neighbour = others.find_largest(readings.list_pids())
    if readings.postgres_pid is not None and ended is None:
        announce(say, "watching new processes", WATCH_S)
        readings.watch_starts()
    if attribution is not None and ended is None and not (subject.pid is not None and is_stopped(subject.pid)):
        try:
            signals.release()  # Signals are held from the end of the traced window.
            window = _measure_statements(subject, readings.cpu.cpu_percent, duration_s, say, notes)
            readings.statement_window = window
            ended = None if window is None else window.ended
        except Interrupted:  # The traced window is complete and stays.
            ended = ended_by_signal(True)
        finally:
            signals.hold()
    evidence = build_evidence(subject, readings, attribution, duration_s, notes)
    return Inspection(evidence, attribution, capture, ended, refusal)


def build_silent_evidence(
    subject: Subject, attribution: Attribution | None, duration_s: float, notes: list[str]
) -> Evidence:
    """Return the evidence of a stopped server, which answers no question."""
    silent = msgspec.structs.replace(subject, connection=None, login=None)
    readings = ServerReadings(None, notes, subject.pid, subject.target)
    return build_evidence(silent, readings, attribution, duration_s, notes)


def _measure_statements(
    subject: Subject, before_percent: float | None, before_s: float, say: Say, notes: list[str]
) -> StatementWindow | None:
    """Return the statements by CPU use; None and a note if they cannot be measured here."""
    from powerprof.queries.target import TracedServer, find_server

    try:
        if subject.pid is None or is_postgres_program(name_of(subject.pid)):
            server = find_server(str(subject.pid), None, None, None)
        elif is_mysql_program(name_of(subject.pid)):
            server = TracedServer(subject.pid, subject.label, subject.version, subject.login)
        else:
            return None
        return measure_statements(server, before_percent, before_s, say)
    except PowerprofError as error:
        notes.append(f"its statements were not measured: {error.message}")
        return None


def build_evidence(
    subject: Subject, readings: ServerReadings, attribution: Attribution | None, duration_s: float, notes: list[str]
) -> Evidence:
    """Return the readings of the server with its wake-ups (None: not traced) and the summary of its error log."""
    if "mariadb" in subject.version.lower():
        family = "mariadb"
    elif _is_postgresql(subject.connection):
        family = "postgres"
    else:
        family = "mysql" if subject.connection is not None or is_mysql_program(subject.label) else subject.label
    log = read_log_end(subject.pid) if family in SQL_FAMILIES and subject.pid is not None else None
    return Evidence(
        **asdict(readings.facts),
        **asdict(readings.cpu),
        **asdict(readings.watch),
        version=subject.version,
        family=family,
        pid=subject.pid,
        language=None if subject.pid is None else language_of(subject.pid),
        cpus=attribution.cpus if attribution else None,
        is_stopped=subject.pid is not None and is_stopped(subject.pid),
        timers_hz=compute_timers_hz(attribution) if attribution else None,
        window_s=readings.window_s or duration_s,
        traced_s=attribution.window_s if attribution else None,
        exits_hz=sum(wakeup.rate_hz for wakeup in attribution.wakeups) if attribution else None,
        wakeups=[] if attribution is None else list_thread_wakeups(attribution),
        log=None if log is None else summarise_log(log),
        asked=subject.connection is not None,
        notes=notes,
        statement_window=readings.statement_window,
        neighbour=readings.neighbour,
    )


def _is_postgresql(connection: Sql | None) -> bool:
    return connection is not None and connection.family == "postgresql"


def _trace(subject: Subject, readings: ServerReadings, duration_s: float, say: Say) -> tuple[Capture, Attribution]:
    import msgspec

    from powerprof.attribution import attribute, blame
    from powerprof.attribution.requests import AttributeRequest
    from powerprof.attribution.sites import SiteStacks

    request = AttributeRequest(duration_s=duration_s)
    capture = attribute.trace_target(subject.processes, request, readings.read_thread_names, say)
    say("unwinding and naming")
    stacks = SiteStacks(capture)
    attribution = blame.build_attribution(capture, stacks)
    return msgspec.structs.replace(capture, named=stacks.export_names()), attribution


class ServerReadings:
    """The readings from a server before and after a window; empty without a connection.

    Attributes:
        postgres_pid: The first process of PostgreSQL; None for other servers.
        names: The thread names of the server by thread number.
        window_s: Seconds between the two readings of the counters.
        facts: What the server reported.
        cpu: Its CPU use between the two readings.
        watch: The processes that PostgreSQL started after the window.
        neighbour: The other process of this host with the highest CPU use.
    """

    def __init__(self, connection: Sql | None, notes: list[str], pid: int | None, target: Target | None = None) -> None:
        self._connection = connection
        self._pid, self._target = pid, target
        self.postgres_pid = pid if pid is not None and is_postgres_program(name_of(pid)) else None
        self._waiting: WaitingTransactions | None = None
        self._notes = notes
        self._began_s = 0.0
        self._binlog_end: tuple[str, int] | None = None
        self._statements: dict[int, dict[str, int]] = {}
        self._denied: list[DeniedAccount] = []
        self._name_queries = 0
        self._cpu: CpuTimes | None = None
        self._own_id: int | None = None
        self._own_ids: set[int] = set()
        self._hidden_before: int | None = None
        self.refused: dict[str, str] = {}
        self.names: Mapping[int, str] = {}
        self.window_s = 0.0
        self.facts = ServerFacts()
        self.cpu = CpuShares()
        self.watch = StartsWatch()
        self.statement_window: StatementWindow | None = None
        self.neighbour: Neighbour | None = None

    def read_thread_names(self) -> Mapping[int, str]:
        """Return the thread names of the server by thread number."""
        if self._connection is not None and not _is_postgresql(self._connection):
            self._name_queries += 1
            self.names = sql.read_thread_names(self._connection, self._pid)
        elif self.postgres_pid is not None:
            # Any other server without a connection has just refused the login, or let it wait.
            self.names = read_local_thread_names(self.postgres_pid)
        return self.names

    def list_pids(self) -> Sequence[int]:
        """Return the processes of the server; empty if they are unknown."""
        if self._target is not None:
            return self._target.members() or self._target.pids
        return [] if self._pid is None else [self._pid]

    def _read_cpu_times(self) -> CpuTimes | None:
        pids = self.list_pids()
        return read_cpu_times(pids) if pids else None

    def _query(self, subject: str, query: Callable[[Sql], T], default: T) -> T:
        connection = self._connection
        if connection is None:
            return default
        return server_queries.query_or_default(lambda: query(connection), default, subject, self.refused)

    @limit_texts(_MOST_WORDS)
    def read_before(self) -> None:
        """Read everything that needs two readings, the counters last."""
        self._waiting = WaitingTransactions(self.postgres_pid)
        if self._connection is None:
            self._cpu = self._read_cpu_times()
            return
        if _is_postgresql(self._connection):
            self._read_postgres_before(self._connection)
            return
        self._own_id = sql.parse_count(sql.fetch_scalar(self._connection, "SELECT CONNECTION_ID()"))
        self._note_instances(self._connection)
        server_queries.mark_connection(self._connection)
        self.facts.variables = self._query("settings", server_queries.read_settings, {})
        self.facts.channels_before = self._query("replication", server_queries.read_channels, [])
        raw: list[server_queries.RawClient] = self._query("the process list", server_queries.read_raw_clients, [])
        self.facts.events = self._query("scheduled events", server_queries.read_events, [])
        self.facts.replica_accounts = server_queries.read_replica_accounts(self._connection)
        self.facts.tids = server_queries.read_connection_threads(self._connection, self._pid)
        self._binlog_end = self._query("the binary log", server_queries.read_binlog_end, None)
        self._statements = server_queries.read_statements_by_connection(self._connection)
        self._denied = server_queries.read_denied_accounts(self._connection)
        self.facts.status_before = server_queries.read_counters(self._connection)
        self._began_s = time.monotonic()
        self._cpu = self._read_cpu_times()
        self.facts.clients_before = server_queries.select_clients(raw, self._own_ids)
        self._hidden_before = self._count_hidden(raw, self.facts.status_before)

    @limit_texts(_MOST_WORDS)
    def read_after(self) -> None:
        """Read everything at the end of the window, the counters first."""
        self.cpu = compute_cpu_shares(self._cpu, self._read_cpu_times(), self.names)
        if self.postgres_pid is not None:
            self.cpu = add_titles(self.cpu)
        if self._waiting is not None:
            self.facts.open_transactions = self._waiting.list_still_waiting()
        if self._connection is None:
            return
        if _is_postgresql(self._connection):
            self._read_postgres_after(self._connection)
            return
        self.facts.status_after = server_queries.read_counters(self._connection)
        self.window_s = time.monotonic() - self._began_s
        self.facts.own_counts = self._count_own_statements()
        self.facts.denied = server_queries.count_denied_in_window(
            self._denied, server_queries.read_denied_accounts(self._connection)
        )
        self.facts.last_statements = server_queries.read_last_statements(self._connection)
        self.facts.statements_by_connection = _subtract_counts(
            self._statements, server_queries.read_statements_by_connection(self._connection)
        )
        self.facts.channels_after = self._query("replication", server_queries.read_channels, [])
        if self.facts.events:
            self.facts.events_after = self._query("scheduled events", server_queries.read_events, [])
        self._read_binlog()
        self.facts.open_transactions = server_queries.read_open_transactions(self._connection)
        self._sample(self._connection)
        self._note_refused()

    def watch_starts(self, span_s: float = WATCH_S) -> None:
        """Watch the processes that PostgreSQL starts within `span_s` seconds. It uses at most a fifth of a CPU."""
        if self.postgres_pid is not None:
            self.watch = watch_starts(self.postgres_pid, span_s)

    def _read_postgres_before(self, connection: Sql) -> None:
        self.facts.variables = self._query("settings", postgres_queries.read_settings, {})
        before = postgres_queries.read_facts(connection, self.refused)
        self.facts.postgres_before = before
        self.facts.subscriptions_before = postgres_queries.read_subscriptions(connection, before.version, self.refused)
        self._began_s = time.monotonic()
        self._cpu = self._read_cpu_times()

    def _read_postgres_after(self, connection: Sql) -> None:
        after = postgres_queries.read_facts(connection, self.refused)
        self.window_s = time.monotonic() - self._began_s
        self.facts.postgres_after = after
        self.facts.subscriptions_after = postgres_queries.read_subscriptions(connection, after.version, self.refused)
        self.facts.open_transactions = postgres_queries.merge_transactions(
            postgres_queries.list_open_transactions(after), self.facts.open_transactions
        )
        self.facts.hidden_connections_count = after.hidden_count
        self._note_refused()

    def _note_refused(self) -> None:
        self.facts.refused = list(self.refused)
        self._notes += [f"{subject} could not be read: {reason}" for subject, reason in self.refused.items()]

    def _read_binlog(self) -> None:
        """Read the events since the first reading, unless the server changed to another file."""
        since = self._binlog_end
        end = None if since is None else self._query("the binary log", server_queries.read_binlog_end, None)
        if since is None or end is None or end[0] != since[0]:
            return
        self.facts.position_before_bytes, self.facts.position_after_bytes = since[1], end[1]
        if end[1] > since[1]:
            self.facts.logged = self._query(
                "the binary log", lambda connection: server_queries.read_binlog_events(connection, since), []
            )

    def _note_instances(self, connection: Sql) -> None:
        """Add the connections of all powerprof processes that look at the server now."""
        self._own_ids |= server_queries.read_instances(connection)
        if self._own_id is not None:
            self._own_ids.add(self._own_id)

    def _count_hidden(self, raw: list[server_queries.RawClient], status: Mapping[str, int]) -> int | None:
        return server_queries.count_hidden(raw, self._own_id, status.get("Threads_connected"))

    def _count_own_statements(self) -> dict[str, int]:
        """Return the counter increases that powerprof caused between the two readings of the counters.

        The server counts SHOW STATUS before it shows the counters. So the second one includes itself, as the first
        one did. The query for dumps follows the first one. The thread names were read in between.
        """
        selects, counters = self._name_queries + 1, len(self.facts.status_before)
        return {
            "Com_show_status": 1,
            "Com_select": selects,
            "Select_scan": selects + 1,
            "Rows_sent": counters + 1 + self._name_queries * len(self.names),
            "Handler_read_rnd_next": counters + 1 + self._name_queries * len(self.names),
        }

    def _sample(self, connection: Sql) -> None:
        """Read the process list, the replicas and the replication channels several times shortly after one another.

        A server without replicas is not asked for them: its own count of such statements would show powerprof.
        """
        samples: list[list[server_queries.RawClient]] = []
        replicas: dict[ReplicaHost, None] = {}
        channels: list[ReplicationChannel] = []
        replicates = bool(self.facts.channels_before or self.facts.channels_after)
        began_s = time.monotonic()
        self._note_instances(connection)
        for number in range(_SAMPLES):
            if number:
                time.sleep(_SAMPLE_S)
            samples.append(server_queries.read_raw_clients(connection))
            if replicates:
                channels += self._query("replication", server_queries.read_channels, [])
            if self._may_have_replicas(samples[-1]):
                listed: list[ReplicaHost] = self._query("the list of replicas", server_queries.read_replicas, [])
                replicas.update(dict.fromkeys(listed))
        self.facts.samples_span_s = time.monotonic() - began_s
        self._note_instances(connection)
        self.facts.samples = [server_queries.select_clients(sample, self._own_ids) for sample in samples]
        self.facts.clients_before = [client for client in self.facts.clients_before if client.id not in self._own_ids]
        hidden = [self._hidden_before, self._count_hidden(samples[0], self.facts.status_after)]
        # A connection that begins or ends between the two readings is not hidden.
        self.facts.hidden_connections_count = None if None in hidden else min(count or 0 for count in hidden)
        self.facts.other_instances_count = len(self._own_ids - {self._own_id})
        self.facts.replicas = list(replicas)
        self.facts.channels_seen = channels

    def _may_have_replicas(self, sample: list[server_queries.RawClient]) -> bool:
        """Return whether a replica reads the binary log, connects repeatedly, or cannot be seen by this account."""
        before, after = self.facts.status_before, self.facts.status_after
        moved = any(after.get(name, 0) > before.get(name, 0) for name in _REPLICA_COUNTERS)
        moved |= after.get("Slaves_connected", 0) > 0
        is_seen = any(client.command.startswith("Binlog Dump") for client, _ in sample)
        return is_seen or moved or bool(self._hidden_before)


def _subtract_counts(
    before: Mapping[int, dict[str, int]], after: Mapping[int, dict[str, int]]
) -> dict[int, dict[str, int]]:
    """Return the statements between two readings of the connections that sent any."""
    increases: dict[int, dict[str, int]] = {}
    for connection_id, counts in after.items():
        earlier = before.get(connection_id, {})
        sent = {name: count - earlier.get(name, 0) for name, count in counts.items() if count > earlier.get(name, 0)}
        if sent:
            increases[connection_id] = sent
    return increases
