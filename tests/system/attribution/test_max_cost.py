# SPDX-License-Identifier: Apache-2.0
"""`attribute --max-cost` on real programs with known rates: the cost holds, and the estimates are near the truth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.programs import ground_truth
from tests.programs.balance import check_balance
from tests.system.attribution.conftest import Attributed

Attribute = Callable[..., Attributed]
# Switches and idle exits of these threads cost more than the budget of a target that uses nothing.
_RATES = {"nanosleep": 2003.0, "poll": 503.0, "epoll": 997.0, "condvar": 211.0}


def test_slices_stand_for_the_window(attribute: Attribute, built: Callable[[str], Path], tmp_path: Path) -> None:
    words = [f"log={tmp_path / 'log'}", *(f"{name}={rate_hz:g}" for name, rate_hz in _RATES.items())]
    with ground_truth.running(built("sleepers"), 120.0, *words) as truth:
        found = attribute(truth["pid"], "--max-cost", "2%", duration=20)
    record, slicing = found.record, found.record["slicing"]
    assert slicing is not None and slicing["slices_count"] >= 2
    assert 0.1 <= slicing["traced_s"] < 15
    # Exact in the slices, by the kernel's counter at the edges of each.
    check_balance(record["conservation"], share=0.01, exits=4 * slicing["slices_count"])
    assert record["conservation"]["lost_count"] == 0
    tool = record["tool"]
    assert tool["max_cost_percent"] == 2.0 and tool["entry_s"] > 0
    # A busy host makes attaching more expensive than the first estimate of it.
    assert tool["cost_percent"] <= 2.0 * 1.25
    counted = found.wakings(f"wait_{name}" for name in _RATES)
    for name, rate_hz in _RATES.items():
        assert counted[f"wait_{name}"].total() / record["window_s"] > 0.6 * rate_hz, (name, counted)
        assert counted[f"wait_{name}"].total() / record["window_s"] < 1.5 * rate_hz, (name, counted)
    for row in record["wakeups"]:
        assert row["rate_low_hz"] <= row["rate_hz"] <= row["rate_high_hz"]
    exits = sum(row["count"] for row in [*record["wakeups"], *record["other_causes"]])
    assert abs(exits - slicing["exits_count"]) <= 0.02 * exits + 2 * len(record["wakeups"])
    assert found.captured.sliced is not None and record["stacks"]["complete_count"] > 0


def test_below_the_bound_every_exit_is_counted(
    attribute: Attribute, built: Callable[[str], Path], tmp_path: Path
) -> None:
    with ground_truth.running(built("sleepers"), 60.0, f"log={tmp_path / 'log'}") as truth:
        found = attribute(truth["pid"], "--max-cost", "50%", duration=3)
    record = found.record
    assert record["slicing"] is None and record["tool"]["max_cost_percent"] == 50.0
    check_balance(record["conservation"], share=0.0)
    assert all(row["rate_low_hz"] is None for row in record["wakeups"])
    assert found.captured.sliced is None


def test_without_a_bound_nothing_is_sliced(attribute: Attribute, built: Callable[[str], Path], tmp_path: Path) -> None:
    with ground_truth.running(built("sleepers"), 60.0, f"log={tmp_path / 'log'}") as truth:
        found = attribute(truth["pid"], "--max-cost", "none", duration=1)
    assert found.record["slicing"] is None and found.record["tool"]["max_cost_percent"] is None
