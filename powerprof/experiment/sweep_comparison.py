# SPDX-License-Identifier: Apache-2.0
"""Compare two saved sweeps: where they diverge, by how much, and the system figures that change with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from powerprof.experiment.claims import NO_BOUND_PERCENT, describe_direction, metric_named
from powerprof.experiment.confounders import list_differences
from powerprof.experiment.metrics import rest_percent
from powerprof.experiment.records import ConditionRecord, Metric, Range, Threat
from powerprof.experiment.sweep_functions import PartingFunction, compare_sweep_functions
from powerprof.experiment.sweep_record import Point, Sweep
from powerprof.experiment.system_metrics import system_values
from powerprof.experiment.threats import OTHERS_PERCENT
from powerprof.experiment.verdict import judge_saved, keep_surviving_verdicts
from powerprof.model.records import Ended, Kind, Note, Record, RunMetric, ServerInfo
from powerprof.model.runs import RunStore, decode_record, read_schema
from powerprof.statistics.intervals import Interval, interval_ends
from powerprof.statistics.pooling import Stratum, pool_differences
from powerprof.statistics.verdicts import (
    RUN_LEVELS,
    Claim,
    Verdict,
    compare_unpaired,
    judge_claim,
    survivors,
    verdict_of,
)
from powerprof.system.errors import UsageError

_SCHEMA = "powerprof.sweep/1"
_LEVEL = 0.95  # of all values together: a false divergence is as rare as a wrong interval

Value = bool | int | float | str
_System = dict[str, RunMetric]


class JudgedMetric(msgspec.Struct, frozen=True):
    """The judged metric at one value of the parameter; `parted` if it differs significantly."""

    value: Value
    metric: Metric
    parted: bool


class SweepSide(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two sweeps."""

    name: str
    run: str
    started_at: str
    condition: ConditionRecord
    host: dict[str, Any] = {}
    server: ServerInfo | None = None
    options: dict[str, Any] = {}
    ended: Ended | None = None


class ComparedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A value that both sweeps measured. `parted`: the judged metric differs."""

    value: Value
    parted: bool
    metrics: list[Metric]


class PartingWith(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of the system over the diverging values, and elsewhere. `percent`: mean of 200 (b − a) / (a + b)."""

    name: str
    unit: str
    kind: Kind
    a_mean: float
    b_mean: float
    percent: float
    ci95: Range | None
    elsewhere_percent: float | None
    elsewhere_ci95: Range | None
    verdict: Verdict


class SweepComparison(Record, frozen=True, kw_only=True):
    """Two sweeps of one parameter, judged by `metric`."""

    a: SweepSide
    b: SweepSide
    parameter: str
    metric: str
    points: list[ComparedPoint]
    text: str = ""
    parted_with: list[PartingWith] = []
    functions: list[PartingFunction] = []
    differences: list[str] = []
    threats: list[Threat] = []
    seed: int = 1
    schema: Literal["powerprof.sweepcomparison/1"] = "powerprof.sweepcomparison/1"


def are_sweeps(a: str, b: str, runs_dir: Path | None) -> bool:
    """Return whether both names are saved sweeps. Raise UsageError if only one is, or a name is unknown."""
    store = RunStore(runs_dir)
    both = []
    for name in (a, b):
        try:
            both.append(read_schema(store.find(name)) == _SCHEMA)
        except UsageError:  # RUN:condition, never a sweep
            both.append(False)
    if both[0] != both[1]:
        sweep, other = (a, b) if both[0] else (b, a)
        raise UsageError(f"{sweep} is a sweep and {other} is not", "a sweep is compared with a sweep")
    return both[0]


def compare_sweeps(a: str, b: str, runs_dir: Path | None, seed: int) -> SweepComparison:
    """Compare two saved sweeps. Raise UsageError for different work, DataError for damaged sweeps."""
    store = RunStore(runs_dir)
    paths = [store.find(name) for name in (a, b)]
    first, second = (decode_record(path, Sweep) for path in paths)
    sides = [_side(sweep, sweep.id or path.parent.name) for sweep, path in zip((first, second), paths, strict=True)]
    if sides[0].run == sides[1].run:
        sides = [msgspec.structs.replace(side, name=name) for side, name in zip(sides, (a, b), strict=True)]
    _refuse_different_work(first, second)
    both = [(x, y) for x in first.points for y in second.points if _usable(x) and _usable(y) and x.value == y.value]
    if not both:
        raise UsageError(f"{a} and {b} have no point in common", f"sweep the same values of {first.parameter}")
    judged_by = _judged_by(first, both)
    systems = [(_system(a, first), _system(b, second)) for a, b in both]
    points = _points(both, systems, judged_by, seed)
    return SweepComparison(
        command="compare",
        started_at=max(first.started_at, second.started_at),
        a=sides[0],
        b=sides[1],
        parameter=first.parameter,
        metric=judged_by,
        points=points,
        parted_with=_parted_with(systems, points),
        functions=_functions(both, points, seed),
        differences=list_differences(first, second),
        threats=[*_threats(sides), *_others(sides, both)],
        seed=seed,
        host=second.host,
        notes=_left_out(first, second, both),
    )


def _side(sweep: Sweep, run: str) -> SweepSide:
    return SweepSide(
        name=run,
        run=run,
        started_at=sweep.started_at,
        condition=sweep.condition,
        host=sweep.host,
        server=sweep.server,
        options=sweep.options,
        ended=sweep.ended,
    )


def _refuse_different_work(first: Sweep, second: Sweep) -> None:
    if first.workload != second.workload:
        raise UsageError(
            f"one sweep ran {first.workload} and the other {second.workload}: different work cannot be compared",
            "compare sweeps of one workload",
        )
    if first.key != second.key:
        raise UsageError(f"one sweep varied {first.key} and the other {second.key}", "sweep the same parameter")
    if first.condition.name == second.condition.name and first.condition.work != second.condition.work:
        raise UsageError(
            f"the two sweeps ran different statements or data under the name {first.condition.name}",
            "different work cannot be compared: run one of them again",
        )


def _usable(point: Point) -> bool:
    return point.error is None and bool(point.metrics)


def _judged_by(sweep: Sweep, both: Sequence[tuple[Point, Point]]) -> str:
    """Return the judged metric: throughput at full speed, CPU time at a rate, wake-ups of idle servers."""
    names = {metric.name for pair in both for point in pair for metric in point.metrics}
    offered = sweep.options.get("rate_hz") is not None or sweep.key == "load.rate_hz"
    wanted = ("c0_ms_per_query_server", "c0_ms_per_query") if offered else ("queries_hz",)
    return next((name for name in (*wanted, "queries_hz", "wakeups_hz") if name in names), min(names))


def _points(
    both: Sequence[tuple[Point, Point]], systems: Sequence[tuple[_System, _System]], judged_by: str, seed: int
) -> list[ComparedPoint]:
    """Return the metrics at each value. The verdicts of the judged metric are one family over the values."""
    points: list[ComparedPoint] = []
    p_values: list[float | None] = []
    for (a, b), (system_a, system_b) in zip(both, systems, strict=True):
        metrics = judge_saved(_every(a, system_a), _every(b, system_b), judged_by, seed, paired=False)
        chosen = metric_named(metrics, judged_by)
        sides = (chosen.a, chosen.b) if chosen else ()
        each = [[value for value in side.values if value is not None] for side in sides]
        p_values.append(compare_unpaired(each[0], each[1], seed=seed).p_value if each else None)
        points.append(ComparedPoint(value=a.value, parted=False, metrics=metrics))
    sure = survivors(p_values, _LEVEL)
    marked = [msgspec.structs.replace(point, parted=parted) for point, parted in zip(points, sure, strict=True)]
    return [
        msgspec.structs.replace(
            point, metrics=[_as_point(point, each) if each.name == judged_by else each for each in point.metrics]
        )
        for point in marked
    ]


def claim_of_point(point: ComparedPoint | JudgedMetric, metric: Metric) -> Claim:
    """Return the permitted statements about the judged metric at a value; all values are one family."""
    ends, mean = metric.difference.ci95, metric.a.mean
    verdict = verdict_of(Interval(*ends, "")) if ends is not None and point.parted else "inconclusive"
    return judge_claim(verdict, ends, widest=NO_BOUND_PERCENT / 100 * abs(mean or 0.0))


def _as_point(point: ComparedPoint, metric: Metric) -> Metric:
    """Return the judged metric with the verdict of its point."""
    claim = claim_of_point(point, metric)
    difference = msgspec.structs.replace(metric.difference, less_than=claim.bound or None)
    return msgspec.structs.replace(metric, verdict=claim.verdict, hint=claim.hint, difference=difference)


def judged_metrics(record: SweepComparison) -> list[JudgedMetric]:
    """Return the judged metric at every value."""
    each = ((point, metric) for point in record.points for metric in point.metrics)
    return [JudgedMetric(point.value, metric, point.parted) for point, metric in each if metric.name == record.metric]


def is_worse(record: SweepComparison) -> bool:
    """Return whether B is significantly worse at some value: less throughput, or more of anything else."""
    parted = [point for point in judged_metrics(record) if point.parted]
    return any(describe_direction(record.metric, point.metric.verdict) == "worse" for point in parted)


def _every(point: Point, system: _System) -> list[RunMetric]:
    """Return the metrics of a point and of the system."""
    every = [*point.metrics, *system.values()]
    return list({metric.name: metric for metric in reversed(every)}.values())[::-1]


def _cpus(sweep: Sweep) -> int | None:
    cpus = sweep.host.get("cpus")
    return cpus if isinstance(cpus, int) and cpus > 0 else None


def _parted_with(system: Sequence[tuple[_System, _System]], points: Sequence[ComparedPoint]) -> list[PartingWith]:
    """Return the figures of the system at the diverging values; the largest contrast to the other values first."""
    apart = [pair for pair, point in zip(system, points, strict=True) if point.parted]
    elsewhere = [pair for pair, point in zip(system, points, strict=True) if not point.parted]
    named = {name: metric for pair in apart for side in pair for name, metric in side.items()}
    judged = [found for metric in named.values() if (found := _pooled(metric, apart, elsewhere)) is not None]
    return sorted(
        keep_surviving_verdicts(judged), key=lambda parting: (parting.verdict == "inconclusive", -_beside(parting))
    )


def _functions(
    both: Sequence[tuple[Point, Point]], points: Sequence[ComparedPoint], seed: int
) -> list[PartingFunction]:
    """Return the functions with different shares of the server's running time at the diverging values."""
    windows = [(a.on_cpu, b.on_cpu) for a, b in both]
    apart = [pair for pair, point in zip(windows, points, strict=True) if point.parted]
    return compare_sweep_functions(apart, [pair for pair in windows if pair not in apart], seed)


def _system(point: Point, sweep: Sweep) -> _System:
    """Return the figures of the system and of idle states at a point."""
    idle = [metric for metric in point.metrics if metric.name.startswith(("residency_percent:", "c0_percent"))]
    return {metric.name: metric for metric in (*system_values(point.metrics, point.os, _cpus(sweep)), *idle)}


def _pooled(
    metric: RunMetric, apart: Sequence[tuple[_System, _System]], elsewhere: Sequence[tuple[_System, _System]]
) -> tuple[PartingWith, float | None] | None:
    """Return one figure over the diverging values and over the others, and its p-value over the former."""
    there, others = (pool_differences(_strata(metric.name, pairs), levels=RUN_LEVELS) for pairs in (apart, elsewhere))
    if there is None:
        return None
    parting = PartingWith(
        name=metric.name,
        unit=metric.unit,
        kind=metric.kind,
        a_mean=there.a_mean,
        b_mean=there.b_mean,
        percent=there.percent,
        ci95=interval_ends(there.interval),
        elsewhere_percent=others.percent if others else None,
        elsewhere_ci95=interval_ends(others.interval) if others else None,
        verdict=verdict_of(there.interval),
    )
    return parting, there.p_value


def _strata(name: str, pairs: Sequence[tuple[_System, _System]]) -> list[Stratum]:
    return [(a[name].known, b[name].known) for a, b in pairs if name in a and name in b]


def _beside(parting: PartingWith) -> float:
    """Return how much more the figure differs at the diverging values than at the others."""
    return abs(parting.percent - (parting.elsewhere_percent or 0.0))


def _threats(sides: Sequence[SweepSide]) -> list[Threat]:
    threats = [Threat(name="unpaired")]
    threats += [
        Threat(name="interrupted", form="unfinished", serious=True, values={"run": side.run})
        for side in sides
        if side.ended is not None
    ]
    return threats


def _others(sides: Sequence[SweepSide], both: Sequence[tuple[Point, Point]]) -> list[Threat]:
    """Return a threat if other programs used CPUs: they make a server slower, like the compared difference."""
    threats = []
    for number, side in enumerate(sides):
        blocks = [block for pair in both for block in pair[number].blocks]
        shares = [share for block in blocks if (share := rest_percent(block.window)) is not None]
        if shares and (mean := sum(shares) / len(shares)) > OTHERS_PERCENT:
            threats.append(Threat(name="others", serious=True, values={"run": side.run, "percent": mean}))
    return threats


def _left_out(first: Sweep, second: Sweep, both: Sequence[tuple[Point, Point]]) -> list[Note]:
    shared = {str(a.value) for a, _ in both}
    every = dict.fromkeys(str(point.value) for sweep in (first, second) for point in sweep.points)
    missing = [value for value in every if value not in shared]
    return [Note("not_in_both", {"parameter": first.parameter, "values": ", ".join(missing)})] if missing else []
