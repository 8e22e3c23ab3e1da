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
from collections.abc import Collection, Iterable

from powerprof.processes.targets import Target
from powerprof.sources.procfs import process_cpu_ns
from powerprof.stacks.image import ProcessImage, Seen, merge
from powerprof.stacks.time_budget import Budget
from powerprof.tracing.bpf.shared_enums import Shared
from powerprof.tracing.idle.sites import SavedSite
from powerprof.tracing.idle.stacks import StackTracer
from powerprof.tracing.symbols.kernel import KernelFunctions

# A child of 10 MB that reads processes' maps, which takes 30 ms to start.
_CHILD_RESTS_S = 300.0
# 2 MiB are 128 of the largest stacks: those of a second in which all programs of a host are new. What does not fit is
# sent again.
_RING_PAGES = 512


class DemandTracer(StackTracer):
    """Traces on and on; to be read by `tracing.monitor.Monitor`."""

    def __init__(self, target: Target) -> None:
        """Load and attach. Raises CapabilityError, PowerprofError."""
        super().__init__(target, _RING_PAGES, on_demand=True)
        self._kernel = KernelFunctions()
        self._counting = False

    def begin(self) -> None:
        """As for a window; single periods are not sent at all."""
        super().begin()
        self.without_sample()

    def start(self) -> None:
        """Nothing is judged yet."""

    @property
    def unread_at_most_s(self) -> float:
        """Whoever reads it looks for the target's processes with each read."""
        return math.inf

    def judge(self, pids: Collection[int]) -> None:
        """From now on every waking of these processes is counted, and of no others."""
        changed, self._judged = self._judged ^ set(pids), frozenset(pids)
        self.add(changed)
        self._counting = bool(pids)
        self._share(Shared.COUNTING, int(self._counting))
        self._counted_from_ns = self._counted_to_ns = time.monotonic_ns()

    def look_at(self, pids: Iterable[int]) -> None:
        """Take these processes in as they are now."""
        self.add(pid for pid in pids if pid != os.getpid())

    def follow(self, target: Target) -> None:
        """The target's processes are others from now on; those that ended are let go with the next stacks."""
        self._target = target
        self.add(target.pids)

    def forget(self) -> None:
        """What is known of programs and stacks begins anew."""
        self._budget, self._seen = Budget(), Seen()
        self.send_again()

    def _remember(self, image: ProcessImage) -> None:
        """As it is now: what a process did before an exec ended its idle periods before."""
        known = self.images.get(image.pid)
        self.images[image.pid] = [merge(known[-1], image) if known else image]

    def _look_again(self, sites: list[SavedSite]) -> None:
        # A look at its clock, which takes a microsecond: a zombie goes when it is reaped.
        self._aside.rest(_CHILD_RESTS_S)
        # What joined since the last look and has ended is named by the stacks of this time.
        fresh, self._joining.children = self._joining.children, set()
        ended = [pid for pid in self.images if pid not in fresh and process_cpu_ns(pid) is None]
        if not ended:
            return
        self._let_go(ended)
        self.program.delete("targets", b"".join(pid.to_bytes(4, "little") for pid in ended))
        self._tell_whether_one()

    def _name_functions(self, addresses: set[int]) -> dict[int, str]:
        return self._kernel.find(addresses)
