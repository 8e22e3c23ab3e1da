# SPDX-License-Identifier: Apache-2.0
"""Pure: a capture → who is to blame for the idle exits of its target, with nothing left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from powerprof.attribution import causes as idle
from powerprof.attribution.capture import Capture
from powerprof.attribution.causes import IdleArray as Array
from powerprof.attribution.join import NO_STACK, BlamedRow, Blamer, WokenAt, WokenKey, share_wakings
from powerprof.attribution.sites import SiteStacks
from powerprof.energy.domains import host_energy
from powerprof.energy.windows import Consumer, split_host_energy
from powerprof.model.attribution import Attribution, RunningTime, StackCounts, Wakeup, Waking
from powerprof.model.records import EnergyReading, EnergySplit, Note
from powerprof.stacks import runtimes
from powerprof.system.tasks import ENDED, Task, as_traced
from powerprof.tracing.bpf.shared_numbers import RunKind
from powerprof.tracing.idle_data import RunTimes

# Pure: whose the time is in which CPUs ran: each thread's own, and the kernel's from an idle exit until it ran.
#
# What others ran after an idle exit is theirs. Captures that were saved before running time was traced know only the
# time until the CPUs idled again: there it is all the waker's, as it was then.

RunningArray = npt.NDArray[Any]


@dataclass(frozen=True)
class WakingPlace:
    """Where a thread was woken: what it ran after idle exits there until it slept, how many these were, and how often
    it was woken there while a CPU ran."""

    after_exits_ns: float
    exits: int
    other_wakings: int = 0


def divided(total_ns: float, places: Sequence[WakingPlace]) -> list[float]:
    """What a thread ran in all, onto the places at which it was woken; the sum is the total.

    What it ran after idle exits was measured. The rest followed wakings that ended none: each is taken to have cost
    what it did after an idle exit there, or what it did elsewhere. Without such wakings it goes by what was measured.
    """
    measured = sum(place.after_exits_ns for place in places)
    rest = max(0.0, total_ns - measured)
    exits = sum(place.exits for place in places)
    usual = measured / exits if exits and measured else 1.0
    weights = [
        place.other_wakings * (place.after_exits_ns / place.exits if place.exits and measured else usual)
        for place in places
    ]
    if not sum(weights):
        weights = [place.after_exits_ns for place in places]
    if not sum(weights):
        weights = [float(place.exits) for place in places]
    whole = sum(weights)
    return [
        place.after_exits_ns + (rest * weight / whole if whole else 0.0)
        for place, weight in zip(places, weights, strict=True)
    ]


def sum_own_ns(causes: RunningArray, ran: RunTimes | None) -> RunningArray:
    """What the threads of each entry of layout.CAUSE ran, with what they ran when no idle exit was theirs."""
    if ran is None:
        return causes["running_ns"].astype(np.float64)
    own = causes["own_ns"].astype(np.float64)
    total = {(tid, pid): ns for tid, pid, ns in ran.threads[["tid", "pid", "ns"]].tolist()}
    places: dict[tuple[int, int], list[int]] = {}
    for place, who in enumerate(zip(causes["next_tid"].tolist(), causes["next_tgid"].tolist(), strict=True)):
        if who in total:
            places.setdefault(who, []).append(place)
    counts = causes["count"].tolist()
    for who, mine in places.items():
        own[mine] = divided(total[who], [WakingPlace(own[place], counts[place]) for place in mine])
    return own


def sum_kernel_ns(causes: RunningArray, ran: RunTimes | None) -> RunningArray:
    """What the kernel ran from the exits of each entry until a thread ran, or until the CPUs idled again."""
    if ran is None:
        return np.zeros(len(causes))
    return causes["kernel_ns"].astype(np.float64)


def sum_c0_ns(causes: RunningArray, ran: RunTimes | None) -> RunningArray:
    """Both."""
    both: RunningArray = sum_own_ns(causes, ran) + sum_kernel_ns(causes, ran)
    return both


def give(
    rows: Sequence[BlamedRow],
    shares: Sequence[int | None],
    left: Mapping[WokenKey, int],
    causes: RunningArray,
    ran: RunTimes | None,
    in_target: Callable[[int, int], bool],
) -> dict[WokenKey, float]:
    """Tells the rows of a target how long their threads ran, and the kernel for them.

    `shares` are the rows' wakings, `left` those that are in no row: what followed these is returned.
    """
    measured = (causes["running_ns"] if ran is None else causes["own_ns"]).tolist()
    kernel = sum_kernel_ns(causes, ran).tolist()
    for row in rows:
        row.after_exits_ns = row.own_ns = float(sum(measured[place] for place in row.rows))
        row.kernel_ns = sum(kernel[place] for place in row.rows)
    if ran is None:
        return {}
    threads = ran.threads[ran.threads["kind"] != RunKind.KERNEL]
    total = {tid: ns for tid, pid, ns in threads[["tid", "pid", "ns"]].tolist() if in_target(pid, tid)}
    places: dict[int, list[tuple[BlamedRow | WokenKey, WakingPlace]]] = {}
    for row, share in zip(rows, shares, strict=True):
        other = max(0, (share or 0) - row.count)
        places.setdefault(row.thread, []).append((row, WakingPlace(row.after_exits_ns, row.count, other)))
    for key, count in left.items():
        places.setdefault(key[0], []).append((key, WakingPlace(0.0, 0, count)))
    elsewhere = dict.fromkeys(left, 0.0)
    for tid, known in places.items():
        for (who, _), ns in zip(known, divided(total.get(tid, 0.0), [place for _, place in known]), strict=True):
            if isinstance(who, BlamedRow):
                who.own_ns = ns
            else:
                elsewhere[who] = ns
    return elsewhere


def balance(
    causes: RunningArray, ran: RunTimes, c0_s: float | None, in_target: Callable[[int, int], bool], own_pid: int
) -> RunningTime:
    """All time in which the CPUs ran, by whose it was. `c0_s` is the host's, None where unknown; `in_target` is asked
    for process and thread."""
    target_ns, tool_ns, others_ns, nobody_ns = float(ran.target_ns), 0.0, float(ran.others_ns), 0.0

    def add(pid: int, tid: int, ns: float, kind: int = RunKind.OTHER) -> None:
        nonlocal target_ns, tool_ns, others_ns
        if pid == own_pid:
            tool_ns += ns
        elif kind != RunKind.KERNEL and in_target(pid, tid):
            target_ns += ns
        else:
            others_ns += ns

    for tid, pid, ns, kind in ran.threads[["tid", "pid", "ns", "kind"]].tolist():
        add(pid, tid, ns, kind)
    for tid, pid, ns in causes[["next_tid", "next_tgid", "kernel_ns"]].tolist():
        if tid:
            add(pid, tid, ns)
        else:
            nobody_ns += ns
    parts = [part / 1e6 for part in (target_ns, tool_ns, others_ns, nobody_ns)]
    c0_ms = None if c0_s is None else 1e3 * c0_s
    return RunningTime(
        c0_ms=c0_ms,
        target_ms=parts[0],
        tool_ms=parts[1],
        others_ms=parts[2],
        kernel_ms=parts[3],
        rest_ms=None if c0_ms is None else c0_ms - sum(parts),
    )


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


def _energy(
    capture: Capture, wakeups: list[Wakeup], others: Array, cpus: int, running: RunningTime | None
) -> EnergySplit | None:
    """The host's energy in the window onto the target's rows, powerprof and the rest, by how long they ran."""
    if not capture.energy:
        return None
    own = others["next_tgid"] == capture.own_pid
    rows = tuple(
        Consumer(
            name=f"{row.thread.label} · {row.stack[0].label if row.stack else row.origin}",
            c0_s=row.c0_ms / 1e3,
            wakeups_count=row.count,
        )
        for row in wakeups
    )
    blamed_s = sum(row.c0_s for row in rows)
    target = Consumer(
        name=capture.target.label,
        c0_s=blamed_s if running is None else max(blamed_s, running.target_ms / 1e3),
        wakeups_count=sum(row.wakeups_count for row in rows),
        children=rows,
    )
    nobody = others["next_tid"] == 0
    if running is None:
        known = (("powerprof", others[own]), ("other wake-ups", others[~own]))
        parts = [(name, _running_s(exits), exits) for name, exits in known]
    else:
        parts = [
            ("powerprof", running.tool_ms / 1e3, others[own]),
            ("other threads", running.others_ms / 1e3, others[~own & ~nobody]),
            ("the kernel", running.kernel_ms / 1e3, others[nobody]),
        ]
    rest = [Consumer(name=name, c0_s=ran_s, wakeups_count=int(exits["count"].sum())) for name, ran_s, exits in parts]
    return energy_split(
        capture.energy,
        capture.window_s,
        capture.c0_percent,
        cpus,
        _fitting([target, *rest], _host_s(capture, cpus, less_stolen=True)),
        idle_watts=capture.idle_watts,
        wakeups_count=float(int(others["count"].sum()) + sum(row.count for row in wakeups)),
        wakeup_joules=capture.wakeup_joules,
        steal_percent=capture.steal_percent,
    )


def _host_s(capture: Capture, cpus: int, *, less_stolen: bool = False) -> float | None:
    """How long all CPUs ran in the window; None where unknown."""
    if capture.c0_percent is None:
        return None
    stolen = (capture.steal_percent or 0.0) if less_stolen else 0.0
    return max(0.0, capture.c0_percent - stolen) / 100 * cpus * capture.window_s


def _fitting(consumers: list[Consumer], host_s: float | None) -> list[Consumer]:
    """Consumers that ran no longer than the host did.

    Some kernels count what the hypervisor gave to others as the time of the thread that it was taken from. Whose that
    was is not known: everybody's is shortened alike.
    """
    ran_s = sum(consumer.c0_s for consumer in consumers)
    if host_s is None or ran_s <= host_s:
        return consumers
    share = host_s / ran_s

    def shortened(consumer: Consumer) -> Consumer:
        children = tuple(map(shortened, consumer.children))
        return msgspec.structs.replace(consumer, c0_s=share * consumer.c0_s, children=children)

    return [shortened(consumer) for consumer in consumers]


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
    return split_host_energy(
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


def _task_of(capture: Capture) -> idle.LookUp:
    known = {task.tid: task for task in capture.tasks}
    known[0] = Task(0, 0, "idle", "kernel", True)

    def look_up(tid: int, pid: int | None, comm: str, is_kernel: bool | None) -> Task:
        task = known.get(tid) or Task(tid, pid, comm or f"thread {tid}", comm or f"thread {tid}", bool(is_kernel))
        return as_traced(task, pid, comm, bool(is_kernel))

    return look_up


def build_attribution(capture: Capture, stacks: SiteStacks) -> Attribution:
    """The whole attribution of a capture. Conservation is over every idle exit of the host in the window."""
    edges = capture.cpu_edges()
    exits = capture.cause_entries()
    ended_by = idle.classify_exits(exits, capture.states)
    blamer = Blamer(capture, stacks)
    rows = blamer.rows(exits, ended_by)
    mine = np.zeros(len(exits), dtype=bool)
    for row in rows:
        mine[row.rows] = True
    others = exits[~mine]
    ran = capture.run_times()
    other_causes = (
        idle.group_causes(
            others,
            ended_by[~mine],
            capture.window_s,
            _task_of(capture),
            functions=capture.functions,
            interrupts=capture.interrupts,
            own_pid=capture.own_pid,
            c0_ns=sum_c0_ns(others, ran),
        )
        if len(others)
        else []
    )
    counted = not capture.loaded_count and not capture.uncounted_count
    shares: list[int | None] = [None] * len(rows)
    left: dict[WokenKey, int] = {}
    wakings: dict[WokenKey, WokenAt] = {}
    if counted:
        wakings = blamer.wakings()
        known_shares, left = share_wakings(rows, wakings)
        shares = [*known_shares]
    own = give(rows, shares, left, exits, ran, blamer.in_target)
    without_exit = [blamer.without_exit(key, wakings[key], count, own.get(key)) for key, count in left.items()]
    without_exit.sort(key=lambda row: (-row.wakings_count, row.thread.tid, [frame.address for frame in row.stack]))
    wakeups = blamer.wakeups(rows, shares, exits, is_own=ran is not None)
    ran_in_all = (
        None if ran is None else balance(exits, ran, _host_s(capture, len(edges)), blamer.in_target, capture.own_pid)
    )
    split = _energy(capture, wakeups, others, len(edges), ran_in_all)
    if split is not None and split.rate_watts is not None:
        parts = split.parts[0].children
        wakeups = [
            msgspec.structs.replace(wakeup, joules=part.joules, joules_kind=split.kind)
            for wakeup, part in zip(wakeups, parts, strict=True)
        ]
    return Attribution(
        id=None,
        started_at=capture.started_at,
        target=capture.target,
        window_s=capture.window_s,
        cpus=len(edges),
        conservation=idle.build_conservation(exits, ended_by, capture.lost_count, edges, capture.stat_idle_percent),
        wakeups=wakeups,
        stacks=_stack_counts(stacks, rows, capture.stacks_lost_count),
        tool=capture.tool,
        host=capture.host,
        wakings_window_s=(capture.counted_to_ns - capture.counted_from_ns) / 1e9 if counted else None,
        wakings_without_exit=without_exit,
        woken_elsewhere=blamer.woken_elsewhere(exits),
        other_causes=other_causes,
        c0_percent=capture.c0_percent,
        running=ran_in_all,
        energy=capture.energy,
        energy_split=split,
        energy_source=capture.energy_source,
        notes=[*capture.notes, *stacks.notes(), *_hints(capture, [*wakeups, *without_exit]), *_notes(capture, exits)],
        interrupted=capture.interrupted,
    )


def _hints(capture: Capture, rows: Sequence[Wakeup | Waking]) -> list[Note]:
    """How missing names of code that a runtime made are had."""
    images = {image.pid: image for image in capture.images}
    stacks = (
        (row.thread.pid, [runtimes.FrameName(frame.function, frame.module) for frame in row.stack])
        for row in sorted(rows, key=lambda row: row.thread.pid or 0)
    )
    return runtimes.runtime_notes(stacks, images)


def _notes(capture: Capture, exits: Array) -> Iterator[Note]:
    """What is missing of a capture, or was seen in part."""
    if capture.loaded_count:
        yield Note("wakings_not_counted")
    if capture.uncounted_count:
        yield Note("sites_left_out", {"count": capture.uncounted_count})
    if capture.stacks_lost_count:
        yield Note("stacks_lost", {"count": capture.stacks_lost_count})
    if capture.sample_1_in > 1 or capture.sample_lost_count:
        yield Note("sampled_exits", {"one_in": capture.sample_1_in, "lost_count": capture.sample_lost_count})
    if ended := int(exits["count"][exits["next_tid"] >= ENDED].sum()):
        yield Note("ended_threads", {"count": ended})
    if capture.lost_count:
        yield Note("causes_lost", {"count": capture.lost_count})
    if capture.unsent_count:
        yield Note("stacks_not_copied", {"count": capture.unsent_count})
