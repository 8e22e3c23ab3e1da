# SPDX-License-Identifier: Apache-2.0
"""Builders of intervals for tests."""

from __future__ import annotations

from typing import Any

from powerprof.live.intervals import (
    IntervalRow,
    Joules,
    LiveInterval,
    OwnCost,
    RowKey,
    ServedStatement,
    ServedStatements,
)


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
        "energy": (Joules(source="rapl", domain="package-0", kind="measured", joules=30.0),),
        "host_joules": 30.0,
    }
    return LiveInterval(**{**given, **more})


def statement(id: str, c0_s: float, wakeups: int = 2, joules: float | None = None, **more: Any) -> ServedStatement:
    given: dict[str, Any] = {"text": f"SELECT {id} FROM t WHERE id = ?", "schema": "shop", **more}
    drawn = 2 * c0_s if joules is None else joules
    return ServedStatement(id=id, c0_s=c0_s, wakeups_count=wakeups, joules=drawn, **given)


def served(*rows: ServedStatement, rest_s: float = 0.5, window_s: float = 10.0, **more: Any) -> ServedStatements:
    """Return the statements of a server with `rest_s` of other work."""
    given: dict[str, Any] = {
        "server": "mariadbd:3306",
        "method": "probes",
        "window_s": window_s,
        "c0_s": sum(one.c0_s for one in rows) + rest_s,
        "wakeups_count": sum(one.wakeups_count for one in rows) + 1,
        "joules": sum(one.joules for one in rows) + 2 * rest_s,
        "kind": "measured",
        "statements": rows,
    }
    return ServedStatements(**{**given, **more})
