# SPDX-License-Identifier: Apache-2.0
"""Rules on who comes again and again: replicas that their source refuses or loses, and logins that fail."""

from __future__ import annotations

from powerprof.diagnosis.evidence import DeniedAccount, Evidence
from powerprof.diagnosis.findings import Finding
from powerprof.diagnosis.words import rate, seconds

# Of a fault that was mended the log still tells: this is how long it is believed.
_LONG_AGO_S = 120.0
_FEWEST = 2
_FAILED_LOGINS_HZ = 0.2
DUMPS = "statement/com/Binlog Dump"
"""What performance_schema counts of replicas that begin to read, among the counters of `asking.status`."""


_REFUSED = (
    "On the replica: STOP SLAVE; CHANGE MASTER TO MASTER_PASSWORD='…'; START SLAVE",
    "or, where that replica is to go: STOP SLAVE; RESET SLAVE ALL there",
)


def refused_replicas(evidence: Evidence) -> list[Finding]:
    """Source side: accounts of replicas that try to log in again and again."""
    log = evidence.log
    if log is None:
        return [_counted(evidence, one) for one in _counted_replicas(evidence)]
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
                remedy=[*_REFUSED],
                rate_hz=speed,
            )
        )
    logged_users = {account.partition("@")[0] for account in denied_replicas(evidence)}
    counted = [one for one in _counted_replicas(evidence) if one.account.partition("@")[0] not in logged_users]
    return findings + [_counted(evidence, one) for one in counted]


def _counted_replicas(evidence: Evidence) -> list[DeniedAccount]:
    """Accounts that may replicate and were refused lately, by the server's count."""
    users = {account.rpartition("@")[0] for account in evidence.replica_accounts}
    return [
        one
        for one in evidence.denied
        if one.account.rpartition("@")[0] in users and one.count >= _FEWEST and one.last_s < _LONG_AGO_S
    ]


def _counted(evidence: Evidence, one: DeniedAccount) -> Finding:
    window_hz = one.window_count / evidence.window_s if evidence.window_s > 0 else 0.0
    speed = window_hz or (one.count - 1) / max(one.span_s, 1.0)
    return Finding(
        rule="replica_refused",
        severity="fault",
        text=f"A replica tries to log in as {one.account} {rate(speed)} and is refused: it replicates nothing.",
        evidence=[
            f"performance_schema: access was denied {one.count} times in {seconds(max(one.span_s, 1.0))}, last "
            f"{seconds(one.last_s)} ago",
            f"{one.account.rpartition('@')[0]} is an account that may replicate (mysql.user)",
        ],
        remedy=list(_REFUSED),
        rate_hz=speed,
    )


def _other_accounts(evidence: Evidence) -> list[str]:
    """Accounts that were not let in lately and are no replica's."""
    log, replicas = evidence.log, denied_replicas(evidence)
    refused = {one.account for one in _counted_replicas(evidence)}
    counted = [one.account for one in evidence.denied if one.window_count and one.account not in refused]
    if log is None:
        return counted
    logged = [
        account
        for account in log.denied
        if account not in replicas and log.denied_last_s.get(account, _LONG_AGO_S) < _LONG_AGO_S
    ]
    return [*logged, *(account for account in counted if account not in logged and account not in replicas)]


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
    if (denied_replicas(evidence) or _counted_replicas(evidence)) and not others:
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
