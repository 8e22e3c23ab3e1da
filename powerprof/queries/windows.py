# SPDX-License-Identifier: Apache-2.0
"""A traced window with the texts of clients, and the notes on windows of probes and of samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from powerprof.database.server_report import ServerReport
from powerprof.model.records import Note
from powerprof.queries.pricing import MeasuredStatements
from powerprof.queries.target import TracedServer
from powerprof.tracing.captures import OnCpuCapture, RecordedText, StatementTrace
from powerprof.tracing.statement_samples import StatementSamples
from powerprof.tracing.statement_tables import MOST_TEXT_BYTES


def note_reading(known: ServerReport, server: TracedServer, counted: StatementTrace | StatementSamples) -> list[Note]:
    """Return the notes on the server's report, and on texts that were cut, unreadable or without room."""
    if server.family == "postgresql":
        notes = [Note("postgresql_counted" if known.statistics else "postgresql_not_asked")]
    elif server.login is None:
        notes = [Note("no_login")]
    else:
        notes = [Note("rows_counted" if known.has_digests else "rows_unknown")]
    if known.lost_digests_count:
        notes.append(Note("digests_lost", {"count": known.lost_digests_count}))
    if counted.cut_count:
        notes.append(Note("texts_cut", {"count": counted.cut_count, "bytes": MOST_TEXT_BYTES}))
    if counted.unreadable_count:
        notes.append(Note("texts_unreadable", {"count": counted.unreadable_count}))
    if counted.lost_count:
        notes.append(Note("table_full", {"count": counted.lost_count}))
    return notes


def name_version(number: str | None) -> str | None:
    """Return the version that the program of PostgreSQL shows, in the form of a version that a server reports."""
    return None if number is None else f"PostgreSQL {number}"


class TracedWindow(NamedTuple):
    """A window with the texts of clients. With probes it has the trace, and samples of stacks on request."""

    measured: MeasuredStatements
    texts: Sequence[RecordedText] = ()
    trace: StatementTrace | None = None
    stacks: OnCpuCapture | None = None
