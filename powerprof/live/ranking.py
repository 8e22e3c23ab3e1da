# SPDX-License-Identifier: Apache-2.0
"""Series for as many keys as a budget allows, everything else in one sum, `rest`.

A key takes a place by what it costs; its series starts at 0 and counts from when a reader has seen that 0, because a
reader of counters cannot tell what a series already held when it appeared. Until then, and after it lost its place, its
exits count in the rest. So the increase of all series is the host's, whoever comes and goes and however seldom is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import exp, log
from typing import Any, Generic, TypeVar

K = TypeVar("K")
# Idle exits and seconds in C0.
Cost = tuple[int, float]
TOP = 20
STALE_S = 300.0
# What is remembered of keys without a place, so that names that never repeat cannot fill the memory.
_REMEMBERED = 20
_HALF_LIFE_S = 60.0
# A place changes hands only for a clear gain: series that come and go cost a store more than they tell.
_CLEARLY = 1.5


@dataclass
class RankedCounters:
    """A key's counters, and what of them was read. `seen`: somebody has read its 0."""

    exits_count: int = 0
    c0_s: float = 0.0
    seen: bool = False
    read_count: int = 0
    read_c0_s: float = 0.0
    joules: float = 0.0
    read_joules: float = 0.0


@dataclass
class _CostSeen:
    cost: float = 0.0
    idle_for_s: float = 0.0


@dataclass
class Ranking(Generic[K]):
    """The places of the dearest `top` keys; a key without costs for `stale_s` loses its place."""

    top: int = TOP
    stale_s: float = STALE_S
    places: dict[K, RankedCounters] = field(default_factory=dict)
    rest: RankedCounters = field(default_factory=RankedCounters)
    _known: dict[K, _CostSeen] = field(default_factory=dict)
    # Series that have ended since somebody read them: one that begins again before the next reading goes on.
    _ended: dict[K, RankedCounters] = field(default_factory=dict)

    def add(
        self,
        window_s: float,
        costs: Mapping[K, Cost],
        exits_count: int,
        c0_s: float,
        energy: Mapping[K, float] | None = None,
        joules: float = 0.0,
    ) -> None:
        """One more interval: what each key cost, and what it was in all; with `energy`, the joules of each."""
        self._age(window_s, costs)
        counted_exits, counted_c0_s, counted_joules = 0, 0.0, 0.0
        for key, cost in costs.items():
            place = self.places.get(key)
            if place is not None and place.seen:
                place.exits_count += cost[0]
                place.c0_s += cost[1]
                counted_exits += cost[0]
                counted_c0_s += cost[1]
                if energy is not None:
                    place.joules += energy.get(key, 0.0)
                    counted_joules += energy.get(key, 0.0)
        self.rest.exits_count += max(0, exits_count - counted_exits)
        self.rest.c0_s += max(0.0, c0_s - counted_c0_s)
        self.rest.joules += max(0.0, joules - counted_joules)
        self._give_places()

    def read(self) -> None:
        """A reader was shown every series: keys that are new count from here."""
        self._ended.clear()
        for place in self.places.values():
            place.seen = True
            place.read_count, place.read_c0_s = place.exits_count, place.c0_s
            place.read_joules = place.joules

    def _age(self, window_s: float, costs: Mapping[K, Cost]) -> None:
        """Costs fade by half a minute; a key that did nothing for long enough loses its place."""
        fade = exp(-log(2.0) * window_s / _HALF_LIFE_S)
        exits = sum(cost[0] for cost in costs.values()) or 1
        c0_s = sum(cost[1] for cost in costs.values()) or 1.0
        for known in self._known.values():
            known.cost *= fade
            known.idle_for_s += window_s
        for key, cost in costs.items():
            known = self._known.setdefault(key, _CostSeen())
            known.idle_for_s = 0.0
            # A second in C0 and the waking itself both cost: half of the score is the share of each.
            known.cost += (1.0 - fade) * (cost[0] / exits + cost[1] / c0_s) / 2.0
        for key in [key for key, known in self._known.items() if known.idle_for_s >= self.stale_s]:
            del self._known[key]
            self._end(key)

    def _end(self, key: K) -> None:
        """A series ends: what it counted since it was read last would be in none."""
        place = self.places.pop(key, None)
        if place is not None:
            self.rest.exits_count += place.exits_count - place.read_count
            self.rest.c0_s += place.c0_s - place.read_c0_s
            self.rest.joules += place.joules - place.read_joules
            if place.seen:
                self._ended[key] = replace(
                    place, exits_count=place.read_count, c0_s=place.read_c0_s, joules=place.read_joules
                )

    def _begin(self, key: K) -> None:
        self.places[key] = self._ended.pop(key, RankedCounters())

    def _order(self, key: K) -> tuple[float, Any]:
        return -self._known[key].cost, key

    def _give_places(self) -> None:
        waiting = sorted((key for key in self._known if key not in self.places), key=self._order)
        for key in waiting:
            if len(self.places) < self.top:
                self._begin(key)
                continue
            cheapest = min(self.places, key=lambda place: self._known[place].cost, default=None)
            if cheapest is None or self._known[key].cost <= _CLEARLY * self._known[cheapest].cost:
                break
            self._end(cheapest)
            self._begin(key)
        left = [key for key in waiting if key not in self.places]
        for key in left[_REMEMBERED * max(1, self.top) :]:
            del self._known[key]
