# SPDX-License-Identifier: Apache-2.0
"""Shares of services, containers and pods: they sum to the host."""

from __future__ import annotations

import msgspec
import pytest

from powerprof.attribution.units import UNKNOWN_UNIT, price_units, split_units
from powerprof.model.attribution import Thread
from powerprof.model.records import EnergySplit
from tests.unit.live.records import attribution, wakeup, waking


def split(active_joules: float | None = 9.0, **more: object) -> EnergySplit:
    given: dict[str, object] = {
        "total_joules": 30.0,
        "kind": "estimated",
        "source": "model",
        "idle_joules": 21.0,
        "active_joules": active_joules,
        "parts": [],
        "residual_joules": 1.0,
        "rate_watts": 3.0,
        "wakeup_joules": 0.01,
    }
    return EnergySplit(**{**given, **more})


def thread(unit: str | None, tid: int) -> Thread:
    return Thread(tid=tid, comm="x", pid=tid, unit=unit)


def test_units_other_and_the_idle_floor_sum_to_the_host() -> None:
    record = attribution(
        wakeups=[wakeup(30, thread=thread("a.service", 1)), wakeup(10, thread=thread(None, 2), c0_ms=500.0)],
        wakings_without_exit=[waking(thread=thread("a.service", 3), own_ms=120.0)],
        c0_percent=10.0,
        energy_split=split(),
    )
    found = split_units(record)
    assert found is not None
    shares = {share.unit: share for share in found.units}
    assert list(shares) == [UNKNOWN_UNIT, "a.service"]
    assert shares["a.service"].c0_s == pytest.approx(0.00325 + 0.12)
    assert shares["a.service"].joules == pytest.approx(3.0 * 0.12325 + 30 * 0.01)
    parts = [*found.units, found.other]
    assert sum(share.exits_count for share in parts) == record.exits_count
    # 10 % of 3 CPUs in 4 s.
    assert sum(share.c0_s for share in parts) == pytest.approx(1.2)
    assert sum(share.joules or 0.0 for share in parts) + (found.idle_joules or 0.0) == pytest.approx(30.0)


def test_running_time_before_the_window_is_no_time_of_a_unit() -> None:
    record = attribution(wakeups=[wakeup(3, thread=thread("a.service", 1), c0_ms=2400.0)], c0_percent=10.0)
    found = split_units(record)
    assert found is not None
    (share,) = found.units
    assert (share.unit, share.c0_s, share.joules) == ("a.service", pytest.approx(1.2), None)


def test_without_an_idle_floor_the_joules_are_unknown() -> None:
    costs = {"a": (10, 0.5), "b": (0, 1.5)}
    assert price_units(costs, None) is None
    assert price_units(costs, split(None, rate_watts=None, idle_joules=None)) is None
    assert price_units(costs, split()) == {"a": pytest.approx(1.6), "b": pytest.approx(4.5)}
    # Units never get more than the energy above the floor.
    assert price_units(costs, split(3.05)) == {"a": pytest.approx(0.8), "b": pytest.approx(2.25)}


def test_the_units_of_one_server_are_no_shares_of_the_host() -> None:
    record = attribution()
    target = msgspec.structs.replace(record.target, system=False, pid=70)
    assert split_units(msgspec.structs.replace(record, target=target)) is None
