# SPDX-License-Identifier: Apache-2.0
"""One window of one condition: the load started, a moment of running in, the window, the counts."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from powerprof.experiment import bench_data
from powerprof.experiment.bench import Bench
from powerprof.experiment.load import LoadFailed, LoadOrder, LoadResult, RunningLoad
from powerprof.experiment.load_clients import start_load
from powerprof.experiment.observers import CaseObservers
from powerprof.experiment.options import RAMP_S, ExperimentOptions
from powerprof.experiment.plan import Offer, block_order
from powerprof.experiment.records import Arm, Block, MemberShare, Slices, StormShare
from powerprof.experiment.sysbench import GatedLoad, Tally, is_possible
from powerprof.measure.clock import Meters
from powerprof.measure.sampling import WindowMeter, join_two_windows, join_windows
from powerprof.measure.window import realtime_scheduling, wait_and_read
from powerprof.model.records import EnergyReading, Note, ProcessTime, Window
from powerprof.model.text import Say
from powerprof.system.errors import Retryable
from powerprof.system.tasks import process_stat
from powerprof.workloads.reading import Case

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql


# What an experiment under load measures with, and what it does when a part of that fails.

T = TypeVar("T")

_ATTEMPTS = 3
# An experiment whose blocks fail again and again has no answer to give.
_MOST_FAILURES = 10
_APPARATUS_SETTLE_S = 0.5
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
        time.sleep(_APPARATUS_SETTLE_S)
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


# How long a query that was started in the window may take to end, beyond the window's own length.
_PATIENCE_S = 60.0
# How long a client goes on beyond the window, and how many times longer at each further attempt: on a busy host we may
# be late, and no window outlasts its client.
_TAIL_S, _LONGER = 0.15, 8
_FAULTS = "minor_faults"
_DONE = "done"


def measure_block(apparatus: Apparatus, case: Case, slot: Slot, attempts: int) -> Block:
    """Run one block. Raises Retryable where client or server failed."""
    bench = apparatus.bench
    bench.enter(case)
    with bench.connect(case) as control:
        measure = _work if apparatus.offer.design == "work" else _rate
        block = measure(apparatus, case, slot, attempts, counting(control, bench.server(case).pid, case.load.counted))
        with bench.quick_disks(case):
            bench_data.check_data(control, case.qualified, case.load.checks)
    bench.leave(case)
    return block


def counting(control: Sql, pid: int | None, counted: str | None = None) -> Callable[[], dict[str, int]]:
    """What reads the server's counters, the page faults of its process, and what a statement says was done."""

    def count() -> dict[str, int]:
        faults = minor_faults(pid)
        own = {} if counted is None else {_DONE: bench_data.read_done(control, counted)}
        return {**bench_data.read_counters(control), **({} if faults is None else {_FAULTS: faults}), **own}

    return count


def minor_faults(pid: int | None) -> int | None:
    """Pages that a process, with the threads that have ended, was given without reading; None where unknown."""
    stat = process_stat(pid) if pid else None
    return None if stat is None else stat.minor_faults


def _rate(apparatus: Apparatus, case: Case, slot: Slot, attempts: int, count: Callable[[], dict[str, int]]) -> Block:
    """The same rate for the same time: the window lies within the load."""
    window_s = apparatus.options.window_s
    lasts_s = math.ceil(RAMP_S + window_s + _TAIL_S * _LONGER ** (attempts - 1))
    order = LoadOrder(duration_s=lasts_s, rate_hz=apparatus.offer.rate_hz, seed=slot.seed)
    with apparatus.meter(apparatus.bench.pids(case)) as meter, CaseObservers(apparatus.bench, case) as beside:
        # Before the load: on a busy host perf's counters take the kernel a second and more to open.
        meter.open()
        with realtime_scheduling():
            running = start_load(case, apparatus.bench.context(case), order)
            try:
                wait_and_read((), RAMP_S)
                if not running.alive():
                    raise _ended(running, f"{case.qualified}: the client ended at once")
                meter.follow("client", running.pids)
                before = count()
                beside.start()
                start_s, answered = time.monotonic(), running.done()
                window = meter.measure(window_s)
                end_s, answered_then, outlasted = time.monotonic(), running.done(), running.alive()
                shares, storm = beside.finish(window.cpus)
                after = count()
                if not outlasted:
                    raise _ended(running, f"{case.qualified}: the client ended before the window did")
                result = running.finish(window_s + _PATIENCE_S)
            finally:
                running.kill()
    refuse_errors(case, result)
    moved = bench_data.moved_between(before, after)
    done = moved.pop(_DONE, None)
    if done is None:
        own = result.between(start_s, end_s)
        if answered is not None and answered_then is not None:
            own = answered_then - answered
        done = bench_data.queries_in(moved, transactions=case.load.transaction) if own is None else own
    bench_data.check_counters(case.qualified, case.condition.counters, moved, done)
    return block_of(
        apparatus,
        slot,
        attempts,
        apparatus.complete(window),
        result,
        moved,
        queries=None if case.load.is_silent else done,
        members=shares,
        storm=storm,
        slices=beside.slices,
    )


def _ended(running: RunningLoad, what: str) -> LoadFailed:
    """What to raise where a client has ended too soon; raises what the client itself said, if it did."""
    running.finish(0.1)
    return LoadFailed(what)


def _work(apparatus: Apparatus, case: Case, slot: Slot, attempts: int, count: Callable[[], dict[str, int]]) -> Block:
    """The same work: the window is from its start to the longer one's usual end, the rest of it idle."""
    before = count()
    with apparatus.meter(apparatus.bench.pids(case)) as meter:
        meter.open_window()
        with realtime_scheduling():
            start_s = time.monotonic()
            running = start_load(
                case,
                apparatus.bench.context(case),
                LoadOrder(queries=apparatus.offer.queries, rate_hz=None, seed=slot.seed),
            )
            try:
                result = running.finish(max(_PATIENCE_S, 20 * apparatus.options.window_s))
            finally:
                running.kill()
            solution_s = time.monotonic() - start_s
            solution = apparatus.complete(meter.close_window())
        after = count()
        left_s = (apparatus.horizon_s or 0.0) - solution_s
        window = solution
        if left_s > 0.05:
            window = join_two_windows(solution, apparatus.complete(meter.measure(left_s)))
    window = with_client(window, result.client_cpu_s)
    refuse_errors(case, result)
    moved = bench_data.moved_between(before, after)
    bench_data.check_counters(
        case.qualified, case.condition.counters, moved, result.queries or bench_data.queries_in(moved)
    )
    return block_of(
        apparatus,
        slot,
        attempts,
        window,
        result,
        moved,
        # All of the client's statements lie in the window: its own count is exact, the server's is off by a COM_QUIT
        # that came a moment before or after.
        queries=result.queries or bench_data.queries_in(moved),
        solution_s=solution_s,
        solution_energy=solution.energy,
    )


def refuse_errors(case: Case, result: LoadResult) -> None:
    """Raises LoadFailed where statements failed; transactions that were ended by a deadlock were started again."""
    if result.errors and not case.load.transaction and case.load.kind != "tpcc":
        raise LoadFailed(f"{case.qualified}: {result.errors} queries failed")


def with_client(window: Window, cpu_s: float | None) -> Window:
    """The client ended within the window: its CPU time is what the kernel returned when it was waited for."""
    import msgspec

    if cpu_s is None or not window.window_s or not window.cpus:
        return window
    share = 100 * cpu_s / (window.window_s * window.cpus)
    client = ProcessTime(name="client", cpu_s=cpu_s, percent=share)
    return msgspec.structs.replace(window, processes=[*window.processes, client])


def block_of(
    apparatus: Apparatus,
    slot: Slot,
    attempts: int,
    window: Window,
    result: LoadResult,
    moved: Mapping[str, int],
    *,
    queries: int | None,
    members: Sequence[MemberShare] = (),
    storm: StormShare | None = None,
    slices: Slices | None = None,
    solution_s: float | None = None,
    solution_energy: Sequence[EnergyReading] = (),
) -> Block:
    """The record of a block; `moved` is how far the counters went. Raises LoadFailed where nothing was finished."""
    if queries == 0:
        raise LoadFailed("no query was finished in the window")
    status = dict(moved)
    return Block(
        pair=slot.pair,
        arm=slot.arm,
        dropped=slot.dropped,
        attempts_count=attempts,
        queries=queries,
        offered_hz=apparatus.offer.rate_hz,
        window=window,
        p50_ms=result.p50_ms,
        p95_ms=result.p95_ms,
        p99_ms=result.p99_ms,
        mean_ms=result.mean_ms,
        errors_count=result.errors,
        client_cpu_s=result.client_cpu_s,
        solution_s=solution_s,
        solution_energy=list(solution_energy),
        rows_examined=None if queries is None else bench_data.rows_in(moved),
        minor_faults_count=status.pop(_FAULTS, None),
        status=status,
        members=list(members),
        storm=storm,
        slices=slices,
    )


# A pair of windows whose two conditions take turns of a fraction of a second.
#
# What makes CPU time scatter on a shared host (a neighbour on the other thread of the core, the clock's frequency)
# comes and goes within seconds. Conditions measured one after the other meet different moments of it; turns that are
# shorter than it meet the same. Both clients stay connected, one of them sleeps; a turn is a window of its own, opened
# before the first statement is asked and closed when the last is answered, so that no statement is cut, and a
# condition's turns are put together into the window that is saved.

# A turn is long beside a statement, or the wait for the last one's answer weighs: this many are asked in it.
_STATEMENTS_EACH_TURN = 10
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
        own = bench_data.moved_between(side.count(), side.count())
        stack.enter_context(realtime_scheduling())
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
                moved = bench_data.moved_between(before, side.count())
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
    wait_and_read((), turn_s)
    load.shut(_PATIENCE_S)


def _block(apparatus: Apparatus, side: _TurnSide, attempts: int) -> Block:
    """All turns of a side as one block."""
    result = side.load.tally().since(side.start)
    bench_data.check_counters(side.case.qualified, side.case.condition.counters, _sum(side.moved), result.queries)
    return block_of(
        apparatus,
        side.slot,
        attempts,
        apparatus.complete(join_windows(side.windows)),
        result,
        _sum(side.moved),
        queries=result.queries,
    )


def _sum(moved: Sequence[dict[str, int]]) -> dict[str, int]:
    return {name: sum(counters.get(name, 0) for counters in moved) for name in moved[0]}
