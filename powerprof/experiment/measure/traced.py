# SPDX-License-Identifier: Apache-2.0
"""A traced window of a condition, all of its servers at once, and whose wake-ups they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from powerprof.diagnosis.replication import role_of
from powerprof.experiment.measure.observers import CaseObservers
from powerprof.experiment.records import Arm, TraceSummary
from powerprof.workloads.reading import Case

if TYPE_CHECKING:
    from powerprof.attribution.records import Wakeup
    from powerprof.experiment.bench.servers import Bench


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
    import os

    from powerprof.attribution import live, session
    from powerprof.attribution.requests import AttributeRequest
    from powerprof.processes.targets import Target

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
        taken = live.capture(Target(pids, label, roots=pids), AttributeRequest(duration_s=duration_s), names, say)
        _, storm = beside.finish(os.cpu_count() or 1)
    bench.leave(case)
    say(f"unwinding {case.name}")
    return TraceSummary(arm=arm, members=members, attribution=session.analyse(taken), storm=storm)


@contextmanager
def load_at(bench: Bench, case: Case, rate_hz: float | None) -> Iterator[None]:
    """The condition's clients at work, or silent where they are to be, for as long as the context lasts."""
    from powerprof.experiment.loads import LoadOrder, start_load
    from powerprof.experiment.loads.gated import GatedLoad, is_possible

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
