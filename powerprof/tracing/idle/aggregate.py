# SPDX-License-Identifier: Apache-2.0
"""Pure: idle exits summed by what caused them, as the kernel sums them (probes/bpf/causes.h), line by line.

What tracing makes are sums; this makes the same of single records: those that are still open at a window's end, and
those of captures that were saved before the kernel summed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from powerprof.tracing.bpf.shared_numbers import CAUSE_STATES, IDLE_LIFE, Flag, WakeEvidence, WakerContext
from powerprof.tracing.idle.layout import CAUSE, CAUSE_KEY

Array = npt.NDArray[Any]
_FLAGS = Flag.TICK | Flag.NO_TASK | Flag.WAKER | Flag.TIMER_WHEEL | Flag.SITE | Flag.WAKER_SITE | Flag.RUNNABLE
_WHO = Flag.KERNEL | Flag.WAKER_KERNEL | IDLE_LIFE
_MASK = (1 << 32) - 1


def cause_keys(exits: Array) -> Array:
    """The cause of each record, as layout.CAUSE_KEY."""
    keys = np.zeros(len(exits), dtype=CAUSE_KEY)
    for name in ("timer_function", "work_function", "evidence", "irq", "next_tid", "next_tgid"):
        keys[name] = exits[name]
    flags = exits["flags"] & np.uint32(_FLAGS | _WHO)
    nothing = (exits["evidence"] == WakeEvidence.NONE) & (flags & Flag.NO_TASK != 0)
    keys["irq"] = np.where(nothing, exits["state"], exits["irq"])
    woken = flags & Flag.WAKER != 0
    keys["flags"] = flags | np.where(woken & (exits["waker_cpu"] != exits["cpu"]), np.uint32(Flag.REMOTE), 0)
    keys["woken_tid"] = np.where(exits["next_tid"] == 0, exits["woken_tid"], 0)
    has_site = flags & Flag.SITE != 0
    for name in ("site_ip", "site_sp", "site_code"):
        keys[name] = np.where(has_site, exits[name], 0)
    for name in ("waker_context", "waker_irq", "waker_timer_function"):
        keys[name] = np.where(woken, exits[name], 0)
    by_task = woken & (exits["waker_context"] == WakerContext.TASK)
    for name in ("waker_tid", "waker_tgid"):
        keys[name] = np.where(by_task, exits[name], 0)
    has_waker_site = by_task & (flags & Flag.WAKER_SITE != 0)
    for name in ("waker_ip", "waker_sp", "waker_code"):
        keys[name] = np.where(has_waker_site, exits[name], 0)
    return keys


def periods_in(gap: int, period: int) -> int:
    """How many periods an interval is: 1 to 3, or 0 where it is no multiple within a tenth of a period."""
    tenth = period // 10
    return next((number for number in (1, 2, 3) if number * period - tenth <= gap <= number * period + tenth), 0)


def _interval(entry: Any, at_ns: int) -> None:
    """One more interval: the candidate is the one that a majority votes for."""
    last = int(entry["last_ns"])
    if at_ns <= last:
        return
    gap = at_ns - last
    entry["last_ns"] = at_ns
    if not last:
        return
    entry["gaps"] += 1
    period = int(entry["period_ns"])
    number = periods_in(gap, period) if period else 0
    if number:
        entry["votes"] += 1
        entry["fitting_gaps"] += 1
        entry["fitting_periods"] += number
        entry["fitting_ns"] += gap
        entry["period_ns"] = int(entry["fitting_ns"]) // int(entry["fitting_periods"])
    elif entry["votes"]:
        entry["votes"] -= 1
    else:
        entry["period_ns"] = entry["fitting_ns"] = gap
        entry["votes"] = entry["fitting_gaps"] = entry["fitting_periods"] = 1


def aggregate(exits: Array, base: Array | None = None) -> Array:
    """Records in the order in which their periods ended → layout.CAUSE, added to the entries of `base`."""
    known = np.zeros(0, dtype=CAUSE) if base is None else base
    keys = cause_keys(exits)
    # Of several entries of one cause (a double buffer was turned between them) the last.
    places = {key.tobytes(): place for place, key in enumerate(_keys_of(known))}
    where, size = [], len(known)
    for key in keys:
        place = places.setdefault(key.tobytes(), size)
        size = max(size, place + 1)
        where.append(place)
    entries = np.concatenate([known, np.zeros(size - len(known), dtype=CAUSE)])
    for number, place in enumerate(where):
        if place >= len(known) and not entries["count"][place]:
            entries[place] = _fresh(keys[number])
        entries["count"][place] += 1
        _name(entries[place], exits[number])
    running = np.where(exits["next_ns"] > exits["exit_ns"], exits["next_ns"] - exits["exit_ns"], 0)
    np.add.at(entries["running_ns"], where, running)
    np.add.at(entries["idle_ns"], where, exits["exit_ns"] - exits["enter_ns"])
    np.add.at(entries["states"], (where, np.minimum(exits["state"], CAUSE_STATES - 1)), 1)
    for place, at_ns in zip(where, exits["exit_ns"].tolist(), strict=True):
        _interval(entries[place], at_ns)
    return entries


def _keys_of(entries: Array) -> Array:
    keys = np.zeros(len(entries), dtype=CAUSE_KEY)
    for name in CAUSE_KEY.names or ():
        keys[name] = entries[name]
    return keys


def _fresh(key: Any) -> Any:
    entry = np.zeros((), dtype=CAUSE)
    for name in CAUSE_KEY.names or ():
        entry[name] = key[name]
    return entry


def _name(entry: Any, exit_: Any) -> None:
    """The latest name of its threads."""
    entry["next_comm"] = exit_["next_comm"]
    if int(exit_["flags"]) & Flag.WAKER and int(exit_["waker_context"]) == WakerContext.TASK:
        entry["waker_comm"] = exit_["waker_comm"]


def sample_hash(cpus: Array, sequences: Array) -> Array:
    """Which periods are sent as records: those whose hash is 0 under the mask. The choice of a longer mask is an even
    sample of a shorter one's."""
    hashed = (sequences.astype(np.uint64) ^ (cpus.astype(np.uint64) * 0x9E3779B1 & _MASK)) * 0x85EBCA6B & _MASK
    hashed ^= hashed >> np.uint64(13)
    hashed = hashed * 0xC2B2AE35 & _MASK
    hashed_twice: Array = hashed ^ hashed >> np.uint64(16)
    return hashed_twice
