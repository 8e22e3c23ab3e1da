# SPDX-License-Identifier: Apache-2.0
"""Stacks that came and were not asked for yet: a thread's sleep may end many intervals after its stack was sent.

Unwinding and naming is most of a monitor's cost. So the bytes wait until an idle exit is blamed on their place, which
most never are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace

from powerprof.attribution.sites import Key
from powerprof.tracing.bpf.shared_numbers import StackKind
from powerprof.tracing.idle.sites import SavedSite
from powerprof.tracing.idle.stacks import StackTrace

# 16 KiB at most each.
MOST_BYTES = 2 << 20


class Pending:
    """The sites of earlier intervals: those of processes that ended go, and the oldest where they take too much memory.

    `has_ended` tells whether a process has.
    """

    def __init__(self, has_ended: Callable[[int], bool], most_bytes: int = MOST_BYTES) -> None:
        self._has_ended = has_ended
        self._sites: OrderedDict[tuple[int, ...], SavedSite] = OrderedDict()
        self._most, self._bytes = most_bytes, 0

    def with_earlier(self, stacks: StackTrace) -> StackTrace:
        """The same with the sites of before."""
        for site in stacks.sites:
            self._put(site)
        return replace(stacks, sites=list(self._sites.values()))

    def drop(self, keys: Iterable[Key]) -> None:
        """These have been named: nobody will ask for their bytes again."""
        for key in keys:
            if (StackKind.SLEEPER, *key) in self._sites:
                self._drop((StackKind.SLEEPER, *key))

    def forget_ended(self) -> None:
        """Nobody will be able to name what a process did that is gone."""
        pids = {site.pid for site in self._sites.values()}
        ended = {pid for pid in pids if self._has_ended(pid)}
        for place in [place for place, site in self._sites.items() if site.pid in ended]:
            self._drop(place)

    def _put(self, site: SavedSite) -> None:
        place = (site.kind, site.tid, site.ip, site.sp, site.code)
        if place in self._sites:
            self._drop(place)
        self._sites[place] = site
        self._bytes += _size(site)
        while self._bytes > self._most:
            self._drop(next(iter(self._sites)))

    def _drop(self, place: tuple[int, ...]) -> None:
        self._bytes -= _size(self._sites.pop(place))


def _size(site: SavedSite) -> int:
    return len(site.stack) + len(site.registers) + 200
