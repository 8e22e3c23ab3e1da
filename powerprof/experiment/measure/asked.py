# SPDX-License-Identifier: Apache-2.0
"""Requests that change nothing or cannot be met, reported before a server starts."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof.errors import UsageError
from powerprof.experiment.options import ExperimentOptions
from powerprof.windows.counted import open_source
from powerprof.workloads.reading import Case


def check_asked(cases: Sequence[Case], options: ExperimentOptions) -> None:
    """Raises UsageError for options that these loads do not heed, and what `open_source` raises."""
    open_source(options.residency_source).close()
    for case in cases:
        for option, reason in _ignored(case, options):
            raise UsageError(f"{option} has no effect on {case.qualified}: {reason}", "leave it out")


def check_comparable(cases: Sequence[Case]) -> None:
    """Raises UsageError for conditions whose clients do not do the same kind of thing."""
    first = cases[0]
    for other in cases[1:]:
        if other.load.kind != first.load.kind and not (other.load.is_silent and first.load.is_silent):
            raise UsageError(
                f"{first.qualified} and {other.qualified} have loads of different kinds, "
                f"{first.load.kind} and {other.load.kind}",
                "name conditions of one workload: powerprof workloads lists them",
            )


def _ignored(case: Case, options: ExperimentOptions) -> list[tuple[str, str]]:
    """The options that a load has no use for, each with the reason."""
    kind = case.load.kind
    design = [] if options.design is None or options.queries is not None else [f"--design {options.design}"]
    rate = [] if options.rate_hz is None else ["--rate"]
    queries = [] if options.queries is None else ["--queries"]
    if case.load.is_silent:
        return [(option, f"its clients ask nothing (load {kind})") for option in (*design, *rate, *queries)]
    if kind == "tpcc":
        return [(option, "its clients ask as fast as they can (load tpcc)") for option in (*design, *rate, *queries)]
    if kind == "slap":
        wrong = design if options.design == "rate" else []
        return [(option, "mysqlslap runs a number of queries as fast as it goes") for option in (*wrong, *rate)]
    if kind == "command":
        words = " ".join(case.load.argv)
        unasked = [*design, *(rate if "{rate_hz}" not in words else []), *(queries if "{queries}" not in words else [])]
        return [(option, "its command does not ask for it") for option in unasked]
    return []
