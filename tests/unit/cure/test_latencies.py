# SPDX-License-Identifier: Apache-2.0
"""Latency of a server's statements in the windows of a cure."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping

import pytest

from powerprof.cure import latencies, replicas
from powerprof.cure.latencies import LatencyRise, LatencyWatch, WindowLatencies, count_latencies
from powerprof.tracing.captures import RecordedText, StatementTrace, TraceCost, find_latency_class


def classes(median_ms: float, count: int, seed: int) -> Counter[int]:
    generator = random.Random(seed)
    return Counter(find_latency_class(round(median_ms * 1e6 * generator.lognormvariate(0, 0.5))) for _ in range(count))


def window(median_ms: float, count: int = 1000, seed: int = 1, commits_ms: float | None = None) -> WindowLatencies:
    commits = classes(commits_ms, count, seed + 1) if commits_ms is not None else Counter[int]()
    return WindowLatencies(4.0, classes(median_ms, count, seed) + commits, commits)


def test_find_a_rise_if_the_cured_window_came_first() -> None:
    watch = LatencyWatch(10.0)
    assert watch.add("cured", window(4.0)) is None
    rise = watch.add("before", window(2.0))
    assert rise is not None and rise.what == "statements"


def test_judge_commits_separately() -> None:
    watch = LatencyWatch(10.0)
    assert watch.add("before", window(2.0, 3000, commits_ms=1.0)) is None
    rise = watch.add("cured", WindowLatencies(4.0, classes(2.0, 5000, 3), classes(3.0, 400, 4)))
    assert rise is not None
    assert rise.what == "commits"


def test_accept_equal_latency_in_both_arms() -> None:
    for seed in range(200):
        watch = LatencyWatch(10.0)
        for number in range(8):
            arm = "before" if number % 4 in (0, 3) else "cured"
            assert watch.add(arm, window(2.0, 300, seed * 100 + number)) is None


def test_accept_allowed_rises_and_windows_with_few_statements() -> None:
    watch = LatencyWatch(150.0)
    assert watch.add("before", window(2.0)) is None
    assert watch.add("cured", window(4.0, seed=7)) is None
    few = LatencyWatch(10.0)
    assert few.add("before", window(2.0, 40)) is None
    assert few.add("cured", window(9.0, 40)) is None
    assert few.add("cured", None) is None


def spread(*median_ms: float, count: int = 400) -> dict[int, int]:
    """Return classes with `count` statements around each of these times."""
    classes: dict[int, int] = {}
    for each in median_ms:
        one = find_latency_class(round(each * 1e6))
        classes[one] = classes.get(one, 0) + count
    return classes


def latencies_of(statements: Mapping[int, int], commits: Mapping[int, int] | None = None) -> WindowLatencies:
    return WindowLatencies(4.0, statements, commits or {})


def test_a_rise_is_in_percent_of_the_slowest_window_before() -> None:
    assert LatencyRise("statements", 4.0, 5.0).percent == pytest.approx(25.0)
    watch = LatencyWatch(10.0)
    for before in (latencies_of(spread(2.0)), latencies_of(spread(6.0)), latencies_of(spread(3.0))):
        assert watch.add("before", before) is None
    # Above the quicker windows before, but not above the slowest.
    assert watch.add("cured", latencies_of(spread(5.0))) is None
    rise = watch.add("cured", latencies_of(spread(9.0)))
    assert rise is not None and rise.what == "statements"
    assert (rise.before_ms, rise.cured_ms) == (pytest.approx(6.0, rel=0.1), pytest.approx(9.0, rel=0.1))
    assert rise.percent == pytest.approx(100 * (rise.cured_ms / rise.before_ms - 1))


@pytest.mark.parametrize(("limit", "found"), [(20.0, True), (45.0, False)])
def test_a_rise_must_exceed_the_limit_in_percent(limit: float, found: bool) -> None:
    """The class of 2 ms ends at 2.10 ms and that of 2.8 ms begins at 2.75 ms: a rise of 31 % at least."""
    watch = LatencyWatch(limit)
    watch.add("before", latencies_of(spread(2.0)))
    assert (watch.add("cured", latencies_of(spread(2.8))) is not None) is found


@pytest.mark.parametrize(("percentile", "rises"), [(50, False), (95, True), (99, True)])
def test_the_watched_percentile_is_the_requested_one(percentile: int, rises: bool) -> None:
    """A tenth of the statements takes twenty times as long with the remedy."""
    watch = LatencyWatch(10.0, percentile)
    watch.add("before", latencies_of(spread(1.0, count=2000)))
    rise = watch.add("cured", latencies_of({**spread(1.0, count=1800), **spread(20.0, count=200)}))
    assert (rise is not None) is rises
    slow = LatencyWatch(10.0, percentile)
    slow.add("before", latencies_of(spread(1.0, count=2000)))
    # One in fifty: above p99 only.
    late = slow.add("cured", latencies_of({**spread(1.0, count=1960), **spread(20.0, count=40)}))
    assert (late is not None) is (percentile == 99)


def test_the_rank_of_a_statement_is_counted_over_all_classes() -> None:
    classes = {100: 3, 104: 4, 112: 5}
    for rank, latency_class in ((0.5, 100), (3, 100), (3.5, 104), (7, 104), (7.1, 112), (12, 112)):
        octave, part = latency_class >> 3, latency_class & 7
        width = 2.0 ** (octave - 3)
        assert latencies._class_range_ms(classes, rank) == pytest.approx(
            ((8 + part) * width / 1e6, (9 + part) * width / 1e6)
        )


def test_a_percentile_is_known_to_its_standard_errors() -> None:
    """Of 1,000 statements p95 is between the ranks 930.7 and 969.3: 2.8 √(0.95 × 0.05 ÷ 1,000) is 1.93 %."""
    classes = {100: 930, 104: 20, 108: 19, 112: 31}
    found = LatencyWatch(10.0)._range_ms(WindowLatencies(4.0, classes, {}), "statements")
    assert found == (latencies._class_range_ms({104: 1}, 1)[0], latencies._class_range_ms({112: 1}, 1)[1])
    few = {100: 94, 112: 5}
    assert LatencyWatch(10.0)._range_ms(WindowLatencies(4.0, few, {}), "statements") is None
    median = LatencyWatch(10.0, 50)._range_ms(WindowLatencies(4.0, {100: 5, 112: 5}, {}), "statements")
    assert median == (latencies._class_range_ms({100: 1}, 1)[0], latencies._class_range_ms({112: 1}, 1)[1])


def test_own_statements_are_in_no_count() -> None:
    trace = StatementTrace(
        pid=1, window_s=4.0, symbol="d", ends_by="socket", process_cpu_ns=1, uses=[], threads=[], dispatches_count=9,
        texts=[
            RecordedText(1, 3, 8, b"SHOW ALL SLAVES STATUS"), RecordedText(2, 3, 6, b"COMMIT"),
            RecordedText(3, 3, 6, b"SELECT 1"), RecordedText(4, 3, 6, b"replace into t"),
        ],
        latencies={1: {100: 50}, 2: {120: 3}, 3: {110: 7}, 4: {130: 2}}, lost_count=0, unreadable_count=0, cut_count=0,
        cost=TraceCost(0.0, 0.0),
    )  # fmt: skip
    found = count_latencies(trace, replicas.OWN_STATEMENTS)
    assert (found.window_s, found.statements, found.commits) == (4.0, {120: 3, 110: 7, 130: 2}, {120: 3, 130: 2})
    assert count_latencies(trace).statements == {100: 50, 120: 3, 110: 7, 130: 2}
    assert count_latencies(trace, re.compile(rb"COMMIT")).commits == {130: 2}


@pytest.mark.parametrize("limit", [0.0, 10.0, 30.0, 60.0])
def test_a_rise_is_larger_than_the_limit_of_its_watch(limit: float) -> None:
    watch = LatencyWatch(limit)
    watch.add("before", latencies_of(spread(2.0)))
    for slower in (2.1, 2.5, 3.0, 4.0):
        rise = watch.add("cured", latencies_of(spread(slower)))
        assert rise is None or rise.percent > watch.max_percent
    assert rise is not None
