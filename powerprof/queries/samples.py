# SPDX-License-Identifier: Apache-2.0
"""Whole texts that clients sent, with their values: only for who consented, and never saved with a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from powerprof.database.clients.base import Login
from powerprof.database.clients.explaining import explain
from powerprof.errors import PowerprofError
from powerprof.queries.records import QueryPlanStep, Statement
from powerprof.statements.normal import key
from powerprof.tracing.captures.statements import COM_QUERY, TextSeen
from powerprof.tracing.statements.tables import TEXT_BYTES

_READS = re.compile(r"\(*(SELECT|WITH)\b", re.IGNORECASE)
_LOCKS = re.compile(r"\b(for update|for share|lock in share mode|into ?(outfile|dumpfile|@))")


@dataclass(frozen=True)
class StatementSample:
    """A statement of the record with a text of it as a client sent it."""

    number: int
    statement: Statement
    text: str


def samples(seen_texts: Iterable[TextSeen], statements: Sequence[Statement], most: int) -> list[StatementSample]:
    """Of the first statements those that only read, and whose text is whole and has its values."""
    texts: dict[str, str] = {}
    for seen in seen_texts:
        if seen.command == COM_QUERY and seen.length < TEXT_BYTES:
            text = seen.text.decode("utf-8", "replace")
            name = key(text)
            if _READS.match(name) and not _LOCKS.search(name) and "?" not in text and "\ufffd" not in text:
                texts.setdefault(name, text)
    chosen = [
        StatementSample(number, statement, texts[key(statement.text)])
        for number, statement in enumerate(statements)
        if key(statement.text) in texts and not statement.began_before
    ]
    return chosen[:most]


def with_plans(
    statements: Sequence[Statement], chosen: Sequence[StatementSample], login: Login
) -> tuple[list[Statement], list[str]]:
    """The statements with the plans of the chosen ones, and what could not be explained."""
    planned, notes = list(statements), []
    for sample in chosen:
        try:
            steps = explain(login, sample.text, sample.statement.schema_name)
        except PowerprofError as error:
            notes.append(f"no plan of {sample.statement.text[:60]}: {error.message}")
            continue
        plan = [
            QueryPlanStep(table=s.table, access=s.access, key=s.key, rows_count=s.rows, extra=s.extra) for s in steps
        ]
        planned[sample.number] = msgspec.structs.replace(planned[sample.number], plan=plan)
    return planned, notes
