# SPDX-License-Identifier: Apache-2.0
"""Stacks for one window: every sleep of the target counts, from before the first CPU's edge until after the last."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.shared_numbers import Shared
from powerprof.tracing.idle.members import TargetMembers
from powerprof.tracing.idle.shared import share
from powerprof.tracing.idle.stacks import Stacks, StackTrace

# Of a process that had no other beside it yet seldom: what it starts the kernel tells, and each look wakes a CPU.
_LOOK_FOR_MEMBERS_S, _LOOK_BESIDE_ONE_S = 2.0, 20.0


class WindowLooks:
    """Beside idle exits (`tracer.TracePart`): `members` are the target's processes."""

    def __init__(self, program: LoadedProgram, stacks: Stacks, members: TargetMembers) -> None:
        self.members = members
        self._program, self._stacks = program, stacks
        self._counted_from_ns = self._counted_to_ns = 0

    def begin(self, meanwhile: Callable[[], object]) -> None:
        self._stacks.begin(meanwhile)

    def start(self) -> None:
        """Wakings count from here."""
        share(self._program, Shared.COUNTING, 1)
        self._counted_from_ns = time.monotonic_ns()

    def read(self) -> None:
        self.members.read()

    @property
    def unread_at_most_s(self) -> float:
        """A process that joins the target, where any may, is looked at when the buffers are read."""
        if not self.members.may_grow:
            return math.inf
        return _LOOK_BESIDE_ONE_S if self.members.is_one_program else _LOOK_FOR_MEMBERS_S

    def end(self) -> None:
        """Wakings from here on are not the window's."""
        share(self._program, Shared.COUNTING, 0)
        self._counted_to_ns = time.monotonic_ns()

    def cut(self, counters: Sequence[int]) -> None:
        self._stacks.cut(counters)

    def collect(self) -> StackTrace:
        """Everything about stacks since `begin` or the call before; to be called after the tracer's `finish`."""
        sites = self._stacks.take_sites()
        # Libraries may have been loaded and programs executed since; processes of the system may be new.
        self.members.add({site.pid for site in sites} | set(self.members.images))
        return self._stacks.take_trace(sites, self._counted_from_ns, self._counted_to_ns)
