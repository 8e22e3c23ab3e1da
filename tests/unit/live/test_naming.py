# SPDX-License-Identifier: Apache-2.0
"""What is named first, and what it may cost."""

from __future__ import annotations

import time

import numpy as np

from powerprof.live.naming import LEAST_S, MOST_S, Purse, costliest
from powerprof.tracing.layout import CAUSE, Flag


def causes(*rows: tuple[int, int, int, int]) -> np.ndarray:
    """(pid, tid, site's ip, count) each."""
    found = np.zeros(len(rows), dtype=CAUSE)
    for number, (pid, tid, ip, count) in enumerate(rows):
        found[number]["flags"] = Flag.SITE if ip else 0
        for name, value in zip(("next_tgid", "next_tid", "site_ip", "count"), (pid, tid, ip, count), strict=True):
            found[number][name] = value
    return found


def test_sites_come_by_the_exits_of_all_their_causes() -> None:
    found = costliest(causes((1, 1, 10, 3), (2, 2, 20, 4), (1, 1, 10, 2), (3, 3, 0, 99)))
    assert found == [(1, (1, 10, 0, 0)), (2, (2, 20, 0, 0))]


def test_names_are_paid_for_by_the_time_that_passes() -> None:
    purse = Purse(share=0.001)
    assert purse.left_s == MOST_S
    with purse.spending():
        began = time.thread_time()
        while time.thread_time() - began < 0.01:
            pass
    assert MOST_S - 0.1 < purse.left_s <= MOST_S - 0.01
    purse.left_s = 0.25
    purse.earn(60.0)
    assert purse.left_s == 0.31
    purse.earn(1e6)
    assert purse.left_s == MOST_S


def test_who_was_dear_to_name_is_soon_forgiven() -> None:
    purse = Purse()
    purse.left_s = LEAST_S / 2
    with purse.spending():
        began = time.thread_time()
        while time.thread_time() - began < -LEAST_S:
            pass
    assert purse.left_s == LEAST_S
