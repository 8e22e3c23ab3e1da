# SPDX-License-Identifier: Apache-2.0
"""Measure one block: start the load, let it run in, measure a window, and read the counters."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec.structs import replace

from powerprof.experiment import bench_data
from powerprof.experiment.bench import Bench
from powerprof.experiment.load import LoadFailed, LoadOrder, LoadResult, RunningLoad
from powerprof.experiment.load_clients import start_load
from powerprof.experiment.observers import CaseObservers
from powerprof.experiment.options import RAMP_S, ExperimentOptions
from powerprof.experiment.plan import Offer, block_order
from powerprof.experiment.records import Arm, Block, MemberShare, Slices, StormShare
from powerprof.experiment.sysbench import GatedLoad, Tally, is_gate_supported
from powerprof.measure.joined_windows import join_two_windows, join_windows
from powerprof.measure.sampling import WindowMeter
from powerprof.measure.window import Meters, realtime_scheduling, wait_and_read
from powerprof.model.records import EnergyReading, Note, ProcessTime, Window
from powerprof.model.text import Say
from powerprof.system.errors import Retryable
from powerprof.system.process_stat import read_process_stat
from powerprof.workloads.reading import Case

if TYPE_CHECKING:
    from powerprof.database.base import Sql


# The equipment of an experiment under load, and the repetition of failed blocks.

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
        return WindowMeter(meters=self.meters, groups=wanted, residency_source=self.options.residency_source)

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


# Time limit for the last queries, beyond the length of the window.
_PATIENCE_S = 60.0
# Length of the load beyond the window, and its growth with each further attempt. On a busy host the window can start
# late, and it must not outlast the load.
_TAIL_S, _LONGER = 0.15, 8
_FAULTS = "minor_faults"
_DONE = "done"


def measure_block(apparatus: Apparatus, case: Case, slot: Slot, attempts: int) -> Block:
    """Measure one block. Raise Retryable if the client or the server failed."""
    bench = apparatus.bench
    bench.enter(case)
    with bench.connect(case) as control:
        measure = _measure_work if apparatus.offer.design == "work" else _measure_at_rate
        block = measure(
            apparatus, case, slot, attempts, counter_reader(control, bench.server(case).pid, case.load.counted)
        )
        with bench.quick_disks(case):
            bench_data.check_data(control, case.qualified, case.load.checks)
    bench.leave(case)
    return block


def counter_reader(control: Sql, pid: int | None, counted: str | None = None) -> Callable[[], dict[str, int]]:
    """Return a reader of the server's counters, its page faults, and the count of the workload's own statement."""

    def count() -> dict[str, int]:
        faults = count_minor_faults(pid)
        own = {} if counted is None else {_DONE: bench_data.read_done(control, counted)}
        return {**bench_data.read_counters(control), **({} if faults is None else {_FAULTS: faults}), **own}

    return count


def count_minor_faults(pid: int | None) -> int | None:
    """Return the minor page faults of a process with its ended threads; None if unknown."""
    stat = read_process_stat(pid) if pid else None
    return None if stat is None else stat.minor_faults


def _measure_at_rate(
    apparatus: Apparatus, case: Case, slot: Slot, attempts: int, count: Callable[[], dict[str, int]]
) -> Block:
    """Measure a window within a load of constant rate."""
    window_s = apparatus.options.window_s
    lasts_s = math.ceil(RAMP_S + window_s + _TAIL_S * _LONGER ** (attempts - 1))
    order = LoadOrder(duration_s=lasts_s, rate_hz=apparatus.offer.rate_hz, seed=slot.seed)
    with apparatus.meter(apparatus.bench.pids(case)) as meter, CaseObservers(apparatus.bench, case) as beside:
        # Open the counters before the load: on a busy host the kernel takes a second and more for perf's counters.
        meter.open()
        with realtime_scheduling():
            running = start_load(case, apparatus.bench.context(case), order)
            try:
                wait_and_read((), RAMP_S)
                if not running.alive():
                    raise _early_end(running, f"{case.qualified}: the client ended at once")
                meter.follow("client", running.pids)
                before = count()
                beside.start()
                start_s, answered = time.monotonic(), running.done()
                window = meter.measure(window_s)
                end_s, answered_then, outlasted = time.monotonic(), running.done(), running.alive()
                shares, storm = beside.finish(window.cpus)
                after = count()
                if not outlasted:
                    raise _early_end(running, f"{case.qualified}: the client ended before the window did")
                result = running.finish(window_s + _PATIENCE_S)
            finally:
                running.kill()
    refuse_errors(case, result)
    moved = bench_data.subtract_counters(before, after)
    done = moved.pop(_DONE, None)
    if done is None:
        own = result.between(start_s, end_s)
        if answered is not None and answered_then is not None:
            own = answered_then - answered
        done = bench_data.count_queries(moved, transactions=case.load.transaction) if own is None else own
    bench_data.check_counters(case.qualified, case.condition.counters, moved, done)
    return build_block(
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


def _early_end(running: RunningLoad, what: str) -> LoadFailed:
    """Return the error for a client that ended too soon. Raise the client's own error if it has one."""
    running.finish(0.1)
    return LoadFailed(what)


def _measure_work(
    apparatus: Apparatus, case: Case, slot: Slot, attempts: int, count: Callable[[], dict[str, int]]
) -> Block:
    """Measure a window of equal work, from its start to the usual end of the slower condition; the rest is idle."""
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
    window = add_client_time(window, result.client_cpu_s)
    refuse_errors(case, result)
    moved = bench_data.subtract_counters(before, after)
    bench_data.check_counters(
        case.qualified, case.condition.counters, moved, result.queries or bench_data.count_queries(moved)
    )
    return build_block(
        apparatus,
        slot,
        attempts,
        window,
        result,
        moved,
        # All of the client's statements are in the window, so its own count is exact. The server's count is off by a
        # COM_QUIT shortly before or after.
        queries=result.queries or bench_data.count_queries(moved),
        solution_s=solution_s,
        solution_energy=solution.energy,
    )


def refuse_errors(case: Case, result: LoadResult) -> None:
    """Raise LoadFailed for failed statements. Transactions that a deadlock ended were repeated and do not count."""
    if result.errors and not case.load.transaction and case.load.kind != "tpcc":
        raise LoadFailed(f"{case.qualified}: {result.errors} queries failed")


def add_client_time(window: Window, cpu_s: float | None) -> Window:
    """Add the CPU time of a client that ended within the window, as the kernel reported it to wait()."""
    import msgspec

    if cpu_s is None or not window.window_s or not window.cpus:
        return window
    share = 100 * cpu_s / (window.window_s * window.cpus)
    client = ProcessTime(name="client", cpu_s=cpu_s, percent=share)
    return msgspec.structs.replace(window, processes=[*window.processes, client])


def build_block(
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
    """Return the record of a block; `moved` is the change of each counter.

    Raises LoadFailed if no query was finished.
    """
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
        rows_examined=None if queries is None else bench_data.count_rows(moved),
        minor_faults_count=status.pop(_FAULTS, None),
        status=status,
        members=list(members),
        storm=storm,
        slices=slices,
    )


# Alternating pairs. CPU time on a shared host scatters with the load of neighbours and the CPU frequency, which change
# within seconds. Conditions that alternate faster than that meet the same changes. Both clients stay connected and one
# of them sleeps. Each turn is a separate window, opened before the first statement and closed after the last answer, so
# no statement is cut. The turns of a condition are joined into the window that is saved.

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
    load.shut(_PATIENCE_S)


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
