# SPDX-License-Identifier: Apache-2.0
"""The idle exits, CPU time and energy of a host by service, container and pod. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from powerprof.model.attribution import Attribution, UnitShare, UnitSplit
from powerprof.model.records import EnergySplit

UNKNOWN_UNIT = "unit unknown"
"""The unit of processes that ended before their control group was read."""
# Idle exits, and seconds in C0.
UnitCost = tuple[int, float]


def price_units(costs: Mapping[str, UnitCost], split: EnergySplit | None) -> dict[str, float] | None:
    """Return the joules of each unit above the idle floor; None if they are unknown.

    A unit costs its running time and its wake-ups at the prices of the split. Together the units get at most the
    energy above the floor.
    """
    if split is None or split.rate_watts is None or split.active_joules is None:
        return None
    rate, per_wakeup = split.rate_watts, split.wakeup_joules or 0.0
    joules = {unit: rate * c0_s + per_wakeup * count for unit, (count, c0_s) in costs.items()}
    total = sum(joules.values())
    share = min(1.0, split.active_joules / total) if total > 0 else 1.0
    return {unit: share * value for unit, value in joules.items()}


def split_units(record: Attribution) -> UnitSplit | None:
    """Return the shares of the units of a host; None for other targets.

    The units and `other` sum to the idle exits and the running time of the host. With the idle floor, their joules sum
    to its energy.
    """
    if not record.target.system:
        return None
    costs: dict[str, UnitCost] = {}
    rows = [(row.thread, row.count, row.c0_ms) for row in record.wakeups]
    rows += [(row.thread, 0, row.own_ms or 0.0) for row in record.wakings_without_exit]
    for thread, exits, c0_ms in rows:
        unit = thread.unit or UNKNOWN_UNIT
        count, c0_s = costs.get(unit, (0, 0.0))
        costs[unit] = count + exits, c0_s + c0_ms / 1e3
    blamed_s = sum(c0_s for _, c0_s in costs.values())
    host_s = blamed_s if record.c0_percent is None else record.c0_percent / 100.0 * record.cpus * record.window_s
    if blamed_s > host_s:
        # A thread that began to run before the window has its whole time in a row.
        costs = {unit: (count, c0_s * host_s / blamed_s) for unit, (count, c0_s) in costs.items()}
    split = record.energy_split
    joules = price_units(costs, split)
    units = [
        UnitShare(unit=unit, exits_count=count, c0_s=c0_s, joules=None if joules is None else joules[unit])
        for unit, (count, c0_s) in costs.items()
    ]
    other = UnitShare(
        unit="other",
        exits_count=max(0, record.exits_count - sum(unit.exits_count for unit in units)),
        c0_s=host_s - sum(unit.c0_s for unit in units),
        joules=None
        if split is None or split.active_joules is None or joules is None
        else split.active_joules - sum(joules.values()),
    )
    return UnitSplit(
        units=sorted(units, key=lambda unit: (-unit.c0_s, unit.unit)),
        other=other,
        idle_joules=None if split is None else split.idle_joules,
    )
