# SPDX-License-Identifier: Apache-2.0
"""What is to be known of a record, in sentences: its notes, and where its joules come from."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof import text
from powerprof.experiment.records import Comparison
from powerprof.queries.records import Queries
from powerprof.records import Run


def all_of(record: Run | Comparison | Queries) -> list[str]:
    """Everything, for pages and files."""
    source = record.energy_source
    return list(dict.fromkeys([*(source.sentences() if source else []), *of(record)]))


def of(record: Run | Comparison | Queries) -> list[str]:
    """What broke it off, where something did, and its own notes."""
    failure = None if isinstance(record, Queries) else record.failure
    return [*([f"ended early: {failure}"] if failure else []), *record.notes]


def one_doubt(doubts: Sequence[str]) -> str:
    """The first doubt of an estimate, which stands for all, and where the others are told."""
    return f"no meter here: estimate: {doubts[0]}" + (" (more doubts: powerprof energy)" if len(doubts) > 1 else "")


def lines(record: Run | Comparison | Queries, width: int) -> list[str]:
    """For a terminal: of an estimate one doubt stands for all."""
    source = record.energy_source
    printed = []
    if source is not None and not source.metered and source.doubts:
        printed += text.wrap(f"Note: {one_doubt(source.doubts)}.", width)
    for note in of(record):
        printed += text.wrap(f"Note: {note.removesuffix('.')}.", width)
    return printed
