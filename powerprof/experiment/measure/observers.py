# SPDX-License-Identifier: Apache-2.0
"""What is measured beside a window where a condition has several servers, or a storm that may end."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from powerprof.closeable import Closeable
from powerprof.experiment.measure.members import MembersMeter
from powerprof.experiment.measure.slices import Slicer
from powerprof.experiment.measure.storm import StormWatch
from powerprof.experiment.records import MemberShare, Slices, StormShare
from powerprof.workloads.reading import Case

if TYPE_CHECKING:
    from powerprof.experiment.bench.servers import Bench


class CaseObservers(Closeable):
    """`with CaseObservers(bench, case) as beside:` begins the storm; `start()` … `finish(cpus)` enclose the window.

    Does nothing for a single server without a storm and slices. Raises PowerprofError where a server is gone.
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
        """The window begins."""
        if self._meter is not None:
            self._meter.start()
        if self._watch is not None:
            self._watch.watch()
        if self._slicer is not None:
            self._slicer.start()

    def finish(self, cpus: int) -> tuple[list[MemberShare], StormShare | None]:
        """The window is over; what it looked like from within is in `slices`."""
        if self._slicer is not None:
            self.slices = self._slicer.finish()
        storm = self._watch.finish() if self._watch is not None else None
        return self._meter.stop(cpus) if self._meter is not None else [], storm
