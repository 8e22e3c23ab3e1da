# SPDX-License-Identifier: Apache-2.0
"""A traced window in which the storm did not rage shows something else than the others: it is traced again."""

from __future__ import annotations

import pytest

from powerprof.experiment.records import StormShare, TraceSummary
from powerprof.experiment.traced import repeat_until_storm
from powerprof.report.run import traced_lines
from tests.unit.report.sample_records import attribution


def _window(raged: float | None, began: bool = True) -> TraceSummary:
    storm = None
    if raged is not None:
        storm = StormShare(
            began=began, raged_percent=raged, restarts_count=0, counter="Connections", counter_hz=raged / 10
        )
    return TraceSummary(arm="b", members={"replica": 8123}, attribution=attribution(), storm=storm)


@pytest.mark.parametrize(
    ("windows", "taken"),
    [
        ([_window(None)], 1),
        ([_window(98.0)], 1),
        ([_window(3.0), _window(97.0)], 2),
        ([_window(3.0), _window(4.0), _window(5.0)], 3),
        # This server backs off: twice is enough to know.
        ([_window(0.0, began=False), _window(0.0, began=False)], 2),
        ([_window(0.0, began=False), _window(99.0)], 2),
    ],
)
def test_it_is_traced_until_the_storm_rages_and_not_without_an_end(windows: list[TraceSummary], taken: int) -> None:
    left, said = list(windows), []
    found = repeat_until_storm(lambda: left.pop(0), "duplicate-id", said.append)
    assert left == []
    assert found is windows[-1]
    assert len(said) == taken - 1


def test_a_window_without_its_storm_says_so() -> None:
    calm = traced_lines(_window(12.0), "duplicate-id", 80)
    assert any("the storm was active 12 % of the time" in line for line in calm)
    raging = traced_lines(_window(97.0), "duplicate-id", 80)
    assert not any("the storm" in line for line in raging)
