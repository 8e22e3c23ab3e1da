"""The idle-exit program with stacks: which threads of which processes, and what was copied of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from powerprof.errors import CapabilityError, PowerprofError
from powerprof.stacks.image import ProcessImage, merge, snapshot
from powerprof.tracing.btf import kernel_btf
from powerprof.tracing.idle import IdleTracer
from powerprof.tracing.layout import REGISTER_COUNT, REGISTER_IP, REGISTER_SP, STACK_HEADER
from powerprof.tracing.sleeping import SleepingStack, sleeping_stacks
from powerprof.tracing.targets import Target, cgroup_pids, processes

_COUNT_STACKS, _COUNT_LOST_STACKS, _COUNT_LOADED, _COUNT_SLEEPS = 2, 3, 4, 5
_RING_PAGES = 4096  # 16 MiB: two thousand stacks of 8 KiB between two drains
# At up to 5,000 switch-outs a second and CPU all are looked at (0.6 µs each); above that one in SAMPLE_1_IN.
LOADED_PER_10MS = 50
SAMPLE_1_IN = 64


@dataclass(frozen=True)
class SavedSite:
    """Where a thread slept or woke another; `kind` as in stacks.bpf.h. `stack` is empty if only registers are known."""

    at_ns: int
    pid: int
    tid: int
    kind: int
    ip: int
    sp: int
    code: int
    registers: bytes
    stack: bytes


@dataclass(frozen=True)
class StackTrace:
    """What came with the idle exits. `loaded_count` switch-outs were not looked at; `sleeps` counts them per site."""

    sites: list[SavedSite]
    sleeping: list[SleepingStack]
    images: dict[int, list[ProcessImage]]
    sleeps: dict[tuple[int, int, int, int], int]
    lost_count: int
    loaded_count: int


def _decode(data: bytes) -> SavedSite:
    header = np.frombuffer(data, dtype=STACK_HEADER, count=1)[0]
    stack = data[STACK_HEADER.itemsize : STACK_HEADER.itemsize + int(header["bytes"])]
    return SavedSite(
        int(header["at_ns"]), int(header["tgid"]), int(header["tid"]), int(header["kind"]), int(header["ip"]),
        int(header["sp"]), int(header["code"]), header["registers"].tobytes(), stack,
    )  # fmt: skip


class StackTracer(IdleTracer):
    """Traces idle exits and the stacks of a target's threads."""

    def __init__(self, target: Target, ring_pages: int = _RING_PAGES) -> None:
        """Load, attach, and look at the target's processes. Raises CapabilityError, PowerprofError."""
        if os.uname().machine != "x86_64":
            raise CapabilityError(f"stacks of {os.uname().machine} cannot be unwound", "powerprof idle needs no stacks")
        btf = kernel_btf()
        state = "__state" if btf.has_field("task_struct", "__state") else "state"  # renamed by 2f064a59a11f
        self._target = target
        self.images: dict[int, list[ProcessImage]] = {}
        self._records: list[bytes] = []
        self._sleeping: list[SleepingStack] = []
        super().__init__({
            "REGISTER_COUNT": REGISTER_COUNT, "REGISTER_IP": REGISTER_IP, "REGISTER_SP": REGISTER_SP,
            "LOADED_PER_10MS": LOADED_PER_10MS, "SAMPLE_1_IN": SAMPLE_1_IN, "STACK_PAGES": ring_pages,
            "TARGET_ALL": int(target.system), "OWN_PID": os.getpid(),
            "OFFSET_task_struct_state": btf.field_offset("task_struct", state),
        })  # fmt: skip
        self.program.ring("stacks", self._records.append)
        self._targets = self.program.bpf["targets"]
        if target.system:
            self._admit_everyone()
        self.add(target.pids or [pid for pid in processes() if pid != os.getpid()])

    def _admit_everyone(self) -> None:
        # Entry 0 stands for processes that are not listed: without code ranges their call paths are not told apart.
        self._targets[self._targets.Key(0)] = self._targets.Leaf()

    def add(self, pids: Iterable[int]) -> None:
        """Take these processes in, as they are now; those that are gone or are the kernel's are passed over."""
        for pid in pids:
            try:
                image = snapshot(pid)
            except PowerprofError:
                continue
            self._remember(image)
            self._targets[self._targets.Key(pid)] = self._code_of(image)

    def _remember(self, image: ProcessImage) -> None:
        """Keep an image of every program that a process ran: an exec in the window starts another list entry."""
        known = self.images.setdefault(image.pid, [])
        if known and (known[-1].started_ticks, known[-1].executable) == (image.started_ticks, image.executable):
            known[-1] = merge(known[-1], image)
        else:
            known.append(image)

    def _code_of(self, image: ProcessImage) -> object:
        own = [one for one in image.mappings if one.path == image.executable]
        others = [one for one in image.mappings if one.path != image.executable and one.inode]
        leaf = self._targets.Leaf()
        for mappings, low, size in ((own, "text_low", "text_bytes"), (others, "library_low", "library_bytes")):
            if mappings:
                first = min(one.start for one in mappings)
                setattr(leaf, low, first)
                setattr(leaf, size, max(one.end for one in mappings) - first)
        return leaf

    def begin(self) -> None:
        """A new window: forget the stacks seen, so that they are sent again; look at who is asleep."""
        super().begin()
        if not hasattr(self, "_targets"):
            return
        self._records.clear()
        self.program.bpf["seen"].clear()
        self._base = self.program.per_cpu_sum("counters")
        if not self._target.system:
            self._sleeping = [stack for pid in self.images for stack in sleeping_stacks(pid)]

    def drain(self) -> None:
        """As for idle exits; processes that joined the cgroup, and new programs, are looked at as well."""
        super().drain()
        if self._target.cgroup is not None:
            self.add(pid for pid in cgroup_pids(self._target.cgroup) if pid not in self.images)

    def stack_trace(self) -> StackTrace:
        """Everything about stacks since `begin`; call it after `finish`."""
        sites = [_decode(data) for data in self._records]
        # Libraries may have been loaded and programs executed since; processes of the system may be new.
        self.add({site.pid for site in sites} | set(self.images))
        counters = self.program.per_cpu_sum("counters")
        sleeps = {}
        for key, value in self.program.bpf["seen"].items():
            if key.kind == 0:
                sleeps[(key.tid, key.ip, key.sp, key.code)] = int(value.value)
        return StackTrace(
            sites, self._sleeping, self.images, sleeps, counters[_COUNT_LOST_STACKS] - self._base[_COUNT_LOST_STACKS],
            counters[_COUNT_LOADED] - self._base[_COUNT_LOADED],
        )  # fmt: skip

    def settle(self) -> None:
        """Let a moment pass so that threads that were awake while loading have slept once."""
        time.sleep(0.05)
