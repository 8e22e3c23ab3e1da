# SPDX-License-Identifier: Apache-2.0
"""What is to be known of a record, in sentences: its notes, and where its joules come from."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof import text
from powerprof.attribution.records import Attribution
from powerprof.experiment.records import Comparison
from powerprof.queries.records import Queries
from powerprof.records import Run
from powerprof.report.wording.notes import texts


def all_of(record: Run | Comparison | Queries | Attribution) -> list[str]:
    """Everything, for pages and files."""
    source = record.energy_source
    return list(dict.fromkeys([*(texts(source.notes()) if source else []), *of(record)]))


def of(record: Run | Comparison | Queries | Attribution) -> list[str]:
    """What broke it off, where something did, and its own notes."""
    failure = None if isinstance(record, Queries | Attribution) else record.failure
    return [*([f"ended early: {failure}"] if failure else []), *texts(record.notes)]


def one_doubt(doubts: Sequence[str]) -> str:
    """The first doubt of an estimate, which stands for all, and which command prints the others."""
    return f"estimated (no meter): {doubts[0]}{' (powerprof energy)' if len(doubts) > 1 else ''}"


def lines(record: Run | Comparison | Queries | Attribution, width: int) -> list[str]:
    """For a terminal: of an estimate one doubt stands for all."""
    source = record.energy_source
    printed = []
    if source is not None and not source.metered and source.doubts:
        printed += text.wrap(f"Note: {one_doubt(source.doubts)}.", width)
    for note in of(record):
        printed += wrapped(note, width)
    return printed


def wrapped(note: str, width: int) -> list[str]:
    """A note for a terminal. What it has behind a line end is a command, kept whole, so that it can be copied."""
    sentence, *commands = note.split("\n")
    end = ":" if commands else "."
    return [*text.wrap(f"Note: {sentence.removesuffix(end)}{end}", width), *(f"  {command}" for command in commands)]
