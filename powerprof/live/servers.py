# SPDX-License-Identifier: Apache-2.0
"""The database servers of a monitored host: their role in replication, and the findings of `diagnose`."""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from powerprof.database.base import ReplicationStatus
from powerprof.database.local_login import ask_locally, list_listening_sockets
from powerprof.database.replication_status import read_postgres_state
from powerprof.diagnosis.collect import ServerReadings, Subject, build_evidence, build_silent_evidence
from powerprof.diagnosis.diagnose import diagnose
from powerprof.diagnosis.evidence import Evidence, StatementWindow
from powerprof.diagnosis.process_starts import WATCH_S
from powerprof.live.identity import ServerIdentity, identify_server
from powerprof.live.intervals import LiveFinding, ServerState
from powerprof.model.attribution import Attribution
from powerprof.system.cgroups import Units, exists_group, group_of
from powerprof.system.errors import PowerprofError
from powerprof.system.files import try_text
from powerprof.system.foreign_text import whole
from powerprof.system.paths import procfs
from powerprof.system.processes import ProcessOwner, account_name, is_server_account, list_pids, name_of, owner_of
from powerprof.system.reader_process import shared
from powerprof.system.server_names import is_postgres_program, is_server_program
from powerprof.system.targets import Target, find_roots, is_private, list_family
from powerprof.system.tasks import has_ended, is_stopped

if TYPE_CHECKING:
    from powerprof.database.base import Sql

# Names of threads seldom change, and each query wakes the server.
ASK_EVERY_S = 60.0
# Servers beyond this number are not queried.
_MAX_SERVERS = 64
# A server whose process ended is down for this time. Then it counts as removed.
_KEPT_S = 3600.0
# A failing worker starts more often than this.
_STARTS_HZ = 0.5
# The time for one end of a window: connecting (3 s), queries (6 s) and the samples between them.
_TIMEOUT_S = 12.0
# Early queries that may be saved; each regular one earns one. If rates jump all the time, early queries show nothing.
_MAX_EARLY = 3


def owner_of_server(pid: int) -> ProcessOwner:
    """Return the account and program of a server, and the reason not to query it unless it is named, if any.

    Any account may run a program called mariadbd and choose its answers, which would become alerts of this host. A
    server is queried only if its process, program and sockets belong to root, to this process's account, or to the
    account of the server's package.
    """
    owner = owner_of(pid)
    for path in list_listening_sockets(pid) if owner.distrust is None else ():
        info = shared().status(path, follow=False)
        if info is not None and not (stat.S_ISSOCK(info.mode) and is_server_account(pid, info.uid)):
            return replace(owner, distrust=f"its socket belongs to {account_name(info.uid)}")
    return owner


class _QueriedServer:
    """A server process with its last state and findings.

    Each look has its own connection, so a restart between two looks needs no handling.
    """

    def __init__(self, pid: int, identity: ServerIdentity, account: Path | None = None, *, asks: bool = True) -> None:
        self.pid, self.identity, self.account, self.asks = pid, identity, account, asks
        self.program = name_of(pid) or str(pid)
        self.is_postgres = is_postgres_program(self.program)
        self.owner = owner_of_server(pid)
        self.group = group_of(pid)
        self.connection: Sql | None = None
        self.asked: ServerReadings | None = None
        self.notes: list[str] = []
        self.thread_names: dict[int, str] = {}
        self.state = self._build_state(up=False)
        self.findings: tuple[LiveFinding, ...] = ()
        self.queries: int | None = None
        self.is_stopped = self.has_answered = False

    def close(self) -> None:
        if self.connection is not None:
            with suppress(PowerprofError, OSError):
                self.connection.__exit__(None, None, None)
        self.connection = self.asked = None

    def list_pids(self) -> Sequence[int]:
        """Return the processes of the server."""
        return list_family(self.pid) if self.is_postgres else [self.pid]

    def begin_window(self) -> None:
        """Connect, and take the first of two readings. Without a login, its processes are read."""
        if self.is_stopped:
            return
        self.notes = []
        target = Target((self.pid,), self.program, roots=(self.pid,)) if self.is_postgres else None
        if self.asks and not self._connect():
            self.set_down()
            return
        self.asked = ServerReadings(self.connection, self.notes, self.pid, target)
        self.asked.read_before()
        self.thread_names = dict(self.asked.read_thread_names())

    def _connect(self) -> bool:
        """Connect if the server lets us in. Return whether it answers."""
        if self.account is not None:
            self.connection = _connect_by_account(self.account)[0]
            return self.connection is not None
        answer = ask_locally(self.pid, family="postgresql" if self.is_postgres else "mysql")
        self.connection = None if answer.entered is None else answer.entered[1]
        return answer.is_given

    def set_down(self) -> None:
        """Close the connection, and drop the state and the findings."""
        self.close()
        self.findings, self.queries = (), None
        self.state = self._build_state(up=False)

    def _build_state(self, **figures: Any) -> ServerState:
        return ServerState(
            name=self.identity.name,
            place=self.identity.place,
            account=self.owner.account,
            program=self.owner.program,
            **figures,
        )

    def look(self, window_s: float) -> bool:
        """Judge a stopped server, which answers no query. Return whether it was resumed or ended."""
        was_stopped, self.is_stopped = self.is_stopped, is_stopped(self.pid)
        if self.is_stopped:
            self.set_down()
            subject = Subject(self.pid, self.program, None, self.program, None)
            self._judge(build_silent_evidence(subject, None, window_s, []))
        elif was_stopped:
            self.findings = ()
        return (was_stopped and not self.is_stopped) or has_ended(self.pid)

    def end_window(self, record: Attribution, statements: StatementWindow | None, watch_s: float) -> None:
        """Take the second reading and diagnose the traced window between the two.

        `watch_s` are the seconds for which the started processes of PostgreSQL are watched.
        """
        from powerprof.database.sql import read_version

        readings = self.asked
        if readings is None:
            return
        readings.read_after()
        readings.statement_window = statements
        readings.watch_starts(watch_s)
        connection = self.connection
        version = self.program if connection is None else read_version(connection)
        subject = Subject(self.pid, self.program, connection, version, None)
        evidence = build_evidence(
            subject, readings, _restrict_to(record, self.list_pids()), record.window_s, self.notes
        )
        if connection is None:
            self.state = self._build_state(up=True)
        elif self.is_postgres:
            self.state = self._read_postgres_state(connection)
        else:
            self.state = self._state_from(evidence)
        self.has_answered = True
        self._judge(evidence)
        self.close()

    def _read_postgres_state(self, connection: Sql) -> ServerState:
        state = read_postgres_state(connection)
        return self._build_state(
            up=True,
            role=state.role,
            replication_healthy=state.is_receiving,
            lag_s=state.lag_s,
            queries_count=self._count_queries(state.transactions_count),
        )

    def _judge(self, evidence: Evidence) -> None:
        self.findings = tuple(
            LiveFinding(
                rule=finding.rule,
                severity=finding.severity,
                text=finding.text,
                server=self.identity.name,
                place=self.identity.place,
                account=self.owner.account,
                program=self.owner.program,
                remedy=tuple(finding.remedy),
                rate_hz=finding.rate_hz,
            )
            for finding in diagnose(evidence)
            if finding.severity == "fault"
        )

    def _state_from(self, evidence: Evidence) -> ServerState:
        statuses = [channel.status for channel in evidence.channels_after]
        lags = [status.seconds_behind for status in statuses if status.seconds_behind is not None]
        return self._build_state(
            up=True,
            role="replica" if statuses else "primary" if evidence.replicas else "standalone",
            replication_healthy=all(_is_healthy(status) for status in statuses) if statuses else None,
            lag_s=float(max(lags)) if lags else None,
            queries_count=self._count_queries(evidence.status_after.get("Questions")),
        )

    def _count_queries(self, now: int | None) -> int | None:
        """Return the queries since the last look; None if one of the two counts is unknown."""
        before, self.queries = self.queries, now
        return None if now is None or before is None else max(0, now - before)


class _EndedServer(msgspec.Struct, frozen=True):
    """The state of a server whose process ended, with its end and its control group."""

    state: ServerState
    ended_s: float
    group: str | None


class WatchedServers:
    """The database servers of this host, found again when they restart."""

    def __init__(
        self,
        pids: Sequence[int] | None,
        ask_every_s: float = ASK_EVERY_S,
        accounts: Sequence[Path] = (),
        *,
        asks: bool = True,
    ) -> None:
        """Watch the servers among `pids`, or all servers.

        `accounts` are option files that name servers and their accounts. Other servers are queried as the system user.
        Without `asks`, servers are judged by their processes alone.
        """
        self._asks, self._units = asks, Units()
        self._pids = None if pids is None else set(pids)
        self._accounts = tuple(accounts) if asks else ()
        self._every_s = ask_every_s
        self._servers: dict[int, _QueriedServer] = {}
        self._ended: dict[str, _EndedServer] = {}
        self._started_count, self._watch_s = _count_started_processes(), WATCH_S
        self._queried_s = float("-inf")
        self._is_querying = False
        self._early_left = _MAX_EARLY
        # Notes on servers that are not queried.
        self.notes: tuple[str, ...] = ()

    def close(self) -> None:
        """Close all connections."""
        for server in self._servers.values():
            server.close()
        self._servers.clear()

    @property
    def queried_pids(self) -> set[int]:
        """Return the pids of the servers to diagnose at the end of this window."""
        return {pid for server in self._servers.values() if server.asked is not None for pid in server.list_pids()}

    @property
    def pids(self) -> list[int]:
        """Return the first processes of the servers."""
        return list(self._servers)

    def thread_names(self) -> dict[int, str]:
        """Return performance_schema's names by thread id, as of the last look."""
        return {tid: name for server in self._servers.values() for tid, name in server.thread_names.items()}

    def begin_window(self) -> None:
        """Find the servers and take their first reading, if it is time to query them."""
        now_s = time.monotonic()
        self._is_querying = now_s - self._queried_s >= self._every_s
        if not self._is_querying:
            return
        if now_s - self._queried_s < float("inf"):
            self._early_left = min(_MAX_EARLY, self._early_left + 1)
        self._find()
        for pid, server in self._servers.items():
            if not server.state.up:
                # It may have begun to listen since the last look.
                server.identity = self._identify(pid)
        started = _count_started_processes()
        # Most hosts start fewer processes than a failing worker alone. The watch itself uses a fifth of a CPU.
        is_quiet = started - self._started_count < _STARTS_HZ * min(now_s - self._queried_s, self._every_s)
        self._started_count, self._watch_s = started, 0.0 if is_quiet else WATCH_S
        self._queried_s = now_s
        self._query_each(lambda server: server.begin_window)

    def end_window(
        self, record: Attribution, statements: Mapping[int, StatementWindow | None]
    ) -> tuple[tuple[ServerState, ...], tuple[LiveFinding, ...]]:
        """Take the second reading if there was a first. Return the states of all servers and their findings.

        `statements` has the statements of servers by process id. A server whose process ended is down for an hour, or
        until its pod ends.
        """
        if [server for server in self._servers.values() if server.look(record.window_s)]:
            # Another process may replace the one that ended.
            self._queried_s = float("-inf")
        for pid in [pid for pid in self._servers if has_ended(pid)]:
            self._retire(pid)
        if self._is_querying:
            self._query_each(
                lambda server: partial(server.end_window, record, statements.get(server.pid), self._watch_s)
            )
        else:
            for server in self._servers.values():
                # The count belongs to an earlier interval.
                server.state = msgspec.structs.replace(server.state, queries_count=None)
        states = {server.state.name: server.state for server in self._servers.values()}
        self._ended = {name: ended for name, ended in self._ended.items() if name not in states and _is_kept(ended)}
        states |= {name: ended.state for name, ended in self._ended.items()}
        findings: dict[tuple[str, str], LiveFinding] = {}
        for server in self._servers.values():
            for finding in server.findings:
                findings.setdefault((finding.rule, finding.server), finding)
        return tuple(states.values()), tuple(findings.values())

    def _retire(self, pid: int) -> None:
        """Keep the state of a server whose process ended."""
        server = self._servers.pop(pid)
        server.set_down()
        if server.has_answered:
            self._ended[server.state.name] = _EndedServer(server.state, time.monotonic(), server.group)

    def _identify(self, pid: int) -> ServerIdentity:
        others = {server.identity.name for other, server in self._servers.items() if other != pid}
        return identify_server(pid, self._units, others)

    def restrict_to(self, pids: Sequence[int]) -> None:
        """Watch only the servers among `pids` from now on, and query them at the next window."""
        self._pids = set(pids)
        self._queried_s = float("-inf")

    def query_early(self) -> None:
        """Query the servers at the next window, unless too many early queries were made."""
        if self._early_left > 0:
            self._early_left -= 1
            self._queried_s = float("-inf")

    def _find(self) -> None:
        pids = find_roots([pid for pid in list_pids() if is_server_program(name_of(pid))])
        # A private server of powerprof is no server of the host.
        pids = [pid for pid in pids if (not is_private(pid) if self._pids is None else pid in self._pids)]
        for pid in set(self._servers) - set(pids):
            if has_ended(pid):
                self._retire(pid)
            elif self._servers[pid].account is None:
                self._servers.pop(pid).close()
        present = {server.account for server in self._servers.values()}
        self._find_by_account([account for account in self._accounts if account not in present])
        # A server that the user names is queried whatever its account is.
        unnamed = pids if self._pids is None else []
        distrusted = {pid: reason for pid in unnamed if (reason := owner_of_server(pid).distrust) is not None}
        for pid in [pid for pid, server in self._servers.items() if pid in distrusted and server.account is None]:
            self._servers.pop(pid).close()
        trusted = [pid for pid in pids if pid not in distrusted]
        for pid in trusted[:_MAX_SERVERS]:
            if pid not in self._servers:
                self._servers[pid] = _QueriedServer(pid, self._identify(pid), asks=self._asks)
        self.notes = _list_unqueried(distrusted, trusted)

    def _find_by_account(self, accounts: Sequence[Path]) -> None:
        """Find the servers of option files, in parallel. A server that is away is tried again at the next look."""
        pids: dict[Path, int] = {}

        def look(account: Path) -> None:
            connection, pid = _connect_by_account(account)
            if connection is not None:
                connection.__exit__(None, None, None)
            if pid is not None:
                pids[account] = pid

        _join([_start(partial(look, account)) for account in accounts])
        for account in accounts:
            if (pid := pids.get(account)) is not None:
                self._servers[pid] = _QueriedServer(pid, self._identify(pid), account)

    def _query_each(self, query_of: Callable[[_QueriedServer], Callable[[], None]]) -> None:
        """Query all servers in parallel. A server without an answer at the deadline is down."""

        def query(server: _QueriedServer) -> None:
            # A server that ends during the query is down. The monitor keeps running.
            try:
                query_of(server)()
            except (PowerprofError, OSError):
                server.set_down()

        threads = {pid: _start(partial(query, server)) for pid, server in self._servers.items()}
        _join(threads.values())
        for pid, thread in threads.items():
            if thread.is_alive():
                # The thread keeps the old object, which is no longer used.
                old = self._servers[pid]
                self._servers[pid] = _QueriedServer(pid, old.identity, old.account, asks=old.asks)
                self._servers[pid].has_answered = old.has_answered


def _start(query: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=query, name="ask", daemon=True)
    thread.start()
    return thread


def _join(threads: Iterable[threading.Thread]) -> None:
    """Wait for all threads until the common deadline."""
    end_s = time.monotonic() + _TIMEOUT_S
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))


def _list_unqueried(distrusted: Mapping[int, str], trusted: Sequence[int]) -> tuple[str, ...]:
    notes = []
    if distrusted:
        pid, reason = next(iter(distrusted.items()))
        notes.append(
            f"ignored {len(distrusted):,} processes that look like database servers, such as {pid} ({reason}): any "
            "account can run one; to query it, name it with --pid"
        )
    if len(trusted) > _MAX_SERVERS:
        notes.append(f"{len(trusted) - _MAX_SERVERS:,} servers are not queried: more than {_MAX_SERVERS} on one host")
    return tuple(notes)


def _connect_by_account(account: Path) -> tuple[Sql | None, int | None]:
    """Return a connection by an option file and the server's pid; (None, None) if the server is not reached."""
    from powerprof.database import sql
    from powerprof.database.given import given_server

    try:
        with given_server(defaults_file=account) as given:
            return given.connect(limits=sql.LOOK_LIMITS), given.pid
    except (PowerprofError, OSError):
        return None, None


def _restrict_to(record: Attribution, pids: Sequence[int]) -> Attribution:
    """Keep only the wake-ups of these processes."""
    return msgspec.structs.replace(
        record,
        wakeups=[wakeup for wakeup in record.wakeups if wakeup.thread.pid in pids],
        wakings_without_exit=[waking for waking in record.wakings_without_exit if waking.thread.pid in pids],
    )


def _is_kept(ended: _EndedServer) -> bool:
    """Return whether an ended server is still expected: not after an hour, and not after its pod ended."""
    if time.monotonic() - ended.ended_s > _KEPT_S:
        return False
    return not ended.state.place.pod or ended.group is None or exists_group(str(Path(ended.group).parent))


def _count_started_processes() -> int:
    """Return the processes that this host started since its boot."""
    line = next(
        (line for line in (try_text(procfs() / "stat") or "").splitlines() if line.startswith("processes ")), ""
    )
    return whole(line.removeprefix("processes ")) or 0


def _is_healthy(status: ReplicationStatus) -> bool:
    return status.io_running == "Yes" and bool(status.sql_running)
