"""A window's edges on one CPU: the form in which traces and their judges pass it on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CpuEdge:
    """One CPU's window: CLOCK_MONOTONIC at both edges, and how many idle exits its cpuidle counters saw (Δusage).

    `usage_delta_count` is None where cpuidle has no counters.
    """

    start_ns: int
    end_ns: int
    usage_delta_count: int | None
