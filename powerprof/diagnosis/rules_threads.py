# SPDX-License-Identifier: Apache-2.0
"""Rules on the server's own threads: what wakes by the clock, how often, and what sets its pace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from powerprof.diagnosis.evidence import (
    Client,
    Evidence,
    Finding,
    LiveRemedy,
    ScheduledEvent,
    ThreadWakeups,
    each_second,
    in_sql,
    rate,
    seconds,
    stack_of,
    tries_of,
    try_line,
)
from powerprof.diagnosis.periodic import POLLING_HZ, Periodic, known, live_settings, remedy, settings_of
from powerprof.diagnosis.rules_replication import role_of
from powerprof.diagnosis.slack import TRIED_NS, most_helpful, reacts, then_text, woken_hz
from powerprof.model.text import number, period

_SHOWN_HZ = 0.04
_ASKED_HZ = 20.0
_EVENTS_HZ = 0.5
_MANY = 4
_PAIRS = 4
_WORTH_HZ = 2.0


def _label(row: ThreadWakeups) -> str:
    if row.name:
        return row.name.removeprefix("thread/")
    periodic = known(row)
    return periodic.name if periodic else f"{row.comm} ({row.tid})"


def _by_thread(evidence: Evidence) -> list[list[ThreadWakeups]]:
    """The rows that a timer of the thread's own caused, of one thread each, most first."""
    threads: dict[int, list[ThreadWakeups]] = {}
    for row in evidence.wakeups:
        is_client = "one_connection" in (row.name or "")
        if row.origin == "own_timer" and not is_client and role_of(row.name, row.stack) is None:
            threads.setdefault(row.tid, []).append(row)
    return sorted(threads.values(), key=lambda rows: -_woken(rows, evidence))


def _often(rows: Sequence[ThreadWakeups]) -> float:
    return sum(row.rate_hz for row in rows)


def _woken(rows: Sequence[ThreadWakeups], evidence: Evidence) -> float:
    """How often it wakes at all: on a CPU that others keep busy a timer ends no idle period, and polls all the same.

    Of a server that is asked, the idle exits alone: what wakes its threads then is its work.
    """
    if evidence.rate_hz("Questions") >= _ASKED_HZ:
        return _often(rows)
    places: dict[tuple[str, ...], list[ThreadWakeups]] = {}
    for row in rows:
        places.setdefault(tuple(row.stack), []).append(row)
    # Rows of one place tell the same count of wakings, whatever ended the idle periods.
    return sum(max(_often(same), *(row.wakings_hz or 0.0 for row in same)) for same in places.values())


def _pace(rows: Sequence[ThreadWakeups], woken_hz: float) -> str:
    periods = [row.period_ms for row in rows if row.period_ms]
    return f"{period(periods[0])} ({rate(woken_hz)})" if periods else rate(woken_hz)


def polling_waits(evidence: Evidence) -> list[Finding]:
    """Threads that poll by the clock instead of waiting for an event, those with one remedy in one finding."""
    return [_polling(threads, evidence) for threads in _alike(evidence).values()]


def _alike(evidence: Evidence) -> dict[object, list[list[ThreadWakeups]]]:
    """The threads that poll, those that one entry of the table knows together."""
    alike: dict[object, list[list[ThreadWakeups]]] = {}
    for rows in _by_thread(evidence):
        alike.setdefault(known(rows[0]) or rows[0].tid, []).append(rows)
    often: dict[object, list[list[ThreadWakeups]]] = {}
    for key, threads in alike.items():
        usual_hz = key.usual_hz if isinstance(key, Periodic) else POLLING_HZ
        alone = [rows for rows in threads if _woken(rows, evidence) >= usual_hz]
        together = sum(_woken(rows, evidence) for rows in threads)
        # Threads that poll seldom each make as much together.
        if len(threads) >= _MANY and together >= POLLING_HZ:
            often[key] = threads
        elif alone:
            often[key] = alone
    return often


def _polling(threads: list[list[ThreadWakeups]], evidence: Evidence) -> Finding:
    periodic, every = known(threads[0][0]), [row for rows in threads for row in rows]
    woken_hz = sum(_woken(rows, evidence) for rows in threads)
    names = ", ".join(dict.fromkeys(_label(rows[0]) for rows in threads))
    if len(threads) == 1:
        does = f", which {periodic.does}," if periodic else ""
        pace = _pace(every, woken_hz)
        text = f"The thread {names}{does} wakes by its own timer {pace}."
    else:
        does = f", each of which {periodic.does}," if periodic else ""
        pace = f"{rate(woken_hz)} together"
        text = f"{len(threads)} threads ({names}){does} wake by their own timers, {pace}."
    return Finding(
        rule="polling_wait",
        severity="fault",
        text=text,
        evidence=[_ended(every), *_waits(every)],
        remedy=[*remedy(periodic, evidence, pace), *slack_line(threads, evidence)],
        rate_hz=woken_hz,
        stack=stack_of(every),
        tries=[*live_settings(periodic, evidence), *slack_tries(threads, evidence)],
    )


def periodic_threads(evidence: Evidence) -> list[Finding]:
    """Notes: every thread that wakes by the clock at a pace that is usual."""
    findings = []
    polling = {rows[0].tid for threads in _alike(evidence).values() for rows in threads}
    for rows in _by_thread(evidence):
        woken_hz, periodic = _woken(rows, evidence), known(rows[0])
        if rows[0].tid in polling or woken_hz < _SHOWN_HZ:
            continue
        does = f": it {periodic.does}" if periodic else ""
        findings.append(
            Finding(
                rule="periodic_thread",
                severity="note",
                text=f"{_label(rows[0])} wakes {_pace(rows, woken_hz)}{does}.",
                evidence=[_ended(rows)],
                remedy=settings_of(periodic, evidence) if periodic else [],
                rate_hz=woken_hz,
                stack=stack_of(rows),
            )
        )
    return findings


def _waits(rows: Sequence[ThreadWakeups]) -> list[str]:
    """Whether the times are regular, and that the wait ended without anything to do."""
    timed = [row for row in rows if row.stack and reacts(row.stack)]
    if not timed:
        return []
    most = max(timed, key=woken_hz)
    if most.period_ms:
        pace = f"regularly, {period(most.period_ms)}"
    else:  # without idle exits there are no intervals to judge by
        pace = "irregularly" if most.rate_hz >= 1 else rate(woken_hz(most))
    return [f"its wait times out {pace}: nothing had come meanwhile"]


def slack_line(threads: Sequence[Sequence[ThreadWakeups]], evidence: Evidence) -> list[str]:
    """How to try timer slack on the thread that wakes most, where its wait reacts to it."""
    if evidence.language is not None:
        return [f"it is a program of {evidence.language}: timer slack would delay all its own timers"]
    rows = max(threads, key=lambda each: sum(map(woken_hz, each)))
    known_ = [reacts(row.stack) for row in rows if row.stack]
    if not any(known_):
        return ["timer slack does not change how long it waits"] if False in known_ and None not in known_ else []
    whom = evidence.pid if evidence.pid is not None else "mysqld"
    return [f"to try it live: powerprof cure --pid {whom} --thread {rows[0].tid} --slack 50ms"]


def slack_tries(threads: Sequence[Sequence[ThreadWakeups]], evidence: Evidence) -> list[LiveRemedy]:
    """The same as data."""
    rows = max(threads, key=lambda each: sum(map(woken_hz, each)))
    if evidence.language is not None or not any(reacts(row.stack) for row in rows):
        return []
    return [LiveRemedy(tid=rows[0].tid, slack_ns=TRIED_NS)]


def woken_by_each_other(evidence: Evidence) -> list[Finding]:
    """A note: threads of the process that wake one another."""
    rows = [row for row in evidence.wakeups if row.origin == "other_thread" and row.waker]
    total = sum(map(woken_hz, rows))
    if total < POLLING_HZ:
        return []
    pairs: dict[tuple[str, str], float] = {}
    for row in rows:
        pair = (str(row.waker).removeprefix("thread/"), _label(row))
        pairs[pair] = pairs.get(pair, 0.0) + woken_hz(row)
    most = sorted(pairs.items(), key=lambda item: -item[1])[:_PAIRS]
    return [
        Finding(
            rule="own_threads",
            severity="note",
            text=f"Its threads wake each other {rate(total)}.",
            evidence=[f"{waker} wakes {woken} {rate(hertz)}" for (waker, woken), hertz in most],
            remedy=[],
            rate_hz=total,
            stack=stack_of(rows),
        )
    ]


def most_helpful_slack(evidence: Evidence) -> list[Finding]:
    """A note: what would help most, predicted from this window."""
    if evidence.language is not None or evidence.rate_hz("Questions") >= _ASKED_HZ:
        return []
    best = [(row, one) for row, one in most_helpful(evidence) if one.saved_hz >= _WORTH_HZ][:_PAIRS]
    if not best:
        return []
    whom = evidence.pid if evidence.pid is not None else "mysqld"
    saved_hz = sum(one.saved_hz for _, one in best)
    return [
        Finding(
            rule="most_helpful",
            severity="note",
            text=f"What would help most: 50 ms of timer slack, up to {rate(saved_hz)} less in all (predicted).",
            evidence=[
                f"{_label(row)}: {number(one.now_hz, 1)} → {then_text(one.then_hz, one.most_hz, one.is_bound)}/s"
                for row, one in best
            ],
            remedy=[f"powerprof cure --pid {whom} --thread {row.tid} --slack 50ms" for row, _ in best],
            rate_hz=saved_hz,
            tries=[LiveRemedy(tid=row.tid, slack_ns=TRIED_NS) for row, _ in best],
        )
    ]


def _ended(rows: Sequence[ThreadWakeups]) -> str:
    ended_hz = _often(rows)
    if ended_hz <= 0:
        return "no idle period ended with it: others kept the CPUs busy"
    return f"{each_second(ended_hz, 'idle periods')} ended with it, by its own timers"


def replication_threads(evidence: Evidence) -> list[Finding]:
    """A note: what the threads of replication wake for, where no fault explains it."""
    findings = []
    roles: dict[str, list[ThreadWakeups]] = {}
    for row in evidence.wakeups:
        role = role_of(row.name, row.stack)
        if role is not None and row.rate_hz > 0:
            roles.setdefault(role, []).append(row)
    for role, rows in roles.items():
        findings.append(
            Finding(
                rule="replication_thread",
                severity="note",
                text=f"The {role} wakes {rate(_often(rows))}: what the source writes, and its heartbeats.",
                evidence=[f"it ended {each_second(_often(rows), 'idle periods')}"],
                remedy=["CHANGE MASTER TO MASTER_HEARTBEAT_PERIOD sets how often a silent source says so"],
                rate_hz=_often(rows),
                stack=stack_of(rows),
            )
        )
    return findings


def event_scheduler(evidence: Evidence) -> list[Finding]:
    """Events that run every few seconds."""
    if evidence.variables.get("event_scheduler", "OFF").upper() not in ("ON", "1"):
        return []
    running = sorted(
        (event for event in evidence.events if event.enabled and event.interval_s > 0), key=lambda e: e.interval_s
    )
    if not running:
        return []
    often = sum(1 / event.interval_s for event in running)
    first = running[0]
    eager = often >= _EVENTS_HZ
    return [
        Finding(
            rule="event_scheduler",
            severity="fault" if eager else "note",
            text=f"The event scheduler starts {first.name} {period(first.interval_s * 1e3)}"
            + (f", and {len(running) - 1} more." if len(running) > 1 else "."),
            evidence=[f"recurring events that are enabled: {len(running)}, together {rate(often)}"],
            remedy=[
                f"as its definer (any other account would become it): ALTER EVENT {in_sql(first)} "
                "ON SCHEDULE EVERY 1 MINUTE (or DISABLE)",
                "SET GLOBAL event_scheduler=OFF where no event is needed",
                *([try_line(evidence, "event_scheduler")] if tries_of(first) else []),
            ],
            rate_hz=often,
            tries=[*tries_of(first), LiveRemedy(variable="event_scheduler", value="OFF")],
        )
    ]


# Rules on CPU time: events that use it, and what else does.

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


# A rule on applications that ask a table again and again whether there is work: job tables and queues.

# Whole tables read this often by statements that find next to nothing.
_SCANS_HZ = 2.0
_FEWEST = 5
_FOUND_ROWS = 1.0
_MOST_OF_THEM = 0.5
_AS_OFTEN = 0.25
# Statements that change rows, beside each that reads: a worker that finds work takes it.
_CHANGES = 0.2
_CHANGING = ("Com_insert", "Com_update", "Com_delete", "Com_replace")


def table_pollers(evidence: Evidence) -> list[Finding]:
    """Statements that read a whole table at a steady pace, find next to nothing and change nothing."""
    scans, selects = evidence.moved("Select_scan"), evidence.moved("Com_select")
    scans = min(scans, selects)  # SHOW is a scan as well
    often = scans / evidence.window_s if evidence.window_s > 0 else 0.0
    if scans < _FEWEST or often < _SCANS_HZ or scans < _MOST_OF_THEM * selects:
        return []
    changes = evidence.moved(*_CHANGING)
    sent = _sent(evidence, selects)
    if changes > _CHANGES * scans or (sent is not None and sent > _FOUND_ROWS):
        return []
    client, why = _asker(evidence, often)
    rows = [] if client is None else _rows(evidence, client)
    period_ms = next((row.period_ms for row in rows if row.period_ms), None)
    if client is None and sent is None:
        return []
    who = "A client" if client is None else f"{client.user or '(nobody)'}@{_host(client)}"
    pace = f"{period(period_ms)} ({rate(often)})" if period_ms else rate(often)
    text = f"{who} reads a whole table {pace} to see whether there is work: it keeps the CPUs awake."
    read = evidence.moved("Handler_read_rnd_next") / scans
    sentences = [
        f"{rate(often)} a SELECT without an index (Select_scan), {number(read, 0)} rows read for each",
        f"{changes} statements that change rows in the window"
        + (f", {number(sent, 2)} rows found by each SELECT" if sent is not None else ""),
    ]
    if client is not None:
        sentences.append(f"connection {client.id}: {why}")
    statement = _statement(evidence, client)
    if statement:
        sentences.append(f"its statement: {statement[:160]}")
    return [
        Finding(
            rule="table_poller",
            severity="fault",
            text=text,
            evidence=sentences,
            remedy=[
                "an index on what its WHERE names makes each look cheap; a longer pause makes them few",
                "or a queue that blocks until there is work, instead of asking",
                *([] if statement else ["which statement it is: powerprof queries"]),
            ],
            rate_hz=often,
            stack=stack_of(rows),
        )
    ]


def _sent(evidence: Evidence, selects: int) -> float | None:
    """Rows that a SELECT found, on average; None where the server does not count them (MySQL), or others SHOW."""
    if "Rows_sent" not in evidence.status_after or selects <= 0:
        return None
    looking = sum(evidence.moved(name) for name in evidence.status_after if name.startswith("Com_show_"))
    return None if looking else evidence.moved("Rows_sent") / selects


def _asker(evidence: Evidence, often: float) -> tuple[Client | None, str]:
    """The connection that sends them: by the server's count of it, else the one that is woken as often."""
    known = {client.id: client for sample in evidence.samples for client in sample if _asks(client)}
    counted = {
        number: sent.get("Com_select", 0)
        for number, sent in evidence.statements_by_connection.items()
        if number in known
    }
    first = max(counted.items(), key=lambda item: item[1], default=None)
    if first is not None and evidence.window_s > 0 and first[1] / evidence.window_s >= _MOST_OF_THEM * often:
        return known[first[0]], f"the server counted {rate(first[1] / evidence.window_s)} of them on it"
    if len(known) == 1 and not evidence.moved("Connections"):
        return next(iter(known.values())), "it is the only connection"
    woken = {
        one: sum(row.rate_hz if row.wakings_hz is None else row.wakings_hz for row in _rows(evidence, client))
        for one, client in known.items()
    }
    alike = [one for one, hertz in woken.items() if abs(hertz - often) <= max(_AS_OFTEN * often, 1.0) and hertz > 0]
    if len(alike) == 1:
        return known[alike[0]], f"its thread is woken {rate(woken[alike[0]])}, as often as they are asked"
    return None, ""


def _asks(client: Client) -> bool:
    return client.command in ("Query", "Sleep", "Execute") and client.user not in ("system user", "event_scheduler")


def _rows(evidence: Evidence, client: Client) -> list[ThreadWakeups]:
    tid = client.tid if client.tid is not None else evidence.tids.get(client.id)
    return [row for row in evidence.wakeups if tid is not None and row.tid == tid]


def _host(client: Client) -> str:
    return client.host.rpartition(":")[0] or client.host or "localhost"


def _statement(evidence: Evidence, client: Client | None) -> str:
    if client is None:
        return ""
    texts = Counter(
        seen.statement
        for sample in [evidence.clients_before, *evidence.samples]
        for seen in sample
        if seen.id == client.id and seen.statement
    )
    return texts.most_common(1)[0][0] if texts else evidence.last_statements.get(client.id, "")
