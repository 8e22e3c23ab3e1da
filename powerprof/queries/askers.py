# SPDX-License-Identifier: Apache-2.0
"""Rank the askers of a statement, and sum statements by user, host, account or database; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from powerprof.queries.records import Asker, Queries, Statement
from powerprof.system.errors import UnknownNameError

if TYPE_CHECKING:
    from powerprof.database.server_report import Account

_MAX_ASKERS = 20
Grouping = Literal["user", "host", "account", "database"]

GROUPINGS: tuple[Grouping, ...] = get_args(Grouping)

UNKNOWN = "(not known)"


def parse_grouping(value: str) -> Grouping:
    """Return the value of `--by`. Raise UsageError."""
    for known in GROUPINGS:
        if value == known:
            return known
    raise UnknownNameError(f"--by {value[:40]} is not a choice", value, GROUPINGS)


class AskerGroup(msgspec.Struct):
    """The sum of all statements of one asker; `first` is the one with most CPU time."""

    name: str
    c0_s: float = 0.0
    joules: float | None = None
    calls: int | None = None
    texts: set[str] = msgspec.field(default_factory=set)
    first: str = ""
    first_s: float = 0.0


def group_statements(record: Queries, by: Grouping) -> list[AskerGroup]:
    """Return groups, most CPU time first. Joules of a statement are split among its askers by CPU time."""
    found: dict[str, AskerGroup] = {}
    for statement in record.statements:
        for name, c0_s, calls in _divide_statement(statement, by):
            group = found.setdefault(name, AskerGroup(name))
            group.c0_s += c0_s
            group.texts.add(statement.id or statement.text)
            if calls is not None:
                group.calls = (group.calls or 0) + calls
            if statement.joules is not None and statement.c0_s:
                group.joules = (group.joules or 0.0) + statement.joules * c0_s / statement.c0_s
            if not group.first or c0_s > group.first_s:
                group.first, group.first_s = statement.text, c0_s
    return sorted(found.values(), key=lambda group: (-group.c0_s, group.name))


def _divide_statement(statement: Statement, by: Grouping) -> list[tuple[str, float, int | None]]:
    whole = statement.c0_s, statement.calls_count
    if by == "database":
        return [(statement.schema_name or UNKNOWN, *whole)]
    if not statement.askers:
        return [(UNKNOWN, *whole)]
    sums: dict[str, tuple[float, int | None]] = defaultdict(lambda: (0.0, None))
    for asker in statement.askers:
        name = name_asker(asker, by)
        c0_s, calls = sums[name]
        more = calls if asker.calls_count is None else (calls or 0) + asker.calls_count
        sums[name] = c0_s + asker.c0_s, more
    return [(name, *amount) for name, amount in sums.items()]


def name_asker(asker: Asker, by: Grouping = "account") -> str:
    """Return the name of an asker in this grouping."""
    if asker.user is None:
        return UNKNOWN
    host = asker.host or "localhost"
    return {"user": asker.user, "host": host}.get(by, f"{asker.user}@{host}")


def rank_askers(used: Mapping[Account | None, tuple[float, int | None]]) -> list[Asker]:
    """Return askers by CPU time in s, with calls if known. Those behind the first `_MAX_ASKERS` have no name."""
    most = sorted(used.items(), key=lambda pair: (-pair[1][0], str(pair[0])))
    named = [(account, amount) for account, amount in most if account is not None][:_MAX_ASKERS]
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
