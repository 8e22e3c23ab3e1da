# SPDX-License-Identifier: Apache-2.0
"""Rules on refused logins, and on replicas that connect again and again."""

from __future__ import annotations

from powerprof.diagnosis.evidence import DUMPS, DeniedAccount, Evidence, Finding
from powerprof.diagnosis.wording import format_rate, format_seconds

# Messages of the error log also cover faults that were fixed. Older ones than this are ignored.
_RECENT_S = 120.0
_MIN_FAILURES = 2
_FAILED_LOGINS_HZ = 0.2


def find_refused_replicas(evidence: Evidence) -> list[Finding]:
    """Find, on a source, the accounts of replicas that fail to log in again and again."""
    log, logged = evidence.log, select_denied_replicas(evidence)
    findings = []
    if log is not None:
        # The rate of the counter belongs to an account if no other account was refused recently.
        is_alone = len(logged) == 1 and not _list_other_accounts(evidence)
        for account, count in logged.items():
            log_hz = count / max(log.span_s, evidence.window_s, 1.0)
            findings.append(
                _report_refused_replica(
                    account,
                    account.partition("@")[0],
                    (evidence.rate_hz("Aborted_connects") if is_alone else 0.0) or log_hz,
                    f"the error log: access was denied {count} times in {format_seconds(log.span_s)}, last "
                    f"{format_seconds(log.denied_last_s.get(account, 0.0))} ago",
                )
            )
    logged_users = {account.partition("@")[0] for account in logged}
    for entry in _select_counted_replicas(evidence):
        if entry.account.partition("@")[0] in logged_users:
            continue
        window_hz = entry.window_count / evidence.window_s if evidence.window_s > 0 else 0.0
        findings.append(
            _report_refused_replica(
                entry.account,
                entry.account.rpartition("@")[0],
                window_hz or (entry.count - 1) / max(entry.span_s, 1.0),
                f"performance_schema: access was denied {entry.count} times in "
                f"{format_seconds(max(entry.span_s, 1.0))}, last {format_seconds(entry.last_s)} ago",
            )
        )
    return findings


def _report_refused_replica(account: str, user: str, rate_hz: float, source: str) -> Finding:
    return Finding(
        rule="replica_refused",
        severity="fault",
        text=f"A replica tries to log in as {account} {format_rate(rate_hz)} and is refused. It does not replicate.",
        evidence=[source, f"{user} is an account that may replicate (mysql.user)"],
        remedy=[
            "On the replica: STOP SLAVE; CHANGE MASTER TO MASTER_PASSWORD='…'; START SLAVE",
            "or, to retire that replica, run there: STOP SLAVE; RESET SLAVE ALL",
        ],
        rate_hz=rate_hz,
    )


def _list_replica_users(evidence: Evidence) -> set[str]:
    return {account.rpartition("@")[0] for account in evidence.replica_accounts}


def _select_counted_replicas(evidence: Evidence) -> list[DeniedAccount]:
    """Return the replica accounts with recently refused logins in the count of the server."""
    users = _list_replica_users(evidence)
    return [
        entry
        for entry in evidence.denied
        if entry.account.rpartition("@")[0] in users and entry.count >= _MIN_FAILURES and entry.last_s < _RECENT_S
    ]


def select_denied_replicas(evidence: Evidence) -> dict[str, int]:
    """Return the number of recently refused logins of each replica account in the error log."""
    log = evidence.log
    if log is None:
        return {}
    users = _list_replica_users(evidence)
    return {
        account: count
        for account, count in log.denied.items()
        if account.partition("@")[0] in users
        and count >= _MIN_FAILURES
        and log.denied_last_s.get(account, _RECENT_S) < _RECENT_S
    }


def _list_other_accounts(evidence: Evidence) -> list[str]:
    """Return the recently refused accounts that do not belong to replicas."""
    log, replicas = evidence.log, select_denied_replicas(evidence)
    counted_replicas = {entry.account for entry in _select_counted_replicas(evidence)}
    counted = [
        entry.account for entry in evidence.denied if entry.window_count and entry.account not in counted_replicas
    ]
    if log is None:
        return counted
    logged = [
        account
        for account in log.denied
        if account not in replicas and log.denied_last_s.get(account, _RECENT_S) < _RECENT_S
    ]
    return [*logged, *(account for account in counted if account not in logged and account not in replicas)]


def find_returning_replicas(evidence: Evidence) -> list[Finding]:
    """Find, on a source with performance_schema, replicas that begin to read the binary log again and again."""
    count = evidence.count_increase(DUMPS)
    if count < _MIN_FAILURES:
        return []
    rate_hz = evidence.rate_hz(DUMPS)
    replicas = sorted(
        {
            f"{client.user}@{client.host.rpartition(':')[0] or client.host}"
            for client in evidence.list_sampled_clients()
            if client.command.startswith("Binlog Dump")
        }
    )
    return [
        Finding(
            rule="replica_returns",
            severity="fault",
            text=f"A replica starts to read this server's binary log {format_rate(rate_hz)}: it cannot stay "
            "connected, or it is restarted repeatedly.",
            evidence=[
                f"replicas requested the binary log {count} times (performance_schema)",
                *([f"seen: {', '.join(replicas[:3])}"] if replicas else []),
            ],
            remedy=[
                "On the replica: SHOW SLAVE STATUS (SHOW REPLICA STATUS) and the error log show the error",
                "two replicas that share a server id or uuid also do this: give each its own",
            ],
            rate_hz=rate_hz,
        )
    ]


def find_failed_logins(evidence: Evidence) -> list[Finding]:
    """Find failed logins that do not belong to known replicas."""
    failed_hz = evidence.rate_hz("Aborted_connects")
    if evidence.count_increase("Aborted_connects") < _MIN_FAILURES or failed_hz < _FAILED_LOGINS_HZ:
        return []
    others = _list_other_accounts(evidence)
    if (select_denied_replicas(evidence) or _select_counted_replicas(evidence)) and not others:
        return []
    connected = {client.user for client in evidence.list_sampled_clients() if client.command.startswith("Binlog Dump")}
    absent = [account for account in evidence.replica_accounts if account.rpartition("@")[0] not in connected]
    lines = [f"Aborted_connects rises {format_rate(failed_hz)}"]
    remedy = ["give it the right account, or make it pause between attempts"]
    subject = "A client"
    if others:
        subject = f"A client ({', '.join(others[:3])})"
    else:
        remedy.insert(
            0, "Set log_warnings=3 (MySQL: log_error_verbosity=3): the error log then names its host and user"
        )
        if absent:
            subject = "A client, perhaps a replica,"
            lines.append(f"{', '.join(absent[:3])} may replicate, but no replica is connected with that account")
    return [
        Finding(
            rule="client_reconnect_loop",
            severity="fault",
            text=f"{subject} fails to log in {format_rate(failed_hz)} and tries again.",
            evidence=lines,
            remedy=remedy,
            rate_hz=failed_hz,
        )
    ]
