# SPDX-License-Identifier: Apache-2.0
"""The split of a host's energy into the idle floor, and processes, threads and functions by C0 time and wake-ups. Pure.

joules = idle floor + Σ parts + residual, exact to floating point. The residual is a separate line and may be negative.
Two SMT siblings that run together share a core's power, so a CPU second costs less than one alone; both are charged the
same. Different frequencies are charged the same too. Stolen time ran other guests: it is a separate line without
joules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from powerprof.energy.total import Total
from powerprof.model.records import EnergyPart, EnergySplit, Kind

UNATTRIBUTED = "cannot be attributed"
STOLEN = "stolen by other guests"
# cpuidle counts microseconds: less C0 than one is none.
_CLOCK_S = 1e-6
# The clocks of processes and of CPUs are read one after the other.
_CLOCKS_SHARE = 0.01


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer of CPU time: its seconds in C0, the idle exits blamed on it, and its parts."""

    name: str
    c0_s: float
    wakeups_count: float = 0.0
    children: tuple[Consumer, ...] = ()


def split_energy(
    total_joules: float,
    window_s: float,
    *,
    idle_watts: float | None,
    c0_s: float,
    consumers: Sequence[Consumer],
    kind: Kind,
    source: str,
    wakeups_count: float = 0.0,
    wakeup_joules: float | None = None,
    steal_s: float = 0.0,
    smt: bool = False,
) -> EnergySplit:
    """Return the split of `total_joules` over a window.

    `idle_watts` is the host's power asleep; without it no energy can be attributed. `c0_s` and `wakeups_count` are of
    all CPUs, with any cause. `wakeup_joules` is the price of a wake-up from a calibrated model; without it a wake-up
    costs its C0 time.
    """
    notes: list[str] = []
    if idle_watts is None:
        notes.append(f"the idle floor is unknown: {total_joules:.3f} J {UNATTRIBUTED}")
        return EnergySplit(
            total_joules=total_joules,
            kind=kind,
            source=source,
            idle_joules=None,
            active_joules=None,
            parts=[],
            residual_joules=total_joules,
            notes=notes,
        )
    idle = idle_watts * window_s
    active = total_joules - idle
    running_s = max(c0_s - steal_s, 0.0)
    if smt:
        notes.append("SMT siblings share a core: a CPU second is charged the same alone and next to a busy sibling")
    rate, per_wakeup = _compute_prices(active, running_s, wakeups_count, wakeup_joules, notes)
    parts = [_price_consumer(consumer, rate, per_wakeup, active) for consumer in consumers]
    if steal_s >= _CLOCK_S:
        # Stolen time is a separate line: the CPU looks as if it ran here, and drew no energy for this guest.
        parts.append(EnergyPart(name=STOLEN, joules=0.0, percent=0.0, c0_s=steal_s, wakeups_count=0.0))
    residual = total_joules - math.fsum([idle, *(part.joules for part in parts)])
    if residual < -_CLOCKS_SHARE * active and active >= 0:
        notes.append("the parts sum to more than the running time of the CPUs: the rest is below 0")
    return EnergySplit(
        total_joules=total_joules,
        kind=kind,
        source=source,
        idle_joules=idle,
        active_joules=active,
        parts=parts,
        residual_joules=residual,
        rate_watts=rate,
        wakeup_joules=per_wakeup,
        notes=notes,
    )


def split_host_energy(
    whole: Total,
    window_s: float,
    c0_percent: float | None,
    cpus: int,
    consumers: Sequence[Consumer],
    *,
    idle_watts: float | None,
    wakeups_count: float = 0.0,
    wakeup_joules: float | None = None,
    steal_percent: float | None = None,
    smt: bool = False,
) -> EnergySplit | None:
    """Return the split of the host's energy in a window. None if the energy or C0 is unknown."""
    if whole.joules is None or whole.kind is None or whole.source is None or c0_percent is None:
        return None
    return split_energy(
        whole.joules,
        window_s,
        idle_watts=idle_watts,
        c0_s=c0_percent / 100 * cpus * window_s,
        consumers=consumers,
        kind=whole.kind,
        source=whole.source,
        wakeups_count=wakeups_count,
        wakeup_joules=wakeup_joules,
        steal_s=(steal_percent or 0.0) / 100 * cpus * window_s,
        smt=smt,
    )


def _compute_prices(
    active: float, running_s: float, wakeups: float, wakeup_joules: float | None, notes: list[str]
) -> tuple[float | None, float]:
    """Return the joules of a CPU second above the floor (None if it has no price) and of a wake-up."""
    if active <= 0:
        notes.append(f"the host drew {-active:.3f} J less than its idle floor: {UNATTRIBUTED}")
        return None, 0.0
    per_wakeup = wakeup_joules or 0.0
    if per_wakeup * wakeups > active:
        notes.append("wake-ups at the model's price cost more than was drawn: their price is lowered to fit")
        return 0.0, active / wakeups
    if running_s < _CLOCK_S:
        notes.append(f"no CPU ran: {active - per_wakeup * wakeups:.3f} J above the idle floor {UNATTRIBUTED}")
        return (0.0 if per_wakeup else None), per_wakeup
    return (active - per_wakeup * wakeups) / running_s, per_wakeup


def _price_consumer(consumer: Consumer, rate: float | None, per_wakeup: float, active: float) -> EnergyPart:
    joules = (rate or 0.0) * consumer.c0_s + per_wakeup * consumer.wakeups_count
    children = [_price_consumer(child, rate, per_wakeup, active) for child in consumer.children]
    residual = joules - math.fsum(child.joules for child in children) if children else None
    return EnergyPart(
        name=consumer.name,
        joules=joules,
        percent=100 * joules / active if active > 0 else None,
        c0_s=consumer.c0_s,
        wakeups_count=consumer.wakeups_count,
        children=children,
        residual_joules=residual,
    )
