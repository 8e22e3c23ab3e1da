# SPDX-License-Identifier: Apache-2.0
"""Shares by samples: each sample stands for as much, what the history lost is taken to be like the rest."""

from __future__ import annotations

import pytest

from powerprof.database.clients.history import StatementHistory
from powerprof.database.clients.performance import Known
from powerprof.queries.remembered import Remembered, remembered_parts

KNOWN = Known(
    threads={11: "thread/sql/one_connection", 12: "thread/sql/one_connection", 13: "thread/innodb/page_cleaner_thread"},
    schemas={11: "shop", 12: "shop"},
    digests={(None, "SELECT `c` FROM `t` WHERE `id` = ?"): (40, 40, 40)},
)


def history(covered: list[tuple[int, int]]) -> StatementHistory:
    return StatementHistory(
        events={1: [(100, 200, "a"), (300, 400, "b")], 2: [(0, 1000, "b")]},
        covered=covered,
        texts={"a": "SELECT `c` FROM `t` WHERE `id` = ?", "b": "SELECT `BENCHMARK` (...)"},
        threads={11: {1}, 12: {2}},
    )


def found(ticks: list[tuple[int, int]], covered: list[tuple[int, int]]) -> Remembered:
    return remembered_parts(ticks, history(covered), KNOWN, 2.0, 4.0)


def test_samples_go_to_what_ran_then() -> None:
    ticks = [(150, 11)] * 40 + [(350, 11)] * 10 + [(250, 11)] * 10 + [(500, 12)] * 30 + [(500, 13)] * 10
    parts = found(ticks, [(0, 1000)]).parts
    shares = {one.text: one.c0_s for one in parts.statements}
    assert shares == {
        "SELECT `c` FROM `t` WHERE `id` = ?": pytest.approx(0.8),
        "SELECT `BENCHMARK` (?, …)": pytest.approx(0.8),
    }
    assert parts.connections.c0_s == pytest.approx(0.2)
    assert parts.background[0].c0_s == pytest.approx(0.2)
    first = next(one for one in parts.statements if "WHERE" in one.text)
    assert (first.calls_count, first.calls_hz, first.schema_name) == (40, 10.0, "shop")
    assert first.c0_ms_per_call == pytest.approx(20.0)
    assert first.low_percent is not None and first.high_percent is not None
    assert 30 < first.low_percent < 40 < first.high_percent < 50


def test_what_the_history_lost_is_like_the_rest_and_the_sum_is_whole() -> None:
    ticks = [(150, 11)] * 30 + [(350, 11)] * 10 + [(700, 11)] * 40 + [(700, 13)] * 20
    sampled = found(ticks, [(0, 500)])
    assert (sampled.used_count, sampled.uncovered_count) == (60, 40)
    parts = sampled.parts
    shares = [one.c0_s for one in parts.statements]
    assert shares == [pytest.approx(1.2), pytest.approx(0.4)]
    assert sum(shares) + parts.background[0].c0_s + parts.connections.c0_s == pytest.approx(2.0)


def test_no_sample_is_no_part() -> None:
    parts = found([], [(0, 500)]).parts
    assert (parts.statements, parts.background, parts.connections.c0_s) == ([], [], 0.0)


def test_a_thread_that_was_kept_for_another_connection_is_both() -> None:
    seen = history([(0, 1000)])
    seen.events[7], seen.threads[11] = [(700, 800, "b")], {1, 7}
    parts = remembered_parts([(150, 11), (750, 11)], seen, KNOWN, 2.0, 4.0).parts
    assert [one.c0_s for one in parts.statements] == [pytest.approx(1.0), pytest.approx(1.0)]


def test_statements_of_connections_that_are_gone_are_not_taken_for_idle_ones() -> None:
    seen = history([(0, 1000)])
    seen.events[7] = [(600, 700, "b"), (650, 800, "a")]
    sampled = remembered_parts([(150, 11)] * 3 + [(750, 14)] * 2 + [(900, 14)], seen, KNOWN, 2.0, 4.0)
    assert (sampled.used_count, sampled.uncovered_count) == (4, 2)
    assert sampled.parts.connections.c0_s == pytest.approx(0.5)
