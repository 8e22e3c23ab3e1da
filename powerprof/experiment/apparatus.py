# SPDX-License-Identifier: Apache-2.0
"""Hold the equipment of an experiment under load, and repeat failed blocks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from powerprof.experiment.bench import Bench
from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.plan import Offer
from powerprof.experiment.records import Arm
from powerprof.measure.sampling import WindowMeter
from powerprof.measure.window import Meters
from powerprof.model.records import Note, Window
from powerprof.model.text import Say
from powerprof.system.errors import Retryable
from powerprof.workloads.reading import Case

T = TypeVar("T")

_ATTEMPTS = 3
# Give up after this many failures: the experiment has no answer.
_MOST_FAILURES = 10
_APPARATUS_SETTLE_S = 0.5


class Slot(msgspec.Struct, frozen=True):
    """The position of a block in an experiment."""

    pair: int
    arm: Arm
    dropped: bool
    seed: int


class Apparatus(msgspec.Struct):
    """The running servers, the meters and the load of an experiment; `notes` lists failed attempts.

    `complete` adds computed figures (the energy estimate) to a window. `horizon_s` is the length of a window of equal
    work.
    """

    bench: Bench
    options: ExperimentOptions
    offer: Offer
    meters: Meters | None
    complete: Callable[[Window], Window]
    say: Say
    notes: list[str | Note] = msgspec.field(default_factory=list)
    horizon_s: float | None = None
    _failures: int = 0

    def meter(self, servers: Sequence[int], clients: Sequence[int] = ()) -> WindowMeter:
        """Return a meter of windows with separate CPU time of servers, clients and powerprof."""
        groups = {"server": list(servers), "client": list(clients), "powerprof": [os.getpid()]}
        wanted = {name: pids for name, pids in groups.items() if pids}
        return WindowMeter(
            meters=self.meters, groups=wanted, residency_source=self.options.residency_source, life=self.bench.life
        )

    def baseline(self, what: str) -> Iterator[Window]:
        """Measure windows with running servers and no queries."""
        self.bench.rest()
        time.sleep(_APPARATUS_SETTLE_S)
        with self.meter(self.bench.server_pids) as meter:
            for window in meter.repeat(self.options.baseline_windows, self.options.baseline_s, what, self.say):
                yield self.complete(window)

    def slots(self) -> list[Slot]:
        """Return the slots of a single condition, the warm-up first."""
        warm_up, seed = self.options.warm_up_pairs, self.options.seed
        return [Slot(n, "a", n < warm_up, 1 + 1000 * seed + n) for n in range(warm_up + self.options.pairs)]

    def repeated(self, measure: Callable[[int], T], cases: Sequence[Case], slot: Slot) -> T:
        """Return the result of `measure` at its first, second or third attempt; restart servers between attempts.

        Raises the error of the last attempt, and at once an error that is not Retryable.
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
