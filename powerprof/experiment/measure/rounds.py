# SPDX-License-Identifier: Apache-2.0
"""The points of a sweep measured in rounds: each once a round, in another order each time.

What comes and goes meanwhile (a neighbour, a clock's frequency, a backup) must not look like a point's own, as it would
if one point came after the other. Servers that are not asked are stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from powerprof.errors import CapabilityError, Interrupted, PowerprofError, UsageError
from powerprof.experiment.bench.dataset import schema_of
from powerprof.experiment.judge.sweepfunctions import FunctionWindow, function_window
from powerprof.experiment.measure.apparatus import Apparatus, Slot
from powerprof.experiment.measure.block import measure_block
from powerprof.experiment.measure.order import round_order
from powerprof.experiment.measure.paces import PaceWindow, pace_window, settings_in_force
from powerprof.experiment.measure.sampled import sample_window
from powerprof.experiment.measure.traced import trace_condition
from powerprof.experiment.records import Block
from powerprof.records import Window
from powerprof.system_records import OsRates
from powerprof.text import about
from powerprof.windows.runner import wait_out
from powerprof.workloads.definition import Value
from powerprof.workloads.reading import Case

# Statistics are recomputed ten seconds after tables were filled; a stopped server would do that in its own window.
START_S = 12.0
# PostgreSQL's background writer wakes five times a second until it has been once around its buffers, which it lets take
# two minutes (scan_whole_pool_milliseconds, bufmgr.c); then it sleeps for ten seconds at a time.
POSTGRESQL_START_S = 130.0
# Timers that ran out while it was stopped fire at once.
_WOKEN_S = 1.5
_READY_S = 0.5


@dataclass
class Gathered:
    """What there is of one point so far. `first_round`: the number of its first round.

    A point that failed and is tried again later shares no round with those that were measured before.
    """

    blocks: list[Block] = field(default_factory=list)
    rates: list[OsRates] = field(default_factory=list)
    traced: list[PaceWindow] = field(default_factory=list)
    sampled: list[FunctionWindow] = field(default_factory=list)
    version: str | None = None
    error: str | None = None
    first_round: int = 0

    def cut(self, rounds: int) -> None:
        """Keep so many rounds."""
        for kept in (self.blocks, self.rates, self.traced, self.sampled):
            del kept[rounds:]


def complete_rounds(gathered: Mapping[Value, Gathered]) -> None:
    """Take away what was measured of a round that was cut short: its other points would be of another time.

    Points that are rounds behind, which failed, go on in rounds of their own.
    """
    most = max((len(had.blocks) for had in gathered.values()), default=0)
    abreast = [had for had in gathered.values() if len(had.blocks) >= most - 1 and had.error is None]
    rounds = min((len(had.blocks) for had in abreast), default=0)
    last = max((block.pair for had in gathered.values() for block in had.blocks), default=-1)
    for had in gathered.values():
        if any(had is one for one in abreast):
            had.cut(rounds)
        else:
            had.first_round = last + 1
        had.error = None


def measure_rounds(
    apparatus: Mapping[Value, Apparatus],
    cases: Mapping[Value, Case],
    gathered: Mapping[Value, Gathered],
    baseline: list[Window] | None,
    save: Callable[[], object],
) -> None:
    """The rounds that are missing, saving after each. A point that fails is noted and the others go on.

    `baseline`: each round begins with a window in which all servers are stopped, which goes there. Raises UsageError,
    CapabilityError, and PowerprofError where the one server of all points is lost.
    """
    one = next(iter(apparatus.values()))
    bench, options, say = one.bench, one.options, one.say
    values, shared = list(cases), baseline is None and bench.shared(list(cases.values()))
    start_s = _settle_s(cases, shared=shared)
    say(f"letting {'the server' if shared else f'{len(cases)} servers'} settle for {start_s:g} s")
    wait_out((), start_s)
    started_s, first = time.monotonic(), None
    for number, order in enumerate(round_order(len(values), options.pairs, options.seed)):
        missing = [
            value
            for value in (values[place] for place in order)
            if len(gathered[value].blocks) <= number and gathered[value].error is None
        ]
        if not missing:
            continue
        first = number if first is None else first
        left = to_go(number - first, options.pairs - first, time.monotonic() - started_s)
        label = f"round {number + 1} of {options.pairs}{left}"
        if baseline is not None:
            say(f"{label}: no server")
            baseline.append(_without(one))
        for value in missing:
            say(f"{label}: {value}")
            try:
                _measure(apparatus[value], cases[value], gathered[value], number, woken=not shared)
            except (UsageError, CapabilityError):
                raise
            except PowerprofError as error:
                gathered[value].error = error.message
                if shared:
                    bench.revive(cases[value])
        save()


def _settle_s(cases: Mapping[Value, Case], *, shared: bool) -> float:
    if all(case.server.kind == "postgresql" and case.load.is_silent for case in cases.values()):
        return POSTGRESQL_START_S
    filled = any(schema_of(case.workload) is not None for case in cases.values())
    return START_S if filled or not shared else _READY_S


def to_go(measured: int, of: int, passed_s: float) -> str:
    """How long the rest takes, where its rounds are as long as those that are measured. Empty before the first."""
    return f", {about(passed_s / measured * (of - measured))} to go" if measured else ""


def _without(apparatus: Apparatus) -> Window:
    """A window in which all servers are stopped."""
    apparatus.bench.hush()
    time.sleep(_READY_S)
    with apparatus.meter(()) as meter:
        return apparatus.complete(meter.measure(apparatus.options.window_s))


def _measure(apparatus: Apparatus, case: Case, gathered: Gathered, number: int, *, woken: bool) -> None:
    bench, options = apparatus.bench, apparatus.options
    server = bench.server(case)
    gathered.version = server.version
    bench.enter(case)
    if woken:
        time.sleep(_WOKEN_S)
    slot = Slot(gathered.first_round + number, "a", False, 1 + 1000 * options.seed + number)
    block = apparatus.repeated(partial(measure_block, apparatus, case, slot), [case], slot)
    if options.attribute_s is not None:
        in_force = settings_in_force(server)
        window = trace_condition(bench, case, "a", options.attribute_s, apparatus.say, apparatus.offer.rate_hz)
        if window.attribution.interrupted:
            # A trace that is cut short is kept by who shows it; here it would be one of several, and not as long.
            raise Interrupted("interrupted")
        family = "mariadb" if "mariadb" in server.version.lower() else server.login.family
        gathered.traced.append(pace_window(window, family, in_force))
    if options.on_cpu:
        profile = sample_window(bench, case, apparatus.offer.rate_hz, slot.seed, apparatus.say)
        gathered.sampled.append(function_window(profile.functions, profile.window_s))
    gathered.blocks.append(block)
    gathered.rates.append(block.window.system or OsRates())
