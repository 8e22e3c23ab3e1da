# SPDX-License-Identifier: Apache-2.0
"""One window of one condition: the load started, a moment of running in, the window, the counts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from powerprof.experiment.bench import plans
from powerprof.experiment.loads import LoadFailed, LoadOrder, LoadResult, RunningLoad, start_load
from powerprof.experiment.measure.apparatus import Apparatus, Slot
from powerprof.experiment.measure.observers import CaseObservers
from powerprof.experiment.options import RAMP_S
from powerprof.experiment.records import Block, MemberShare, Slices, StormShare
from powerprof.processes.stat import process_stat
from powerprof.records import EnergyReading, ProcessTime, Window
from powerprof.windows.joined import joined
from powerprof.windows.punctual import punctual
from powerprof.windows.runner import wait_out
from powerprof.workloads.reading import Case

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql

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
            plans.check_data(control, case.qualified, case.load.checks)
    bench.leave(case)
    return block


def counting(control: Sql, pid: int | None, counted: str | None = None) -> Callable[[], dict[str, int]]:
    """What reads the server's counters, the page faults of its process, and what a statement says was done."""

    def count() -> dict[str, int]:
        faults = minor_faults(pid)
        own = {} if counted is None else {_DONE: plans.done(control, counted)}
        return {**plans.counters(control), **({} if faults is None else {_FAULTS: faults}), **own}

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
        with punctual():
            running = start_load(case, apparatus.bench.context(case), order)
            try:
                wait_out((), RAMP_S)
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
    moved = plans.between(before, after)
    done = moved.pop(_DONE, None)
    if done is None:
        own = result.between(start_s, end_s)
        if answered is not None and answered_then is not None:
            own = answered_then - answered
        done = plans.queries_in(moved, transactions=case.load.transaction) if own is None else own
    plans.check_counters(case.qualified, case.condition.counters, moved, done)
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
        with punctual():
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
            window = joined(solution, apparatus.complete(meter.measure(left_s)))
    window = with_client(window, result.client_cpu_s)
    refuse_errors(case, result)
    moved = plans.between(before, after)
    plans.check_counters(case.qualified, case.condition.counters, moved, result.queries or plans.queries_in(moved))
    return block_of(
        apparatus,
        slot,
        attempts,
        window,
        result,
        moved,
        # All of the client's statements lie in the window: its own count is exact, the server's is off by a COM_QUIT
        # that came a moment before or after.
        queries=result.queries or plans.queries_in(moved),
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
        rows_examined=None if queries is None else plans.rows_in(moved),
        minor_faults_count=status.pop(_FAULTS, None),
        status=status,
        members=list(members),
        storm=storm,
        slices=slices,
    )
