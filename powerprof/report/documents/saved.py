# SPDX-License-Identifier: Apache-2.0
"""Saved records, read as what they are."""

from __future__ import annotations

from pathlib import Path

import msgspec

from powerprof.errors import DataError
from powerprof.records import Run
from powerprof.report.documents.kinds import kind_of
from powerprof.runs import RunStore, decode, head_of


def load_saved(name: str, runs_dir: Path | None = None) -> msgspec.Struct:
    """A saved record that has a report, by id, folder or file. Raises UsageError and DataError."""
    path = RunStore(runs_dir).find(name)
    head = head_of(path)
    kind = kind_of(head)
    if kind is None:
        raise DataError(path, f"there is no report for {head.schema[:40]!r}")
    record: msgspec.Struct = decode(path, kind.load("record"))
    if isinstance(record, Run):
        _check_phases(path, record)
    return record


def _check_phases(path: Path, run: Run) -> None:
    if not run.phases:
        raise DataError(path, "a run without phases")
    if run.command == "residency" and not run.phases[0].windows:
        raise DataError(path, "a residency run without windows")
