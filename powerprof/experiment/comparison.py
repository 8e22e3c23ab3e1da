# SPDX-License-Identifier: Apache-2.0
"""From two names to a comparison: of saved runs as they are, of conditions by measuring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from powerprof.errors import UsageError
from powerprof.experiment.bench.options import BenchOptions
from powerprof.experiment.comparison_record import comparison
from powerprof.experiment.measure.asked import check_comparable
from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.records import Comparison
from powerprof.experiment.runner import collect, control_case
from powerprof.experiment.saved import are_runs
from powerprof.experiment.savedcomparison import compare_saved
from powerprof.experiment.sweepcomparison import SweepComparison, are_sweeps, compare_sweeps
from powerprof.text import Say
from powerprof.workloads.catalogue import find_condition
from powerprof.workloads.reading import resolve


def compare(
    a: str,
    b: str,
    bench: Callable[[], AbstractContextManager[BenchOptions]],
    options: ExperimentOptions,
    *,
    runs_dir: Path | None,
    extra: Sequence[Path],
    say: Say,
) -> Comparison | SweepComparison:
    """Two saved runs or sweeps where both names are some, else two conditions on `bench`.

    Raises UsageError, DataError.
    """
    if are_runs(a, b, runs_dir):
        if are_sweeps(a, b, runs_dir):
            return compare_sweeps(a, b, runs_dir, options.seed)
        return compare_saved(a, b, runs_dir, options.seed)
    with bench() as where:
        return compare_conditions(a, b, where, options, extra=extra, say=say)


def compare_conditions(
    a: str, b: str, bench: BenchOptions, options: ExperimentOptions, *, extra: Sequence[Path], say: Say
) -> Comparison:
    """Measure two conditions by name. Raises UsageError where a name is unknown, ambiguous or fits not the other."""
    workload_a, name_a = find_condition(a, extra, beside=b)
    workload_b, name_b = find_condition(b, extra, beside=a)
    case_a, case_b = resolve(workload_a, name_a), resolve(workload_b, name_b)
    check_comparable([case_a, case_b])
    if workload_a.definition.primary_metric != workload_b.definition.primary_metric:
        raise UsageError(
            f"{case_a.qualified} and {case_b.qualified} have different primary metrics",
            "compare conditions of one workload",
        )
    if case_a.qualified == case_b.qualified:
        case_b = control_case(case_b)
    collected = collect(case_a, case_b, bench, options, say)
    return comparison(collected)
