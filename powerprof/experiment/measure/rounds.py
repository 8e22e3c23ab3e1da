# SPDX-License-Identifier: Apache-2.0
"""The points of a sweep measured in rounds: each once a round, in another order each time.

What comes and goes meanwhile (a neighbour, a clock's frequency, a backup) must not look like a point's own, as it would
if one point came after the other. Servers that are not asked are stopped.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from powerprof.diagnosis import asking
from powerprof.diagnosis.collect import rows_of
from powerprof.diagnosis.evidence import Evidence, ThreadWakeups
from powerprof.diagnosis.periodic import known, settings_of
from powerprof.experiment.bench.dataset import schema_of
from powerprof.experiment.judge.functions import FunctionWindow, SampledWindow, function_window
from powerprof.experiment.loads import LoadFailed, LoadOrder, start_load
from powerprof.experiment.measure.block import Apparatus, Slot, measure_block
from powerprof.experiment.measure.plan import block_order, round_order
from powerprof.experiment.measure.traced import load_at, trace_condition
from powerprof.experiment.options import RAMP_S
from powerprof.experiment.records import Arm, Block
from powerprof.measure.sampling import interval
from powerprof.measure.window import wait_out
from powerprof.model.records import Estimate, OsRates, RunMetric, Window
from powerprof.model.text import Say, about
from powerprof.system.errors import CapabilityError, Interrupted, PowerprofError, UsageError
from powerprof.workloads.definition import Value
from powerprof.workloads.reading import Case

if TYPE_CHECKING:
    from powerprof.attribution.profile import OnCpuProfile
    from powerprof.database.clients.base import Server
    from powerprof.experiment.bench.servers import Bench
    from powerprof.experiment.records import TraceSummary
    from powerprof.tracing.captures import OnCpuCapture
    from powerprof.tracing.profile import OnCpuTracer


# How often each thread of a server wakes, over several traced windows, and which setting is known to change that.

WAKINGS = "server_wakings_hz"
EXITS = "server_exits_hz"


class ThreadPace(msgspec.Struct, frozen=True, kw_only=True):
    """The threads of one name in one window: how often they were woken, how many idle periods that ended, and the
    period where one of them is regular. `remedy` is the setting that is known to slow or end it."""

    thread: str
    wakings_hz: float | None
    exits_hz: float
    period_ms: float | None = None
    remedy: str = ""


class PaceWindow(msgspec.Struct, frozen=True, kw_only=True):
    """One traced window of a server."""

    window_s: float
    threads: list[ThreadPace]


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """A thread over all traced windows: one in which it did not wake counts as 0."""

    thread: str
    wakings: Estimate | None
    exits: Estimate
    period_ms: float | None = None
    remedy: str = ""


def settings_in_force(server: Server) -> dict[str, str]:
    """The settings that are known to change a thread's pace, as this server has them; empty where it is not asked."""
    if server.login.family == "postgresql":
        return {}
    with server.connect() as connection:
        return asking.variables(connection)


def pace_window(traced: TraceSummary, family: str, variables: Mapping[str, str]) -> PaceWindow:
    """What a traced window says of each thread, most woken first."""
    window_s = traced.attribution.window_s
    evidence = Evidence(version="", family=family, window_s=window_s, variables=dict(variables))
    by_name: dict[str, list[ThreadWakeups]] = defaultdict(list)
    for row in rows_of(traced.attribution):
        by_name[_label(row)].append(row)
    threads = [_pace(name, rows, evidence) for name, rows in by_name.items()]
    threads.sort(key=lambda thread: thread.wakings_hz or thread.exits_hz, reverse=True)
    return PaceWindow(window_s=window_s, threads=threads)


def _label(row: ThreadWakeups) -> str:
    """The server's own name of it; where it has none, that of a known thread with this stack, else the program's."""
    if row.name is not None:
        return row.name.removeprefix("thread/")
    periodic = known(row)
    return periodic.name if periodic else row.comm


def _pace(name: str, rows: Sequence[ThreadWakeups], evidence: Evidence) -> ThreadPace:
    counted = [row.wakings_hz for row in rows if row.wakings_hz is not None]
    regular = [row for row in rows if row.period_ms is not None]
    periodic = known(rows[0])
    return ThreadPace(
        thread=name,
        wakings_hz=sum(counted) if counted else None,
        exits_hz=sum(row.rate_hz for row in rows),
        period_ms=max(regular, key=lambda row: row.rate_hz).period_ms if regular else None,
        remedy="; ".join(settings_of(periodic, evidence)) if periodic else "",
    )


def paces(windows: Sequence[PaceWindow]) -> list[Pace]:
    """Each thread over the windows, most woken first."""
    by_name: dict[str, list[ThreadPace]] = defaultdict(list)
    for window in windows:
        for thread in window.threads:
            by_name[thread.thread].append(thread)
    rates = []
    for name, seen in by_name.items():
        absent = [0.0] * (len(windows) - len(seen))
        woken = [thread.wakings_hz for thread in seen if thread.wakings_hz is not None]
        regular = sorted(thread.period_ms for thread in seen if thread.period_ms is not None)
        rates.append(
            Pace(
                thread=name,
                wakings=_rate([*woken, *absent]) if woken else None,
                exits=_rate([*(thread.exits_hz for thread in seen), *absent]),
                # Where it was regular in one window by chance, it is not.
                period_ms=regular[len(regular) // 2] if 2 * len(regular) > len(windows) else None,
                remedy=seen[0].remedy,
            )
        )
    return sorted(rates, key=lambda thread: thread.wakings.mean if thread.wakings else thread.exits.mean, reverse=True)


def pace_metrics(windows: Sequence[PaceWindow]) -> list[RunMetric]:
    """What all threads of the server make together, a value a window."""
    if not windows:
        return []
    woken = [sum(thread.wakings_hz or 0.0 for thread in window.threads) for window in windows]
    ended = [sum(thread.exits_hz for thread in window.threads) for window in windows]
    return [
        RunMetric(name=name, unit="1/s", kind="measured", estimate=_rate(values), values=list(values))
        for name, values in ((WAKINGS, woken), (EXITS, ended))
    ]


def _rate(values: Sequence[float]) -> Estimate:
    """The mean with its interval: none of it below 0."""
    estimate = interval(values)
    return estimate if estimate.low is None else msgspec.structs.replace(estimate, low=max(0.0, estimate.low))


# Windows of two conditions in turns, in each of which the functions that the servers ran are sampled.

WINDOWS = 8
WINDOW_S = 1.5
# Ten samples for each that attribute takes: the windows are short, and none of their joules count. A prime: nothing
# runs in step with it.
_FREQUENCY_HZ = 997
_RUN_IN_S = 0.3
# More than a window and the sampler's start take: what is left is killed.
_LOAD_S = 30
# With the load's start and the sampler's.
SAMPLED_S = WINDOW_S + 2.0


def sample_functions(
    bench: Bench, cases: Sequence[Case], rate_hz: float | None, seed: int, say: Say
) -> list[SampledWindow]:
    """WINDOWS windows of each condition in pairs of random order. Raises CapabilityError, PowerprofError."""
    sampled = []
    for pair in block_order(WINDOWS, seed):
        sampled += [_window(bench, cases[0 if arm == "a" else 1], arm, rate_hz, say) for arm in pair]
    return sampled


def _window(bench: Bench, case: Case, arm: Arm, rate_hz: float | None, say: Say) -> SampledWindow:
    bench.enter(case)
    with _sampler(bench, case, say) as tracer:
        with load_at(bench, case, rate_hz):
            time.sleep(_RUN_IN_S)
            capture = tracer.measure(WINDOW_S)
        profile = _profile(capture)
    bench.leave(case)
    return SampledWindow(arm, profile.window_s, profile.functions)


def sample_window(bench: Bench, case: Case, rate_hz: float | None, seed: int, say: Say) -> OnCpuProfile:
    """WINDOW_S of a condition under its load, as fast as it goes (`rate_hz` None) or at that rate.

    Raises CapabilityError, PowerprofError, LoadFailed where the client ended within the window.
    """
    bench.enter(case)
    with _sampler(bench, case, say) as tracer:
        running = start_load(case, bench.context(case), LoadOrder(duration_s=_LOAD_S, rate_hz=rate_hz, seed=seed))
        try:
            wait_out((), RAMP_S)
            capture = tracer.measure(WINDOW_S)
            if not running.alive():
                raise LoadFailed(f"{case.qualified}: the client ended before the samples did")
        finally:
            # Stacks are named without it: that takes CPU time, which the clients would not leave.
            running.kill()
        profile = _profile(capture)
    bench.leave(case)
    return profile


def _sampler(bench: Bench, case: Case, say: Say) -> OnCpuTracer:
    from powerprof.tracing.profile import OnCpuTracer

    say(f"{case.name}: sampling what the server runs")
    return OnCpuTracer(bench.pids(case), "cpu-clock", frequency_hz=_FREQUENCY_HZ)


def _profile(capture: OnCpuCapture) -> OnCpuProfile:
    from powerprof.attribution.profile import build_on_cpu_profile

    if capture.interrupted:
        # The signal ended the window and is spent: without this the windows that are left would still be measured.
        raise Interrupted("interrupted")
    return build_on_cpu_profile(capture, server_names={})


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
