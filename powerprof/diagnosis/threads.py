# SPDX-License-Identifier: Apache-2.0
"""Rules on the server's own threads: what wakes by the clock, how often, and what sets its pace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from powerprof.diagnosis.evidence import Evidence, ThreadWakeups
from powerprof.diagnosis.findings import Finding
from powerprof.diagnosis.replication import role_of
from powerprof.diagnosis.words import each_second, rate, stack_of
from powerprof.text import period

# A wait that asks more often than this is polling: no thread of an idle MariaDB 10.11 or MySQL 5.5 comes near.
_POLLING_HZ = 10.0
_SHOWN_HZ = 0.04
_EVENTS_HZ = 0.5


@dataclass(frozen=True)
class Periodic:
    """A thread known for its clock: by name, or by a function of its stack where the server names none.

    `usual_hz` is the most that it makes on an idle server with default settings.
    """

    name: str
    does: str
    remedy: str
    functions: tuple[str, ...] = ()
    usual_hz: float = _POLLING_HZ


PERIODIC = (
    Periodic(
        # tpool_generic.cc: the pool's maintenance timer, 400 ms, whether or not there is work.
        "mysys/statement_timer",
        "runs the server's timers, and InnoDB's thread pool has one of 400 ms",
        "it has no setting; that pace is usual",
        ("timer_handler",),
    ),
    Periodic(
        "innodb/page_cleaner",
        "writes dirty pages",
        "innodb_max_dirty_pages_pct_lwm=0 lets it sleep while idle",
        ("buf_flush_page_cleaner",),
        2.0,
    ),
    Periodic("innodb/srv_master", "InnoDB's housekeeping, once a second", "it has no setting", ("srv_master_thread",)),
    Periodic(
        "innodb/srv_error_monitor",
        "watches InnoDB's latches, once a second",
        "it has no setting",
        ("srv_error_monitor_thread",),
    ),
    Periodic(
        "innodb/srv_lock_timeout", "ends lock waits, once a second", "it has no setting", ("srv_lock_timeout_thread",)
    ),
    Periodic(
        "innodb/srv_monitor", "writes InnoDB's monitor output", "innodb_status_output=OFF", ("srv_monitor_thread",)
    ),
    Periodic(
        "innodb/srv_purge",
        "removes old row versions",
        "let long transactions end: it follows the history list",
        ("srv_purge",),
    ),
    Periodic(
        "innodb/io_",
        "waits for asynchronous I/O",
        "innodb_use_native_aio=ON: emulated AIO looks for work",
        ("io_handler_thread",),
    ),
    Periodic("innodb/thread_pool", "InnoDB's background tasks and their timer", "it has no setting", ("tpool::",)),
    Periodic(
        "innodb/log_",
        "writes the redo log; spins while it waits",
        "innodb_log_writer_threads=OFF on a server with few commits (MySQL 8.0.22)",
    ),
    Periodic("innodb/buf_resize", "waits for a change of the buffer pool's size", "it has no setting"),
    Periodic("innodb/dict_stats", "recomputes statistics", "innodb_stats_auto_recalc=OFF"),
    Periodic("innodb/fts_optimize", "tidies full-text indexes", "it has no setting"),
    Periodic(
        "aria/checkpoint",
        "Aria's checkpoints, every 30 s",
        "aria_checkpoint_interval (seconds)",
        ("ma_checkpoint_background",),
    ),
    Periodic(
        "thread_pool/timer",
        "looks for stalled thread groups",
        "thread_pool_stall_limit (milliseconds)",
        ("timer_thread",),
    ),
    Periodic("threadpool/timer", "looks for stalled thread groups", "thread_pool_stall_limit (milliseconds)"),
    Periodic(
        "sql/event_scheduler",
        "waits for the next event",
        "SET GLOBAL event_scheduler=OFF where none is needed",
        ("Event_scheduler::run",),
    ),
    Periodic("sql/manager", "flushes tables every flush_time", "flush_time=0", ("handle_manager",)),
    Periodic("feedback/sender", "the feedback plugin", "feedback=OFF"),
    Periodic("sql/binlog_background", "tidies the binary log", "it has no setting"),
    Periodic("sql/slave_background", "tidies GTID positions", "it has no setting"),
    Periodic(
        "iou-wrk",
        "is the kernel's own worker of io_uring, and ends itself when idle",
        "innodb_use_native_aio=OFF does without it",
    ),
    Periodic("wsrep", "Galera's threads", "evs and gcs intervals in wsrep_provider_options"),
)


def _known(row: ThreadWakeups) -> Periodic | None:
    for periodic in PERIODIC:
        if periodic.name in (row.name or row.comm):
            return periodic
        if row.name is None and any(word in frame for word in periodic.functions for frame in row.stack):
            return periodic
    return None


def _label(row: ThreadWakeups) -> str:
    if row.name:
        return row.name.removeprefix("thread/")
    known = _known(row)
    return known.name if known else f"{row.comm} ({row.tid})"


def _by_thread(evidence: Evidence) -> list[list[ThreadWakeups]]:
    """The rows that a timer of the thread's own caused, of one thread each, most first."""
    threads: dict[int, list[ThreadWakeups]] = {}
    for row in evidence.wakeups:
        is_client = "one_connection" in (row.name or "")
        if row.origin == "own_timer" and not is_client and role_of(row.name, row.stack) is None:
            threads.setdefault(row.tid, []).append(row)
    return sorted(threads.values(), key=lambda rows: -_often(rows))


def _often(rows: Sequence[ThreadWakeups]) -> float:
    return sum(row.rate_hz for row in rows)


def _pace(rows: Sequence[ThreadWakeups]) -> str:
    periods = [row.period_ms for row in rows if row.period_ms]
    return f"{period(periods[0])} ({rate(_often(rows))})" if periods else rate(_often(rows))


def polling_waits(evidence: Evidence) -> list[Finding]:
    """Threads that ask by the clock instead of waiting to be told."""
    findings = []
    for rows in _by_thread(evidence):
        often, known = _often(rows), _known(rows[0])
        if often < (known.usual_hz if known else _POLLING_HZ):
            continue
        what = f", which {known.does}," if known else ""
        findings.append(
            Finding(
                rule="polling_wait",
                severity="fault",
                text=f"The thread {_label(rows[0])}{what} wakes by its own timer {_pace(rows)}.",
                evidence=[f"it ended {each_second(often, 'idle periods')}, each by a timer of its own"],
                remedy=[known.remedy if known else "which setting it is: the functions below say what it waits for"],
                rate_hz=often,
                stack=stack_of(rows),
            )
        )
    return findings


def periodic_threads(evidence: Evidence) -> list[Finding]:
    """Notes: every thread that wakes by the clock at a pace that is usual."""
    findings = []
    for rows in _by_thread(evidence):
        often, known = _often(rows), _known(rows[0])
        if not _SHOWN_HZ <= often < (known.usual_hz if known else _POLLING_HZ):
            continue
        findings.append(
            Finding(
                rule="periodic_thread",
                severity="note",
                text=f"{_label(rows[0])} wakes {_pace(rows)}" + (f": it {known.does}." if known else "."),
                evidence=[f"it ended {each_second(often, 'idle periods')}, each by a timer of its own"],
                remedy=[known.remedy] if known else [],
                rate_hz=often,
                stack=stack_of(rows),
            )
        )
    return findings


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
