# SPDX-License-Identifier: Apache-2.0
"""Rules on who comes again and again: replicas that their source refuses or loses, and logins that fail."""

from __future__ import annotations

from powerprof.diagnosis.evidence import Evidence
from powerprof.diagnosis.findings import Finding
from powerprof.diagnosis.words import rate, seconds

# Of a fault that was mended the log still tells: this is how long it is believed.
_LONG_AGO_S = 120.0
_FEWEST = 2
_FAILED_LOGINS_HZ = 0.2
DUMPS = "statement/com/Binlog Dump"
"""What performance_schema counts of replicas that begin to read, among the counters of `asking.status`."""


def refused_replicas(evidence: Evidence) -> list[Finding]:
    """Source side: accounts of replicas that try to log in again and again."""
    log = evidence.log
    if log is None:
        return []
    # The counter's rate is theirs where nobody else was refused lately; else the log's.
    alone = len(denied_replicas(evidence)) == 1 and not _other_accounts(evidence)
    findings = []
    for account, count in denied_replicas(evidence).items():
        logged = count / max(log.span_s, evidence.window_s, 1.0)
        speed = (evidence.rate_hz("Aborted_connects") if alone else 0.0) or logged
        findings.append(
            Finding(
                rule="replica_refused",
                severity="fault",
                text=f"A replica tries to log in as {account} {rate(speed)} and is refused: it replicates nothing.",
                evidence=[
                    f"the error log: access was denied {count} times in {seconds(log.span_s)}, last "
                    f"{seconds(log.denied_last_s.get(account, 0.0))} ago",
                    f"{account.partition('@')[0]} is an account that may replicate (mysql.user)",
                ],
                remedy=[
                    "On the replica: STOP SLAVE; CHANGE MASTER TO MASTER_PASSWORD='…'; START SLAVE",
                    "or, where that replica is to go: STOP SLAVE; RESET SLAVE ALL there",
                ],
                rate_hz=speed,
            )
        )
    return findings


def _other_accounts(evidence: Evidence) -> list[str]:
    """Accounts that were not let in lately and are no replica's."""
    log, replicas = evidence.log, denied_replicas(evidence)
    if log is None:
        return []
    return [
        account
        for account in log.denied
        if account not in replicas and log.denied_last_s.get(account, _LONG_AGO_S) < _LONG_AGO_S
    ]


def denied_replicas(evidence: Evidence) -> dict[str, int]:
    """How often which account that may replicate was not let in lately, by the error log."""
    log = evidence.log
    if log is None:
        return {}
    users = {account.rpartition("@")[0] for account in evidence.replica_accounts}
    return {
        account: count
        for account, count in log.denied.items()
        if account.partition("@")[0] in users
        and count >= _FEWEST
        and log.denied_last_s.get(account, _LONG_AGO_S) < _LONG_AGO_S
    }


def returning_replicas(evidence: Evidence) -> list[Finding]:
    """Source side, by performance_schema's count: replicas that begin to read the binary log again and again."""
    if evidence.moved(DUMPS) < _FEWEST:
        return []
    often = evidence.rate_hz(DUMPS)
    seen = sorted(
        {
            f"{client.user}@{client.host.rpartition(':')[0] or client.host}"
            for sample in [evidence.clients_before, *evidence.samples]
            for client in sample
            if client.command.startswith("Binlog Dump")
        }
    )
    return [
        Finding(
            rule="replica_returns",
            severity="fault",
            text=f"A replica begins to read this server's binary log {rate(often)}: it cannot stay connected, or is "
            "started again and again.",
            evidence=[
                f"replicas asked for the binary log {evidence.moved(DUMPS)} times (performance_schema)",
                *([f"seen: {', '.join(seen[:3])}"] if seen else []),
            ],
            remedy=[
                "On the replica: SHOW SLAVE STATUS (SHOW REPLICA STATUS) has its error, and so has its error log",
                "two replicas with one server id or uuid do that too: each needs its own",
            ],
            rate_hz=often,
        )
    ]


def failed_logins(evidence: Evidence) -> list[Finding]:
    """Logins that fail, without those that are known to be replicas'."""
    failed = evidence.rate_hz("Aborted_connects")
    if evidence.moved("Aborted_connects") < _FEWEST or failed < _FAILED_LOGINS_HZ:
        return []
    others = _other_accounts(evidence)
    if denied_replicas(evidence) and not others:
        return []
    away = _absent(evidence)
    maybe = bool(away) and not others
    who = f"A client ({', '.join(others[:3])})" if others else "A client, perhaps a replica," if maybe else "A client"
    sentences = [f"Aborted_connects rises {rate(failed)}"]
    if maybe:
        sentences.append(f"{', '.join(away[:3])} may replicate, and no replica is connected as that")
    return [
        Finding(
            rule="client_reconnect_loop",
            severity="fault",
            text=f"{who} fails to log in {rate(failed)} and tries again.",
            evidence=sentences,
            remedy=[
                *(
                    []
                    if others
                    else [
                        "Set log_warnings=3 (MySQL: log_error_verbosity=3): the error log then names its host and user"
                    ]
                ),
                "give it the right account, or a pause between attempts",
            ],
            rate_hz=failed,
        )
    ]


def _absent(evidence: Evidence) -> list[str]:
    """Accounts that may replicate, and as which no replica is connected."""
    connected = {
        client.user
        for sample in [evidence.clients_before, *evidence.samples]
        for client in sample
        if client.command.startswith("Binlog Dump")
    }
    return [account for account in evidence.replica_accounts if account.rpartition("@")[0] not in connected]
