# SPDX-License-Identifier: Apache-2.0
"""What the trace's own count is held against, and by whose clock."""

from __future__ import annotations

import pytest

from powerprof.measure.window import parse_timens_offset
from powerprof.tracing.captures import CpuEdge, count_reference_exits, find_unchecked_cpus


def _edges(*counts: tuple[int | None, int | None, int]) -> dict[int, CpuEdge]:
    return {cpu: CpuEdge(cpu, 0, 10, usage, events, traced) for cpu, (usage, events, traced) in enumerate(counts)}


def test_a_cpu_that_went_away_stands_with_what_was_traced_and_the_others_are_checked() -> None:
    edges = _edges((2000, None, 2001), (1500, None, 1500), (None, None, 474))
    assert count_reference_exits(edges) == ("cpuidle", 2000 + 1500 + 474)
    assert find_unchecked_cpus(edges) == [2]


def test_nothing_is_unchecked_where_all_were_counted_or_none() -> None:
    assert find_unchecked_cpus(_edges((20, None, 20), (30, None, 30))) == []
    assert find_unchecked_cpus(_edges((None, 20, 20), (None, 30, 30))) == []


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([(None, 20, 21), (None, 30, 30)], ("perf", 50)),
        ([(None, 20, 21), (None, None, 30)], None),  # without cpuidle one CPU unseen leaves nothing to hold on to
        ([(None, 20, 21), (None, 0, 30)], None),  # a counter that stands still while the CPU leaves idle
        ([(None, None, 21)], None),
        ([], None),
    ],
)
def test_without_cpuidle_the_event_has_to_be_counted_on_every_cpu(
    counts: list[tuple[int | None, int | None, int]], expected: tuple[str, int] | None
) -> None:
    assert count_reference_exits(_edges(*counts)) == expected


@pytest.mark.parametrize(
    ("offsets", "ahead"),
    [
        ("monotonic           0         0\nboottime            0         0\n", 0),
        ("monotonic      100000         0\nboottime       100000         0\n", 100_000 * 10**9),
        ("monotonic          -5 250000000\nboottime            0         0\n", -5 * 10**9 + 250_000_000),
        ("", 0),
    ],
)
def test_a_time_namespace_is_ahead_by_its_offset(offsets: str, ahead: int) -> None:
    assert parse_timens_offset(offsets) == ahead
