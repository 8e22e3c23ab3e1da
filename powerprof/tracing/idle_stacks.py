# SPDX-License-Identifier: Apache-2.0
"""What the program copies of a target's threads where they sleep, and how often they were woken there."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from powerprof.stacks.interpreter import PythonFrame
from powerprof.stacks.registers import Machine
from powerprof.system.paths import procfs
from powerprof.system.tasks import ENDED, ENDED_IN_TARGET
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.maps import DoubleBufferedTable
from powerprof.tracing.bpf.shared_numbers import CAUSE_HALF, IDLE_LIFE, Count, FilledTable, Flag, Shared, StackKind
from powerprof.tracing.idle_data import (
    CAUSE,
    CAUSE_KEY,
    CAUSE_SUM,
    SUMS,
    WOKEN,
    WOKEN_COUNT,
    WOKEN_KEY,
    SavedSite,
    SiteWakings,
    SleepingStack,
    decode_site,
    read_shared,
    write_shared,
)
from powerprof.tracing.idle_members import ProcessImages, TargetMembers

# Sums by cause that stay few on a host where threads come and go: those that have ended are grouped by name.
#
# A thread that lives for an instant is a cause of its own, with its number. A host on which a thousand are born a
# second makes millions of them in an hour; what is worth knowing of them is what they are called, and what woke them.

# Causes that are kept as they are: 1 MB of a saved run, and more threads than anybody reads.
MOST_CAUSES = 4096
# Most names that have groups of their own; programs may call their threads what they want.
_MOST_NAMES = 1000
_SITE, _WAKER_SITE = ("site_ip", "site_sp", "site_code"), ("waker_ip", "waker_sp", "waker_code")


def sum_causes(entries: Array) -> Array:
    """Entries of layout.CAUSE, one for each key. What regularity needs is that of the one with the most intervals."""
    return sum_by_key(entries, CAUSE_KEY.names or (), SUMS, "gaps")


def sum_wakings(entries: Array) -> Array:
    """The same of WOKEN_KEY with its count."""
    return sum_by_key(entries, WOKEN_KEY.names or (), ("count",), "count")


def sum_by_key(entries: Array, names: Sequence[str], sums: Sequence[str], best: str) -> Array:
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
        return sum_causes(causes), sum_wakings(wakings)


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


# What the program sums: idle exits by their cause and, where stacks are copied, wakings by where the woken slept.

Array = npt.NDArray[Any]
_FUNCTIONS = ("timer_function", "work_function", "waker_timer_function")


class IdleSums:
    """Keeps the sums of one program, also beyond what its tables have room for."""

    def __init__(self, program: LoadedProgram, members: TargetMembers | None = None) -> None:
        """`members`: whose wakings the program counts; their processes stay what they are in what is kept."""
        self._members = members
        self._causes = DoubleBufferedTable(
            program,
            "causes",
            (CAUSE_KEY, CAUSE_SUM),
            ("flags", CAUSE_HALF),
            sums=SUMS,
            turn=lambda half: write_shared(program, Shared.CAUSE_HALF, half * CAUSE_HALF),
        )
        self._woken: DoubleBufferedTable | None = None
        if members is not None:
            self._woken = DoubleBufferedTable(
                program,
                "woken",
                (WOKEN_KEY, WOKEN_COUNT),
                ("context", CAUSE_HALF),
                sums=("count",),
                turn=lambda half: write_shared(program, Shared.WOKEN_HALF, half * CAUSE_HALF),
            )
        # Whether wakings are counted, or were since they were read.
        self.counts_wakings = True
        self._ended = EndedThreads()
        self.forget()

    def forget(self) -> None:
        """What is kept here."""
        self._kept, self._wakings = np.zeros(0, dtype=CAUSE), np.zeros(0, dtype=WOKEN)
        self._had_many = False

    def clear(self) -> None:
        """What the kernel's tables hold, and what of it was read."""
        self._causes.clear()
        if self._woken is not None:
            self._woken.clear()
        self.forget()

    def living(self) -> dict[FilledTable, int]:
        """What fills in this program; of tables, how many entries that are kept here are of threads that live."""
        living = {FilledTable.CAUSES: int(np.sum(self._kept["next_tid"] < ENDED)), FilledTable.EXITS: 0}
        if self._woken is not None:
            woken = (self._wakings["tid"] < ENDED) & (self._wakings["waker_tid"] < ENDED)
            living |= {FilledTable.WOKEN: int(np.sum(woken)), FilledTable.STACKS: 0}
        return living

    def gather(self, *, emptied: bool = True) -> None:
        """Keep here what the kernel's tables hold, and empty these."""
        if self._woken is not None and self.counts_wakings:
            self._wakings = np.concatenate([self._wakings, self._woken.since(emptied=emptied)])
        self._kept = np.concatenate([self._kept, self._causes.since(emptied=emptied)])
        self._fold()

    def take_causes(self) -> Array:
        """Idle exits by cause (layout.CAUSE) since `clear` or the last call."""
        self.gather(emptied=False)
        causes, self._kept, self._had_many = self._kept, self._kept[:0], False
        return causes

    def functions_in(self, causes: Array) -> set[int]:
        """Addresses of the kernel's functions in these causes and in the wakings that are kept."""
        found = {int(value) for name in _FUNCTIONS for value in np.unique(causes[name])}
        return (found | set(self._wakings["timer_function"].tolist())) - {0}

    def take_wakings(self) -> Array:
        """Wakings (layout.WOKEN) since `clear` or the last call, up to the last `take_causes`."""
        wakings, self._wakings = self._wakings, self._wakings[:0]
        return wakings

    def _fold(self) -> None:
        """Where there are more than anybody reads, ended threads are grouped by name, in both tables at once: an
        exit and its waking are of one thread. Threads that end later in the window join the same groups."""
        self._kept, self._wakings = sum_causes(self._kept), sum_wakings(self._wakings)
        self._had_many = self._had_many or max(len(self._kept), len(self._wakings)) > MOST_CAUSES
        if not self._had_many:
            return
        members = self._members
        if members is None:
            self._kept, self._wakings = self._ended.fold(self._kept, self._wakings)
            return
        kept = frozenset(members.target.pids)
        self._kept, self._wakings = self._ended.fold(self._kept, self._wakings, kept, members.images)
        named = np.concatenate([self._kept["next_tgid"], self._kept["waker_tgid"], self._wakings["pid"]])
        members.let_go_but(set(named.tolist()))


# What one window may keep of stacks: five thousand threads with one site of 12 KiB.
STACK_BYTES = 64 << 20


@dataclass(frozen=True)
class StackTrace:
    """What came with the idle exits.

    `loaded_count` switch-outs and wakings were not looked at because of load, `unsent_count` stacks not copied because
    there were too many, `uncounted_count` wakings not counted because of too many sites, `lost_count` stacks lost to a
    full ring buffer. Wakings were counted from `counted_from_ns` to `counted_to_ns` (CLOCK_MONOTONIC).
    `frames` are those of interpreters, by the words of chains. `ended_groups` are control groups of processes that
    ended, by pid, where the whole system is traced.
    `registers_found` False: threads were seen going to sleep, and their registers were not where they should be.
    """

    sites: list[SavedSite]
    sleeping: list[SleepingStack]
    images: dict[int, ProcessImages]
    wakings: list[SiteWakings]
    lost_count: int
    loaded_count: int
    unsent_count: int
    uncounted_count: int
    counted_from_ns: int
    counted_to_ns: int
    registers_found: bool = True
    frames: list[PythonFrame] = field(default_factory=list)
    ended_groups: dict[int, int] = field(default_factory=dict)


class StackReader:
    """Takes them as they come, and gives what came since the last time."""

    def __init__(
        self, program: LoadedProgram, sums: IdleSums, members: TargetMembers, machine: Machine, *, direct: bool
    ) -> None:
        """`direct`: the kernel itself tells where registers are, and nothing has to be found."""
        self._program, self._sums, self._members = program, sums, members
        self._register_bytes, self._direct = machine.register_bytes, direct
        self._sites: list[SavedSite] = []
        self._sleeping: list[SleepingStack] = []
        # Where threads slept that were asleep when the window began; unknown until that was looked at.
        self._asleep: set[tuple[int, int, int]] | None = None
        self._window = 0
        self._base: Sequence[int] = program.per_cpu_sum("counters")
        self._counters: Sequence[int] = self._base
        program.ring("stacks", self._on_stack)

    def begin(self, meanwhile: Callable[[], object]) -> None:
        """Forget the stacks seen, so that they are sent again; look at who is asleep."""
        # Before what is counted is reset: what is not copied now would be reported as missing in this window.
        self._allow()
        self._base = self._counters = self._program.per_cpu_sum("counters")
        self._members.begin()
        self._sites.clear()
        self._asleep = None
        self._allow()
        # Last: a stack that is not new is not copied again.
        self.send_again()
        self._sleeping = self._members.sleeping(meanwhile)
        self._asleep = {(stack.tid, stack.ip, stack.sp) for stack in self._sleeping}
        self._sites = [site for site in self._sites if self._is_of_use(site)]

    def send_again(self) -> None:
        """Every stack counts as new: for when there were more than are kept, or what was known of them is gone."""
        self._program.clear("seen")
        # After it: a thread that is where it was in this window is not looked up again among those seen.
        self._window += 1
        write_shared(self._program, Shared.WINDOW, self._window)

    def cut(self, counters: Sequence[int]) -> None:
        """A trace ends here, with the program's counters as they are: the next trace is of the same time."""
        self._counters = counters

    def take_sites(self) -> list[SavedSite]:
        """Those since `begin` or the last call."""
        sites, self._sites = self._sites, []
        return sites

    def take_trace(self, sites: list[SavedSite], counted_from_ns: int, counted_to_ns: int) -> StackTrace:
        """These, and all else since `begin` or the last call."""
        wakings = self._sums.take_wakings()[list(SiteWakings.__struct_fields__)].tolist()
        sleeping, self._sleeping = self._sleeping, []
        counted = [now - then for now, then in zip(self._counters, self._base, strict=True)]
        self._base = self._counters
        self._members.note_unjoined(counted[Count.UNJOINED])
        self._allow()
        return StackTrace(
            sites,
            sleeping,
            self._members.images,
            [SiteWakings(*row) for row in wakings],
            counted[Count.LOST_STACKS],
            counted[Count.LOADED],
            counted[Count.UNSENT],
            counted[Count.UNCOUNTED],
            counted_from_ns,
            counted_to_ns,
            self._direct or bool(read_shared(self._program, Shared.REGS_OFFSET)) or not counted[Count.SLEEPS],
            self._members.frames(
                [*((site.pid, site.chain) for site in sites), *((one.pid, one.chain) for one in sleeping)]
            ),
            self._members.ended_groups(),
        )

    def _allow(self) -> None:
        write_shared(self._program, Shared.STACK_BYTES, STACK_BYTES)

    def _on_stack(self, data: bytes) -> None:
        # At once: whoever kept the bytes for later would hold most of them twice then.
        site = decode_site(data, self._register_bytes)
        if self._is_of_use(site):
            self._sites.append(site)

    def _is_of_use(self, site: SavedSite) -> bool:
        """Registers alone are joined with the stack of one who slept before the trace began; others' are of no use."""
        asleep = self._asleep
        return site.kind != StackKind.REGISTERS or asleep is None or (site.tid, site.ip, site.sp) in asleep


# Stacks for a reader that stays: no more is looked at than what idle exits are blamed on.
#
# `attribute` looks at every sleep of its target, because a window is short and all of it counts. A monitor of a host
# would copy the stacks of every program that ever ran there. Here a thread's sleep is looked at only where its last one
# ended an idle period, a process only where somebody asks for it, and wakings are counted of judged processes alone.


class DemandStacks:
    """Beside idle exits (`tracer.TracePart`) that `TraceMonitor` reads: `members` are those that were looked at."""

    def __init__(self, program: LoadedProgram, sums: IdleSums, stacks: StackReader, members: TargetMembers) -> None:
        self.members = members
        self._program, self._sums, self._stacks = program, sums, stacks
        self._counted_from_ns = self._counted_to_ns = 0
        sums.counts_wakings = False

    def begin(self, meanwhile: Callable[[], object]) -> None:
        self._stacks.begin(meanwhile)

    def start(self) -> None:
        """Wakings count from `judge` on."""

    def read(self) -> None:
        self.members.read()

    @property
    def read_interval_s(self) -> float:
        """Whoever reads it looks for the target's processes with each read."""
        return math.inf

    def end(self) -> None:
        """It goes on."""

    def cut(self, counters: Sequence[int]) -> None:
        self._stacks.cut(counters)
        self._counted_to_ns = time.monotonic_ns()

    def judge(self, pids: Collection[int]) -> None:
        """From now on every waking of these processes is counted, and of no others."""
        self.members.judge(pids)
        self._sums.counts_wakings = bool(pids)
        write_shared(self._program, Shared.COUNTING, int(bool(pids)))
        self._counted_from_ns = self._counted_to_ns = time.monotonic_ns()

    def look_at(self, pids: Iterable[int]) -> None:
        """Take these processes in as they are now."""
        self.members.add(pid for pid in pids if pid != os.getpid())

    def send_again(self) -> None:
        """Every stack counts as new: there were more than are kept."""
        self._stacks.send_again()

    def forget(self) -> None:
        """What is known of programs and stacks is reset."""
        self.members.forget_programs()
        self._stacks.send_again()

    def collect(self) -> StackTrace:
        """What came about stacks since the call before; to be called after the tracer's `snapshot`."""
        sites = self._stacks.take_sites()
        self.members.let_go_ended()
        counted_from_ns, self._counted_from_ns = self._counted_from_ns, self._counted_to_ns
        return self._stacks.take_trace(sites, counted_from_ns, self._counted_to_ns)
