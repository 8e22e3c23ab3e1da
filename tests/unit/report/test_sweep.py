# SPDX-License-Identifier: Apache-2.0
"""A sweep on a terminal: which point is the most efficient, and how sure that is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

from msgspec.structs import replace

from powerprof.experiment.sweep_rounds import Point, Sweep
from powerprof.model.records import Estimate, Kind, RunMetric
from powerprof.report.sweep import answer_of, render_terminal
from tests.unit.report.sample_records import sweep

# What five rounds scatter by, as shares; neighbouring points scatter each by itself.
SCATTERS = (
    (-0.01, 0.004, 0.008, -0.006, 0.004),
    (0.006, -0.008, 0.002, 0.006, -0.006),
    (0.0, 0.01, -0.01, 0.004, -0.004),
)


def _point(clients: int, joules: float | None, rate: float, kind: str = "measured", *, scatter: float = 1.0) -> Point:
    named: Mapping[str, tuple[str, float | None]] = {"joules_per_query": ("J", joules), "queries_hz": ("1/s", rate)}
    shares = [1 + scatter * share for share in SCATTERS[clients % 3]]
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
    return replace(sweep(), points=list(points), values=values, options={"in_rounds": True, **options})


def test_the_most_efficient_point_and_the_fastest_are_the_answer() -> None:
    found = _sweep(_point(1, 0.0004, 1000), _point(4, 0.0001, 8000), _point(8, 0.0002, 9000))
    assert answer_of(found) == (
        "city:index uses least energy per query with 4 clients: 0.100 mJ; it does most with 8 clients: 9,000 queries/s."
    )


def test_points_that_are_not_told_apart_are_named_beside_the_best_with_a_bound() -> None:
    found = _sweep(
        _point(1, 0.302, 1000, "estimated"), _point(5, 0.3, 8000, "estimated"), _point(9, 0.9, 8100, "estimated")
    )
    shape = (
        r"city:index uses least energy per query with 5 clients "
        r"\(or 1: no measurable difference, less than ([\d.]+) %\): 0\.300 J, estimated; "
        r"it does most with 9 clients \(or 5: no measurable difference, less than ([\d.]+) %\): 8,100 queries/s\."
    )
    told = re.fullmatch(shape, answer_of(found))
    assert told is not None, answer_of(found)
    # 0.7 and 1.2 % apart, which scatter by about 1 %: the bound is no less than what was seen.
    assert 0.7 < float(told[1]) < 4
    assert 1.2 < float(told[2]) < 4


def test_windows_that_were_not_in_rounds_or_are_too_few_tell_less() -> None:
    apart = (_point(1, None, 8000), _point(5, None, 8200))
    assert answer_of(_sweep(*apart)) == "city:index does most with 5 clients: 8,200 queries/s."
    by_turns = replace(_sweep(*apart), options={})
    assert "with 5 clients (or 1: " in answer_of(by_turns)
    few = [
        replace(point, metrics=[replace(metric, values=metric.values[:2]) for metric in point.metrics])
        for point in apart
    ]
    assert answer_of(_sweep(*few)) == "city:index does most with 5 clients (or 1: inconclusive): 8,200 queries/s."


def test_a_given_rate_is_not_won_by_anybody_and_no_meter_leaves_the_rate() -> None:
    point = _point(1, 0.4, 1000)
    assert answer_of(_sweep(point, rate_hz=100.0)) == "city:index uses least energy per query with 1 client: 0.400 J."
    assert answer_of(_sweep(_point(1, None, 9))) == "city:index does most with 1 client: 9.00 queries/s."
    assert answer_of(_sweep()) == "city:index was not measured at any point."


def test_both_tables_fit_into_80_columns() -> None:
    found = render_terminal(sweep(), 80)
    assert max(map(len, found)) <= 80
    assert not [line for line in found if line.endswith("…")]
    heads = [line for line in found if line.startswith("clients ")]
    # What the system did is not known of this one, and has no table.
    assert len(heads) == 1 and "mJ/query, est." in heads[0]
    assert "1024: the server refused connections" in found


def test_what_was_interrupted_says_how_it_goes_on_or_that_it_cannot() -> None:
    found = replace(_sweep(_point(1, 0.3, 1000)), interrupted=True)
    saved, not_saved = (
        render_terminal(replace(found, id="sweep-0007"), 80),
        render_terminal(replace(found, id=None), 80),
    )
    assert "Not finished: continue with powerprof sweep --resume sweep-0007" in saved
    assert "Not finished. It was not saved, so it cannot be continued." in not_saved
    assert not any("--resume" in line for line in not_saved)
