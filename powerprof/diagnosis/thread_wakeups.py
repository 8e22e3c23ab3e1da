# SPDX-License-Identifier: Apache-2.0
"""The rows of an attribution as evidence of a diagnosis."""

from __future__ import annotations

from powerprof.diagnosis.evidence import ThreadWakeups
from powerprof.model.attribution import Attribution, Wakeup, Waking

_MOST_ROWS = 80
_MOST_FRAMES = 24
_TIMERS = ("timer", "tick")


def compute_timers_hz(attribution: Attribution) -> float | None:
    """Return the idle periods per second of one CPU that timers of any program ended; None for an empty trace."""
    if not attribution.window_s or not attribution.cpus:
        return None
    own = sum(row.count for row in attribution.wakeups if row.mechanism in _TIMERS)
    others = sum(cause.count for cause in attribution.other_causes if cause.mechanism in _TIMERS)
    return (own + others) / attribution.window_s / attribution.cpus


def list_thread_wakeups(attribution: Attribution) -> list[ThreadWakeups]:
    """Return the rows with the most idle exits, then the most woken rows without any, as all are on a busy host."""
    window_s = attribution.window_s
    with_exits = [
        _build_row(
            cause,
            rate_hz=cause.rate_hz,
            wakings_hz=None if cause.wakings_count is None or not window_s else cause.wakings_count / window_s,
            period_ms=cause.period_ms,
        )
        for cause in attribution.wakeups[:_MOST_ROWS]
    ]
    return with_exits + [
        _build_row(cause, rate_hz=0.0, wakings_hz=cause.wakings_hz, period_ms=None)
        for cause in attribution.wakings_without_exit[:_MOST_ROWS]
    ]


def _build_row(
    cause: Wakeup | Waking, *, rate_hz: float, wakings_hz: float | None, period_ms: float | None
) -> ThreadWakeups:
    waker = cause.waker
    return ThreadWakeups(
        tid=cause.thread.tid,
        comm=cause.thread.comm,
        name=cause.thread.server_name,
        origin=cause.origin,
        rate_hz=rate_hz,
        wakings_hz=wakings_hz,
        period_ms=period_ms,
        stack=[frame.label for frame in cause.stack[:_MOST_FRAMES]],
        waker=None if waker is None else (waker.server_name or waker.comm),
    )
