# SPDX-License-Identifier: Apache-2.0
"""Sleeps through a traced window, and wakes only where something would be lost otherwise."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from powerprof.sources.base import Meters
from powerprof.tracing.idle import IdleTracer

_DRAIN_SOONEST_S = 0.05


def next_drain_s(since_s: float, before: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]]) -> float:
    """When the first of the ring buffers will be a quarter full, if they fill as they did in the last `since_s`."""
    waits = [math.inf]
    for (old, holds), (new, _) in zip(before, after, strict=True):
        if new > old:
            waits.append(holds / 4 * since_s / (new - old))
    return max(_DRAIN_SOONEST_S, min(waits))


def wait_out(
    tracer: IdleTracer,
    duration_s: float,
    first_drain_s: float,
    *,
    drain_every_s: float | None = None,
    meters: Meters | None = None,
) -> None:
    """Let `duration_s` pass. Ring buffers are drained when they are likely to be a quarter full, tables when the kernel
    says that they fill, and `meters` are read before their counters wrap.

    `drain_every_s` instead of the pace that the fill asks for; each drain costs about one wake-up.
    """
    limit_s = duration_s if meters is None else meters.max_interval_s or duration_s
    began_s, wait_s = time.monotonic(), drain_every_s or first_drain_s
    deadline_s = began_s + duration_s
    while began_s < deadline_s:
        step_s, collected = min(deadline_s - began_s, wait_s, limit_s), tracer.collected()
        is_called, now_s = tracer.wait(step_s), time.monotonic()
        if is_called or now_s < deadline_s:
            tracer.drain()
            pace_s = next_drain_s(now_s - began_s, collected, tracer.collected())
            wait_s = drain_every_s or min(pace_s, tracer.drain_at_most_s)
            if meters is not None:
                meters.sample()
        began_s = time.monotonic()
