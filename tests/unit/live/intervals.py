# SPDX-License-Identifier: Apache-2.0
"""Intervals as a monitor yields them, made up."""

from __future__ import annotations

from typing import Any

from powerprof.live.intervals import IntervalRow, Joules, LiveInterval, OwnCost, RowKey


def row(function: str, exits: int, c0_s: float | None = None, process: str = "mariadbd") -> IntervalRow:
    key = RowKey(process, "page_cleaner", function)
    return IntervalRow(key=key, exits_count=exits, c0_s=exits / 1e4 if c0_s is None else c0_s, mechanism="timer")


def interval(*rows: IntervalRow, untraced: int = 0, window_s: float = 10.0, **more: Any) -> LiveInterval:
    traced = sum(one.exits_count for one in rows)
    given: dict[str, Any] = {
        "ended_at": "2026-01-01T00:00:00Z",
        "window_s": window_s,
        "cpus": 2,
        "idle_s": {(0, "C1"): 9.0, (1, "C1"): 9.5},
        "exits_count": traced + untraced,
        "mechanisms": {"timer": traced, "untraced": untraced},
        "rows": rows,
        "c0_s": 1.5,
        "own": OwnCost(cpu_s=0.01, wakeups_count=3),
        "energy": (Joules(source="rapl", domain="package-0", kind="measured", joules=30.0, in_host=True),),
    }
    return LiveInterval(**{**given, **more})
