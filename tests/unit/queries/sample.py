# SPDX-License-Identifier: Apache-2.0
"""A window of three statements on three threads, made up so that every sum is known."""

from __future__ import annotations

from powerprof.tracing.captures import RecordedText, StatementTrace, StatementUse, ThreadUse, TraceCost

MS = 1_000_000
POINT, BURN, UNKNOWN = 1001, 1002, 1003


def trace(**changes: object) -> StatementTrace:
    """Threads 11 and 12 are connections, 13 is a page cleaner."""
    values: dict[str, object] = {
        "pid": 10,
        "window_s": 2.0,
        "symbol": "_Z16dispatch_command",
        "ends_by": "send",
        "process_cpu_ns": 1000 * MS,
        "uses": [
            StatementUse(POINT, 11, 100, 100 * MS, 200 * MS, 50, 4),
            StatementUse(POINT, 12, 300, 300 * MS, 600 * MS, 10, 0),
            StatementUse(BURN, 12, 1, 300 * MS, 500 * MS, 0, 0),
            StatementUse(BURN, 12, 1, 105 * MS, 300 * MS, 0, 0, open_count=1),
            StatementUse(14, 11, 5, 1 * MS, 1 * MS, 0, 0),
            StatementUse(UNKNOWN, 11, 10, 4 * MS, 4 * MS, 0, 0),
        ],
        "texts": [
            RecordedText(POINT, 3, 25, b"SELECT c FROM t WHERE id=7"),
            RecordedText(BURN, 3, 20, b"SELECT BENCHMARK(9,1)"),
            RecordedText(UNKNOWN, 23, 0, b"", prepared_number=4, tid=11),
        ],
        "threads": [
            ThreadUse(11, "mysqld", 140 * MS, 50, 115, 0),
            ThreadUse(12, "mysqld", 760 * MS, 10, 302, 20 * MS),
            ThreadUse(13, "ib_pg_flush", 90 * MS, 7, 0, 0),
        ],
        "latencies": {POINT: {(19 << 3) | 0: 399, (22 << 3) | 0: 1}},
        "dispatches_count": 417,
        "lost_count": 0,
        "unreadable_count": 0,
        "cut_count": 0,
        "cost": TraceCost(bpf_s=0.002, trap_ns=417_000),
    }
    return StatementTrace(**{**values, **changes})  # type: ignore[arg-type]
