# SPDX-License-Identifier: Apache-2.0
"""What ended the polls of a traced window: a flag that somebody set, or their limit, and no tick."""

from __future__ import annotations

from collections import Counter

import numpy as np

from powerprof.attribution import causes as idle
from powerprof.attribution.causes import MECHANISMS
from powerprof.tracing.bpf.shared_numbers import Flag, WakerContext
from powerprof.tracing.idle import TracedWindow


def ended(window: TracedWindow) -> dict[str, Counter[str]]:
    """Polls by mechanism: after which nobody ran, whose thread another CPU's task woke, and all others."""
    causes = window.trace.causes
    polling = {number for names in window.state_names.values() for number, name in enumerate(names) if name == "POLL"}
    of_polls = causes["states"][:, sorted(polling)].sum(axis=1)
    flags = causes["flags"]
    nobody = flags & np.uint32(Flag.NO_TASK) != 0
    remote = (flags & np.uint32(Flag.REMOTE) != 0) & (causes["waker_context"] == WakerContext.TASK)
    found = {"nobody": Counter[str](), "remote": Counter[str](), "other": Counter[str]()}
    ended_by = idle.classify_exits(causes, window.state_names).tolist()
    for mechanism, count, *whose in zip(ended_by, of_polls.tolist(), nobody.tolist(), remote.tolist(), strict=True):
        if count:
            found["nobody" if whose[0] else "remote" if whose[1] else "other"][MECHANISMS[mechanism]] += count
    return found


def wrong(found: dict[str, Counter[str]]) -> list[str]:
    """What cannot be."""
    allowed = {"nobody": {"timer", "no_ipi"}, "remote": {"no_ipi", "ipi"}}
    # Whom the tick's own work woke on that CPU (RCU's threads) is among the others, and the tick's.
    return [f"{who}: {dict(found[who])}" for who, names in allowed.items() if set(found[who]) - names]
