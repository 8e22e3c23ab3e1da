# SPDX-License-Identifier: Apache-2.0
"""Start the servers of different start-up settings again for each repetition, and count the starts.

Starts of one setting differ (layout of memory, hash seeds), and windows of one start show none of it. So a repetition
is a start. Servers that settle too slowly are started once, and are then judged as saved runs
(`claims.are_starts_repeated`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from powerprof.experiment.bench import Bench
from powerprof.experiment.options import START_AGAIN_S, WARM_UP_S
from powerprof.experiment.plan import measure_capacity
from powerprof.experiment.traced import run_load
from powerprof.measure.window import wait_and_read
from powerprof.model.text import Say
from powerprof.workloads.reading import Case


class Starts(msgspec.Struct):
    """The starts of each server of an experiment; `count` is 0 if all conditions share one server."""

    bench: Bench
    cases: Sequence[Case]
    say: Say
    count: int = 0
    _has_begun: bool = False

    @property
    def are_repeated(self) -> bool:
        """Whether each repetition gets new starts."""
        return self.bench.restartable(self.cases)

    @property
    def seconds(self) -> float:
        """The duration of a new start in s; 0 if the servers are started once."""
        return START_AGAIN_S * self.are_repeated

    def begin_repetition(self) -> None:
        """Count the starts of the next repetition."""
        if not self.bench.shared(self.cases) and (self.are_repeated or not self._has_begun):
            self.count += 1
        self._has_begun = True

    def renew(self, case: Case, rate_hz: float | None) -> None:
        """Give a condition its start of this repetition, and load it for a second. Raise PowerprofError.

        `rate_hz` None means full speed.
        """
        if not self.are_repeated:
            return
        self.bench.take_start(case, self.say)
        self.bench.enter(case)
        if case.load.kind == "statements" and rate_hz:
            with run_load(self.bench, case, rate_hz):
                wait_and_read((), WARM_UP_S)
            self.bench.leave(case)
        elif case.load.kind != "command":
            measure_capacity(self.bench, case, WARM_UP_S)
