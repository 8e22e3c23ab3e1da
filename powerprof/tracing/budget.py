# SPDX-License-Identifier: Apache-2.0
"""Keep the cost of tracing within a budget: decide when programs are attached, and for how long.

Below the budget they are always attached. Above it they are attached in *slices*, after random times without them, so
that periodic work cannot hide between slices. Each slice stands for a *stratum* of the window. The module does
arithmetic only: its owner reads the clocks, and attaches and detaches (`slices.py`).
"""

from __future__ import annotations

import math
import random
from collections import deque
from itertools import pairwise

import msgspec

# The budget is a share of the CPU time that the target uses, counted as this much of a CPU if it uses less. Tracing
# 1,000 idle exits a second takes 2 to 4 ms/s, so an idle server on a quiet host is traced completely.
LEAST_CPUS = 0.25
# A monitor reads and prints or serves each interval, which takes 5 to 10 ms/s whether it traces or not. A window of
# statements, calls, sleeps or samples takes 30 to 90 ms to place its programs and to read them. Slices do not lower
# such a cost: with the least above, they would be the answer for every quiet target.
LEAST_CPUS_WITH_FIXED_COST = 1.0
# The budget holds over any span of this length, exceeded by at most this share of it.
SPAN_S, EXCESS = 10.0, 0.25
# Above the budget, this share of a span's budget is spent before slices begin: short storms are traced completely.
_UNSLICED_SHARE = 0.15
# Slices are as long as their tracing costs twice as much as attaching and detaching, within these limits.
SHORTEST_S, _LONGEST_S = 0.1, 0.5
# The interval of looks at the cost. A storm is noticed sooner, because the kernel wakes the reader (`slices.py`).
LOOK_S = 1.0
_FIRST_LOOK_S = 0.25
# The cost of one attachment and one detachment with the edges of a slice, until they are measured.
SWITCH_COST_S = 0.016
# The price of fewer events is unknown.
_FEW_EVENTS = 100
# The weight of the latest switch in its expected cost.
_LEARNED = 0.5
# Moments that differ by less are the same.
_INSTANT_S = 1e-3
# Tracing without slices starts again below this share of the budget.
_CALM = 0.7
# The planned cost, as a share of the budget, and the cost that no span may exceed. The rest covers wrong predictions.
_PLANNED, _CERTAIN = 0.85, 1.16
# The largest cost of a slice, as a share of the budget of ten seconds of a target that uses nothing.
_MOST_OF_SPAN = 0.4
# The time between two slices, as a share of its mean: periodic work cannot stay between slices.
_SPREAD = (0.5, 1.5)


def base_of_cost_s(used_s: float, elapsed_s: float, least_cpus: float = LEAST_CPUS) -> float:
    """Return the CPU time of which the cost is a share, for a target that used this CPU time in `elapsed_s`.

    The bound holds over ten seconds, so a shorter window counts as ten seconds.
    """
    return max(used_s, least_cpus * max(elapsed_s, SPAN_S))


class Budget(msgspec.Struct, frozen=True):
    """The bound of a window: the cost per CPU second that the target uses, at least `least_cpus`."""

    share: float
    least_cpus: float = LEAST_CPUS

    def allowed_s(self, used_s: float, elapsed_s: float) -> float:
        """Return the permitted cost in seconds, for a target that used this CPU time in `elapsed_s`."""
        return self.share * max(used_s, self.least_cpus * elapsed_s)


class Reading(msgspec.Struct, frozen=True):
    """The clocks at one moment.

    Attributes:
        at_s: time since the start of the window.
        spent_s: powerprof's cost since then.
        programs_s: the part of it within programs, entries included.
        used_s: CPU time of the target since then.
        events: the kernel's count of events since then, on which the cost depends.
    """

    at_s: float
    spent_s: float
    programs_s: float
    used_s: float
    events: float


class Stratum(msgspec.Struct, frozen=True):
    """A part of the window and the time in it during which the programs were attached, in seconds of the window."""

    start_s: float
    end_s: float
    traced_from_s: float
    traced_to_s: float

    @property
    def weight(self) -> float:
        """The length of the stratum in lengths of its slice; 1 if all of it was traced."""
        return (self.end_s - self.start_s) / max(self.traced_to_s - self.traced_from_s, 1e-9)


class SliceController:
    """Decides when to trace. The owner calls `look` at `next_look_s`, and `switched` after it attached or detached."""

    def __init__(
        self,
        budget: Budget,
        seed: int,
        end_s: float = math.inf,
        look_s: float = LOOK_S,
        switch_cost_s: float = SWITCH_COST_S,
    ) -> None:
        """Begin a window with tracing.

        `end_s`: its end. `look_s`: the interval of looks while tracing costs less than the budget. `switch_cost_s`: the
        expected cost of an attachment and a detachment.
        """
        self._end_s, self._look_s = end_s, look_s
        self._budget, self._random = budget, random.Random(seed)  # noqa: S311  a sample
        self._readings: deque[Reading] = deque([Reading(0.0, 0.0, 0.0, 0.0, 0.0)])
        self._switch_costs_s = {True: switch_cost_s / 2, False: switch_cost_s / 2}
        self._price = 0.0
        self.is_tracing, self.is_sliced = True, False
        self.next_look_s = _FIRST_LOOK_S
        # The traced intervals: start, end, and whether they are slices.
        self._traced: list[tuple[float, float, bool]] = []
        self._on_s, self._on = 0.0, self._readings[0]
        self._length_s = self._slice_s = 0.0  # the length of the next slice, and its start
        self._before_switch = self._readings[0]

    def look(self, now: Reading) -> bool:
        """Return whether the programs are to be attached from now on."""
        self._readings.append(now)
        while self._readings[1].at_s <= now.at_s - SPAN_S:
            self._readings.popleft()
        self._before_switch = now
        if not self.is_tracing:
            return self._start(now)
        self._measure_price(now)
        return self._continue_slice(now) if self.is_sliced else self._continue(now)

    def switched(self, now: Reading) -> None:
        """Note that the owner attached or detached, at this cost."""
        self.is_tracing = not self.is_tracing
        cost_s, known_s = now.spent_s - self._before_switch.spent_s, self._switch_costs_s[self.is_tracing]
        self._switch_costs_s[self.is_tracing] = known_s + _LEARNED * (max(cost_s, 0.0) - known_s)
        self._readings.append(now)
        if self.is_tracing:
            self._on_s, self._on = now.at_s, now
            self.next_look_s = now.at_s + (self._length_s if self.is_sliced else _FIRST_LOOK_S)
            return
        # A monitor has no end and no strata. It would keep a day of slices.
        if math.isfinite(self._end_s):
            self._traced.append((self._on_s, self._before_switch.at_s, self.is_sliced))
        self.is_sliced = True
        self._plan(now)
        if self._is_calm(now):
            self.next_look_s = now.at_s

    def strata(self, end_s: float) -> list[Stratum]:
        """Return the parts of a window of this length.

        Half of the time between two slices belongs to each of them, and all of it to a slice next to a time that was
        traced completely.
        """
        traced = list(self._traced)
        if self.is_tracing:
            traced.append((self._on_s, end_s, self.is_sliced))
        bounds = [0.0]
        for (_, to_s, is_slice), (from_s, _, is_next_slice) in pairwise(traced):
            share = 0.5 + 0.5 * (is_slice - is_next_slice)
            bounds.append(min(to_s + share * (from_s - to_s), from_s))
        bounds.append(end_s)
        return [
            Stratum(begin_s, max(next_s, to_s), from_s, to_s)
            for (from_s, to_s, _), (begin_s, next_s) in zip(traced, pairwise(bounds), strict=True)
        ]

    @property
    def _switch_cost_s(self) -> float:
        return sum(self._switch_costs_s.values())

    def _measure_price(self, now: Reading) -> None:
        """Measure the cost of tracing per event, since the programs were attached."""
        events, spent_s = now.events - self._on.events, now.programs_s - self._on.programs_s
        if events >= _FEW_EVENTS and spent_s > 0:
            self._price = spent_s / events

    def _fits(self, now: Reading, cost_s: float) -> bool:
        """Return whether no span exceeds its budget with this further cost, if the target uses no more CPU time."""
        return all(
            now.spent_s - first.spent_s + cost_s <= _CERTAIN * self._budget.allowed_s(now.used_s - first.used_s, SPAN_S)
            for first in self._readings
        )

    def _rate(self, now: Reading) -> float:
        """Return the budget in seconds per second, by the use of the target in the last two seconds."""
        earlier = (reading for reading in reversed(self._readings) if reading.at_s <= now.at_s - 2 * LOOK_S)
        recent = next(earlier, self._readings[0])
        elapsed_s = now.at_s - recent.at_s
        return self._budget.allowed_s(now.used_s - recent.used_s, elapsed_s) / elapsed_s if elapsed_s else math.inf

    def _cost_rate(self, now: Reading) -> float:
        """Return the cost of tracing in seconds per second, by the latest rate of events."""
        rates = [0.0]
        # A load that grows counts at once. A load that ends counts as ended after a second.
        for ago_s in (SHORTEST_S, LOOK_S):
            recent = next((reading for reading in reversed(self._readings) if reading.at_s <= now.at_s - ago_s), None)
            if recent is not None:
                rates.append((now.events - recent.events) / (now.at_s - recent.at_s))
        return self._price * max(rates)

    def _continue(self, now: Reading) -> bool:
        """Return whether to trace on without slices."""
        look_s = _FIRST_LOOK_S if now.at_s < LOOK_S else self._look_s
        self.next_look_s = now.at_s + look_s
        cost_s, budget_s = self._cost_rate(now), self._rate(now)
        if cost_s <= budget_s:
            return self._fits(now, self._switch_cost_s)
        if self._fits(now, max(0.0, self._end_s - now.at_s) * cost_s + self._switch_cost_s):
            return True
        first = self._readings[0]
        is_storm = now.spent_s - first.spent_s > _UNSLICED_SHARE * SPAN_S * budget_s
        return not is_storm and self._fits(now, look_s * cost_s + self._switch_cost_s)

    def _continue_slice(self, now: Reading) -> bool:
        """Return whether a slice goes on. A load that grows ends it early."""
        left_s = self._on_s + self._length_s - now.at_s
        if left_s <= _INSTANT_S:
            return False
        self.next_look_s = now.at_s + left_s
        return self._fits(now, left_s * self._cost_rate(now) + self._switch_cost_s / 2)

    def _surprise_cost_s(self) -> float:
        """Return the cost until a load is noticed that jumps to the highest rate of the last ten seconds."""
        spans = pairwise(self._readings)
        rates = [(b.events - a.events) / (b.at_s - a.at_s) for a, b in spans if b.at_s - a.at_s >= SHORTEST_S / 2]
        return SHORTEST_S * self._price * max(rates, default=0.0)

    def _is_calm(self, now: Reading) -> bool:
        """Return whether tracing without slices costs little enough again."""
        return self._cost_rate(now) <= _CALM * self._rate(now)

    def _start(self, now: Reading) -> bool:
        """Return whether the next slice begins, or tracing without slices because the load has ended."""
        if self._is_calm(now):
            # A slice now would only delay the moment at which all of the load can be traced.
            cost_s = LOOK_S * self._cost_rate(now) + self._surprise_cost_s() + 2 * self._switch_cost_s
            self.is_sliced = not self._fits(now, cost_s)
            self.next_look_s = now.at_s + LOOK_S
            return not self.is_sliced
        if now.at_s < self._slice_s - _INSTANT_S:
            self.next_look_s = min(self._slice_s, now.at_s + LOOK_S)
            return False
        self._length_s, slice_cost_s = self._slice_of(now)
        if not self._fits(now, slice_cost_s + self._surprise_cost_s()):
            # The target or its load changed: later.
            self._slice_s = self.next_look_s = now.at_s + LOOK_S * self._random.uniform(*_SPREAD)
            return False
        return True

    def _slice_of(self, now: Reading) -> tuple[float, float]:
        """Return the length of a slice and its cost."""
        rate, switch_s = self._cost_rate(now), self._switch_cost_s
        longest_s = (_MOST_OF_SPAN * self._budget.allowed_s(0.0, SPAN_S) - switch_s) / rate if rate else _LONGEST_S
        length_s = 2 * switch_s / rate if rate else _LONGEST_S
        length_s = max(min(length_s, longest_s, _LONGEST_S), SHORTEST_S)
        return length_s, switch_s + rate * length_s

    def _plan(self, now: Reading) -> None:
        """Choose the random moment of the next slice."""
        self._length_s, cost_s = self._slice_of(now)
        spacing_s = max(cost_s / (_PLANNED * self._rate(now)), 2 * self._length_s)
        self._slice_s = now.at_s + (spacing_s - self._length_s) * self._random.uniform(*_SPREAD)
        self.next_look_s = min(self._slice_s, now.at_s + LOOK_S)
