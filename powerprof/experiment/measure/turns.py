# SPDX-License-Identifier: Apache-2.0
"""A pair of windows whose two conditions take turns of a fraction of a second.

What makes CPU time scatter on a shared host (a neighbour on the other thread of the core, the clock's frequency) comes
and goes within seconds. Conditions measured one after the other meet different moments of it; turns that are shorter
than it meet the same. Both clients stay connected, one of them sleeps; a turn is a window of its own, opened before the
first statement is asked and closed when the last is answered, so that no statement is cut, and a condition's turns are
put together into the window that is saved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from powerprof.experiment.bench import plans
from powerprof.experiment.loads.gated import GatedLoad, Tally, is_possible
from powerprof.experiment.measure.apparatus import Apparatus, Slot
from powerprof.experiment.measure.block import block_of, counting
from powerprof.experiment.measure.order import block_order
from powerprof.windows.joined import joined_all
from powerprof.windows.punctual import punctual
from powerprof.windows.runner import wait_out

if TYPE_CHECKING:
    from powerprof.experiment.bench.servers import Bench
    from powerprof.experiment.measure.calibration import Offer
    from powerprof.experiment.options import ExperimentOptions
    from powerprof.experiment.records import Arm, Block
    from powerprof.records import Window
    from powerprof.windows.sampling import WindowMeter
    from powerprof.workloads.reading import Case

# A turn is long beside a statement, or the wait for the last one's answer weighs: this many are asked in it.
_STATEMENTS_EACH_TURN = 10
_PATIENCE_S = 60.0
_SWITCHED_TURN_S = 0.5
_SETTLE_S = 0.02


def turn_length_s(
    bench: Bench, cases: Sequence[Case], offer: Offer, options: ExperimentOptions, quick_meters: bool
) -> float | None:
    """How long a turn is to be; None where the conditions cannot take turns within a window.

    They can where the same rate of statements is asked with the same global settings: to change those twice a second
    is another experiment. Servers of their own are put to sleep and woken, for which turns are longer: what expires
    while one sleeps is caught up with at once. Meters that lag behind cannot tell one turn from the next.
    """
    if not options.turn_s or offer.design != "rate" or not offer.rate_hz or not is_possible():
        return None
    if not quick_meters or options.residency_source != "cpuidle" or not bench.switchable(cases):
        return None
    for case in cases:
        own = case.condition
        definition = case.workload.definition
        if case.load.kind != "statements" or definition.storm or definition.slices_s or own.enter or own.leave:
            return None
    if cases[0].server.set_global != cases[1].server.set_global:
        return None
    shortest_s = options.turn_s if bench.shared(cases) else max(options.turn_s, _SWITCHED_TURN_S)
    length_s = max(shortest_s, _STATEMENTS_EACH_TURN / offer.rate_hz)
    return length_s if 2 * length_s <= options.window_s else None


@dataclass
class _TurnSide:
    """One condition of the pair: its client, and what its turns gave."""

    slot: Slot
    case: Case
    load: GatedLoad
    meter: WindowMeter
    count: Callable[[], dict[str, int]]
    start: Tally
    windows: list[Window] = field(default_factory=list)
    moved: list[dict[str, int]] = field(default_factory=list)


def measure_alternating(
    apparatus: Apparatus, cases: Sequence[Case], slots: Sequence[Slot], attempts: int, turn_s: float
) -> list[Block]:
    """Run a pair; its blocks are in the order of the slots.

    Raises Retryable where a client or the server failed.
    """
    bench = apparatus.bench
    switched = not bench.shared(cases)
    with ExitStack() as stack:
        sides: dict[Arm, _TurnSide] = {}
        for slot in slots:
            side = _side(stack, apparatus, cases[0 if slot.arm == "a" else 1], slot, turn_s)
            sides[slot.arm] = side
        # What a reading adds to the counters, asked of the server that is awake.
        own = plans.between(side.count(), side.count())
        stack.enter_context(punctual())
        for pair in block_order(round(apparatus.options.window_s / turn_s), slots[0].seed):
            for arm in pair:
                side = sides[arm]
                if switched:
                    bench.enter(side.case)
                    time.sleep(_SETTLE_S)
                before = side.count()
                side.meter.open_window()
                _turn(side.load, turn_s)
                side.windows.append(side.meter.close_window())
                moved = plans.between(before, side.count())
                side.moved.append({name: max(0, value - own.get(name, 0)) for name, value in moved.items()})
    return [_block(apparatus, sides[slot.arm], attempts) for slot in slots]


def _side(stack: ExitStack, apparatus: Apparatus, case: Case, slot: Slot, turn_s: float) -> _TurnSide:
    """A side with its client connected and run in: one turn is in no figure."""
    apparatus.bench.enter(case)  # a server that sleeps lets nobody connect
    control = stack.enter_context(apparatus.bench.connect(case))
    context = apparatus.bench.context(case)
    directory = context.directory / slot.arm
    directory.mkdir(mode=0o711, exist_ok=True)  # the client may be another account; its files are for it alone
    load = stack.enter_context(
        GatedLoad(
            case.load,
            case.load_statements(),
            replace(context, directory=directory),
            apparatus.offer.rate_hz or 1.0,
            slot.seed,
        )
    )
    meter = stack.enter_context(apparatus.meter(apparatus.bench.pids(case), load.pids))
    count = counting(control, apparatus.bench.server(case).pid)
    _turn(load, turn_s)
    return _TurnSide(slot, case, load, meter, count, load.tally())


def _turn(load: GatedLoad, turn_s: float) -> None:
    load.open()
    wait_out((), turn_s)
    load.shut(_PATIENCE_S)


def _block(apparatus: Apparatus, side: _TurnSide, attempts: int) -> Block:
    """All turns of a side as one block."""
    result = side.load.tally().since(side.start)
    plans.check_counters(side.case.qualified, side.case.condition.counters, _sum(side.moved), result.queries)
    return block_of(
        apparatus,
        side.slot,
        attempts,
        apparatus.complete(joined_all(side.windows)),
        result,
        _sum(side.moved),
        queries=result.queries,
    )


def _sum(moved: Sequence[dict[str, int]]) -> dict[str, int]:
    return {name: sum(counters.get(name, 0) for counters in moved) for name in moved[0]}
