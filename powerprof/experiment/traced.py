# SPDX-License-Identifier: Apache-2.0
"""A traced window of a condition, all of its servers at once, and whose wake-ups they were."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from powerprof.diagnosis import asking
from powerprof.diagnosis.collect import rows_of
from powerprof.diagnosis.evidence import Evidence, ThreadWakeups
from powerprof.diagnosis.periodic import known, settings_of
from powerprof.diagnosis.rules_replication import role_of
from powerprof.experiment.load import LoadFailed, LoadOrder
from powerprof.experiment.load_clients import start_load
from powerprof.experiment.observers import CaseObservers
from powerprof.experiment.options import RAMP_S
from powerprof.experiment.plan import block_order
from powerprof.experiment.records import Arm, TraceSummary
from powerprof.experiment.verdict import SampledWindow
from powerprof.measure.sampling import interval
from powerprof.measure.window import wait_and_read
from powerprof.model.records import Estimate, RunMetric
from powerprof.model.text import Say
from powerprof.system.errors import Interrupted
from powerprof.workloads.reading import Case

if TYPE_CHECKING:
    from powerprof.attribution.profile import OnCpuProfile
    from powerprof.database.clients.base import Server
    from powerprof.experiment.bench import Bench
    from powerprof.model.attribution import Wakeup
    from powerprof.tracing.captures import OnCpuCapture
    from powerprof.tracing.profile import OnCpuTracer


# A storm that was active for less than this in the traced window is not what the other windows measured.
RAGED_PERCENT = 50.0
_ATTEMPTS = 3
_FRAMES = 10  # of a stack that is named

# Server, thread, whether it is one of replication.
Key = tuple[str, str, bool]


def trace_condition(
    bench: Bench, case: Case, arm: Arm, duration_s: float, say: Callable[[str], None], rate_hz: float | None = None
) -> TraceSummary:
    """Trace every server of `case` for so long, while its statements are asked at `rate_hz`, or its clients are idle.

    Loads that know no rate (mariadb-slap, commands) are left out: the servers are traced without clients. Where a storm
    was to rage and did not, it is traced again. Raises CapabilityError, PowerprofError.
    """
    return repeated_until_raging(lambda: _traced(bench, case, arm, duration_s, say, rate_hz), case.name, say)


def repeated_until_raging(trace: Callable[[], TraceSummary], name: str, say: Callable[[str], None]) -> TraceSummary:
    """The first window in which the storm was active, or has none to rage; the last of three where none did.

    A storm that cannot be started is tried once more: there are servers that back off from it.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        window = trace()
        storm = window.storm
        if storm is None or storm.raged_percent >= RAGED_PERCENT or (attempt > 1 and not storm.began):
            break
        if attempt < _ATTEMPTS:
            say(f"{name}: the storm was active {storm.raged_percent:.0f} % of the traced window: traced again")
    return window


def _traced(
    bench: Bench, case: Case, arm: Arm, duration_s: float, say: Callable[[str], None], rate_hz: float | None
) -> TraceSummary:

    from powerprof.attribution import attribute
    from powerprof.attribution.requests import AttributeRequest
    from powerprof.system.processes import Target

    bench.enter(case)
    members = {name: server.pid for name, server in bench.members(case).items() if server.pid is not None}

    def names() -> Mapping[int, str]:
        names: dict[int, str] = {}
        for server in bench.members(case).values():
            names.update(server.thread_names())
        return names

    pids = tuple(members.values())
    label = ", ".join(f"{name} ({pid})" for name, pid in members.items())
    with CaseObservers(bench, case) as beside, load_at(bench, case, rate_hz):
        beside.start()
        taken = attribute.trace_target(
            Target(pids, label, roots=pids), AttributeRequest(duration_s=duration_s), names, say
        )
        _, storm = beside.finish(os.cpu_count() or 1)
    bench.leave(case)
    say(f"unwinding {case.name}")
    return TraceSummary(arm=arm, members=members, attribution=attribute.analyse(taken), storm=storm)


@contextmanager
def load_at(bench: Bench, case: Case, rate_hz: float | None) -> Iterator[None]:
    """The condition's clients at work, or silent where they are to be, for as long as the context lasts."""
    from powerprof.experiment.load import LoadOrder
    from powerprof.experiment.load_clients import start_load
    from powerprof.experiment.sysbench import GatedLoad, is_possible

    context = bench.context(case)
    if case.load.is_silent:
        held = start_load(case, context, LoadOrder())
        try:
            yield
        finally:
            held.kill()
    elif case.load.kind == "statements" and rate_hz and is_possible():
        with GatedLoad(case.load, case.load_statements(), context, rate_hz, seed=1) as load:
            load.open()
            yield
    else:
        yield


def role(row: Wakeup) -> str | None:
    """The part that the row's thread plays in replication; None for none."""
    return role_of(row.thread.server_name, [frame.label for frame in row.stack])


def by_thread(window: TraceSummary) -> Counter[Key]:
    """Idle exits by (server, thread, of replication), most first."""
    counts: Counter[Key] = Counter()
    for row in window.attribution.wakeups:
        counts[_key(window, row)] += row.count
    return counts


def _key(window: TraceSummary, row: Wakeup) -> Key:
    server = next((name for name, pid in window.members.items() if pid == row.thread.pid), "?")
    part = role(row)
    label = row.thread.label
    if part is None and row.thread.server_name is None and any("handle_one_connection" in f.label for f in row.stack):
        label = "connections"
    return server, part or label, part is not None


def top_stack(window: TraceSummary, key: Key) -> list[str]:
    """The stack that most idle exits of these threads were blamed on, innermost first."""
    rows = [row for row in window.attribution.wakeups if row.stack and _key(window, row) == key]
    return [frame.label.partition("(")[0] for frame in rows[0].stack[:_FRAMES]] if rows else []


def replication_percent(a: TraceSummary, b: TraceSummary) -> float | None:
    """Of the idle exits/s that B has more than A: how many are blamed on threads of replication."""

    def rates(window: TraceSummary) -> tuple[float, float]:
        seconds = window.attribution.window_s
        counts = by_thread(window)
        own = sum(count for (_, _, of), count in counts.items() if of)
        return sum(counts.values()) / seconds, own / seconds

    (all_a, own_a), (all_b, own_b) = rates(a), rates(b)
    return 100.0 * (own_b - own_a) / (all_b - all_a) if all_b > all_a else None


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

SAMPLED_WINDOWS = 8
SAMPLED_WINDOW_S = 1.5
# Ten samples for each that attribute takes: the windows are short, and none of their joules count. A prime: nothing
# runs in step with it.
_FREQUENCY_HZ = 997
_RUN_IN_S = 0.3
# More than a window and the sampler's start take: what is left is killed.
_LOAD_S = 30
# With the load's start and the sampler's.
SAMPLED_S = SAMPLED_WINDOW_S + 2.0


def sample_functions(
    bench: Bench, cases: Sequence[Case], rate_hz: float | None, seed: int, say: Say
) -> list[SampledWindow]:
    """WINDOWS windows of each condition in pairs of random order. Raises CapabilityError, PowerprofError."""
    sampled = []
    for pair in block_order(SAMPLED_WINDOWS, seed):
        sampled += [_sample(bench, cases[0 if arm == "a" else 1], arm, rate_hz, say) for arm in pair]
    return sampled


def _sample(bench: Bench, case: Case, arm: Arm, rate_hz: float | None, say: Say) -> SampledWindow:
    bench.enter(case)
    with _sampler(bench, case, say) as tracer:
        with load_at(bench, case, rate_hz):
            time.sleep(_RUN_IN_S)
            capture = tracer.measure(SAMPLED_WINDOW_S)
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
            wait_and_read((), RAMP_S)
            capture = tracer.measure(SAMPLED_WINDOW_S)
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
