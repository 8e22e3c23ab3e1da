# SPDX-License-Identifier: Apache-2.0
"""Rules on the threads of the server: periodic wake-ups with their settings, scheduled events, and CPU time."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof.diagnosis.evidence import Evidence, Finding, LiveRemedy, ScheduledEvent, ThreadWakeups
from powerprof.diagnosis.rules_replication import find_role
from powerprof.diagnosis.thread_pace import (
    POLLING_HZ,
    TRIED_NS,
    PeriodicThread,
    explain_no_slack,
    find_periodic_thread,
    format_prediction,
    group_by_own_timer,
    list_live_settings,
    list_polling_remedies,
    list_settings,
    rank_by_saving,
    reacts_to_slack,
    sum_woken_hz,
)
from powerprof.diagnosis.wording import (
    describe_live_try,
    format_event_rate,
    format_rate,
    format_seconds,
    next_command,
    quote_event,
    select_stack,
)
from powerprof.model.text import number, period

_SHOWN_HZ = 0.04
_BUSY_HZ = 20.0
_EVENTS_HZ = 0.5
_MANY_THREADS = 4
_SHOWN = 4
_MIN_SAVED_HZ = 2.0


def _label_thread(row: ThreadWakeups) -> str:
    if row.name:
        return row.name.removeprefix("thread/")
    periodic = find_periodic_thread(row)
    return periodic.name if periodic else f"{row.comm} ({row.tid})"


def _sum_exits_hz(rows: Sequence[ThreadWakeups]) -> float:
    return sum(row.rate_hz for row in rows)


def _compute_woken_hz(rows: Sequence[ThreadWakeups], evidence: Evidence) -> float:
    """Return the wake-ups per second of a thread, counted without regard to idle periods on an idle server.

    On a CPU that other programs keep busy, the timer of a polling thread ends no idle period. The threads of a busy
    server wake for its work, so only idle exits count there.
    """
    if evidence.rate_hz("Questions") >= _BUSY_HZ:
        return _sum_exits_hz(rows)
    return sum_woken_hz(rows)


def _group_timer_rows(evidence: Evidence) -> list[list[ThreadWakeups]]:
    """Return the rows that a timer of the thread itself caused, grouped by thread, the most frequent thread first.

    Connections and replication threads have separate rules.
    """
    judged = (
        row
        for row in evidence.wakeups
        if "one_connection" not in (row.name or "") and find_role(row.name, row.stack) is None
    )
    return sorted(group_by_own_timer(judged).values(), key=lambda rows: -_compute_woken_hz(rows, evidence))


def _group_polling_threads(evidence: Evidence) -> list[list[list[ThreadWakeups]]]:
    """Return the polling threads, grouped by their entry in the table of periodic threads."""
    groups: dict[object, list[list[ThreadWakeups]]] = {}
    for rows in _group_timer_rows(evidence):
        groups.setdefault(find_periodic_thread(rows[0]) or rows[0].tid, []).append(rows)
    polling = []
    for key, threads in groups.items():
        usual_hz = key.usual_hz if isinstance(key, PeriodicThread) else POLLING_HZ
        rates_hz = [_compute_woken_hz(rows, evidence) for rows in threads]
        # Many slow threads wake the CPU as often as a fast one.
        is_fast = len(threads) >= _MANY_THREADS and sum(rates_hz) >= POLLING_HZ
        polling.append([rows for rows, hz in zip(threads, rates_hz, strict=True) if is_fast or hz >= usual_hz])
    return [threads for threads in polling if threads]


def find_polling_waits(evidence: Evidence) -> list[Finding]:
    """Find threads that poll by a timer. Known ones are faults if a setting or timer slack slows them down."""
    return [_report_polling(threads, evidence) for threads in _group_polling_threads(evidence)]


def _report_polling(threads: list[list[ThreadWakeups]], evidence: Evidence) -> Finding:
    periodic, all_rows = find_periodic_thread(threads[0][0]), [row for rows in threads for row in rows]
    woken_hz = sum(_compute_woken_hz(rows, evidence) for rows in threads)
    names = ", ".join(dict.fromkeys(_label_thread(rows[0]) for rows in threads))
    if len(threads) == 1:
        does = f", which {periodic.does}," if periodic else ""
        pace = _format_pace(all_rows, woken_hz)
        text = f"The thread {names}{does} wakes by its own timer {pace}."
    else:
        does = f", each of which {periodic.does}," if periodic else ""
        pace = f"{format_rate(woken_hz)} together"
        text = f"{len(threads)} threads ({names}){does} wake by their own timers, {pace}."
    slack_reasons, slack_lines, slack_tries = _propose_slack(threads, evidence)
    # A known thread that no setting and no slack slows down is in the normal state of its release.
    is_fault = periodic is None or bool(slack_tries or list_settings(periodic, evidence))
    return Finding(
        rule="polling_wait",
        severity="fault" if is_fault else "note",
        text=text,
        evidence=[_describe_exits(all_rows), *_describe_timeouts(all_rows)],
        remedy=[*slack_reasons, *list_polling_remedies(periodic, evidence, pace), *slack_lines],
        rate_hz=woken_hz,
        stack=select_stack(all_rows),
        tries=[*list_live_settings(periodic, evidence), *slack_tries],
    )


def _format_pace(rows: Sequence[ThreadWakeups], woken_hz: float) -> str:
    periods = [row.period_ms for row in rows if row.period_ms]
    return f"{period(periods[0])} ({format_rate(woken_hz)})" if periods else format_rate(woken_hz)


def _describe_exits(rows: Sequence[ThreadWakeups]) -> str:
    exits_hz = _sum_exits_hz(rows)
    if exits_hz <= 0:
        return "it ended no idle period: other programs kept the CPUs busy"
    return f"{format_event_rate(exits_hz, 'idle periods')} ended by its own timers"


def _describe_timeouts(rows: Sequence[ThreadWakeups]) -> list[str]:
    """Return a line about the regularity of the most frequent wait that timed out; empty for unknown functions."""
    timed = [row for row in rows if row.stack and reacts_to_slack(row.stack)]
    if not timed:
        return []
    most = max(timed, key=lambda row: row.woken_hz)
    if most.period_ms:
        pace = f"regularly, {period(most.period_ms)}"
    else:  # Without idle exits there are no intervals to compare.
        pace = "irregularly" if most.rate_hz >= 1 else format_rate(most.woken_hz)
    return [f"its wait times out {pace}, without an event"]


def _propose_slack(
    threads: Sequence[Sequence[ThreadWakeups]], evidence: Evidence
) -> tuple[list[str], list[str], list[LiveRemedy]]:
    """Return the reason against timer slack on the most frequent thread, or its command line and live remedy."""
    rows = max(threads, key=lambda rows: sum(row.woken_hz for row in rows))
    if reason := explain_no_slack(rows, evidence.language):
        return [reason], [], []
    if any(reacts_to_slack(row.stack) for row in rows if row.stack):
        return (
            [],
            [f"to try it live: {_format_cure(evidence, rows[0].tid)}"],
            [LiveRemedy(tid=rows[0].tid, slack_ns=TRIED_NS)],
        )
    return [], [], []


def _format_cure(evidence: Evidence, tid: int) -> str:
    return next_command(evidence, "cure", "--thread", tid, "--slack", "50ms")


def describe_periodic_threads(evidence: Evidence) -> list[Finding]:
    """Return a note for each thread that wakes by a timer at a usual rate."""
    findings = []
    polling = {rows[0].tid for threads in _group_polling_threads(evidence) for rows in threads}
    for rows in _group_timer_rows(evidence):
        woken_hz, periodic = _compute_woken_hz(rows, evidence), find_periodic_thread(rows[0])
        if rows[0].tid in polling or woken_hz < _SHOWN_HZ:
            continue
        does = f": it {periodic.does}" if periodic else ""
        findings.append(
            Finding(
                rule="periodic_thread",
                severity="note",
                text=f"{_label_thread(rows[0])} wakes {_format_pace(rows, woken_hz)}{does}.",
                evidence=[_describe_exits(rows)],
                remedy=list_settings(periodic, evidence) if periodic else [],
                rate_hz=woken_hz,
                stack=select_stack(rows),
            )
        )
    return findings


def describe_internal_wakeups(evidence: Evidence) -> list[Finding]:
    """Return a note for threads of the process that wake each other."""
    rows = [row for row in evidence.wakeups if row.origin == "other_thread" and row.waker]
    total_hz = sum(row.woken_hz for row in rows)
    if total_hz < POLLING_HZ:
        return []
    pairs: dict[tuple[str, str], float] = {}
    for row in rows:
        pair = (str(row.waker).removeprefix("thread/"), _label_thread(row))
        pairs[pair] = pairs.get(pair, 0.0) + row.woken_hz
    most = sorted(pairs.items(), key=lambda item: -item[1])[:_SHOWN]
    return [
        Finding(
            rule="own_threads",
            severity="note",
            text=f"Its threads wake each other {format_rate(total_hz)}.",
            evidence=[f"{waker} wakes {woken} {format_rate(rate_hz)}" for (waker, woken), rate_hz in most],
            remedy=[],
            rate_hz=total_hz,
            stack=select_stack(rows),
        )
    ]


def predict_most_helpful(evidence: Evidence) -> list[Finding]:
    """Return a note on the threads for which timer slack would save the most wake-ups on an idle server."""
    if evidence.language is not None or evidence.rate_hz("Questions") >= _BUSY_HZ:
        return []
    best = [entry for entry in rank_by_saving(evidence) if entry[1].saved_hz >= _MIN_SAVED_HZ][:_SHOWN]
    if not best:
        return []
    saved_hz = sum(prediction.saved_hz for _, prediction in best)
    return [
        Finding(
            rule="most_helpful",
            severity="note",
            text=f"Most helpful change: 50 ms of timer slack, up to {format_rate(saved_hz)} less in all (predicted).",
            evidence=[
                f"{_label_thread(row)}: {number(prediction.now_hz, 1)} → "
                f"{format_prediction(prediction.then_hz, prediction.most_hz, prediction.is_bound)}/s"
                for row, prediction in best
            ],
            remedy=[_format_cure(evidence, row.tid) for row, _ in best],
            rate_hz=saved_hz,
            tries=[LiveRemedy(tid=row.tid, slack_ns=TRIED_NS) for row, _ in best],
        )
    ]


def describe_replication_threads(evidence: Evidence) -> list[Finding]:
    """Return a note for each role of the replication threads that end idle periods."""
    roles: dict[str, list[ThreadWakeups]] = {}
    for row in evidence.wakeups:
        role = find_role(row.name, row.stack)
        if role is not None and row.rate_hz > 0:
            roles.setdefault(role, []).append(row)
    return [
        Finding(
            rule="replication_thread",
            severity="note",
            text=f"The {role} wakes {format_rate(_sum_exits_hz(rows))}, for changes and heartbeats from the source.",
            evidence=[f"it ended {format_event_rate(_sum_exits_hz(rows), 'idle periods')}"],
            remedy=["CHANGE MASTER TO MASTER_HEARTBEAT_PERIOD sets the interval of heartbeats from an idle source"],
            rate_hz=_sum_exits_hz(rows),
            stack=select_stack(rows),
        )
        for role, rows in roles.items()
    ]


def _is_scheduler_on(evidence: Evidence) -> bool:
    return evidence.variables.get("event_scheduler", "OFF").upper() in ("ON", "1")


def find_event_scheduler(evidence: Evidence) -> list[Finding]:
    """Find recurring events: a fault if they run every few seconds, otherwise a note."""
    if not _is_scheduler_on(evidence):
        return []
    events = sorted(
        (event for event in evidence.events if event.enabled and event.interval_s > 0),
        key=lambda event: event.interval_s,
    )
    if not events:
        return []
    rate_hz = sum(1 / event.interval_s for event in events)
    first = events[0]
    return [
        Finding(
            rule="event_scheduler",
            severity="fault" if rate_hz >= _EVENTS_HZ else "note",
            text=f"The event scheduler starts {first.name} {period(first.interval_s * 1e3)}"
            + (f", and {len(events) - 1} more." if len(events) > 1 else "."),
            evidence=[f"recurring events that are enabled: {len(events)}, together {format_rate(rate_hz)}"],
            remedy=[
                f"as its definer (any other account would become it): ALTER EVENT {quote_event(first)} "
                "ON SCHEDULE EVERY 1 MINUTE (or DISABLE)",
                "SET GLOBAL event_scheduler=OFF if no event is needed",
                describe_live_try(evidence, "event_scheduler"),
            ],
            rate_hz=rate_hz,
            tries=[LiveRemedy(variable="event_scheduler", value="OFF")],
        )
    ]


# In percent of one CPU. An idle server needs less than 1 %.
_EVENT_PERCENT = 3.0
_NOTED_PERCENT = 10.0


def find_event_cpu(evidence: Evidence) -> list[Finding]:
    """Find events with a high CPU time. Each runs in its own worker thread, which ends with it."""
    workers = [thread for thread in evidence.threads_cpu if "event_worker" in (thread.name or "")]
    percent = sum(thread.percent for thread in workers)
    before = {event.name: event.last_executed for event in evidence.events}
    started = [
        event
        for event in evidence.events_after
        if event.last_executed is not None and event.last_executed != before.get(event.name, event.last_executed)
    ]
    # Each start of an event uses connection numbers. The bound is generous: every event at the shortest interval.
    shortest_s = min((event.interval_s for event in started if event.interval_s > 0), default=1.0)
    most_connections = len(started) * (1 + int(evidence.window_s / shortest_s)) + len(started) + 2
    # Ended threads were workers of events, unless clients closed connections in the window.
    if started and evidence.count_increase("Connections") <= most_connections:
        percent += evidence.ended_cpu_percent or 0.0
    # The process list shows a worker without a host and a connection. It identifies workers without thread names.
    running = [
        client
        for client in evidence.clients_before
        if _is_scheduler_on(evidence)
        and client.command in ("Connect", "Daemon")
        and client.user not in ("event_scheduler", "system user")
    ]
    running_tids = {client.tid for client in running if client.tid is not None}
    percent += sum(
        thread.percent for thread in evidence.threads_cpu if thread not in workers and thread.tid in running_tids
    )
    if percent < _EVENT_PERCENT or not (started or workers or running):
        return []
    share = f"{number(percent, 0 if percent >= 10 else 1)} % of a CPU"
    total = evidence.cpu_percent
    return [
        Finding(
            rule="event_cpu",
            severity="fault",
            text=f"{_name_events(started, evidence)} {'use' if len(started) > 1 else 'uses'} {share}.",
            evidence=[
                f"threads of events: {share}" + (f", of {number(total, 1)} % for the whole server" if total else ""),
                *(
                    f"{event.name}: last started {event.last_executed}, every {format_seconds(event.interval_s)}"
                    for event in started[:_SHOWN]
                ),
                *(f"running: {client.statement[:120]}" for client in running[:1] if client.statement),
            ],
            remedy=[
                *(
                    f"as its definer (any other account would become it): ALTER EVENT {quote_event(event)} "
                    "ON SCHEDULE EVERY … (less often), or DISABLE"
                    for event in started[:1]
                ),
                f"to see the cost of each statement: {next_command(evidence, 'queries')}",
            ],
            rate_hz=sum(1 / event.interval_s for event in started if event.interval_s > 0) or None,
            percent=percent,
        )
    ]


def _name_events(started: Sequence[ScheduledEvent], evidence: Evidence) -> str:
    if len(started) > 1:
        return f"{len(started)} events ({', '.join(event.name for event in started[:_SHOWN])})"
    events = started or [event for event in evidence.events if event.enabled]
    return f"The event {events[0].name}" if len(events) == 1 else "An event that started before the window"


def describe_cpu_time(evidence: Evidence) -> list[Finding]:
    """Return a note on the threads with the highest CPU time, if the server uses more than an idle one."""
    percent = evidence.cpu_percent
    if percent is None or percent < _NOTED_PERCENT:
        return []
    lines = [
        f"{(thread.name or thread.comm).removeprefix('thread/')} ({thread.tid}): {number(thread.percent, 1)} %"
        for thread in evidence.threads_cpu[:_SHOWN]
        if thread.percent >= 1
    ]
    ended = evidence.ended_cpu_percent or 0.0
    if ended >= 1:
        lines.append(f"threads that ended during the window: {number(ended, 1)} %")
    return [
        Finding(
            rule="cpu_time",
            severity="note",
            text=f"It used {number(percent, 0)} % of one CPU.",
            evidence=lines,
            remedy=[
                f"to see the functions: {next_command(evidence, 'profile')}",
                f"to see the statements: {next_command(evidence, 'queries')}",
            ],
        )
    ]
