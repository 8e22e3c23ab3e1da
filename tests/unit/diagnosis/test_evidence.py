# SPDX-License-Identifier: Apache-2.0
"""The figures of the evidence: increases of counters, rates by their own window, and rows of an attribution."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.diagnosis.evidence import (
    compute_timers_hz,
    format_event_rate,
    format_rate,
    format_seconds,
    has_replica_terms,
    list_thread_wakeups,
    select_stack,
)
from powerprof.model.attribution import Waker
from tests.unit.diagnosis.examples import client, evidence, row
from tests.unit.live.records import attribution, cause, wakeup, waking

COUNTS = st.integers(0, 10_000)


@given(COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, st.floats(0.5, 90.0))
def test_an_increase_is_without_own_statements_and_its_rate_is_by_the_window_of_the_counters(
    before: int, sent: int, own: int, other_before: int, other_sent: int, window_s: float
) -> None:
    here = evidence(
        window_s=window_s,
        traced_s=window_s / 3,
        status_before={"Com_select": before, "Questions": other_before, "Uptime": 5},
        status_after={"Com_select": before + sent + own, "Questions": other_before + other_sent, "Queries": 9},
        own_counts={"Com_select": own, "Queries": 3},
    )
    assert here.count_increase("Com_select") == sent
    assert here.count_increase("Com_select", "Questions") == sent + other_sent
    # A counter that only one reading has is unknown.
    assert here.count_increase("Uptime", "Queries", "Com_insert") == 0
    assert here.rate_hz("Com_select", "Questions") == pytest.approx((sent + other_sent) / window_s)


def test_a_counter_that_a_restart_reset_has_no_increase() -> None:
    here = evidence(status_before={"Questions": 900, "Queries": 5}, status_after={"Questions": 40, "Queries": 25})
    assert (here.count_increase("Questions"), here.count_increase("Questions", "Queries")) == (0, 20)
    assert evidence(window_s=0.0, status_before={"Queries": 5}, status_after={"Queries": 25}).rate_hz("Queries") == 0.0


def test_the_last_list_of_clients_is_that_of_the_last_sample() -> None:
    first, second, last = client(3), client(4), client(5)
    here = evidence(clients_before=[first], samples=[[first, second], [last]])
    assert here.clients_after == [last]
    assert here.list_sampled_clients() == [first, first, second, last]
    assert evidence(clients_before=[first]).clients_after == []
    assert (evidence(variables={"server_id": "17"}).server_id, evidence().server_id) == (17, None)


@pytest.mark.parametrize(
    ("rate_hz", "wakings_hz", "woken_hz"), [(3.5, 9.25, 9.25), (3.5, 1.5, 3.5), (3.5, None, 3.5), (0.0, 2.0, 2.0)]
)
def test_a_thread_is_woken_at_the_larger_of_two_rates(
    rate_hz: float, wakings_hz: float | None, woken_hz: float
) -> None:
    assert row("x", rate_hz, wakings_hz=wakings_hz).woken_hz == woken_hz


def test_timers_of_all_programs_are_counted_for_one_cpu() -> None:
    record = attribution(
        window_s=4.0,
        cpus=3,
        wakeups=[wakeup(30), wakeup(6, mechanism="tick"), wakeup(500, mechanism="device")],
        other_causes=[cause(50, mechanism="timer"), cause(10, mechanism="tick"), cause(700, mechanism="ipi")],
    )
    assert compute_timers_hz(record) == pytest.approx((30 + 6 + 50 + 10) / 4.0 / 3)
    assert compute_timers_hz(attribution(window_s=0.0, cpus=3)) is None
    assert compute_timers_hz(attribution(window_s=4.0, cpus=0)) is None


def test_rows_have_their_wakings_by_the_traced_window() -> None:
    waker = Waker(pid=5, comm="cron", server_name=None)
    named = Waker(pid=5, comm="mariadbd", server_name="thread/sql/manager")
    many = [f"f{number}" for number in range(30)]
    record = attribution(
        window_s=4.0,
        wakeups=[wakeup(30, *many, waker=waker), wakeup(2, wakings_count=None)],
        wakings_without_exit=[waking(waker=named)],
    )
    first, second, third = list_thread_wakeups(record)
    assert (first.rate_hz, first.wakings_hz, first.period_ms, first.waker) == (7.5, 22.5, 12.5, "cron")
    assert (first.tid, first.comm, first.name) == (71, "ib_pg", "thread/innodb/page_cleaner")
    assert [len(first.stack), first.stack[0], first.stack[-1]] == [24, "f0", "f23"]
    assert (second.rate_hz, second.wakings_hz, second.waker) == (0.5, None, None)
    assert (third.rate_hz, third.wakings_hz, third.period_ms, third.origin) == (0.0, 5.5, None, "other_thread")
    assert (third.tid, third.name, third.waker) == (72, None, "thread/sql/manager")


@pytest.mark.parametrize(
    ("hertz", "text"),
    [(320.4, "320"), (20.0, "20"), (19.94, "19.9"), (1.0, "1.0"), (0.994, "0.99"), (0.066, "0.07"), (0.0, "0.00")],
)
def test_a_rate_has_the_right_digits(hertz: float, text: str) -> None:
    assert format_rate(hertz) == f"{text} times/s"
    assert format_event_rate(hertz, "idle periods") == f"{text} idle periods/s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.34, "0.3 s"), (9.94, "9.9 s"), (10.0, "10 s"), (119.4, "119 s"), (120.0, "2 min"), (600.0, "10 min")],
)
def test_a_duration_has_the_right_unit(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_the_stack_is_that_of_most_wakings_then_of_most_exits() -> None:
    rows = [
        row("x", 90.0, wakings_hz=4.0, stack=["often_idle(THD*)"]),
        row("x", 1.0, wakings_hz=50.0, stack=["woken(THD*, bool)", "(anonymous)"]),
        row("x", 99.0, wakings_hz=200.0),
    ]
    assert select_stack(rows) == ["woken", "(anonymous)"]
    uncounted = [row("x", rate_hz, wakings_hz=None, stack=[f"f{rate_hz:.0f}"]) for rate_hz in (3.0, 8.0, 5.0)]
    assert select_stack(uncounted) == ["f8"]
    assert select_stack([row("x", 5.0)]) == []


@pytest.mark.parametrize(
    ("version", "is_new"),
    [
        ("MySQL 8.0.22", False),
        ("MySQL 8.0.23", True),
        ("MySQL 8.4.0", True),
        ("MySQL 5.7.44", False),
        ("MariaDB 11.8.2", False),
    ],
)
def test_new_terms_begin_with_8_0_23(version: str, is_new: bool) -> None:
    assert has_replica_terms(version) is is_new
