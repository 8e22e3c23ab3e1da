# SPDX-License-Identifier: Apache-2.0
"""Counters of a bounded number of rows: nothing is dropped from the sum, none falls, and what ended takes no place."""

from __future__ import annotations

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from powerprof.live.intervals import RowKey, merge_rows
from powerprof.live.metrics import Ranking, Totals
from tests.unit.live.intervals import interval, row

Seen = dict[RowKey | None, int]


def read(totals: Totals) -> Seen:
    """What a reader of the counters sees; None stands for `other`."""
    seen: Seen = {key: place.exits_count for key, place in totals.rows.places.items()}
    seen[None] = totals.rows.rest.exits_count
    totals.mark_read()
    return seen


def increase(before: Seen, after: Seen) -> int:
    """What a store makes of two answers: a series that is new tells nothing of what it held before."""
    return sum(value - before[key] for key, value in after.items() if key in before)


def test_a_new_row_is_shown_as_zero_and_counts_from_then_on() -> None:
    totals = Totals()
    totals.add(interval(row("sleep", 100)))
    key = row("sleep", 0).key
    assert read(totals) == {key: 0, None: 100}
    totals.add(interval(row("sleep", 7), untraced=2))
    assert read(totals) == {key: 7, None: 102}


@example([([(1, 0)], 1), ([(1, 1), (2, 1)], 1), ([], 1), ([], 1), ([(1, 0)], 1), ([(0, 1)], 2), ([], 1)], 2)
@given(
    st.lists(st.tuples(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 500)), max_size=12), st.integers(1, 4))),
    st.integers(0, 5),
)
def test_the_increase_of_all_series_is_the_hosts_however_seldom_they_are_read(
    story: list[tuple[list[tuple[int, int]], int]], top: int
) -> None:
    totals = Totals(Ranking(top, 45.0))
    before, exits_before = read(totals), 0
    for turn, (rows, every) in enumerate(story, 1):
        totals.add(interval(*(row(f"f{name}", count) for name, count in rows), untraced=1))
        if turn % every == 0:
            after, exits = read(totals), sum(totals.mechanisms.values())
            assert len(after) <= top + 1
            assert all(after[key] >= before[key] for key in after if key in before)
            assert increase(before, after) == exits - exits_before
            before, exits_before = after, exits


def test_a_row_that_does_nothing_ends_and_begins_at_zero_again() -> None:
    totals = Totals(Ranking(stale_s=30.0))
    for _ in range(3):
        totals.add(interval(row("sleep", 10)))
        totals.mark_read()
    for _ in range(3):
        totals.add(interval(row("other_one", 1)))
    assert [key.function for key in totals.rows.places] == ["other_one"]
    totals.mark_read()
    totals.add(interval(row("sleep", 10)))
    assert totals.rows.places[row("sleep", 0).key].exits_count == 0


def test_a_series_that_ended_and_began_between_two_readings_goes_on() -> None:
    totals = Totals(Ranking(stale_s=30.0))
    for _ in range(3):
        totals.add(interval(row("sleep", 10)))
        before = read(totals)
    for _ in range(3):
        totals.add(interval(row("other_one", 1)))
    assert row("sleep", 0).key not in totals.rows.places
    totals.add(interval(row("sleep", 10)))
    assert read(totals)[row("sleep", 0).key] == before[row("sleep", 0).key] == 20


def test_the_dearest_rows_have_the_places() -> None:
    totals = Totals(Ranking(2))
    for _ in range(10):
        totals.add(interval(row("a", 1000), row("b", 500), *(row(f"small{n}", 1) for n in range(50))))
        totals.mark_read()
    assert {key.function for key in totals.rows.places} == {"a", "b"}
    for _ in range(40):
        totals.add(interval(row("a", 1000), row("new", 900), row("b", 1)))
        totals.mark_read()
    assert {key.function for key in totals.rows.places} == {"a", "new"}


def test_rows_that_never_repeat_fill_no_memory() -> None:
    totals = Totals(Ranking(5, 1e9))
    for number in range(300):
        totals.add(interval(*(row(f"f{number}-{n}", 1) for n in range(20))))
    assert len(totals.rows._recent) <= 5 + 20 * 5


def test_rows_of_one_function_are_one() -> None:
    (one,) = merge_rows([row("a", 3), row("a", 4)])
    assert (one.exits_count, one.key.function) == (7, "a")


def test_joules_by_domain_and_the_one_sum_of_the_host() -> None:
    totals = Totals(per_cpu=False)
    for _ in range(3):
        totals.add(interval())
    assert totals.joules == {("rapl", "package-0", "measured"): 90.0}
    assert totals.host_joules == {"measured": 90.0}
    assert totals.idle_s == {("all", "C1"): 55.5}


def test_units_are_summed_over_their_rows_and_the_rest_is_the_kernels() -> None:
    totals = Totals()
    rows = [
        msgspec.structs.replace(row(name, 10), unit=unit) for name, unit in (("a", "x.service"), ("b", "x.service"))
    ]
    for _ in range(2):
        totals.add(interval(*rows, row("tick", 5), untraced=1))
        totals.mark_read()
    assert {unit: place.exits_count for unit, place in totals.units.places.items()} == {"x.service": 20}
    assert totals.units.rest.exits_count == 26 + 6
