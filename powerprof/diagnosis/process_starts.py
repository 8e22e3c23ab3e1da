# SPDX-License-Identifier: Apache-2.0
"""The processes that a PostgreSQL server starts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from powerprof.diagnosis.evidence import ProcessStarts, StartsWatch
from powerprof.measure.procfs import list_children
from powerprof.system.server_roles import parse_account, parse_part, read_roles, read_titles

WATCH_S = 2.0
"""Seconds for which the started processes are watched."""
# A failing worker of PostgreSQL lives for 5 to 10 ms. The watch itself uses at most a fifth of a CPU, with which it saw
# 84 % of 155 starts in 2 s, and 60 % with a tenth.
_LOOK_S, _MOST_S = 0.001, 1.0
_MAX_SHARE = 0.2
_MOST_ROLES = 64
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
