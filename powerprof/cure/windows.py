# SPDX-License-Identifier: Apache-2.0
"""The windows of a cure: wake-ups by the kernel's own counters, and idle exits by the trace if this host allows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import asdict

from powerprof.cure.latencies import StatementLatencies, WindowLatencies
from powerprof.cure.records import Arm, CureBlock
from powerprof.cure.replicas import OWN_STATEMENTS, ReplicaSampler
from powerprof.energy.windows import WindowEnergy
from powerprof.measure.sampling import WindowMeter
from powerprof.measure.window import WindowPart, run_window
from powerprof.model.records import Ended, Window
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError
from powerprof.system.targets import Target
from powerprof.system.tasks import read_switches

if TYPE_CHECKING:
    from powerprof.tracing.idle import WindowTracer
    from powerprof.tracing.idle_stacks import WindowStacks


class SwitchCounter(WindowPart):
    """The voluntary switches of each thread of some processes in a window."""

    def __init__(self, list_pids: Callable[[], Iterable[int]]) -> None:
        """Prepare it. `list_pids` returns the present processes at each edge of a window."""
        self._list_pids = list_pids
        self._before: Mapping[int, int] = {}
        self._after: Mapping[int, int] = {}
        self._started_s = self._ended_s = 0.0

    def begin(self) -> None:
        self._before, self._started_s = self._read(), time.monotonic()

    def end(self) -> None:
        self._after, self._ended_s = self._read(), time.monotonic()

    def _read(self) -> dict[int, int]:
        return {tid: count for pid in self._list_pids() for tid, count in read_switches(pid).items()}

    @property
    def counted_s(self) -> float:
        """The time between the two reads in seconds."""
        return self._ended_s - self._started_s

    def counts(self) -> dict[int, int]:
        """Return the switches by thread. Threads that have ended are missing."""
        return {tid: count - self._before.get(tid, 0) for tid, count in self._after.items()}


class CureWindow(msgspec.Struct, frozen=True):
    """A measured window, and its early end."""

    block: CureBlock
    tool_cpu_s: float
    ended: Ended | None
    latencies: WindowLatencies | None = None


class CureWindows(Closeable):
    """Measures windows of both arms with the same tracer.

    Attributes:
        untraced: the reason if the host does not allow a tracer.
    """

    def __init__(
        self,
        target: Target,
        tid: int | None,
        energy: WindowEnergy,
        statements: StatementLatencies | None = None,
        replica: ReplicaSampler | None = None,
        life: WindowPart | None = None,
    ) -> None:
        self._target, self._tid, self._energy = target, tid, energy
        self._statements, self._replica, self._life = statements, replica, life
        self._counter = SwitchCounter(target.find_members or (lambda: target.pids))
        self._stack = ExitStack()
        self._traced: tuple[WindowTracer, WindowStacks] | None = None
        self._meter: WindowMeter | None = None
        self.untraced: str | None = None

    def _open(self) -> None:
        from powerprof.tracing.idle import WindowTracer, trace_stacks

        try:
            tracer, stacks = self._stack.enter_context(trace_stacks(self._target))
            self._traced = self._stack.enter_context(WindowTracer(tracer, self._energy.meters)), stacks
        except CapabilityError as error:
            self.untraced = error.message
            self._meter = self._stack.enter_context(WindowMeter(meters=self._energy.meters))

    def close(self) -> None:
        self._stack.close()

    def settle(self, duration_s: float) -> Ended | None:
        """Let the effect of the other arm pass. Return why it ended early."""
        return run_window(duration_s, *(() if self._life is None else (self._life,))).ended

    def measure(self, duration_s: float, pair: int, arm: Arm) -> CureWindow:
        """Return a measured window. Raise PowerprofError if a counter cannot be read."""
        parts = [
            self._counter,
            *(() if self._life is None else (self._life,)),
            *(() if self._statements is None else self._statements.parts),
            *(() if self._replica is None else self._replica.parts),
        ]
        traced: dict[str, Any] = {}
        if self._traced is None:
            assert self._meter is not None  # noqa: S101  one of the two is open
            passed = run_window(duration_s, *self._meter.parts, *parts)
            window = self._energy.complete(self._meter.collect(passed))
        else:
            tracer, stack_trace = self._traced
            passed = run_window(duration_s, *tracer.parts, *parts)
            traced_window, stacks = tracer.collect(passed), stack_trace.collect()
            window = self._energy.complete(traced_window.residency)
            if self._tid is not None and not stacks.loaded_count and not stacks.uncounted_count:
                traced["traced_wakings_count"] = sum(site.count for site in stacks.wakings if site.tid == self._tid)
            traced["traced_s"] = (stacks.counted_to_ns - stacks.counted_from_ns) / 1e9
            if not traced_window.trace.lost_count:
                traced |= self._count_exits(traced_window.trace.causes)
        own_statements = OWN_STATEMENTS if self._replica is not None and self._replica.parts else None
        latencies = None if self._statements is None else self._statements.collect(own_statements)
        block = self._make_block(pair, arm, window, latencies, traced)
        return CureWindow(block, passed.tool_cpu_s, passed.ended, latencies)

    @property
    def _own_tid(self) -> int | None:
        """The thread of the replica that answers powerprof."""
        return None if self._replica is None else self._replica.own_tid

    def _count_exits(self, causes: npt.NDArray[Any]) -> dict[str, int | None]:
        """Return the idle exits of the thread and of its process, or the server's processes."""
        from powerprof.attribution.causes import blamed_threads

        tids, tgids = blamed_threads(causes)
        is_of_target = np.isin(tgids, self._target.pids) | np.isin(tids, list(self._counter.counts()))
        is_of_target &= tids != (self._own_tid or -1)
        thread = None if self._tid is None else int(causes["count"][tids == self._tid].sum())
        return {"thread_exits_count": thread, "target_exits_count": int(causes["count"][is_of_target].sum())}

    def _make_block(
        self, pair: int, arm: Arm, window: Window, latencies: WindowLatencies | None, traced: dict[str, Any]
    ) -> CureBlock:
        figures = dict(traced)
        if latencies is not None:
            figures |= {
                "statements_count": sum(latencies.statements.values()),
                "statements_s": latencies.window_s,
                "latency_ms": latencies.statements_ms,
                "commits_count": sum(latencies.commits.values()),
                "commit_latency_ms": latencies.commits_ms,
            }
        lag = None if self._replica is None else self._replica.collect()
        if lag is not None:
            figures |= {f"replica_{name}": value for name, value in asdict(lag).items()}
        counts = {tid: count for tid, count in self._counter.counts().items() if tid != self._own_tid}
        return CureBlock(
            pair=pair,
            arm=arm,
            window=window,
            counted_s=self._counter.counted_s,
            thread_wakings_count=None if self._tid is None else counts.get(self._tid),
            target_wakings_count=sum(counts.values()),
            **figures,
        )
