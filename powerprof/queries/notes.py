# SPDX-License-Identifier: Apache-2.0
"""What has to be known of the figures of a window, in sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence

from powerprof.database.clients.performance import Known
from powerprof.queries.join import UNKNOWN_PREPARED
from powerprof.queries.reach import Reach
from powerprof.queries.records import Statement
from powerprof.tracing.captures.statements import StatementTrace
from powerprof.tracing.statements.moments import SAMPLE_HZ, Moments
from powerprof.tracing.statements.tables import TEXT_BYTES

_CALL = re.compile(r"\s*CALL\b", re.IGNORECASE)


def of(trace: StatementTrace, known: Known, server: Reach, statements: Sequence[Statement]) -> list[str]:
    """One sentence for each thing that a reader could otherwise take for something else."""
    notes = []
    if any(_CALL.match(statement.text) for statement in statements):
        notes.append("what a stored procedure executes is within its CALL: the statements inside are not told apart")
    if any(statement.text == UNKNOWN_PREPARED for statement in statements):
        notes.append(
            "statements that were prepared before the window, or whose numbers were not seen, have no text here: "
            "performance_schema would tell (performance_schema=ON at the server's start), or clients that reconnect"
        )
    notes += _of_server(known, server)
    notes += _of_texts(trace.cut_count, trace.unreadable_count, trace.lost_count)
    if trace.ends_by == "do_command":
        notes.append("this kernel does not tell when a socket is written: latency lasts to the next wait for a packet")
    if trace.ends_by == "report":
        notes.append("this kernel does not tell when a socket is written: a statement ends just before its last packet")
    if not trace.is_sure:
        notes.append(
            "this build does not tell its messages apart: preparing a statement counts as a call, a pipeline of one "
            "statement as one call"
        )
    return notes


def of_samples(moments: Moments, count: int, known: Known, server: Reach) -> list[str]:
    """The same of a window of samples."""
    calls = (
        "calls are the server's own count, from just before the window to just after it"
        if known.has_digests
        else "calls are not known"
    )
    return [
        f"shares are those of {count:,} samples ({SAMPLE_HZ} a second and CPU) and have 95 % intervals; each CPU was "
        "woken for them, which joules contain",
        f"samples tell neither wake-ups, page faults nor latencies of statements; {calls}; preparing a statement "
        "counts as executing it",
        *_of_server(known, server),
        *_of_texts(moments.cut_count, moments.unreadable_count, moments.lost_count),
    ]


def _of_server(known: Known, server: Reach) -> list[str]:
    if server.family == "postgresql":
        return [
            "PostgreSQL itself is not asked: schemas are the databases in the titles of processes that live "
            "at one end of the window; rows are unknown; what functions execute is within the statement that calls them"
        ]
    if server.login is None:
        return [
            "the server does not let this user in by its socket: threads have the kernel's names, schemas and rows are "
            "unknown (name an account with --defaults-file)"
        ]
    if not known.has_digests:
        return ["rows examined and sent are unknown: performance_schema is off, or does not collect statements"]
    return ["rows examined and sent are the server's own counts, from just before the window to just after it"]


def _of_texts(cut_count: int, unreadable_count: int, lost_count: int) -> list[str]:
    notes = []
    if cut_count:
        notes.append(
            f"{cut_count:,} texts are longer than {TEXT_BYTES - 1:,} bytes: statements that differ only beyond "
            "that count as one"
        )
    if unreadable_count:
        notes.append(f"{unreadable_count:,} texts could not be read")
    if lost_count:
        notes.append(f"{lost_count:,} times a table of the tracer had no room: figures are too low")
    return notes
