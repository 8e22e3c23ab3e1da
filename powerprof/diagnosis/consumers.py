# SPDX-License-Identifier: Apache-2.0
"""The parts of a server's CPU time by size: statements, connections, accounts, and threads of the server.

A part is the answer of a diagnosis if it has most of the server's CPU time and more than a few percent of one CPU.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from powerprof.diagnosis.evidence import Client, Evidence, StatementCpu, StatementWindow, ThreadCpu
from powerprof.diagnosis.server_queries import INTERNAL_USERS, format_account
from powerprof.diagnosis.wording import format_rate, format_seconds, format_share, shorten_statement
from powerprof.model.text import number
from powerprof.system.server_roles import ENDED_PROCESSES, ENDED_THREADS, parse_database

MAIN_SHARE, MAIN_PERCENT = 0.5, 3.0
"""The least part of the server's CPU time, and of one CPU in percent, of the answer of a diagnosis."""
# Statements that last as long as the connection of a replica or of a backup.
_REPLICATION = re.compile(r"\W*(?:START_REPLICATION|BASE_BACKUP|COM_BINLOG_DUMP)", re.IGNORECASE)
# The command with which a client closes its connection.
_CLOSING = "(COM_QUIT)"
_CLIENT_THREADS = ("sql/one_connection", "threadpool/worker", "thread_pool/tp_")
# The connections that a remedy names.
_MOST_CONNECTIONS = 3

Kind = Literal["statement", "connection", "account", "connecting", "role"]


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a server's CPU time.

    Attributes:
        name: The statement, the account, or the role of the threads.
        percent: Its CPU use in percent of one CPU.
        whole_percent: That of the server in the same window.
        account: The account (`user@host`) of its client; None if unknown, or if it is not a client.
        thread: The thread of a connection or role; None if there are several.
        threads_count: The number of threads of a role.
    """

    kind: Kind
    name: str
    percent: float
    whole_percent: float
    account: str | None = None
    use: StatementCpu | None = None
    thread: ThreadCpu | None = None
    threads_count: int = 1

    @property
    def is_main(self) -> bool:
        """Whether it has most of the server's CPU time, and more than a few percent of one CPU."""
        return self.percent >= max(MAIN_PERCENT, MAIN_SHARE * self.whole_percent)

    @property
    def share_text(self) -> str:
        """`27 % of this server's CPU time (0.7 % of one CPU)`."""
        return format_share(self.percent, self.whole_percent)


def find_largest_consumer(evidence: Evidence) -> Consumer | None:
    """Return the largest part of the server's CPU time; None without any.

    The window of statements decides. The traced window decides if the other one has no part with most of its CPU time:
    the work may have ended in between.
    """
    in_window = [*_list_statements(evidence), *_list_roles(evidence), *_list_connecting(evidence)]
    largest, of_threads = _find_largest(in_window), _find_largest(_list_threads(evidence))
    for consumer in (largest, _find_account(evidence), of_threads):
        if consumer is not None and consumer.is_main:
            return consumer
    return largest or of_threads


def _find_largest(consumers: Iterable[Consumer]) -> Consumer | None:
    return max(consumers, key=lambda consumer: consumer.percent, default=None)


def _list_statements(evidence: Evidence) -> list[Consumer]:
    window = evidence.statement_window
    if window is None:
        return []
    newcomer, connects_hz = find_newcomer(evidence), compute_connects_hz(evidence)
    feed = next((thread for thread in evidence.threads_cpu if (thread.name or "").startswith("walsender")), None)
    return [
        Consumer(
            kind="role",
            name=_label_feed(use, feed),
            percent=use.percent,
            whole_percent=window.percent,
            account=use.account,
            thread=feed,
        )
        if _REPLICATION.match(use.text)
        else Consumer(
            kind="statement",
            name=shorten_statement(use.text),
            percent=use.percent,
            whole_percent=window.percent,
            # Connections that ended before the server was queried have no account.
            account=use.account or (newcomer if connects_hz >= MAIN_SHARE * (use.calls_hz or 0.0) else None),
            use=use,
        )
        for use in window.statements
        if use.text != _CLOSING
    ]


def find_newcomer(evidence: Evidence) -> str | None:
    """Return the account of most connections that came in the window; None if none was seen."""
    oldest = max((client.id for client in evidence.clients_before), default=0)
    accounts = Counter(
        format_account(client.user, client.host)
        for sample in evidence.samples
        for client in sample
        if client.id > oldest and client.user not in (*INTERNAL_USERS, "unauthenticated user")
    )
    started = next((starts.account for starts in evidence.starts if starts.account is not None), None)
    return next((account for account, _ in accounts.most_common(1)), started)


def compute_connects_hz(evidence: Evidence) -> float:
    """Return the new connections per second."""
    started = sum(starts.count for starts in evidence.starts if starts.account is not None)
    return max(evidence.rate_hz("Connections"), started / evidence.starts_span_s if evidence.starts_span_s else 0.0)


def _label_feed(use: StatementCpu, thread: ThreadCpu | None) -> str:
    if thread is not None and thread.name:
        return thread.name
    return "the thread that feeds a replica" if "BINLOG" in use.text else "walsender"


def _list_roles(evidence: Evidence) -> list[Consumer]:
    window = evidence.statement_window
    if window is None:
        return []
    return [
        _name_ended(evidence, role.percent, window.percent)
        if role.name in (ENDED_THREADS, ENDED_PROCESSES)
        else Consumer(
            kind="role",
            name=role.name.removeprefix("thread/"),
            percent=role.percent,
            whole_percent=window.percent,
            thread=next((thread for thread in evidence.threads_cpu if thread.name == role.name), None),
            threads_count=role.threads_count,
        )
        for role in window.roles
        if not is_client_name(role.name)
    ]


def _name_ended(evidence: Evidence, percent: float, whole_percent: float) -> Consumer:
    """Return the processes that ended in a window: of PostgreSQL with the role of most that it starts."""
    role = next((starts.role for starts in evidence.starts if starts.role is not None), None)
    account = find_newcomer(evidence)
    if role is not None and account is None:
        return Consumer(kind="role", name=role, percent=percent, whole_percent=whole_percent)
    return Consumer(
        kind="connecting",
        name="opening and closing connections" if account is not None else "threads that ended",
        percent=percent,
        whole_percent=whole_percent,
        account=account,
    )


def _compute_connecting_percent(window: StatementWindow) -> float:
    """Return the CPU use of opening and closing connections."""
    return window.connecting_percent + sum(use.percent for use in window.statements if use.text == _CLOSING)


def _list_connecting(evidence: Evidence) -> list[Consumer]:
    window = evidence.statement_window
    percent = 0.0 if window is None else _compute_connecting_percent(window)
    if window is None or percent <= 0:
        return []
    name, account = "opening and closing connections", find_newcomer(evidence)
    return [Consumer(kind="connecting", name=name, percent=percent, whole_percent=window.percent, account=account)]


def _find_account(evidence: Evidence) -> Consumer | None:
    """Return the account with the most CPU time, if there are several."""
    window = evidence.statement_window
    used: dict[str, float] = defaultdict(float)
    for use in [] if window is None else window.statements:
        used[use.account or ""] += use.percent
    if window is None or len(used) < 2:
        return None
    account = max(used, key=lambda name: used[name])
    if not account:
        return None
    return Consumer(kind="account", name=account, percent=used[account], whole_percent=window.percent, account=account)


def is_client_name(name: str) -> bool:
    """Return whether a thread of this name serves clients."""
    return any(word in name for word in _CLIENT_THREADS) or parse_database(name) is not None


def _list_threads(evidence: Evidence) -> list[Consumer]:
    """Return the parts of the traced window: connections, and other threads by name without numbers."""
    whole = evidence.cpu_percent or 0.0
    consumers: list[Consumer] = []
    groups: dict[str, list[ThreadCpu]] = {}
    for thread in evidence.threads_cpu:
        client = find_client(evidence, thread)
        account = thread.account or (None if client is None else format_account(client.user, client.host))
        if account is not None or is_client_name(thread.name or ""):
            name = f"connection {thread.tid if client is None else client.id}"
            consumers.append(
                Consumer(
                    kind="connection",
                    name=name,
                    percent=thread.percent,
                    whole_percent=whole,
                    account=account,
                    thread=thread,
                )
            )
        else:
            label = (thread.name or thread.comm).removeprefix("thread/")
            groups.setdefault(re.sub(r"\d+", "#", label), []).append(thread)
    for threads in groups.values():
        first = threads[0]
        consumers.append(
            Consumer(
                kind="role",
                name=(first.name or first.comm).removeprefix("thread/"),
                percent=sum(thread.percent for thread in threads),
                whole_percent=whole,
                thread=first if len(threads) == 1 else None,
                threads_count=len(threads),
            )
        )
    if (ended := evidence.ended_cpu_percent or 0.0) > 0:
        consumers.append(_name_ended(evidence, ended, whole))
    return consumers


def find_client(evidence: Evidence, thread: ThreadCpu) -> Client | None:
    """Return the line of the process list for a thread of MariaDB or MySQL; None for other threads."""
    ids = {tid: connection_id for connection_id, tid in evidence.tids.items()}
    return next(
        (
            client
            for client in reversed(evidence.list_sampled_clients())
            if client.user not in INTERNAL_USERS
            and (client.tid == thread.tid if client.tid is not None else client.id == ids.get(thread.tid))
        ),
        None,
    )


def find_statement(evidence: Evidence, thread: ThreadCpu | None) -> str:
    """Return the statement that a connection executed most often in the process lists; empty if none was seen."""
    client = None if thread is None else find_client(evidence, thread)
    if client is None:
        return ""
    texts = Counter(one.statement for one in evidence.list_sampled_clients() if one.id == client.id and one.statement)
    return texts.most_common(1)[0][0] if texts else evidence.last_statements.get(client.id, "")


class Connection(msgspec.Struct, frozen=True):
    """A connection with its CPU use in the traced window.

    Attributes:
        number: Its number, or its process of PostgreSQL.
        since_text: The time for which it is open or executes its statement, such as `open for 12 min`.
    """

    number: int
    percent: float
    since_text: str


def list_connections(evidence: Evidence, account: str | None) -> list[Connection]:
    """Return the connections of an account that used CPU time in the traced window, the highest use first."""
    connections = []
    for thread in evidence.threads_cpu:
        client = find_client(evidence, thread)
        own = thread.account if client is None else format_account(client.user, client.host)
        if account is None or own != account:
            continue
        connections.append(
            Connection(
                thread.tid if client is None else client.id, thread.percent, _describe_since(evidence, thread, client)
            )
        )
    return connections


def _describe_since(evidence: Evidence, thread: ThreadCpu, client: Client | None) -> str:
    if client is None:
        return "" if thread.age_s is None else f"open for {format_seconds(thread.age_s)}"
    if client.command == "Query" and (client.time_s or 0.0) > evidence.window_s:
        return f"in its statement for {format_seconds(client.time_s or 0.0)}"
    is_old = any(before.id == client.id for before in evidence.clients_before)
    return f"open for at least {format_seconds(evidence.window_s)}" if is_old else "opened during the window"


def list_stops(evidence: Evidence, account: str | None, percent: float) -> list[str]:
    """Return the statements that end the work of an account now, with the reason, one line each.

    A connection is named only if it used a good part of `percent` of one CPU itself.
    """
    costly = [one for one in list_connections(evidence, account) if one.percent >= 0.2 * percent]
    lines = []
    for one in costly[:_MOST_CONNECTIONS]:
        since = f" and is {one.since_text}" if one.since_text else ""
        if evidence.family in ("mariadb", "mysql"):
            stop = f"KILL QUERY {one.number} (KILL {one.number} ends the connection)"
        else:
            stop = f"SELECT pg_catalog.pg_cancel_backend({one.number}) (pg_terminate_backend ends the connection)"
        lines.append(f"to stop it now: {stop}: it used {number(one.percent, 1)} % of one CPU{since}")
    return lines


def describe_consumer(consumer: Consumer) -> str:
    """Return a consumer with its account and rate, as a noun: `SELECT 1 (app@10.0.0.7, 40 times/s)`."""
    rate = "" if consumer.use is None or consumer.use.calls_hz is None else format_rate(consumer.use.calls_hz)
    account = consumer.account if consumer.account != consumer.name else None
    more = ", ".join(part for part in (account, rate) if part)
    name = consumer.name
    if consumer.kind == "role":
        name = f"{consumer.threads_count} threads {name}" if consumer.threads_count > 1 else f"the thread {name}"
    return f"{name} ({more})" if more else name


def join_since(connections: Sequence[Connection]) -> str:
    """Return the time of the first connection as a part of a sentence; empty if it is unknown."""
    if not connections or not connections[0].since_text:
        return ""
    first, *others = connections
    more = f" and {len(others)} more" if others else ""
    return f" on connection {first.number}, {first.since_text}{more}"
