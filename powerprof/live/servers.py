# SPDX-License-Identifier: Apache-2.0
"""Asks the database servers of a monitored host, seldom: their part in replication, and what `diagnose` finds."""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from powerprof.database.clients.given import is_server_name, list_listening_sockets, log_in_locally
from powerprof.database.clients.performance import ReplicationStatus
from powerprof.diagnosis.collect import ServerReadings, Subject, build_evidence
from powerprof.diagnosis.diagnose import diagnose
from powerprof.diagnosis.evidence import Evidence
from powerprof.live.intervals import LiveFinding, ServerState
from powerprof.model.attribution import Attribution
from powerprof.system.errors import PowerprofError
from powerprof.system.processes import ProcessOwner, account_name, is_server_account, list_pids, name_of, owner_of
from powerprof.system.reader_process import shared

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql


# Database servers that are queried without being named: those that no other account started.
#
# Any account may run a program called mariadbd and choose its answers: its findings would be alerts by that account. A
# server is queried if its process, program and sockets belong to root, to us, or to the account of the server's
# package.


def owner_of_server(pid: int) -> ProcessOwner:
    """Return the account and program of a server, and the reason not to query it unless it is named, if any."""
    owner = owner_of(pid)
    for place in list_listening_sockets(pid) if owner.distrust is None else ():
        info = shared().status(place, follow=False)
        if info is not None and not (stat.S_ISSOCK(info.mode) and is_server_account(pid, info.uid)):
            return replace(owner, distrust=f"its socket belongs to {account_name(info.uid)}")
    return owner


# Names of threads seldom change; asking for them wakes the server.
ASK_EVERY_S = 60.0
# More servers on one host are watched, and not asked.
_MOST = 64
# For all that a server is asked at one end of a window: connecting (3 s), its questions (6 s), the samples between.
_DEADLINE_S = 12.0
# Looks out of turn that may be put by: a regular one earns one. Where rates jump all the time, a look is worth nothing.
_MOST_HURRIES = 3


class _QueriedServer:
    """One server process: what it reported last, and the findings that hold.

    It is connected to for one look at a time: a restart between two looks is nothing special.
    """

    def __init__(self, pid: int, account: Path | None = None) -> None:
        self.pid, self.account = pid, account
        self.label = self.name = name_of(pid) or str(pid)
        self.owner = owner_of_server(pid)
        self.connection: Sql | None = None
        self.asked: ServerReadings | None = None
        self.notes: list[str] = []
        self.thread_names: dict[int, str] = {}
        self.state = self._down_state()
        self.findings: tuple[LiveFinding, ...] = ()
        self.queries: int | None = None

    def close(self) -> None:
        if self.connection is not None:
            with suppress(PowerprofError, OSError):
                self.connection.__exit__(None, None, None)
        self.connection = self.asked = None

    def before(self) -> None:
        """Connect, and ask what needs two readings."""
        if self.account is not None:
            self.connection = _by_account(self.account)[0]
        else:
            entered = log_in_locally(self.pid)
            self.connection = None if entered is None else entered[1]
        if self.connection is None:
            self.down()
            return
        self.notes = []
        self.asked = ServerReadings(self.connection, self.notes, self.pid)
        self.asked.read_before()
        self.thread_names = dict(self.asked.read_thread_names())

    def down(self) -> None:
        """It does not answer: what was found before may not hold."""
        self.close()
        self.findings, self.queries = (), None
        self.state = self._down_state()

    def _down_state(self) -> ServerState:
        return ServerState(name=self.name, up=False, account=self.owner.account, program=self.owner.program)

    def after(self, record: Attribution) -> None:
        """Ask again and judge; the window between is the traced one."""
        from powerprof.database.clients.given import read_version

        if self.asked is None:
            return
        self.asked.read_after()
        version = read_version(self.connection) if self.connection is not None else self.label
        subject = Subject(self.pid, self.label, self.connection, version, None)
        evidence = build_evidence(subject, self.asked, _of_process(record, self.pid), record.window_s, self.notes)
        self.state = self._state_of(evidence)
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

    def _state_of(self, evidence: Evidence) -> ServerState:
        statuses = [channel.status for channel in evidence.channels_after]
        # A server without a port, as tests and containers have them, is identified by its process.
        port = evidence.variables.get("port")
        self.name = f"{self.label}:{port}" if port not in (None, "", "0") else f"{self.label}:pid-{self.pid}"
        queries = evidence.status_after.get("Questions")
        moved = None if queries is None or self.queries is None else max(0, queries - self.queries)
        self.queries = queries
        lags = [status.seconds_behind for status in statuses if status.seconds_behind is not None]
        return ServerState(
            name=self.name,
            up=True,
            account=self.owner.account,
            program=self.owner.program,
            role="replica" if statuses else "primary" if evidence.replicas else "standalone",
            replication_healthy=all(_is_healthy(status) for status in statuses) if statuses else None,
            lag_s=float(max(lags)) if lags else None,
            queries_count=moved,
        )


class WatchedServers:
    """The servers of this host, found again as they come and go; a context manager that closes their connections."""

    def __init__(
        self, pids: Sequence[int] | None, ask_every_s: float = ASK_EVERY_S, accounts: Sequence[Path] = ()
    ) -> None:
        """`accounts`: option files that name servers and who may ask them; others are asked as the system's user."""
        self._only = None if pids is None else set(pids)
        self._accounts = tuple(accounts)
        self._every_s = ask_every_s
        self._servers: dict[int, _QueriedServer] = {}
        self._asked_s = float("-inf")
        self._asking = False
        self._hurries = _MOST_HURRIES
        # What is to be known of servers that are not asked.
        self.notes: tuple[str, ...] = ()

    def close(self) -> None:
        """Close all connections."""
        for server in self._servers.values():
            server.close()
        self._servers.clear()

    @property
    def asked_pids(self) -> set[int]:
        """The servers that are judged at the end of this window."""
        return {pid for pid, server in self._servers.items() if server.asked is not None}

    def thread_names(self) -> dict[int, str]:
        """performance_schema's names, as they were when last asked."""
        return {tid: name for server in self._servers.values() for tid, name in server.thread_names.items()}

    def before(self) -> None:
        """A window is near: look who is there, and ask where the time has come."""
        now_s = time.monotonic()
        self._asking = now_s - self._asked_s >= self._every_s
        if not self._asking:
            return
        if now_s - self._asked_s < float("inf"):
            self._hurries = min(_MOST_HURRIES, self._hurries + 1)
        self._asked_s = now_s
        self._find()
        self._each(lambda server: server.before)

    def after(self, record: Attribution) -> tuple[tuple[ServerState, ...], tuple[LiveFinding, ...]]:
        """A window has ended: the second questions, and what holds now."""
        if self._asking:
            self._each(lambda server: partial(server.after, record))
        else:
            for server in self._servers.values():
                # No statement is counted twice.
                server.state = msgspec.structs.replace(server.state, queries_count=None)
        states = [server.state for server in self._servers.values()]
        findings: dict[tuple[str, str], LiveFinding] = {}
        for server in self._servers.values():
            for finding in server.findings:
                findings.setdefault((finding.rule, finding.server), finding)
        return tuple(states), tuple(findings.values())

    def only(self, pids: Sequence[int]) -> None:
        """From now on these processes are asked, and at the next window."""
        self._only = set(pids)
        self._asked_s = float("-inf")

    def hurry(self) -> None:
        """Ask at the next window whatever the time: something has changed. No more often than regular looks earn."""
        if self._hurries > 0:
            self._hurries -= 1
            self._asked_s = float("-inf")

    def _find(self) -> None:
        here = [
            pid for pid in list_pids() if (self._only is None or pid in self._only) and is_server_name(name_of(pid))
        ]
        for pid in set(self._servers) - set(here):
            self._servers.pop(pid).close()
        known_accounts = {server.account for server in self._servers.values()}
        self._let_in([account for account in self._accounts if account not in known_accounts])
        # A server that the user names is queried whatever its account is.
        unnamed = here if self._only is None else []
        strange = {pid: why for pid in unnamed if (why := owner_of_server(pid).distrust) is not None}
        for pid in [pid for pid, server in self._servers.items() if pid in strange and server.account is None]:
            self._servers.pop(pid).close()
        known = [pid for pid in here if pid not in strange]
        for pid in known[:_MOST]:
            if pid not in self._servers:
                self._servers[pid] = _QueriedServer(pid)
        self.notes = _not_asked(strange, known)

    def _let_in(self, accounts: Sequence[Path]) -> None:
        """The servers that option files name, side by side; one that is not there now is looked for the next time."""
        found: dict[Path, int] = {}

        def look(account: Path) -> None:
            connection, pid = _by_account(account)
            if connection is not None:
                connection.__exit__(None, None, None)
            if pid is not None:
                found[account] = pid

        threads = [threading.Thread(target=look, args=(account,), name="ask", daemon=True) for account in accounts]
        for thread in threads:
            thread.start()
        end_s = time.monotonic() + _DEADLINE_S
        for thread in threads:
            thread.join(max(0.0, end_s - time.monotonic()))
        for account in accounts:
            if (pid := found.get(account)) is not None:
                self._servers[pid] = _QueriedServer(pid, account)

    def _each(self, ask: Callable[[_QueriedServer], Callable[[], None]]) -> None:
        """All servers side by side; one that has not answered at the deadline is down, whatever it waits for."""
        asked = [(pid, server, self._asking_thread(server, ask(server))) for pid, server in self._servers.items()]
        end_s = time.monotonic() + _DEADLINE_S
        for pid, server, thread in asked:
            thread.join(max(0.0, end_s - time.monotonic()))
            if thread.is_alive():
                # Its thread has the old one, which nobody looks at any more.
                self._servers[pid] = _QueriedServer(pid, server.account)

    def _asking_thread(self, server: _QueriedServer, ask: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=self._or_drop, args=(server, ask), name="ask", daemon=True)
        thread.start()
        return thread

    @staticmethod
    def _or_drop(server: _QueriedServer, ask: Callable[[], None]) -> None:
        """A server that goes away meanwhile is down, and nothing else: the monitor goes on."""
        try:
            ask()
        except (PowerprofError, OSError):
            server.down()


def _not_asked(strange: Mapping[int, str], known: Sequence[int]) -> tuple[str, ...]:
    notes = []
    if strange:
        pid, why = next(iter(strange.items()))
        notes.append(
            f"{len(strange):,} processes called a database server are not asked, such as {pid} ({why}): any account "
            "can run one; name it by --pid to have it asked"
        )
    if len(known) > _MOST:
        notes.append(f"{len(known) - _MOST:,} servers are not asked: more than {_MOST} on one host")
    return tuple(notes)


def _by_account(account: Path) -> tuple[Sql | None, int | None]:
    """A connection by an option file, and the server's process; (None, None) where it cannot be had."""
    from powerprof.database.clients import sql
    from powerprof.database.clients.given import given_server

    try:
        with given_server(defaults_file=account) as given:
            return given.connect(limits=sql.LOOK_LIMITS), given.pid
    except (PowerprofError, OSError):
        return None, None


def _of_process(record: Attribution, pid: int) -> Attribution:
    """What of it is one process's."""
    return msgspec.structs.replace(
        record,
        wakeups=[wakeup for wakeup in record.wakeups if wakeup.thread.pid == pid],
        wakings_without_exit=[wakeup for wakeup in record.wakings_without_exit if wakeup.thread.pid == pid],
    )


def _is_healthy(status: ReplicationStatus) -> bool:
    return status.io_running == "Yes" and bool(status.sql_running)
