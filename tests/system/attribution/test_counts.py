# SPDX-License-Identifier: Apache-2.0
"""Programs that count for themselves: every waking is in the result once, at the right call site."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from powerprof.attribution.attribute import trace_target as capture
from powerprof.attribution.blame import build_attribution as blame
from powerprof.attribution.requests import AttributeRequest
from powerprof.attribution.sites import SiteStacks
from powerprof.energy.request import NO_METER
from powerprof.measure.idle_counters import CpuReading
from powerprof.measure.idle_edges import read_edge
from powerprof.model.attribution import Wakeup, Waking
from powerprof.system.targets import resolve
from powerprof.tracing import idle
from tests.programs.balance import check_balance
from tests.system.attribution.conftest import Attributed

Attribute = Callable[..., Attributed]


def test_call_sites_with_different_callers_are_distinct(attribute: Attribute, wakes: Callable[..., Any]) -> None:
    with wakes("twins=89", "rare", "born=19") as running:
        found = attribute(running.pid)
    noted = running.noted(found.captured)
    counted = found.wakings(noted)
    assert set(noted) == {"first_twin", "second_twin", "rare_sleep", "born_sleep"}
    for function, times in noted.items():
        # One waking may lie on the other side of each edge of the window than the program's note of it.
        assert abs(counted[function].total() - times) <= max(2, 0.01 * times), (function, counted[function], times)
    # Both twins have one pc and one stack pointer: only the path to it tells them apart.
    sites = {(site.ip, site.sp): set() for site in found.captured.sites if site.kind == 0}
    for site in found.captured.sites:
        if site.kind == 0:
            sites[site.ip, site.sp].add((site.tid, site.code))
    assert any(len(codes) == 2 and len({tid for tid, _ in codes}) == 1 for codes in sites.values())
    assert 1 <= noted["rare_sleep"] <= 2
    # Each of the threads that were born in the window has its own row.
    assert noted["born_sleep"] > 40
    assert found.share_of_exits("stacks", "exits_complete_percent") >= 99.0


def test_short_lived_threads_are_counted(attribute: Attribute, wakes: Callable[..., Any]) -> None:
    """More causes than the kernel keeps at once: none is lost, and the report does not grow with the threads."""
    with wakes("twins=89", "born=1200") as running:
        found = attribute(running.pid, duration=6)
    conservation, noted = found.record["conservation"], running.noted(found.captured)
    assert conservation["lost_count"] == 0
    check_balance(conservation)
    counted = found.wakings(noted)
    assert noted["born_sleep"] > 4000
    for function, times in noted.items():
        assert abs(counted[function].total() - times) <= max(2, 0.01 * times), (function, counted[function], times)
    # Those that ended are one row for each of their places, and their stacks are known.
    assert len(found.rows) < 300
    assert {row["thread"]["tid"] for row in found.rows} & {0}
    assert found.share_of_exits("stacks", "exits_complete_percent") >= 99.0
    assert len(found.captured.sites) < 2000
    assert any("grouped by name" in note for note in found.record["notes"])


def test_frequent_wakings_are_counted(attribute: Attribute, wakes: Callable[..., Any]) -> None:
    functions = {"fast_sleep": "own_timer", "pairs_send": "own_timer", "pairs_receive": "other_thread"}
    with wakes("fast=3000", "pairs=2000") as running:
        found = attribute(running.pid, duration=2)
    conservation = found.record["conservation"]
    assert found.share_of_exits("conservation", "coverage_percent") >= 98.0
    assert conservation["lost_count"] == 0
    noted = running.noted(found.captured)
    counted = found.wakings(functions)
    for function, origin in functions.items():
        times = noted[function]
        assert times > 1000
        assert abs(counted[function].total() - times) <= 0.005 * times, (counted[function], times)
        assert counted[function][origin] >= 0.98 * times, (function, counted[function])


def test_overload_makes_counts_unknown_and_keeps_functions(attribute: Attribute, wakes: Callable[..., Any]) -> None:
    with wakes("pairs=60000") as running:
        found = attribute(running.pid, duration=2)
    record = found.record
    assert found.share_of_exits("conservation", "coverage_percent") >= 98.0
    assert all(row["wakings_count"] is None for row in record["wakeups"])
    assert any("wakings_count is unknown" in note for note in record["notes"])
    assert record["wakings_without_exit"] == []
    exits = sum(row["count"] for row in record["wakeups"])
    named = found.exits("pairs_send") + found.exits("pairs_receive")
    assert named >= 0.98 * exits


def test_thousand_threads_are_counted(attribute: Attribute, wakes: Callable[..., Any]) -> None:
    with wakes("many=1024") as running:
        found = attribute(running.pid, duration=2.5)
    noted = running.noted_by_thread(found.captured)
    assert len(noted) == 1024
    counted = sum(row["wakings_count"] for row in found.rows)
    # Equal threads are one row without a thread number.
    assert {row["thread"]["tid"] for row in found.rows if row["wakings_count"] > 9} == {0}
    assert max(row["thread"].get("threads_count") or 1 for row in found.rows) <= 1025
    assert abs(counted - noted.total()) <= 0.01 * noted.total()
    assert found.record["target"]["threads_count"] == 1025
    stacks = found.record["stacks"]
    assert stacks["complete_count"] >= 0.99 * stacks["captured_count"]
    assert found.record["conservation"]["lost_count"] == 0


@pytest.mark.usefixtures("root_bpf")
def test_window_edges_of_many_cpus_may_differ(wakes: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each CPU counts exits from its own edge on, and no thread may have more of them than wakings."""

    def slowly(*args: Any, at_edge: Callable[[CpuReading], None], **more: Any) -> Any:
        def one(reading: CpuReading) -> None:
            at_edge(reading)
            time.sleep(0.4)

        return read_edge(*args, at_edge=one, **more)

    monkeypatch.setattr(idle, "read_edge", slowly)
    with wakes("twins=89", "born=19") as running:
        request = AttributeRequest(duration_s=1.0, energy=NO_METER)
        taken = capture(resolve([str(running.pid)]), request, dict, lambda _: None)
        noted = running.noted(taken)
    record = blame(taken, SiteStacks(taken))
    counted: Counter[str] = Counter()
    rows: list[Wakeup | Waking] = [*record.wakeups, *record.wakings_without_exit]
    for row in rows:
        assert row.wakings_count is not None
        named = {frame.function for frame in row.stack} & noted.keys()
        counted.update({name: row.wakings_count for name in named if name is not None})
    assert set(noted) == {"first_twin", "second_twin", "born_sleep"}
    for function, times in noted.items():
        assert abs(counted[function] - times) <= max(2, 0.01 * times), (function, counted, noted)
    assert record.wakings_window_s is not None
    assert record.wakings_window_s >= record.window_s + 0.3 * (record.cpus - 1)
