# SPDX-License-Identifier: Apache-2.0
"""Records of a diagnosis: the evidence about a server, and the findings of the rules.

The evidence is the only input of the rules, so a recording gives the same findings without the server.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from powerprof.database.base import ReplicationStatus
from powerprof.database.sql import parse_number
from powerprof.diagnosis.postgres_evidence import PostgresFacts, Subscription
from powerprof.model.records import Ended, Record, ServerInfo
from powerprof.model.statements import NO_TEXT, NormalText
from powerprof.system.foreign_text import whole

SQL_FAMILIES = ("mariadb", "mysql")
"""Server families that are queried by SQL."""
DUMPS = "statement/com/Binlog Dump"
"""The counter of performance_schema for replicas that begin to read the binary log, among the status counters."""


class ThreadWakeups(msgspec.Struct, frozen=True, kw_only=True):
    """The wake-ups of one thread at one stack: a row of the attribution.

    Attributes:
        rate_hz: Idle exits attributed to this row; 0 if it was woken but ended no idle period.
        wakings_hz: All wake-ups at this stack; None if they were not counted.
        stack: Names of functions, innermost first.
    """

    tid: int
    comm: str
    name: str | None
    origin: str
    rate_hz: float
    wakings_hz: float | None
    period_ms: float | None
    stack: list[str] = []
    waker: str | None = None

    @property
    def woken_hz(self) -> float:
        """Wake-ups per second at this stack, whether or not they ended an idle period."""
        return max(self.rate_hz, self.wakings_hz or 0.0)


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the process list.

    Attributes:
        tid: The thread number of the kernel.
        query_id: A number that changes with every statement (MariaDB).
    """

    id: int
    user: str
    host: str
    command: str
    time_s: float | None
    state: str
    statement: NormalText
    tid: int | None = None
    query_id: int | None = None


class ReplicationChannel(msgspec.Struct, frozen=True, kw_only=True):
    """A replication channel and its current relay log, whose number rises at every reconnect."""

    status: ReplicationStatus
    relay_log_file: str | None


class ReplicaHost(msgspec.Struct, frozen=True, kw_only=True):
    """A replica in the list of its source. A newer replica replaces an older one with the same id in that list."""

    server_id: int
    host: str
    port: int


class LogSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of replication messages in the last `span_s` of the error log, at most 10 minutes.

    Attributes:
        same_id_count: Evictions by a replica with the same id since replication was last started by hand.
            A start by hand may have repaired the fault, so earlier messages are left out.
        same_id_last_s: Seconds since the last such eviction. Other `*_last_s` fields follow this pattern.
        retries_count: Reconnects since replication was last started by hand.
        dump_starts: How often a replica began to read the binary log, by server id.
        denied: Refused logins by account (`user@host`).
        sql_error: The last error of the SQL thread of a replica.
        sql_errors_count: How often the SQL thread ended with an error.
    """

    span_s: float
    same_id_count: int = 0
    same_id_last_s: float | None = None
    retries_count: int = 0
    dump_starts: dict[str, int] = {}
    dump_last_s: dict[str, float] = {}
    denied: dict[str, int] = {}
    denied_last_s: dict[str, float] = {}
    sql_error: NormalText | None = None
    sql_errors_count: int = 0
    sql_error_last_s: float | None = None


class ScheduledEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A recurring event of the event scheduler.

    Attributes:
        name: The name to print.
        last_executed: The last start in the format of the server.
        database: The schema exactly as the server names it.
        event: The name exactly as the server stores it.
    """

    name: str
    interval_s: float
    enabled: bool
    last_executed: str | None = None
    database: str | None = None
    event: str | None = None


class ThreadCpu(msgspec.Struct, frozen=True, kw_only=True):
    """The CPU use of a thread in percent of one CPU. `name` is the thread name from the server.

    Attributes:
        account: The account (`user@host`) of the client that a process of PostgreSQL serves.
        age_s: Seconds since its start.
    """

    tid: int
    comm: str
    name: str | None
    percent: float
    account: str | None = None
    age_s: float | None = None


class RoleCpu(msgspec.Struct, frozen=True, kw_only=True):
    """The CPU use of the threads of one name in the window of statements, in percent of one CPU."""

    name: str
    percent: float
    threads_count: int = 1


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """Another process of the host with a high CPU use, in percent of one CPU."""

    pid: int
    comm: str
    percent: float


class OpenTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction whose client sends nothing.

    Attributes:
        connection: The number of the connection, or of the process of PostgreSQL.
        open_s: Seconds for which it is at least open.
        holds_versions: Whether old row versions stay because of it; None if unknown.
        application, statement: The name that the client gave itself, and its last statement.
    """

    connection: int
    account: str
    open_s: float
    holds_versions: bool | None = None
    application: str = ""
    statement: NormalText = NO_TEXT


class ProcessStarts(msgspec.Struct, frozen=True, kw_only=True):
    """The processes with one role that a server started while its processes were watched.

    Attributes:
        role: The role in the title, without accounts and statements; None if they ended before it could be read.
        unnamed_count: Of them, ended before their title could be read.
        account: The account (`user@host`) of most of them, if they serve clients.
        lasting_count: Those that serve clients and still ran at the end of the watch.
        lasting_spread_s: Seconds between the first and the last start of these.
    """

    role: str | None
    count: int
    unnamed_count: int = 0
    account: str | None = None
    lasting_count: int = 0
    lasting_spread_s: float = 0.0


class LoggedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event that was written to the binary log during the window.

    Attributes:
        info: The statement without values.
        text_number: A number for the full text: equal events have equal numbers.
    """

    server_id: int
    kind: str
    info: NormalText
    text_number: int | None = None


class StatementCpu(msgspec.Struct, frozen=True, kw_only=True):
    """The CPU use of one statement in the window of statements, in percent of one CPU.

    Attributes:
        calls_hz: Calls per second; None if samples could not count them.
        account: The account (`user@host`) with most of it; None if unknown.
        scan_percent: Share of its CPU time in sequential scans of tables, from its stacks (PostgreSQL).
        jit_percent, sort_percent: The same for compiling it (JIT), and for sorting.
    """

    text: NormalText
    percent: float
    calls_hz: float | None = None
    account: str | None = None
    scan_percent: float | None = None
    jit_percent: float | None = None
    sort_percent: float | None = None


class StatementWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The statements with the highest CPU use in `window_s` seconds after the traced window.

    Attributes:
        percent: CPU use of the whole server, in percent of one CPU.
        own_percent: CPU use of the statements of powerprof, which are in no row.
        connecting_percent: CPU use of connections between their statements, mostly to open and close them.
        roles: CPU use of threads that execute no statement of a client.
    """

    window_s: float
    method: str
    percent: float
    own_percent: float = 0.0
    connecting_percent: float = 0.0
    roles: list[RoleCpu] = []
    statements: list[StatementCpu] = []
    ended: Ended | None = None


class DeniedAccount(msgspec.Struct, frozen=True, kw_only=True):
    """An account (`user@host`) with refused logins, as counted by the server.

    Attributes:
        count: Refused logins since the server was started.
        window_count: Refused logins during the window.
        last_s: Seconds since the last one.
        span_s: Seconds between the first and the last one.
    """

    account: str
    count: int
    window_count: int
    last_s: float
    span_s: float


class ServerFacts(msgspec.Struct, kw_only=True):
    """What a server reports by SQL before and after a window.

    Attributes:
        own_counts: Counter increases between the two readings that powerprof itself caused.
        statements_by_connection: Statements of each connection in the window, by counter name.
            Empty without performance_schema.
        channels_seen: Replication channels in each of the samples. A thread that is restarted repeatedly
            is running in some of them.
        samples: Process lists that were taken shortly after one another at the end.
        replicas: All replicas that the source listed during the samples.
        replica_accounts: Accounts (`user@host`) with the right to replicate; empty if they may not be read.
        denied: Accounts with refused logins, if the server counts them.
        open_transactions: Transactions whose clients sent nothing for a long time, or during the whole window.
        tids: Kernel thread numbers by connection, for process lists without them.
        last_statements: The last statement of each connection (performance_schema).
        position_before_bytes: End of the binary log; None without one, or if the server changed to another file.
        other_instances_count: Connections of other powerprof processes, which are in no list of clients.
        hidden_connections_count: Connections that this account may not see; None if unknown.
        refused: The parts that the server did not let this account read.
        postgres_before, postgres_after: The facts of PostgreSQL; None for other servers and without a login.
        subscriptions_before: Logical subscriptions of PostgreSQL; None if they were not read.
    """

    status_before: dict[str, int] = {}
    status_after: dict[str, int] = {}
    own_counts: dict[str, int] = {}
    statements_by_connection: dict[int, dict[str, int]] = {}
    variables: dict[str, str] = {}
    channels_before: list[ReplicationChannel] = []
    channels_after: list[ReplicationChannel] = []
    channels_seen: list[ReplicationChannel] = []
    clients_before: list[Client] = []
    samples: list[list[Client]] = []
    samples_span_s: float = 0.0
    replicas: list[ReplicaHost] = []
    replica_accounts: list[str] = []
    denied: list[DeniedAccount] = []
    open_transactions: list[OpenTransaction] = []
    tids: dict[int, int] = {}
    last_statements: dict[int, NormalText] = {}
    events: list[ScheduledEvent] = []
    events_after: list[ScheduledEvent] = []
    logged: list[LoggedEvent] = []
    position_before_bytes: int | None = None
    position_after_bytes: int | None = None
    other_instances_count: int = 0
    hidden_connections_count: int | None = None
    refused: list[str] = []
    postgres_before: PostgresFacts | None = None
    postgres_after: PostgresFacts | None = None
    subscriptions_before: list[Subscription] | None = None
    subscriptions_after: list[Subscription] | None = None


class CpuShares(msgspec.Struct, frozen=True, kw_only=True):
    """The CPU use of a server in a window; the fields of `Evidence` with these names."""

    cpu_percent: float | None = None
    threads_cpu: list[ThreadCpu] = []
    ended_cpu_percent: float | None = None


class StartsWatch(msgspec.Struct, frozen=True, kw_only=True):
    """The processes that PostgreSQL started in a short time; the fields of `Evidence` with these names."""

    starts: list[ProcessStarts] = []
    starts_span_s: float | None = None
    archiver: str | None = None


class Evidence(ServerFacts, frozen=True, kw_only=True):  # type: ignore[misc]  # Only the readings change facts.
    """The data of one inspection of a server.

    Attributes:
        window_s: Time between `status_before` and `status_after`, which are read outside the traced window.
        traced_s: Length of the traced window; None without a trace.
        language: The run-time that sets timers on a few of its threads (Go, Java); None for other programs.
        timers_hz: Idle periods per second of one CPU that a timer of any program ended.
        cpus: Number of CPUs of the host.
        is_stopped: Whether a signal or a debugger has stopped process `pid`.
        cpu_percent: CPU use of the process in the traced window, in percent of one CPU.
        threads_cpu: The threads that ran through the whole window, highest CPU use first.
        ended_cpu_percent: CPU use of threads that ended in the window, such as event workers and connections.
        asked: Whether the server was queried by SQL.
        starts: Processes that PostgreSQL started within `starts_span_s`, after the traced window.
        starts_span_s: Seconds of that watch; None for other servers.
        archiver: The role in the title of PostgreSQL's archiver.
        statement_window: The statements by CPU use; None if they could not be measured.
        neighbour: The other process of this host with the highest CPU use, if it is high.
    """

    version: str
    family: str
    window_s: float
    traced_s: float | None = None
    exits_hz: float | None = None
    pid: int | None = None
    language: str | None = None
    timers_hz: float | None = None
    cpus: int | None = None
    is_stopped: bool = False
    log: LogSummary | None = None
    wakeups: list[ThreadWakeups] = []
    cpu_percent: float | None = None
    threads_cpu: list[ThreadCpu] = []
    ended_cpu_percent: float | None = None
    asked: bool = True
    starts: list[ProcessStarts] = []
    starts_span_s: float | None = None
    archiver: str | None = None
    statement_window: StatementWindow | None = None
    neighbour: Neighbour | None = None
    notes: list[str] = []

    def list_sampled_clients(self) -> list[Client]:
        """Return the clients of all process lists, in the order of the lists."""
        return [client for sample in [self.clients_before, *self.samples] for client in sample]

    @property
    def clients_after(self) -> list[Client]:
        """The last process list."""
        return self.samples[-1] if self.samples else []

    def read_number(self, setting: str) -> float | None:
        """Return a setting as a number; None if it is unknown or none."""
        return parse_number(self.variables.get(setting))

    @property
    def is_postgresql(self) -> bool:
        """Whether the server is PostgreSQL."""
        return self.starts_span_s is not None or self.postgres_after is not None

    @property
    def server_id(self) -> int | None:
        """The server id; None if the server did not report it."""
        return whole(self.variables.get("server_id", ""))

    def count_postgres(self, *names: str) -> int:
        """Return the total increase of these counters of PostgreSQL."""
        before, after = self.postgres_before, self.postgres_after
        if before is None or after is None:
            return 0
        return sum(max(0, after.counters.get(name, 0) - before.counters.get(name, 0)) for name in names)

    def count_increase(self, *names: str) -> int:
        """Return the total increase of these counters, without the statements of powerprof."""
        return sum(
            max(0, self.status_after[name] - self.status_before[name] - self.own_counts.get(name, 0))
            for name in names
            if name in self.status_before and name in self.status_after
        )

    def rate_hz(self, *names: str) -> float:
        """Return the total increase of these counters per second."""
        return self.count_increase(*names) / self.window_s if self.window_s > 0 else 0.0


Severity = Literal["fault", "note"]


TRIED_RULES = ("event_scheduler", "most_helpful", "polling_wait")
"""The rules whose findings may have a remedy to try live. Other findings have only advice."""


class LiveRemedy(msgspec.Struct, frozen=True, kw_only=True):
    """A change for `cure`: timer slack of thread `tid`, or a variable."""

    tid: int | None = None
    slack_ns: int | None = None
    variable: str | None = None
    value: str | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A cause of wake-ups.

    Attributes:
        severity: a `note` is normal behaviour.
        rate_hz: of the cause.
        percent: CPU use of the statements of a client in the short window, in percent of one CPU.
        account: the client's account (`user@host`).
        tries: remedies to try live, the preferred one first.
    """

    rule: str
    severity: Severity
    text: str
    evidence: list[str]
    remedy: list[str]
    rate_hz: float | None = None
    percent: float | None = None
    account: str | None = None
    stack: list[str] = []
    tries: list[LiveRemedy] = []


class DiagnosedServer(ServerInfo, frozen=True, kw_only=True):
    """The inspected server."""

    version: str
    address: str | None


class Diagnosis(Record, frozen=True, kw_only=True):
    """The findings, faults first, and the coverage of the inspection."""

    server: DiagnosedServer
    findings: list[Finding]
    evidence: Evidence
    looked_at: list[str] = []
    not_looked_at: list[str] = []
    not_visible: list[str] = []
    command: str = "diagnose"
    schema: Literal["powerprof.diagnosis/1"] = "powerprof.diagnosis/1"
