# SPDX-License-Identifier: Apache-2.0
"""What has to be known of the figures of a window; report words it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from powerprof.database.clients.performance import Known
from powerprof.queries.join import UNKNOWN_PREPARED
from powerprof.queries.reach import Reach
from powerprof.queries.records import Statement
from powerprof.records import Note
from powerprof.tracing.captures.statements import StatementTrace
from powerprof.tracing.statements.moments import SAMPLE_HZ, Moments
from powerprof.tracing.statements.tables import MOST_TEXT_BYTES

_CALL = re.compile(r"\s*CALL\b", re.IGNORECASE)


def of(trace: StatementTrace, known: Known, server: Reach, statements: Sequence[Statement]) -> list[Note]:
    """A note for each thing that a reader could otherwise take for something else."""
    notes = []
    if any(_CALL.match(statement.text) for statement in statements):
        notes.append(Note("within_call"))
    if any(statement.text == UNKNOWN_PREPARED for statement in statements):
        notes.append(Note("prepared_before"))
    notes.append(_of_server(known, server))
    notes += _of_texts(trace.cut_count, trace.unreadable_count, trace.lost_count)
    if trace.ends_by in ("do_command", "report"):
        notes.append(Note(f"ends_by_{trace.ends_by}"))
    if not trace.is_sure:
        notes.append(Note("messages_alike"))
    return notes


def of_samples(moments: Moments, count: int, known: Known, server: Reach) -> list[Note]:
    """The same of a window of samples."""
    return [
        Note("shares_of_samples", {"count": count, "hz": SAMPLE_HZ}),
        Note("samples_count_calls" if known.has_digests or known.statistics else "samples_without_calls"),
        _of_server(known, server),
        *_of_texts(moments.cut_count, moments.unreadable_count, moments.lost_count),
    ]


def _of_server(known: Known, server: Reach) -> Note:
    if server.family == "postgresql":
        return Note("postgresql_counted" if known.statistics else "postgresql_not_asked")
    if server.login is None:
        return Note("no_login")
    return Note("rows_counted" if known.has_digests else "rows_unknown")


def _of_texts(cut_count: int, unreadable_count: int, lost_count: int) -> list[Note]:
    notes = []
    if cut_count:
        notes.append(Note("texts_cut", {"count": cut_count, "bytes": MOST_TEXT_BYTES}))
    if unreadable_count:
        notes.append(Note("texts_unreadable", {"count": unreadable_count}))
    if lost_count:
        notes.append(Note("table_full", {"count": lost_count}))
    return notes
