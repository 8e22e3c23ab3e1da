# SPDX-License-Identifier: Apache-2.0
"""Logins that a server refused, by account, by its own count: MySQL keeps one (performance_schema), MariaDB's error log
has them (`serverlog`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from powerprof.database.clients import sql
from powerprof.database.clients.base import StatementError
from powerprof.diagnosis.evidence import DeniedAccount
from powerprof.untrusted import printable

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql

_MOST_NAME = 100
# ER_ACCESS_DENIED_ERROR, ER_ACCESS_DENIED_NO_PASSWORD_ERROR
_DENIED = (
    "SELECT USER, HOST, SUM(SUM_ERROR_RAISED), TIMESTAMPDIFF(SECOND, MAX(LAST_SEEN), NOW()), "
    "TIMESTAMPDIFF(SECOND, MIN(FIRST_SEEN), MAX(LAST_SEEN)) "
    "FROM performance_schema.events_errors_summary_by_account_by_error WHERE ERROR_NUMBER IN (1045, 1698) "
    "AND SUM_ERROR_RAISED > 0 AND USER IS NOT NULL GROUP BY USER, HOST ORDER BY 3 DESC LIMIT 200"
)


def denied(connection: Sql) -> list[DeniedAccount]:
    """Since the server was started; empty where it does not count them, or may not be asked."""
    try:
        rows = sql.rows(connection, _DENIED, columns=5)
    except StatementError as error:
        if error.number >= 2000 or error.number == 0:  # the connection was lost, or is of no use
            raise
        return []
    found = []
    for user, host, total, last_s, span_s in rows:
        count = sql.count(total)
        if count:
            name = printable(f"{str(user)[:_MOST_NAME]}@{str(host or '')[:_MOST_NAME]}")
            found.append(
                DeniedAccount(
                    account=name,
                    count=count,
                    window_count=0,
                    last_s=max(sql.number(last_s) or 0.0, 0.0),
                    span_s=max(sql.number(span_s) or 0.0, 0.0),
                )
            )
    return found


def between(before: Sequence[DeniedAccount], after: Sequence[DeniedAccount]) -> list[DeniedAccount]:
    """Those of the end, with how many of theirs came in the window."""
    then: Mapping[str, int] = {one.account: one.count for one in before}
    return [
        DeniedAccount(
            account=one.account,
            count=one.count,
            window_count=max(0, one.count - then.get(one.account, 0)),
            last_s=one.last_s,
            span_s=one.span_s,
        )
        for one in after
    ]
