# SPDX-License-Identifier: Apache-2.0
"""Threads of a server that wake by the clock: what each does, and which setting is known to change its pace."""

from __future__ import annotations

from dataclasses import dataclass

from powerprof.diagnosis.evidence import Evidence, LiveRemedy, ThreadWakeups

# A wait that asks more often than this is polling: no thread of an idle MariaDB 10.11 or MySQL 5.5 comes near.
POLLING_HZ = 10.0
_TRUTH = {"ON": "1", "YES": "1", "TRUE": "1", "OFF": "0", "NO": "0", "FALSE": "0"}
NO_SETTING = "no setting is known that ends it"
_REPORT_TO = {"mariadb": "MariaDB (jira.mariadb.org)", "mysql": "MySQL (bugs.mysql.com)"}


@dataclass(frozen=True)
class PaceSetting:
    """A setting that changes a thread's pace. `value` is what ends or slows it; where it is a time, `value` is empty
    and `unit` says in what: longer is slower. `when` is for whom that is right, `live` that SET GLOBAL takes it."""

    name: str
    value: str = ""
    unit: str = ""
    when: str = ""
    live: bool = False


@dataclass(frozen=True)
class Periodic:
    """A thread known for its clock: by name, or by a function of its stack where the server names none.

    `usual_hz` is the most that it makes on an idle server with default settings.
    """

    name: str
    does: str
    settings: tuple[PaceSetting, ...] = ()
    functions: tuple[str, ...] = ()
    usual_hz: float = POLLING_HZ


_STALLS = (PaceSetting("thread_pool_stall_limit", unit="ms"),)

PERIODIC = (
    # tpool_generic.cc: the pool's maintenance timer, 400 ms, whether or not there is work.
    Periodic(
        "mysys/statement_timer",
        "runs the server's timers, and InnoDB's thread pool has one of 400 ms",
        functions=("timer_handler",),
    ),
    Periodic(
        "innodb/page_cleaner",
        "writes dirty pages",
        (PaceSetting("innodb_max_dirty_pages_pct_lwm", "0", live=True),),
        ("buf_flush_page_cleaner",),
        2.0,
    ),
    Periodic("innodb/srv_master", "keeps house for InnoDB, once a second", functions=("srv_master_thread",)),
    Periodic(
        "innodb/srv_error_monitor", "watches InnoDB's latches, once a second", functions=("srv_error_monitor_thread",)
    ),
    Periodic("innodb/srv_lock_timeout", "ends lock waits, once a second", functions=("srv_lock_timeout_thread",)),
    Periodic(
        "innodb/srv_monitor",
        "writes InnoDB's monitor output",
        (PaceSetting("innodb_status_output", "OFF", live=True),),
        ("srv_monitor_thread",),
    ),
    Periodic("innodb/srv_purge", "removes old row versions, as long as old transactions are open", (), ("srv_purge",)),
    # MySQL with native I/O: each waits for at most 500 ms (os0file.cc). Seen on an idle 9.7.4: eight threads, 16/s
    # together, and 4/s with one of each kind.
    Periodic(
        "innodb/io_",
        "waits for asynchronous I/O",
        (
            PaceSetting("innodb_use_native_aio", "ON"),
            PaceSetting("innodb_read_io_threads", "1", when="after a restart"),
            PaceSetting("innodb_write_io_threads", "1", when="after a restart"),
        ),
        ("io_handler_thread",),
    ),
    Periodic("innodb/thread_pool", "starts InnoDB's background tasks", functions=("tpool::",)),
    # MySQL 8.0.30 and later; log0files_governor.cc waits for at most 10 ms, whatever the settings. Seen on an idle
    # MySQL 9.7.4: 97/s with innodb_log_writer_threads ON as OFF.
    Periodic(
        "innodb/log_files_governor", "keeps the redo log's files at their size", functions=("log_files_governor",)
    ),
    Periodic("innodb/log_checkpointer", "makes checkpoints of the redo log"),
    # clone0repl.cc: looks every 100 ms whether there are GTIDs to save.
    Periodic("innodb/clone_gtid", "saves GTIDs", usual_hz=5.0),
    # MySQL 8.0.22 and later. Seen on an idle 9.7.4: four threads, 10/s each with ON, none with OFF.
    Periodic(
        "innodb/log_",
        "has its part in writing the redo log",
        (PaceSetting("innodb_log_writer_threads", "OFF", when="on a server with few commits"),),
        usual_hz=5.0,
    ),
    Periodic("innodb/buf_resize", "waits for a change of the buffer pool's size"),
    Periodic(
        "innodb/dict_stats", "recomputes statistics", (PaceSetting("innodb_stats_auto_recalc", "OFF", live=True),)
    ),
    Periodic("innodb/fts_optimize", "tidies full-text indexes"),
    Periodic(
        "aria/checkpoint",
        "makes Aria's checkpoints, every 30 s",
        (PaceSetting("aria_checkpoint_interval", unit="s"),),
        ("ma_checkpoint_background",),
    ),
    Periodic("thread_pool/timer", "looks for stalled thread groups", _STALLS, ("timer_thread",)),
    Periodic("threadpool/timer", "looks for stalled thread groups", _STALLS),
    Periodic(
        "sql/event_scheduler",
        "waits for the next event",
        (PaceSetting("event_scheduler", "OFF", when="where no event is needed", live=True),),
        ("Event_scheduler::run",),
    ),
    Periodic(
        "sql/manager",
        "flushes tables every flush_time",
        (PaceSetting("flush_time", "0", live=True),),
        ("handle_manager",),
    ),
    Periodic("feedback/sender", "sends feedback", (PaceSetting("feedback", "OFF"),)),
    Periodic("sql/binlog_background", "tidies the binary log"),
    Periodic("sql/slave_background", "tidies GTID positions"),
    Periodic(
        "iou-wrk",
        "is the kernel's own worker of io_uring, and ends itself when idle",
        (PaceSetting("innodb_use_native_aio", "OFF"),),
    ),
    # PostgreSQL's processes, by what they say that they are. Idle, the writers sleep 50 and 25 times as long
    # (bgwriter.c, walwriter.c).
    Periodic("background writer", "writes dirty pages", (PaceSetting("bgwriter_delay", unit="ms"),)),
    Periodic("walwriter", "writes the log of transactions", (PaceSetting("wal_writer_delay", unit="ms"),)),
    Periodic("autovacuum launcher", "looks for tables to tidy", (PaceSetting("autovacuum_naptime", unit="s"),)),
    Periodic("stats collector", "counts what the others report"),
    Periodic("logical replication launcher", "looks for subscriptions"),
    # server.c of Redis and Valkey: serverCron runs `hz` times a second, idle as busy.
    Periodic(
        "redis-server",
        "runs its own chores (serverCron)",
        (PaceSetting("hz", "1", when="in redis.conf, or CONFIG SET hz: how often it does so (10 by default)"),),
        usual_hz=5.0,
    ),
    Periodic(
        "valkey-server",
        "runs its own chores (serverCron)",
        (PaceSetting("hz", "1", when="in valkey.conf, or CONFIG SET hz: how often it does so (10 by default)"),),
        usual_hz=5.0,
    ),
    Periodic("mc-lrumaint", "tidies memcached's lists, more often while they change"),
    Periodic("wsrep", "replicates for Galera, at the intervals of evs and gcs in wsrep_provider_options"),
)
SETTINGS = tuple(sorted({setting.name for periodic in PERIODIC for setting in periodic.settings}))
"""What a server is asked for, so that a setting in force is never recommended."""


def known(row: ThreadWakeups) -> Periodic | None:
    """The thread that a row is about, where it is a known one."""
    for periodic in PERIODIC:
        if periodic.name in (row.name or row.comm):
            return periodic
        if row.name is None and any(word in frame for word in periodic.functions for frame in row.stack):
            return periodic
    return None


def settings_of(periodic: Periodic, evidence: Evidence) -> list[str]:
    """What can be set, a line each: nothing that this server has already or does not know."""
    advice = (_advice(setting, evidence) for setting in periodic.settings)
    return [line for line in advice if line]


def live_settings(periodic: Periodic | None, evidence: Evidence) -> list[LiveRemedy]:
    """Those of them that a running server takes, and this one has otherwise."""
    return [
        LiveRemedy(variable=setting.name, value=setting.value)
        for setting in (periodic.settings if periodic else ())
        if setting.live and evidence.variables.get(setting.name) is not None and _advice(setting, evidence)
    ]


def _advice(setting: PaceSetting, evidence: Evidence) -> str:
    now = evidence.variables.get(setting.name)
    if now is None and evidence.variables:
        return ""  # this release has no such setting
    if not setting.value:
        return f"a longer {setting.name}" + (f", which is {now} {setting.unit}" if now is not None else "")
    if now is not None and _same(now, setting.value):
        return ""
    return " ".join(
        part for part in (f"{setting.name}={setting.value}", setting.when, f"(it is {now})" if now else "") if part
    )


def _same(now: str, wanted: str) -> bool:
    first, second = (_TRUTH.get(value.upper(), value) for value in (now, wanted))
    try:
        return float(first) == float(second)
    except ValueError:
        return first.upper() == second.upper()


def remedy(periodic: Periodic | None, evidence: Evidence, pace: str) -> list[str]:
    """What ends a wait that polls; where no setting is known to, what to tell those who wrote it."""
    settings = settings_of(periodic, evidence) if periodic else []
    if settings:
        return settings
    tried = [
        f"{setting.name}={evidence.variables[setting.name]} is in force already"
        for setting in (periodic.settings if periodic else ())
        if setting.value and setting.name in evidence.variables
    ]
    whom = _REPORT_TO.get(evidence.family, "its makers")
    return [
        *tried,
        NO_SETTING if periodic else "the thread is not a known one: its functions say what it waits for",
        f"to report it to {whom}, send: version {evidence.version}; {pace}; the stack above",
    ]
