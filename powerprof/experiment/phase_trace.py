# SPDX-License-Identifier: Apache-2.0
"""The traced window of a phase of `idle`: the causes of idle exits, the server's share, and the cost of powerprof."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from powerprof import __version__
from powerprof.measure.procfs import own_peak_bytes
from powerprof.measure.target_life import raise_ended
from powerprof.model.records import Cause, Conservation, Estimate, ServerExits, ToolCost, Window
from powerprof.statistics.counts import rate_interval
from powerprof.system.own_processes import own_pids

if TYPE_CHECKING:
    from powerprof.database.base import Server
    from powerprof.tracing.idle import TracedWindow


class PhaseTrace(msgspec.Struct):
    """The causes of a phase's traced window; empty if none was measured."""

    causes: list[Cause] = msgspec.field(default_factory=list)
    conservation: Conservation | None = None
    window_s: float | None = None
    server_exits: ServerExits | None = None


class ToolTally(msgspec.Struct):
    """The cost of powerprof, summed over windows."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    exits: int = 0
    traced_s: float = 0.0
    bpf_s: float | None = 0.0
    lost: int = 0
    cpus: int = 1

    def add(self, window: Window) -> None:
        """Add a window without tracing."""
        self.cpu_s += window.tool_cpu_s or 0.0
        self.wall_s += window.window_s or 0.0
        self.cpus = window.cpus or 1

    def record(self) -> ToolCost:
        """Return the sums as a record."""
        traced = self.traced_s > 0
        return ToolCost(
            version=__version__,
            cpu_s=self.cpu_s,
            wakeups_hz=self.exits / self.traced_s if traced else None,
            cpu_percent=100.0 * self.cpu_s / self.wall_s / self.cpus if self.wall_s else None,
            bpf_s=self.bpf_s if traced else None,
            lost_count=self.lost if traced else None,
            memory_bytes=own_peak_bytes(),
        )


def trace_phase(
    traced: PhaseTrace,
    duration_s: float,
    server_names: Mapping[int, str],
    tool: ToolTally,
    server: Server | None = None,
) -> None:
    """Trace one window into `traced`.

    `server_names` maps threads to the server's names of them. The exits of a `server` on this host are counted.
    Raises CapabilityError if this host cannot trace, and Interrupted after an interrupted window, which is kept.
    """
    from powerprof.attribution import blame
    from powerprof.attribution import causes as idle
    from powerprof.attribution.requests import name_postgres_processes
    from powerprof.system.tasks import look_up
    from powerprof.tracing.idle import WindowTracer, trace_exits
    from powerprof.tracing.kernel_symbols import read_interrupt_names

    with trace_exits() as tracer, WindowTracer(tracer) as opened:
        before, began_s = _read_switches(server), time.monotonic()
        window = opened.measure(duration_s)
        after, counted_s = _read_switches(server), time.monotonic() - began_s
    exits = window.trace.causes
    server_names = name_postgres_processes([*exits["next_tgid"].tolist(), *exits["waker_tgid"].tolist()], server_names)
    ended_by = idle.classify_exits(exits, window.state_names)
    rows = (
        idle.group_causes(
            exits,
            ended_by,
            window.window_s,
            look_up,
            functions=window.trace.addresses,
            interrupts=read_interrupt_names(),
            server_names=server_names,
            own_pids=own_pids(),
            c0_ns=blame.sum_c0_ns(exits, window.trace.ran),
        )
        if len(exits)
        else []
    )
    tool.exits += sum(row.count for row in rows if row.process == "powerprof")
    tool.traced_s += window.window_s
    tool.lost += window.trace.lost_count
    spent = window.trace.run_time_s
    tool.bpf_s = None if spent is None or tool.bpf_s is None else tool.bpf_s + spent
    traced.causes = rows
    traced.conservation = idle.build_conservation(
        exits, ended_by, window.trace.lost_count, window.edges, window.stat_idle_percent
    )
    traced.window_s = window.window_s
    if server is not None and server.pid is not None:
        pids = {*before, *after}
        count = sum(row.count for row in rows if row.pid in pids)
        woken = {
            tid: (total - before.get(pid, {}).get(tid, 0)) / counted_s
            for pid, threads in after.items()
            for tid, total in threads.items()
        }
        traced.server_exits = _with_wakings(_server_exits(count, window, pids), woken, server_names)
    if window.ended is not None:
        raise_ended(window.ended)


def _read_switches(server: Server | None) -> dict[int, dict[int, int]]:
    """Return the voluntary context switches of a server's threads by process, then thread; empty for other hosts."""
    from powerprof.system.tasks import read_switches

    return {} if server is None else {pid: read_switches(pid) for pid in server.list_processes()}


def _with_wakings(exits: ServerExits, woken_hz: Mapping[int, float], names: Mapping[int, str]) -> ServerExits:
    """Add the kernel's count of the wake-ups of the server's threads, which is valid on busy CPUs too."""
    from powerprof.system.tasks import look_up

    if not woken_hz:
        return exits
    tid, most_hz = max(woken_hz.items(), key=lambda item: item[1])
    name = names.get(tid) or look_up(tid).comm
    return replace(
        exits,
        wakings_hz=sum(woken_hz.values()),
        most_woken=name.removeprefix("thread/") if most_hz else None,
        most_woken_hz=most_hz if most_hz else None,
    )


def _server_exits(count: int, window: TracedWindow, pids: Collection[int]) -> ServerExits:
    """Return the rate of the server's `count` idle exits; its interval is from a sample of their times."""
    import numpy as np

    from powerprof.attribution.causes import blamed_threads, count_by_part
    from powerprof.system.tasks import look_up

    sample = window.trace.sample
    tids, tgids = blamed_threads(sample)
    # The BPF program does not know the process of a thread that was woken for another CPU.
    others = {int(tid) for tid in np.unique(tids[tgids == 0])}
    own = {tid for tid in others if tid and look_up(tid).pid in pids}
    at = sample["exit_ns"][(np.isin(tgids, list(pids)) | np.isin(tids, list(own))) & (sample["exit_ns"] > 0)]
    start = min(edge.start_ns for edge in window.edges.values())
    end = max(edge.end_ns for edge in window.edges.values())
    blocks = count_by_part(at, start, end, count)
    known = rate_interval(count, blocks, window.window_s)
    hz = Estimate(mean=count / window.window_s, low=known.low, high=known.high)
    return ServerExits(count=count, window_s=window.window_s, wakeups_hz=hz, blocks_count=blocks)
