# SPDX-License-Identifier: Apache-2.0
"""Pure: who asked for a statement, and statements summed by user, host, account or database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from powerprof.database.clients.performance import Account
from powerprof.errors import UsageError
from powerprof.queries.records import Asker, Queries, Statement

By = Literal["user", "host", "account", "database"]
WAYS: tuple[By, ...] = get_args(By)
UNKNOWN = "(not known)"
_MOST = 20


def askers_of(used: Mapping[Account | None, tuple[float, int | None]]) -> list[Asker]:
    """By account: seconds of CPU time, and calls where these are known. Those behind the first of many have no name."""
    most = sorted(used.items(), key=lambda pair: (-pair[1][0], str(pair[0])))
    named = [(account, amount) for account, amount in most if account is not None][:_MOST]
    askers = [
        Asker(user=account.user, host=account.host, c0_s=c0_s, calls_count=calls) for account, (c0_s, calls) in named
    ]
    kept = {account for account, _ in named}
    rest = [amount for account, amount in most if account not in kept]
    if rest:
        counts = [count for _, count in rest if count is not None]
        used_s = sum(c0_s for c0_s, _ in rest)
        askers.append(Asker(user=None, host=None, c0_s=used_s, calls_count=sum(counts) if counts else None))
    return askers


def way(value: str) -> By:
    """Of `--by`. Raises UsageError."""
    for known in WAYS:
        if value == known:
            return known
    raise UsageError(f"--by {value[:40]} is no choice", f"one of {', '.join(WAYS)}")


@dataclass
class Group:
    """What all statements of one asker used; `first` is the one with most CPU time."""

    name: str
    c0_s: float = 0.0
    joules: float | None = None
    calls: int | None = None
    texts: set[str] = field(default_factory=set)
    first: str = ""
    first_s: float = 0.0


def groups(record: Queries, by: By) -> list[Group]:
    """Most CPU time first. Joules of a statement are split among its askers by CPU time."""
    found: dict[str, Group] = {}
    for statement in record.statements:
        for name, c0_s, calls in _parts(statement, by):
            group = found.setdefault(name, Group(name))
            group.c0_s += c0_s
            group.texts.add(statement.id or statement.text)
            if calls is not None:
                group.calls = (group.calls or 0) + calls
            if statement.joules is not None and statement.c0_s:
                group.joules = (group.joules or 0.0) + statement.joules * c0_s / statement.c0_s
            if not group.first or c0_s > group.first_s:
                group.first, group.first_s = statement.text, c0_s
    return sorted(found.values(), key=lambda group: (-group.c0_s, group.name))


def _parts(statement: Statement, by: By) -> list[tuple[str, float, int | None]]:
    whole = statement.c0_s, statement.calls_count
    if by == "database":
        return [(statement.schema_name or UNKNOWN, *whole)]
    if not statement.askers:
        return [(UNKNOWN, *whole)]
    sums: dict[str, tuple[float, int | None]] = defaultdict(lambda: (0.0, None))
    for asker in statement.askers:
        name = asker_name(asker, by)
        c0_s, calls = sums[name]
        more = calls if asker.calls_count is None else (calls or 0) + asker.calls_count
        sums[name] = c0_s + asker.c0_s, more
    return [(name, *amount) for name, amount in sums.items()]


def asker_name(asker: Asker, by: By = "account") -> str:
    """What an asker is called."""
    if asker.user is None:
        return UNKNOWN
    host = asker.host or "localhost"
    return {"user": asker.user, "host": host}.get(by, f"{asker.user}@{host}")
