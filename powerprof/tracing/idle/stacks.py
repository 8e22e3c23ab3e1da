# SPDX-License-Identifier: Apache-2.0
"""What the program copies of a target's threads where they sleep, and how often they were woken there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from powerprof.stacks.pycode import PythonFrame
from powerprof.stacks.registers import Machine
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.shared_numbers import Count, Shared, StackKind
from powerprof.tracing.idle.members import Images, TargetMembers
from powerprof.tracing.idle.shared import share, shared
from powerprof.tracing.idle.sites import SavedSite, SiteWakings, SleepingStack, decode
from powerprof.tracing.idle.sums import IdleSums

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
    images: dict[int, Images]
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


class Stacks:
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
        share(self._program, Shared.WINDOW, self._window)

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
            self._direct or bool(shared(self._program, Shared.REGS_OFFSET)) or not counted[Count.SLEEPS],
            self._members.frames(
                [*((site.pid, site.chain) for site in sites), *((one.pid, one.chain) for one in sleeping)]
            ),
            self._members.ended_groups(),
        )

    def _allow(self) -> None:
        share(self._program, Shared.STACK_BYTES, STACK_BYTES)

    def _on_stack(self, data: bytes) -> None:
        # At once: whoever kept the bytes for later would hold most of them twice then.
        site = decode(data, self._register_bytes)
        if self._is_of_use(site):
            self._sites.append(site)

    def _is_of_use(self, site: SavedSite) -> bool:
        """Registers alone are joined with the stack of one who slept before the trace began; others' are of no use."""
        asleep = self._asleep
        return site.kind != StackKind.REGISTERS or asleep is None or (site.tid, site.ip, site.sp) in asleep
