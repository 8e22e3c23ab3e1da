# SPDX-License-Identifier: Apache-2.0
"""A sweep on a terminal: which point is the most efficient, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from msgspec.structs import replace

from powerprof.experiment.sweep import Point, Sweep
from powerprof.records import Estimate, Kind, RunMetric
from powerprof.report.terminal.sweep import headline, lines
from tests.unit.report.sample_records import sweep

Ends = tuple[float, float, float]


def _point(clients: int, joules: Ends | None, rate: Ends, kind: str = "measured") -> Point:
    named: Mapping[str, tuple[str, Ends | None]] = {"joules_per_query": ("J", joules), "queries_hz": ("1/s", rate)}
    metrics = [
        RunMetric(
            name=name,
            unit=unit,
            kind=cast(Kind, kind),
            estimate=Estimate(mean=ends[0], low=ends[1], high=ends[2]),
            values=[ends[0]] * 3,
        )
        for name, (unit, ends) in named.items()
        if ends is not None
    ]
    return Point(value=clients, metrics=metrics)


def _sweep(*points: Point, **options: float) -> Sweep:
    return replace(sweep(), points=list(points), values=[point.value for point in points], options=options)


def test_the_most_efficient_point_and_the_fastest_are_the_answer() -> None:
    found = _sweep(
        _point(1, (0.0004, 0.00039, 0.00041), (1000, 990, 1010)),
        _point(4, (0.0001, 0.00009, 0.00011), (8000, 7900, 8100)),
        _point(8, (0.0002, 0.00019, 0.00021), (9000, 8950, 9050)),
    )
    assert headline(found) == (
        "city:index uses least energy per query with 4 clients: 0.100 mJ; it does most with 8 clients: 9,000 queries/s."
    )


def test_points_whose_intervals_meet_are_told_beside_the_best() -> None:
    found = _sweep(
        _point(1, (0.4, 0.3, 0.5), (1000, 990, 1010), "estimated"),
        _point(4, (0.3, 0.2, 0.4), (8000, 7000, 9000), "estimated"),
        _point(8, (0.9, 0.8, 1.0), (8500, 7500, 9500), "estimated"),
    )
    assert headline(found) == (
        "city:index uses least energy per query with 4 clients (or 1: no difference is sure): 0.300 J, estimated; "
        "it does most with 8 clients (or 4: no difference is sure): 8,500 queries/s."
    )


def test_a_given_rate_is_not_won_by_anybody_and_no_meter_leaves_the_rate() -> None:
    point = _point(1, (0.4, 0.3, 0.5), (1000, 990, 1010))
    assert headline(_sweep(point, rate_hz=100.0)) == "city:index uses least energy per query with 1 client: 0.400 J."
    assert headline(_sweep(_point(1, None, (9, 8, 10)))) == "city:index does most with 1 client: 9.00 queries/s."
    assert headline(_sweep()) == "city:index was not measured at any point."


def test_both_tables_fit_into_80_columns() -> None:
    found = lines(sweep(), 80)
    assert max(map(len, found)) <= 80
    assert not [line for line in found if line.endswith("…")]
    heads = [line for line in found if line.startswith("clients ")]
    # What the system did is not known of this one, and has no table.
    assert len(heads) == 1 and "mJ/query, est." in heads[0]
    assert "1024: the server refused connections" in found
