# SPDX-License-Identifier: Apache-2.0
"""The processes that a PostgreSQL server starts, and its logical subscriptions with their errors."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from powerprof.database import sql
from powerprof.database.local_login import log_in_locally
from powerprof.diagnosis.evidence import ProcessStarts, StartsWatch, Subscription
from powerprof.measure.procfs import list_children
from powerprof.system.errors import PowerprofError
from powerprof.system.foreign_text import printable
from powerprof.system.server_roles import parse_account, parse_part, read_roles, read_titles

WATCH_S = 2.0
"""Seconds for which the started processes are watched."""
# A failing worker of PostgreSQL lives for 5 to 10 ms. The watch itself uses at most a fifth of a CPU, with which it saw
# 84 % of 155 starts in 2 s, and 60 % with a tenth.
_LOOK_S, _MOST_S = 0.001, 1.0
_MAX_SHARE = 0.2
_MOST_ROLES = 64
_MOST_SUBSCRIPTIONS, _MOST_NAME = 1000, 63
# Roles of which the rest of the title is an account or a database.
_BACKEND = "backend of"
_MERGED = ("walsender", _BACKEND, "autovacuum worker")


def watch_starts(pid: int, span_s: float = WATCH_S) -> StartsWatch:
    """Return the processes that a server starts within `span_s` seconds.

    Processes that live shorter than a look may be missed. `pid` is the server's first process.
    """
    before = set(list_children(pid))
    archiver = next((name for name in read_roles(before).values() if name.startswith("archiver")), None)
    titles: dict[int, str | None] = {}
    started_s: dict[int, float] = {}
    began_s = look_s = time.monotonic()
    while look_s < began_s + span_s:
        children = [child for child in list_children(pid) if child not in before]
        titles |= {child: None for child in children if child not in titles}
        started_s |= {child: look_s for child in children if child not in started_s}
        # A new process has the title of its parent until it sets its own.
        unnamed = [child for child in children if parse_part(titles[child] or "") is None]
        titles |= read_titles(unnamed)
        time.sleep(min(_MOST_S, max(_LOOK_S, (time.monotonic() - look_s) * (1 / _MAX_SHARE - 1))))
        look_s = time.monotonic()
    accounts = {
        child: account for child, title in titles.items() if (account := parse_account(title or "")) is not None
    }
    most = next((account for account, _ in Counter(accounts.values()).most_common(1)), None)
    lasting = set(accounts) & set(list_children(pid))
    times_s = [started_s[child] for child in lasting]
    starts = [
        replace(one, lasting_count=len(lasting), lasting_spread_s=max(times_s, default=0.0) - min(times_s, default=0.0))
        if one.role == _BACKEND
        else one
        for one in count_roles([parse_part(title or "") for title in titles.values()], most)
    ]
    return StartsWatch(starts=starts, starts_span_s=look_s - began_s, archiver=archiver)


def count_roles(roles: Iterable[str | None], account: str | None = None) -> list[ProcessStarts]:
    """Return the processes by role, the most frequent first. Roles that end with an account or database are merged.

    Processes that ended before their titles could be read have the role of the others if those are several of one role.
    `account` is that of most clients.
    """
    counts = Counter(
        next((merged for merged in _MERGED if role is not None and role.startswith(merged)), role) for role in roles
    )
    unnamed_count = counts[None]
    named = Counter({role: count for role, count in counts.items() if role is not None})
    only = next(iter(named)) if len(named) == 1 and named.total() > 1 else None
    if only is not None:
        counts = Counter({only: counts.total()})
    return [
        ProcessStarts(
            role=role,
            count=count,
            unnamed_count=unnamed_count if role in (None, only) else 0,
            account=account if role == _BACKEND else None,
        )
        for role, count in counts.most_common(_MOST_ROLES)
    ]


# All names and operators are qualified. Otherwise the search_path of the database could choose other objects.
_FROM = " FROM pg_catalog.pg_subscription s"
_COUNTED = (
    "SELECT s.oid, s.subname, c.apply_error_count OPERATOR(pg_catalog.+) c.sync_error_count"
    f"{_FROM} LEFT JOIN pg_catalog.pg_stat_subscription_stats c ON c.subid OPERATOR(pg_catalog.=) s.oid"
)
_NAMED = f"SELECT s.oid, s.subname, NULL{_FROM}"
_SETTINGS = "SELECT pg_catalog.current_setting('wal_retrieve_retry_interval')"


class SubscriptionReading(msgspec.Struct):
    """The subscriptions of a server at one moment; None if it does not let powerprof log in.

    Attributes:
        settings: The settings that set the pace of the workers.
    """

    subscriptions: list[Subscription] | None = None
    settings: dict[str, str] = msgspec.field(default_factory=dict)


def read_subscriptions(pid: int) -> SubscriptionReading:
    """Return the subscriptions, read as the system user through the server's own socket."""
    entered = log_in_locally(pid, sql.WORD_LIMITS, family="postgresql")
    if entered is None:
        return SubscriptionReading()
    with entered[1] as connection:
        # PostgreSQL 15 counts the errors.
        for statement in (_COUNTED, _NAMED):
            try:
                rows = sql.fetch_rows(connection, f"{statement} LIMIT {_MOST_SUBSCRIPTIONS}", columns=3)
                retry = sql.fetch_scalar(connection, _SETTINGS)
            except PowerprofError:
                continue
            subscriptions = [
                Subscription(oid=oid, name=printable(str(name))[:_MOST_NAME], errors_count=sql.parse_count(errors))
                for text, name, errors in rows
                if (oid := sql.parse_count(text)) is not None
            ]
            return SubscriptionReading(subscriptions, {"wal_retrieve_retry_interval": str(retry)[:_MOST_NAME]})
    return SubscriptionReading()
