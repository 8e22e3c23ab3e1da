# SPDX-License-Identifier: Apache-2.0
"""Trace windows of a condition: the causes of wake-ups by thread."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from powerprof.diagnosis.rules_replication import find_role
from powerprof.experiment.load import LoadOrder
from powerprof.experiment.load_clients import start_load
from powerprof.experiment.observers import CaseObservers
from powerprof.experiment.records import Arm, TraceSummary
from powerprof.system import signals
from powerprof.workloads.reading import Case

if TYPE_CHECKING:
    from powerprof.experiment.bench import Bench
    from powerprof.model.attribution import Wakeup


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
    return repeat_until_storm(lambda: _trace(bench, case, arm, duration_s, say, rate_hz), case.name, say)


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


def _trace(
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
    from powerprof.experiment.sysbench_gate import GatedLoad, is_gate_supported

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
        counts[_find_key(window, row)] += row.count
    return counts


def _find_key(window: TraceSummary, row: Wakeup) -> Key:
    server = next((name for name, pid in window.members.items() if pid == row.thread.pid), "?")
    part = find_role(row.thread.server_name, [frame.label for frame in row.stack])
    label = row.thread.label
    if part is None and row.thread.server_name is None and any("handle_one_connection" in f.label for f in row.stack):
        label = "connections"
    return server, part or label, part is not None


def top_stack(window: TraceSummary, key: Key) -> list[str]:
    """Return the stack with most idle exits of these threads, innermost frame first."""
    rows = [row for row in window.attribution.wakeups if row.stack and _find_key(window, row) == key]
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
