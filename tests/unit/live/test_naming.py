# SPDX-License-Identifier: Apache-2.0
"""What is named first, and what it may cost."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from powerprof.attribution.capture import Capture
from powerprof.attribution.sites import LEFT_OUT, SiteStacks, StackMemo
from powerprof.live.naming import LEAST_S, MOST_S, ProcessSite, TimeBudget, name_stacks, rank_sites
from powerprof.stacks.image import snapshot
from powerprof.stacks.store import TableStore
from powerprof.stacks.symbols import Symbolizer
from powerprof.tracing.bpf.shared_numbers import CODE_NEWBORN, Flag, StackKind
from powerprof.tracing.idle_data import CAUSE, SavedSite


def causes(*rows: tuple[int, int, int, int]) -> np.ndarray:
    """(pid, tid, site's ip, count) each."""
    found = np.zeros(len(rows), dtype=CAUSE)
    for number, (pid, tid, ip, count) in enumerate(rows):
        found[number]["flags"] = Flag.SITE if ip else 0
        for field, value in zip(("next_tgid", "next_tid", "site_ip", "count"), (pid, tid, ip, count), strict=True):
            found[number][field] = value
    return found


def test_sites_come_by_the_exits_of_all_their_causes() -> None:
    found = rank_sites(causes((1, 1, 10, 3), (2, 2, 20, 4), (1, 1, 10, 2), (3, 3, 0, 99)))
    assert list(found.items()) == [((1, (1, 10, 0, 0)), 5), ((2, (2, 20, 0, 0)), 4)]


def test_names_are_paid_for_by_the_time_that_passes() -> None:
    purse = TimeBudget(share=0.001)
    assert purse.left_s == MOST_S
    with purse.spending():
        began = time.thread_time()
        while time.thread_time() - began < 0.01:
            pass
    assert MOST_S - 0.1 < purse.left_s <= MOST_S - 0.01
    purse.left_s = 0.25
    purse.earn(60.0)
    assert purse.left_s == 0.31
    purse.earn(1e6)
    assert purse.left_s == MOST_S


def test_who_was_dear_to_name_is_soon_forgiven() -> None:
    purse = TimeBudget()
    purse.left_s = LEAST_S / 2
    with purse.spending():
        began = time.thread_time()
        while time.thread_time() - began < -LEAST_S:
            pass
    assert purse.left_s == LEAST_S


def this_process(memo: StackMemo, *sites: SavedSite) -> SiteStacks:
    """Stacks of a capture in which this process was looked at."""
    capture = SimpleNamespace(images=[snapshot(os.getpid())], sites=sites, sleeping=[], frames=[], named=None)
    return SiteStacks(cast(Capture, capture), memo=memo)


def newborn(function: str, tid: int = 1) -> ProcessSite:
    """A thread that stands at a function of this process's C library, and was called by nobody."""
    address = ctypes.cast(getattr(ctypes.CDLL(None), function), ctypes.c_void_p).value or 0
    return os.getpid(), (tid, address, 0x1000, CODE_NEWBORN)


def test_stacks_are_named_apart_and_known_from_then_on() -> None:
    memo, store, purse = StackMemo(), TableStore(), TimeBudget()
    places = [newborn("getpid"), newborn("usleep", tid=2)]
    stacks = this_process(memo)
    name_stacks(stacks, places, store, purse)
    for found in (stacks, this_process(memo)):
        found.only_known = True
        named = [found.find(StackKind.SLEEPER, pid, key) for pid, key in places]
        assert [one.frames[0].function for one in named] == ["getpid", "usleep"]
        assert all(one.complete and one.captured for one in named)
    # What was read for it was read by somebody else, and is paid for.
    assert not store._known
    assert purse.left_s < MOST_S
    left_s = purse.left_s
    name_stacks(this_process(memo), places, store, purse)
    assert purse.left_s == left_s


def test_a_place_whose_bytes_are_missing_is_named_again_when_they_come() -> None:
    memo, store = StackMemo(), TableStore()
    pid, (tid, ip, sp, _) = newborn("usleep")
    key = (tid, ip, sp, 77)
    stacks = this_process(memo)
    name_stacks(stacks, [(pid, key)], store, TimeBudget())
    found = stacks.find(StackKind.SLEEPER, pid, key)
    assert (found.frames[0].function, found.complete, found.captured) == ("usleep", False, False)
    assert this_process(memo).is_known(StackKind.SLEEPER, pid, key)
    site = SavedSite(0, pid, tid, StackKind.SLEEPER, ip, sp, 77, b"registers", b"stack")
    assert not this_process(memo, site).is_known(StackKind.SLEEPER, pid, key)


def test_tables_that_break_their_reader_cost_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    memo, store, purse = StackMemo(), TableStore(), TimeBudget()
    good, bad, next_one = newborn("getpid"), newborn("usleep", tid=2), newborn("getppid", tid=3)
    real = Symbolizer.frames

    def frames(self: Symbolizer, pc: int, exact: bool = True) -> Any:
        if pc == bad[1][1]:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, pc, exact)

    monkeypatch.setattr(Symbolizer, "frames", frames)
    for _ in range(2):
        stacks = this_process(memo)
        name_stacks(stacks, [good, bad, next_one], store, purse)
        purse.paused_until_s = 0.0
    found = [stacks.find(StackKind.SLEEPER, pid, key).frames[0] for pid, key in (good, bad, next_one)]
    assert [one.function or one.module for one in found] == ["getpid", LEFT_OUT, "getppid"]


def test_without_time_nothing_is_named() -> None:
    purse, place = TimeBudget(), newborn("usleep")
    purse.left_s = 0.001
    stacks = this_process(StackMemo())
    name_stacks(stacks, [place], TableStore(), purse)
    assert stacks.find(StackKind.SLEEPER, *place).frames[0].module == LEFT_OUT
    assert purse.left_s == 0.001


def test_what_comes_soon_after_is_named_together() -> None:
    memo, store, purse = StackMemo(), TableStore(), TimeBudget()
    name_stacks(this_process(memo), [newborn("usleep")], store, purse)
    assert time.monotonic() < purse.paused_until_s < time.monotonic() + 31
    left_s, later = purse.left_s, newborn("getpid", tid=2)
    stacks = this_process(memo)
    name_stacks(stacks, [later], store, purse)
    assert stacks.find(StackKind.SLEEPER, *later).frames[0].module == LEFT_OUT
    assert purse.left_s == left_s
    purse.resume()
    stacks = this_process(memo)
    name_stacks(stacks, [later], store, purse)
    assert stacks.find(StackKind.SLEEPER, *later).frames[0].function == "getpid"
