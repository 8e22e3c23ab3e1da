# SPDX-License-Identifier: Apache-2.0
"""Which stacks of an interval are named: the costliest first, for no more CPU time than a share of it.

Unwinding and naming is most of what a monitor would cost where programs come and go. The share is little and adds
up: on a host that runs what it always ran all is named in the first interval, and hardly anything is left to be named.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec
import numpy as np

from powerprof.attribution.sites import Key, NamedStack, SiteStacks, unnamed_stack
from powerprof.stacks.store import TableStore
from powerprof.stacks.time_budget import Budget
from powerprof.stacks.unwind import load_drgn
from powerprof.system.child import SendPart, run_in_fork
from powerprof.system.reader_process import ReaderWaits, shared
from powerprof.tracing.bpf.shared_numbers import Flag, StackKind
from powerprof.tracing.captures import Array
from powerprof.tracing.idle_stacks import DemandStacks

SHARE = 0.0003
# What may be put by: the programs of a host that has just been met. One that is expensive to read may overdraw.
MOST_S, LEAST_S = 1.0, -0.06
# A fork and the tables of one process take about so long: below it, put by.
_WORTH_S = 0.02
_PATIENCE_S = 10.0
# A fork takes that much whatever it names: what is new and small waits for company, so that no more than this share of
# a CPU goes to it, but no longer than so many seconds. What has this share of all exits is no small thing.
_AT_ONCE, _MOST_REST_S, MUCH = 0.001, 30.0, 0.1
_PLACE = ("next_tgid", "next_tid", "site_ip", "site_sp", "site_code")

ProcessSite = tuple[int, Key]


def rank_sites(causes: Array) -> dict[ProcessSite, int]:
    """Where threads slept whose wake-ups ended idle periods, the most frequent first: (pid, site) with its exits."""
    blamed = causes[causes["flags"] & np.uint32(Flag.SITE) != 0]
    counts: dict[ProcessSite, int] = {}
    for pid, tid, ip, sp, code, count in blamed[[*_PLACE, "count"]].tolist():
        place = pid, (tid, ip, sp, code)
        counts[place] = counts.get(place, 0) + count
    return dict(sorted(counts.items(), key=lambda counted: (-counted[1], counted[0])))


class TimeBudget:
    """CPU time that may be spent on names: it is earned by the second and kept up to a bound."""

    def __init__(self, share: float = SHARE) -> None:
        self._share, self.left_s = share, MOST_S
        self.rests_until_s = 0.0

    @property
    def is_open(self) -> bool:
        """Whether there is enough for a few names, and it is not to rest."""
        return self.left_s >= _WORTH_S and time.monotonic() >= self.rests_until_s

    def earn(self, passed_s: float) -> None:
        """An interval has passed."""
        self.left_s = min(MOST_S, self.left_s + self._share * passed_s)

    @contextmanager
    def spending(self) -> Iterator[None]:
        """What is done within is paid for."""
        began_s = time.thread_time()
        yield
        self.spend(time.thread_time() - began_s)

    def spend(self, seconds: float) -> None:
        """So much was spent."""
        self.left_s = max(LEAST_S, self.left_s - seconds)

    def rest(self, seconds: float) -> None:
        """So much was spent at once: what comes in the next seconds is named together."""
        self.rests_until_s = time.monotonic() + min(_MOST_REST_S, seconds / _AT_ONCE)

    def wake(self) -> None:
        """What has come now shall not wait."""
        self.rests_until_s = 0.0


def snapshot_processes(looks: DemandStacks, unknown: Iterable[ProcessSite], purse: TimeBudget) -> None:
    """Snapshots of the processes of places that have no name yet, where they will be named in this interval."""
    for pid in dict.fromkeys(pid for pid, _ in unknown):
        if not purse.is_open:
            return
        with purse.spending():
            looks.look_at([pid])


class _NamedSite(msgspec.Struct, frozen=True, array_like=True):
    """The stack of a place, by its number among those that were asked for."""

    number: int
    stack: NamedStack


class _NamingSummary(msgspec.Struct, frozen=True):
    """What whoever named stacks says at its end."""

    unread: list[str]
    budget: Budget
    waits: ReaderWaits


def name_stacks(stacks: SiteStacks, places: Iterable[ProcessSite], store: TableStore, purse: TimeBudget) -> None:
    """Name these, and afterwards none that is not known.

    It is done in a fork: tables of symbols and what unwinds by them are many times what we need all day, and what was
    freed of them would lie between that. A table that kills its reader or keeps it busy costs the one place.
    """
    if purse.is_open:
        for pid, key in places:
            if not stacks.has_image(pid):
                stacks.find(StackKind.SLEEPER, pid, key)
    wanted = [
        (pid, key) for pid, key in places if stacks.has_image(pid) and not stacks.is_known(StackKind.SLEEPER, pid, key)
    ]
    if wanted and purse.is_open:
        _name_apart(stacks, wanted, store, purse)
    stacks.only_known = True


def _name_apart(stacks: SiteStacks, wanted: list[ProcessSite], store: TableStore, purse: TimeBudget) -> None:
    load_drgn()

    def work(say: SendPart) -> None:
        for number, (pid, key) in enumerate(wanted):
            if purse.left_s <= 0:
                break
            with purse.spending():
                say(msgspec.msgpack.encode(_NamedSite(number, stacks.find(StackKind.SLEEPER, pid, key))))
        say(msgspec.msgpack.encode(_NamingSummary(stacks.notes_unread(), store.budget, shared().waits)))

    with shared().lent():
        done = run_in_fork(work, _PATIENCE_S)
        summary = msgspec.msgpack.decode(done.parts[-1], type=_NamingSummary) if done.ended else None
        shared().take_back(summary.waits if summary else None)
    purse.spend(done.cpu_s)
    purse.rest(done.cpu_s)
    named = [msgspec.msgpack.decode(part, type=_NamedSite) for part in done.parts[: -1 if done.ended else None]]
    for stack in named:
        pid, key = wanted[stack.number]
        stacks.remember(StackKind.SLEEPER, pid, key, stack.stack)
    if summary is not None:
        stacks.unread, store.budget = summary.unread, summary.budget
    elif len(named) < len(wanted):
        # Not again: what it was about to read broke it, or kept it busy.
        pid, key = wanted[len(named)]
        stacks.remember(StackKind.SLEEPER, pid, key, unnamed_stack(key, "reading its tables failed", captured=True))
