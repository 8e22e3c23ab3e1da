"""The report of a run, by the command that made it."""

from __future__ import annotations

from powerprof import text
from powerprof.records import Run


def lines(run: Run, width: int = text.DEFAULT_WIDTH) -> list[str]:
    """The report, at most `width` columns."""
    if run.command == "residency":
        from powerprof.report import residency

        return residency.lines(run, width)
    if run.command == "run":
        from powerprof.report import load

        return load.lines(run, width)
    from powerprof.report import idle

    return idle.lines(run, width)
