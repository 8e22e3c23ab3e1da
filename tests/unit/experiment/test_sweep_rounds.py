# SPDX-License-Identifier: Apache-2.0
"""The rounds of a sweep."""

from __future__ import annotations

from powerprof.experiment.sweep_rounds import PointMeasurements, drop_incomplete_round
from powerprof.model.records import OsRates
from powerprof.workloads.definition import Value
from tests.unit.experiment.builders import block


def _gathered(rounds: int, error: str | None = None) -> PointMeasurements:
    return PointMeasurements([block(number, "a") for number in range(rounds)], [OsRates()] * rounds, error=error)


def _kept(gathered: dict[Value, PointMeasurements]) -> list[tuple[int, int]]:
    drop_incomplete_round(gathered)
    return [(len(had.blocks), had.first_round) for had in gathered.values()]


def test_an_incomplete_round_is_dropped() -> None:
    found: dict[Value, PointMeasurements] = {1: _gathered(3), 2: _gathered(2), 4: _gathered(3)}
    assert _kept(found) == [(2, 0), (2, 0), (2, 0)]
    assert len(found[1].rates) == 2
    assert _kept({1: _gathered(1), 2: _gathered(0), 4: _gathered(0)}) == [(0, 0)] * 3
    assert _kept({1: _gathered(2), 2: _gathered(2)}) == [(2, 0), (2, 0)]
    assert _kept({}) == []


def test_a_failed_point_continues_in_separate_rounds() -> None:
    """Tried again it is of another time: it shares no round with those that were measured before."""
    assert _kept({1: _gathered(3), 2: _gathered(0, "refused"), 4: _gathered(3)}) == [(3, 0), (0, 3), (3, 0)]
    found: dict[Value, PointMeasurements] = {1: _gathered(3), 2: _gathered(1), 4: _gathered(3, "died")}
    assert _kept(found) == [(3, 0), (1, 3), (3, 3)]
    assert all(had.error is None for had in found.values())
