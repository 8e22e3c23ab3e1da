# SPDX-License-Identifier: Apache-2.0
"""What an experiment under load measures with, and what it does when a part of that fails."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from powerprof.errors import Retryable
from powerprof.experiment.bench.servers import Bench
from powerprof.experiment.measure.calibration import Offer
from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.records import Arm
from powerprof.records import Note, Window
from powerprof.sources.base import Meters
from powerprof.text import Say
from powerprof.windows.sampling import WindowMeter
from powerprof.workloads.reading import Case

T = TypeVar("T")

_ATTEMPTS = 3
# An experiment whose blocks fail again and again has no answer to give.
_MOST_FAILURES = 10
_SETTLE_S = 0.5
_BASELINE_S = (0.5, 4.0)


@dataclass(frozen=True)
class Slot:
    """Which block this is, and how it is to be run."""

    pair: int
    arm: Arm
    dropped: bool
    seed: int


@dataclass
class Apparatus:
    """Servers that are up, meters, and what both conditions are asked for; `notes` are what failed on the way.

    `complete` adds to a window what is computed from it (the energy estimate). `horizon_s` is how long a window of
    equal work lasts.
    """

    bench: Bench
    options: ExperimentOptions
    offer: Offer
    meters: Meters | None
    complete: Callable[[Window], Window]
    say: Say
    notes: list[str | Note] = field(default_factory=list)
    horizon_s: float | None = None
    _failures: int = 0

    def meter(self, servers: Sequence[int], clients: Sequence[int] = ()) -> WindowMeter:
        """What measures windows, with the CPU time of servers, clients and powerprof separately."""
        groups = {"server": list(servers), "client": list(clients), "powerprof": [os.getpid()]}
        wanted = {name: pids for name, pids in groups.items() if pids}
        return WindowMeter(meters=self.meters, groups=wanted, residency_source=self.options.residency_source)

    def baseline(self, what: str) -> Iterator[Window]:
        """Windows in which the servers are up and nobody asks them anything."""
        self.bench.rest()
        time.sleep(_SETTLE_S)
        shortest_s, longest_s = _BASELINE_S
        length_s = max(shortest_s, min(self.options.window_s, longest_s))
        with self.meter(self.bench.server_pids) as meter:
            for window in meter.repeat(self.options.baseline_windows, length_s, what, self.say):
                yield self.complete(window)

    def slots(self) -> list[Slot]:
        """The blocks of one condition by itself, those of the warm-up first."""
        warm_up, seed = self.options.warm_up_pairs, self.options.seed
        return [Slot(n, "a", n < warm_up, 1 + 1000 * seed + n) for n in range(warm_up + self.options.pairs)]

    def repeated(self, measure: Callable[[int], T], cases: Sequence[Case], slot: Slot) -> T:
        """What `measure` gives at its first, second or third attempt; the servers are looked after in between.

        Raises what the last attempt raised, and at once what is not Retryable.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return measure(attempt)
            except Retryable as error:
                self._failures += 1
                names = " and ".join(case.name for case in cases)
                self.notes.append(f"block {slot.pair}, {names}, attempt {attempt}: {error.message}")
                if attempt == _ATTEMPTS or self._failures > _MOST_FAILURES:
                    raise
                self.say(f"{error.message}: the block is repeated")
                for case in cases:
                    self.bench.revive(case)
        raise AssertionError("unreachable: the last attempt returns or raises")
