# SPDX-License-Identifier: Apache-2.0
"""Rules on CPU time: events that use it, and what else does."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof.diagnosis.evidence import Client, Evidence, ScheduledEvent
from powerprof.diagnosis.findings import Finding
from powerprof.diagnosis.words import in_sql, seconds, tries_of, try_line
from powerprof.text import number

# Of one CPU. An idle server needs less than 1 %.
_EVENT_PERCENT = 3.0
_NOTED_PERCENT = 10.0
_SHOWN = 4
_WORKER = "event_worker"


def ran(evidence: Evidence) -> list[ScheduledEvent]:
    """Events that were started in the window: their time of last execution moved."""
    before = {event.name: event.last_executed for event in evidence.events}
    return [
        event
        for event in evidence.events_after
        if event.last_executed is not None and event.last_executed != before.get(event.name, event.last_executed)
    ]


def event_cpu(evidence: Evidence) -> list[Finding]:
    """Events whose workers use CPU time: threads of their own, which end with what they execute."""
    workers = [thread for thread in evidence.threads_cpu if _WORKER in (thread.name or "")]
    clients = {client.tid for client in _every(evidence) if client.tid is not None} | set(evidence.tids.values())
    # Without the names of threads: those that belong to no connection that was seen and are called as the server's
    # connections are. What ended in the window was theirs where no connection was closed meanwhile.
    percent = sum(thread.percent for thread in workers)
    ended = evidence.ended_cpu_percent or 0.0
    events = ran(evidence)
    closed = evidence.moved("Connections") > len(events) * _per_event(evidence) + len(events) + 2
    if events and not closed:
        percent += ended
    running = [client for client in evidence.clients_before if _is_event(client, evidence)]
    percent += sum(
        thread.percent
        for thread in evidence.threads_cpu
        if thread not in workers and thread.tid in {client.tid for client in running} & clients
    )
    if percent < _EVENT_PERCENT or not (events or workers or running):
        return []
    named = _named(events, running, evidence)
    share = f"{number(percent, 0 if percent >= 10 else 1)} % of a CPU"
    found = evidence.cpu_percent
    return [
        Finding(
            rule="event_cpu",
            severity="fault",
            text=f"{named} {'use' if len(events) > 1 else 'uses'} {share}.",
            evidence=[
                f"threads of events: {share}" + (f", of {number(found, 1)} % for the whole server" if found else ""),
                *(
                    f"{event.name}: last started {event.last_executed}, every {seconds(event.interval_s)}"
                    for event in events[:_SHOWN]
                ),
                *(f"running: {client.statement[:120]}" for client in running[:1] if client.statement),
            ],
            remedy=[
                *(
                    f"as its definer (any other account would become it): ALTER EVENT {in_sql(event)} "
                    "ON SCHEDULE EVERY … (less often), or DISABLE"
                    for event in events[:1]
                ),
                *(try_line(evidence, "event_cpu") for event in events[:1] if tries_of(event)),
                "which of its statements cost what: powerprof queries",
            ],
            rate_hz=sum(1 / event.interval_s for event in events if event.interval_s > 0) or None,
            tries=[one for event in events[:1] for one in tries_of(event)],
        )
    ]


def _per_event(evidence: Evidence) -> int:
    """How many numbers of connections each start of an event takes, at most: generously."""
    shortest = min((event.interval_s for event in ran(evidence) if event.interval_s > 0), default=1.0)
    return 1 + int(evidence.window_s / shortest)


def _every(evidence: Evidence) -> list[Client]:
    return [client for sample in [evidence.clients_before, *evidence.samples] for client in sample]


def _is_event(client: Client, evidence: Evidence) -> bool:
    """A worker of an event, as the process list shows it: it came from no host and belongs to no connection."""
    on = evidence.variables.get("event_scheduler", "OFF").upper() in ("ON", "1")
    return on and client.command in ("Connect", "Daemon") and client.user not in ("event_scheduler", "system user")


def _named(events: Sequence[ScheduledEvent], running: Sequence[Client], evidence: Evidence) -> str:
    if len(events) == 1:
        return f"The event {events[0].name}"
    if events:
        return f"{len(events)} events ({', '.join(event.name for event in events[:_SHOWN])})"
    enabled = [event for event in evidence.events if event.enabled]
    if len(enabled) == 1:
        return f"The event {enabled[0].name}"
    return "An event that runs since before the window"


def cpu_time(evidence: Evidence) -> list[Finding]:
    """A note: which threads use CPU time, where it is more than a server needs that idles."""
    used = evidence.cpu_percent
    if used is None or used < _NOTED_PERCENT:
        return []
    names = [
        f"{(thread.name or thread.comm).removeprefix('thread/')} ({thread.tid}): {number(thread.percent, 1)} %"
        for thread in evidence.threads_cpu[:_SHOWN]
        if thread.percent >= 1
    ]
    ended = evidence.ended_cpu_percent or 0.0
    return [
        Finding(
            rule="cpu_time",
            severity="note",
            text=f"It used {number(used, 0)} % of one CPU.",
            evidence=names + ([f"threads that ended meanwhile: {number(ended, 1)} %"] if ended >= 1 else []),
            remedy=["for what: powerprof profile; which statements: powerprof queries"],
        )
    ]
