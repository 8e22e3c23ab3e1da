# SPDX-License-Identifier: Apache-2.0
"""The figures of the evidence: increases of counters, and rates by their own window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.diagnosis.examples import client, evidence, row

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
