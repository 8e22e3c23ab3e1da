# SPDX-License-Identifier: Apache-2.0
"""What a piece of work costs, where hostile input could make it cost without bound."""

from __future__ import annotations

import time
from collections.abc import Callable

_TRIES = 5


def least_cpu_s(work: Callable[[], object], enough_s: float) -> float:
    """CPU seconds of the work: the least of some tries, the last of them the first below `enough_s`.

    A sibling thread, a stolen CPU and cold caches can only add to it: one try above a bound says nothing of the work.
    """
    least_s = float("inf")
    for _ in range(_TRIES):
        began_s = time.process_time()
        work()
        least_s = min(least_s, time.process_time() - began_s)
        if least_s < enough_s:
            break
    return least_s
