# SPDX-License-Identifier: Apache-2.0
"""Pure: what ended each idle exit, and whether all of them are accounted for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from powerprof.records import Conservation, Mechanism
from powerprof.sources.base import is_polling
from powerprof.tracing.bpf.shared_numbers import Flag, WakeEvidence, WakerContext
from powerprof.tracing.captures.edges import CpuEdge, reference_of

Array = npt.NDArray[Any]

MECHANISMS: tuple[Mechanism, ...] = ("unknown", "timer", "device", "ipi", "no_ipi", "tick")
UNKNOWN, TIMER, DEVICE, IPI, NO_IPI, TICK = range(len(MECHANISMS))

_BY_EVIDENCE = {
    WakeEvidence.LOCAL_TIMER: TIMER,
    WakeEvidence.HRTIMER: TIMER,
    WakeEvidence.DEVICE: DEVICE,
    WakeEvidence.RESCHEDULE: IPI,
    WakeEvidence.CALL_FUNCTION: IPI,
    WakeEvidence.IRQ_WORK: IPI,
    WakeEvidence.OTHER_VECTOR: DEVICE,
    WakeEvidence.NO_IPI: NO_IPI,
}


def _ended_by_themselves(causes: Array, states: Mapping[int, Sequence[str]]) -> Array:
    """Which causes are polls that came to their own end: nothing was seen, nobody ran, and the state is a poll.

    poll_idle() (drivers/cpuidle/poll_state.c) gives up after cpuidle_poll_time(), and the governor chooses again.
    """
    nothing = (causes["evidence"] == WakeEvidence.NONE) & (
        causes["flags"] & (Flag.WAKER | Flag.NO_TASK) == Flag.NO_TASK
    )
    polling = {number for names in states.values() for number, name in enumerate(names) if is_polling(name, "")}
    ended: Array = nothing & np.isin(causes["irq"], list(polling))
    return ended


def mechanisms(causes: Array, states: Mapping[int, Sequence[str]] = MappingProxyType({})) -> Array:
    """An index into MECHANISMS for each cause (layout.CAUSE); `states` are the names of each CPU's idle states.

    A timer interrupt in which only the scheduler tick ran is a tick. Where nothing was seen but the thread that ran was
    woken from another CPU, the flag was set without an interrupt (a polling or MWAITing CPU). A poll that came to its
    own end is a timer's: the CPU looked at its clock.
    """
    table = np.zeros(max(WakeEvidence) + 1, dtype=np.int8)
    for evidence, mechanism in _BY_EVIDENCE.items():
        table[evidence] = mechanism
    ended_by: Array = table[np.minimum(causes["evidence"], max(WakeEvidence))]
    flags = causes["flags"]
    ended_by[(ended_by == TIMER) & (flags & Flag.TICK != 0) & (causes["timer_function"] == 0)] = TICK
    woken = flags & Flag.WAKER != 0
    ended_by[(ended_by == UNKNOWN) & woken & (flags & Flag.REMOTE != 0)] = NO_IPI
    # Woken on this very CPU by a timer that was seen although its interrupt was not.
    ended_by[(ended_by == UNKNOWN) & woken & (causes["waker_context"] == WakerContext.TIMER)] = TIMER
    ended_by[(ended_by == UNKNOWN) & _ended_by_themselves(causes, states)] = TIMER
    return ended_by


def conserve(
    causes: Array, ended_by: Array, lost_count: int, edges: Mapping[int, CpuEdge], idle_percent: float | None = None
) -> Conservation:
    """classified + unknown + lost, beside what the kernel itself counted over the same windows."""
    counts = causes["count"]
    unknown = int(counts[ended_by == UNKNOWN].sum())
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
