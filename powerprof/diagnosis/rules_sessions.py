# SPDX-License-Identifier: Apache-2.0
"""The rule on transactions of PostgreSQL whose clients send nothing, and the names of clients."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from powerprof.diagnosis.evidence import SQL_FAMILIES, Evidence, Finding, OpenTransaction
from powerprof.diagnosis.postgres_queries import LEAST_OPEN_S, describe_application
from powerprof.diagnosis.wording import describe_settings, format_role_change, format_seconds, shorten_statement
from powerprof.model.text import plural

_SHOWN = 3


def find_idle_transactions(evidence: Evidence) -> list[Finding]:
    """Find clients that leave transactions open: a fault after half a minute, with a snapshot; before, a note."""
    by_account: dict[str, list[OpenTransaction]] = defaultdict(list)
    for transaction in evidence.open_transactions if evidence.family not in SQL_FAMILIES else []:
        by_account[transaction.account].append(transaction)
    return [_report(evidence, account, open_ones) for account, open_ones in by_account.items()]


def _report(evidence: Evidence, account: str, transactions: list[OpenTransaction]) -> Finding:
    oldest = max(transactions, key=lambda transaction: transaction.open_s)
    harmful = [one for one in transactions if one.open_s >= LEAST_OPEN_S and one.holds_versions is not False]
    count = plural(len(transactions), "transaction")
    limit = describe_settings(evidence, "idle_in_transaction_session_timeout")
    return Finding(
        rule="idle_transaction",
        severity="fault" if harmful else "note",
        text=f"{account} leaves {count} open and sends nothing, for at least {format_seconds(oldest.open_s)}: VACUUM "
        "keeps all row versions that have become old since then.",
        evidence=[
            *(_describe(transaction) for transaction in transactions[:_SHOWN]),
            *([limit.replace(" 0 ms", " 0: no limit")] if limit else []),
        ],
        remedy=[
            *(
                f"to end it now: SELECT pg_catalog.pg_terminate_backend({one.connection})"
                for one in transactions[:_SHOWN]
            ),
            "in the client: COMMIT or ROLLBACK before it waits",
            "to limit it: " + format_role_change(account, "idle_in_transaction_session_timeout", "'1min'"),
        ],
        account=account,
    )


def _describe(transaction: OpenTransaction) -> str:
    sent = f": its last statement is {shorten_statement(transaction.statement)}" if transaction.statement else ""
    return f"process {transaction.connection} waits in a transaction{sent}"


def name_application(evidence: Evidence, finding: Finding) -> Finding:
    """Return a finding about an account with the names that its clients gave themselves (application_name)."""
    named = describe_application(evidence.postgres_after, finding.account) if finding.account is not None else ""
    if not named:
        return finding
    return msgspec.structs.replace(finding, evidence=[*finding.evidence, f"application_name of its clients: {named}"])
