# SPDX-License-Identifier: Apache-2.0
"""The target's processes in the idle-exit program, the stacks of their sleeping threads, and their wakings.

`WindowStacks` captures every sleep of the target, for one short window. `DemandStacks` is for a monitor, which would
otherwise copy the stacks of every program that ever ran on the host. It captures a sleep only if the thread's last
sleep ended an idle period, reads a process only on request, and counts wakings only of measured processes.
"""

from __future__ import annotations

import math
import os
import struct
import time
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec
import numpy as np

from powerprof.measure.procfs import process_cpu_ns
from powerprof.measure.window import WindowPart
from powerprof.stacks.image import (
    ElfCache,
    ProcessGoneError,
    ProcessImage,
    find_code_ranges,
    is_same_program,
    merge_images,
    snapshot,
)
from powerprof.stacks.registers import Machine
from powerprof.stacks.time_budget import Budget
from powerprof.system.caller import is_system_account
from powerprof.system.errors import PowerprofError
from powerprof.system.own_processes import is_own
from powerprof.system.processes import list_pids, uids_of
from powerprof.system.reader_process import ReaderProcess, Unreadable, shared
from powerprof.system.targets import Target
from powerprof.system.tasks import has_ended
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.shared_numbers import Count, Shared, StackKind
from powerprof.tracing.captures import Array
from powerprof.tracing.idle_data import SavedSite, SiteWakings, SleepingStack, decode_site
from powerprof.tracing.idle_program import grows, read_shared, write_shared


def _count_of_processes(count: int) -> str:
    return f"{count:,} process{'' if count == 1 else 'es'}"


class JoinedProcesses:
    """Processes that join a target while it is traced: the kernel reports their start, or they are found later."""

    def __init__(self, target: Target) -> None:
        self._grows = grows(target)
        self.children = set[int]()
        self.late_count = self.unjoined_count = 0

    def reset_counts(self) -> None:
        """Start counting for a new window."""
        self.late_count = self.unjoined_count = 0

    def take(self, program: LoadedProgram, images: Mapping[int, list[ProcessImage]]) -> dict[int, list[ProcessImage]]:
        """Return images of the processes that joined since the last call. Each starts with its parent's memory.

        If the parent joined in the same time, the memory of the child is unknown until the child is looked at.
        """
        if not self._grows:
            return {}
        keys, values = program.hash_bytes("new_processes")
        program.delete("new_processes", keys)
        parents = dict(zip(np.frombuffer(keys, "<u4").tolist(), np.frombuffer(values, "<u4").tolist(), strict=True))
        joined: dict[int, list[ProcessImage]] = {}
        for child in parents:
            line = [child]
            while parents.get(line[-1], 0) and parents[line[-1]] not in line:
                line.append(parents[line[-1]])
            oldest = line[-1]
            if oldest in parents:
                unknown = ProcessImage(pid=child, started_ticks=0, executable="", mappings=())
                joined[child] = [*images.get(child, []), unknown]
            elif parent_images := images.get(oldest):
                joined[child] = [msgspec.structs.replace(parent_images[-1], pid=child)]
        self.children |= joined.keys()
        return joined

    def drop_ended(self, referenced: Collection[int]) -> set[int]:
        """Forget and return the joined processes that have ended and are not `referenced`."""
        ended = {pid for pid in self.children - set(referenced) if has_ended(pid)}
        self.children -= ended
        return ended

    def notes(self) -> list[str]:
        """Return notes about missing figures."""
        notes = []
        if late := self.late_count:
            notes.append(
                f"{_count_of_processes(late)} joined the target without being started by it: wake-ups "
                "before they were found are not in the figures"
            )
        if lost := self.unjoined_count:
            notes.append(f"the tracer had no room for {_count_of_processes(lost)} that the target started")
        return notes


def read_sleeping_stacks(
    pid: int, reader: ReaderProcess, drain: Callable[[], object] = lambda: None
) -> list[SleepingStack]:
    """Return the stacks of all threads of a process that are blocked now, without stopping them.

    /proc/PID/task/TID/syscall names the stack pointer and pc of a blocked thread, and its memory does not change while
    it sleeps. The same answer before and after the copy shows that it slept throughout. The registers follow when the
    trace sees the thread woken. Threads that run or cannot be read are left out. `drain` is called after each thread,
    because thousands of threads take a second.
    """
    try:
        stacks = reader.stacks(pid, drain)
    except Unreadable:
        return []
    return [SleepingStack(pid, tid, ip, sp, stack) for tid, ip, sp, stack in stacks]


_TARGET = struct.Struct("=5Q")
# The child that reads processes' maps has 10 MB and takes 30 ms to start. It ends after this time without work.
_READER_IDLE_S = 300.0
# One more look finds the processes that started during the first; several are needed if each starts others.
_MAX_LOOKS = 8
ProcessImages = list[ProcessImage]
ImageRetention = Callable[[ProcessImages, ProcessImage], ProcessImages]


def keep_every_program(images: ProcessImages, image: ProcessImage) -> ProcessImages:
    """Return the images of a process with a new one. For a window: an exec starts another entry."""
    if images and is_same_program(images[-1], image):
        return [*images[:-1], merge_images(images[-1], image)]
    return [*images, image]


def keep_latest_program(images: ProcessImages, image: ProcessImage) -> ProcessImages:
    """Return only the latest image of a process. For a monitor: idle exits before an exec were reported before."""
    return [merge_images(images[-1], image) if images else image]


def _pack_entry(image: ProcessImage, is_measured: bool) -> bytes:
    """Return `struct target`: the process's code ranges, and whether its wakings are counted."""
    return _TARGET.pack(*find_code_ranges(image), is_measured)


class TargetMembers:
    """The processes of one target as the program knows them, with the images that name their stacks.

    `counts_wakings`: whether the program counts wakings of these processes.
    """

    def __init__(
        self, program: LoadedProgram, target: Target, joining: JoinedProcesses, retain: ImageRetention
    ) -> None:
        """Start without any process. `retain` merges a new image into those of the same process."""
        self.target, self.images = target, dict[int, ProcessImages]()
        self.counts_wakings = True
        self._program, self._joining, self._retain = program, joining, retain
        self._budget, self._elf_cache, self._reader = Budget(), ElfCache(), shared()
        self._admitted, self._not_admitted = set[int](), set[int]()
        self._refused: PowerprofError | None = None
        self._measured = frozenset[int]()
        # Entry 0 is for the processes that are not listed.
        self._capacity = program.slots("targets") - 1
        write_shared(program, Shared.OWN_PID, os.getpid())
        if target.system:
            # Without code ranges, call paths of these processes are not distinguished.
            program.put("targets", 0, bytes(_TARGET.size))

    def close(self) -> None:
        """End the child that reads processes."""
        self._reader.close()

    def notes(self) -> list[str]:
        """Return the processes that were left out, and why."""
        left = len(self._not_admitted)
        full = [f"the tracer had no room for {left:,} of the target's processes: they have no stacks"] if left else []
        return [*self._reader.waits.notes(), *self._budget.notes(), *full, *self._joining.notes()]

    def add_all(self) -> None:
        """Add the processes that the target names, or every process of this host except powerprof."""
        # Processes of user accounts come last, because they may keep their readers waiting.
        self.add(
            self.target.pids
            or sorted(list_pids(), key=lambda pid: any(not is_system_account(uid) for uid in uids_of(pid)))
        )

    def add(self, pids: Iterable[int]) -> None:
        """Add these processes as they are now. Skip powerprof's own, those that have ended, and kernel threads."""
        for pid in pids:
            if is_own(pid):
                continue
            images = self.images.get(pid, [])
            try:
                image = snapshot(
                    pid, self._budget, self._reader, seen=self._elf_cache, before=images[-1] if images else None
                )
            except PowerprofError as error:
                if not isinstance(error, ProcessGoneError):
                    self._refused = error
                continue
            self.images[pid] = self._retain(images, image)
            self._set_only_target()
            self._admit(pid, _pack_entry(image, pid in self._measured))

    def exited_cgroups(self) -> dict[int, int]:
        """Return the control groups, by number, of recently ended processes by pid. Only for a whole system."""
        if not self.target.system:
            return {}
        keys, values = self._program.hash_bytes("exited_cgroups")
        return dict(zip(np.frombuffer(keys, "<u4").tolist(), np.frombuffer(values, "<u8").tolist(), strict=True))

    def require_one(self) -> None:
        """Raise PowerprofError if none of the target's processes can be looked at."""
        if self.target.system or self.images:
            return
        raise self._refused or PowerprofError(
            f"{self.target.label}: the process has ended", "ps -e lists the running ones; --system traces all"
        )

    def measure(self, pids: Collection[int]) -> None:
        """Count the wakings of these processes and of no others."""
        changed, self._measured = self._measured ^ set(pids), frozenset(pids)
        self.add(changed)

    def follow(self, target: Target) -> None:
        """Change the target. Its ended processes are dropped with the next stacks."""
        self.target = target
        self.add(target.pids)

    def prepare(self) -> None:
        """Find the target's processes before a window. From here on the kernel reports new ones.

        Looking at a process takes time, in which processes that are not yet listed start others. Repeat until no new
        one is found.
        """
        for _ in range(_MAX_LOOKS):
            count = len(self.images)
            self.add(self._find_unlisted())
            if len(self.images) == count:
                break
        self._joining.reset_counts()

    def read(self) -> None:
        """Add joined processes: those that the kernel reported, and those that are found only now."""
        if self.is_one_program and not self._take_joined():
            return  # other processes can join only if this one starts them
        late = self._find_unlisted()
        self.add(late)
        # Not started by the target: their wake-ups before this moment are unknown.
        self._joining.late_count += len(late)

    def _find_unlisted(self) -> list[int]:
        """Return members that the kernel did not report. List members first: it reports those started meanwhile."""
        members = self.target.members()
        self._take_joined()
        return [pid for pid in members if pid not in self.images]

    @property
    def may_grow(self) -> bool:
        """Whether processes may join that the kernel does not report."""
        return self.target.cgroup is not None or bool(self.target.roots)

    @property
    def is_one_program(self) -> bool:
        """Whether the target has been one process so far. Others join only if it starts them."""
        return bool(self.target.roots) and self.target.cgroup is None and len(self.images) == 1

    def note_unjoined(self, count: int) -> None:
        """Set the number of joined processes for which the kernel's table had no room."""
        self._joining.unjoined_count = count

    def read_sleeping(self, drain: Callable[[], object]) -> list[SleepingStack]:
        """Return the stacks of all threads that are blocked now.

        `drain` is called after each thread. It must not request processes, because the child that reads them is busy.
        """
        if self.target.system:
            return []
        stacks: list[SleepingStack] = []
        for pid in self.images:
            stacks += read_sleeping_stacks(pid, self._reader, drain)
        return stacks

    def drop_ended_joined(self, referenced: Collection[int]) -> None:
        """Drop joined processes that have ended, except those that a figure refers to."""
        self._drop(self._joining.drop_ended(referenced))

    def drop_ended(self) -> None:
        """Drop ended processes, except those that joined since the last call: the stacks of this time name them."""
        # A look at the process's clock takes a microsecond. A zombie is dropped when it is reaped.
        self._reader.rest(_READER_IDLE_S)
        fresh, self._joining.children = self._joining.children, set()
        ended = [pid for pid in self.images if pid not in fresh and process_cpu_ns(pid) is None]
        if ended:
            self._drop(ended)
            self._delete(ended)
            self._set_only_target()

    def reset_caches(self) -> None:
        """Drop the cached facts about files and programs."""
        self._budget, self._elf_cache = Budget(), ElfCache()

    def _admit(self, pid: int, entry: bytes) -> None:
        """Put a process into the kernel's table. Ended processes make room if the table is full."""
        if pid not in self._admitted and len(self._admitted) >= self._capacity:
            ended = [admitted for admitted in self._admitted if has_ended(admitted)]
            self._delete(ended)
            self._admitted.difference_update(ended)
            if len(self._admitted) >= self._capacity:
                self._not_admitted.add(pid)
                return
        self._admitted.add(pid)
        self._not_admitted.discard(pid)
        self._program.put("targets", pid, entry)

    def _delete(self, pids: Iterable[int]) -> None:
        self._program.delete("targets", b"".join(pid.to_bytes(4, "little") for pid in pids))

    def _drop(self, pids: Collection[int]) -> None:
        for pid in pids:
            self.images.pop(pid, None)
        self._admitted.difference_update(pids)

    def _set_only_target(self) -> None:
        """Tell the program the pid if the target is one process. It then needs no table look-up."""
        alone = len(self.images) == 1 and not self.target.system
        write_shared(self._program, Shared.ONLY_TARGET, next(iter(self.images)) if alone else 0)
        if alone and self._take_joined():
            # A process joined before the program knew that there is only one, so the program did not reset it itself.
            write_shared(self._program, Shared.ONLY_TARGET, 0)

    def _take_joined(self) -> bool:
        """Add the processes that the target started, with their parents' images. Return whether there are any."""
        joined = self._joining.take(self._program, self.images)
        self.images.update(joined)
        self._admitted.update(joined)
        return bool(joined)


# The most stack bytes of one window: five thousand threads with one site of 12 KiB.
STACK_BYTES = 64 << 20
# The kernel reports the processes that a single process starts, and each look wakes a CPU.
_LOOK_INTERVAL_S, _LOOK_INTERVAL_OF_ONE_S = 2.0, 20.0


class StackTrace(msgspec.Struct, frozen=True):
    """Stacks and wakings that belong to a trace of idle exits.

    `lost_count`: stacks lost to a full ring buffer. `loaded_count`: switch-outs and wakings that were not examined
    because of load. `unsent_count`: stacks not copied because there were too many. `uncounted_count`: wakings not
    counted because of too many sites. Wakings were counted from `counted_from_ns` to `counted_to_ns` (CLOCK_MONOTONIC).
    `registers_found` is False if threads went to sleep and their registers were not at the expected place.
    `exited_cgroups`: control groups of ended processes by pid, if the whole system is traced.
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
    exited_cgroups: dict[int, int] = msgspec.field(default_factory=dict)


class StackReader(WindowPart):
    """Receives the stacks that the program copies. A part of the idle tracer; `members` are the target's processes."""

    def __init__(
        self,
        program: LoadedProgram,
        members: TargetMembers,
        machine: Machine,
        *,
        direct: bool,
        take_wakings: Callable[[], Array],
        drain: Callable[[], object],
    ) -> None:
        """Register the ring buffer of stacks.

        `direct`: the kernel reports where registers are, and the program does not search for them. `take_wakings`
        returns the wakings (WOKEN) since its last call. `drain` empties the ring buffers if they fill.
        """
        self.members = members
        self._program, self._take_wakings, self._drain = program, take_wakings, drain
        self._register_bytes, self._direct = machine.register_bytes, direct
        self._counted_from_ns = self._counted_to_ns = 0
        self._sites: list[SavedSite] = []
        self._sleeping: list[SleepingStack] = []
        # Places (tid, ip, sp) of threads that were asleep when the window began; None until they have been read.
        self._asleep: set[tuple[int, int, int]] | None = None
        self._window = 0
        self._counters = program.per_cpu_sum("counters")
        self._counters_before = self._counters
        program.ring("stacks", self._on_stack)

    def prepare(self) -> None:
        """Drop the received stacks, let the program send all again, and read the stacks of sleeping threads."""
        # Before the counters are read: a stack that is not copied now would be reported as missing in this window.
        self._allow_bytes()
        self._counters_before = self._counters = self._program.per_cpu_sum("counters")
        self.members.prepare()
        self._sites.clear()
        self._asleep = None
        self._allow_bytes()
        # Last: a stack is copied only if it is new.
        self.send_again()
        self._sleeping = self.members.read_sleeping(self._drain)
        self._asleep = {(stack.tid, stack.ip, stack.sp) for stack in self._sleeping}
        self._sites = [site for site in self._sites if self._is_useful(site)]

    def read(self) -> None:
        """Find joined processes and read the program's counters, up to which the next trace reaches."""
        self.members.read()
        self._counters = self._program.per_cpu_sum("counters")

    def send_again(self) -> None:
        """Let the program send every stack again, because received ones were dropped."""
        self._program.clear("sent_sites")
        # After the clearing: a thread that sleeps at its place of this window is not looked up again.
        self._window += 1
        write_shared(self._program, Shared.WINDOW, self._window)

    def _take_sites(self) -> list[SavedSite]:
        sites, self._sites = self._sites, []
        return sites

    def _take_trace(self, sites: list[SavedSite], counted_from_ns: int, counted_to_ns: int) -> StackTrace:
        """Return these sites and all other data since `prepare` or the last call."""
        wakings = self._take_wakings()[list(SiteWakings.__struct_fields__)].tolist()
        sleeping, self._sleeping = self._sleeping, []
        counted = [after - before for after, before in zip(self._counters, self._counters_before, strict=True)]
        self._counters_before = self._counters
        self.members.note_unjoined(counted[Count.LOST_PROCESSES])
        self._allow_bytes()
        return StackTrace(
            sites=sites,
            sleeping=sleeping,
            images=self.members.images,
            wakings=[SiteWakings(*row) for row in wakings],
            lost_count=counted[Count.LOST_STACKS],
            loaded_count=counted[Count.LOADED],
            unsent_count=counted[Count.UNSENT],
            uncounted_count=counted[Count.LOST_WAKINGS],
            counted_from_ns=counted_from_ns,
            counted_to_ns=counted_to_ns,
            registers_found=self._direct
            or bool(read_shared(self._program, Shared.REGS_OFFSET))
            or not counted[Count.SLEEPS],
            exited_cgroups=self.members.exited_cgroups(),
        )

    def _allow_bytes(self) -> None:
        write_shared(self._program, Shared.STACK_BYTES, STACK_BYTES)

    def _on_stack(self, data: bytes) -> None:
        # Decoded at once: keeping the bytes for later would hold most of them twice.
        site = decode_site(data, self._register_bytes)
        if self._is_useful(site):
            self._sites.append(site)

    def _is_useful(self, site: SavedSite) -> bool:
        """Return whether a record can be used.

        Registers without a stack are joined with the stack of a thread that slept before the trace began.
        """
        asleep = self._asleep
        return site.kind != StackKind.REGISTERS or asleep is None or (site.tid, site.ip, site.sp) in asleep


class WindowStacks(StackReader):
    """Stacks of one window: every sleep of the target counts, from before the first CPU's edge until after the last."""

    @property
    def read_interval_s(self) -> float:
        """The interval between looks for joined processes, in seconds."""
        if not self.members.may_grow:
            return math.inf
        return _LOOK_INTERVAL_OF_ONE_S if self.members.is_one_program else _LOOK_INTERVAL_S

    def begin(self) -> None:
        """Count wakings from here on."""
        write_shared(self._program, Shared.COUNTING, 1)
        self._counted_from_ns = time.monotonic_ns()

    def end(self) -> None:
        """Stop counting wakings."""
        write_shared(self._program, Shared.COUNTING, 0)
        self._counted_to_ns = time.monotonic_ns()

    def collect(self) -> StackTrace:
        """Return all data about stacks since `prepare` or the last call. Call the tracer's `finish` before."""
        sites = self._take_sites()
        # Libraries may have been loaded and programs executed since; processes of the system may be new.
        self.members.add({site.pid for site in sites} | set(self.members.images))
        return self._take_trace(sites, self._counted_from_ns, self._counted_to_ns)


class DemandStacks(StackReader):
    """Stacks for a monitor (`TraceMonitor`): `members` are the processes that were looked at."""

    def read(self) -> None:
        super().read()
        self._counted_to_ns = time.monotonic_ns()

    def measure(self, pids: Collection[int]) -> None:
        """Count every waking of these processes from now on, and of no others."""
        self.members.measure(pids)
        self.members.counts_wakings = bool(pids)
        write_shared(self._program, Shared.COUNTING, int(bool(pids)))
        self._counted_from_ns = self._counted_to_ns = time.monotonic_ns()

    def look_at(self, pids: Iterable[int]) -> None:
        """Add these processes as they are now."""
        self.members.add(pids)

    def reset(self) -> None:
        """Drop the cached facts about programs and let the program send all stacks again."""
        self.members.reset_caches()
        self.send_again()

    def collect(self) -> StackTrace:
        """Return all data about stacks since the last call. Call the tracer's `snapshot` before."""
        sites = self._take_sites()
        self.members.drop_ended()
        counted_from_ns, self._counted_from_ns = self._counted_from_ns, self._counted_to_ns
        return self._take_trace(sites, counted_from_ns, self._counted_to_ns)
