# SPDX-License-Identifier: Apache-2.0
"""Equal rows of an attribution become one with the number of threads, and no sum changes."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from powerprof.attribution.merge import merge_equal_rows
from powerprof.model.attribution import Attribution, StackFrame, Thread, Waker, Wakeup, Waking
from powerprof.model.records import EnergyPart, EnergySplit
from tests.unit.live import records

CONNECTION = "thread/sql/one_connection"


def frame(function: str, address: int, module: str = "mariadbd") -> StackFrame:
    return StackFrame(function=function, module=module, address=f"{address:#x}")


POLL = [frame("poll", 0x10, "libc.so.6"), frame("vio_io_wait", 0x20), frame("handle_connection", 0x30)]
LOCK = [frame("futex_wait", 0x11, "libc.so.6"), frame("lock_wait", 0x21)]


def connection(tid: int) -> Thread:
    return Thread(tid=tid, comm="mariadbd", server_name=CONNECTION, pid=7)


def wakeup(tid: int, count: int = 3, **more: Any) -> Wakeup:
    figures = {"rate_hz": count / 10, "wakings_count": 2 * count, "c0_ms": 0.25 * count, "own_ms": 0.125 * count}
    fields = {"period_ms": 1000.0, "idle_ms": 4.0, "joules": 0.5 * count, "states": {"C1": count}, "stack": POLL}
    return records.wakeup(count, **{**figures, **fields, "thread": connection(tid), **more})


def waking(tid: int, count: int = 5, **more: Any) -> Waking:
    fields = {"origin": "own_timer", "wakings_count": count, "wakings_hz": count / 10, "stack": POLL, "own_ms": 0.5}
    return records.waking(**{**fields, "thread": connection(tid), **more})


def part(name: str, joules: float | None, c0_s: float, count: int, children: Sequence[EnergyPart] = ()) -> EnergyPart:
    percent = None if joules is None else 5 * joules
    figures = {"percent": percent, "c0_s": c0_s, "wakeups_count": count}
    return EnergyPart(name=name, joules=joules or 0.0, children=list(children), **figures)  # type: ignore[arg-type]


def record(wakeups: list[Wakeup], wakings: list[Waking] | None = None) -> Attribution:
    children = [part("row", row.joules, row.c0_ms / 1e3, row.count) for row in wakeups]
    joules = {"total_joules": 20.0, "idle_joules": 10.0, "active_joules": 10.0, "residual_joules": 0.0}
    parts = [part("mariadbd", 9.0, 1.0, 9, children), part("powerprof", 1.0, 0.1, 1)]
    split = EnergySplit(kind="estimated", source="model", parts=parts, **joules)  # type: ignore[arg-type]
    return records.attribution(wakeups=wakeups, wakings_without_exit=wakings or [], energy_split=split)


def test_two_thousand_connections_are_one_row() -> None:
    before = record([wakeup(tid) for tid in range(100, 2100)], [waking(tid, origin="device") for tid in range(9, 2009)])
    after = merge_equal_rows(before)
    assert len(after.wakeups) == len(after.wakings_without_exit) == 1
    thread = after.wakeups[0].thread
    assert (thread.tid, thread.threads_count, thread.label) == (0, 2000, "sql/one_connection ×2,000")
    assert after.wakeups[0].period_ms == 1000.0
    assert len(msgspec.json.encode(after)) < 10_000 < 1_000_000 < len(msgspec.json.encode(before))


@pytest.mark.parametrize(
    ("rows", "left"),
    [
        ([wakeup(tid) for tid in range(8)], 8),  # few threads stay apart: each may have its remedy
        ([wakeup(tid) for tid in range(9)], 1),
        ([wakeup(tid, stack=LOCK if tid % 2 else POLL) for tid in range(40)], 2),
        ([wakeup(tid, mechanism="device" if tid % 2 else "timer") for tid in range(40)], 2),
        ([wakeup(tid, origin="device", detail=f"virtio{tid % 2}") for tid in range(40)], 2),
        ([wakeup(tid, stack_complete=bool(tid % 2)) for tid in range(40)], 2),
        ([wakeup(tid, thread=Thread(tid=tid, comm=f"worker {tid}")) for tid in range(40)], 40),
        ([wakeup(tid, thread=Thread(tid=tid, comm="w", unit=f"pod {tid % 2}")) for tid in range(40)], 2),
        ([wakeup(tid, thread=Thread(tid=tid, comm="postgres", pid=tid, process="postgres")) for tid in range(40)], 1),
        ([wakeup(tid, waker=Waker(pid=tid, tid=tid, comm="client")) for tid in range(40)], 1),
        ([wakeup(tid, waker=Waker(pid=1, tid=1, comm=f"client{tid % 2}")) for tid in range(40)], 2),
        ([wakeup(1, stack=[frame("sleepA", at, "perf-9.map"), *POLL]) for at in range(40)], 1),  # V8 moves its code
        ([wakeup(1, stack=[frame(f"f{at % 2}", at, "perf-9.map"), *POLL]) for at in range(40)], 2),
        ([wakeup(1, stack=[frame("poll_loop", at), *POLL]) for at in range(3)], 3),  # three calls in one function
        ([], 0),
    ],
)
def test_rows_that_report_the_same_are_one(rows: list[Wakeup], left: int) -> None:
    after = merge_equal_rows(record(rows))
    assert len(after.wakeups) == left
    assert sum(row.count for row in after.wakeups) == sum(row.count for row in rows)


def test_unknown_figures_stay_unknown() -> None:
    rows = [wakeup(tid, wakings_count=None if tid == 4 else 9, idle_ms=None, period_ms=tid or None) for tid in range(9)]
    row = merge_equal_rows(record(rows)).wakeups[0]
    assert (row.wakings_count, row.idle_ms, row.period_ms) == (None, None, None)


def test_figures_of_merged_rows() -> None:
    """Nine connections with 1 to 9 exits, whose periods differ by less than a tenth."""
    rows = [
        wakeup(tid, count=tid, period_ms=1000.0 + tid, idle_ms=4.0 * tid, rate_hz=tid / 7, states={"C1": tid, "C6": 1})
        for tid in range(1, 10)
    ]
    after = merge_equal_rows(record(rows, [waking(tid, tid, own_ms=0.25 * tid) for tid in range(1, 10)]))
    (row,) = after.wakeups
    squares = sum(tid * tid for tid in range(1, 10))
    assert (row.count, row.wakings_count, row.states) == (45, 90, {"C1": 45, "C6": 9})
    assert row.rate_hz == pytest.approx(45 / 7)
    assert row.c0_ms == pytest.approx(0.25 * 45) and row.own_ms == pytest.approx(0.125 * 45)
    assert row.joules == pytest.approx(0.5 * 45)
    # Means are weighted by the exits.
    assert row.period_ms == pytest.approx(1000 + squares / 45) and row.idle_ms == pytest.approx(4 * squares / 45)
    (woken,) = after.wakings_without_exit
    assert (woken.wakings_count, woken.wakings_hz, woken.own_ms) == (45, pytest.approx(4.5), pytest.approx(0.25 * 45))
    (part,) = after.energy_split.parts[0].children
    assert (part.joules, part.percent, part.wakeups_count) == (pytest.approx(22.5), pytest.approx(112.5), 45)
    assert part.c0_s == pytest.approx(0.25 * 45 / 1e3)
    assert after.energy_split.parts[1].joules == 1.0


@pytest.mark.parametrize("unknown", ["period_ms", "idle_ms", "wakings_count", "own_ms", "joules"])
def test_one_unknown_figure_makes_the_merged_one_unknown(unknown: str) -> None:
    rows = [wakeup(tid, **({unknown: None} if tid == 4 else {})) for tid in range(1, 10)]
    (row,) = merge_equal_rows(record(rows)).wakeups
    assert getattr(row, unknown) is None


def test_periods_that_differ_are_no_period() -> None:
    rows = [wakeup(tid, period_ms=1000.0 if tid < 9 else 1101.0) for tid in range(1, 10)]
    assert merge_equal_rows(record(rows)).wakeups[0].period_ms is None


def test_sums_and_order_of_drawn_records_stay() -> None:
    drawn = random.Random(5)
    for _ in range(200):
        size = drawn.randint(0, 60)
        rows = [
            wakeup(
                drawn.randint(1, 20),
                drawn.randint(1, 9),
                stack=drawn.choice([POLL, LOCK, [frame("js", drawn.randint(1, 5), "perf-1.map")]]),
                mechanism=drawn.choice(["timer", "ipi"]),
                waker=drawn.choice([None, Waker(pid=drawn.randint(1, 3), tid=1, comm="x")]),
            )
            for _ in range(size)
        ]
        wakings = [waking(drawn.randint(1, 20), drawn.randint(1, 9)) for _ in range(drawn.randint(0, 40))]
        before = record(rows, wakings)
        after = merge_equal_rows(before)
        for name in ("count", "wakings_count", "rate_hz", "c0_ms", "own_ms", "joules"):
            assert math.fsum(getattr(row, name) for row in after.wakeups) == pytest.approx(
                math.fsum(getattr(row, name) for row in rows)
            )
        for name in ("wakings_count", "wakings_hz", "own_ms"):
            assert math.fsum(getattr(row, name) for row in after.wakings_without_exit) == pytest.approx(
                math.fsum(getattr(row, name) for row in wakings)
            )
        assert sum(sum(row.states.values()) for row in after.wakeups) == sum(row.count for row in rows)
        assert [row.count for row in after.wakeups] == sorted((row.count for row in after.wakeups), reverse=True)
        assert after.energy_split is not None and before.energy_split is not None
        parts = after.energy_split.parts[0].children
        assert [part.wakeups_count for part in parts] == [row.count for row in after.wakeups]
        assert math.fsum(part.joules for part in parts) == pytest.approx(math.fsum(row.joules or 0 for row in rows))
        assert merge_equal_rows(after).conservation == before.conservation
