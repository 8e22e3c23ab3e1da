# SPDX-License-Identifier: Apache-2.0
"""Pure: what ended each idle exit, and whether all of them are accounted for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from powerprof.records import Conservation, Mechanism
from powerprof.tracing.edge import CpuEdge, reference_of
from powerprof.tracing.layout import Evidence, Flag, WakerContext

Array = npt.NDArray[Any]

MECHANISMS: tuple[Mechanism, ...] = ("unknown", "timer", "device", "ipi", "no_ipi", "tick")
UNKNOWN, TIMER, DEVICE, IPI, NO_IPI, TICK = range(len(MECHANISMS))

_BY_EVIDENCE = {
    Evidence.LOCAL_TIMER: TIMER,
    Evidence.HRTIMER: TIMER,
    Evidence.DEVICE: DEVICE,
    Evidence.RESCHEDULE: IPI,
    Evidence.CALL_FUNCTION: IPI,
    Evidence.IRQ_WORK: IPI,
    Evidence.OTHER_VECTOR: DEVICE,
    Evidence.NO_IPI: NO_IPI,
}


def mechanisms(causes: Array) -> Array:
    """An index into MECHANISMS for each cause (layout.CAUSE).

    A timer interrupt in which only the scheduler tick ran is a tick. Where nothing was seen but the thread that
    ran was woken from another CPU, the flag was set without an interrupt (a polling or MWAITing CPU).
    """
    table = np.zeros(max(Evidence) + 1, dtype=np.int8)
    for evidence, mechanism in _BY_EVIDENCE.items():
        table[evidence] = mechanism
    found: Array = table[np.minimum(causes["evidence"], max(Evidence))]
    flags = causes["flags"]
    found[(found == TIMER) & (flags & Flag.TICK != 0) & (causes["timer_function"] == 0)] = TICK
    woken = flags & Flag.WAKER != 0
    found[(found == UNKNOWN) & woken & (flags & Flag.REMOTE != 0)] = NO_IPI
    # Woken on this very CPU by a timer that was seen although its interrupt was not.
    found[(found == UNKNOWN) & woken & (causes["waker_context"] == WakerContext.TIMER)] = TIMER
    return found


def conserve(
    causes: Array, found: Array, lost_count: int, edges: Mapping[int, CpuEdge], idle_percent: float | None = None
) -> Conservation:
    """classified + unknown + lost, beside what the kernel itself counted over the same windows."""
    counts = causes["count"]
    unknown = int(counts[found == UNKNOWN].sum())
    seen = int(counts.sum())
    total = seen + lost_count
    counter, counted = reference_of(edges) or (None, None)
    return Conservation(
        idle_exits_count=total,
        cpuidle_usage_delta_count=counted if counter == "cpuidle" else None,
        classified_count=seen - unknown,
        unknown_count=unknown,
        lost_count=lost_count,
        coverage_percent=100.0 * (seen - unknown) / total if total else None,
        checked_against=counter,
        reference_count=counted,
        idle_percent=idle_percent,
    )
