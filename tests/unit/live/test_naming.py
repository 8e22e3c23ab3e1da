# SPDX-License-Identifier: Apache-2.0
"""The order, the cost and the memory of naming stacks."""

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
from powerprof.live.naming import LEAST_S, MOST_S, PendingStacks, ProcessSite, TimeBudget, name_stacks, rank_sites
from powerprof.stacks.image import snapshot
from powerprof.stacks.store import TableStore
from powerprof.stacks.symbolizer import Symbolizer
from powerprof.tracing.bpf.shared_numbers import CODE_NEWBORN, Flag, StackKind
from powerprof.tracing.idle_data import CAUSE, SavedSite
from powerprof.tracing.idle_stacks import StackTrace


def causes(*rows: tuple[int, int, int, int]) -> np.ndarray:
    """Return causes from (pid, tid, ip of the site, count)."""
    found = np.zeros(len(rows), dtype=CAUSE)
    for number, (pid, tid, ip, count) in enumerate(rows):
        found[number]["flags"] = Flag.SITE if ip else 0
        for field, value in zip(("next_tgid", "next_tid", "site_ip", "count"), (pid, tid, ip, count), strict=True):
            found[number][field] = value
    return found


def test_sites_are_ranked_by_the_exits_of_all_their_causes() -> None:
    found = rank_sites(causes((1, 1, 10, 3), (2, 2, 20, 4), (1, 1, 10, 2), (3, 3, 0, 99)))
    assert list(found.items()) == [((1, (1, 10, 0, 0)), 5), ((2, (2, 20, 0, 0)), 4)]


def test_the_budget_grows_with_time_up_to_its_bound() -> None:
    budget = TimeBudget(share=0.001)
    assert budget.left_s == MOST_S
    with budget.spending():
        began = time.thread_time()
        while time.thread_time() - began < 0.01:
            pass
    assert MOST_S - 0.1 < budget.left_s <= MOST_S - 0.01
    budget.left_s = 0.25
    budget.earn(60.0)
    assert budget.left_s == 0.31
    budget.earn(1e6)
    assert budget.left_s == MOST_S


def test_the_debt_of_the_budget_is_bounded() -> None:
    budget = TimeBudget()
    budget.left_s = LEAST_S / 2
    with budget.spending():
        began = time.thread_time()
        while time.thread_time() - began < -LEAST_S:
            pass
    assert budget.left_s == LEAST_S


def this_process(memo: StackMemo, *sites: SavedSite) -> SiteStacks:
    """Return the stacks of a capture with a snapshot of this process."""
    capture = SimpleNamespace(images=[snapshot(os.getpid())], sites=sites, sleeping=[], frames=[], named=None)
    return SiteStacks(cast(Capture, capture), memo=memo)


def newborn(function: str, tid: int = 1) -> ProcessSite:
    """Return the site of a thread at a function of the C library, without a caller."""
    address = ctypes.cast(getattr(ctypes.CDLL(None), function), ctypes.c_void_p).value or 0
    return os.getpid(), (tid, address, 0x1000, CODE_NEWBORN)


def test_a_fork_names_stacks_and_the_names_are_kept() -> None:
    memo, store, budget = StackMemo(), TableStore(), TimeBudget()
    sites = [newborn("getpid"), newborn("usleep", tid=2)]
    stacks = this_process(memo)
    name_stacks(stacks, sites, store, budget)
    for found in (stacks, this_process(memo)):
        found.only_known = True
        named = [found.find(StackKind.SLEEPER, pid, key) for pid, key in sites]
        assert [one.frames[0].function for one in named] == ["getpid", "usleep"]
        assert all(one.complete and one.captured for one in named)
    # The child read the tables, and its time is charged.
    assert not store._known
    assert budget.left_s < MOST_S
    left_s = budget.left_s
    name_stacks(this_process(memo), sites, store, budget)
    assert budget.left_s == left_s


def test_an_incomplete_name_is_replaced_when_the_stack_arrives() -> None:
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


def test_tables_that_kill_their_reader_cost_one_site(monkeypatch: pytest.MonkeyPatch) -> None:
    memo, store, budget = StackMemo(), TableStore(), TimeBudget()
    good, bad, next_one = newborn("getpid"), newborn("usleep", tid=2), newborn("getppid", tid=3)
    real = Symbolizer.frames

    def frames(self: Symbolizer, pc: int, exact: bool = True) -> Any:
        if pc == bad[1][1]:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, pc, exact)

    monkeypatch.setattr(Symbolizer, "frames", frames)
    for _ in range(2):
        stacks = this_process(memo)
        name_stacks(stacks, [good, bad, next_one], store, budget)
        budget.paused_until_s = 0.0
    found = [stacks.find(StackKind.SLEEPER, pid, key).frames[0] for pid, key in (good, bad, next_one)]
    assert [one.function or one.module for one in found] == ["getpid", LEFT_OUT, "getppid"]


def test_an_empty_budget_names_no_stack() -> None:
    budget, place = TimeBudget(), newborn("usleep")
    budget.left_s = 0.001
    stacks = this_process(StackMemo())
    name_stacks(stacks, [place], TableStore(), budget)
    assert stacks.find(StackKind.SLEEPER, *place).frames[0].module == LEFT_OUT
    assert budget.left_s == 0.001


def test_new_stacks_wait_for_the_next_fork_unless_resumed() -> None:
    memo, store, budget = StackMemo(), TableStore(), TimeBudget()
    name_stacks(this_process(memo), [newborn("usleep")], store, budget)
    assert time.monotonic() < budget.paused_until_s < time.monotonic() + 31
    left_s, later = budget.left_s, newborn("getpid", tid=2)
    stacks = this_process(memo)
    name_stacks(stacks, [later], store, budget)
    assert stacks.find(StackKind.SLEEPER, *later).frames[0].module == LEFT_OUT
    assert budget.left_s == left_s
    budget.resume()
    stacks = this_process(memo)
    name_stacks(stacks, [later], store, budget)
    assert stacks.find(StackKind.SLEEPER, *later).frames[0].function == "getpid"


def site(pid: int, ip: int, size: int = 100) -> SavedSite:
    return SavedSite(0, pid, pid + 1, StackKind.SLEEPER, ip, 0x1000, 7, b"", bytes(size))


def trace(*sites: SavedSite) -> StackTrace:
    return StackTrace(list(sites), [], {}, [], 0, 0, 0, 0, 0, 0, True)


def kept(pending: PendingStacks) -> list[tuple[int, int]]:
    return [(one.pid, one.ip) for one in pending.add_earlier(trace()).sites]


def test_earlier_stacks_are_kept_until_they_are_named() -> None:
    pending = PendingStacks(lambda _: False)
    pending.add_earlier(trace(site(10, 1), site(20, 2)))
    assert [one.ip for one in pending.add_earlier(trace(site(10, 3))).sites] == [1, 2, 3]
    pending.drop_named([(11, 1, 0x1000, 7)])
    assert kept(pending) == [(20, 2), (10, 3)]


def test_the_oldest_stacks_are_dropped_at_the_memory_limit() -> None:
    pending = PendingStacks(lambda _: False, most_bytes=3000)
    for ip in range(10):
        pending.add_earlier(trace(site(10, ip, size=800)))
    assert kept(pending) == [(10, 7), (10, 8), (10, 9)]


def test_stacks_of_ended_processes_are_dropped() -> None:
    pending = PendingStacks(lambda pid: pid == 10)
    pending.add_earlier(trace(site(10, 1), site(20, 2), site(10, 3)))
    pending.drop_ended()
    assert kept(pending) == [(20, 2)]
    # Their memory is free again.
    assert pending._bytes == 300
