# SPDX-License-Identifier: Apache-2.0
"""Takes a capture on this host: target, tracer, window, and every name while the processes still live."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from powerprof import __version__
from powerprof.attribution.capture import Capture
from powerprof.attribution.idle import Array
from powerprof.attribution.records import TargetInfo
from powerprof.energy.domains import host_energy
from powerprof.energy.windows import WindowEnergy
from powerprof.errors import PowerprofError
from powerprof.processes.targets import Target, has_ended
from powerprof.processes.tasks import Task, look_up
from powerprof.records import ToolCost
from powerprof.sources.procfs import own_peak_bytes
from powerprof.stacks.image import ProcessImage
from powerprof.text import Say
from powerprof.tracing.bpf.run_time import Price
from powerprof.tracing.idle.idle_time import DRIVERLESS_STATES
from powerprof.tracing.idle.sites import SiteWakings
from powerprof.tracing.idle.stacks import StackTrace, StackTracer
from powerprof.tracing.idle.window import TracedWindow, TraceWindow
from powerprof.tracing.symbols.kernel import interrupt_names
from powerprof.windows.runner import pass_window


@dataclass(frozen=True)
class CapturePlan:
    """What to capture. `ring_pages` is the size of the stacks' ring buffer in pages of 4 KiB.

    `settle`: give up what root may do once the tracer is loaded and the meters are open, for the rest of this process.
    """

    target: Target
    duration_s: float
    ring_pages: int = 4096
    energy_source: str = "auto"
    meter_log: Path | None = None
    count_run_time: bool = True
    settle: bool = False


def _tasks(exits: Array, wakings: list[SiteWakings], look_up: Callable[[int, int | None, str], Task]) -> list[Task]:
    """Every thread of the trace, by what /proc says now and the trace knew then."""
    known: dict[int, tuple[int | None, str]] = {}
    for waking in wakings:
        known[waking.tid] = (waking.pid, "")
        if waking.waker_tid:
            known[waking.waker_tid] = (waking.waker_pid, "")
    for prefix in ("waker", "next"):
        trio = zip(
            exits[f"{prefix}_tid"].tolist(),
            exits[f"{prefix}_tgid"].tolist(),
            exits[f"{prefix}_comm"].tolist(),
            strict=True,
        )
        for tid, pid, comm in set(trio):
            if tid:
                known[tid] = (pid, comm.decode("utf-8", "replace"))
    for tid in set(exits["woken_tid"].tolist()) - set(known) - {0}:
        known[tid] = (None, "")
    return [look_up(tid, pid, comm) for tid, (pid, comm) in known.items()]


def _target_info(target: Target, tracer_images: Mapping[int, list[ProcessImage]]) -> TargetInfo:
    images = {pid: versions[-1] for pid, versions in tracer_images.items() if versions}
    only = next(iter(images.values())) if len(images) == 1 and not target.system else None
    pids = sorted(images) if not target.system else []
    threads = None
    if not target.system:
        threads = sum(len(list(folder.iterdir())) for pid in pids if (folder := Path(f"/proc/{pid}/task")).is_dir())
    return TargetInfo(
        pid=only.pid if only else None,
        executable=only.executable if only else None,
        build_id=only.build_id if only else None,
        label=target.label,
        pids=pids,
        system=target.system,
        threads_count=threads,
    )


def capture(plan: CapturePlan, server_names: Callable[[], Mapping[int, str]], say: Say) -> Capture:
    """Trace one window. Raises CapabilityError where this host cannot, PowerprofError where the target has gone."""
    from powerprof.host.describe import host_record

    say("loading the tracer")
    # Asked before and after: threads come and go, and the question itself must not fall into the window.
    names = dict(server_names())
    with (
        WindowEnergy(plan.energy_source, plan.meter_log) as energy,
        StackTracer(plan.target, plan.ring_pages) as tracer,
        ExitStack() as stack,
    ):
        if not plan.target.system and not tracer.images:
            raise PowerprofError(
                f"{plan.target.label}: the process is gone, or is the kernel's",
                "ps -e lists them; --system looks at every process",
            )
        price = stack.enter_context(Price(tracer.program)) if plan.count_run_time else None
        # Before anything is given up: what counts idle exits beside the trace is found through tracefs.
        opened = stack.enter_context(TraceWindow(tracer, energy.meters))
        parts = opened.parts if price is None else (price, *opened.parts)
        say(f"tracing {plan.target.label} for {plan.duration_s:g} s")
        passed = pass_window(plan.duration_s, *parts, settle=plan.settle, source=plan.energy_source, hold=True)
        window = opened.collect(passed)
        if price is not None:
            window = replace(window, trace=replace(window.trace, run_time_s=price.spent_s()))
        stacks = tracer.stack_trace()
        names.update(server_names())
        around = Around(plan.target, host_record(), interrupt_names(), tracer.notes())
        return captured(around, window, stacks, energy, names)


@dataclass(frozen=True)
class Around:
    """What a capture says of the host and the target beside what was traced."""

    target: Target
    host: dict[str, Any]
    interrupts: dict[int, str]
    notes: Sequence[str]
    look_up: Callable[[int, int | None, str], Task] = look_up


def captured(
    around: Around, window: TracedWindow, stacks: StackTrace, energy: WindowEnergy, names: dict[int, str]
) -> Capture:
    """A traced window with its stacks, and every name while the processes still live. `names` are the server's."""
    target = around.target
    completed = energy.complete(window.residency)
    whole = host_energy(completed.energy)
    floor = energy.floor(whole, window.residency.cpus, completed.c0_percent, completed.steal_percent)
    floor_notes = [floor.note] if floor is not None and floor.note else []
    states = dict(window.state_names)
    states.update({cpu: list(DRIVERLESS_STATES) for cpu in window.edges if cpu not in states})
    causes = window.trace.causes
    own = int(causes["count"][causes["next_tgid"] == os.getpid()].sum())
    tool = ToolCost(
        version=__version__,
        cpu_s=window.tool_cpu_s,
        wakeups_hz=own / window.window_s,
        bpf_s=window.trace.run_time_s,
        cpu_percent=100.0 * window.tool_cpu_s / window.window_s / max(1, len(window.edges)),
        lost_count=window.trace.lost_count + stacks.lost_count,
        memory_bytes=own_peak_bytes(),
    )
    gone = [] if target.system else [f"process {pid} ended during the window" for pid in target.pids if has_ended(pid)]
    if not stacks.registers_found:
        gone.append("no stacks: this kernel keeps the registers of its threads where they were not found")
    return Capture(
        started_at=window.residency.started_at,
        window_s=window.window_s,
        target=_target_info(target, stacks.images),
        host=around.host,
        tool=tool,
        exits=window.trace.sample.tobytes(),
        causes=causes.tobytes(),
        sample_1_in=window.trace.sample_1_in,
        sample_lost_count=window.trace.sample_lost_count,
        lost_count=window.trace.lost_count,
        edges=list(window.edges.values()),
        states=states,
        functions=window.trace.addresses,
        interrupts=around.interrupts,
        tasks=_tasks(causes, stacks.wakings, around.look_up),
        server_names=names,
        sites=stacks.sites,
        sleeping=stacks.sleeping,
        images=[image for versions in stacks.images.values() for image in versions],
        wakings=stacks.wakings,
        stacks_lost_count=stacks.lost_count,
        unsent_count=stacks.unsent_count,
        loaded_count=stacks.loaded_count,
        uncounted_count=stacks.uncounted_count,
        counted_from_ns=stacks.counted_from_ns,
        counted_to_ns=stacks.counted_to_ns,
        own_pid=os.getpid(),
        c0_percent=completed.c0_percent,
        steal_percent=completed.steal_percent,
        energy=completed.energy,
        idle_watts=None if floor is None else floor.watts,
        wakeup_joules=energy.wakeup_joules(whole.kind),
        notes=[*completed.notes, *floor_notes, *energy.source.sentences(), *around.notes, *gone],
        interrupted=window.interrupted,
        stat_idle_percent=window.stat_idle_percent,
    )
