# SPDX-License-Identifier: Apache-2.0
"""Observe a window of a topology, a storm or bursts, in addition to the figures of the host."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from powerprof.experiment.members_meter import MembersMeter
from powerprof.experiment.records import MemberShare, Slices, StormShare
from powerprof.experiment.slicer import Slicer
from powerprof.experiment.storm_watch import StormWatch
from powerprof.system.closeable import Closeable
from powerprof.workloads.reading import Case

if TYPE_CHECKING:
    from powerprof.experiment.bench import Bench


class CaseObservers(Closeable):
    """All observers of a condition: entering starts the storm, `start()` and `finish(cpus)` enclose the window.

    They do nothing for a single server without a storm and slices. Raises PowerprofError if a server is gone.
    """

    def __init__(self, bench: Bench, case: Case) -> None:
        self._members = bench.members(case)
        self._storm = case.workload.definition.storm
        every_s = case.workload.definition.slices_s
        self._slicer = Slicer(bench.pids(case), every_s) if every_s else None
        self.slices: Slices | None = None
        self._replicates = case.topology.kind != "standalone"
        self._stack = ExitStack()
        self._meter: MembersMeter | None = None
        self._watch: StormWatch | None = None

    def _open(self) -> None:
        if self._replicates:
            self._meter = self._stack.enter_context(MembersMeter(self._members))
        if self._storm is not None:
            self._watch = self._stack.enter_context(StormWatch(self._storm, self._members))
        if self._slicer is not None:
            self._stack.enter_context(self._slicer)

    def close(self) -> None:
        self._stack.close()

    def start(self) -> None:
        """Start observing."""
        if self._meter is not None:
            self._meter.start()
        if self._watch is not None:
            self._watch.watch()
        if self._slicer is not None:
            self._slicer.start()

    def finish(self, cpus: int) -> tuple[list[MemberShare], StormShare | None]:
        """Return the members' shares and that of the storm; `slices` holds the slices."""
        if self._slicer is not None:
            self.slices = self._slicer.finish()
        storm = self._watch.finish() if self._watch is not None else None
        return self._meter.stop(cpus) if self._meter is not None else [], storm
