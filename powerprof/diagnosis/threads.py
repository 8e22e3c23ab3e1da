# SPDX-License-Identifier: Apache-2.0
"""Rules on the server's own threads: what wakes by the clock, how often, and what sets its pace."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof.diagnosis.evidence import Evidence, ThreadWakeups
from powerprof.diagnosis.findings import Finding
from powerprof.diagnosis.periodic import POLLING_HZ, known, remedy, settings_of
from powerprof.diagnosis.replication import role_of
from powerprof.diagnosis.words import each_second, rate, stack_of
from powerprof.text import period

_SHOWN_HZ = 0.04
_ASKED_HZ = 20.0
_EVENTS_HZ = 0.5


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
    """Threads that ask by the clock instead of waiting to be told, those with one remedy in one finding."""
    alike: dict[object, list[list[ThreadWakeups]]] = {}
    for rows in _by_thread(evidence):
        periodic = known(rows[0])
        if _woken(rows, evidence) >= (periodic.usual_hz if periodic else POLLING_HZ):
            alike.setdefault(periodic or rows[0].tid, []).append(rows)
    return [_polling(threads, evidence) for threads in alike.values()]


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
        evidence=[_ended(every)],
        remedy=remedy(periodic, evidence, pace),
        rate_hz=woken_hz,
        stack=stack_of(every),
    )


def periodic_threads(evidence: Evidence) -> list[Finding]:
    """Notes: every thread that wakes by the clock at a pace that is usual."""
    findings = []
    for rows in _by_thread(evidence):
        woken_hz, periodic = _woken(rows, evidence), known(rows[0])
        if not _SHOWN_HZ <= woken_hz < (periodic.usual_hz if periodic else POLLING_HZ):
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


def _ended(rows: Sequence[ThreadWakeups]) -> str:
    ended_hz = _often(rows)
    if ended_hz <= 0:
        return "no idle period ended with it: others kept the CPUs busy"
    return f"{each_second(ended_hz, 'idle periods')} ended with it, by timers of its own"


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
                f"ALTER EVENT {first.name} ON SCHEDULE EVERY 1 MINUTE (or DISABLE)",
                "SET GLOBAL event_scheduler=OFF where no event is needed",
            ],
            rate_hz=often,
        )
    ]
