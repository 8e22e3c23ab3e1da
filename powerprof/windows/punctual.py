# SPDX-License-Identifier: Apache-2.0
"""Being run when a wait is over, on a host whose scheduler promises shares of time and no moments."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def punctual() -> Iterator[None]:
    """While it lasts, the kernel runs this thread as soon as it wakes (SCHED_RR, at the lowest of its priorities).

    Where sessions or cgroups are scheduled as groups, Linux 6.18 left a thread that woke beside a busy server and its
    client waiting for up to ten seconds: clients ended before the windows that they were to fill. It is for threads
    that sleep and do little. Those that they start, and other programs, are scheduled as before. Without CAP_SYS_NICE,
    and for who has chosen a policy for us (chrt), nothing changes.
    """
    priority = os.sched_param(os.sched_get_priority_min(os.SCHED_RR))
    changed = False
    if os.sched_getscheduler(0) == os.SCHED_OTHER:
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, priority)
            changed = True
    try:
        yield
    finally:
        if changed:
            _as_before()


def _as_before() -> None:
    for policy in (os.SCHED_OTHER, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK):
        # The second is for who has given up privileges meanwhile: only root may take the flag back.
        with suppress(OSError):
            os.sched_setscheduler(0, policy, os.sched_param(0))
            return
