"""The terminal's lines of a record at any width: the first is the answer, the second what it is about."""

from __future__ import annotations

import msgspec

from powerprof.attribution.records import Attribution
from powerprof.experiment.records import Comparison
from powerprof.experiment.sweep import Sweep
from powerprof.records import Run

_ONE_LINE = 100_000


def lines_of(record: msgspec.Struct) -> list[str]:
    """Unwrapped lines; at least two. Empty strings where the record has no such report."""
    found: list[str] = []
    if isinstance(record, Comparison):
        from powerprof.report import compare

        found = compare.lines(record, _ONE_LINE)
    elif isinstance(record, Attribution):
        from powerprof.report import attribution

        found = attribution.lines(record, _ONE_LINE)
    elif isinstance(record, Run):
        found = _run(record)
    elif isinstance(record, Sweep):
        from powerprof.report import sweep

        found = sweep.lines(record, _ONE_LINE)
    return [*found, "", ""]


def _run(run: Run) -> list[str]:
    if run.command == "residency" and run.phases and run.phases[0].windows:
        from powerprof.report.residency import render

        driver = run.host.get("idle_driver")
        return render(run.phases[0].windows[0], f"driver {driver}" if driver else None).splitlines()
    if run.command == "run":
        from powerprof.report import run as loaded

        return loaded.lines(run, _ONE_LINE)
    from powerprof.report import idle

    return idle.lines(run, _ONE_LINE)
