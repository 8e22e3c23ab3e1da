# SPDX-License-Identifier: Apache-2.0
"""The record of a sweep (`powerprof.sweep/1`), and the differences between its points over the rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from powerprof.experiment.claims import ENERGY, are_starts_repeated
from powerprof.experiment.paces import WAKINGS, Pace, PaceWindow
from powerprof.experiment.records import Block, ConditionRecord, Range
from powerprof.experiment.sweep_functions import FunctionWindow
from powerprof.model.records import Record, RunMetric, Window
from powerprof.model.system_activity import OsRates
from powerprof.statistics.intervals import Interval, interval_ends
from powerprof.statistics.points import compare_points, which_differ
from powerprof.statistics.verdicts import Claim, judge_claim, verdict_of
from powerprof.workloads.definition import Value


class PointsCompared(msgspec.Struct, frozen=True, kw_only=True):
    """A metric at the values `a` and `b`. `differ`: significant among all pairs and metrics."""

    metric: str
    a: Value
    b: Value
    percent: float | None
    ci95: Range | None
    differ: bool

    @property
    def claim(self) -> Claim:
        """What may be said about the difference, in percent."""
        verdict = verdict_of(None if self.ci95 is None else Interval(*self.ci95, ""))
        return judge_claim(verdict if self.differ else "inconclusive", self.ci95)


def compare_metrics(
    metrics: Mapping[str, Mapping[Value, Mapping[int, float]]], starts: int = 0
) -> list[PointsCompared]:
    """Compare every two points by each metric, given by point and round. The verdicts are one family.

    `starts` counts the starts of each point's own server; 0 if all points share one.
    """
    rounds = max((len(values) for points in metrics.values() for values in points.values()), default=0)
    repeated = are_starts_repeated(starts, rounds)
    pairs = [
        (name, list(points), pair)
        for name, points in metrics.items()
        for pair in compare_points(list(points.values()), in_rounds=repeated)
    ]
    sure = which_differ([pair.p_value for _, _, pair in pairs])
    return [
        PointsCompared(
            metric=name,
            a=values[pair.first],
            b=values[pair.second],
            percent=pair.percent,
            ci95=interval_ends(pair.interval),
            differ=differ,
        )
        for (name, values, pair), differ in zip(pairs, sure, strict=True)
    ]


def similar_points(compared: Sequence[PointsCompared], metric: str, value: Value) -> dict[Value, Claim]:
    """Return the points that do not differ significantly from this one, each with its claim, in percent."""
    return {
        pair.b if pair.a == value else pair.a: pair.claim
        for pair in compared
        if pair.metric == metric and value in (pair.a, pair.b) and not pair.differ
    }


SERVER = "server"


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One value of the parameter. `server`: its version; `paces`: its threads in the `traced` windows."""

    value: Value
    metrics: list[RunMetric] = []
    os: list[OsRates] = []
    blocks: list[Block] = []
    error: str | None = None
    server: str | None = None
    paces: list[Pace] = []
    traced: list[PaceWindow] = []
    on_cpu: list[FunctionWindow] = []


class Sweep(Record, frozen=True, kw_only=True):
    """A sweep. `baseline`: windows without a server. `compared`: every two points.

    `starts_count`: of the server of each point; 0 if all points share one.
    """

    workload: str
    condition: ConditionRecord
    parameter: str
    key: str
    values: list[Value]
    points: list[Point]
    baseline: list[Window] = []
    starts_count: int = 0
    compared: list[PointsCompared] = []
    started_at: str
    schema: Literal["powerprof.sweep/1"] = "powerprof.sweep/1"

    @property
    def gaps(self) -> list[str]:
        """The points that failed, and why."""
        return [f"{self.parameter} {point.value}: {point.error}." for point in self.points if point.error is not None]


def compare_sweep_points(sweep: Sweep) -> list[PointsCompared]:
    """Compare every two points by energy and throughput; idle servers by their wake-ups."""
    good = [point for point in sweep.points if point.error is None]
    names = {metric.name for point in good for metric in point.metrics}
    wanted = [ENERGY] if ENERGY in names else []
    # At a given rate the throughput is no result.
    if "queries_hz" in names and sweep.options.get("rate_hz") is None and sweep.key != "load.rate_hz":
        wanted.append("queries_hz")
    elif "queries_hz" not in names and WAKINGS in names:
        wanted = [WAKINGS]
    rounds = {name: {point.value: _read_rounds(point, name) for point in good} for name in wanted}
    return compare_metrics(rounds, sweep.starts_count)


def _read_rounds(point: Point, name: str) -> dict[int, float]:
    values = next((metric.values for metric in point.metrics if metric.name == name), [])
    rounds = [block.pair for block in point.blocks] or list(range(len(values)))
    return {number: value for number, value in zip(rounds, values, strict=False) if value is not None}
