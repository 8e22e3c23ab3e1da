# SPDX-License-Identifier: Apache-2.0
"""One function a verb: resolve the target, collect, and make the record; or analyse a saved capture again.

What is needed after a window is imported after it: importing all takes as long as loading the tracer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from powerprof import __version__
from powerprof.attribution import capture
from powerprof.attribution.capture import Capture
from powerprof.attribution.causes import IdleArray as Array
from powerprof.attribution.causes import LookUp
from powerprof.attribution.requests import (
    AttributeRequest,
    FunctionsRequest,
    OffCpuRequest,
    ProfileRequest,
    ServerChoice,
    SyscallRequest,
    TargetChoice,
)
from powerprof.energy.domains import host_energy
from powerprof.energy.windows import WindowEnergy
from powerprof.measure.procfs import own_peak_bytes
from powerprof.measure.window import GroupClock, pass_window
from powerprof.model.attribution import Attribution, TargetInfo
from powerprof.model.records import Note, Notes, ToolCost
from powerprof.model.runs import RunStore
from powerprof.model.text import Say
from powerprof.stacks.image import ProcessImage
from powerprof.system import paths
from powerprof.system.cgroups import Units
from powerprof.system.errors import DataError, PowerprofError
from powerprof.system.processes import Target, has_ended, resolve
from powerprof.system.tasks import Task, clean, look_up
from powerprof.tracing.bpf.maps import Price
from powerprof.tracing.bpf.shared_numbers import Flag, RunKind
from powerprof.tracing.idle import TracedWindow, TraceWindow, trace_stacks
from powerprof.tracing.idle_data import DRIVERLESS_STATES, RunTimes, SiteWakings
from powerprof.tracing.idle_stacks import StackTrace
from powerprof.tracing.symbols import interrupt_names

if TYPE_CHECKING:
    from powerprof.attribution.functions import FunctionProfile
    from powerprof.attribution.modes import Consent
    from powerprof.attribution.offcpu import OffCpuProfile
    from powerprof.attribution.profile import OnCpuProfile
    from powerprof.attribution.syscalls import SyscallProfile
    from powerprof.stacks.store import TableStore


@dataclass(frozen=True)
class AttributionResult:
    """A record and the raw capture that it was made from. `is_kept`: that is saved already."""

    record: Attribution
    capture: capture.Capture
    is_kept: bool = False

    def files(self) -> dict[str, bytes] | None:
        """What to keep with the record; made when it is asked for, because it is large."""
        return None if self.is_kept else {capture.FILE: capture.encode(self.capture)}


def attribute(
    chosen: TargetChoice, server: ServerChoice, request: AttributeRequest, say: Say, store: TableStore | None = None
) -> AttributionResult:
    """Trace one window on this host; `store` is where symbols come from. Raises UsageError, CapabilityError,
    PowerprofError.
    """

    target = _resolved(chosen)
    taken = trace_target(target, request, _names_of(server, target), say)
    from powerprof.attribution import blame
    from powerprof.attribution.sites import SiteStacks
    from powerprof.stacks.packages import missing_names

    stacks = SiteStacks(taken, store)
    record = blame.build_attribution(taken, stacks)
    named = stacks.named()
    # With its tables: what follows takes as much again.
    del stacks
    stacks_shown = [row.stack for rows in (record.wakeups, record.wakings_without_exit) for row in rows]
    frames = [(frame.module, frame.function is not None) for stack in stacks_shown for frame in stack]
    missing = missing_names(frames, taken.images)
    if missing is not None:
        record = msgspec.structs.replace(record, notes=[*record.notes, missing])
        taken = msgspec.structs.replace(taken, notes=[*taken.notes, missing])
    taken = msgspec.structs.replace(taken, named=named)
    return AttributionResult(record, taken)


def profile(chosen: TargetChoice, server: ServerChoice, request: ProfileRequest, say: Say) -> OnCpuProfile:
    """Sample one window. Raises UsageError, CapabilityError, PowerprofError."""
    from powerprof.attribution import modes

    target = _resolved(chosen)
    return modes.on_cpu(target, request, _names_of(server, target), say)


def functions(chosen: TargetChoice, request: FunctionsRequest, say: Say, consent: Consent) -> FunctionProfile:
    """Probe one window. `consent` is called with what could harm the target before it is done, and raises where that is
    not agreed to.

    Raises UsageError, CapabilityError, PowerprofError, and what `consent` raises.
    """
    from powerprof.attribution import modes

    return modes.functions(_resolved(chosen), request, say, consent)


def off_cpu(chosen: TargetChoice, server: ServerChoice, request: OffCpuRequest, say: Say) -> OffCpuProfile:
    """Trace one window of sleeps and wakings. Raises UsageError, CapabilityError, PowerprofError."""
    from powerprof.attribution import modes

    target = _resolved(chosen)
    return modes.off_cpu(target, request, _names_of(server, target), say)


def syscalls(chosen: TargetChoice, server: ServerChoice, request: SyscallRequest, say: Say) -> SyscallProfile:
    """Count one window of system calls. Raises UsageError, CapabilityError, PowerprofError."""
    from powerprof.attribution import modes

    target = _resolved(chosen)
    return modes.syscalls(target, request, _names_of(server, target), say)


def replay(name: str, runs_dir: Path | None) -> AttributionResult:
    """Analyse a saved capture again. Raises UsageError, DataError."""
    folder = RunStore(runs_dir).find(name)
    raw = folder if folder.name == capture.FILE else folder.parent / capture.FILE
    if not raw.is_file():
        raise DataError(folder, "has no trace; only runs of attribute have one", hint="powerprof runs lists them")
    taken = capture.load(raw)
    run_id = folder.parent.name if folder.name != capture.FILE else None
    return AttributionResult(msgspec.structs.replace(analyse(taken), id=run_id), taken, is_kept=True)


def analyse(taken: capture.Capture) -> Attribution:
    """Unwind, name and blame."""
    from powerprof.attribution import blame
    from powerprof.attribution.sites import SiteStacks

    return blame.build_attribution(taken, SiteStacks(taken))


def _resolved(chosen: TargetChoice) -> Target:
    if not paths.is_this_host():
        raise PowerprofError("cannot trace a recorded host", "unset POWERPROF_SYSFS and POWERPROF_PROCFS")
    return resolve(tuple(chosen.pid or ()), cgroup=chosen.cgroup, system=chosen.system)


def _names_of(server: ServerChoice, target: Target) -> Callable[[], Mapping[int, str]]:
    """How to ask the server for its threads' names; for a server that cannot be asked there are none."""
    from powerprof.database.clients.given import given_server

    if any(part is not None for part in (server.server, server.socket, server.defaults_file)):
        return given_server(server.server, server.socket, server.defaults_file).thread_names

    def quietly() -> Mapping[int, str]:
        from powerprof.database.products.products import read_local_thread_names

        names: dict[int, str] = {}
        for pid in target.pids:
            names.update(read_local_thread_names(pid))
        return names

    return quietly


# Takes a capture on this host: target, tracer, window, and every name while the processes still live.

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


def trace_target(
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
        return build_capture(context, window, stacks, energy, names)


@dataclass(frozen=True)
class CaptureContext:
    """What a capture says of the host and the target beside what was traced."""

    target: Target
    host: dict[str, Any]
    interrupts: dict[int, str]
    notes: Notes
    units: Units = field(default_factory=Units)
    look_up: LookUp = look_up


def build_capture(
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
