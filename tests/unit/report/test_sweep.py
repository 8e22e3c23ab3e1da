# SPDX-License-Identifier: Apache-2.0
"""Tests for the report of a sweep: the best points, and how certain they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

from msgspec.structs import replace

from powerprof.experiment.sweep_record import Point, Sweep, compare_sweep_points
from powerprof.model.records import Estimate, Kind, RunMetric, ended_by_signal
from powerprof.report.kinds import lines_of
from powerprof.report.sweep import answer_of
from tests.unit.report.sample_records import sweep

# The scatter of five rounds as shares; neighbouring points scatter independently.
SCATTERS = (
    (-0.01, 0.004, 0.008, -0.006, 0.004),
    (0.006, -0.008, 0.002, 0.006, -0.006),
    (0.0, 0.01, -0.01, 0.004, -0.004),
)


def _point(clients: int, joules: float | None, rate: float, kind: str = "measured") -> Point:
    named: Mapping[str, tuple[str, float | None]] = {"joules_per_query": ("J", joules), "queries_hz": ("1/s", rate)}
    shares = [1 + share for share in SCATTERS[clients % 3]]
    metrics = [
        RunMetric(
            name=name,
            unit=unit,
            kind=cast(Kind, kind),
            estimate=Estimate(mean=mean, low=mean, high=mean),
            values=[mean * share for share in shares],
        )
        for name, (unit, mean) in named.items()
        if mean is not None
    ]
    return Point(value=clients, metrics=metrics)


def _sweep(*points: Point, **options: float) -> Sweep:
    values = [point.value for point in points]
    record = replace(sweep(), points=list(points), values=values, options=options)
    return replace(record, compared=compare_sweep_points(record))


def test_points_without_measurable_difference_are_named_with_a_bound() -> None:
    record = _sweep(
        _point(1, 0.302, 1000, "estimated"), _point(5, 0.3, 8000, "estimated"), _point(9, 0.9, 8100, "estimated")
    )
    shape = (
        r"city:index uses least energy per query with 5 clients "
        r"\(or 1: no measurable difference: less than ([\d.]+) %\): 0\.300 J, estimated; "
        r"it does most with 9 clients \(or 5: no measurable difference: less than ([\d.]+) %\): 8,100 queries/s\."
    )
    match = re.fullmatch(shape, answer_of(record))
    assert match is not None, answer_of(record)
    # The points differ by 0.7 and 1.2 % and scatter by about 1 %: the bound is at least the difference.
    assert 0.7 < float(match[1]) < 4
    assert 1.2 < float(match[2]) < 4


def test_alternatives_depend_on_the_number_of_windows() -> None:
    apart = (_point(1, None, 8000), _point(5, None, 8200))
    assert answer_of(_sweep(*apart)) == "city:index does most with 5 clients: 8,200 queries/s."
    few = [
        replace(point, metrics=[replace(metric, values=metric.values[:2]) for metric in point.metrics])
        for point in apart
    ]
    assert answer_of(_sweep(*few)) == "city:index does most with 5 clients (or 1: inconclusive): 8,200 queries/s."


def test_answer_omits_unknown_and_given_figures() -> None:
    point = _point(1, 0.4, 1000)
    assert answer_of(_sweep(point, rate_hz=100.0)) == "city:index uses least energy per query with 1 client: 0.400 J."
    assert answer_of(_sweep(_point(1, None, 9))) == "city:index does most with 1 client: 9.00 queries/s."
    assert answer_of(_sweep()) == "city:index has no measured point."


def test_interrupted_sweep_names_its_continuation() -> None:
    record = replace(_sweep(_point(1, 0.3, 1000)), ended=ended_by_signal(True))
    saved, not_saved = (lines_of(replace(record, id=id), 80) for id in ("sweep-0007", None))
    assert saved[-1] == "To continue: powerprof sweep --resume sweep-0007"
    assert not_saved[-1] == "It is not saved, so it cannot be continued."
    assert not any("--resume" in line for line in not_saved)
