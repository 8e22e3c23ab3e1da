# SPDX-License-Identifier: Apache-2.0
"""One look at a server: ask, trace, ask again. The questions lie outside of the traced window."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from powerprof.database.clients import sql
from powerprof.database.products.local import is_server, names_of_local_server
from powerprof.diagnosis import asking, cputime, denials
from powerprof.diagnosis.evidence import (
    ASKABLE,
    DeniedAccount,
    Evidence,
    ReplicaHost,
    ReplicationChannel,
    ThreadWakeups,
)
from powerprof.diagnosis.serverlog import log_of
from powerprof.errors import CapabilityError
from powerprof.processes.languages import language_of
from powerprof.processes.targets import Target
from powerprof.statements.normal import bounded
from powerprof.text import Say
from powerprof.windows.runner import pass_window

if TYPE_CHECKING:
    from powerprof.attribution.capture import Capture
    from powerprof.attribution.records import Attribution, Wakeup, Waking
    from powerprof.database.clients.base import Sql

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
    cpu_before = None if subject.pid is None else cputime.read(subject.pid)
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
        interrupted = pass_window(left_s).interrupted is not None
    cpu_after = None if subject.pid is None else cputime.read(subject.pid)
    asked.after()
    asked.facts |= cputime.between(cpu_before, cpu_after, subject.pid or 0, asked.names)
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
    return "mysql" if subject.connection is not None or is_server(subject.label) else subject.label


def timers_hz(attribution: Attribution) -> float | None:
    """How often timers end idle periods of one CPU, whosever they are."""
    if not attribution.window_s or not attribution.cpus:
        return None
    own = sum(row.count for row in attribution.wakeups if row.mechanism in _TIMERS)
    others = sum(cause.count for cause in attribution.other_causes if cause.mechanism in _TIMERS)
    return (own + others) / attribution.window_s / attribution.cpus


def _trace(subject: Subject, asked: Asked, duration_s: float, say: Say) -> tuple[Capture, Attribution]:
    import msgspec

    from powerprof.attribution import blame, live
    from powerprof.attribution.requests import AttributeRequest
    from powerprof.attribution.sites import SiteStacks

    target = subject.target or Target((subject.pid or 0,), subject.label)
    taken = live.capture(target, AttributeRequest(duration_s=duration_s), asked.thread_names, say)
    say("unwinding and naming")
    stacks = SiteStacks(taken)
    record = blame.attribute(taken, stacks)
    return msgspec.structs.replace(taken, named=stacks.named()), record


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
            self.names = sql.thread_names(self._connection, self._pid)
        elif self._pid is not None:
            self.names = names_of_local_server(self._pid)
        return self.names

    def _ask(self, what: str, question: Callable[[Sql], Any], otherwise: Any) -> Any:
        if self._connection is None:
            return otherwise
        connection = self._connection
        return asking.quietly(lambda: question(connection), otherwise, what, self._notes)

    @bounded(_MOST_WORDS)
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
        self._denied = denials.denied(self._connection)
        self.facts["status_before"] = asking.status(self._connection)
        self._began_s = time.monotonic()

    @bounded(_MOST_WORDS)
    def after(self) -> None:
        """The counters first."""
        if self._connection is None:
            return
        self.facts["status_after"] = asking.status(self._connection)
        self.window_s = time.monotonic() - self._began_s
        # Counters move before they are shown: the second SHOW STATUS has counted itself, the first one too.
        self.facts["own_counts"] = self._own_counts()
        self.facts["denied"] = denials.between(self._denied, denials.denied(self._connection))
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
