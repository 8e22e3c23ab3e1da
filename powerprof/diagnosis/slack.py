# SPDX-License-Identifier: Apache-2.0
"""What more timer slack would save, predicted from a traced window. Pure.

A sleep of P that may end late by S ends between P and P + S. A timer interrupt takes a clock's timers in the order of
their latest moments, and stops at the first whose earliest moment is still to come (kernel/time/hrtimer.c,
__hrtimer_run_queues). So a sleep by the monotonic clock lasts P + S where another timer (the tick, other sleepers) is
always waiting before it, and ends with the first interrupt after P where others come one at a time, each set only
after the one before has ended: (1 - e^(-LS)) / L late where L come a second at random. Which of both it is cannot be
seen beforehand, so there are two ends. On an idle MySQL 9.7 97/s became 70, 52, 39, 18.5, 10 and 1.0 with slacks of 5,
10, 20, 50, 100 ms and 1 s; P + S gives 65, 49, 33, 16.6, 9.1 and 1.0. Sleeps by the wall clock have its queue to
themselves and always end with the first interrupt. Who else ends the same wait, R times a second at random, cuts sleeps
short: one of T ends R / (1 - e^(-RT)) times a second. Where the thread is woken elsewhere, it is by what it does once
it has woken (a write, its lock): as often a sleep as before, at best.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from powerprof.diagnosis.evidence import Evidence, ThreadWakeups
from powerprof.model.text import number

DEFAULT_NS = 50_000
TRIED_NS = 50_000_000  # `--slack 50ms`
_INNERMOST = 5
_NOTHING = 1e-6
_WORTH = 0.02
_APART = 1.1
# timer_create, timerfd, io_uring and mq_timedreceive do not look at a thread's slack.
_REACTS = re.compile(
    r"^_*(?:libc_)?(poll|ppoll|select|pselect|epoll_p?wait|nanosleep|clock_nanosleep|usleep|sleep|sigtimedwait"
    r"|pthread_cond_(?:timed|clock)wait|pthread_mutex_timedlock|sem_(?:timed|clock)wait|io_p?getevents|futex\w*)(?:64|_time64|2)?(?:[@+.].*)?$"
)
# By the wall clock, unless the lock was made for the monotonic one.
_EITHER_CLOCK = re.compile(r"^_*(pthread_cond_timedwait|pthread_mutex_timedlock|sem_timedwait|futex)")
_DEAF = re.compile(r"timerfd|io_uring|mq_timedreceive|sigwait$|sigwaitinfo")


@dataclass(frozen=True)
class Predicted:
    """How often a thread would wake with that slack, and now: `then_hz`, or up to `most_hz` where the timers of others
    come one at a time. `is_bound`: at best, for its sleeps are not regular."""

    now_hz: float
    then_hz: float
    most_hz: float
    slack_ns: int
    is_bound: bool

    @property
    def saved_hz(self) -> float:
        """Wake-ups a second fewer."""
        return self.now_hz - self.then_hz


def reacts(stack: Sequence[str]) -> bool | None:
    """Whether a wait at this stack (innermost first) ends later with more slack; None where its functions do not
    say."""
    for frame in stack[:_INNERMOST]:
        name = frame.partition("(")[0]
        if _DEAF.search(name):
            return False
        if _REACTS.match(name):
            return True
    return None


def woken_hz(row: ThreadWakeups) -> float:
    """How often it is woken there."""
    return max(row.rate_hz, row.wakings_hz or 0.0)


def predicted(
    rows: Iterable[ThreadWakeups],
    slack_ns: int,
    others_hz: float,
    now_slack_ns: int = DEFAULT_NS,
    wall_clock: bool | None = None,
    interrupts_hz: float = 0.0,
) -> Predicted | None:
    """What one thread's wake-ups become, of its rows; None where none of its waits is known to react.

    `others_hz`: timers of other sleepers on one CPU; `interrupts_hz`: all other timer interrupts of it, ticks among
    them, which set themselves again before they let another timer end early. `wall_clock`: whether it waits for locks
    by the wall clock; None: unknown, and then it is a bound. Rows of one place have one count of wakings.
    """
    places: dict[tuple[str, ...], _WaitingPlace] = {}
    now = 0.0
    for row in rows:
        place = places.setdefault(tuple(row.stack), _WaitingPlace())
        hertz = woken_hz(row)
        if row.origin != "own_timer":
            place.others_hz += hertz
        elif not place.timers_hz:
            place.timers_hz, place.is_regular = hertz, row.period_ms is not None
        else:
            continue
        now += hertz
    waits = {stack: place for stack, place in places.items() if place.timers_hz > 0 and reacts(stack)}
    if not waits:
        return None
    cycles = then = most = 0.0
    is_bound = False
    for stack, place in waits.items():
        either = _waits_by_either(stack)
        is_bound |= not place.is_regular or (either and wall_clock is None)
        by_wall = either and wall_clock
        often_hz = max(others_hz, interrupts_hz) if by_wall else others_hz
        first_s = _until_first_s(slack_ns / 1e9, often_hz) - _until_first_s(now_slack_ns / 1e9, often_hz)
        cycles += place.hz
        then += place.then_hz(first_s if by_wall else (slack_ns - now_slack_ns) / 1e9)
        most += place.then_hz(first_s)
    is_bound |= now - cycles > _WORTH * now
    return Predicted(now, min(now, then * now / cycles), min(now, most * now / cycles), slack_ns, is_bound)


def then_text(then_hz: float, most_hz: float | None, is_bound: bool) -> str:
    """`18.9`, `at best 18.9`, or `5.0 to 29.1` where the timers of others decide."""
    if most_hz is not None and most_hz > _APART * then_hz:
        return f"{number(then_hz, 1)} to {number(most_hz, 1)}"
    return f"{'at best ' * is_bound}{number(then_hz, 1)}"


@dataclass
class _WaitingPlace:
    """Where a thread waits: how often its own timer ends that, and somebody else."""

    timers_hz: float = 0.0
    others_hz: float = 0.0
    is_regular: bool = False

    @property
    def hz(self) -> float:
        """Together."""
        return self.timers_hz + self.others_hz

    def then_hz(self, more_s: float) -> float:
        """How often it wakes where its sleeps last so much longer."""
        return _woken_hz(max(_sleep_s(self.hz, self.timers_hz) + more_s, 1e-9), self.others_hz)


def _sleep_s(now_hz: float, timers_hz: float) -> float:
    """How long a thread that wakes so often sleeps where nothing but its timer ends it, as it does `timers_hz` times a
    second: the rest comes at random and cuts sleeps short."""
    rest = now_hz - timers_hz
    return 1 / now_hz if rest < _NOTHING * now_hz else math.log(now_hz / timers_hz) / rest


def _woken_hz(sleep_s: float, rest_hz: float) -> float:
    """The way back: how often it wakes that sleeps so long, or until something of `rest_hz` comes."""
    return 1 / sleep_s if rest_hz * sleep_s < _NOTHING else rest_hz / -math.expm1(-rest_hz * sleep_s)


def _waits_by_either(stack: Sequence[str]) -> bool:
    """Whether the function that waits may do so by either clock."""
    frames = [frame.partition("(")[0] for frame in stack[:_INNERMOST]]
    first = next((frame for frame in frames if _REACTS.match(frame)), "")
    return _EITHER_CLOCK.match(first) is not None


def _until_first_s(slack_s: float, others_hz: float) -> float:
    """How late a sleep ends that the first other interrupt may end."""
    if others_hz * slack_s < 1e-6:
        return slack_s
    return -math.expm1(-others_hz * slack_s) / others_hz


def by_thread(evidence: Evidence) -> dict[int, list[ThreadWakeups]]:
    """The rows of each thread."""
    threads: dict[int, list[ThreadWakeups]] = {}
    for row in evidence.wakeups:
        if row.tid:
            threads.setdefault(row.tid, []).append(row)
    return threads


def most_helpful(evidence: Evidence) -> list[tuple[ThreadWakeups, Predicted]]:
    """The threads that TRIED_NS of slack would save most of, each with its prediction, the most first."""
    found = []
    for rows in by_thread(evidence).values():
        own_hz = sum(row.rate_hz for row in rows if row.origin == "own_timer")
        others_hz = max(0.0, (evidence.timers_hz or 0.0) - own_hz / (evidence.cpus or 1))
        one = predicted(rows, TRIED_NS, others_hz)
        if one is not None:
            found.append((max(rows, key=woken_hz), one))
    return sorted(found, key=lambda each: -each[1].saved_hz)
