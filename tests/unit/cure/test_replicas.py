# SPDX-License-Identifier: Apache-2.0
"""The delay of a replica in the windows of a cure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from powerprof.cure import replicas
from powerprof.cure.replicas import COMMITTED, RECEIVED, ReplicaSampler, summarize_looks
from powerprof.database.base import ReplicationStatus
from tests.unit.cure.test_judge import REQUEST


def channel(read: int | None, executed: int | None, behind: int | None = 3, **more: Any) -> ReplicationStatus:
    known: dict[str, Any] = dict.fromkeys(ReplicationStatus.__struct_fields__)
    return ReplicationStatus(
        **{
            **known, "channel": "", "ignored_server_ids": (), "seconds_behind": behind, "sql_running": True,
            "read_position_bytes": read, "executed_position_bytes": executed, "source_log_file": "b.7",
            "executed_log_file": "b.7", **more,
        }
    )  # fmt: skip


def test_the_delay_is_the_backlog_by_the_rate_of_applying() -> None:
    looks = [[channel(900, 100, 5)], [channel(1500, 900, 3)], [channel(2000, 1900, 2)]]
    found = summarize_looks(looks, 4.5, None)
    # Backlogs of 800, 600 and 100 bytes; 1,800 bytes applied in 4.5 s.
    assert (found.looks_count, found.stopped_count, found.lag_s) == (3, 0, pytest.approx(10 / 3))
    assert found.backlog_bytes == pytest.approx(500.0)
    assert (found.delay_ms, found.delay_source) == (pytest.approx(1000 * 500 / 400), RECEIVED)
    times = summarize_looks(looks, 4.5, [7.0, 90.0, 11.0])
    assert (times.delay_ms, times.delay_source, times.backlog_bytes) == (11.0, COMMITTED, pytest.approx(500.0))
    assert summarize_looks(looks, 4.5, []).delay_ms is None


@pytest.mark.parametrize(
    ("last", "lag", "backlog", "delay"),
    [
        (channel(2000, 1900, None), False, True, True),
        (channel(None, 1900), True, False, False),
        (channel(2000, None), True, False, False),
        # The replica applies an older file than it receives.
        (channel(2000, 1900, source_log_file="b.8"), True, False, False),
        # The source began another file since the first look.
        (channel(2000, 1900, source_log_file="b.8", executed_log_file="b.8"), True, True, False),
        (channel(900, 100), True, True, False),
    ],
)
def test_an_unknown_position_has_no_backlog_and_no_delay(
    last: ReplicationStatus, lag: bool, backlog: bool, delay: bool
) -> None:
    found = summarize_looks([[channel(900, 100, 5)], [last]], 4.5, None)
    assert (found.lag_s is not None, found.backlog_bytes is not None, found.delay_ms is not None) == (
        lag,
        backlog,
        delay,
    )
    # The end of applying can be read before that of receiving.
    assert summarize_looks([[channel(100, 130)]], 1.0, None).backlog_bytes == 0


def test_several_channels_count_by_the_slowest() -> None:
    looks: Sequence[Sequence[ReplicationStatus]] = [
        [channel(900, 100, 5), channel(700, 650, 9)],
        [channel(1000, 990, 1, sql_running=False), channel(800, 500, 4)],
        [channel(1000, 990, 1, sql_running=None), channel(800, 500, 4)],
    ]
    found = summarize_looks(looks, 4.5, None)
    assert (found.lag_s, found.backlog_bytes, found.delay_ms) == (pytest.approx(17 / 3), pytest.approx(1400 / 3), None)
    assert (found.looks_count, found.stopped_count) == (3, 1)
    unknown = summarize_looks([[channel(900, 100, 5), channel(700, 650, None)]], 4.5, None)
    assert unknown.lag_s is None and summarize_looks([[]], 4.5, None).lag_s is None


def test_a_sampler_collects_the_delays_that_are_new_in_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("1", "c", "12:00:00.1", "2500"), ("2", "c", "12:00:00.2", "7500"), ("3", "c", "x", None)]
    monkeypatch.setattr(replicas.sql, "fetch_rows", lambda *given, **more: rows)
    assert replicas._read_delays(object()) == {("c", "1", "12:00:00.1"): 2.5, ("c", "2", "12:00:00.2"): 7.5}  # type: ignore[arg-type]
    sampler = ReplicaSampler(71, REQUEST)
    assert sampler.collect() is None
    sampler._looks = [(10.0, [channel(900, 100)]), (14.5, [channel(2000, 1900)])]
    lag = sampler.collect()
    assert lag is not None and lag.delay_ms == pytest.approx(1000 * 450 / (1800 / 4.5))
    sampler._has_times, old = True, {("c", "1", "a"): 3.0}
    sampler._delays_before, sampler._delays = old, {**old, ("c", "1", "b"): 8.0}
    lag = sampler.collect()
    assert lag is not None and (lag.delay_ms, lag.delay_source) == (8.0, COMMITTED)
