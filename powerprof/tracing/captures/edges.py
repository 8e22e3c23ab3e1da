# SPDX-License-Identifier: Apache-2.0
"""A window's edges on one CPU, and what else counted idle periods: the form in which traces and judges pass them on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Counter = Literal["cpuidle", "perf"]
_STILL = 2


class CpuEdge(msgspec.Struct, frozen=True, array_like=True):
    """One CPU's window: CLOCK_MONOTONIC at both edges, and how many idle exits the kernel counted in it.

    `usage_delta_count` is Δusage of cpuidle, None where it has no counters; `event_count` perf's count of the cpu_idle
    tracepoint there, None where that is not to be had either; `traced_count` what the trace saw.
    """

    cpu: int
    start_ns: int
    end_ns: int
    usage_delta_count: int | None
    event_count: int | None = None
    traced_count: int | None = None


def reference_of(edges: Mapping[int, CpuEdge]) -> tuple[Counter, int] | None:
    """What the kernel itself counted over all CPUs' windows, and by which counter; None where nothing did.

    Where cpuidle counts, a CPU that it did not count on (`unchecked`) stands with what was traced there: the others are
    checked all the same. An event counter that stood still on a CPU that was traced leaving idle again and again does
    not count there.
    """
    usage = [edge.usage_delta_count for edge in edges.values()]
    events = [edge.event_count for edge in edges.values()]
    if any(count is not None for count in usage):
        traced = sum(edges[cpu].traced_count or 0 for cpu in unchecked(edges))
        return "cpuidle", traced + sum(count for count in usage if count is not None)
    still = any(edge.event_count == 0 and (edge.traced_count or 0) > _STILL for edge in edges.values())
    if events and None not in events and not still:
        return "perf", sum(count for count in events if count is not None)
    return None


def unchecked(edges: Mapping[int, CpuEdge]) -> list[int]:
    """CPUs that cpuidle did not count on all through, where it did on others: they came, went or were reset."""
    without = [cpu for cpu, edge in edges.items() if edge.usage_delta_count is None]
    return without if len(without) < len(edges) else []


def in_window(exits: Array, edges: Mapping[int, CpuEdge]) -> Array:
    """The exits that fall into their own CPU's window."""
    size = max(edges, default=0) + 2
    start = np.full(size, np.iinfo(np.uint64).max, dtype=np.uint64)
    end = np.zeros(size, dtype=np.uint64)
    for cpu, edge in edges.items():
        start[cpu], end[cpu] = edge.start_ns, edge.end_ns
    # The last place stands for CPUs without a window.
    cpus = np.minimum(exits["cpu"], size - 1)
    inside: Array = exits[(exits["exit_ns"] >= start[cpus]) & (exits["exit_ns"] <= end[cpus])]
    return inside
