# SPDX-License-Identifier: Apache-2.0
"""Pure: a capture → who is to blame for the idle exits of its target, with nothing left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from powerprof import text
from powerprof.attribution import causes, idle
from powerprof.attribution.capture import Capture
from powerprof.attribution.idle import Array
from powerprof.attribution.join import NO_STACK, BlamedRow, Blamer, shares_of
from powerprof.attribution.records import Attribution, StackCounts, Wakeup
from powerprof.attribution.sites import SiteStacks
from powerprof.energy.domains import host_energy
from powerprof.energy.split import Consumer, split_host
from powerprof.processes.tasks import ENDED, Task
from powerprof.records import EnergyReading, EnergySplit


def _stack_counts(stacks: SiteStacks, rows: list[BlamedRow], lost: int) -> StackCounts:
    # Threads that the kernel runs for a process (io_uring's workers) have no user stack to be complete.
    rows = [row for row in rows if row.stack is not NO_STACK]
    blamed = sum(row.count for row in rows)
    with_stack = sum(row.count for row in rows if row.stack.captured)
    complete = sum(row.count for row in rows if row.stack.complete)
    frames = [frame for row in rows for frame in row.stack.frames]
    unnamed = sum(frame.function is None for frame in frames)
    tally = stacks.tally
    return StackCounts(
        captured_count=tally.captured,
        complete_count=tally.complete,
        truncated_count=tally.truncated,
        failed_count=tally.failed,
        lost_count=lost,
        exits_with_stack_percent=100.0 * with_stack / blamed if blamed else None,
        exits_complete_percent=100.0 * complete / blamed if blamed else None,
        unnamed_frames_percent=100.0 * unnamed / len(frames) if frames else None,
    )


def _energy(capture: Capture, wakeups: list[Wakeup], others: Array, cpus: int) -> EnergySplit | None:
    """The host's energy in the window onto the target's rows, powerprof and the rest, by the C0 time that followed."""
    if not capture.energy:
        return None
    ran = _share_that_ran(capture)
    own = others["next_tgid"] == capture.own_pid
    rows = tuple(
        Consumer(
            name=f"{row.thread.label} · {row.stack[0].label if row.stack else row.origin}",
            c0_s=ran * row.c0_ms / 1e3,
            wakeups_count=row.count,
        )
        for row in wakeups
    )
    target = Consumer(
        name=capture.target.label,
        c0_s=sum(row.c0_s for row in rows),
        wakeups_count=sum(row.wakeups_count for row in rows),
        children=rows,
    )
    rest = tuple(
        Consumer(name=name, c0_s=ran * _running_s(exits), wakeups_count=int(exits["count"].sum()))
        for name, exits in (("powerprof", others[own]), ("other wake-ups", others[~own]))
    )
    return energy_split(
        capture.energy,
        capture.window_s,
        capture.c0_percent,
        cpus,
        (target, *rest),
        idle_watts=capture.idle_watts,
        wakeups_count=float(int(others["count"].sum()) + sum(row.count for row in wakeups)),
        wakeup_joules=capture.wakeup_joules,
        steal_percent=capture.steal_percent,
    )


def _share_that_ran(capture: Capture) -> float:
    """Of the time from an idle exit to the next idling, what the hypervisor did not give to others.

    Whose it was is not known: everybody's is taken to be shortened alike.
    """
    if not capture.c0_percent or not capture.steal_percent:
        return 1.0
    return max(0.0, 1.0 - capture.steal_percent / capture.c0_percent)


def energy_split(
    energy: Sequence[EnergyReading],
    window_s: float,
    c0_percent: float | None,
    cpus: int,
    consumers: Sequence[Consumer],
    *,
    idle_watts: float | None = None,
    wakeups_count: float = 0.0,
    wakeup_joules: float | None = None,
    steal_percent: float | None = None,
) -> EnergySplit | None:
    """The host's energy in a traced window onto `consumers`; None where it or C0 is unknown."""
    return split_host(
        host_energy(energy),
        window_s,
        c0_percent,
        cpus,
        consumers,
        idle_watts=idle_watts,
        wakeups_count=wakeups_count,
        wakeup_joules=wakeup_joules,
        steal_percent=steal_percent,
    )


def _running_s(exits: Array) -> float:
    return float(exits["running_ns"].sum()) / 1e9


def _task_of(capture: Capture) -> Callable[[int, int | None, str], Task]:
    known = {task.tid: task for task in capture.tasks}
    known[0] = Task(0, 0, "idle", "kernel", True)

    def look_up(tid: int, pid: int | None, comm: str) -> Task:
        return known.get(tid) or Task(tid, pid, comm or f"thread {tid}", comm or f"thread {tid}", False)

    return look_up


def attribute(capture: Capture, stacks: SiteStacks) -> Attribution:
    """The whole attribution of a capture. Conservation is over every idle exit of the host in the window."""
    edges = capture.cpu_edges()
    exits = capture.cause_entries()
    ended_by = idle.mechanisms(exits, capture.states)
    blamer = Blamer(capture, stacks)
    rows = blamer.rows(exits, ended_by)
    mine = np.zeros(len(exits), dtype=bool)
    for row in rows:
        mine[row.rows] = True
    others = exits[~mine]
    other_causes = (
        causes.summarise(
            others,
            ended_by[~mine],
            capture.window_s,
            _task_of(capture),
            functions=capture.functions,
            interrupts=capture.interrupts,
            own_pid=capture.own_pid,
        )
        if len(others)
        else []
    )
    counted, without_exit = not capture.loaded_count and not capture.uncounted_count, []
    shares: list[int | None] = [None] * len(rows)
    if counted:
        wakings = blamer.wakings()
        told, left = shares_of(rows, wakings)
        shares = [*told]
        without_exit = [blamer.without_exit(key, wakings[key], count) for key, count in left.items()]
        without_exit.sort(key=lambda row: (-row.wakings_count, row.thread.tid, [frame.address for frame in row.stack]))
    wakeups = blamer.wakeups(rows, shares, exits)
    split = _energy(capture, wakeups, others, len(edges))
    if split is not None and split.rate_watts is not None:
        parts = split.parts[0].children
        wakeups = [
            msgspec.structs.replace(wakeup, joules=part.joules, joules_kind=split.kind)
            for wakeup, part in zip(wakeups, parts, strict=True)
        ]
    notes = [*capture.notes, *stacks.notes()]
    if capture.loaded_count:
        notes.append("the load was too high to look at every sleep and waking of the target: wakings_count is unknown")
    if capture.uncounted_count:
        notes.append(f"too many call sites to count wakings at: {capture.uncounted_count} were left out")
    if capture.stacks_lost_count:
        notes.append(
            f"{capture.stacks_lost_count} stacks were lost to a full buffer: those exits have no complete stack "
            f"(a larger --stack-buffer)"
        )
    if capture.sample_1_in > 1 or capture.sample_lost_count:
        lost = f", less {capture.sample_lost_count} that were lost" if capture.sample_lost_count else ""
        notes.append(
            f"every idle exit is counted; single periods (timeline) are one in {capture.sample_1_in} of them{lost}"
        )
    if ended := int(exits["count"][exits["next_tid"] >= ENDED].sum()):
        notes.append(
            f"{text.some(ended, 'idle exit')} of threads that had ended are told by their names alone: there were more "
            f"causes than are told apart"
        )
    if capture.lost_count:
        notes.append(f"{capture.lost_count} idle exits had more distinct causes than are kept: they are not in any row")
    if capture.unsent_count:
        notes.append(f"{capture.unsent_count} more call paths than are kept were seen: their stacks were not copied")
    return Attribution(
        id=None,
        started_at=capture.started_at,
        target=capture.target,
        window_s=capture.window_s,
        cpus=len(edges),
        conservation=idle.conserve(exits, ended_by, capture.lost_count, edges, capture.stat_idle_percent),
        wakeups=wakeups,
        stacks=_stack_counts(stacks, rows, capture.stacks_lost_count),
        tool=capture.tool,
        host=capture.host,
        wakings_window_s=(capture.counted_to_ns - capture.counted_from_ns) / 1e9 if counted else None,
        wakings_without_exit=without_exit,
        woken_elsewhere=blamer.woken_elsewhere(exits),
        other_causes=other_causes,
        c0_percent=capture.c0_percent,
        energy=capture.energy,
        energy_split=split,
        notes=notes,
        interrupted=capture.interrupted,
    )
