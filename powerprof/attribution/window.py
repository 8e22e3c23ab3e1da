# SPDX-License-Identifier: Apache-2.0
"""Trace one window of a target and return its capture, with all names that end with the processes."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from powerprof import __version__
from powerprof.attribution.capture import Capture, IdleCpu
from powerprof.attribution.causes import LookUp
from powerprof.attribution.requests import (
    AttributeRequest,
    ReadThreadNames,
    complete_thread_names,
    name_postgres_processes,
    read_names_after,
)
from powerprof.energy.total import host_energy
from powerprof.energy.windows import WindowEnergy
from powerprof.measure.cpuidle import read_packages
from powerprof.measure.idle_counters import Snapshot
from powerprof.measure.procfs import own_peak_bytes
from powerprof.measure.progress import announce
from powerprof.measure.residency import find_inconsistency
from powerprof.measure.target_life import TargetLife
from powerprof.measure.window import GroupCpuClock, run_window
from powerprof.model.attribution import TargetInfo
from powerprof.model.records import Note, Notes, ToolCost
from powerprof.model.text import Say
from powerprof.stacks.image import ProcessImage
from powerprof.system.cgroups import Units
from powerprof.system.own_processes import own_pids
from powerprof.system.targets import Target
from powerprof.system.tasks import Task, clean, has_ended, list_threads, look_up
from powerprof.tracing.bpf.cost_meter import CostMeter, EventCounter, ProgramCost
from powerprof.tracing.bpf.shared_numbers import Flag, RunKind
from powerprof.tracing.budget import Budget, base_of_cost_s
from powerprof.tracing.captures import Array
from powerprof.tracing.idle import TracedWindow, WindowTracer, trace_stacks
from powerprof.tracing.idle_data import DRIVERLESS_STATES, RunTimes, SiteWakings
from powerprof.tracing.idle_program import EarlyLoad
from powerprof.tracing.idle_stacks import StackTrace
from powerprof.tracing.kernel_symbols import read_interrupt_names
from powerprof.tracing.slices import UseClock, scale_run_times

# CPU time of a control group that may be missing because of the window's edges alone.
_UNSEEN_NS, _UNSEEN_SHARE = 20_000_000, 0.05


def trace_window(
    target: Target, request: AttributeRequest, read_names: ReadThreadNames, say: Say, early: EarlyLoad
) -> Capture:
    """Trace one window as `attribute.trace_target` does. `early`: the load of the program of this target."""
    # Names are read before and after the window: threads come and go, and the query must not run inside the window.
    names, units = dict(read_names()), Units()
    if target.system:
        units.scan()
    with (
        TargetLife(target) as life,
        WindowEnergy(request.energy) as energy,
        trace_stacks(target, early, every_period=request.every_period) as (tracer, looks),
        EventCounter() as events,
        CostMeter(tracer.program, events.read) as meter,
        # Opened while privileges are held: the counters that check the trace are found through tracefs.
        WindowTracer(tracer, energy.meters) as opened,
    ):
        looks.members.require_one()
        announce(say, f"tracing {target.label}", request.duration_s)
        clock, used = GroupCpuClock(target.cgroup), UseClock(target)
        if request.max_cost is not None:
            opened.bound_cost(Budget(request.max_cost), request.duration_s, meter, used.read_s, events)
        passed = run_window(
            request.duration_s, meter, used, *opened.parts, clock, life, settle=request.settle, hold=True
        )
        cost = meter.collect()
        window = opened.collect(passed)
        stacks = looks.collect()
        if window.wakings is not None:
            rows = window.wakings[list(SiteWakings.__struct_fields__)].tolist()
            stacks = replace(stacks, wakings=[SiteWakings(*row) for row in rows])
        names.update(read_names_after(read_names, passed.ended))
        names, unnamed = complete_thread_names(target.pids, names)
        unseen = [] if window.sliced is not None else _unseen_time_notes(clock.used_ns, window.trace.ran, stacks.images)
        from powerprof.host.describe import host_record

        context = CaptureContext(
            target, host_record(), read_interrupt_names(), [*looks.members.notes(), *unseen, *unnamed], units
        )
        capture = build_capture(context, window, stacks, energy, names)
        return replace(
            capture, tool=_add_cost(capture.tool, cost, meter.process_s, used.used_s, request.max_cost, window.window_s)
        )


def _add_cost(
    tool: ToolCost, cost: ProgramCost | None, process_s: float, used_s: float, max_cost: float | None, window_s: float
) -> ToolCost:
    """Return the cost of powerprof with that of its programs, and its share of the CPU time of the target.

    `process_s`: CPU time of the process between the edges of the window.
    """
    base_s = base_of_cost_s(used_s, window_s)
    return replace(
        tool,
        bpf_s=None if cost is None else cost.run_s,
        entry_s=None if cost is None else cost.entry_s,
        cost_percent=100.0 * (process_s + cost.whole_s) / base_s if cost is not None and base_s else None,
        max_cost_percent=None if max_cost is None else 100.0 * max_cost,
    )


class CaptureContext(msgspec.Struct, frozen=True):
    """The facts about the host and the target that a capture holds besides the trace."""

    target: Target
    host: dict[str, Any]
    interrupts: dict[int, str]
    notes: Notes
    units: Units = msgspec.field(default_factory=Units)
    look_up: LookUp = look_up


def build_capture(
    context: CaptureContext, window: TracedWindow, stacks: StackTrace, energy: WindowEnergy, names: dict[int, str]
) -> Capture:
    """Return a traced window with its stacks and all names, read while the processes live.

    `names` are the server's thread names by thread id.
    """
    target = context.target
    completed = energy.complete(window.residency)
    whole = host_energy(completed.energy)
    floor = energy.floor(whole, window.residency.cpus, completed.c0_percent, completed.steal_percent)
    floor_notes = [floor.note] if floor is not None and floor.note else []
    states = dict(window.state_names)
    states.update({cpu: list(DRIVERLESS_STATES) for cpu in window.edges if cpu not in states})
    causes = window.trace.causes
    tasks = _traced_tasks(causes, stacks.wakings, window.trace.last_names, context.look_up)
    names = name_postgres_processes((task.tid for task in tasks if task.tid == task.pid), names)
    ran, own = window.trace.ran, sorted(own_pids())
    if window.sliced is not None:
        pids = None if target.system else [*stacks.images, *target.pids]
        ran = scale_run_times(window.slice_runs, window.sliced.slices, window.sliced.used_s, pids, own)
    own_count = int(causes["count"][np.isin(causes["next_tgid"], own)].sum())
    # No CPU has edges if the idle governor changed just then: its change makes the counters anew.
    cpu_time_s = window.window_s * len(window.edges)
    tool = ToolCost(
        version=__version__,
        cpu_s=window.tool_cpu_s,
        wakeups_hz=own_count / window.window_s if window.window_s else None,
        bpf_s=window.trace.run_time_s,
        cpu_percent=100.0 * window.tool_cpu_s / cpu_time_s if cpu_time_s else None,
        lost_count=window.trace.lost_count + stacks.lost_count,
        memory_bytes=own_peak_bytes(),
    )
    # The first processes of a target end the window.
    others = [] if target.system else set(target.pids) - set(target.roots)
    ended = [pid for pid in sorted(others) if has_ended(pid)] if window.ended is None else []
    notes = [*completed.notes, *floor_notes, *context.notes]
    notes += [Note("process_ended", {"pid": pid}) for pid in ended]
    if not stacks.registers_found:
        notes.append(Note("no_registers"))
    return Capture(
        started_at=window.residency.started_at,
        window_s=window.window_s,
        target=_target_info(target, stacks.images),
        host=context.host,
        tool=tool,
        exits=window.trace.sample.tobytes(),
        causes=causes.tobytes(),
        ran=ran.threads.tobytes(),
        ran_others_ns=ran.others_ns,
        ran_target_ns=ran.target_ns,
        sample_1_in=window.trace.sample_1_in,
        sample_lost_count=window.trace.sample_lost_count,
        lost_count=window.trace.lost_count,
        edges=list(window.edges.values()),
        idle_cpus=_idle_cpus(window),
        states=states,
        functions=window.trace.addresses,
        interrupts=context.interrupts,
        tasks=_add_units(_name_ended(tasks, stacks.images), context.units, stacks.exited_cgroups),
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
        own_helpers=[pid for pid in own if pid != os.getpid()],
        c0_percent=completed.c0_percent,
        steal_percent=completed.steal_percent,
        energy=completed.energy,
        idle_watts=None if floor is None else floor.watts,
        wakeup_joules=energy.wakeup_joules(whole.kind),
        notes=notes,
        energy_source=energy.source,
        ended=window.ended,
        stat_idle_percent=window.stat_idle_percent,
        sliced=window.sliced,
    )


def _idle_cpus(window: TracedWindow) -> list[IdleCpu]:
    """Return the package, the idle states and the governor's misses of each CPU."""
    before, after = window.counters or (Snapshot({}), Snapshot({}))
    packages = read_packages()
    cpus = []
    for cpu, old in before.cpus.items():
        above: list[int | None] = [None] * len(old.states)
        below = above
        new = after.cpus.get(cpu)
        if new is not None and not find_inconsistency(old, new):
            above, below = _growth(old.above, new.above), _growth(old.below, new.below)
        is_resolved = old.resolved and new is not None and new.resolved
        cpus.append(IdleCpu(cpu, packages.get(cpu), is_resolved, list(old.states), above, below))
    return cpus


def _growth(old: Sequence[int | None], new: Sequence[int | None]) -> list[int | None]:
    return [None if then is None or now is None else now - then for then, now in zip(old, new, strict=True)]


def _traced_tasks(
    exits: Array, wakings: list[SiteWakings], last_names: Mapping[tuple[int, int], bytes], find_task: LookUp
) -> list[Task]:
    """Return every thread of the trace, by its present entry in /proc and its newest traced name.

    `last_names`: names of exited threads by process and thread id.
    """
    facts: dict[int, tuple[int | None, str, bool | None]] = {}
    for waking in wakings:
        for pid, tid in ((waking.pid, waking.tid), (waking.waker_pid, waking.waker_tid)):
            if tid:
                facts[tid] = (pid, last_names.get((pid, tid), b"").decode("utf-8", "replace"), None)
    exits = exits[np.argsort(exits["last_ns"], kind="stable")]
    for prefix, kernel_flag in (("waker", Flag.WAKER_KERNEL), ("next", Flag.KERNEL)):
        threads = zip(
            exits[f"{prefix}_tid"].tolist(),
            exits[f"{prefix}_tgid"].tolist(),
            exits[f"{prefix}_comm"].tolist(),
            (exits["flags"] & np.uint32(kernel_flag) != 0).tolist(),
            strict=True,
        )
        for tid, pid, comm, is_kernel in threads:
            if tid:
                facts[tid] = (pid, comm.decode("utf-8", "replace"), is_kernel)
    for tid in set(exits["woken_tid"].tolist()) - set(facts) - {0}:
        facts[tid] = (None, "", None)
    return [find_task(tid, *fact) for tid, fact in facts.items()]


def _name_ended(tasks: list[Task], images: Mapping[int, list[ProcessImage]]) -> list[Task]:
    """Name tasks that ended before their names were read by their programs.

    A process that joined the target has its parent's program.
    """

    def name_by_program(task: Task) -> Task:
        versions = images.get(task.pid or 0, [])
        name = clean(Path(versions[-1].executable).name) if versions else ""
        if not name or task.process != f"pid {task.pid}":
            return task
        return msgspec.structs.replace(task, comm=name if task.tid == task.pid else task.comm, process=name)

    return [name_by_program(task) for task in tasks]


def _unseen_time_notes(used_ns: int | None, ran: RunTimes, pids: Collection[int]) -> list[Note]:
    """Return a note if a control group used more CPU time than its traced processes: others joined and ended."""
    of_target = (ran.threads["kind"] == RunKind.TARGET) | np.isin(ran.threads["pid"], list(pids))
    missing_ns = (used_ns or 0) - ran.target_ns - int(ran.threads["ns"][of_target].sum())
    if missing_ns < _UNSEEN_NS + _UNSEEN_SHARE * (used_ns or 0):
        return []
    return [Note("group_unseen", {"missing_ms": missing_ns / 1e6, "used_ms": (used_ns or 0) / 1e6})]


def _add_units(tasks: list[Task], units: Units, exited_cgroups: Mapping[int, int]) -> list[Task]:
    """Add the systemd units of processes; the unit of an ended process is that of its last control group."""
    by_pid: dict[int, str | None] = {}
    for task in tasks:
        if task.is_kernel or task.unit is not None or task.pid is None or task.pid in by_pid:
            continue
        unit = units.of(task.pid)
        by_pid[task.pid] = (
            units.of_group(exited_cgroups[task.pid]) if unit is None and task.pid in exited_cgroups else unit
        )
    return [
        msgspec.structs.replace(task, unit=by_pid[task.pid]) if task.unit is None and task.pid in by_pid else task
        for task in tasks
    ]


def _target_info(target: Target, images_by_pid: Mapping[int, list[ProcessImage]]) -> TargetInfo:
    images = {pid: versions[-1] for pid, versions in images_by_pid.items() if versions}
    programs = {(image.executable, image.build_id) for image in images.values()}
    executable, build_id = next(iter(programs)) if len(programs) == 1 and not target.system else (None, None)
    pids = sorted(images) if not target.system else []
    threads = None if target.system else sum(len(list_threads(pid)) for pid in pids)
    return TargetInfo(
        pid=next(iter(images)) if len(images) == 1 and not target.system else None,
        executable=executable,
        build_id=build_id,
        label=target.label,
        pids=pids,
        system=target.system,
        threads_count=threads,
        roots=list(target.roots),
    )
