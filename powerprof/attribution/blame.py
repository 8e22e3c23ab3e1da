# SPDX-License-Identifier: Apache-2.0
"""From a capture to the threads, stacks and wakers behind the target's idle exits, with conservation of all of them.

Running time belongs to the thread that ran. The kernel's, from an idle exit until a thread ran, belongs to that exit's
cause.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from powerprof.attribution.capture import Capture
from powerprof.attribution.causes import (
    LookUp,
    blamed_threads,
    build_conservation,
    classify_exits,
    count_by_part,
    group_causes,
)
from powerprof.attribution.join import BlamedRow, Blamer, WokenAt, WokenKey, share_wakings
from powerprof.attribution.sites import NO_STACK, SiteStacks
from powerprof.attribution.slices import SliceEstimates
from powerprof.attribution.units import split_units
from powerprof.energy.split import Consumer, split_host_energy
from powerprof.energy.total import host_energy
from powerprof.model.attribution import Attribution, RunningTime, StackCounts, Wakeup, Waking
from powerprof.model.records import EnergyReading, EnergySplit, Note
from powerprof.stacks.runtimes import runtime_notes
from powerprof.system.tasks import ENDED, Task, restore_traced
from powerprof.tracing.bpf.shared_numbers import RunKind
from powerprof.tracing.captures import Array, CpuEdge, count_reference_exits
from powerprof.tracing.idle_data import RunTimes

# Less running time without a row gets no note.
_ROWLESS_NS = 1_000_000


class WakingPlace(msgspec.Struct, frozen=True):
    """A place where a thread was woken, with the time that it ran after idle exits there until it slept.

    `exits` counts the idle exits, `other_wakings` the wakings there while a CPU ran.
    """

    after_exits_ns: float
    exits: int
    other_wakings: int = 0


def divide_running_time(total_ns: float, places: Sequence[WakingPlace]) -> list[float]:
    """Divide a thread's running time over the places where it was woken; the parts add up to the total.

    The time after idle exits was measured. The rest followed wakings that ended none: each is assumed to cost as much
    as an idle exit there, or as the thread's mean. Without such wakings the rest is divided like the measured time.
    """
    measured = sum(place.after_exits_ns for place in places)
    rest = max(0.0, total_ns - measured)
    exits = sum(place.exits for place in places)
    mean_ns = measured / exits if exits and measured else 1.0
    weights = [
        place.other_wakings * (place.after_exits_ns / place.exits if place.exits and measured else mean_ns)
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


def sum_c0_ns(causes: Array, ran: RunTimes) -> Array:
    """Return the time that each entry of `idle_data.CAUSE` kept CPUs running: its threads' and the kernel's.

    The kernel's time runs from an exit until a thread ran, or until the CPU idled again.
    """
    own_ns = causes["own_ns"].astype(np.float64)
    total_by_thread = {(tid, pid): ns for tid, pid, ns in ran.threads[["tid", "pid", "ns"]].tolist()}
    entries_by_thread: dict[tuple[int, int], list[int]] = {}
    for entry, thread in enumerate(zip(causes["next_tid"].tolist(), causes["next_tgid"].tolist(), strict=True)):
        if thread in total_by_thread:
            entries_by_thread.setdefault(thread, []).append(entry)
    counts = causes["count"].tolist()
    for thread, entries in entries_by_thread.items():
        places = [WakingPlace(own_ns[entry], counts[entry]) for entry in entries]
        own_ns[entries] = divide_running_time(total_by_thread[thread], places)
    c0_ns: Array = own_ns + causes["kernel_ns"]
    return c0_ns


def add_running_times(
    rows: Sequence[BlamedRow],
    shares: Sequence[int | None],
    unplaced: Mapping[WokenKey, int],
    causes: Array,
    ran: RunTimes,
    in_target: Callable[[int, int], bool],
) -> dict[WokenKey, float]:
    """Set the running time of each row's threads, and of the kernel for them; return the time of unplaced wakings.

    `shares` are the rows' wakings; `unplaced` are the counts of wakings that belong to no row.
    """
    measured, kernel = causes["own_ns"].tolist(), causes["kernel_ns"].astype(np.float64).tolist()
    for row in rows:
        row.after_exits_ns = row.own_ns = float(sum(measured[entry] for entry in row.rows))
        row.kernel_ns = sum(kernel[entry] for entry in row.rows)
    threads = ran.threads[ran.threads["kind"] != RunKind.KERNEL]
    total = {tid: ns for tid, pid, ns in threads[["tid", "pid", "ns"]].tolist() if in_target(pid, tid)}
    places_by_thread: dict[int, list[tuple[BlamedRow | WokenKey, WakingPlace]]] = {}
    for row, share in zip(rows, shares, strict=True):
        other = max(0, (share or 0) - row.count)
        place = WakingPlace(row.after_exits_ns, row.count, other)
        places_by_thread.setdefault(row.thread, []).append((row, place))
    for key, count in unplaced.items():
        places_by_thread.setdefault(key[0], []).append((key, WakingPlace(0.0, 0, count)))
    unplaced_ns = dict.fromkeys(unplaced, 0.0)
    for tid, places in places_by_thread.items():
        parts = divide_running_time(total.get(tid, 0.0), [place for _, place in places])
        for (owner, _), ns in zip(places, parts, strict=True):
            if isinstance(owner, BlamedRow):
                owner.own_ns = ns
            else:
                unplaced_ns[owner] = ns
    return unplaced_ns


def balance_running_time(
    causes: Array, ran: RunTimes, c0_s: float | None, in_target: Callable[[int, int], bool], own_pids: Collection[int]
) -> RunningTime:
    """Return all CPU running time by owner. `c0_s` is the host's C0 time; None if it is unknown."""
    target_ns, tool_ns, others_ns, kernel_ns = float(ran.target_ns), 0.0, float(ran.others_ns), 0.0

    def add(pid: int, tid: int, ns: float, kind: int = RunKind.OTHER) -> None:
        nonlocal target_ns, tool_ns, others_ns
        if pid in own_pids:
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
            kernel_ns += ns
    parts = [part / 1e6 for part in (target_ns, tool_ns, others_ns, kernel_ns)]
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
    # Threads that the kernel runs for a process, such as io_uring workers, have no user stack to complete.
    rows = [row for row in rows if row.stack != NO_STACK]
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


def _split_energy(
    capture: Capture, wakeups: list[Wakeup], others: Array, cpus: int, running: RunningTime
) -> EnergySplit | None:
    """Split the host's energy over the target's rows, powerprof and the rest, in proportion to running time."""
    if not capture.energy:
        return None
    own = np.isin(others["next_tgid"], sorted(capture.own_pids()))
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
        c0_s=max(blamed_s, running.target_ms / 1e3),
        wakeups_count=sum(row.wakeups_count for row in rows),
        children=rows,
    )
    no_thread = others["next_tid"] == 0
    parts = [
        ("powerprof", running.tool_ms / 1e3, others[own]),
        ("other threads", running.others_ms / 1e3, others[~own & ~no_thread]),
        ("the kernel", running.kernel_ms / 1e3, others[no_thread]),
    ]
    rest = [Consumer(name=name, c0_s=ran_s, wakeups_count=int(exits["count"].sum())) for name, ran_s, exits in parts]
    return energy_split(
        capture.energy,
        capture.window_s,
        capture.c0_percent,
        cpus,
        _fit_to_host([target, *rest], _host_running_s(capture, cpus, stolen_percent=capture.steal_percent or 0.0)),
        idle_watts=capture.idle_watts,
        wakeups_count=float(int(others["count"].sum()) + sum(row.count for row in wakeups)),
        wakeup_joules=capture.wakeup_joules,
        steal_percent=capture.steal_percent,
    )


def _host_running_s(capture: Capture, cpus: int, stolen_percent: float = 0.0) -> float | None:
    """Return the running time of all CPUs in the window less the stolen time; None if it is unknown."""
    if capture.c0_percent is None:
        return None
    return max(0.0, capture.c0_percent - stolen_percent) / 100 * cpus * capture.window_s


def _fit_to_host(consumers: list[Consumer], host_s: float | None) -> list[Consumer]:
    """Shorten consumers in proportion so that together they ran no longer than the host.

    Some kernels count time that the hypervisor gave to other guests as running time of the interrupted thread. The
    affected threads are unknown, so every thread is shortened by the same factor.
    """
    ran_s = sum(consumer.c0_s for consumer in consumers)
    if host_s is None or ran_s <= host_s:
        return consumers
    share = host_s / ran_s

    def shorten(consumer: Consumer) -> Consumer:
        children = tuple(map(shorten, consumer.children))
        return msgspec.structs.replace(consumer, c0_s=share * consumer.c0_s, children=children)

    return [shorten(consumer) for consumer in consumers]


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
    """Split the host's energy in a traced window over `consumers`; None if the energy or C0 is unknown."""
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


def task_finder(capture: Capture) -> LookUp:
    """Return the look-up of a capture's threads by id; unknown threads keep their traced names."""
    tasks = {task.tid: task for task in capture.tasks}
    tasks[0] = Task(0, 0, "idle", "kernel", True)

    def look_up(tid: int, pid: int | None, comm: str, is_kernel: bool | None) -> Task:
        task = tasks.get(tid) or Task(tid, pid, comm or f"thread {tid}", comm or f"thread {tid}", bool(is_kernel))
        return restore_traced(task, pid, comm, bool(is_kernel))

    return look_up


def build_attribution(capture: Capture, stacks: SiteStacks) -> Attribution:
    """Return the attribution of a capture. Conservation covers every idle exit of the host in the window."""
    edges = capture.cpu_edges()
    traced = exits = capture.cause_entries()
    ended_by = classify_exits(exits, capture.states)
    estimates = SliceEstimates(capture, capture.sliced) if capture.sliced is not None else None
    if estimates is not None:
        exits, capture = estimates.scale_exits(exits), estimates.scale_wakings(capture)
    blamer = Blamer(capture, stacks)
    rows = blamer.rows(exits, ended_by)
    is_blamed = np.zeros(len(exits), dtype=bool)
    for row in rows:
        is_blamed[row.rows] = True
    others = exits[~is_blamed]
    ran = capture.run_times()
    other_causes = (
        group_causes(
            others,
            ended_by[~is_blamed],
            capture.window_s,
            task_finder(capture),
            functions=capture.functions,
            interrupts=capture.interrupts,
            own_pids=capture.own_pids(),
            c0_ns=sum_c0_ns(others, ran),
        )
        if len(others)
        else []
    )
    counted = not capture.loaded_count and not capture.uncounted_count
    shares: list[int | None] = [None] * len(rows)
    unplaced: dict[WokenKey, int] = {}
    wakings: dict[WokenKey, WokenAt] = {}
    if counted:
        wakings = blamer.wakings()
        row_shares, unplaced = share_wakings(rows, wakings)
        shares = [*row_shares]
    unplaced_ns = add_running_times(rows, shares, unplaced, exits, ran, blamer.in_target)
    without_exit = [blamer.without_exit(key, wakings[key], count, unplaced_ns[key]) for key, count in unplaced.items()]
    without_exit.sort(key=lambda row: (-row.wakings_count, row.thread.tid, [frame.address for frame in row.stack]))
    wakeups = blamer.wakeups(rows, shares, exits, estimates)
    rowless = _find_rowless_time(ran, {row.thread for row in rows} | {key[0] for key in unplaced}, blamer.in_target)
    running = balance_running_time(
        exits, ran, _host_running_s(capture, len(edges)), blamer.in_target, capture.own_pids()
    )
    split = _split_energy(capture, wakeups, others, len(edges), running)
    if split is not None and split.rate_watts is not None:
        parts = split.parts[0].children
        wakeups = [
            msgspec.structs.replace(wakeup, joules=part.joules, joules_kind=split.kind)
            for wakeup, part in zip(wakeups, parts, strict=True)
        ]
    record = Attribution(
        started_at=capture.started_at,
        target=capture.target,
        window_s=capture.window_s,
        cpus=len(edges),
        conservation=build_conservation(traced, ended_by, capture.lost_count, edges, _idle_percent(capture, edges)),
        wakeups=wakeups,
        stacks=_stack_counts(stacks, rows, capture.stacks_lost_count),
        tool=capture.tool,
        host=capture.host,
        exits_by_part=(
            _count_target_by_part(capture, blamer, sum(row.count for row in rows)) if estimates is None else []
        ),
        wakings_window_s=(capture.counted_to_ns - capture.counted_from_ns) / 1e9 if counted else None,
        wakings_without_exit=without_exit,
        woken_elsewhere=blamer.woken_elsewhere(exits),
        other_causes=other_causes,
        c0_percent=capture.c0_percent,
        running=running,
        energy=capture.energy,
        energy_split=split,
        energy_source=capture.energy_source,
        notes=[
            *capture.notes,
            *stacks.notes(),
            *_runtime_notes(capture, [*wakeups, *without_exit]),
            *([_note_rowless_time(rowless)] if counted and sum(rowless.values()) >= _ROWLESS_NS else []),
            *_notes(capture, exits),
        ],
        ended=capture.ended,
        slicing=None if estimates is None else estimates.describe(np.flatnonzero(is_blamed)),
    )
    return msgspec.structs.replace(record, by_unit=split_units(record))


def _idle_percent(capture: Capture, edges: Mapping[int, CpuEdge]) -> float | None:
    """Return the idle time by /proc/stat. No CPU idled in slices in which the kernel counted no idle exit."""
    reference = count_reference_exits(edges)
    if capture.sliced is not None and reference is not None and not reference[1]:
        return 0.0
    return capture.stat_idle_percent


def _count_target_by_part(capture: Capture, blamer: Blamer, count: int) -> list[float]:
    """Return the target's idle exits in equal parts of the window; empty without edges."""
    edges = capture.cpu_edges().values()
    if not edges:
        return []
    sample = capture.exit_records()
    tids, pids = blamed_threads(sample)
    keys = np.stack([tids.astype(np.int64), pids.astype(np.int64)], axis=1)
    found, places = np.unique(keys, axis=0, return_inverse=True)
    is_own = np.array([bool(tid) and blamer.in_target(pid, tid) for tid, pid in found.tolist()], dtype=bool)
    at_ns = sample["exit_ns"][is_own[places.reshape(-1)]] if len(found) else sample["exit_ns"]
    start_ns, end_ns = min(edge.start_ns for edge in edges), max(edge.end_ns for edge in edges)
    return count_by_part(at_ns, start_ns, end_ns, count)


def _find_rowless_time(ran: RunTimes, placed: Collection[int], in_target: Callable[[int, int], bool]) -> dict[int, int]:
    """Return the running time in ns of the target's threads that have no row: nothing woke them in the window."""
    return {
        tid: ns
        for tid, pid, ns, kind in ran.threads[["tid", "pid", "ns", "kind"]].tolist()
        if kind != RunKind.KERNEL and tid not in placed and in_target(pid, tid)
    }


def _note_rowless_time(rowless: Mapping[int, int]) -> Note:
    most = max(rowless, key=lambda tid: rowless[tid])
    return Note("running_without_row", {"ms": sum(rowless.values()) / 1e6, "count": len(rowless), "tid": most})


def _runtime_notes(capture: Capture, rows: Sequence[Wakeup | Waking]) -> list[Note]:
    """Return how to get the names of code that runtimes generated."""
    images = {image.pid: image for image in capture.images}
    stacks = ((row.thread.pid, row.stack) for row in sorted(rows, key=lambda row: row.thread.pid or 0))
    return runtime_notes(stacks, images)


def _notes(capture: Capture, exits: Array) -> Iterator[Note]:
    """Yield a note for each part of the capture that is missing or incomplete."""
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
