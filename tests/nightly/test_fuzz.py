# SPDX-License-Identifier: Apache-2.0
"""Ten minutes of inputs over every loader; other ones each day."""

from __future__ import annotations

import time

from tests.nightly.fuzz.campaign import campaign
from tests.nightly.fuzz.loaders import LOADERS

MINUTES = 10


def test_ten_minutes_of_inputs() -> None:
    day = int(time.time() // 86_400)
    outcome = campaign(LOADERS, seconds=60.0 * MINUTES, first=day * 100_000_000)
    print(f"{outcome.tried.total():,} inputs from number {day * 100_000_000}, slowest {outcome.slowest_s:.2f} s")
    assert [f"{one.loader} {one.number}: {one.what}" for one in outcome.problems] == []
    assert outcome.tried.total() > 10_000
