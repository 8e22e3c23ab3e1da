# SPDX-License-Identifier: Apache-2.0
"""Sleeps through a traced window, and wakes only where something would be lost otherwise."""

from __future__ import annotations

import math
import time

from powerprof.sources.base import Meters
from powerprof.tracing.idle.tracer import IdleTracer


def wait_out(tracer: IdleTracer, duration_s: float, meters: Meters | None = None) -> None:
    """Let `duration_s` pass. The tracer is drained when the kernel calls, because a ring buffer or a table fills, and
    `meters` are read before their counters wrap.
    """
    limit_s = tracer.drain_at_most_s
    if meters is not None:
        limit_s = min(limit_s, meters.max_interval_s or math.inf)
    deadline_s = time.monotonic() + duration_s
    while (left_s := deadline_s - time.monotonic()) > 0:
        if tracer.wait(min(left_s, limit_s)) or limit_s < left_s:
            tracer.drain()
            if meters is not None:
                meters.sample()
