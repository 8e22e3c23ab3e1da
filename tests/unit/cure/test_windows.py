# SPDX-License-Identifier: Apache-2.0
"""The windows of a cure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from powerprof.cure import windows
from powerprof.cure.replicas import RECEIVED, summarize_looks
from powerprof.cure.windows import CureWindows, SwitchCounter
from powerprof.system.targets import Target
from powerprof.tracing.idle_data import CAUSE
from tests.unit.cure.test_judge import odd_block
from tests.unit.cure.test_latencies import latencies_of, spread
from tests.unit.cure.test_replicas import channel


def test_switches_are_those_of_the_window() -> None:
    counter = SwitchCounter(lambda: [71])
    counter._before, counter._after = {1: 10, 2: 20, 3: 5}, {1: 17, 2: 20, 4: 6}
    counter._started_s, counter._ended_s = 3.5, 8.25
    assert (counter.counts(), counter.counted_s) == ({1: 7, 2: 0, 4: 6}, 4.75)


def test_a_window_is_without_the_thread_that_answers_powerprof() -> None:
    replica: Any = SimpleNamespace(own_tid=9, collect=lambda: None, parts=())
    measuring = CureWindows(Target((71,), "x"), 8, None, None, replica)  # type: ignore[arg-type]
    measuring._counter._before, measuring._counter._after = {}, {7: 3, 8: 5, 9: 100}
    measuring._counter._ended_s = 2.5
    latencies = latencies_of(spread(2.0, count=70), spread(3.0, count=20))
    block = measuring._make_block(4, "cured", odd_block(0, "cured").window, latencies, {"traced_s": 1.5})
    assert (block.pair, block.arm, block.counted_s, block.traced_s) == (4, "cured", 2.5, 1.5)
    assert (block.thread_wakings_count, block.target_wakings_count) == (5, 8)
    assert (block.statements_count, block.commits_count, block.statements_s) == (70, 20, 4.0)
    assert block.latency_ms == latencies.statements_ms and block.commit_latency_ms == latencies.commits_ms
    replica.collect = lambda: summarize_looks([[channel(900, 100, 5)], [channel(2000, 1900, 1)]], 4.5, None)
    lagging = measuring._make_block(4, "cured", block.window, None, {})
    assert (lagging.replica_looks_count, lagging.replica_lag_s, lagging.replica_backlog_bytes) == (2, 3.0, 450.0)
    assert (lagging.replica_delay_ms, lagging.replica_delay_source, lagging.statements_count) == (
        1125.0,
        RECEIVED,
        None,
    )
    whole = CureWindows(Target((71,), "x"), None, None)  # type: ignore[arg-type]
    whole._counter._after = {7: 3, 9: 100}
    process = whole._make_block(0, "before", block.window, None, {})
    assert (process.thread_wakings_count, process.target_wakings_count) == (None, 103)


def test_idle_exits_are_of_the_process_and_its_threads() -> None:
    """Exits of thread 7 and 8 of process 71, of another process, of a woken thread, and of powerprof's own thread 9."""
    rows = [  # thread that ran, its process, thread that was woken, count
        (7, 71, 0, 30),
        (8, 71, 0, 11),
        (50, 5, 0, 400),
        (0, 0, 8, 6),
        (0, 0, 50, 900),
        (9, 71, 0, 77),
    ]
    causes = np.zeros(len(rows), dtype=CAUSE)
    for name, values in zip(("next_tid", "next_tgid", "woken_tid", "count"), zip(*rows, strict=True), strict=True):
        causes[name] = values
    replica: Any = SimpleNamespace(own_tid=9)
    measuring = CureWindows(Target((71,), "x"), 8, None, None, replica)  # type: ignore[arg-type]
    measuring._counter._after = {7: 1, 8: 1, 9: 1}
    assert measuring._count_exits(causes) == {"thread_exits_count": 17, "target_exits_count": 47}
    whole = CureWindows(Target((71,), "x"), None, None)  # type: ignore[arg-type]
    whole._counter._after = measuring._counter._after
    assert whole._count_exits(causes) == {"thread_exits_count": None, "target_exits_count": 124}


def test_switches_are_those_of_all_processes_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    switches = {71: {71: 4}, 72: {72: 10}, 73: {73: 2, 74: 6}}
    monkeypatch.setattr(windows, "read_switches", lambda pid: dict(switches[pid]))
    present = [[71, 72], [71, 72, 73]]
    counter = SwitchCounter(lambda: present.pop(0))
    counter.begin()
    switches[72][72] = 15
    counter.end()
    assert counter.counts() == {71: 0, 72: 5, 73: 2, 74: 6}
