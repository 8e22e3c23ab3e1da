# SPDX-License-Identifier: Apache-2.0
"""`powerprof runs` for a terminal: the saved runs in a list."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from powerprof.foreign import printable
from powerprof.runs import RunInfo

_CELL = 200


def lines(runs: Sequence[RunInfo], directory: Path) -> list[str]:
    """A line a run, or that there is none."""
    found = [] if runs else [f"No runs in {directory}."]
    for run in runs:
        state = run.problem or ("interrupted" if run.interrupted else "")
        # Cleaned before it is padded: a line end in a record must not begin a line of the list.
        cells = [printable(cell)[:_CELL] for cell in (run.id, run.started_at or "?", run.schema or "?", state)]
        found.append(f"{cells[0]:<24}{cells[1]:<26}{cells[2]:<26}{cells[3]}".rstrip())
    return found
