# SPDX-License-Identifier: Apache-2.0
"""What the program sums: idle exits by their cause and, where stacks are copied, wakings by where the woken slept."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from powerprof.processes.tasks import ENDED
from powerprof.tracing.bpf.halves import Halves
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.shared_numbers import CAUSE_HALF, Filling, Shared
from powerprof.tracing.idle.ended import ENOUGH, EndedThreads, summed_causes, summed_wakings
from powerprof.tracing.idle.layout import CAUSE, CAUSE_KEY, CAUSE_SUM, SUMS, WOKEN, WOKEN_COUNT, WOKEN_KEY
from powerprof.tracing.idle.members import TargetMembers
from powerprof.tracing.idle.shared import share

Array = npt.NDArray[Any]
_FUNCTIONS = ("timer_function", "work_function", "waker_timer_function")


class IdleSums:
    """Keeps the sums of one program, also beyond what its tables have room for."""

    def __init__(self, program: LoadedProgram, members: TargetMembers | None = None) -> None:
        """`members`: whose wakings the program counts; their processes stay what they are in what is kept."""
        self._members = members
        self._causes = Halves(
            program,
            "causes",
            (CAUSE_KEY, CAUSE_SUM),
            ("flags", CAUSE_HALF),
            sums=SUMS,
            turn=lambda half: share(program, Shared.CAUSE_HALF, half * CAUSE_HALF),
        )
        self._woken: Halves | None = None
        if members is not None:
            self._woken = Halves(
                program,
                "woken",
                (WOKEN_KEY, WOKEN_COUNT),
                ("context", CAUSE_HALF),
                sums=("count",),
                turn=lambda half: share(program, Shared.WOKEN_HALF, half * CAUSE_HALF),
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

    def living(self) -> dict[Filling, int]:
        """What fills in this program; of tables, how many entries that are kept here are of threads that live."""
        living = {Filling.CAUSES: int(np.sum(self._kept["next_tid"] < ENDED)), Filling.EXITS: 0}
        if self._woken is not None:
            woken = (self._wakings["tid"] < ENDED) & (self._wakings["waker_tid"] < ENDED)
            living |= {Filling.WOKEN: int(np.sum(woken)), Filling.STACKS: 0}
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
        self._kept, self._wakings = summed_causes(self._kept), summed_wakings(self._wakings)
        self._had_many = self._had_many or max(len(self._kept), len(self._wakings)) > ENOUGH
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
