# SPDX-License-Identifier: Apache-2.0
"""The target's processes in the program's table: those that are there at first, those that join, those that end."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec
import numpy as np

from powerprof.measure.procfs import process_cpu_ns
from powerprof.stacks.image import ElfCache, ProcessGoneError, ProcessImage, merge_images, snapshot
from powerprof.stacks.interpreter import Interpreter, InterpreterFinder, PythonFrame, read_frames
from powerprof.stacks.time_budget import Budget
from powerprof.system.caller import is_system_account
from powerprof.system.errors import PowerprofError
from powerprof.system.processes import Target, has_ended, processes, uids_of
from powerprof.system.reader_process import ReaderProcess, Unreadable, shared
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.shared_numbers import GROWS_FAMILY, GROWS_GROUP, Shared
from powerprof.tracing.bpf.types import Btf, build_argument_definitions, build_struct_definitions
from powerprof.tracing.idle_data import SleepingStack, write_shared

# Processes that join a target while it is traced: reported by the kernel when they start, or found later.

_FIELDS = {
    "task_struct_real_parent": ("task_struct", "real_parent"),
    "task_struct_signal": ("task_struct", "signal"),
    "signal_struct_live": ("signal_struct", "live"),
}


def _processes(count: int) -> str:
    return f"{count:,} process{'' if count == 1 else 'es'}"


class JoinedProcesses:
    """Who joined one target, and how many were found too late."""

    def __init__(self, target: Target) -> None:
        self._grows = 0
        if not target.system:
            self._grows = GROWS_GROUP if target.cgroup is not None else GROWS_FAMILY * bool(target.roots)
        self.children = set[int]()
        self._late_count = self.unjoined_count = 0

    def begin(self) -> None:
        """A new window is near."""
        self._late_count = self.unjoined_count = 0

    def definitions(self, btf: Btf) -> dict[str, int | str]:
        """What joins.bpf.h is compiled with."""
        if not self._grows:
            return {"GROWS": 0}
        arguments = build_argument_definitions(btf, "sched_process_fork", ("parent", "child"))
        return {"GROWS": self._grows, **build_struct_definitions(btf, _FIELDS), **arguments}

    def taken(self, program: LoadedProgram, images: Mapping[int, list[ProcessImage]]) -> dict[int, list[ProcessImage]]:
        """Images of the processes that joined since the last call: each has its parent's memory, as it was.

        What is in the memory of one that has executed a program since is not known until somebody looks at it.
        """
        if not self._grows:
            return {}
        keys, values = program.hash_bytes("joined")
        program.delete("joined", keys)
        parents = dict(zip(np.frombuffer(keys, "<u4").tolist(), np.frombuffer(values, "<u4").tolist(), strict=True))
        found: dict[int, list[ProcessImage]] = {}
        for child in parents:
            line = [child]
            while parents.get(line[-1], 0) and parents[line[-1]] not in line:
                line.append(parents[line[-1]])
            oldest = line[-1]
            if oldest in parents:
                unknown = ProcessImage(pid=child, started_ticks=0, executable="", mappings=())
                found[child] = [*images.get(child, []), unknown]
            elif known := images.get(oldest):
                found[child] = [msgspec.structs.replace(known[-1], pid=child)]
        self.children |= found.keys()
        return found

    def ended(self, referenced: Collection[int]) -> set[int]:
        """Processes that joined, have ended, and are in no figure any more: they are forgotten."""
        gone = {pid for pid in self.children - set(referenced) if has_ended(pid)}
        self.children -= gone
        return gone

    def note_late(self, pids: Collection[int]) -> None:
        """These are of the target and were not started by it: what they did before they were found is not known."""
        self._late_count += len(pids)

    def notes(self) -> list[str]:
        """What is missing."""
        notes = []
        if late := self._late_count:
            notes.append(
                f"{_processes(late)} joined the target without being started by it: wake-ups "
                "before they were found are not in the figures"
            )
        if lost := self.unjoined_count:
            notes.append(f"the tracer had no room for {_processes(lost)} that the target started")
        return notes


# The stacks of threads that are asleep already when a trace begins, read without stopping them.
#
# /proc/PID/task/TID/syscall names the stack pointer and pc of a blocked thread, and its memory stands still while it
# sleeps; the same answer before and after the copy shows that it slept throughout. The registers follow when the trace
# sees it woken: they were saved when it went to sleep and have not changed since.


def read_sleeping_stacks(
    pid: int, aside: ReaderProcess, meanwhile: Callable[[], object] = lambda: None, frames: Sequence[int] = ()
) -> list[SleepingStack]:
    """The stacks of all threads of a process that are blocked now; those that run or may not be read are left out.

    `meanwhile` is called after each: thousands of threads take a second. `frames`: where an interpreter has its own.
    """
    try:
        stacks = aside.stacks(pid, meanwhile, frames)
    except Unreadable:
        return []
    return [SleepingStack(pid, tid, ip, sp, stack, chain) for tid, ip, sp, chain, stack in stacks]


_TARGET = struct.Struct("=6Q8I")
_NO_INTERPRETER = (0,) * 9
# A child of 10 MB that reads processes' maps, which takes 30 ms to start.
_CHILD_RESTS_S = 300.0
# Of looks for who was started while the target was looked at; one suffices, but where each starts others.
_ROUNDS = 8
ProcessImages = list[ProcessImage]
ImageRetention = Callable[[ProcessImages, ProcessImage], ProcessImages]


def keep_every_program(known: ProcessImages, image: ProcessImage) -> ProcessImages:
    """For a window: an exec in it starts another entry."""
    if known and (known[-1].started_ticks, known[-1].executable) == (image.started_ticks, image.executable):
        return [*known[:-1], merge_images(known[-1], image)]
    return [*known, image]


def keep_latest_program(known: ProcessImages, image: ProcessImage) -> ProcessImages:
    """For who stays: what a process did before an exec ended its idle periods before."""
    return [merge_images(known[-1], image) if known else image]


def _entry(image: ProcessImage, judged: bool, interpreter: Interpreter | None) -> bytes:
    """Where a process has code, whether it is judged, and where its interpreter is: struct target."""
    own = [mapping for mapping in image.mappings if mapping.path == image.executable]
    others = [mapping for mapping in image.mappings if mapping.path != image.executable and mapping.inode]
    ranges = []
    for mappings in (own, others):
        first = min((mapping.start for mapping in mappings), default=0)
        ranges += [first, max((mapping.end for mapping in mappings), default=0) - first]
    return _TARGET.pack(*ranges, judged, *(interpreter.packed() if interpreter else _NO_INTERPRETER))


class TargetMembers:
    """Who is of one target, as the program knows it, and the images by which their stacks are named."""

    def __init__(
        self, program: LoadedProgram, target: Target, joining: JoinedProcesses, remember: ImageRetention
    ) -> None:
        """Of no process yet. `remember`: what is kept of a process that was looked at before."""
        self.target, self.images = target, dict[int, ProcessImages]()
        self._program, self._joining, self._remember = program, joining, remember
        self._budget, self._seen, self._aside = Budget(), ElfCache(), shared()
        self._interpreters, self._interpreted = InterpreterFinder(), dict[int, Interpreter | None]()
        self._admitted, self._not_admitted = set[int](), set[int]()
        self._refused: PowerprofError | None = None
        self._judged = frozenset[int]()
        # One is everybody's.
        self._most = program.slots("targets") - 1
        write_shared(program, Shared.OWN_PID, os.getpid())
        if target.system:
            # Entry 0, without code ranges: processes that are not listed, whose call paths are not distinguished.
            program.put("targets", 0, bytes(_TARGET.size))

    def close(self) -> None:
        """The child that reads processes ends."""
        self._aside.close()

    def notes(self) -> list[str]:
        """Which processes were left out, and why."""
        left = len(self._not_admitted)
        full = [f"the tracer had no room for {left:,} of the target's processes: they have no stacks"] if left else []
        return [*self._aside.notes(), *self._budget.notes(), *self._interpreters.notes(), *full, *self._joining.notes()]

    def add_all(self) -> None:
        """Take in whom the target names, or every process of this host but us."""
        # Those of people last: they may keep their readers waiting.
        by_trust = sorted(processes(), key=lambda pid: any(not is_system_account(uid) for uid in uids_of(pid)))
        self.add(self.target.pids or [pid for pid in by_trust if pid != os.getpid()])

    def add(self, pids: Iterable[int]) -> None:
        """Take these processes in, as they are now; those that are gone or are the kernel's are passed over."""
        for pid in pids:
            known = self.images.get(pid, [])
            try:
                image = snapshot(pid, self._budget, self._aside, seen=self._seen, before=known[-1] if known else None)
            except PowerprofError as error:
                if not isinstance(error, ProcessGoneError):
                    self._refused = error
                continue
            self.images[pid] = self._remember(known, image)
            self._tell_whether_one()
            self._interpreted[pid] = self._interpreters.find(image, self._aside, self._budget)
            self._admit(pid, _entry(image, pid in self._judged, self._interpreted[pid]))

    def ended_groups(self) -> dict[int, int]:
        """Control groups, by their numbers, of the processes of a whole system that ended lately, by pid."""
        if not self.target.system:
            return {}
        keys, values = self._program.hash_bytes("ended_groups")
        return dict(zip(np.frombuffer(keys, "<u4").tolist(), np.frombuffer(values, "<u8").tolist(), strict=True))

    def need_one(self) -> None:
        """Raises PowerprofError where none of those that the target names can be looked at."""
        if self.target.system or self.images:
            return
        raise self._refused or PowerprofError(
            f"{self.target.label}: the process is gone, or is the kernel's",
            "ps -e lists them; --system looks at every process",
        )

    def judge(self, pids: Collection[int]) -> None:
        """The wakings of these are counted, and of no others."""
        changed, self._judged = self._judged ^ set(pids), frozenset(pids)
        self.add(changed)

    def follow(self, target: Target) -> None:
        """The target's processes are others from now on; those that ended are let go with the next stacks."""
        self.target = target
        self.add(target.pids)

    def begin(self) -> None:
        """A window is near: the kernel reports who joins from here on.

        To look at a process takes time, in which those that are not known yet start others: looked for until there are
        no more.
        """
        for _ in range(_ROUNDS):
            known = len(self.images)
            self.add(self._unknown())
            if len(self.images) == known:
                break
        self._joining.begin()

    def read(self) -> None:
        """Take in who joined: those that the target started, reported by the kernel, and those found only now."""
        if self.is_one_program and not self._take_joined():
            return  # what it has not started is not beside it
        late = self._unknown()
        self.add(late)
        self._joining.note_late(late)

    def _unknown(self) -> list[int]:
        """Members that the kernel did not report. Listed first: it reports those that are started meanwhile."""
        members = self.target.members()
        self._take_joined()
        return [pid for pid in members if pid not in self.images]

    @property
    def may_grow(self) -> bool:
        """Whether there may be members whom the kernel does not tell of."""
        return self.target.cgroup is not None or bool(self.target.roots)

    @property
    def is_one_program(self) -> bool:
        """Whether there has been but one process, which others join only where it starts them."""
        return bool(self.target.roots) and self.target.cgroup is None and len(self.images) == 1

    def note_unjoined(self, count: int) -> None:
        """For so many of those that joined the kernel's table had no room."""
        self._joining.unjoined_count = count

    def sleeping(self, meanwhile: Callable[[], object]) -> list[SleepingStack]:
        """The stacks of all threads that are blocked now. `meanwhile` is called after each, and must not ask for
        processes: the child that reads them is busy."""
        if self.target.system:
            return []
        found: list[SleepingStack] = []
        for pid in self.images:
            known = self._interpreted.get(pid)
            found += read_sleeping_stacks(pid, self._aside, meanwhile, known.chain_words() if known else ())
        return found

    def frames(self, chains: Iterable[tuple[int, bytes]]) -> list[PythonFrame]:
        """The functions that these processes' chains of frames name, while the processes live."""
        by_pid: dict[int, dict[bytes, None]] = {}
        for pid, chain in chains:
            if chain:
                by_pid.setdefault(pid, {})[chain] = None
        found: list[PythonFrame] = []
        for pid, of_pid in by_pid.items():
            # A process that was started in the window has its parent's memory, and is looked at by its first stack.
            if (known := self._interpreted.get(pid)) is None:
                continue
            with suppress(Unreadable):
                found += read_frames(pid, partial(self._aside.memory, pid), known, of_pid)
        return found

    def let_go_but(self, named: Collection[int]) -> None:
        """Of those that joined and ended, no more than these are in a figure any more."""
        self._let_go(self._joining.ended(named))

    def let_go_ended(self) -> None:
        """Those that ended are forgotten, but for who joined since the last call: the stacks of this time name them."""
        # A look at its clock, which takes a microsecond: a zombie goes when it is reaped.
        self._aside.rest(_CHILD_RESTS_S)
        fresh, self._joining.children = self._joining.children, set()
        ended = [pid for pid in self.images if pid not in fresh and process_cpu_ns(pid) is None]
        if ended:
            self._let_go(ended)
            self._delete(ended)
            self._tell_whether_one()

    def forget_programs(self) -> None:
        """What is known of files and programs is reset."""
        self._budget, self._seen = Budget(), ElfCache()

    def _admit(self, pid: int, entry: bytes) -> None:
        """To the kernel's table. Where it is full of processes that have ended, they make room; what has none even then
        is left out, with a note."""
        if pid not in self._admitted and len(self._admitted) >= self._most:
            ended = [known for known in self._admitted if has_ended(known)]
            self._delete(ended)
            self._admitted.difference_update(ended)
            if len(self._admitted) >= self._most:
                self._not_admitted.add(pid)
                return
        self._admitted.add(pid)
        self._not_admitted.discard(pid)
        self._program.put("targets", pid, entry)

    def _delete(self, pids: Iterable[int]) -> None:
        self._program.delete("targets", b"".join(pid.to_bytes(4, "little") for pid in pids))

    def _let_go(self, pids: Collection[int]) -> None:
        """These have ended, and nothing tells of them any more."""
        for pid in pids:
            self.images.pop(pid, None)
            self._interpreted.pop(pid, None)
            self._interpreters.unknown.pop(pid, None)
        self._admitted.difference_update(pids)

    def _tell_whether_one(self) -> None:
        """Where the target is one process, all others are known by that, without a look-up."""
        alone = len(self.images) == 1 and not self.target.system
        write_shared(self._program, Shared.ONLY_TARGET, next(iter(self.images)) if alone else 0)
        if alone and self._take_joined():
            # Joined before the kernel knew that there is one only: it cannot have reset that itself.
            write_shared(self._program, Shared.ONLY_TARGET, 0)

    def _take_joined(self) -> bool:
        """Processes that the target started are known by what their parents have. Says whether there were any."""
        found = self._joining.taken(self._program, self.images)
        self.images.update(found)
        self._admitted.update(found)
        return bool(found)
