# SPDX-License-Identifier: Apache-2.0
"""Rules on the connections of clients: those that are opened for a few statements, and those that are never closed."""

from __future__ import annotations

from collections import Counter

from powerprof.diagnosis.consumers import MAIN_PERCENT, MAIN_SHARE, find_newcomer
from powerprof.diagnosis.evidence import Evidence, Finding
from powerprof.diagnosis.rules_replication import compute_source_churn_hz
from powerprof.diagnosis.server_queries import INTERNAL_USERS, format_account
from powerprof.diagnosis.statement_window import describe_share, is_costly, select_uses
from powerprof.diagnosis.wording import format_event_rate, format_rate, format_seconds

_CONNECTS_HZ = 5.0
# Drivers add a SET and a COM_QUIT to the statement of each connection.
_FEW_STATEMENTS, _MOST_STATEMENTS = 4.0, 10.0
_NOT_CLIENTS = (*INTERNAL_USERS, "unauthenticated user")
# A leak opens connections during most of the window.
_LEAKED_HZ, _MIN_LEAKED, _LEAK_SPREAD = 0.5, 5, 0.5
_MIN_LASTING = 0.8
# A statement or an account belongs to the connections if it is in at least this share of them.
_MIN_SHARE = 0.5


def find_leaked_connections(evidence: Evidence) -> list[Finding]:
    """Find clients that open connections again and again and do not close them.

    A pool opens its connections at once. A leak opens them during the whole window.
    """
    return _find_leaked_processes(evidence) or _find_leaked_threads(evidence)


def _find_leaked_processes(evidence: Evidence) -> list[Finding]:
    """Find them by the processes that PostgreSQL starts."""
    span_s = evidence.starts_span_s or 0.0
    for starts in evidence.starts:
        count = starts.lasting_count
        is_steady = count >= _MIN_LEAKED and starts.lasting_spread_s >= _LEAK_SPREAD * span_s
        if not is_steady or count < _MIN_LASTING * starts.count or count < _LEAKED_HZ * span_s:
            continue
        rate = format_event_rate(count / span_s, "connections")
        return [
            Finding(
                rule="connection_leak",
                severity="fault",
                text=f"{starts.account or 'A client'} opens {rate} and does not close them.",
                evidence=[f"{count} of {starts.count} new processes of clients stayed in {format_seconds(span_s)}"],
                remedy=[
                    "Close each connection after use, or use a pool with a limit",
                    "idle_session_timeout (from PostgreSQL 14) closes idle ones; max_connections limits them",
                ],
                rate_hz=count / span_s,
                account=starts.account,
            )
        ]
    return []


def _find_leaked_threads(evidence: Evidence) -> list[Finding]:
    """Find them by the counters and the process list of MariaDB and MySQL."""
    opened_hz = evidence.rate_hz("Threads_connected")
    known = {client.id for client in evidence.clients_before}
    new = [client for client in evidence.clients_after if client.id not in known and client.user not in _NOT_CLIENTS]
    ages_s = sorted(client.time_s for client in new if client.command == "Sleep" and client.time_s is not None)
    is_steady = len(ages_s) >= _MIN_LEAKED and ages_s[-1] - ages_s[0] >= _LEAK_SPREAD * evidence.window_s
    if opened_hz < _LEAKED_HZ or not is_steady or opened_hz < _MIN_SHARE * evidence.rate_hz("Connections"):
        return []
    account, count = Counter(format_account(client.user, client.host) for client in new).most_common(1)[0]
    is_open = evidence.status_after["Threads_connected"]
    limit = evidence.variables.get("max_connections")
    return [
        Finding(
            rule="connection_leak",
            severity="fault",
            text=f"{account} opens {format_event_rate(opened_hz, 'connections')} and never closes them: "
            f"{is_open} are open{f' of {limit}' if limit else ''}.",
            evidence=[
                f"Threads_connected rose by {is_open - evidence.status_before['Threads_connected']} in "
                f"{format_seconds(evidence.window_s)}; {count} of the new connections are of {account}"
            ],
            remedy=[
                "Close each connection after use, or use a pool with a limit",
                f"to close idle ones: a shorter wait_timeout{_describe_setting(evidence, 'wait_timeout', ' s')}",
            ],
            rate_hz=opened_hz,
            account=account,
        )
    ]


def _describe_setting(evidence: Evidence, name: str, unit: str) -> str:
    value = evidence.variables.get(name)
    return "" if value is None else f" (it is {value}{unit})"


def compute_short_percent(evidence: Evidence, made_hz: float) -> float | None:
    """Return the CPU use of connections that send few statements: opening, closing, and the statements of each.

    None without a window of statements.
    """
    window = evidence.statement_window
    if window is None:
        return None
    of_each = [use for use in window.statements if (use.calls_hz or 0.0) >= _MIN_SHARE * made_hz]
    return window.connecting_percent + sum(use.percent for use in of_each)


def find_short_connections(evidence: Evidence) -> list[Finding]:
    """Find clients that connect repeatedly and send few statements, unless the statements are the cost."""
    failed_hz = evidence.rate_hz("Aborted_connects")
    # Connections that stay open are another finding.
    stay_hz = evidence.rate_hz("Threads_connected")
    made_hz = evidence.rate_hz("Connections") - compute_source_churn_hz(evidence) - failed_hz - stay_hz
    percent = compute_short_percent(evidence, made_hz)
    uses = [use for use in select_uses(evidence) if not use.text.startswith("(COM_")]
    is_by_statement = bool(
        uses and percent and uses[0].percent >= MAIN_SHARE * percent and is_costly(percent, evidence)
    )
    per_connection = evidence.count_increase("Questions") / max(1, evidence.count_increase("Connections"))
    newcomer = find_newcomer(evidence)
    # A replica that applies transactions takes numbers from the same counter.
    is_reliable = newcomer is not None or not evidence.channels_after
    is_costly_churn = percent is not None and percent >= MAIN_PERCENT and is_costly(percent, evidence)
    if made_hz < _CONNECTS_HZ or not is_reliable or is_by_statement:
        return []
    if per_connection > _FEW_STATEMENTS and not (is_costly_churn and per_connection <= _MOST_STATEMENTS):
        return []
    used = f" It uses {describe_share(percent, evidence)}." if percent else ""
    return [
        Finding(
            rule="client_reconnect_loop",
            severity="fault",
            text=f"{newcomer or 'A client'} reconnects {format_rate(made_hz)} and runs almost no statements.{used}",
            evidence=[
                f"Connections rises {format_rate(made_hz)}, {per_connection:.1f} statements per connection",
                *([f"newcomers: {newcomer}"] if newcomer else []),
            ],
            remedy=["Keep the connection open, use a pool, or run the health check every 10 s or less often"],
            rate_hz=made_hz,
            percent=percent,
            account=newcomer,
        )
    ]


def find_started_clients(evidence: Evidence) -> list[Finding]:
    """Find clients of PostgreSQL that connect again and again, each time to a new process. A pool connects once.

    It is a note if a statement of the connections is the cost.
    """
    span_s = evidence.starts_span_s or 0.0
    starts = next((starts for starts in evidence.starts if starts.role == "backend of"), None)
    short = 0 if starts is None else starts.count - starts.lasting_count
    if starts is None or not span_s or short / span_s < _CONNECTS_HZ:
        return []
    made_hz = short / span_s
    percent = compute_short_percent(evidence, made_hz)
    uses = select_uses(evidence)
    is_by_statement = bool(uses and percent and uses[0].percent >= MAIN_SHARE * percent)
    used = f" It uses {describe_share(percent, evidence)}." if percent and not is_by_statement else ""
    return [
        Finding(
            rule="client_reconnect_loop",
            severity="note" if is_by_statement else "fault",
            text=f"{starts.account or 'A client'} connects at least {format_rate(made_hz)}, and PostgreSQL starts a "
            f"process for each connection.{used}",
            evidence=[
                f"{starts.count} processes of clients started in {format_seconds(span_s)}, "
                f"{starts.lasting_count} of them stayed"
            ],
            remedy=[
                "Keep the connections, or use a pool (PgBouncer, the driver's own)",
                "who connects: log_connections=on",
            ],
            rate_hz=made_hz,
            percent=None if is_by_statement else percent,
            account=starts.account,
        )
    ]
