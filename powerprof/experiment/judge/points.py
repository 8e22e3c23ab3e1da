# SPDX-License-Identifier: Apache-2.0
"""Pure: which points of a sweep differ, over the rounds in which they were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from powerprof.experiment.records import Range
from powerprof.statistics import compare_points, which_differ
from powerprof.workloads.definition import Value


class PointsCompared(msgspec.Struct, frozen=True, kw_only=True):
    """A metric at two values of the parameter: `percent` is how much more it is at `b` than at `a`, with its interval.

    `differ`: significantly, of all pairs and metrics of a sweep together. Unknown is None.
    """

    metric: str
    a: Value
    b: Value
    percent: float | None
    ci95: Range | None
    differ: bool

    @property
    def less_than_percent(self) -> float | None:
        """Of a difference that was not found the most that it may be, either way."""
        return None if self.ci95 is None or self.differ else max(abs(end) for end in self.ci95)


def compare_metrics(
    metrics: Mapping[str, Mapping[Value, Mapping[int, float]]], *, in_rounds: bool
) -> list[PointsCompared]:
    """Every two points by each metric, whose values are by point and round: one family, since one answer names them."""
    pairs = [
        (name, list(points), pair)
        for name, points in metrics.items()
        for pair in compare_points(list(points.values()), in_rounds=in_rounds)
    ]
    sure = which_differ([pair.p_value for _, _, pair in pairs])
    return [
        PointsCompared(
            metric=name,
            a=values[pair.first],
            b=values[pair.second],
            percent=pair.percent,
            ci95=None if pair.interval is None else (pair.interval.low, pair.interval.high),
            differ=differ,
        )
        for (name, values, pair), differ in zip(pairs, sure, strict=True)
    ]


def alike(compared: Sequence[PointsCompared], metric: str, value: Value) -> dict[Value, float | None]:
    """The points that do not differ significantly from this one, and less than how many percent each; None: unknown."""
    return {
        pair.b if pair.a == value else pair.a: pair.less_than_percent
        for pair in compared
        if pair.metric == metric and value in (pair.a, pair.b) and not pair.differ
    }
