# SPDX-License-Identifier: Apache-2.0
"""Members, storms, slices, traced windows and the paces of threads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from powerprof.experiment import members_meter, storm_watch
from powerprof.experiment.metrics import mean_hz, peak_hz, written_per_slice
from powerprof.experiment.paces import PaceWindow, ThreadPace, pace_metrics, summarise_paces
from powerprof.experiment.records import Slices, StormShare, TraceSummary
from powerprof.experiment.traced import count_by_thread, repeat_until_storm, replication_percent
from powerprof.report.document import Sentence
from powerprof.report.topology import traced_section
from powerprof.workloads.definition import Storm
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
def test_tracing_is_repeated_until_the_storm_is_active(windows: list[TraceSummary], taken: int) -> None:
    left, said = list(windows), []
    found = repeat_until_storm(lambda: left.pop(0), "duplicate-id", said.append)
    assert left == []
    assert found is windows[-1]
    assert len(said) == taken - 1


def test_a_window_without_its_storm_is_marked() -> None:
    calm = traced_section(_window(12.0), "duplicate-id")
    assert any(
        "the storm was active 12 % of the time" in part.text for part in calm.parts if isinstance(part, Sentence)
    )
    raging = traced_section(_window(97.0), "duplicate-id")
    assert not any(isinstance(part, Sentence) for part in raging.parts)


def test_a_member_has_its_own_cpu_time_and_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two members over 2.5 s on three CPUs; the second is on another host."""
    servers: Any = {"primary": SimpleNamespace(pid=71), "replica-1": SimpleNamespace(pid=None)}
    meter = members_meter.MembersMeter(servers)
    meter._connections = {name: name for name in servers}  # type: ignore[misc]
    meter._counters = {"primary": {"Connections": 5, "Binlog_commits": 40}, "replica-1": {"Connections": 9}}
    meter._relays = {"primary": {}, "replica-1": {7: 100}}
    meter._cpu_ns, meter._started_s = {"primary": 3_000_000_000, "replica-1": None}, 10.0
    after = {"primary": {"Connections": 12, "Binlog_commits": 65}, "replica-1": {"Connections": 10}}
    monkeypatch.setattr(members_meter.time, "monotonic", lambda: 12.5)
    monkeypatch.setattr(members_meter, "_read_counters", after.__getitem__)
    monkeypatch.setattr(members_meter, "process_cpu_ns", lambda pid: 3_750_000_000)
    monkeypatch.setattr(members_meter, "read_replication_status", lambda connection: [])
    monkeypatch.setattr(meter, "_read_relays", lambda: {"primary": {}, "replica-1": {7: 130, 8: 20}})
    first, second = meter.stop(3)
    assert (first.name, first.pid, first.cpu_s, first.c0_percent) == ("primary", 71, 0.75, pytest.approx(10.0))
    assert (first.connections_hz, first.commits_hz, first.relay_log_bytes_hz) == (2.8, 10.0, None)
    assert (second.cpu_s, second.c0_percent, second.commits_hz) == (None, None, None)
    assert (second.connections_hz, second.relay_log_bytes_hz) == (0.4, pytest.approx(50 / 2.5))


@pytest.mark.parametrize(
    ("before", "after", "written"),
    [
        # 30 more in the oldest; 10 and 16 in new files; two missing of the mean of 10, 16 and 70.
        ({7: 70}, {7: 100, 8: 10, 11: 16}, 30 + 26 + 2 * 96 / 3),
        ({6: 5, 7: 70}, {7: 71}, 1.0),
        ({7: 70}, {8: 12}, 12.0),
        ({7: 100}, {107: 100}, 100 + 99 * 100.0),
        ({7: 70}, {}, None),
        ({}, {8: 12}, None),
    ],
)
def test_relay_logs_that_came_and_went_have_the_mean_size(
    before: dict[int, int], after: dict[int, int], written: float | None
) -> None:
    found = members_meter.sum_relay_bytes(before, after)
    assert found == (None if written is None else pytest.approx(written))


def test_a_storm_is_active_above_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 connections a second are a storm: of 0.5, 0.75 and 1.25 s the first and the last rage."""
    watch = storm_watch.StormWatch(Storm(counter="Connections", least_hz=20.0, trigger={"primary": ["x"]}), {})
    readings = iter([(0.5, 110), (1.25, 112), (2.5, 152), (3.0, 170)])
    watch._began, watch._first, watch._last = True, (0.0, 100), (0.0, 100)
    looks = iter([False, False, False, True])
    monkeypatch.setattr(watch, "_count", lambda: next(readings))
    monkeypatch.setattr(watch, "_trigger", lambda: None)
    monkeypatch.setattr(watch._stop, "wait", lambda seconds: next(looks))
    watch._look()
    found = watch.finish()
    assert found.raged_percent == pytest.approx(100 * 1.75 / 2.5)
    assert (found.restarts_count, found.counter_hz, found.began) == (1, pytest.approx(70 / 3.0), True)


def test_slices_of_unequal_length_have_their_own_rates() -> None:
    slices = Slices(lengths_s=[0.4, 0.2, 0.05], write_bytes=[900, 800, 700])
    assert mean_hz(slices, written_per_slice) == pytest.approx(2400 / 0.65)
    assert peak_hz(slices, written_per_slice) == pytest.approx(4000.0)
    assert peak_hz(replace(slices, lengths_s=[0.2, 0.4, 0.1]), written_per_slice) == pytest.approx(7000.0)


def thread(name: str, wakings: float | None, exits: float, period_ms: float | None = None) -> ThreadPace:
    return ThreadPace(thread=name, wakings_hz=wakings, exits_hz=exits, period_ms=period_ms, remedy=f"slow {name}")


def test_a_pace_is_a_mean_over_all_windows() -> None:
    windows = [
        PaceWindow(window_s=4.0, threads=[thread("a", 9.0, 4.0, 100.0), thread("b", None, 6.0)]),
        PaceWindow(window_s=5.0, threads=[thread("a", 12.0, 5.0, 90.0)]),
        PaceWindow(window_s=6.0, threads=[thread("b", None, 7.5, 40.0), thread("c", 40.0, 1.0)]),
    ]
    found = {pace.thread: pace for pace in summarise_paces(windows)}
    assert list(found) == ["c", "a", "b"]
    assert found["a"].wakings is not None and found["a"].wakings.mean == pytest.approx(7.0)
    assert [found[name].exits.mean for name in "abc"] == pytest.approx([3.0, 4.5, 1 / 3])
    assert (found["b"].wakings, found["a"].period_ms, found["b"].period_ms) == (None, 100.0, None)
    assert found["a"].remedy == "slow a"
    wakings, exits = pace_metrics(windows)
    assert (wakings.values, exits.values) == ([9.0, 12.0, 40.0], [10.0, 5.0, 8.5])
    assert (wakings.unit, exits.estimate.mean) == ("1/s", pytest.approx(23.5 / 3))
    assert pace_metrics([]) == [] and summarise_paces([]) == []


def test_replication_has_a_share_of_the_added_idle_exits() -> None:
    """B has twice or four times the counts in a longer window; the rates decide, not the counts."""
    first, *others = attribution().wakeups
    sql_thread = replace(first, thread=replace(first.thread, server_name="thread/sql/slave_sql"))
    base = replace(attribution(), wakeups=[sql_thread, *others])
    members = {"replica": base.wakeups[0].thread.pid}
    a = TraceSummary(arm="a", members=members, attribution=base)
    own = [row for row in base.wakeups if row is base.wakeups[0]]
    rows = [replace(row, count=row.count * (4 if row in own else 2)) for row in base.wakeups]
    b = TraceSummary(arm="b", members=members, attribution=replace(base, window_s=1.25 * base.window_s, wakeups=rows))

    def rates(window: TraceSummary) -> tuple[float, float]:
        counts, seconds = count_by_thread(window), window.attribution.window_s
        return sum(counts.values()) / seconds, sum(n for key, n in counts.items() if key[2]) / seconds

    (all_a, own_a), (all_b, own_b) = rates(a), rates(b)
    assert all_b > all_a and own_b > own_a > 0
    assert replication_percent(a, b) == pytest.approx(100 * (own_b - own_a) / (all_b - all_a))
    assert replication_percent(b, a) is None
    assert sum(count_by_thread(a).values()) == sum(row.count for row in base.wakeups)
