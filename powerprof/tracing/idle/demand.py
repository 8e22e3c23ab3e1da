# SPDX-License-Identifier: Apache-2.0
"""Stacks for a reader that stays: no more is looked at than what idle exits are blamed on.

`attribute` looks at every sleep of its target, because a window is short and all of it counts. A monitor of a host
would copy the stacks of every program that ever ran there. Here a thread's sleep is looked at only where its last one
ended an idle period, a process only where somebody asks for it, and wakings are counted of judged processes alone.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.shared_numbers import Shared
from powerprof.tracing.idle.members import TargetMembers
from powerprof.tracing.idle.shared import share
from powerprof.tracing.idle.stacks import Stacks, StackTrace
from powerprof.tracing.idle.sums import IdleSums


class DemandLooks:
    """Beside idle exits (`tracer.TracePart`) that `TraceMonitor` reads: `members` are those that were looked at."""

    def __init__(self, program: LoadedProgram, sums: IdleSums, stacks: Stacks, members: TargetMembers) -> None:
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
    def unread_at_most_s(self) -> float:
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
        share(self._program, Shared.COUNTING, int(bool(pids)))
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
