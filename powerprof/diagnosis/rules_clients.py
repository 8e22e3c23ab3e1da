# SPDX-License-Identifier: Apache-2.0
"""Rules on clients: monitors that poll too often, and clients that reconnect each time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from powerprof.diagnosis.evidence import Client, Evidence, Finding, ThreadWakeups, each_second, rate, stack_of
from powerprof.diagnosis.rules_replication import source_churn_hz

# Counters of statements that only look at the server, by what people call them. Drivers send others of the
# SHOW family beside each statement (warnings, fields, …): those are work, not watching.
POLLING = {
    "Com_show_status": "SHOW STATUS",
    "Com_show_variables": "SHOW VARIABLES",
    "Com_show_processlist": "SHOW PROCESSLIST",
    "Com_show_engine_status": "SHOW ENGINE STATUS",
    "Com_show_slave_status": "SHOW SLAVE STATUS",
    "Com_show_replica_status": "SHOW REPLICA STATUS",
    "Com_show_slave_hosts": "SHOW SLAVE HOSTS",
    "Com_show_master_status": "SHOW MASTER STATUS",
    "Com_show_binlog_status": "SHOW MASTER STATUS",
    "Com_show_binlogs": "SHOW BINARY LOGS",
    "Com_show_open_tables": "SHOW OPEN TABLES",
    "Com_show_table_status": "SHOW TABLE STATUS",
    "Com_show_databases": "SHOW DATABASES",
    "Com_admin_commands": "pings",
}
# An exporter scrapes once in 5 to 60 s with some statements each; a dashboard asks once a second.
_POLLING_HZ = 5.0
_PINGS_HZ = 20.0
# Of the statements in question the server counted this share on one connection.
_MOST_OF_THEM = 0.5
# A thread that asks nothing else is woken once for each statement, give or take this share.
_AS_OFTEN = 0.25
_CONNECTS_HZ = 5.0
_FEW_STATEMENTS = 3.0
_BUSY_HZ = 1.0
_CONNECTION = "sql/one_connection"


def monitoring(evidence: Evidence) -> list[Finding]:
    """Somebody asks how the server is more often than anybody can read."""
    # Each replica that reconnects asks for variables and registers itself (MySQL 5.5: a COM_REGISTER_SLAVE is an
    # admin command): that is counted where it belongs.
    churn = source_churn_hz(evidence)
    asked: Counter[str] = Counter()
    for name, label in POLLING.items():
        often = evidence.rate_hz(name)
        if name in ("Com_show_variables", "Com_admin_commands"):
            often = max(0.0, often - churn)
        if name != "Com_admin_commands" or often >= _PINGS_HZ:
            asked[label] += round(often * 1000)
    total = sum(asked.values()) / 1000
    if total < _POLLING_HZ:
        return []
    most = [(label, count / 1000) for label, count in asked.most_common(4) if count >= 100]
    who = asker(evidence, most)
    text = f"{_person(who.client) if who is not None else 'A client'} asks {most[0][0]} {rate(most[0][1])}"
    evidence_ = [f"{words} {rate(often)} by the server's own count" for words, often in most]
    remedy = ["Let it ask every 10 s or more (scrape interval, refresh, health check interval)"]
    if who is not None:
        evidence_.append(f"connection {who.client.id}, {_person(who.client)}: {who.why}")
        remedy.append(f"to stop it now: KILL {who.client.id}, because {who.why}")
    else:
        evidence_.append("which connection asks is unknown: no statement and rate of one match")
        remedy.append("to see who asks: SHOW FULL PROCESSLIST, or performance_schema=ON in my.cnf")
    return [
        Finding(
            rule="monitoring_client",
            severity="fault",
            text=f"{text}: it keeps the CPUs awake.",
            evidence=evidence_,
            remedy=remedy,
            rate_hz=total,
            stack=stack_of(_rows_of(evidence, who.client if who is not None else None)),
        )
    ]


@dataclass(frozen=True)
class AskingClient:
    """The connection that asks, and what shows it."""

    client: Client
    why: str


def asker(evidence: Evidence, asked: Sequence[tuple[str, float]]) -> AskingClient | None:
    """Who sends most of these statements (what, times a second): by the server's count of each connection's
    statements, else the only connection there is, else the one connection that was seen with such a statement and is
    woken as often as they are asked.

    None where neither shows one: a busy connection is no evidence, and what is named here may be ended.
    """
    known = {client.id: client for sample in evidence.samples for client in sample if _asks(client)}
    words = [what for what, _ in asked]
    counted = {
        number: sum(moved for name, moved in statements.items() if POLLING.get(name) in words)
        for number, statements in evidence.statements_by_connection.items()
        if number in known
    }
    total_hz = sum(often for _, often in asked)
    first = max(counted.items(), key=lambda item: item[1], default=None)
    if first is not None and evidence.window_s > 0:
        often = first[1] / evidence.window_s
        if often >= _MOST_OF_THEM * total_hz:
            return AskingClient(known[first[0]], f"the server counted {rate(often)} on it")
        return None
    before = {client.id for client in evidence.clients_before if _asks(client)}
    if len(known) == 1 and before == set(known) and not evidence.moved("Connections"):
        return AskingClient(next(iter(known.values())), "it is the only connection")
    seen = Counter(
        client.id
        for sample in evidence.samples
        for client in sample
        if client.id in known and any(client.statement.lstrip().upper().startswith(what.upper()) for what in words)
    )
    matching = [
        (known[number], woken)
        for number in seen
        if abs((woken := _woken_hz(evidence, known[number])) - total_hz) <= max(_AS_OFTEN * total_hz, 1.0)
    ]
    if len(matching) != 1:
        return None
    client, woken = matching[0]
    return AskingClient(client, f"it was seen asking, and its thread is woken {rate(woken)}")


def _asks(client: Client) -> bool:
    return client.command in ("Query", "Sleep") and client.user not in ("system user", "event_scheduler")


def _woken_hz(evidence: Evidence, client: Client) -> float:
    rows = [row for row in evidence.wakeups if client.tid is not None and row.tid == client.tid]
    return sum(row.rate_hz if row.wakings_hz is None else row.wakings_hz for row in rows)


def _person(client: Client) -> str:
    host = client.host.rpartition(":")[0] or client.host
    return f"{client.user or '(nobody)'}@{host or 'localhost'}"


def _rows_of(evidence: Evidence, client: Client | None) -> list[ThreadWakeups]:
    return [row for row in evidence.wakeups if client is not None and client.tid == row.tid]


def reconnecting_clients(evidence: Evidence) -> list[Finding]:
    """Clients that connect, ask next to nothing and leave."""
    findings = []
    failed = evidence.rate_hz("Aborted_connects")
    made = evidence.rate_hz("Connections") - source_churn_hz(evidence) - failed
    per_connection = evidence.moved("Questions") / max(1, evidence.moved("Connections"))
    who = _newcomers(evidence)
    # A replica that applies transactions takes numbers from the same counter.
    believed = bool(who) or not evidence.channels_after
    if made >= _CONNECTS_HZ and per_connection <= _FEW_STATEMENTS and believed:
        findings.append(
            Finding(
                rule="client_reconnect_loop",
                severity="fault",
                text=f"A client reconnects {rate(made)} and asks next to nothing.",
                evidence=[
                    f"Connections rises {rate(made)}, {per_connection:.1f} statements for each",
                    *([f"newcomers: {who}"] if who else []),
                ],
                remedy=["Keep the connection, use a pool, or let the health check ask every 10 s or more"],
                rate_hz=made,
            )
        )
    return findings


def _newcomers(evidence: Evidence) -> str:
    oldest = max((client.id for client in evidence.clients_before), default=0)
    names = Counter(
        _person(client)
        for sample in evidence.samples
        for client in sample
        if client.id > oldest and client.user not in ("system user", "event_scheduler", "unauthenticated user")
    )
    return ", ".join(name for name, _ in names.most_common(3))


def work(evidence: Evidence) -> list[Finding]:
    """A note for a server that has something to do: then most wake-ups are its clients'."""
    asked = evidence.rate_hz("Questions")
    rows = [row for row in evidence.wakeups if _CONNECTION in (row.name or "") and "Binlog" not in (row.name or "")]
    total = sum(row.rate_hz for row in rows)
    if asked < _BUSY_HZ:
        return []
    return [
        Finding(
            rule="client_work",
            severity="note",
            text=f"Clients send statements {rate(asked)}.",
            evidence=[f"Questions rises {rate(asked)}"]
            + ([f"connection threads end {each_second(total, 'idle periods')}"] if total else []),
            remedy=["which functions those are: powerprof attribute"],
            rate_hz=asked,
            stack=stack_of(rows),
        )
    ]
