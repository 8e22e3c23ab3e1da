# SPDX-License-Identifier: Apache-2.0
"""Servers measured in rounds: each once a round, in another order each time, the others stopped meanwhile.

A neighbour that comes in the middle must not look like a release, as it would if one server came after the other.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from powerprof.errors import CapabilityError, Interrupted, PowerprofError, UsageError
from powerprof.experiment.measure import oslayer
from powerprof.experiment.measure.apparatus import Apparatus, Slot
from powerprof.experiment.measure.block import measure_block
from powerprof.experiment.measure.oslayer import OsRates
from powerprof.experiment.measure.paces import PaceWindow, pace_window, settings_in_force
from powerprof.experiment.measure.traced import trace_condition
from powerprof.experiment.records import Block
from powerprof.records import Window
from powerprof.workloads.definition import Value
from powerprof.workloads.reading import Case

# Statistics are recomputed ten seconds after tables were filled; a stopped server would do that in its own window.
START_S = 12.0
# PostgreSQL's background writer wakes five times a second until it has been once around its buffers, which it lets take
# two minutes (scan_whole_pool_milliseconds, bufmgr.c); then it sleeps for ten seconds at a time.
POSTGRESQL_START_S = 130.0
# Timers that ran out while it was stopped fire at once.
_WOKEN_S = 1.5


@dataclass
class Gathered:
    """What there is of one server so far."""

    blocks: list[Block] = field(default_factory=list)
    rates: list[OsRates] = field(default_factory=list)
    traced: list[PaceWindow] = field(default_factory=list)
    version: str | None = None
    error: str | None = None


def measure_rounds(
    apparatus: Apparatus,
    cases: Mapping[Value, Case],
    gathered: Mapping[Value, Gathered],
    baseline: list[Window],
    save: Callable[[], object],
) -> None:
    """The rounds that are missing, saving after each. A server that fails is noted and the others go on.

    Raises UsageError, CapabilityError.
    """
    options, say = apparatus.options, apparatus.say
    silent = all(case.server.kind == "postgresql" and case.load.kind in ("idle", "none") for case in cases.values())
    start_s = POSTGRESQL_START_S if silent else START_S
    say(f"letting {len(cases)} servers settle for {start_s:g} s")
    time.sleep(start_s)
    for number in range(options.pairs):
        missing = [value for value in cases if len(gathered[value].blocks) <= number and gathered[value].error is None]
        if not missing:
            continue
        random.Random(1000 * options.seed + number).shuffle(missing)  # noqa: S311 - an order, not a secret
        say(f"round {number + 1} of {options.pairs}: no server")
        baseline.append(_without(apparatus))
        for value in missing:
            say(f"round {number + 1} of {options.pairs}: {value}")
            try:
                _measure(apparatus, cases[value], gathered[value], number)
            except (UsageError, CapabilityError):
                raise
            except PowerprofError as error:
                gathered[value].error = error.message
        save()


def _without(apparatus: Apparatus) -> Window:
    """A window in which all servers are stopped."""
    apparatus.bench.hush()
    time.sleep(0.5)
    with apparatus.meter(()) as meter:
        return apparatus.complete(meter.measure(apparatus.options.window_s))


def _measure(apparatus: Apparatus, case: Case, gathered: Gathered, number: int) -> None:
    bench, options = apparatus.bench, apparatus.options
    server = bench.server(case)
    gathered.version = server.version
    bench.enter(case)
    time.sleep(_WOKEN_S)
    slot = Slot(number, "a", False, 1 + 1000 * options.seed + number)
    before = oslayer.read()
    block = apparatus.repeated(partial(measure_block, apparatus, case, slot), [case], slot)
    rates = oslayer.between(before, oslayer.read())
    if options.attribute_s is not None:
        in_force = settings_in_force(server)
        window = trace_condition(bench, case, "a", options.attribute_s, apparatus.say, apparatus.offer.rate_hz)
        if window.attribution.interrupted:
            # A trace that is cut short is kept by who shows it; here it would be one of several, and not as long.
            raise Interrupted("interrupted")
        family = "mariadb" if "mariadb" in server.version.lower() else server.login.family
        gathered.traced.append(pace_window(window, family, in_force))
    gathered.blocks.append(block)
    gathered.rates.append(rates)
