# SPDX-License-Identifier: Apache-2.0
"""Sums over the slices of a window of statements, and the truth of their intervals."""

from __future__ import annotations

import random

import pytest

from powerprof.database.server_report import ServerReport
from powerprof.model.statements import NormalText
from powerprof.queries.join import ShareRanges, join_trace
from powerprof.queries.probes import describe_slices
from powerprof.system.errors import PowerprofError
from powerprof.tracing.captures import StatementTrace, StatementUse, ThreadUse
from powerprof.tracing.statement_slices import sum_slices
from tests.unit.queries.sample import BURN, MS, POINT, trace


def _slice(point: int, burn: int = 0, *more: StatementUse) -> StatementTrace:
    """Return a slice of 0.25 s with calls of two statements: of 1 ms and 20 ms CPU time."""
    uses = [StatementUse(POINT, 11, point, point * MS, 2 * point * MS, 3 * point, 0, squares=7 * point)]
    uses += [StatementUse(BURN, 12, burn, 20 * burn * MS, 20 * burn * MS, 0, 2 * burn)] if burn else []
    return trace(
        window_s=0.25,
        process_cpu_ns=(point + 20 * burn + 5) * MS,
        uses=[*uses, *more],
        threads=[
            ThreadUse(11, "mysqld", point * MS, 40, point, 0),
            ThreadUse(12, "mysqld", 20 * burn * MS, 0, burn, 0),
            ThreadUse(13, "ib_pg_flush", 5 * MS, 7, 0, 0),
        ],
        latencies={POINT: {(19 << 3) | 0: point}},
        dispatches_count=point + burn,
    )


def _calls(summed: StatementTrace) -> dict[int, int]:
    return {use.id: use.calls for use in summed.uses}


def test_the_counts_of_the_server_scale_a_window() -> None:
    """Two slices of 0.25 s stand for 1 s and 3 s: 4 and 12 of their lengths."""
    summed = sum_slices([_slice(100), _slice(50, 2)], [1.0, 3.0], 1640 * MS, 260.0)
    assert (summed.window_s, summed.process_cpu_ns) == (4.0, 1640 * MS)
    # By time 400 + 600 and 24 calls; the server counted 1,040, of which 152 were seen.
    whole = _calls(summed)
    assert sum(whole.values()) == pytest.approx(1040, abs=1)
    scale = (1040 - 152) / (1024 - 152)
    assert whole[BURN] == round(2 * (1 + 11 * scale))
    use = next(use for use in summed.uses if use.id == POINT)
    # Costs of a call are those of the slices.
    assert use.squares / use.calls == pytest.approx(7, rel=0.01)
    assert use.wakeups / use.calls == pytest.approx(3, rel=0.01)
    assert sum(summed.latencies[POINT].values()) == pytest.approx(use.calls, abs=1)
    # The CPU time of all parts is the kernel's.
    assert sum(thread.cpu_ns for thread in summed.threads) == pytest.approx(1640 * MS, rel=1e-6)
    assert summed.slices is not None and summed.slices.is_counted_by_server
    assert summed.dispatches_count == 152


@pytest.mark.parametrize(("hz", "by"), [(None, "cpu"), (1500.0, "cpu"), (260.0, "server")])
def test_an_implausible_count_is_not_used(hz: float | None, by: str) -> None:
    """A text with several statements counts as several on the server."""
    summed = sum_slices([_slice(100), _slice(50, 2)], [1.0, 3.0], 1640 * MS, hz)
    assert summed.slices is not None
    assert describe_slices(summed.slices, summed.window_s).calls_by == by
    assert sum(_calls(summed).values()) == pytest.approx(1040 if by == "server" else 1640 / 1560 * 1024, rel=0.01)


def test_without_clock_and_counter_time_is_the_scale() -> None:
    summed = sum_slices([_slice(100), _slice(50)], [1.0, 3.0], None, None)
    assert _calls(summed) == {POINT: 1000}
    assert summed.slices is not None
    assert describe_slices(summed.slices, 4.0).calls_by == "time"
    assert ShareRanges(summed.slices).find({0: 1}) == (None, None)


def test_calls_at_the_edges_of_slices_count_half_and_long_calls_once() -> None:
    began = StatementUse(POINT, 11, 1, MS // 2, MS, 0, 0, began_before=True)
    left = StatementUse(POINT, 11, 1, MS // 2, MS, 0, 0, open_count=1)
    long = StatementUse(BURN, 12, 1, 200 * MS, 250 * MS, 0, 0, open_count=1, began_before=True)
    summed = sum_slices([_slice(10, 0, began, left, long)] * 2, [1.0, 1.0], None, None)
    uses = {use.id: use for use in summed.uses}
    assert (uses[POINT].calls, uses[POINT].open_count, uses[POINT].began_before) == (88, 0, False)
    assert (uses[BURN].calls, uses[BURN].open_count, uses[BURN].began_before) == (1, 1, True)
    assert uses[BURN].cpu_ns == 1600 * MS


def test_a_window_without_a_slice_is_an_error() -> None:
    with pytest.raises(PowerprofError, match="no statement was traced"):
        sum_slices([], [], 1, 1.0)


def test_intervals_of_sliced_windows_contain_the_truth() -> None:
    """A steady statement, bursts, a periodic one and a rare one, in 40 windows of 10 s with a slice in each 0.5 s."""
    chance, inside, total = random.Random(4), 0, 0
    for _ in range(40):
        period, phase = chance.uniform(0.3, 1.2), chance.random()
        sparks = [9.9 * chance.random() for _ in range(15)]
        calls: dict[int, list[float]] = {
            POINT: [10 * chance.random() for _ in range(chance.randint(1800, 2200))],
            BURN: [burst + 0.05 * chance.random() for burst in sparks for _ in range(12)],
            2001: [phase + period * number for number in range(int((10 - phase) / period))],
            2002: [10 * chance.random() for _ in range(8)],
        }
        slices = []
        for number in range(20):
            start = 0.5 * number + 0.4 * chance.random()
            seen = {id: sum(start <= at < start + 0.1 for at in times) for id, times in calls.items()}
            uses = [StatementUse(id, 11, count, count * MS, count * MS, 0, 0) for id, count in seen.items() if count]
            cpu = sum(seen.values()) * MS
            thread = ThreadUse(11, "mysqld", cpu, 0, sum(seen.values()), 0)
            slices.append(trace(window_s=0.1, process_cpu_ns=cpu, uses=uses, threads=[thread], latencies={}))
        whole = sum(map(len, calls.values()))
        summed = sum_slices(slices, [0.5] * 20, whole * MS, whole / 10)
        assert summed.slices is not None
        ranges = ShareRanges(summed.slices)
        of = {id: dict(use.by_slice) for use in summed.uses for id in [use.id]}
        for id, times in calls.items():
            share = 100 * len(times) / whole
            total += 1
            if id in of:
                low, high = ranges.find(of[id])
                assert low is not None and high is not None
                inside += low <= share <= high
            else:
                inside += len(times) / 10 <= describe_slices(summed.slices, 10.0).unseen_below_hz
    assert inside / total >= 0.93


def test_rows_of_a_sliced_window_have_intervals() -> None:
    summed = sum_slices([_slice(100, 1), _slice(90), _slice(110), _slice(95), _slice(105)], [1.0] * 5, 2100 * MS, 400.0)
    parts = join_trace(summed, ServerReport())
    first = parts.statements[0]
    assert first.text == NormalText("SELECT c FROM t WHERE id = ?")
    assert first.low_percent is not None and first.high_percent is not None
    assert first.low_percent < 100 * first.c0_s / 2.1 < first.high_percent
    assert first.c0_ms_per_call == pytest.approx(1.0, rel=0.06)
