# SPDX-License-Identifier: Apache-2.0
"""Measure one block: start the load, let it run in, measure a window, and read the counters."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from powerprof.experiment import bench_data
from powerprof.experiment.apparatus import Apparatus, Slot
from powerprof.experiment.load import LoadFailed, LoadOrder, LoadResult, RunningLoad
from powerprof.experiment.load_clients import start_load
from powerprof.experiment.observers import CaseObservers
from powerprof.experiment.options import RAMP_S
from powerprof.experiment.records import Block, MemberShare, Slices, StormShare
from powerprof.measure.joined_windows import join_two_windows
from powerprof.measure.window import realtime_scheduling, wait_and_read
from powerprof.model.records import EnergyReading, ProcessTime, Window
from powerprof.system.process_stat import read_process_stat
from powerprof.workloads.reading import Case

if TYPE_CHECKING:
    from powerprof.database.base import Sql


# Time limit for the last queries, beyond the length of the window.
PATIENCE_S = 60.0
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
                    raise _explain_early_end(running, f"{case.qualified}: the client ended at once")
                meter.follow("client", running.pids)
                before = count()
                beside.start()
                start_s, answered = time.monotonic(), running.done()
                window = meter.measure(window_s)
                end_s, answered_then, outlasted = time.monotonic(), running.done(), running.alive()
                shares, storm = beside.finish(window.cpus)
                after = count()
                if not outlasted:
                    raise _explain_early_end(running, f"{case.qualified}: the client ended before the window did")
                result = running.finish(window_s + PATIENCE_S)
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


def _explain_early_end(running: RunningLoad, what: str) -> LoadFailed:
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
                result = running.finish(max(PATIENCE_S, 20 * apparatus.options.window_s))
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
