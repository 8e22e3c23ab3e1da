# SPDX-License-Identifier: Apache-2.0
"""What a diagnosis rests on: one frozen record of what a server reported and of what woke its threads.

Everything that the rules read is in it, so that a recorded one gives the same findings without the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from powerprof.database.clients.performance import ReplicationStatus
from powerprof.model.records import Notes, ToolCost
from powerprof.model.text import number
from powerprof.reversible.events import printable_name
from powerprof.statements.text import NormalText
from powerprof.system.files import whole

ASKABLE = ("mariadb", "mysql")
"""Families that are asked by SQL."""


class ThreadWakeups(msgspec.Struct, frozen=True, kw_only=True):
    """Idle exits blamed on one thread in one place: a row of the attribution, its stack as names, innermost first.

    `wakings_hz` is how often it was woken there at all, None where that was not counted. `rate_hz` is 0 where it was
    woken there but ended no idle period.
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


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the process list. `query_id` moves with every statement (MariaDB); `tid` is the kernel's."""

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
    """A replication channel, and the relay log that is being applied: its number rises at every reconnect."""

    status: ReplicationStatus
    relay_log_file: str | None


class ReplicaHost(msgspec.Struct, frozen=True, kw_only=True):
    """A replica as its source lists it. A newer one with the same id takes the older one's place in the list."""

    server_id: int
    host: str
    port: int


class LogSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What the error log says of replication. Counts are of the last `span_s`, at most 10 minutes.

    `same_id_count` and `retries_count` count from when replication was last started by hand, which is when the
    fault may have been mended. `dump_starts`: how often a replica with that server id began to read;
    `*_last_s` is how long ago it happened last. `denied`: how often which account (`user@host`) was not let in.
    `sql_errors_count`: how often a replica's SQL thread ended with an error; `sql_error` is the last one.
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
    """A recurring event of the event scheduler. `last_executed` in the server's words: it moves when it is started.
    `name` is for people; `database` and `event` are what the server calls it, whatever is in them."""

    name: str
    interval_s: float
    enabled: bool
    last_executed: str | None = None
    database: str | None = None
    event: str | None = None


class ThreadCpu(msgspec.Struct, frozen=True, kw_only=True):
    """What a thread of the server used of one CPU, in percent. `name` is the server's own."""

    tid: int
    comm: str
    name: str | None
    percent: float


class LoggedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event that was written to the binary log during the window.

    `info` has no values, so statements with other values look the same; equal events have the same `text_number`.
    """

    server_id: int
    kind: str
    info: NormalText
    text_number: int | None = None


class DeniedAccount(msgspec.Struct, frozen=True, kw_only=True):
    """An account (`user@host`) that was refused `count` times since the server was started, `window_count` of them in
    the window: over `span_s`, last `last_s` ago. By the server's own count."""

    account: str
    count: int
    window_count: int
    last_s: float
    span_s: float


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One look at one server.

    `window_s` lies between `status_before` and `status_after`, which were read outside of the traced window of
    `traced_s` (None: not traced). `samples` are process lists taken shortly after one another at the end;
    `replicas` all that the source listed meanwhile. `position_*_bytes` are where the binary log ended, None
    without one or where it changed to another file. `statements_by_connection` has how often each connection sent
    which statement in the window, by the names of the counters; empty without performance_schema. `own_*` are
    powerprof's own statements between the two.

    `language`: the run-time whose timers hang on a few of its threads (Go, Java). `timers_hz`: how often
    timers, whosever, end idle periods of one of the `cpus`.

    `channels_seen` are the replication channels in each of the looks at the end: a thread that is started again and
    again stands as running in some of them. `replica_accounts` are the accounts that may replicate (`user@host`); empty
    where that may not be read; `denied` those that were refused, where the server counts them. `tids` are the kernel's
    numbers of connections' threads, where the process list has none, `last_statements` what connections asked last
    (performance_schema).
    `cpu_percent` is what the process used of one CPU in the traced window, `threads_cpu` its threads that lived through
    it, the most first, and `ended_cpu_percent` those that did not: workers of events, connections that were closed.
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
    tids: dict[int, int] = {}
    last_statements: dict[int, NormalText] = {}
    events: list[ScheduledEvent] = []
    events_after: list[ScheduledEvent] = []
    logged: list[LoggedEvent] = []
    position_before_bytes: int | None = None
    position_after_bytes: int | None = None
    log: LogSummary | None = None
    wakeups: list[ThreadWakeups] = []
    cpu_percent: float | None = None
    threads_cpu: list[ThreadCpu] = []
    ended_cpu_percent: float | None = None
    asked: bool = True
    notes: list[str] = []

    @property
    def clients_after(self) -> list[Client]:
        """The last process list."""
        return self.samples[-1] if self.samples else []

    @property
    def server_id(self) -> int | None:
        """Its own id; None where it did not say."""
        text = self.variables.get("server_id", "")
        return whole(text)

    def moved(self, *names: str) -> int:
        """How far these counters moved together, without powerprof's own statements."""
        return sum(
            max(0, self.status_after[name] - self.status_before[name] - self.own_counts.get(name, 0))
            for name in names
            if name in self.status_before and name in self.status_after
        )

    def rate_hz(self, *names: str) -> float:
        """The same per second."""
        return self.moved(*names) / self.window_s if self.window_s > 0 else 0.0


# What a diagnosis says: `powerprof.diagnosis/1`.

Severity = Literal["fault", "note"]


class LiveRemedy(msgspec.Struct, frozen=True, kw_only=True):
    """What `cure` can try on the live server: the timer slack of thread `tid` in ns, a value of `variable`, or event
    `event` of schema `database`, disabled."""

    tid: int | None = None
    slack_ns: int | None = None
    variable: str | None = None
    value: str | None = None
    database: str | None = None
    event: str | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a server wakes for: a sentence, what shows it, and what ends it.

    A fault should be mended; a note says what a healthy server does. `rate_hz` is how often it happens. `tries` are
    remedies that can be tried live, the first one first.
    """

    rule: str
    severity: Severity
    text: str
    evidence: list[str]
    remedy: list[str]
    rate_hz: float | None = None
    stack: list[str] = []
    tries: list[LiveRemedy] = []


class DiagnosedServer(msgspec.Struct, frozen=True, kw_only=True):
    """Which server was looked at; None where unknown."""

    pid: int | None
    version: str
    address: str | None


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The findings, faults first, and all that they rest on. `not_looked_at`: what was not examined, and why."""

    id: str | None
    started_at: str
    server: DiagnosedServer
    findings: list[Finding]
    evidence: Evidence
    looked_at: list[str] = []
    not_looked_at: list[str] = []
    host: dict[str, Any] = {}
    tool: ToolCost | None = None
    notes: Notes = []
    interrupted: bool = False
    command: str = "diagnose"
    schema: Literal["powerprof.diagnosis/1"] = "powerprof.diagnosis/1"


# Figures as they stand in sentences.

_SHOWN = 16


def each_second(hertz: float, what: str) -> str:
    """`320 connections/s`, `2.5 idle periods/s`."""
    return rate(hertz).replace("times/s", f"{what}/s")


def rate(hertz: float) -> str:
    """`320 times/s`, `2.5 times/s`, `0.07 times/s`."""
    digits = 0 if hertz >= 20 else 1 if hertz >= 1 else 2
    return f"{number(hertz, digits)} times/s"


def seconds(value: float) -> str:
    """`0.3 s`, `12 s`, `10 min`."""
    if value >= 120:
        return f"{value / 60:.0f} min"
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


def in_sql(event: ScheduledEvent) -> str:
    """An event as it stands in a statement, whatever is in its name."""
    return event.name if event.database is None or event.event is None else printable_name(event.database, event.event)


def tries_of(event: ScheduledEvent) -> list[LiveRemedy]:
    """That it can be disabled for a while."""
    if event.database is None or event.event is None:
        return []
    return [LiveRemedy(database=event.database, event=event.event)]


def try_line(evidence: Evidence, rule: str) -> str:
    """The command that tries the first remedy of a finding."""
    whom = evidence.pid if evidence.pid is not None else "mysqld"
    return f"to try it live: powerprof cure --pid {whom} --finding {rule}"


def stack_of(rows: Sequence[ThreadWakeups]) -> list[str]:
    """The stack that most of these wake-ups came from, innermost first, without the arguments of C++ functions.

    Wakings decide where they were counted: a client on the same CPU ends the idle period itself, so that few idle
    exits fall on the thread it wakes, and by chance on another place than where that thread waits.
    """
    with_stack = [row for row in rows if row.stack]
    if not with_stack:
        return []
    most = max(with_stack, key=lambda row: (row.wakings_hz or 0.0, row.rate_hz))
    return [frame.partition("(")[0] or frame for frame in most.stack[:_SHOWN]]


# MySQL 8.0.22 renamed its statements and columns, and 8.4 has only the new ones.
_SINCE = (8, 0, 23)
_NEW = (
    ("SHOW SLAVE STATUS (SHOW REPLICA STATUS)", "SHOW REPLICA STATUS"),
    ("SHOW SLAVE HOSTS", "SHOW REPLICAS"),
    ("CHANGE MASTER TO MASTER_", "CHANGE REPLICATION SOURCE TO SOURCE_"),
    ("CHANGE MASTER TO", "CHANGE REPLICATION SOURCE TO"),
    *((f"{verb} SLAVE", f"{verb} REPLICA") for verb in ("START", "STOP", "RESET", "SHOW")),
    ("Slave_SQL_Running", "Replica_SQL_Running"),
    ("Slave_IO_Running", "Replica_IO_Running"),
    ("Seconds_Behind_Master", "Seconds_Behind_Source"),
)


def has_new_words(version: str) -> bool:
    """Whether that server (`MySQL 9.7.4`) calls a slave a replica."""
    product, _, number = version.partition(" ")
    parts = tuple(int(part) for part in number.split(".") if part.isdigit())
    return product == "MySQL" and parts >= _SINCE


def in_new_words(text: str) -> str:
    """Statements and columns as such a server knows them."""
    for old, new in _NEW:
        text = text.replace(old, new)
    return text
