# SPDX-License-Identifier: Apache-2.0
"""The statements of two windows that are one statement: its text without values, in its schema."""

from __future__ import annotations

from collections import defaultdict

from powerprof.model.identities import Family
from powerprof.model.statements import make_key
from powerprof.queries.records import Queries, Statement

StatementKey = tuple[str, str | None]
Pair = tuple[Statement | None, Statement | None]


def key_of(statement: Statement, family: Family) -> StatementKey:
    """Return the key of a row: its text as servers show it, and its schema."""
    return make_key(statement.text, family), statement.schema_name


def pair_statements(before: Queries, after: Queries) -> list[Pair]:
    """Return the statements of both windows in order, each with itself in the other window; None if it is not there.

    The schema of a row is unknown if its connections were gone before the server was queried. Such a row is the
    other window's row of the same text if each window has one more row of it.
    """
    family = before.server.family
    first = {key_of(one, family): one for one in before.statements}
    second = {key_of(one, family): one for one in after.statements}
    left: dict[str, tuple[list[StatementKey], list[StatementKey]]] = defaultdict(lambda: ([], []))
    for at, (own, other) in enumerate(((first, second), (second, first))):
        for key in own:
            if key not in other:
                left[key[0]][at].append(key)
    partners = {a[0]: b[0] for a, b in left.values() if len(a) == len(b) == 1 and None in (a[0][1], b[0][1])}
    taken = set(partners.values())
    pairs: list[Pair] = [(one, second.get(partners.get(key, key))) for key, one in first.items()]
    return [*pairs, *((None, one) for key, one in second.items() if key not in first and key not in taken)]
