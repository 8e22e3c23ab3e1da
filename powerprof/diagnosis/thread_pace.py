# SPDX-License-Identifier: Apache-2.0
"""Threads that wake periodically: their settings, and a prediction of the effect of more timer slack.

The prediction: a sleep of P with slack S ends between P and P + S. A timer interrupt runs the timers of a clock in the
order of their latest moments. It stops at the first timer whose earliest moment has not come (kernel/time/hrtimer.c,
__hrtimer_run_queues). Hence a sleep by the monotonic clock has two limits:

- It lasts P + S if another timer (the tick, other sleepers) is always queued before it.
- It ends with the first interrupt after P if other timers come one at a time, each set after the previous one ended.
  With L such timers per second at random, the mean delay is (1 - e^(-LS)) / L.

The trace does not show which limit applies, so a prediction is a range. On an idle MySQL 9.7 a thread with 97
wake-ups/s had 70, 52, 39, 18.5, 10 and 1.0 with slacks of 5, 10, 20, 50, 100 ms and 1 s. P + S gives 65, 49, 33, 16.6,
9.1 and 1.0.

Sleeps by the wall clock have a separate queue and always end with the first interrupt. Other wakers that end the same
wait R times per second at random shorten the sleeps: a sleep of T ends R / (1 - e^(-RT)) times per second. Wake-ups of
the thread elsewhere follow from its work after a sleep (a write, its lock): at best they become as rare as the sleeps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

import msgspec

from powerprof.diagnosis.evidence import Evidence, LiveRemedy, ThreadWakeups
from powerprof.diagnosis.wording import format_change
from powerprof.model.text import number

# More wake-ups per second than this are polling. No thread of an idle MariaDB 10.11 or MySQL 5.5 comes near.
POLLING_HZ = 10.0
_TRUTH = {"ON": "1", "YES": "1", "TRUE": "1", "OFF": "0", "NO": "0", "FALSE": "0"}
_REPORT_TO = {"mariadb": "MariaDB (jira.mariadb.org)", "mysql": "MySQL (bugs.mysql.com)"}


class PaceSetting(msgspec.Struct, frozen=True):
    """A setting that changes the pace of a thread.

    Attributes:
        value: The value that stops or slows the thread; empty for a time, which slows the thread if it is longer.
        unit: The unit of a time.
        when: The condition under which the value is right.
        live: Whether SET GLOBAL accepts the setting.
        usual: The default of PostgreSQL, if its statement is printed for a shorter time.
    """

    name: str
    value: str = ""
    unit: str = ""
    when: str = ""
    live: bool = False
    usual: int = 0


class PeriodicThread(msgspec.Struct, frozen=True):
    """A thread that is known to wake periodically.

    Attributes:
        name: A part of the thread name.
        functions: Functions that identify the thread if the server does not name it.
        usual_hz: The maximum on an idle server with default settings.
    """

    name: str
    does: str
    settings: tuple[PaceSetting, ...] = ()
    functions: tuple[str, ...] = ()
    usual_hz: float = POLLING_HZ


_STALLS = (PaceSetting("thread_pool_stall_limit", unit="ms"),)

PERIODIC = (
    # tpool_generic.cc: the maintenance timer of the pool runs every 400 ms, also without work.
    PeriodicThread(
        "mysys/statement_timer",
        "runs the server's timers, among them a 400 ms timer of InnoDB's thread pool",
        functions=("timer_handler",),
    ),
    PeriodicThread(
        "innodb/page_cleaner",
        "writes dirty pages",
        (PaceSetting("innodb_max_dirty_pages_pct_lwm", "0", live=True),),
        ("buf_flush_page_cleaner",),
        2.0,
    ),
    PeriodicThread(
        "innodb/srv_master", "does InnoDB's background maintenance once a second", functions=("srv_master_thread",)
    ),
    PeriodicThread(
        "innodb/srv_error_monitor", "checks InnoDB's latches once a second", functions=("srv_error_monitor_thread",)
    ),
    PeriodicThread(
        "innodb/srv_lock_timeout", "times out lock waits, once a second", functions=("srv_lock_timeout_thread",)
    ),
    PeriodicThread(
        "innodb/srv_monitor",
        "writes InnoDB's monitor output",
        (PaceSetting("innodb_status_output", "OFF", live=True),),
        ("srv_monitor_thread",),
    ),
    PeriodicThread("innodb/srv_purge", "removes old row versions", (), ("srv_purge",)),
    # MySQL with native I/O: each thread waits for at most 500 ms (os0file.cc). On an idle 9.7.4 the eight threads
    # woke 16 times/s together, and 4 times/s with one thread of each kind.
    PeriodicThread(
        "innodb/io_",
        "waits for asynchronous I/O",
        (
            PaceSetting("innodb_use_native_aio", "ON"),
            PaceSetting("innodb_read_io_threads", "1", when="after a restart"),
            PaceSetting("innodb_write_io_threads", "1", when="after a restart"),
        ),
        ("io_handler_thread",),
    ),
    PeriodicThread("innodb/thread_pool", "starts InnoDB's background tasks", functions=("tpool::",)),
    # MySQL 8.0.30 and later: log0files_governor.cc waits for at most 10 ms with any settings. On an idle MySQL 9.7.4
    # it woke 97 times/s, with innodb_log_writer_threads both ON and OFF.
    PeriodicThread("innodb/log_files_governor", "manages the redo log files", functions=("log_files_governor",)),
    PeriodicThread("innodb/log_checkpointer", "writes checkpoints of the redo log"),
    # clone0repl.cc checks every 100 ms for GTIDs to save.
    PeriodicThread("innodb/clone_gtid", "saves GTIDs", usual_hz=5.0),
    # MySQL 8.0.22 and later. On an idle 9.7.4 four threads woke 10 times/s each with ON. With OFF they did not wake.
    PeriodicThread(
        "innodb/log_",
        "takes part in writing the redo log",
        (PaceSetting("innodb_log_writer_threads", "OFF", when="on a server with few commits"),),
        usual_hz=5.0,
    ),
    PeriodicThread("innodb/buf_resize", "waits for a change of the buffer pool's size"),
    PeriodicThread(
        "innodb/dict_stats", "recomputes statistics", (PaceSetting("innodb_stats_auto_recalc", "OFF", live=True),)
    ),
    PeriodicThread("innodb/fts_optimize", "optimizes full-text indexes"),
    PeriodicThread(
        "aria/checkpoint",
        "writes Aria's checkpoints, every 30 s",
        (PaceSetting("aria_checkpoint_interval", unit="s"),),
        ("ma_checkpoint_background",),
    ),
    PeriodicThread("thread_pool/timer", "looks for stalled thread groups", _STALLS, ("timer_thread",)),
    PeriodicThread("threadpool/timer", "looks for stalled thread groups", _STALLS),
    PeriodicThread(
        "sql/event_scheduler",
        "waits for the next event",
        (PaceSetting("event_scheduler", "OFF", when="if no event is needed", live=True),),
        ("Event_scheduler::run",),
    ),
    PeriodicThread(
        "sql/manager",
        "flushes tables every flush_time",
        (PaceSetting("flush_time", "0", live=True),),
        ("handle_manager",),
    ),
    PeriodicThread("feedback/sender", "sends feedback", (PaceSetting("feedback", "OFF"),)),
    PeriodicThread("sql/binlog_background", "cleans up the binary log"),
    PeriodicThread("sql/slave_background", "cleans up GTID positions"),
    PeriodicThread(
        "iou-wrk",
        "is the kernel's io_uring worker, which ends when idle",
        (PaceSetting("innodb_use_native_aio", "OFF"),),
    ),
    # Processes of PostgreSQL, by their titles. On an idle server the writers sleep 50 and 25 times as long
    # (bgwriter.c, walwriter.c).
    PeriodicThread("background writer", "writes dirty pages", (PaceSetting("bgwriter_delay", unit="ms", usual=200),)),
    PeriodicThread(
        "walwriter", "writes the transaction log (WAL)", (PaceSetting("wal_writer_delay", unit="ms", usual=200),)
    ),
    PeriodicThread(
        "autovacuum launcher", "looks for tables to vacuum or analyze", (PaceSetting("autovacuum_naptime", unit="s"),)
    ),
    PeriodicThread("stats collector", "collects the statistics of the other processes"),
    PeriodicThread("logical replication launcher", "looks for subscriptions"),
    # server.c of Redis and Valkey: serverCron runs `hz` times a second, also on an idle server.
    PeriodicThread(
        "redis-server",
        "runs periodic maintenance (serverCron)",
        (PaceSetting("hz", "1", when="in redis.conf, or CONFIG SET hz (runs per second, 10 by default)"),),
        usual_hz=5.0,
    ),
    PeriodicThread(
        "valkey-server",
        "runs periodic maintenance (serverCron)",
        (PaceSetting("hz", "1", when="in valkey.conf, or CONFIG SET hz (runs per second, 10 by default)"),),
        usual_hz=5.0,
    ),
    PeriodicThread("mc-lrumaint", "maintains memcached's LRU lists, more often while they change"),
    PeriodicThread("wsrep", "runs Galera replication, at the evs and gcs intervals in wsrep_provider_options"),
)
SETTINGS = tuple(sorted({setting.name for periodic in PERIODIC for setting in periodic.settings}))
"""Settings to read from a server, so that a value in force is not recommended."""


def find_periodic_thread(row: ThreadWakeups) -> PeriodicThread | None:
    """Return the table entry for the thread of a row; None for an unknown thread."""
    for periodic in PERIODIC:
        if periodic.name in (row.name or row.comm):
            return periodic
        if "/" not in (row.name or "") and any(word in frame for word in periodic.functions for frame in row.stack):
            return periodic
    return None


def list_settings(periodic: PeriodicThread, evidence: Evidence) -> list[str]:
    """Return the advice on settings, one line each, without settings that are in force or unknown to the server."""
    advice = (_advise(setting, evidence) for setting in periodic.settings)
    return [line for line in advice if line]


def list_live_settings(periodic: PeriodicThread | None, evidence: Evidence) -> list[LiveRemedy]:
    """Return the recommended settings that a running server accepts."""
    return [
        LiveRemedy(variable=setting.name, value=setting.value)
        for setting in (periodic.settings if periodic else ())
        if setting.live and evidence.variables.get(setting.name) is not None and _advise(setting, evidence)
    ]


def _advise(setting: PaceSetting, evidence: Evidence) -> str:
    now = evidence.variables.get(setting.name)
    if now is None and evidence.variables:
        return ""  # This release has no such setting.
    if not setting.value:
        advice = f"a longer {setting.name}" + (f", which is {now} {setting.unit}" if now is not None else "")
        is_short = (evidence.read_number(setting.name) or setting.usual) < setting.usual
        return f"{advice}: {format_change(setting.name, f'{setting.usual}{setting.unit}')}" if is_short else advice
    if now is not None and _is_same_value(now, setting.value):
        return ""
    return " ".join(
        part for part in (f"{setting.name}={setting.value}", setting.when, f"(it is {now})" if now else "") if part
    )


def _is_same_value(now: str, wanted: str) -> bool:
    first, second = (_TRUTH.get(value.upper(), value) for value in (now, wanted))
    try:
        return float(first) == float(second)
    except ValueError:
        return first.upper() == second.upper()


def list_polling_remedies(periodic: PeriodicThread | None, evidence: Evidence, pace: str) -> list[str]:
    """Return the settings that stop a polling wait; without any, the data for a report to the authors."""
    settings = list_settings(periodic, evidence) if periodic else []
    if settings:
        return settings
    in_force = [
        f"{setting.name}={evidence.variables[setting.name]} is already set"
        for setting in (periodic.settings if periodic else ())
        if setting.value and setting.name in evidence.variables
    ]
    return [
        *in_force,
        "no known setting stops it"
        if periodic
        else "the thread is unknown: its functions show the reason for the wait",
        f"to report this to {_REPORT_TO.get(evidence.family, 'its developers')}, send: version "
        f"{evidence.version}; {pace}; "
        "the stack above",
    ]


DEFAULT_NS = 50_000
"""The timer slack of a thread by default."""
TRIED_NS = 50_000_000
"""The timer slack that `cure` tries (`--slack 50ms`)."""
_INNERMOST = 5
# A rate times a time below this is treated as 0, because the quotients below would lose all digits.
_NEGLIGIBLE = 1e-6
# timer_create, timerfd, io_uring and mq_timedreceive ignore the slack of a thread.
_REACTS = re.compile(
    r"^_*(?:libc_)?(poll|ppoll|select|pselect|epoll_p?wait|nanosleep|clock_nanosleep|usleep|sleep|sigtimedwait"
    r"|pthread_cond_(?:timed|clock)wait|pthread_mutex_timedlock|sem_(?:timed|clock)wait|io_p?getevents|futex\w*)(?:64|_time64|2)?(?:[@+.].*)?$"
)
# Functions that wait by the wall clock, unless the lock was made for the monotonic one.
_EITHER_CLOCK = re.compile(r"^_*(pthread_cond_timedwait|pthread_mutex_timedlock|sem_timedwait|futex)")
_DEAF = re.compile(r"timerfd|io_uring|mq_timedreceive|sigwait$|sigwaitinfo")


class SlackPrediction(msgspec.Struct, frozen=True):
    """Wake-ups per second of a thread now and with more timer slack.

    Attributes:
        then_hz: The prediction, or its lower limit.
        most_hz: The upper limit, if the timers of other threads come one at a time.
        is_bound: Whether the prediction is a best case, because the sleeps are not regular.
    """

    now_hz: float
    then_hz: float
    most_hz: float
    slack_ns: int
    is_bound: bool

    @property
    def saved_hz(self) -> float:
        """The saved wake-ups per second."""
        return self.now_hz - self.then_hz


def reacts_to_slack(stack: Sequence[str]) -> bool | None:
    """Return whether slack delays the end of a wait at this stack (innermost first); None for unknown functions."""
    for frame in stack[:_INNERMOST]:
        name = frame.partition("(")[0]
        if _DEAF.search(name):
            return False
        if _REACTS.match(name):
            return True
    return None


class _WaitingPlace(msgspec.Struct):
    """A stack at which a thread waits, with the wake-ups per second by its own timer and by others."""

    timers_hz: float = 0.0
    others_hz: float = 0.0
    is_regular: bool = False

    @property
    def hz(self) -> float:
        """All wake-ups per second."""
        return self.timers_hz + self.others_hz

    def predict_hz(self, more_s: float) -> float:
        """Return the wake-ups per second if each sleep lasts `more_s` longer."""
        others_hz = self.others_hz
        # Other wake-ups come at random and shorten the sleeps. This is the length of a sleep without them.
        has_others = others_hz >= _NEGLIGIBLE * self.hz
        sleep_s = math.log(self.hz / self.timers_hz) / others_hz if has_others else 1 / self.hz
        sleep_s = max(sleep_s + more_s, 1e-9)
        return 1 / sleep_s if others_hz * sleep_s < _NEGLIGIBLE else others_hz / -math.expm1(-others_hz * sleep_s)


def predict_slack(
    rows: Iterable[ThreadWakeups],
    slack_ns: int,
    others_hz: float,
    now_slack_ns: int = DEFAULT_NS,
    wall_clock: bool | None = None,
    interrupts_hz: float = 0.0,
) -> SlackPrediction | None:
    """Return the effect of more slack on one thread; None if none of its waits is known to react.

    Rows of one stack share one count of wakings.

    Args:
        rows: The rows of the thread.
        slack_ns: The new slack.
        others_hz: Timers of other sleepers per second of one CPU.
        now_slack_ns: The present slack.
        wall_clock: Whether the thread waits for locks by the wall clock. With None the prediction is a bound.
        interrupts_hz: Other timer interrupts of the CPU, such as ticks. They set themselves again before they let
            another timer end early.
    """
    places: dict[tuple[str, ...], _WaitingPlace] = {}
    now = 0.0
    for row in rows:
        place = places.setdefault(tuple(row.stack), _WaitingPlace())
        if row.origin != "own_timer":
            place.others_hz += row.woken_hz
        elif not place.timers_hz:
            place.timers_hz, place.is_regular = row.woken_hz, row.period_ms is not None
        else:
            continue
        now += row.woken_hz
    waits = {stack: place for stack, place in places.items() if place.timers_hz > 0 and reacts_to_slack(stack)}
    if not waits:
        return None
    cycles = then = most = 0.0
    is_bound = False
    for stack, place in waits.items():
        is_either_clock = _waits_by_either_clock(stack)
        is_bound |= not place.is_regular or (is_either_clock and wall_clock is None)
        is_wall_clock = is_either_clock and wall_clock
        rivals_hz = max(others_hz, interrupts_hz) if is_wall_clock else others_hz
        first_s = _predict_delay_s(slack_ns / 1e9, rivals_hz) - _predict_delay_s(now_slack_ns / 1e9, rivals_hz)
        cycles += place.hz
        then += place.predict_hz(first_s if is_wall_clock else (slack_ns - now_slack_ns) / 1e9)
        most += place.predict_hz(first_s)
    # The thread also wakes elsewhere, by more than 2 %.
    is_bound |= now - cycles > 0.02 * now
    return SlackPrediction(now, min(now, then * now / cycles), min(now, most * now / cycles), slack_ns, is_bound)


def _waits_by_either_clock(stack: Sequence[str]) -> bool:
    frames = [frame.partition("(")[0] for frame in stack[:_INNERMOST]]
    first = next((frame for frame in frames if _REACTS.match(frame)), "")
    return _EITHER_CLOCK.match(first) is not None


def _predict_delay_s(slack_s: float, others_hz: float) -> float:
    """Return the mean delay of a sleep that ends with the first of `others_hz` interrupts."""
    if others_hz * slack_s < _NEGLIGIBLE:
        return slack_s
    return -math.expm1(-others_hz * slack_s) / others_hz


def format_prediction(then_hz: float, most_hz: float | None, is_bound: bool) -> str:
    """Return `18.9`, `at best 18.9`, or a range such as `5.0 to 29.1` if its ends differ by more than 10 %."""
    if most_hz is not None and most_hz > 1.1 * then_hz:
        return f"{number(then_hz, 1)} to {number(most_hz, 1)}"
    return f"{'at best ' * is_bound}{number(then_hz, 1)}"


def group_by_own_timer(rows: Iterable[ThreadWakeups]) -> dict[int, list[ThreadWakeups]]:
    """Return the rows that timers of the threads themselves caused, by thread; 0 stands for all ended threads."""
    threads: dict[int, list[ThreadWakeups]] = {}
    for row in rows:
        if row.origin == "own_timer":
            threads.setdefault(row.tid, []).append(row)
    return threads


def sum_woken_hz(rows: Iterable[ThreadWakeups]) -> float:
    """Return the wake-ups per second of the rows of one thread. Rows of one stack share one count of wakings."""
    stacks: dict[tuple[str, ...], list[ThreadWakeups]] = {}
    for row in rows:
        stacks.setdefault(tuple(row.stack), []).append(row)
    return sum(
        max(sum(row.rate_hz for row in same), *(row.wakings_hz or 0.0 for row in same)) for same in stacks.values()
    )


def explain_no_slack(rows: Iterable[ThreadWakeups], language: str | None) -> str | None:
    """Return why timer slack is not proposed for the own timers of a thread; None if it can be tried.

    `language`: the run-time whose timers run on a few threads of the process, if any.
    """
    if language is not None:
        return f"it is a program of {language}: timer slack would delay all its own timers"
    reactions = {reacts_to_slack(row.stack) for row in rows if row.stack}
    return "timer slack does not change how long it waits" if reactions == {False} else None


def rank_by_saving(evidence: Evidence) -> list[tuple[ThreadWakeups, SlackPrediction]]:
    """Return the most frequent row of each thread with the effect of TRIED_NS, the largest saving first."""
    threads: dict[int, list[ThreadWakeups]] = {}
    for row in evidence.wakeups:
        if row.tid:
            threads.setdefault(row.tid, []).append(row)
    ranking = []
    for rows in threads.values():
        own_hz = sum(row.rate_hz for row in rows if row.origin == "own_timer")
        others_hz = max(0.0, (evidence.timers_hz or 0.0) - own_hz / (evidence.cpus or 1))
        prediction = predict_slack(rows, TRIED_NS, others_hz)
        if prediction is not None:
            ranking.append((max(rows, key=lambda row: row.woken_hz), prediction))
    return sorted(ranking, key=lambda entry: -entry[1].saved_hz)
