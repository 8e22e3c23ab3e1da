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
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from powerprof.database.base import ReplicationStatus
from powerprof.database.local_login import list_listening_sockets, log_in_locally
from powerprof.diagnosis.collect import ServerReadings, Subject, build_evidence
from powerprof.diagnosis.diagnose import diagnose
from powerprof.diagnosis.evidence import Evidence, StatementWindow
from powerprof.live.intervals import LiveFinding, ServerState
from powerprof.model.attribution import Attribution
from powerprof.system.errors import PowerprofError
from powerprof.system.processes import ProcessOwner, account_name, is_server_account, list_pids, name_of, owner_of
from powerprof.system.reader_process import shared
from powerprof.system.server_names import is_mysql_program

if TYPE_CHECKING:
    from powerprof.database.base import Sql

# Names of threads seldom change, and each query wakes the server.
ASK_EVERY_S = 60.0
# Servers beyond this number are not queried.
_MAX_SERVERS = 64
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

    def __init__(self, pid: int, account: Path | None = None) -> None:
        self.pid, self.account = pid, account
        self.label = self.name = name_of(pid) or str(pid)
        self.owner = owner_of_server(pid)
        self.connection: Sql | None = None
        self.asked: ServerReadings | None = None
        self.notes: list[str] = []
        self.thread_names: dict[int, str] = {}
        self.state = self._build_down_state()
        self.findings: tuple[LiveFinding, ...] = ()
        self.queries: int | None = None

    def close(self) -> None:
        if self.connection is not None:
            with suppress(PowerprofError, OSError):
                self.connection.__exit__(None, None, None)
        self.connection = self.asked = None

    def begin_window(self) -> None:
        """Connect, and take the first of two readings."""
        if self.account is not None:
            self.connection = _connect_by_account(self.account)[0]
        else:
            login = log_in_locally(self.pid)
            self.connection = None if login is None else login[1]
        if self.connection is None:
            self.set_down()
            return
        self.notes = []
        self.asked = ServerReadings(self.connection, self.notes, self.pid)
        self.asked.read_before()
        self.thread_names = dict(self.asked.read_thread_names())

    def set_down(self) -> None:
        """Close the connection, and drop the state and the findings."""
        self.close()
        self.findings, self.queries = (), None
        self.state = self._build_down_state()

    def _build_down_state(self) -> ServerState:
        return ServerState(name=self.name, up=False, account=self.owner.account, program=self.owner.program)

    def end_window(self, record: Attribution, statements: StatementWindow | None) -> None:
        """Take the second reading and diagnose the traced window between the two."""
        from powerprof.database.sql import read_version

        if self.asked is None:
            return
        self.asked.read_after()
        self.asked.statement_window = statements
        version = read_version(self.connection) if self.connection is not None else self.label
        subject = Subject(self.pid, self.label, self.connection, version, None)
        evidence = build_evidence(
            subject, self.asked, _restrict_to_process(record, self.pid), record.window_s, self.notes
        )
        self.state = self._state_from(evidence)
        self.findings = tuple(
            LiveFinding(
                rule=finding.rule,
                severity=finding.severity,
                text=finding.text,
                server=self.name,
                account=self.owner.account,
                program=self.owner.program,
                remedy=tuple(finding.remedy),
                rate_hz=finding.rate_hz,
            )
            for finding in diagnose(evidence)
            if finding.severity == "fault"
        )
        self.close()

    def _state_from(self, evidence: Evidence) -> ServerState:
        statuses = [channel.status for channel in evidence.channels_after]
        # A server without a port, as in tests and containers, is identified by its process.
        port = evidence.variables.get("port")
        self.name = f"{self.label}:{port}" if port not in (None, "", "0") else f"{self.label}:pid-{self.pid}"
        before, self.queries = self.queries, evidence.status_after.get("Questions")
        lags = [status.seconds_behind for status in statuses if status.seconds_behind is not None]
        return ServerState(
            name=self.name,
            up=True,
            account=self.owner.account,
            program=self.owner.program,
            role="replica" if statuses else "primary" if evidence.replicas else "standalone",
            replication_healthy=all(_is_healthy(status) for status in statuses) if statuses else None,
            lag_s=float(max(lags)) if lags else None,
            queries_count=None if self.queries is None or before is None else max(0, self.queries - before),
        )


class WatchedServers:
    """The database servers of this host, found again when they restart."""

    def __init__(
        self, pids: Sequence[int] | None, ask_every_s: float = ASK_EVERY_S, accounts: Sequence[Path] = ()
    ) -> None:
        """Watch the servers among `pids`, or all servers.

        `accounts` are option files that name servers and their accounts. Other servers are queried as the system user.
        """
        self._pids = None if pids is None else set(pids)
        self._accounts = tuple(accounts)
        self._every_s = ask_every_s
        self._servers: dict[int, _QueriedServer] = {}
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
        return {pid for pid, server in self._servers.items() if server.asked is not None}

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
        self._queried_s = now_s
        self._find()
        self._query_each(lambda server: server.begin_window)

    def end_window(
        self, record: Attribution, statements: Mapping[int, StatementWindow | None]
    ) -> tuple[tuple[ServerState, ...], tuple[LiveFinding, ...]]:
        """Take the second reading if there was a first. Return the states of all servers and their findings.

        `statements` has the statements of servers by process id.
        """
        if self._is_querying:
            self._query_each(lambda server: partial(server.end_window, record, statements.get(server.pid)))
        else:
            for server in self._servers.values():
                # The count belongs to an earlier interval.
                server.state = msgspec.structs.replace(server.state, queries_count=None)
        states = [server.state for server in self._servers.values()]
        findings: dict[tuple[str, str], LiveFinding] = {}
        for server in self._servers.values():
            for finding in server.findings:
                findings.setdefault((finding.rule, finding.server), finding)
        return tuple(states), tuple(findings.values())

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
        pids = [
            pid for pid in list_pids() if (self._pids is None or pid in self._pids) and is_mysql_program(name_of(pid))
        ]
        for pid in set(self._servers) - set(pids):
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
                self._servers[pid] = _QueriedServer(pid)
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
                self._servers[pid] = _QueriedServer(pid, account)

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
                self._servers[pid] = _QueriedServer(pid, self._servers[pid].account)


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


def _restrict_to_process(record: Attribution, pid: int) -> Attribution:
    """Keep only the wake-ups of one process."""
    return msgspec.structs.replace(
        record,
        wakeups=[wakeup for wakeup in record.wakeups if wakeup.thread.pid == pid],
        wakings_without_exit=[waking for waking in record.wakings_without_exit if waking.thread.pid == pid],
    )


def _is_healthy(status: ReplicationStatus) -> bool:
    return status.io_running == "Yes" and bool(status.sql_running)
