# SPDX-License-Identifier: Apache-2.0
"""Measure alternating pairs.

CPU time on a shared host scatters with the load of neighbours and the CPU frequency, which change within seconds.
Conditions that alternate faster than that meet the same changes. Both clients stay connected and one of them sleeps.
Each turn is a separate window, opened before the first statement and closed after the last answer, so no statement is
cut. The turns of a condition are joined into the window that is saved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import msgspec
from msgspec.structs import replace

from powerprof.experiment import bench_data
from powerprof.experiment.apparatus import Apparatus, Slot
from powerprof.experiment.bench import Bench
from powerprof.experiment.block import PATIENCE_S, build_block, counter_reader
from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.plan import Offer, block_order
from powerprof.experiment.records import Arm, Block
from powerprof.experiment.sysbench_gate import GatedLoad, Tally, is_gate_supported
from powerprof.measure.joined_windows import join_windows
from powerprof.measure.sampling import WindowMeter
from powerprof.measure.window import realtime_scheduling, wait_and_read
from powerprof.model.records import Window
from powerprof.workloads.reading import Case

# The wait for the last answer weighs little if a turn has this many statements.
_STATEMENTS_EACH_TURN = 10
_SWITCHED_TURN_S = 0.5
_SETTLE_S = 0.02


def choose_turn_length(
    bench: Bench, cases: Sequence[Case], offer: Offer, options: ExperimentOptions, quick_meters: bool
) -> float | None:
    """Return the length of a turn in s; None if the conditions cannot alternate within a window.

    They can if they have the same statement rate and the same global settings: changing settings twice a second is
    another experiment. Separate servers are stopped and continued, so their turns are longer: timers that expire while
    a server is stopped fire at once. Slow meters cannot separate turns.
    """
    if not options.turn_s or offer.design != "rate" or not offer.rate_hz or not is_gate_supported():
        return None
    if not quick_meters or options.residency_source != "cpuidle" or not bench.switchable(cases):
        return None
    for case in cases:
        own = case.condition
        definition = case.workload.definition
        if (
            case.load.kind != "statements"
            or definition.storm
            or definition.slices_s
            or own.enter
            or own.leave
            or own.host
        ):
            return None
    if cases[0].server.set_global != cases[1].server.set_global:
        return None
    shortest_s = options.turn_s if bench.shared(cases) else max(options.turn_s, _SWITCHED_TURN_S)
    length_s = max(shortest_s, _STATEMENTS_EACH_TURN / offer.rate_hz)
    return length_s if 2 * length_s <= options.window_s else None


class _TurnSide(msgspec.Struct):
    """One condition of an alternating pair: its client and the windows of its turns."""

    slot: Slot
    case: Case
    load: GatedLoad
    meter: WindowMeter
    count: Callable[[], dict[str, int]]
    start: Tally
    windows: list[Window] = msgspec.field(default_factory=list)
    moved: list[dict[str, int]] = msgspec.field(default_factory=list)


def measure_alternating(
    apparatus: Apparatus, cases: Sequence[Case], slots: Sequence[Slot], attempts: int, turn_s: float
) -> list[Block]:
    """Measure an alternating pair; return its blocks in the order of the slots.

    Raises Retryable if a client or the server failed.
    """
    bench = apparatus.bench
    switched = not bench.shared(cases)
    with ExitStack() as stack:
        sides: dict[Arm, _TurnSide] = {}
        for slot in slots:
            side = _open_side(stack, apparatus, cases[0 if slot.arm == "a" else 1], slot, turn_s)
            sides[slot.arm] = side
        # The effect of a reading on the counters, from the server that is awake.
        own = bench_data.subtract_counters(side.count(), side.count())
        stack.enter_context(realtime_scheduling())
        for pair in block_order(round(apparatus.options.window_s / turn_s), slots[0].seed):
            for arm in pair:
                side = sides[arm]
                if switched:
                    bench.enter(side.case)
                    time.sleep(_SETTLE_S)
                before = side.count()
                side.meter.open_window()
                _run_turn(side.load, turn_s)
                side.windows.append(side.meter.close_window())
                moved = bench_data.subtract_counters(before, side.count())
                side.moved.append({name: max(0, value - own.get(name, 0)) for name, value in moved.items()})
    return [_join_turns(apparatus, sides[slot.arm], attempts) for slot in slots]


def _open_side(stack: ExitStack, apparatus: Apparatus, case: Case, slot: Slot, turn_s: float) -> _TurnSide:
    """Connect the client of a side and run it in for one turn that is in no figure."""
    apparatus.bench.enter(case)  # a stopped server accepts no connection
    control = stack.enter_context(apparatus.bench.connect(case))
    context = apparatus.bench.context(case)
    directory = context.directory / slot.arm
    directory.mkdir(mode=0o711, exist_ok=True)  # the client can run as another account with files of its own
    load = stack.enter_context(
        GatedLoad(
            case.load,
            case.load_statements(context.folder),
            replace(context, directory=directory),
            apparatus.offer.rate_hz or 1.0,
            slot.seed,
        )
    )
    meter = stack.enter_context(apparatus.meter(apparatus.bench.pids(case), load.pids))
    count = counter_reader(control, apparatus.bench.server(case).pid)
    _run_turn(load, turn_s)
    return _TurnSide(slot, case, load, meter, count, load.tally())


def _run_turn(load: GatedLoad, turn_s: float) -> None:
    load.open()
    wait_and_read((), turn_s)
    load.shut(PATIENCE_S)


def _join_turns(apparatus: Apparatus, side: _TurnSide, attempts: int) -> Block:
    """Join all turns of a side into one block."""
    result = side.load.tally().since(side.start)
    bench_data.check_counters(
        side.case.qualified, side.case.condition.counters, _sum_counters(side.moved), result.queries
    )
    return build_block(
        apparatus,
        side.slot,
        attempts,
        apparatus.complete(join_windows(side.windows)),
        result,
        _sum_counters(side.moved),
        queries=result.queries,
    )


def _sum_counters(moved: Sequence[dict[str, int]]) -> dict[str, int]:
    return {name: sum(counters.get(name, 0) for counters in moved) for name in moved[0]}
