# SPDX-License-Identifier: Apache-2.0
"""Stacks that wait to be asked for: no more than fit, and none of processes that are gone."""

from __future__ import annotations

from powerprof.live.naming import PendingStacks
from powerprof.tracing.bpf.shared_numbers import StackKind
from powerprof.tracing.idle_data import SavedSite
from powerprof.tracing.idle_stacks import StackTrace


def site(pid: int, ip: int, size: int = 100) -> SavedSite:
    return SavedSite(0, pid, pid + 1, StackKind.SLEEPER, ip, 0x1000, 7, b"", bytes(size))


def trace(*sites: SavedSite) -> StackTrace:
    return StackTrace(list(sites), [], {}, [], 0, 0, 0, 0, 0, 0, True)


def kept(pending: PendingStacks) -> list[tuple[int, int]]:
    return [(one.pid, one.ip) for one in pending.add_earlier(trace()).sites]


def test_earlier_stacks_come_with_the_later_until_they_are_named() -> None:
    pending = PendingStacks(lambda _: False)
    pending.add_earlier(trace(site(10, 1), site(20, 2)))
    assert [one.ip for one in pending.add_earlier(trace(site(10, 3))).sites] == [1, 2, 3]
    pending.drop_named([(11, 1, 0x1000, 7)])
    assert kept(pending) == [(20, 2), (10, 3)]


def test_the_oldest_go_where_they_are_too_many() -> None:
    pending = PendingStacks(lambda _: False, most_bytes=3000)
    for ip in range(10):
        pending.add_earlier(trace(site(10, ip, size=800)))
    assert kept(pending) == [(10, 7), (10, 8), (10, 9)]


def test_those_of_processes_that_ended_go() -> None:
    pending = PendingStacks(lambda pid: pid == 10)
    pending.add_earlier(trace(site(10, 1), site(20, 2), site(10, 3)))
    pending.drop_ended()
    assert kept(pending) == [(20, 2)]
    # Their room is free again.
    assert pending._bytes == 300
