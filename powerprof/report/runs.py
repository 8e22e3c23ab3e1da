"""`powerprof runs` for a terminal: the saved runs in a list."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from powerprof.runs import RunInfo


def lines(runs: Sequence[RunInfo], directory: Path) -> list[str]:
    """A line a run, or that there is none."""
    found = [] if runs else [f"No runs in {directory}."]
    for run in runs:
        state = run.problem or ("interrupted" if run.interrupted else "")
        found.append(f"{run.id:<24}{run.started_at or '?':<26}{run.schema or '?':<26}{state}".rstrip())
    return found
