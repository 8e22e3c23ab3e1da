# SPDX-License-Identifier: Apache-2.0
"""Joules of windows in which the host was suspended: those of the time awake, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.energy.meters import MeterSet, open_meters, subtract_gaps
from powerprof.measure import counters
from tests.suspended import SuspendedClock
from tests.unit.energy.meter_trees import Tree

ZONE = "intel-rapl:0"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setenv("POWERPROF_SYSFS", str(tmp_path))
    made = Tree(tmp_path)
    made.zone(ZONE, "package-0", 5_000_000_000)
    return made


def sampled(meters: MeterSet, tree: Tree, *samples: tuple[float, int]) -> None:
    for now_s, microjoules in samples:
        tree.count(ZONE, microjoules)
        meters.sample(now_s)


def test_the_window_without_its_gaps() -> None:
    assert subtract_gaps(0.0, 10.0, []) == [(0.0, 10.0)]
    assert subtract_gaps(0.0, 10.0, [(-5.0, 0.0), (2.0, 3.0), (6.0, 7.0), (10.0, 11.0)]) == [
        (0.0, 2.0),
        (3.0, 6.0),
        (7.0, 10.0),
    ]
    assert subtract_gaps(0.0, 10.0, [(-1.0, 1.0), (9.0, 12.0)]) == [(1.0, 9.0)]
    assert subtract_gaps(0.0, 10.0, [(0.0, 10.0)]) == []


@pytest.mark.parametrize("after", [5_023_000_000, 500], ids=["counted on in s2idle", "began at 0 after S3"])
def test_what_was_drawn_asleep_is_nobodys(tree: Tree, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    clock = SuspendedClock(monkeypatch)
    with open_meters("rapl") as meters:
        sampled(meters, tree, (100.0, 5_000_000_000), (104.0, 5_012_000_000))
        clock.sleep(7200.0)
        sampled(meters, tree, (105.0, after), (110.0, after + 15_000_000))
        reading = meters.readings(100.0, 110.0)[0]
        # 3 W before and after; the second between two samples, and whatever the counter did, stand for nothing.
        assert reading.watts == pytest.approx(3.0)
        assert reading.joules == pytest.approx(30.0)
        assert any("1.0 s around a suspend are left out" in note for note in meters.notes())
        sampled(meters, tree, (120.0, after + 45_000_000))
        assert meters.readings(110.0, 120.0)[0].joules == pytest.approx(30.0)
        assert not meters.notes()


def test_two_samples_and_a_suspend_between_them_are_no_figure(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SuspendedClock(monkeypatch)
    with open_meters("rapl") as meters:
        sampled(meters, tree, (100.0, 5_000_000_000))
        clock.sleep(60.0)
        sampled(meters, tree, (110.0, 5_042_000_000))
        reading = meters.readings(100.0, 110.0)[0]
        assert (reading.domain, reading.joules, reading.watts) == ("package-0", None, None)
        assert any("was suspended" in note and "no figure" in note for note in meters.notes())


def test_hours_of_samples_are_not_kept(tree: Tree) -> None:
    with open_meters("rapl") as meters:
        for minute in range(6 * 60):
            sampled(meters, tree, (60.0 * minute, 5_000_000_000 + 180_000_000 * minute))
            if minute:
                assert meters.readings(60.0 * (minute - 1), 60.0 * minute)[0].watts == pytest.approx(3.0)
        kept = meters._meters[0]._samples[0]  # type: ignore[attr-defined]
        assert len(kept) <= 62 + counters._HISTORY
