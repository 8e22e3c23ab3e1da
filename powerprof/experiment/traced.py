# SPDX-License-Identifier: Apache-2.0
"""Trace and sample windows of a condition: causes of wake-ups, paces of threads, functions of the server."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from powerprof.diagnosis import server_queries
from powerprof.diagnosis.evidence import Evidence, ThreadWakeups, list_thread_wakeups
from powerprof.diagnosis.rules_replication import find_role
from powerprof.diagnosis.thread_pace import find_periodic_thread, list_settings
from powerprof.experiment.load import LoadFailed, LoadOrder
from powerprof.experiment.load_clients import start_load
from powerprof.experiment.observers import CaseObservers
from powerprof.experiment.options import RAMP_S
from powerprof.experiment.plan import block_order
from powerprof.experiment.records import Arm, TraceSummary
from powerprof.experiment.verdict import SampledWindow
from powerprof.measure.means import interval
from powerprof.measure.window import wait_and_read
from powerprof.model.metrics import unit_of
from powerprof.model.records import Estimate, RunMetric
from powerprof.model.text import Say
from powerprof.system import signals
from powerprof.system.errors import Interrupted
from powerprof.workloads.reading import Case

if TYPE_CHECKING:
    from powerprof.attribution.profile import OnCpuProfile
    from powerprof.database.base import Server
    from powerprof.experiment.bench import Bench
    from powerprof.model.attribution import Wakeup
    from powerprof.tracing.captures import OnCpuCapture
    from powerprof.tracing.profile import OnCpuTracer


# With a storm active for less than this, the traced window differs from the others.
RAGED_PERCENT = 50.0
_ATTEMPTS = 3
_FRAMES = 10  # of a printed stack

# Server, thread, and whether the thread belongs to replication.
Key = tuple[str, str, bool]


def trace_condition(
    bench: Bench, case: Case, arm: Arm, duration_s: float, say: Callable[[str], None], rate_hz: float | None = None
) -> TraceSummary:
    """Trace all servers of `case` under its load at `rate_hz`, or with its idle clients.

    Loads without a rate (mariadb-slap, commands) are left out: the servers are traced without clients. A window is
    repeated if its storm was not active. Raises CapabilityError, PowerprofError.
    """
    return repeat_until_storm(lambda: _traced(bench, case, arm, duration_s, say, rate_hz), case.name, say)


def repeat_until_storm(trace: Callable[[], TraceSummary], name: str, say: Callable[[str], None]) -> TraceSummary:
    """Return the first of three windows with an active storm, or without a storm to expect.

    A storm that cannot be started is tried once more: some servers back off from it.
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
    from powerprof.system.targets import Target

    if signals.has_arrived():  # in an earlier traced window, which it ended
        raise signals.interruption()
    signals.release()  # Signals are held from the end of that window.
    bench.enter(case)
    members = {name: server.pid for name, server in bench.members(case).items() if server.pid is not None}

    def names() -> Mapping[int, str]:
        names: dict[int, str] = {}
        for server in bench.members(case).values():
            names.update(server.thread_names())
        return names

    pids = tuple(members.values())
    label = ", ".join(f"{name} ({pid})" for name, pid in members.items())
    with CaseObservers(bench, case) as beside, run_load(bench, case, rate_hz):
        beside.start()
        taken = attribute.trace_target(
            Target(pids, label, roots=pids), AttributeRequest(duration_s=duration_s), names, say
        )
        _, storm = beside.finish(os.cpu_count() or 1)
    bench.leave(case)
    say(f"unwinding {case.name}")
    return TraceSummary(arm=arm, members=members, attribution=attribute.analyse(taken), storm=storm)


@contextmanager
def run_load(bench: Bench, case: Case, rate_hz: float | None) -> Iterator[None]:
    """Run the condition's clients at this rate, or idle clients, while the context is open."""
    from powerprof.experiment.load import LoadOrder
    from powerprof.experiment.load_clients import start_load
    from powerprof.experiment.sysbench import GatedLoad, is_gate_supported

    context = bench.context(case)
    if case.load.is_silent:
        held = start_load(case, context, LoadOrder())
        try:
            yield
        finally:
            held.kill()
    elif case.load.kind == "statements" and rate_hz and is_gate_supported():
        with GatedLoad(case.load, case.load_statements(context.folder), context, rate_hz, seed=1) as load:
            load.open()
            yield
    else:
        yield


def count_by_thread(window: TraceSummary) -> Counter[Key]:
    """Return idle exits by (server, thread, of replication), the largest count first."""
    counts: Counter[Key] = Counter()
    for row in window.attribution.wakeups:
        counts[_key(window, row)] += row.count
    return counts


def _key(window: TraceSummary, row: Wakeup) -> Key:
    server = next((name for name, pid in window.members.items() if pid == row.thread.pid), "?")
    part = find_role(row.thread.server_name, [frame.label for frame in row.stack])
    label = row.thread.label
    if part is None and row.thread.server_name is None and any("handle_one_connection" in f.label for f in row.stack):
        label = "connections"
    return server, part or label, part is not None


def top_stack(window: TraceSummary, key: Key) -> list[str]:
    """Return the stack with most idle exits of these threads, innermost frame first."""
    rows = [row for row in window.attribution.wakeups if row.stack and _key(window, row) == key]
    return [frame.label.partition("(")[0] for frame in rows[0].stack[:_FRAMES]] if rows else []


def replication_percent(a: TraceSummary, b: TraceSummary) -> float | None:
    """Return the share of replication threads in the idle exits/s that B has more than A, in percent."""

    def rates(window: TraceSummary) -> tuple[float, float]:
        seconds = window.attribution.window_s
        counts = count_by_thread(window)
        own = sum(count for (_, _, of), count in counts.items() if of)
        return sum(counts.values()) / seconds, own / seconds

    (all_a, own_a), (all_b, own_b) = rates(a), rates(b)
    return 100.0 * (own_b - own_a) / (all_b - all_a) if all_b > all_a else None


# Wake-ups per thread of a server over several traced windows, and the settings that change them.

WAKINGS = "server_wakings_hz"
EXITS = "server_exits_hz"


class ThreadPace(msgspec.Struct, frozen=True, kw_only=True):
    """The threads of one name in one window. `remedy`: the setting that slows or stops them."""

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
    """A thread over all traced windows."""

    thread: str
    wakings: Estimate | None
    exits: Estimate
    period_ms: float | None = None
    remedy: str = ""


def read_pace_settings(server: Server) -> dict[str, str]:
    """Read the settings of this server that change the pace of threads; empty for PostgreSQL."""
    if server.login.family == "postgresql":
        return {}
    with server.connect() as connection:
        return server_queries.read_settings(connection)


def build_pace_window(traced: TraceSummary, family: str, variables: Mapping[str, str]) -> PaceWindow:
    """Return the threads of a traced window, most woken first."""
    window_s = traced.attribution.window_s
    evidence = Evidence(version="", family=family, window_s=window_s, variables=dict(variables))
    by_name: dict[str, list[ThreadWakeups]] = defaultdict(list)
    for row in list_thread_wakeups(traced.attribution):
        by_name[_label(row)].append(row)
    threads = [_pace(name, rows, evidence) for name, rows in by_name.items()]
    threads.sort(key=lambda thread: thread.wakings_hz or thread.exits_hz, reverse=True)
    return PaceWindow(window_s=window_s, threads=threads)


def _label(row: ThreadWakeups) -> str:
    """Return the server's own name of a thread, else that of a known thread with this stack, else its program's."""
    if row.name is not None:
        return row.name.removeprefix("thread/")
    periodic = find_periodic_thread(row)
    return periodic.name if periodic else row.comm


def _pace(name: str, rows: Sequence[ThreadWakeups], evidence: Evidence) -> ThreadPace:
    counted = [row.wakings_hz for row in rows if row.wakings_hz is not None]
    regular = [row for row in rows if row.period_ms is not None]
    periodic = find_periodic_thread(rows[0])
    return ThreadPace(
        thread=name,
        wakings_hz=sum(counted) if counted else None,
        exits_hz=sum(row.rate_hz for row in rows),
        period_ms=max(regular, key=lambda row: row.rate_hz).period_ms if regular else None,
        remedy="; ".join(list_settings(periodic, evidence)) if periodic else "",
    )


def summarise_paces(windows: Sequence[PaceWindow]) -> list[Pace]:
    """Return each thread over the windows, most woken first."""
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
                # Regularity in a minority of windows is chance.
                period_ms=regular[len(regular) // 2] if 2 * len(regular) > len(windows) else None,
                remedy=seen[0].remedy,
            )
        )
    return sorted(rates, key=lambda thread: thread.wakings.mean if thread.wakings else thread.exits.mean, reverse=True)


def pace_metrics(windows: Sequence[PaceWindow]) -> list[RunMetric]:
    """Return the sums over all threads of the server, one value per window."""
    if not windows:
        return []
    woken = [sum(thread.wakings_hz or 0.0 for thread in window.threads) for window in windows]
    ended = [sum(thread.exits_hz for thread in window.threads) for window in windows]
    return [
        RunMetric(name=name, unit=unit_of(name), kind="measured", estimate=_rate(values), values=list(values))
        for name, values in ((WAKINGS, woken), (EXITS, ended))
    ]


def _rate(values: Sequence[float]) -> Estimate:
    """Return the mean with its interval, cut at 0."""
    estimate = interval(values)
    return estimate if estimate.low is None else msgspec.structs.replace(estimate, low=max(0.0, estimate.low))


# Alternating windows of two conditions with samples of the servers' functions.

SAMPLED_WINDOWS = 8
SAMPLED_WINDOW_S = 1.5
# Ten times the rate of attribute: the windows are short, and their energy does not count. A prime number, so that no
# timer runs in step with it.
_FREQUENCY_HZ = 997
_RUN_IN_S = 0.3
# Longer than a window and the start of the sampler; the rest of the load is killed.
_LOAD_S = 30
# With the start of the load and the sampler.
SAMPLED_S = SAMPLED_WINDOW_S + 2.0


def sample_functions(
    bench: Bench, cases: Sequence[Case], rate_hz: float | None, seed: int, say: Say
) -> list[SampledWindow]:
    """Sample SAMPLED_WINDOWS windows of each condition in pairs. Raise CapabilityError, PowerprofError."""
    sampled = []
    for pair in block_order(SAMPLED_WINDOWS, seed):
        sampled += [_sample(bench, cases[0 if arm == "a" else 1], arm, rate_hz, say) for arm in pair]
    return sampled


def _sample(bench: Bench, case: Case, arm: Arm, rate_hz: float | None, say: Say) -> SampledWindow:
    bench.enter(case)
    with _sampler(bench, case, say) as tracer:
        with run_load(bench, case, rate_hz):
            time.sleep(_RUN_IN_S)
            capture = tracer.measure(SAMPLED_WINDOW_S)
        profile = _profile(capture)
    bench.leave(case)
    return SampledWindow(arm, profile.window_s, profile.functions)


def sample_window(bench: Bench, case: Case, rate_hz: float | None, seed: int, say: Say) -> OnCpuProfile:
    """Sample one window of a condition at `rate_hz`, or at full speed if it is None.

    Raises CapabilityError, PowerprofError, and LoadFailed if the client ended within the window.
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
            # Name the stacks after the load has ended: that takes CPU time.
            running.kill()
        profile = _profile(capture)
    bench.leave(case)
    return profile


def _sampler(bench: Bench, case: Case, say: Say) -> OnCpuTracer:
    from powerprof.tracing.profile import OnCpuTracer

    say(f"{case.name}: sampling the server")
    return OnCpuTracer(bench.pids(case), "cpu-clock", frequency_hz=_FREQUENCY_HZ)


def _profile(capture: OnCpuCapture) -> OnCpuProfile:
    from powerprof.attribution.profile import build_on_cpu_profile

    if capture.interrupted:
        # The signal ended only this window. Raise, or the remaining windows would still be measured.
        raise Interrupted("interrupted")
    return build_on_cpu_profile(capture, server_names={})
