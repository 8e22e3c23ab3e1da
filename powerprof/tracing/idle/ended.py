# SPDX-License-Identifier: Apache-2.0
"""Sums by cause that stay few on a host where threads come and go: those that have ended are grouped by name.

A thread that lives for an instant is a cause of its own, with its number. A host on which a thousand are born a second
makes millions of them in an hour; what is worth knowing of them is what they are called, and what woke them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from powerprof.paths import procfs
from powerprof.processes.tasks import ENDED, ENDED_IN_TARGET
from powerprof.tracing.bpf.shared_numbers import IDLE_LIFE, Flag
from powerprof.tracing.idle.layout import CAUSE_KEY, SUMS, WOKEN_KEY

Array = npt.NDArray[Any]
# Causes that are kept as they are: 1 MB of a saved run, and more threads than anybody reads.
ENOUGH = 4096
# Most names that have groups of their own; programs may call their threads what they want.
_MOST_NAMES = 1000
_SITE, _WAKER_SITE = ("site_ip", "site_sp", "site_code"), ("waker_ip", "waker_sp", "waker_code")


def summed_causes(entries: Array) -> Array:
    """Entries of layout.CAUSE, one for each key. What regularity needs is that of the one with the most intervals."""
    return summed(entries, CAUSE_KEY.names or (), SUMS, "gaps")


def summed_wakings(entries: Array) -> Array:
    """The same of WOKEN_KEY with its count."""
    return summed(entries, WOKEN_KEY.names or (), ("count",), "count")


def summed(entries: Array, names: Sequence[str], sums: Sequence[str], best: str) -> Array:
    """One entry for each distinct key (the fields `names`): `sums` added up, all else of the one with most `best`."""
    if not len(entries):
        return entries
    keys = np.zeros(len(entries), dtype=[(name, entries.dtype[name]) for name in names])
    for name in names:
        keys[name] = entries[name]
    _, group = np.unique(keys.view(f"V{keys.dtype.itemsize}").ravel(), return_inverse=True)
    order = np.lexsort((entries[best], group))
    last = np.flatnonzero(np.diff(group[order], append=-1))
    whole: Array = entries[order[last]]
    for name in sums:
        total = np.zeros_like(whole[name])
        np.add.at(total, group, entries[name])
        whole[name] = total
    return whole


def _is_there(tid: int) -> bool:
    return os.path.exists(f"{procfs()}/{tid}")  # noqa: PTH110 - thousands at once, and a Path takes four times as long


class EndedThreads:
    """Gives threads that have ended their common numbers, from `ENDED` on, the same for a name all the time."""

    def __init__(self, is_there: Callable[[int], bool] = _is_there) -> None:
        self._is_there = is_there
        self._numbers: dict[tuple[bytes, int, int], int] = {}
        # Of threads that ended lately: the rest of their records comes a moment later.
        self._known: dict[int, bytes] = {}

    def fold(
        self, causes: Array, wakings: Array, kept: Collection[int] = (), target: Collection[int] = ()
    ) -> tuple[Array, Array]:
        """Causes (layout.CAUSE) and wakings (WOKEN_KEY, count) with the threads that have ended grouped by name.

        A thread's process stays what it is while it lives, and so does one of `kept`, together with where the thread
        slept: there somebody knows its stacks. Of a process that has ended the name is left, and whether it was one of
        `target`.
        """
        seen: dict[int, bool] = {0: True}

        def is_there(tid: int) -> bool:
            if tid not in seen:
                seen[tid] = tid >= ENDED or self._is_there(tid)
            return seen[tid]

        names: dict[int, bytes] = {}
        for who in ("waker", "next"):
            names.update(zip(causes[f"{who}_tid"].tolist(), causes[f"{who}_comm"].tolist(), strict=True))
        before, self._known = self._known, {}

        def number(tid: int, tgid: int, own: bytes = b"") -> tuple[int, int]:
            """What stands for a thread and its process."""
            if is_there(tid):
                return tid, tgid
            name = self._known[tid] = own or names.get(tid) or before.get(tid, b"")
            stays = tgid if tgid in kept or is_there(tgid) else 0
            first = ENDED_IN_TARGET if tgid in target else ENDED
            if (name, stays, first) not in self._numbers and len(self._numbers) >= _MOST_NAMES:
                name = b""
            folded = self._numbers.setdefault((name, stays, first), first + len(self._numbers))
            return folded, stays or folded

        causes, wakings = causes.copy(), wakings.copy()
        _renumber(causes, "next_tid", "next_tgid", number, (_SITE, Flag.SITE))
        _renumber(causes, "waker_tid", "waker_tgid", number, (_WAKER_SITE, Flag.WAKER_SITE))
        causes["woken_tid"] = [number(tid, 0)[0] for tid in causes["woken_tid"].tolist()]
        _renumber(wakings, "tid", "pid", number)
        _renumber(wakings, "waker_tid", "waker_pid", number)
        return summed_causes(causes), summed_wakings(wakings)


def _renumber(
    entries: Array,
    thread: str,
    process: str,
    number: Callable[[int, int, bytes], tuple[int, int]],
    site: tuple[Sequence[str], int] | None = None,
) -> None:
    """In place. `site`: the fields that say where the thread was, and their flag, for those whose process has ended."""
    if not len(entries):
        return
    comm = thread.replace("_tid", "_comm")
    names = entries[comm].tolist() if site is not None else [b""] * len(entries)
    trios = list(zip(entries[thread].tolist(), entries[process].tolist(), names, strict=True))
    folded = {trio: number(*trio) for trio in set(trios)}
    entries[thread] = [folded[trio][0] for trio in trios]
    entries[process] = [folded[trio][1] for trio in trios]
    if site is not None:
        if thread == "next_tid":
            # One number for all that had this name, whenever they began.
            entries["flags"][entries[thread] >= ENDED] &= ~np.uint32(IDLE_LIFE)
        gone = entries[process] >= ENDED
        for name in site[0]:
            entries[name][gone] = 0
        entries["flags"][gone] &= ~np.uint32(site[1])
