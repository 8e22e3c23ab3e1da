# SPDX-License-Identifier: Apache-2.0
"""Attributions of windows of which only slices were traced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from powerprof.attribution import capture as captures
from powerprof.attribution.merge import merge_equal_rows
from powerprof.report.wakeups import answer_of
from powerprof.system.errors import DataError
from powerprof.tracing.bpf.shared_numbers import RunKind
from powerprof.tracing.captures import CpuEdge
from powerprof.tracing.idle_data import RUN_TIME, RunTimes
from powerprof.tracing.slices import SLICE_COUNT, SlicedTrace, TracedSlice, scale_run_times
from tests.unit.attribution.captures import MS, OTHER, PID, attribution, capture, exits, own_timer, waking, woken_by

# A second was traced completely, then three slices of 0.1 s, each for half a second of the window of 2.5 s.
SLICES = [TracedSlice(0.0, 1.0, 1.0, 8, 8), *(TracedSlice(1.2 + 0.5 * number, 0.1, 0.5, 4, 4) for number in range(3))]


def _counts(*rows: tuple[int, int, int]) -> bytes:
    counts = np.zeros(len(rows), dtype=SLICE_COUNT)
    for number, row in enumerate(rows):
        counts[number] = row
    return counts.tobytes()


def _sliced(causes: bytes, whole: int | None, **more: Any) -> SlicedTrace:
    return SlicedTrace(slices=SLICES, whole_count=whole, used_s=None, causes=causes, **more)


def _records() -> np.ndarray:
    """Ten exits of one thread by its timer, six of another by a client, and four by powerprof's absence: others."""
    return exits(
        *[own_timer(101)] * 10,
        *[woken_by(102, OTHER, OTHER)] * 6,
        *[{"next_tid": OTHER, "next_tgid": OTHER, "evidence": 1, "flags": 0}] * 4,
    )


def _record(whole: int | None = 68, **more: Any) -> Any:
    # The causes are in the order of their first exit.
    causes = _counts((0, 0, 4), (0, 1, 2), (0, 2, 2), (0, 3, 2), (1, 0, 3), (1, 1, 3), (2, 0, 1), (2, 2, 2), (2, 3, 1))
    return attribution(_records(), sliced=_sliced(causes, whole, **more), edges=[CpuEdge(0, 0, 10_000 * MS, 20)])


def test_the_rows_add_up_to_the_kernels_count_of_the_window() -> None:
    record = _record()
    # 8 exits were seen in the first second, 12 in the slices; the kernel counted 48 in their place.
    timer, client = record.wakeups
    assert (timer.count, client.count) == (4 + 6 * 5, 3 + 3 * 5)
    others = sum(cause.count for cause in record.other_causes)
    assert timer.count + client.count + others == 68 == record.exits_count
    assert timer.rate_hz == pytest.approx(34 / 2.5)
    for row, seen in ((timer, 10), (client, 6)):
        assert seen / 2.5 <= row.rate_low_hz < row.rate_hz < row.rate_high_hz


def test_the_balance_is_that_of_the_slices() -> None:
    balance = _record().conservation
    assert (balance.idle_exits_count, balance.reference_count, balance.lost_count) == (20, 20, 0)


def test_the_facts_of_the_slices() -> None:
    slicing = _record().slicing
    assert (slicing.slices_count, slicing.exits_count) == (4, 68)
    assert slicing.traced_s == pytest.approx(1.3) and slicing.traced_percent == pytest.approx(52.0)
    assert slicing.unseen_below_hz == pytest.approx(2.3, abs=0.01)
    assert slicing.target_low_hz < (34 + 18) / 2.5 < slicing.target_high_hz


def test_without_a_counter_the_lengths_decide() -> None:
    record = _record(None)
    # Each slice is a fifth of its stratum.
    assert record.exits_count == 8 + 12 * 5


def test_wakings_are_estimates_too() -> None:
    wakings = [waking(101, 12), waking(102, 4)]
    counts = _counts((0, 0, 6), (0, 1, 2), (0, 2, 2), (0, 3, 2), (1, 1, 4))
    causes = _counts((0, 0, 10), (1, 0, 6), (2, 0, 4))
    record = attribution(_records(), wakings, sliced=_sliced(causes, None, wakings=counts))
    rows = {row.thread.tid: row for row in record.wakeups}
    assert rows[101].wakings_count == 6 + 6 * 5


def test_a_complete_window_has_no_intervals() -> None:
    record = attribution(_records())
    assert record.slicing is None and record.exits_count == 20
    assert all(row.rate_low_hz is None and row.rate_high_hz is None for row in record.wakeups)


def test_merged_rows_keep_their_intervals() -> None:
    record = _record()
    first = record.wakeups[0]
    threads = [
        msgspec.structs.replace(first, thread=msgspec.structs.replace(first.thread, tid=tid)) for tid in range(9)
    ]
    named = [msgspec.structs.replace(row, thread=msgspec.structs.replace(row.thread, comm="worker")) for row in threads]
    (merged,) = merge_equal_rows(msgspec.structs.replace(record, wakeups=named, energy_split=None)).wakeups
    assert merged.rate_low_hz == pytest.approx(9 * first.rate_low_hz)
    assert merged.rate_low_hz < merged.rate_hz < merged.rate_high_hz


def _ran(*threads: tuple[int, int, int, float]) -> RunTimes:
    rows = np.zeros(len(threads), dtype=RUN_TIME)
    for number, (tid, pid, kind, ms) in enumerate(threads):
        rows[number] = (tid, pid, round(ms * MS), kind)
    return RunTimes(rows, 2 * MS, 1 * MS)


def test_the_running_time_of_the_target_is_that_of_its_clock() -> None:
    target, other = (101, PID, RunKind.TARGET, 10.0), (OTHER, OTHER, RunKind.OTHER, 3.0)
    parts = [_ran(target, other)] + [_ran(target)] * 3
    ran = scale_run_times(parts, SLICES, 0.2, [PID])
    times = {tid: ns / MS for tid, ns in ran.threads[["tid", "ns"]].tolist()}
    assert times[101] + ran.target_ns / MS == pytest.approx(200.0)
    assert times[OTHER] == 3.0
    assert ran.others_ns / MS == pytest.approx(2 + 3 * 2 * 5)


def test_the_running_time_without_a_clock() -> None:
    parts = [_ran((101, PID, RunKind.TARGET, 10.0))] * 4
    ran = scale_run_times(parts, SLICES, None, [PID])
    assert ran.threads["ns"].tolist() == [(10 + 3 * 10 * 5) * MS]


@pytest.mark.parametrize(
    "broken",
    [
        {"slices": []},
        {"slices": [TracedSlice(0.0, 2.0, 1.0, 8, 8)]},
        {"slices": [TracedSlice(0.0, 1.0, float("inf"), 8, 8)]},
        {"slices": [TracedSlice(0.0, 1.0, 1.0, -8, 8)]},
        {"causes": b"123"},
        {"wakings": _counts((0, 0, 1 << 63))},
    ],
)
def test_impossible_slices_are_refused(broken: dict[str, Any], tmp_path: Path) -> None:
    causes = _counts((0, 0, 10), (1, 0, 6), (2, 0, 4))
    sliced = msgspec.structs.replace(_sliced(causes, 68), **broken)
    path = tmp_path / captures.FILE
    path.write_bytes(captures.encode(capture(_records(), sliced=sliced)))
    with pytest.raises(DataError):
        captures.load(path)


def test_slices_are_saved(tmp_path: Path) -> None:
    made = capture(_records(), sliced=_sliced(_counts((0, 0, 10), (9, 99, 6)), 68))
    path = tmp_path / captures.FILE
    path.write_bytes(captures.encode(made))
    assert captures.load(path).sliced == made.sliced


def test_powerprof_itself_is_not_scaled() -> None:
    """It runs at the edges of slices, so that its share in the slices is not its share in the window."""
    own = 77
    parts = [_ran((own, own, RunKind.OTHER, 4.0), (101, PID, RunKind.TARGET, 10.0))] * 4
    ran = scale_run_times(parts, SLICES, None, [PID], [own])
    times = {tid: ns / MS for tid, ns in ran.threads[["tid", "ns"]].tolist()}
    assert times == {own: 16.0, 101: 10 + 3 * 10 * 5}
    records = exits(*[own_timer(101)] * 10, *[{"next_tid": own, "next_tgid": own, "flags": 0}] * 4)
    causes = _counts((0, 0, 4), (0, 1, 2), (0, 2, 2), (0, 3, 2), (1, 1, 2), (1, 2, 2))
    record = attribution(records, sliced=_sliced(causes, None), own_pid=own)
    (itself,) = [cause for cause in record.other_causes if cause.process == "powerprof"]
    assert itself.count == 4 and record.wakeups[0].count == 4 + 6 * 5


def test_a_busy_window_claims_no_intervals() -> None:
    """Wakings of running CPUs are estimates without intervals."""
    wakings, counts = [waking(101, 12)], _counts((0, 0, 6), (0, 1, 6))
    # The CPUs idled in the window, and not in the slices.
    edges = [CpuEdge(0, 0, 10_000 * MS, 0)]
    sliced = _sliced(b"", 900, wakings=counts)
    record = attribution(_records()[:0], wakings, sliced=sliced, stat_idle_percent=30.0, edges=edges)
    answer = answer_of(record)
    assert "in 4 slices: rates are estimates." in answer and "95 %" not in answer
    assert "rates are estimates with 95 % intervals." in answer_of(_record())
