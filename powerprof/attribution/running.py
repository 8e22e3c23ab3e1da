# SPDX-License-Identifier: Apache-2.0
"""Pure: whose the time is in which CPUs ran: each thread's own, and the kernel's from an idle exit until it ran.

What others ran after an idle exit is theirs. Captures that were saved before running time was traced know only the time
until the CPUs idled again: there it is all the waker's, as it was then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from powerprof.attribution.join import BlamedRow, WokenKey
from powerprof.attribution.records import RunningTime
from powerprof.tracing.bpf.shared_numbers import RunKind
from powerprof.tracing.idle.running import RunTimes

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class WakingPlace:
    """Where a thread was woken: what it ran after idle exits there until it slept, how many these were, and how often
    it was woken there while a CPU ran."""

    after_exits_ns: float
    exits: int
    other_wakings: int = 0


def divided(total_ns: float, places: Sequence[WakingPlace]) -> list[float]:
    """What a thread ran in all, onto the places at which it was woken; the sum is the total.

    What it ran after idle exits was measured. The rest followed wakings that ended none: each is taken to have cost
    what it did after an idle exit there, or what it did elsewhere. Without such wakings it goes by what was measured.
    """
    measured = sum(place.after_exits_ns for place in places)
    rest = max(0.0, total_ns - measured)
    exits = sum(place.exits for place in places)
    usual = measured / exits if exits and measured else 1.0
    weights = [
        place.other_wakings * (place.after_exits_ns / place.exits if place.exits and measured else usual)
        for place in places
    ]
    if not sum(weights):
        weights = [place.after_exits_ns for place in places]
    if not sum(weights):
        weights = [float(place.exits) for place in places]
    whole = sum(weights)
    return [
        place.after_exits_ns + (rest * weight / whole if whole else 0.0)
        for place, weight in zip(places, weights, strict=True)
    ]


def own_ns(causes: Array, ran: RunTimes | None) -> Array:
    """What the threads of each entry of layout.CAUSE ran, with what they ran when no idle exit was theirs."""
    if ran is None:
        return causes["running_ns"].astype(np.float64)
    own = causes["own_ns"].astype(np.float64)
    total = {(tid, pid): ns for tid, pid, ns in ran.threads[["tid", "pid", "ns"]].tolist()}
    places: dict[tuple[int, int], list[int]] = {}
    for place, who in enumerate(zip(causes["next_tid"].tolist(), causes["next_tgid"].tolist(), strict=True)):
        if who in total:
            places.setdefault(who, []).append(place)
    counts = causes["count"].tolist()
    for who, mine in places.items():
        own[mine] = divided(total[who], [WakingPlace(own[place], counts[place]) for place in mine])
    return own


def kernel_ns(causes: Array, ran: RunTimes | None) -> Array:
    """What the kernel ran from the exits of each entry until a thread ran, or until the CPUs idled again."""
    if ran is None:
        return np.zeros(len(causes))
    return causes["kernel_ns"].astype(np.float64)


def c0_ns(causes: Array, ran: RunTimes | None) -> Array:
    """Both."""
    both: Array = own_ns(causes, ran) + kernel_ns(causes, ran)
    return both


def give(
    rows: Sequence[BlamedRow],
    shares: Sequence[int | None],
    left: Mapping[WokenKey, int],
    causes: Array,
    ran: RunTimes | None,
    in_target: Callable[[int, int], bool],
) -> dict[WokenKey, float]:
    """Tells the rows of a target how long their threads ran, and the kernel for them.

    `shares` are the rows' wakings, `left` those that are in no row: what followed these is returned.
    """
    measured = (causes["running_ns"] if ran is None else causes["own_ns"]).tolist()
    kernel = kernel_ns(causes, ran).tolist()
    for row in rows:
        row.after_exits_ns = row.own_ns = float(sum(measured[place] for place in row.rows))
        row.kernel_ns = sum(kernel[place] for place in row.rows)
    if ran is None:
        return {}
    threads = ran.threads[ran.threads["kind"] != RunKind.KERNEL]
    total = {tid: ns for tid, pid, ns in threads[["tid", "pid", "ns"]].tolist() if in_target(pid, tid)}
    places: dict[int, list[tuple[BlamedRow | WokenKey, WakingPlace]]] = {}
    for row, share in zip(rows, shares, strict=True):
        other = max(0, (share or 0) - row.count)
        places.setdefault(row.thread, []).append((row, WakingPlace(row.after_exits_ns, row.count, other)))
    for key, count in left.items():
        places.setdefault(key[0], []).append((key, WakingPlace(0.0, 0, count)))
    elsewhere = dict.fromkeys(left, 0.0)
    for tid, known in places.items():
        for (who, _), ns in zip(known, divided(total.get(tid, 0.0), [place for _, place in known]), strict=True):
            if isinstance(who, BlamedRow):
                who.own_ns = ns
            else:
                elsewhere[who] = ns
    return elsewhere


def balance(
    causes: Array, ran: RunTimes, c0_s: float | None, in_target: Callable[[int, int], bool], own_pid: int
) -> RunningTime:
    """All time in which the CPUs ran, by whose it was. `c0_s` is the host's, None where unknown; `in_target` is asked
    for process and thread."""
    target_ns, tool_ns, others_ns, nobody_ns = float(ran.target_ns), 0.0, float(ran.others_ns), 0.0

    def add(pid: int, tid: int, ns: float, kind: int = RunKind.OTHER) -> None:
        nonlocal target_ns, tool_ns, others_ns
        if pid == own_pid:
            tool_ns += ns
        elif kind != RunKind.KERNEL and in_target(pid, tid):
            target_ns += ns
        else:
            others_ns += ns

    for tid, pid, ns, kind in ran.threads[["tid", "pid", "ns", "kind"]].tolist():
        add(pid, tid, ns, kind)
    for tid, pid, ns in causes[["next_tid", "next_tgid", "kernel_ns"]].tolist():
        if tid:
            add(pid, tid, ns)
        else:
            nobody_ns += ns
    parts = [part / 1e6 for part in (target_ns, tool_ns, others_ns, nobody_ns)]
    c0_ms = None if c0_s is None else 1e3 * c0_s
    return RunningTime(
        c0_ms=c0_ms,
        target_ms=parts[0],
        tool_ms=parts[1],
        others_ms=parts[2],
        kernel_ms=parts[3],
        rest_ms=None if c0_ms is None else c0_ms - sum(parts),
    )
