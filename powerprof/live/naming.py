# SPDX-License-Identifier: Apache-2.0
"""The stacks of a monitor: the ones that wait for an idle exit, and the CPU time that naming them may take.

Unwinding and naming is the largest cost of a monitor on a host with many short-lived programs. The most frequent sites
are named first, within a small share of a CPU. On a host with stable programs the first interval names nearly all.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
from msgspec.structs import replace

from powerprof.attribution.sites import Key, NamedStack, SiteStacks, unnamed_stack
from powerprof.stacks.drgn_library import load_drgn
from powerprof.stacks.store import TableStore
from powerprof.stacks.time_budget import Budget
from powerprof.system.fork import SendPart, run_in_fork
from powerprof.system.reader_process import shared
from powerprof.system.reader_waits import ReaderWaits
from powerprof.tracing.bpf.shared_numbers import Flag, StackKind
from powerprof.tracing.captures import Array
from powerprof.tracing.idle_data import SavedSite
from powerprof.tracing.idle_stacks import DemandStacks, StackTrace

# The share of a CPU for naming.
SHARE = 0.0003
# Bounds of the saved CPU time: enough for the programs of a new host, and the debt of one expensive process.
MOST_S, LEAST_S = 1.0, -0.06
# A fork and the tables of one process take about this long. A smaller budget waits.
_MIN_WORK_S = 0.02
_CHILD_TIMEOUT_S = 10.0
# Forking has a fixed cost. Batch small work so that forks use at most this share of a CPU, for at most this long.
_MAX_FORK_SHARE, _MAX_PAUSE_S = 0.001, 30.0
# New sites with more than this share of all exits are named at once.
HOT_SHARE = 0.1
_SITE_FIELDS = ("next_tgid", "next_tid", "site_ip", "site_sp", "site_code")
# The memory for waiting stacks. A stack has at most 16 KiB.
MOST_BYTES = 2 << 20

ProcessSite = tuple[int, Key]


def rank_sites(causes: Array) -> dict[ProcessSite, int]:
    """Count idle exits by (pid, site), the most frequent first.

    A site is the code location at which a thread slept before its wake-up ended an idle period.
    """
    blamed = causes[causes["flags"] & np.uint32(Flag.SITE) != 0]
    counts: dict[ProcessSite, int] = {}
    for pid, tid, ip, sp, code, count in blamed[[*_SITE_FIELDS, "count"]].tolist():
        site = pid, (tid, ip, sp, code)
        counts[site] = counts.get(site, 0) + count
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


class TimeBudget:
    """The CPU time for naming: it grows with time, up to a bound.

    Attributes:
        left_s: The seconds that may be spent.
        paused_until_s: The monotonic time at which naming may go on.
    """

    def __init__(self, share: float = SHARE) -> None:
        self._share, self.left_s = share, MOST_S
        self.paused_until_s = 0.0

    @property
    def is_open(self) -> bool:
        """Return whether some names can be paid now and naming is not paused."""
        return self.left_s >= _MIN_WORK_S and time.monotonic() >= self.paused_until_s

    def earn(self, passed_s: float) -> None:
        """Add the share of an interval of `passed_s` seconds."""
        self.left_s = min(MOST_S, self.left_s + self._share * passed_s)

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Charge the CPU time of this thread in the context."""
        began_s = time.thread_time()
        yield
        self.spend(time.thread_time() - began_s)

    def spend(self, seconds: float) -> None:
        """Charge `seconds`."""
        self.left_s = max(LEAST_S, self.left_s - seconds)

    def pause(self, spent_s: float) -> None:
        """Pause after a fork that took `spent_s`, so that the next one names more stacks."""
        self.paused_until_s = time.monotonic() + min(_MAX_PAUSE_S, spent_s / _MAX_FORK_SHARE)

    def resume(self) -> None:
        """End the pause."""
        self.paused_until_s = 0.0


class PendingStacks:
    """Saved stacks of earlier intervals that no idle exit is blamed on yet.

    A sleep may end many intervals after its stack was sent, and most stacks are never blamed. So the bytes wait until
    their name is needed. Stacks of ended processes are dropped, and the oldest ones if they take too much memory.
    """

    def __init__(self, has_ended: Callable[[int], bool], most_bytes: int = MOST_BYTES) -> None:
        self._has_ended = has_ended
        self._sites: OrderedDict[tuple[int, ...], SavedSite] = OrderedDict()
        self._most, self._bytes = most_bytes, 0

    def add_earlier(self, stacks: StackTrace) -> StackTrace:
        """Save the new stacks, and return the trace with all saved ones."""
        for site in stacks.sites:
            self._save(site)
        return replace(stacks, sites=list(self._sites.values()))

    def drop_named(self, keys: Iterable[Key]) -> None:
        """Drop the stacks of sites that have a name now."""
        for key in keys:
            if (StackKind.SLEEPER, *key) in self._sites:
                self._drop((StackKind.SLEEPER, *key))

    def drop_ended(self) -> None:
        """Drop the stacks of processes that have ended: their code can no longer be read."""
        ended = {pid for pid in {site.pid for site in self._sites.values()} if self._has_ended(pid)}
        for key in [key for key, site in self._sites.items() if site.pid in ended]:
            self._drop(key)

    def _save(self, site: SavedSite) -> None:
        key = (site.kind, site.tid, site.ip, site.sp, site.code)
        if key in self._sites:
            self._drop(key)
        self._sites[key] = site
        self._bytes += _size_of(site)
        while self._bytes > self._most:
            self._drop(next(iter(self._sites)))

    def _drop(self, key: tuple[int, ...]) -> None:
        self._bytes -= _size_of(self._sites.pop(key))


def _size_of(site: SavedSite) -> int:
    return len(site.stack) + len(site.registers) + 200


def snapshot_processes(looks: DemandStacks, sites: Iterable[ProcessSite], budget: TimeBudget) -> None:
    """Take snapshots of the processes of unnamed sites, within the budget."""
    for pid in dict.fromkeys(pid for pid, _ in sites):
        if not budget.is_open:
            return
        with budget.spending():
            looks.look_at([pid])


class _NamedSite(msgspec.Struct, frozen=True, array_like=True):
    """The named stack of a site, with its number in the list of wanted sites."""

    number: int
    stack: NamedStack


class _ChildState(msgspec.Struct, frozen=True):
    """The state of the naming child at its end, for its parent to go on with."""

    unread: list[str]
    budget: Budget
    waits: ReaderWaits


def name_stacks(stacks: SiteStacks, sites: Iterable[ProcessSite], store: TableStore, budget: TimeBudget) -> None:
    """Name the stacks of `sites` within the budget. Afterwards `stacks` returns only known names.

    A fork does the work: symbol and unwind tables are much larger than the monitor, and freed tables would fragment
    its heap. If a table kills its reader or takes too long, only its site stays without a name.
    """
    if budget.is_open:
        for pid, key in sites:
            if not stacks.has_image(pid):
                stacks.find(StackKind.SLEEPER, pid, key)
    wanted = [
        (pid, key) for pid, key in sites if stacks.has_image(pid) and not stacks.is_known(StackKind.SLEEPER, pid, key)
    ]
    if wanted and budget.is_open:
        _name_in_child(stacks, wanted, store, budget)
    stacks.only_known = True


def _name_in_child(stacks: SiteStacks, wanted: list[ProcessSite], store: TableStore, budget: TimeBudget) -> None:
    load_drgn()

    def work(say: SendPart) -> None:
        for number, (pid, key) in enumerate(wanted):
            if budget.left_s <= 0:
                break
            with budget.spending():
                say(msgspec.msgpack.encode(_NamedSite(number, stacks.find(StackKind.SLEEPER, pid, key))))
        say(msgspec.msgpack.encode(_ChildState(stacks.notes_unread(), store.budget, shared().waits)))

    with shared().lent():
        done = run_in_fork(work, _CHILD_TIMEOUT_S)
        state = msgspec.msgpack.decode(done.parts[-1], type=_ChildState) if done.ended else None
        shared().take_back(state.waits if state else None)
    budget.spend(done.cpu_s)
    budget.pause(done.cpu_s)
    named = [msgspec.msgpack.decode(part, type=_NamedSite) for part in done.parts[: -1 if done.ended else None]]
    for site in named:
        pid, key = wanted[site.number]
        stacks.remember(StackKind.SLEEPER, pid, key, site.stack)
    if state is not None:
        stacks.unread, store.budget = state.unread, state.budget
    elif len(named) < len(wanted):
        # The child ended at this site. Remember the failure, so that it is not tried again.
        pid, key = wanted[len(named)]
        stacks.remember(StackKind.SLEEPER, pid, key, unnamed_stack(key, "reading its tables failed", captured=True))
