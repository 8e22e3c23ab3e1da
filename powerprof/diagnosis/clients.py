# SPDX-License-Identifier: Apache-2.0
"""Rules on clients: monitors that poll too often, and clients that reconnect each time."""

from __future__ import annotations

from collections import Counter

from powerprof.diagnosis.evidence import Client, Evidence, ThreadWakeups
from powerprof.diagnosis.findings import Finding
from powerprof.diagnosis.replication import source_churn_hz
from powerprof.diagnosis.words import each_second, rate, stack_of

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
_FAILED_LOGINS_HZ = 1.0
_CONNECTS_HZ = 5.0
_FEW_STATEMENTS = 3.0
_BUSY_HZ = 20.0
_CONNECTION = "sql/one_connection"


def monitoring(evidence: Evidence) -> list[Finding]:
    """Somebody asks how the server is more often than anybody can read."""
    # Each replica that reconnects asks for variables and registers itself (MySQL 5.5: a COM_REGISTER_SLAVE is an
    # admin command): that is counted where it belongs.
    churn = source_churn_hz(evidence)
    asked: Counter[str] = Counter()
    for name, said in POLLING.items():
        often = evidence.rate_hz(name)
        if name in ("Com_show_variables", "Com_admin_commands"):
            often = max(0.0, often - churn)
        if name != "Com_admin_commands" or often >= _PINGS_HZ:
            asked[said] += round(often * 1000)
    total = sum(asked.values()) / 1000
    if total < _POLLING_HZ:
        return []
    most = [(said, count / 1000) for said, count in asked.most_common(4) if count >= 100]
    who = pollers(evidence)
    first = who[0][0] if who else None
    text = f"A client asks {most[0][0]} {rate(most[0][1])}"
    if first is not None:
        text = f"{_person(first)} asks {most[0][0]} {rate(most[0][1])}"
    said_ = [f"{words} {rate(often)} by the server's own count" for words, often in most]
    for client, woken in who[:4]:
        how = f"its thread is woken {rate(woken)}" if woken else "a new statement at every look"
        said_.append(f"connection {client.id}, {_person(client)}: {how}")
    return [
        Finding(
            rule="monitoring_client",
            severity="fault",
            text=f"{text}: it keeps the CPUs awake.",
            evidence=said_,
            remedy=[
                "Let it ask every 10 s or more (scrape interval, refresh, health check interval)",
                *([f"to stop it now: KILL {first.id}"] if first is not None else []),
            ],
            rate_hz=total,
            stack=stack_of(_rows_of(evidence, first)),
        )
    ]


def _person(client: Client) -> str:
    host = client.host.rpartition(":")[0] or client.host
    return f"{client.user or '(nobody)'}@{host or 'localhost'}"


def _rows_of(evidence: Evidence, client: Client | None) -> list[ThreadWakeups]:
    return [row for row in evidence.wakeups if client is not None and client.tid == row.tid]


def pollers(evidence: Evidence) -> list[tuple[Client, float]]:
    """Clients that began a statement at about every look at the process list, with their threads' wake-ups/s."""
    looks: Counter[int] = Counter()
    last: dict[int, Client] = {}
    # TIME of a silent client is how long it has been silent.
    recent_s = max(1.0, evidence.samples_span_s)
    for sample in evidence.samples:
        for client in sample:
            if client.command in ("Query", "Sleep") and client.user not in ("system user", "event_scheduler"):
                was = last.get(client.id)
                moved = was is None or client.query_id is None or client.query_id != was.query_id
                looks[client.id] += moved and (client.time_s is None or client.time_s <= recent_s)
                last[client.id] = client
    woken = {
        number: sum(
            row.wakings_hz if row.wakings_hz is not None else row.rate_hz
            for row in evidence.wakeups
            if row.tid == client.tid
        )
        for number, client in last.items()
    }
    most = max(len(evidence.samples), 1)
    polling = [
        (client, woken[number])
        for number, client in last.items()
        if looks[number] * 2 >= most or woken[number] >= _POLLING_HZ
    ]
    return sorted(polling, key=lambda pair: (-pair[1], -looks[pair[0].id]))


def reconnecting_clients(evidence: Evidence) -> list[Finding]:
    """Logins that fail, and clients that connect, ask next to nothing and leave."""
    findings = []
    failed = evidence.rate_hz("Aborted_connects")
    if failed >= _FAILED_LOGINS_HZ:
        findings.append(
            Finding(
                rule="client_reconnect_loop",
                severity="fault",
                text=f"A client fails to log in {rate(failed)} and tries again at once.",
                evidence=[f"Aborted_connects rises {rate(failed)}"],
                remedy=[
                    "Set log_warnings=3 (MySQL: log_error_verbosity=3): the error log then names its host and user",
                    "give it the right account, or a pause between attempts",
                ],
                rate_hz=failed,
            )
        )
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
                    *([f"seen: {who}"] if who else []),
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
