# SPDX-License-Identifier: Apache-2.0
"""Which stacks of an interval are named: the costliest first, for no more CPU time than a share of it.

Unwinding and naming is most of what a monitor would cost where programs come and go. The share is little and adds
up: on a host that runs what it always ran all is named in the first interval, and hardly anything is left to be named.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from powerprof.attribution.idle import Array
from powerprof.attribution.sites import SLEEPER, Key, SiteStacks
from powerprof.tracing.demand import DemandTracer
from powerprof.tracing.layout import Flag

SHARE = 0.001
# What may be put by: the programs of a host that has just been met. One that is dear to read may overdraw.
MOST_S, LEAST_S = 1.0, -0.06
_MUCH_S = 0.02
_PLACE = ("next_tgid", "next_tid", "site_ip", "site_sp", "site_code")

Place = tuple[int, Key]


def costliest(causes: Array) -> list[Place]:
    """Where threads slept whose wake-ups ended idle periods, the most frequent first: (pid, site)."""
    blamed = causes[causes["flags"] & np.uint32(Flag.SITE) != 0]
    counts: dict[Place, int] = {}
    for pid, tid, ip, sp, code, count in blamed[[*_PLACE, "count"]].tolist():
        place = pid, (tid, ip, sp, code)
        counts[place] = counts.get(place, 0) + count
    return sorted(counts, key=lambda place: (-counts[place], place))


class Purse:
    """CPU time that may be spent on names: it is earned by the second and kept up to a bound."""

    def __init__(self, share: float = SHARE) -> None:
        self._share, self.left_s = share, MOST_S

    def earn(self, passed_s: float) -> None:
        """An interval has passed."""
        self.left_s = min(MOST_S, self.left_s + self._share * passed_s)

    @contextmanager
    def spending(self) -> Iterator[None]:
        """What is done within is paid for."""
        began_s = time.thread_time()
        yield
        self.left_s = max(LEAST_S, self.left_s - (time.thread_time() - began_s))


def look_at(tracer: DemandTracer, unknown: list[Place], purse: Purse) -> None:
    """Snapshots of the processes of places that have no name yet."""
    for pid in dict.fromkeys(pid for pid, _ in unknown):
        if purse.left_s <= 0:
            return
        with purse.spending():
            tracer.look_at([pid])


def name(stacks: SiteStacks, places: list[Place], purse: Purse) -> None:
    """Name these, and afterwards none that is not known."""
    before_s = purse.left_s
    for pid, key in places:
        if purse.left_s <= 0:
            break
        with purse.spending():
            stacks.find(SLEEPER, pid, key)
    stacks.only_known = True
    if before_s - purse.left_s > _MUCH_S:
        # Tables were read: what they were made of lies between them, and would stay with us.
        ctypes.CDLL(None).malloc_trim(0)
