# SPDX-License-Identifier: Apache-2.0
"""The idle-exit program with stacks: which threads of which processes, and what was copied of them."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from powerprof.errors import PowerprofError
from powerprof.processes.targets import Target, has_ended, processes
from powerprof.processes.tasks import ENDED
from powerprof.stacks.image import ProcessImage, Seen, merge, snapshot
from powerprof.stacks.reader_process import ReaderProcess
from powerprof.stacks.registers import this_machine
from powerprof.stacks.time_budget import Budget
from powerprof.tracing.bpf.btf import kernel_btf
from powerprof.tracing.bpf.definitions import register_definitions
from powerprof.tracing.bpf.halves import Halves
from powerprof.tracing.bpf.shared_enums import Shared
from powerprof.tracing.idle.ended import summed_causes, summed_wakings
from powerprof.tracing.idle.joining import Joining
from powerprof.tracing.idle.layout import HALF, WOKEN, WOKEN_COUNT, WOKEN_KEY, Count, Filling
from powerprof.tracing.idle.sites import REGISTERS, SavedSite, SiteWakings, SleepingStack, decode
from powerprof.tracing.idle.sleeping import sleeping_stacks
from powerprof.tracing.idle.tracer import IdleTrace, IdleTracer

_TARGET = struct.Struct("=5Q")
# 4 MiB: the reader is called when 64 of the largest stacks wait, and there is room for 190 more until it comes. What
# finds none is sent at the thread's next sleep.
_RING_PAGES = 1024
# Up to 20,000 switch-outs and wakings a second and CPU all are looked at, or 8,000 where it idles less than a tenth of
# the time; above that one in SAMPLE_1_IN.
LOADED_PER_100MS = 2000
SAMPLE_1_IN = 64
# What one window may keep of stacks: five thousand threads with one site of 12 KiB, or one thread with 256 sites.
STACK_BYTES = 64 << 20
THREAD_STACKS = 256
_LOOK_FOR_MEMBERS_S = 2.0


@dataclass(frozen=True)
class StackTrace:
    """What came with the idle exits.

    `loaded_count` switch-outs and wakings were not looked at because of load, `unsent_count` stacks not copied because
    there were too many, `uncounted_count` wakings not counted because of too many sites, `lost_count` stacks lost to a
    full ring buffer. Wakings were counted from `counted_from_ns` to `counted_to_ns` (CLOCK_MONOTONIC).
    `registers_found` False: threads were seen going to sleep, and their registers were not where they should be.
    """

    sites: list[SavedSite]
    sleeping: list[SleepingStack]
    images: dict[int, list[ProcessImage]]
    wakings: list[SiteWakings]
    lost_count: int
    loaded_count: int
    unsent_count: int
    uncounted_count: int
    counted_from_ns: int
    counted_to_ns: int
    registers_found: bool = True


def _target_entry(image: ProcessImage, judged: bool) -> bytes:
    """Where a process has code, and whether it is judged: struct target."""
    own = [mapping for mapping in image.mappings if mapping.path == image.executable]
    others = [mapping for mapping in image.mappings if mapping.path != image.executable and mapping.inode]
    ranges = []
    for mappings in (own, others):
        first = min((mapping.start for mapping in mappings), default=0)
        ranges += [first, max((mapping.end for mapping in mappings), default=0) - first]
    return _TARGET.pack(*ranges, judged)


class StackTracer(IdleTracer):
    """Traces idle exits and the stacks of a target's threads."""

    def __init__(self, target: Target, ring_pages: int = _RING_PAGES, *, on_demand: bool = False) -> None:
        """Load, attach, and look at the target's processes. Raises CapabilityError, PowerprofError.

        `on_demand`: see `tracing/idle/demand.py`.
        """
        self._machine = this_machine()
        btf = kernel_btf()
        state = "__state" if btf.has_field("task_struct", "__state") else "state"  # renamed by 2f064a59a11f
        self._target = target
        self._budget, self._aside = Budget(), ReaderProcess()
        self._seen, self._judged = Seen(), frozenset[int]()
        self.images: dict[int, list[ProcessImage]] = {}
        self._admitted, self._not_admitted = set[int](), set[int]()
        self._joining = Joining(target)
        self._sites: list[SavedSite] = []
        self._sleeping: list[SleepingStack] = []
        self._wakings = np.zeros(0, dtype=WOKEN)
        self._woken: Halves | None = None
        # Whether wakings are counted, or were since the last read.
        self._counting = True
        self._window = self._counted_from_ns = self._counted_to_ns = 0
        super().__init__(
            {
                **register_definitions(btf, self._machine),
                "LOADED_PER_100MS": LOADED_PER_100MS,
                "SATURATED_PER_100MS": LOADED_PER_100MS * 2 // 5,
                "SAMPLE_1_IN": SAMPLE_1_IN,
                "STACK_PAGES": ring_pages,
                "THREAD_STACKS": THREAD_STACKS,
                "TARGET_ALL": int(target.system),
                "ON_DEMAND": int(on_demand),
                **({"EXIT_PAGES": 1} if on_demand else {}),
                "OFFSET_task_struct_state": btf.field_offset("task_struct", state),
                **self._joining.definitions(btf),
            },
            btf,
        )
        self.program.ring("stacks", self._on_stack)
        self._woken = Halves(
            self.program,
            "woken",
            (WOKEN_KEY, WOKEN_COUNT),
            ("context", HALF),
            sums=("count",),
            turn=lambda half: self._share(Shared.WOKEN_HALF, half * HALF),
        )
        self._share(Shared.OWN_PID, os.getpid())
        # One is everybody's.
        self._most_processes = self.program.slots("targets") - 1
        if target.system:
            self._admit_everyone()
        if not (on_demand and target.system):
            self.add(target.pids or [pid for pid in processes() if pid != os.getpid()])

    def notes(self) -> list[str]:
        """Which processes were left out, and why."""
        left = len(self._not_admitted)
        full = [f"the tracer had no room for {left:,} of the target's processes: they have no stacks"] if left else []
        return [*self._aside.notes(), *self._budget.notes(), *full, *self._joining.notes()]

    def close(self) -> None:
        self._aside.close()
        super().close()

    def _admit_everyone(self) -> None:
        # Entry 0 stands for processes that are not listed: without code ranges their call paths are not told apart.
        self.program.put("targets", 0, bytes(_TARGET.size))

    def add(self, pids: Iterable[int]) -> None:
        """Take these processes in, as they are now; those that are gone or are the kernel's are passed over."""
        for pid in pids:
            try:
                before = self.images.get(pid, [None])[-1]
                image = snapshot(pid, self._budget, self._aside, seen=self._seen, before=before)
            except PowerprofError:
                continue
            self._remember(image)
            self._tell_whether_one()
            self._admit(pid, _target_entry(image, pid in self._judged))

    def _admit(self, pid: int, entry: bytes) -> None:
        """To the kernel's table. Where it is full of processes that have ended, they make room; what has none even then
        is left out, and said."""
        if pid not in self._admitted and len(self._admitted) >= self._most_processes:
            ended = [known for known in self._admitted if has_ended(known)]
            self.program.delete("targets", b"".join(known.to_bytes(4, "little") for known in ended))
            self._admitted.difference_update(ended)
            if len(self._admitted) >= self._most_processes:
                self._not_admitted.add(pid)
                return
        self._admitted.add(pid)
        self._not_admitted.discard(pid)
        self.program.put("targets", pid, entry)

    def _tell_whether_one(self) -> None:
        """Where the target is one process, all others are known by that, without a look-up."""
        alone = len(self.images) == 1 and not self._target.system
        self._share(Shared.ONLY_TARGET, next(iter(self.images)) if alone else 0)
        if alone and self._take_joined():
            # Before it was said that there is one only: the kernel cannot have taken it back.
            self._share(Shared.ONLY_TARGET, 0)

    def _take_joined(self) -> bool:
        """Processes that the target started are known by what their parents have. Says whether there were any."""
        found = self._joining.taken(self.program, self.images)
        self.images.update(found)
        self._admitted.update(found)
        return bool(found)

    def _remember(self, image: ProcessImage) -> None:
        """Keep an image of every program that a process ran: an exec in the window starts another list entry."""
        known = self.images.setdefault(image.pid, [])
        if known and (known[-1].started_ticks, known[-1].executable) == (image.started_ticks, image.executable):
            known[-1] = merge(known[-1], image)
        else:
            known.append(image)

    def send_again(self) -> None:
        """Every stack counts as new: for when there were more than are kept, or what was known of them is gone."""
        self.program.clear("seen")
        # After it: a thread that is where it was in this window is not looked up again among those seen.
        self._window += 1
        self._share(Shared.WINDOW, self._window)

    def begin(self) -> None:
        """Forget the stacks seen, so that they are sent again; look at who is asleep."""
        # Before what is counted begins anew: what is not copied now would be said to be missing in this window.
        self._share(Shared.STACK_BYTES, STACK_BYTES)
        super().begin()
        if self._woken is None:
            return
        self._take_joined()
        self._joining.begin()
        self._sites.clear()
        self._woken.clear()
        self._wakings = self._wakings[:0]
        self._share(Shared.STACK_BYTES, STACK_BYTES)
        self._base = self._counted
        # Last: a stack that is not new is not copied again.
        self.send_again()
        if not self._target.system:
            self._sleeping = [
                stack for pid in self.images for stack in sleeping_stacks(pid, self._aside, self._drain_where_called)
            ]

    def _drain_where_called(self) -> None:
        # Processes that joined wait: the child that reads them is busy.
        if self.program.waits("calls"):
            super().read()

    def start(self) -> None:
        """Wakings count from here."""
        self._share(Shared.COUNTING, 1)
        self._counted_from_ns = time.monotonic_ns()

    def end(self) -> None:
        """Wakings from here on are not the window's."""
        self._share(Shared.COUNTING, 0)
        self._counted_to_ns = time.monotonic_ns()

    def snapshot(self) -> IdleTrace:
        """As for idle exits; `stack_trace` afterwards has the stacks and wakings of the same time."""
        trace = super().snapshot()
        self._counted_to_ns = time.monotonic_ns()
        return trace

    def _look_again(self, sites: list[SavedSite]) -> None:
        """Libraries may have been loaded and programs executed since; processes of the system may be new."""
        self.add({site.pid for site in sites} | set(self.images))

    def _shared(self, index: int) -> int:
        return int.from_bytes(self.program.get("shared", index), "little")

    def _living(self) -> dict[Filling, int]:
        living = (self._wakings["tid"] < ENDED) & (self._wakings["waker_tid"] < ENDED)
        return super()._living() | {Filling.WOKEN: int(np.sum(living)), Filling.STACKS: 0}

    def _gather(self) -> None:
        self._read_woken(emptied=True)
        super()._gather()

    def _read_more(self) -> None:
        self._read_woken(emptied=False)

    def _read_woken(self, *, emptied: bool) -> None:
        if self._woken is not None and self._counting:
            self._wakings = np.concatenate([self._wakings, self._woken.since(emptied=emptied)])

    def _fold(self) -> None:
        """Both tables at once: an exit and its waking are of one thread."""
        self._kept, self._wakings = summed_causes(self._kept), summed_wakings(self._wakings)
        if self._are_many(max(len(self._kept), len(self._wakings))):
            kept = frozenset(self._target.pids)
            self._kept, self._wakings = self._ended.fold(self._kept, self._wakings, kept, self.images)
            # Registers are joined with the stack of one who slept before the trace began; others' are of no use.
            asleep = {(stack.tid, stack.ip, stack.sp) for stack in self._sleeping}
            self._sites = [
                site for site in self._sites if site.kind != REGISTERS or (site.tid, site.ip, site.sp) in asleep
            ]
            named = np.concatenate([self._kept["next_tgid"], self._kept["waker_tgid"], self._wakings["pid"]])
            self._let_go(self._joining.ended(set(named.tolist())))

    def _let_go(self, pids: Collection[int]) -> None:
        """These have ended, and nothing tells of them any more."""
        for pid in pids:
            self.images.pop(pid, None)
        self._admitted.difference_update(pids)

    def _addresses(self, causes: npt.NDArray[Any]) -> set[int]:
        return super()._addresses(causes) | set(self._wakings["timer_function"].tolist()) - {0}

    def read(self) -> None:
        """As for idle exits; processes that joined the target are taken in as well."""
        super().read()
        if self._woken is None:
            return
        self._take_joined()
        late = [pid for pid in self._target.members() if pid not in self.images]
        self.add(late)
        self._joining.note_late(late)

    @property
    def unread_at_most_s(self) -> float:
        """A process that joins the target, where any may, is looked at when the buffers are drained."""
        may_grow = self._target.cgroup is not None or bool(self._target.roots)
        return _LOOK_FOR_MEMBERS_S if may_grow else super().unread_at_most_s

    def _on_stack(self, data: bytes) -> None:
        # At once: whoever kept the bytes for later would hold most of them twice then.
        self._sites.append(decode(data, self._machine.register_bytes))

    def stack_trace(self) -> StackTrace:
        """Everything about stacks since `begin` or the call before; call it after `finish` or `snapshot`."""
        sites, self._sites = self._sites, []
        sleeping, self._sleeping = self._sleeping, []
        wakings, self._wakings = self._wakings[list(SiteWakings.__struct_fields__)].tolist(), self._wakings[:0]
        self._look_again(sites)
        counted = [now - then for now, then in zip(self._counted, self._base, strict=True)]
        self._joining.unjoined_count = counted[Count.UNJOINED]
        self._base = self._counted
        self._share(Shared.STACK_BYTES, STACK_BYTES)
        counted_from_ns, self._counted_from_ns = self._counted_from_ns, self._counted_to_ns
        return StackTrace(
            sites,
            sleeping,
            self.images,
            [SiteWakings(*row) for row in wakings],
            counted[Count.LOST_STACKS],
            counted[Count.LOADED],
            counted[Count.UNSENT],
            counted[Count.UNCOUNTED],
            counted_from_ns,
            self._counted_to_ns,
            self._direct or bool(self._shared(Shared.REGS_OFFSET)) or not counted[Count.SLEEPS],
        )
