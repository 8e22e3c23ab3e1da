# SPDX-License-Identifier: Apache-2.0
"""Windows over one process: wake-ups by the kernel's own count, and idle exits by the trace where this host can."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from powerprof.closeable import Closeable
from powerprof.cure.latencies import StatementLatencies, Took
from powerprof.cure.records import Arm, CureBlock
from powerprof.cure.replicas import OUR_STATEMENTS, ReplicaLooks, fields
from powerprof.energy.windows import WindowEnergy
from powerprof.errors import CapabilityError, Interrupted
from powerprof.processes.targets import Target
from powerprof.processes.tasks import switches_of
from powerprof.records import Window
from powerprof.windows.runner import Part, pass_window
from powerprof.windows.sampling import WindowMeter

if TYPE_CHECKING:
    from powerprof.tracing.idle.looks import WindowLooks
    from powerprof.tracing.idle.window import TraceWindow

Array = npt.NDArray[Any]


class SwitchCounter(Part):
    """How often each thread of a process gave up its CPU to wait, between the edges."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before: Mapping[int, int] = {}
        self._after: Mapping[int, int] = {}
        self._began_s = self._ended_s = 0.0

    def begin(self) -> None:
        self._before, self._began_s = switches_of(self._pid), time.monotonic()

    def end(self) -> None:
        self._after, self._ended_s = switches_of(self._pid), time.monotonic()

    @property
    def counted_s(self) -> float:
        """How long was counted."""
        return self._ended_s - self._began_s

    def counts(self) -> dict[int, int]:
        """Of every thread that was there at the end; what one that ended did is unknown."""
        return {tid: count - self._before.get(tid, 0) for tid, count in self._after.items()}


@dataclass(frozen=True)
class CureWindow:
    """One window, and the signal that ended it early."""

    block: CureBlock
    tool_cpu_s: float
    interrupted: Interrupted | None
    took: Took | None = None


class CureWindows(Closeable):
    """Measures windows with one tracer, whose programs run in both arms alike. `untraced` is why there is none."""

    def __init__(
        self,
        target: Target,
        tid: int | None,
        energy: WindowEnergy,
        statements: StatementLatencies | None = None,
        replica: ReplicaLooks | None = None,
    ) -> None:
        self._target, self._tid, self._energy, self._statements = target, tid, energy, statements
        self._replica = replica
        self._counter = SwitchCounter(target.pids[0])
        self._stack = ExitStack()
        self._traced: tuple[TraceWindow, WindowLooks] | None = None
        self._meter: WindowMeter | None = None
        self.untraced: str | None = None

    def _open(self) -> None:
        from powerprof.tracing.idle.build import trace_stacks
        from powerprof.tracing.idle.window import TraceWindow

        try:
            tracer, looks = self._stack.enter_context(trace_stacks(self._target))
            self._traced = self._stack.enter_context(TraceWindow(tracer, self._energy.meters)), looks
        except CapabilityError as error:
            self.untraced = error.message
            self._meter = self._stack.enter_context(WindowMeter(meters=self._energy.meters))

    def close(self) -> None:
        self._stack.close()

    def measure(self, duration_s: float, pair: int, arm: Arm) -> CureWindow:
        """One window. Raises PowerprofError where a counter cannot be read."""
        counter = self._counter
        probed = (
            *(() if self._statements is None else self._statements.parts),
            *(() if self._replica is None else self._replica.parts),
        )
        if self._traced is None:
            assert self._meter is not None  # noqa: S101  the other of the two
            passed = pass_window(duration_s, *self._meter.parts, counter, *probed)
            window = self._energy.complete(self._meter.collect(passed))
            took = self._took()
            return CureWindow(self._block(pair, arm, window, took), passed.tool_cpu_s, passed.interrupted, took)
        opened, looks = self._traced
        passed = pass_window(duration_s, *opened.parts, counter, *probed)
        taken, stacks = opened.collect(passed), looks.collect()
        window = self._energy.complete(taken.residency)
        counted = not stacks.loaded_count and not stacks.uncounted_count
        wakings = sum(site.count for site in stacks.wakings if site.tid == self._tid) if counted else None
        took = self._took()
        block = self._block(
            pair,
            arm,
            window,
            took,
            traced_wakings_count=wakings if self._tid is not None else None,
            traced_s=(stacks.counted_to_ns - stacks.counted_from_ns) / 1e9,
            **self._exits(taken.trace.causes, taken.trace.lost_count),
        )
        return CureWindow(block, passed.tool_cpu_s, passed.interrupted, took)

    @property
    def _ours(self) -> int | None:
        """The thread of a replica that answers us."""
        return None if self._replica is None else self._replica.own_tid

    def _took(self) -> Took | None:
        asked = None if self._ours is None else OUR_STATEMENTS
        return None if self._statements is None else self._statements.collect(asked)

    def _exits(self, causes: Array, lost_count: int) -> dict[str, int | None]:
        """The idle exits of the thread and of its process; unknown where some were lost."""
        from powerprof.attribution.causes import blamed

        if lost_count:
            return {}
        tids, tgids = blamed(causes)
        of_target = (tgids == self._target.pids[0]) | np.isin(tids, list(self._counter.counts()))
        of_target &= tids != (self._ours or -1)
        thread = None if self._tid is None else int(causes["count"][tids == self._tid].sum())
        return {"thread_exits_count": thread, "target_exits_count": int(causes["count"][of_target].sum())}

    def _block(self, pair: int, arm: Arm, window: Window, took: Took | None, **traced: Any) -> CureBlock:
        if took is not None:
            traced |= {
                "statements_count": sum(took.statements.values()),
                "statements_s": took.window_s,
                "latency_ms": took.statements_ms,
                "commits_count": sum(took.commits.values()),
                "commit_latency_ms": took.commits_ms,
            }
        traced |= fields(None if self._replica is None else self._replica.collect())
        counts = {tid: count for tid, count in self._counter.counts().items() if tid != self._ours}
        return CureBlock(
            pair=pair,
            arm=arm,
            window=window,
            counted_s=self._counter.counted_s,
            thread_wakings_count=None if self._tid is None else counts.get(self._tid),
            target_wakings_count=sum(counts.values()),
            **traced,
        )
