# SPDX-License-Identifier: Apache-2.0
"""Takes a capture on this host: target, tracer, window, and every name while the processes still live."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from powerprof import __version__
from powerprof.attribution.capture import Capture
from powerprof.attribution.causes import LookUp
from powerprof.attribution.idle import Array
from powerprof.attribution.records import TargetInfo
from powerprof.attribution.requests import AttributeRequest
from powerprof.energy.domains import host_energy
from powerprof.energy.windows import WindowEnergy
from powerprof.processes.targets import Target, has_ended
from powerprof.processes.tasks import Task, clean, look_up
from powerprof.processes.units import Units
from powerprof.records import Note, Notes, ToolCost
from powerprof.sources.procfs import own_peak_bytes
from powerprof.stacks.image import ProcessImage
from powerprof.text import Say
from powerprof.tracing.bpf.run_time import Price
from powerprof.tracing.bpf.shared_numbers import Flag, RunKind
from powerprof.tracing.idle.build import trace_stacks
from powerprof.tracing.idle.idle_time import DRIVERLESS_STATES
from powerprof.tracing.idle.running import RunTimes
from powerprof.tracing.idle.sites import SiteWakings
from powerprof.tracing.idle.stacks import StackTrace
from powerprof.tracing.idle.window import TracedWindow, TraceWindow
from powerprof.tracing.symbols.kernel import interrupt_names
from powerprof.windows.group_clock import GroupClock
from powerprof.windows.runner import pass_window

# Of a group's CPU time, what may be missing by the edges of the window alone.
_UNSEEN_NS, _UNSEEN_SHARE = 20_000_000, 0.05


def _tasks(exits: Array, wakings: list[SiteWakings], look_up: LookUp) -> list[Task]:
    """Every thread of the trace, by what /proc says now and the trace knew then."""
    known: dict[int, tuple[int | None, str, bool | None]] = {}
    for waking in wakings:
        known[waking.tid] = (waking.pid, "", None)
        if waking.waker_tid:
            known[waking.waker_tid] = (waking.waker_pid, "", None)
    for prefix, kernels in (("waker", Flag.WAKER_KERNEL), ("next", Flag.KERNEL)):
        seen = zip(
            exits[f"{prefix}_tid"].tolist(),
            exits[f"{prefix}_tgid"].tolist(),
            exits[f"{prefix}_comm"].tolist(),
            (exits["flags"] & np.uint32(kernels) != 0).tolist(),
            strict=True,
        )
        for tid, pid, comm, is_kernel in set(seen):
            if tid:
                known[tid] = (pid, comm.decode("utf-8", "replace"), is_kernel)
    for tid in set(exits["woken_tid"].tolist()) - set(known) - {0}:
        known[tid] = (None, "", None)
    return [look_up(tid, *what) for tid, what in known.items()]


def _called(tasks: list[Task], images: Mapping[int, list[ProcessImage]]) -> list[Task]:
    """The tasks, of which those that ended before anybody read their names are called by their programs: a process that
    joined the target has its parent's."""

    def called(task: Task) -> Task:
        versions = images.get(task.pid or 0, [])
        name = clean(Path(versions[-1].executable).name) if versions else ""
        if not name or task.process != f"pid {task.pid}":
            return task
        return msgspec.structs.replace(task, comm=name if task.tid == task.pid else task.comm, process=name)

    return [called(task) for task in tasks]


def _unseen(used_ns: int | None, ran: RunTimes, pids: Collection[int]) -> list[Note]:
    """Whether a control group used more CPU time than its processes that were seen: others joined and ended unseen."""
    of_target = (ran.threads["kind"] == RunKind.TARGET) | np.isin(ran.threads["pid"], list(pids))
    missing_ns = (used_ns or 0) - ran.target_ns - int(ran.threads["ns"][of_target].sum())
    if missing_ns < _UNSEEN_NS + _UNSEEN_SHARE * (used_ns or 0):
        return []
    return [Note("group_unseen", {"missing_ms": missing_ns / 1e6, "used_ms": (used_ns or 0) / 1e6})]


def _with_units(tasks: list[Task], units: Units, ended: Mapping[int, int]) -> list[Task]:
    """The tasks with their units; of a process that has ended by the control group in which it ended."""
    by_pid: dict[int, str | None] = {}
    for task in tasks:
        if task.is_kernel or task.unit is not None or task.pid is None or task.pid in by_pid:
            continue
        unit = units.of(task.pid)
        by_pid[task.pid] = units.of_group(ended[task.pid]) if unit is None and task.pid in ended else unit
    return [
        msgspec.structs.replace(task, unit=by_pid[task.pid]) if task.unit is None and task.pid in by_pid else task
        for task in tasks
    ]


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


def capture(
    target: Target, request: AttributeRequest, server_names: Callable[[], Mapping[int, str]], say: Say
) -> Capture:
    """Trace one window. Raises CapabilityError where this host cannot, PowerprofError where the target has gone."""
    say("loading the tracer")
    # Asked before and after: threads come and go, and the question itself must not fall into the window.
    names, units = dict(server_names()), Units()
    if target.system:
        units.look()
    with (
        WindowEnergy(request.energy) as energy,
        trace_stacks(target, request.stack_pages) as (tracer, looks),
        Price(tracer.program) as price,
        # Before anything is given up: what counts idle exits beside the trace is found through tracefs.
        TraceWindow(tracer, energy.meters) as opened,
    ):
        looks.members.need_one()
        say(f"tracing {target.label} for {request.duration_s:g} s")
        clock = GroupClock(target.cgroup)
        passed = pass_window(
            request.duration_s,
            price,
            *opened.parts,
            clock,
            settle=request.settle,
            source=request.energy.source,
            hold=True,
        )
        window = opened.collect(passed)
        window = replace(window, trace=replace(window.trace, run_time_s=price.spent_s()))
        stacks = looks.collect()
        names.update(server_names())
        unseen = _unseen(clock.used_ns, window.trace.ran, stacks.images)
        from powerprof.host.describe import host_record

        context = CaptureContext(target, host_record(), interrupt_names(), [*looks.members.notes(), *unseen], units)
        return captured(context, window, stacks, energy, names)


@dataclass(frozen=True)
class CaptureContext:
    """What a capture says of the host and the target beside what was traced."""

    target: Target
    host: dict[str, Any]
    interrupts: dict[int, str]
    notes: Notes
    units: Units = field(default_factory=Units)
    look_up: LookUp = look_up


def captured(
    context: CaptureContext, window: TracedWindow, stacks: StackTrace, energy: WindowEnergy, names: dict[int, str]
) -> Capture:
    """A traced window with its stacks, and every name while the processes still live. `names` are the server's."""
    target = context.target
    completed = energy.complete(window.residency)
    whole = host_energy(completed.energy)
    floor = energy.floor(whole, window.residency.cpus, completed.c0_percent, completed.steal_percent)
    floor_notes = [floor.note] if floor is not None and floor.note else []
    states = dict(window.state_names)
    states.update({cpu: list(DRIVERLESS_STATES) for cpu in window.edges if cpu not in states})
    causes = window.trace.causes
    tasks = _tasks(causes, stacks.wakings, context.look_up)
    own = int(causes["count"][causes["next_tgid"] == os.getpid()].sum())
    tool = ToolCost(
        version=__version__,
        cpu_s=window.tool_cpu_s,
        wakeups_hz=own / window.window_s if window.window_s else None,
        bpf_s=window.trace.run_time_s,
        cpu_percent=100.0 * window.tool_cpu_s / window.window_s / len(window.edges) if window.window_s else None,
        lost_count=window.trace.lost_count + stacks.lost_count,
        memory_bytes=own_peak_bytes(),
    )
    ended = [] if target.system else [pid for pid in target.pids if has_ended(pid)]
    gone = [Note("process_ended", {"pid": pid}) for pid in ended]
    if not stacks.registers_found:
        gone.append(Note("no_registers"))
    return Capture(
        started_at=window.residency.started_at,
        window_s=window.window_s,
        target=_target_info(target, stacks.images),
        host=context.host,
        tool=tool,
        exits=window.trace.sample.tobytes(),
        causes=causes.tobytes(),
        ran=window.trace.ran.threads.tobytes(),
        ran_others_ns=window.trace.ran.others_ns,
        ran_target_ns=window.trace.ran.target_ns,
        sample_1_in=window.trace.sample_1_in,
        sample_lost_count=window.trace.sample_lost_count,
        lost_count=window.trace.lost_count,
        edges=list(window.edges.values()),
        states=states,
        functions=window.trace.addresses,
        interrupts=context.interrupts,
        tasks=_with_units(_called(tasks, stacks.images), context.units, stacks.ended_groups),
        server_names=names,
        sites=stacks.sites,
        sleeping=stacks.sleeping,
        frames=stacks.frames,
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
        notes=[*completed.notes, *floor_notes, *context.notes, *gone],
        energy_source=energy.source,
        interrupted=window.interrupted,
        stat_idle_percent=window.stat_idle_percent,
    )
