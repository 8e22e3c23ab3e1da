# SPDX-License-Identifier: Apache-2.0
"""Time in which all CPUs idled together, its breakers, and the same time without some threads; pure, over a capture.

A CPU runs in bursts: from an idle exit until it idles again. All CPUs idle together between the bursts of all. If
periods of a CPU are lost, its state is unknown from the last known idle entry to the next known one.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from powerprof.attribution.blame import task_finder
from powerprof.attribution.capture import Capture, IdleCpu
from powerprof.attribution.causes import (
    TIMER,
    CauseGroups,
    are_ended_polls,
    blamed_threads,
    classify_exits,
    label_exits,
)
from powerprof.measure.window import StateInfo, is_polling
from powerprof.model.deep_idle import Breaker, DeepIdle, DeepScope, DeepWhatIf, GovernorCheck, LengthBin, StateShare
from powerprof.tracing.bpf.shared_numbers import Flag, WakerContext
from powerprof.tracing.captures import Array, CpuEdge
from powerprof.tracing.idle_data import CAUSE, CAUSE_KEY, build_cause_keys

# `record` is the number of the exit that began the burst, or one of these.
RAN, LOST = -1, -2
BURST = np.dtype([("cpu", "<i8"), ("start", "<i8"), ("end", "<i8"), ("record", "<i8")])
_BINS_US = (0, 10, 100, 1000, 10_000, 100_000)
_MOST_BREAKERS = 50


@dataclass(frozen=True)
class DeepRequest:
    """The questions about deep idle. `states`: the idle states of the CPU `table`; empty for this host's own.

    `without`: threads that are left out; `slack_ns`: threads with more timer slack. Both by name, process or id.
    """

    table: str | None = None
    states: tuple[StateInfo, ...] = ()
    without: tuple[str, ...] = ()
    slack_ns: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Periods:
    """Single idle periods in order of their exits, with their causes (CAUSE), groups and wrong choices."""

    exits: Array
    causes: Array
    ended_by: Array
    groups: CauseGroups
    above: Array
    below: Array


def build_deep_idle(capture: Capture, request: DeepRequest) -> DeepIdle:
    """Return the deep idle of a capture."""
    periods = _label_periods(capture)
    bursts, window, lost_count = read_bursts(capture, periods.exits)
    polls = _polling_spans(capture, periods.exits)
    # The kernel chooses a state again after a poll that reached its time limit: no program ran.
    is_poll = are_ended_polls(periods.causes, capture.states)
    bursts = _leave_out(bursts, is_poll)
    own = next((cpu.states for cpu in capture.idle_cpus), [])
    scopes = _name_scopes(capture)

    def build(bursts: Array, with_breakers: bool) -> list[DeepScope]:
        return [
            _build_scope(name, cpus, bursts, window, polls, request.states or own, periods if with_breakers else None)
            for name, cpus in scopes.items()
        ]

    return DeepIdle(
        table=request.table,
        periods_count=len(periods.exits),
        lost_count=lost_count,
        scopes=build(bursts, True),
        governor=_check_governor(capture, periods, lost_count),
        what_if=_build_what_if(capture, request, periods, bursts, build),
    )


def _label_periods(capture: Capture) -> _Periods:
    exits = capture.exit_records()
    edges = capture.cpu_edges()
    inside = np.zeros(len(exits), dtype=bool)
    for cpu, edge in edges.items():
        inside |= (exits["cpu"] == cpu) & (exits["exit_ns"] >= edge.start_ns) & (exits["exit_ns"] <= edge.end_ns)
    exits = exits[inside]
    exits = exits[np.lexsort((exits["sequence"], exits["exit_ns"]))]
    causes = np.zeros(len(exits), dtype=CAUSE)
    keys = build_cause_keys(exits)
    for name in CAUSE_KEY.names or ():
        causes[name] = keys[name]
    causes["count"], causes["last_ns"], causes["next_comm"] = 1, exits["exit_ns"], exits["next_comm"]
    ended_by = classify_exits(causes, capture.states)
    groups = label_exits(
        causes,
        ended_by,
        task_finder(capture),
        functions=capture.functions,
        interrupts=capture.interrupts,
        server_names=capture.server_names,
        own_pids=capture.own_pids(),
    )
    above, below = (np.zeros(len(exits), dtype=bool) for _ in range(2))
    lengths_ns = exits["exit_ns"].astype(np.int64) - exits["enter_ns"].astype(np.int64)
    for idle_cpu in capture.idle_cpus:
        mine = exits["cpu"] == idle_cpu.cpu
        above[mine], below[mine] = count_misses(idle_cpu, exits["state"][mine], lengths_ns[mine])
    return _Periods(exits, causes, ended_by, groups, above, below)


def _name_scopes(capture: Capture) -> dict[str, list[int]]:
    """Return the CPUs of the host and, if there are several, of each package."""
    scopes = {"host": sorted(capture.cpu_edges())}
    packages: dict[int, list[int]] = {}
    for cpu in capture.idle_cpus:
        if cpu.package is not None and cpu.cpu in scopes["host"]:
            packages.setdefault(cpu.package, []).append(cpu.cpu)
    if len(packages) > 1:
        scopes |= {f"package {package}": packages[package] for package in sorted(packages)}
    return scopes


def read_bursts(capture: Capture, exits: Array) -> tuple[Array, tuple[int, int], int]:
    """Return the bursts of all CPUs (BURST), the window that all CPUs share, and the number of lost periods.

    `exits` are the periods inside the CPUs' windows, by exit.
    """
    edges = capture.cpu_edges()
    first = max((edge.start_ns for edge in edges.values()), default=0)
    last = max(first, min((edge.end_ns for edge in edges.values()), default=0))
    unresolved = {cpu.cpu for cpu in capture.idle_cpus if not cpu.resolved}
    parts, lost_count = [np.zeros(0, dtype=BURST)], 0
    for cpu, edge in edges.items():
        rows = np.flatnonzero(exits["cpu"] == cpu)
        bursts, lost = _bursts_of_cpu(exits[rows], rows, edge, cpu in unresolved)
        lost_count += lost
        bursts["start"] = np.clip(bursts["start"], first, last)
        bursts["end"] = np.clip(bursts["end"], bursts["start"], last)
        outside = (bursts["start"] == last) | ((bursts["end"] == first) & (bursts["record"] < 0))
        parts.append(bursts[~outside])
    return np.concatenate(parts), (first, last), lost_count


def _bursts_of_cpu(exits: Array, rows: Array, edge: CpuEdge, unresolved: bool) -> tuple[Array, int]:
    """Return the bursts of one CPU and the number of its lost periods; `rows` are the numbers of its exits."""
    traced = edge.traced_count
    if not len(exits):
        # A CPU that ran at both edges and left idle at no time ran all along.
        state = LOST if unresolved or traced else RAN
        return np.array([(edge.cpu, edge.start_ns, edge.end_ns, state)], dtype=BURST), traced or 0
    enter, exit_ns = exits["enter_ns"].astype(np.int64), exits["exit_ns"].astype(np.int64)
    is_open = exits["flags"] & np.uint32(Flag.OPEN) != 0
    until = np.where(is_open, edge.end_ns, exits["next_ns"].astype(np.int64))
    bursts = np.zeros(len(exits), dtype=BURST)
    bursts["cpu"], bursts["start"], bursts["end"], bursts["record"] = edge.cpu, exit_ns, until, rows
    following = np.append(enter[1:], edge.end_ns)
    missing = np.append((exits["sequence"][1:] - exits["sequence"][:-1] - np.uint32(1)).astype(np.int64), 0)
    inside = int(missing.sum())
    lost = max(inside, (traced or 0) - len(exits)) if traced is not None else inside
    is_lost = missing > 0
    is_lost[-1] = not is_open[-1]
    gaps = np.zeros(int(is_lost.sum()), dtype=BURST)
    gaps["cpu"], gaps["record"] = edge.cpu, LOST
    gaps["start"], gaps["end"] = until[is_lost], np.maximum(until, following)[is_lost]
    before = LOST if traced is not None and traced - len(exits) > inside else RAN
    heads = np.array([(edge.cpu, edge.start_ns, max(edge.start_ns, int(enter[0])), before)], dtype=BURST)
    return np.concatenate([heads, bursts, gaps]), lost


def _leave_out(bursts: Array, mask: Array) -> Array:
    """Return the bursts except those of the masked exits: the idle periods around them become one."""
    kept: Array = bursts[~np.append(mask, False)[np.maximum(bursts["record"], -1)]]
    return kept


def _union_ns(spans: Array) -> int:
    """Return the time that the spans cover."""
    if not len(spans):
        return 0
    spans = spans[np.argsort(spans["start"], kind="stable")]
    ends = np.maximum.accumulate(spans["end"])
    begin = np.maximum(spans["start"][1:], ends[:-1])
    return int(ends[0] - spans["start"][0] + np.maximum(0, ends[1:] - begin).sum())


def find_stretches(bursts: Array, window: tuple[int, int]) -> tuple[Array, Array, int]:
    """Return the length of each ended stretch in ns, the record that ended it, and the length of the open stretch."""
    bursts = bursts[np.lexsort((bursts["record"] < 0, bursts["start"]))]
    ends = np.maximum.accumulate(np.append(window[0], bursts["end"]))
    lengths = bursts["start"] - ends[:-1]
    is_stretch = lengths > 0
    return lengths[is_stretch], bursts["record"][is_stretch], max(0, window[1] - int(ends[-1]))


def _polling_spans(capture: Capture, exits: Array) -> Array:
    """Return the periods in a polling state as spans (BURST)."""
    polls = np.zeros(len(exits), dtype=bool)
    for cpu, states in capture.states.items():
        numbers = [number for number, name in enumerate(states) if is_polling(name, "")]
        polls |= (exits["cpu"] == cpu) & np.isin(exits["state"], numbers)
    spans = np.zeros(int(polls.sum()), dtype=BURST)
    spans["cpu"], spans["record"] = exits["cpu"][polls], RAN
    spans["start"], spans["end"] = exits["enter_ns"][polls], exits["exit_ns"][polls]
    return spans


def _build_scope(
    name: str,
    cpus: Sequence[int],
    bursts: Array,
    window: tuple[int, int],
    polls: Array,
    states: Sequence[StateInfo],
    periods: _Periods | None,
) -> DeepScope:
    bursts, polls = (spans[np.isin(spans["cpu"], cpus)] for spans in (bursts, polls))
    lengths, records, open_ns = find_stretches(bursts, window)
    running_ns, covered_ns = _union_ns(bursts[bursts["record"] != LOST]), _union_ns(bursts)
    polls = polls.copy()
    polls["start"], polls["end"] = np.clip(polls["start"], *window), np.clip(polls["end"], *window)
    stretches = np.append(lengths, open_ns) if open_ns else lengths
    ordered, total_ns = np.sort(stretches)[::-1], int(stretches.sum())
    half = int(np.searchsorted(np.cumsum(ordered), total_ns / 2)) if total_ns else 0
    bins = [
        LengthBin(from_us=low, below_us=high, count=int(inside.sum()), time_s=float(stretches[inside].sum()) / 1e9)
        for low, high in zip(_BINS_US, (*_BINS_US[1:], None), strict=True)
        for inside in [(stretches >= low * 1000) & (stretches < (np.inf if high is None else high * 1000))]
    ]
    return DeepScope(
        name=name,
        cpus=len(cpus),
        window_s=(window[1] - window[0]) / 1e9,
        ended_s=float(lengths.sum()) / 1e9,
        open_s=open_ns / 1e9,
        running_s=running_ns / 1e9,
        unknown_s=(covered_ns - running_ns) / 1e9,
        polling_s=(_union_ns(np.concatenate([bursts, polls])) - covered_ns) / 1e9,
        count=len(stretches),
        half_us=float(ordered[half]) / 1e3 if total_ns else None,
        longest_us=float(ordered[0]) / 1e3 if total_ns else None,
        lengths=bins,
        states=[_share_of_state(state, stretches) for state in states if not state.polling],
        breakers=[] if periods is None else _find_breakers(periods, cpus, lengths, records),
    )


def _share_of_state(state: StateInfo, stretches: Array) -> StateShare:
    """Return the stretches that were long enough for a state."""
    count = time_s = percent = None
    if state.target_us is not None:
        long_enough = stretches[stretches >= state.target_us * 1000]
        count, time_s = len(long_enough), float(long_enough.sum()) / 1e9
        percent = 100.0 * float(long_enough.sum()) / float(stretches.sum()) if len(stretches) else None
    return StateShare(
        name=state.name,
        latency_us=state.latency_us,
        target_us=state.target_us,
        disabled=state.disabled,
        count=count,
        time_s=time_s,
        percent=percent,
    )


def _find_breakers(periods: _Periods, cpus: Sequence[int], lengths: Array, records: Array) -> list[Breaker]:
    """Return the causes of stretches and misses, the longest time first; the least of many causes are one row."""
    of_exit, size = periods.groups.of_exit, len(periods.groups.labels) + 1
    here = np.isin(periods.exits["cpu"], cpus)
    numbers = np.append(of_exit, size - 1)[np.maximum(records, -1)]
    sums = np.zeros((size, 4), dtype=np.int64)
    sums[:, 0] = np.bincount(numbers, minlength=size)
    np.add.at(sums[:, 1], numbers, lengths)
    for column, misses in ((2, periods.above), (3, periods.below)):
        sums[:, column] = np.bincount(of_exit[here & misses], minlength=size)
    labels: list[tuple[Any, ...]] = [*periods.groups.labels, ("lost", None, None, None, None)]
    weights = (sums / np.maximum(sums.sum(axis=0), 1)).sum(axis=1).tolist()
    ordered = sorted(zip(labels, sums.tolist(), weights, strict=True), key=lambda row: (-row[2], str(row[0])))
    rows = [(label, row) for label, row, weight in ordered if weight]
    if rest := [row for _, row in rows[_MOST_BREAKERS:]]:
        rows[_MOST_BREAKERS:] = [(("other", None, None, None, None), [sum(part) for part in zip(*rest, strict=True)])]
    rows.sort(key=lambda row: -row[1][1])
    names = ("mechanism", "name", "process", "pid", "thread", "count", "stretch_s", "above_count", "below_count")
    return [
        Breaker(**dict(zip(names, (*label, count, ns / 1e9, above, below), strict=True)))
        for label, (count, ns, above, below) in rows
    ]


# The governor's misses, as cpuidle_enter_state() counts them (drivers/cpuidle/cpuidle.c).


def count_misses(cpu: IdleCpu, states: Array, lengths_ns: Array) -> tuple[Array, Array]:
    """Return whether each idle period of a CPU ended too early for its state, or was long enough for the next one."""
    above, below = (np.zeros(len(states), dtype=bool) for _ in range(2))
    for number, state in enumerate(cpu.states):
        chosen = states == number
        shallower = any(not other.disabled for other in cpu.states[:number])
        too_short = chosen & (lengths_ns < (state.target_us or 0) * 1000)
        above |= too_short & shallower
        deeper = next((other for other in cpu.states[number + 1 :] if not other.disabled), None)
        if deeper is not None:
            latency_ns = (state.latency_us or 0) * 1000
            rest = lengths_ns - latency_ns
            below |= chosen & ~too_short & (rest > 0) & (rest >= (deeper.target_us or 0) * 1000)
    return above, below


def _check_governor(capture: Capture, periods: _Periods, lost_count: int) -> GovernorCheck | None:
    """Return the governor's misses; None if a latency or a target residency is unknown."""
    states = [state for cpu in capture.idle_cpus for state in cpu.states]
    if not states or any(state.target_us is None or state.latency_us is None for state in states):
        return None

    def kernel(counts: Sequence[int | None]) -> int | None:
        return None if None in counts else sum(count or 0 for count in counts)

    return GovernorCheck(
        above_count=int(periods.above.sum()),
        below_count=int(periods.below.sum()),
        kernel_above_count=kernel([count for cpu in capture.idle_cpus for count in cpu.above]),
        kernel_below_count=kernel([count for cpu in capture.idle_cpus for count in cpu.below]),
        is_complete=lost_count == 0,
    )


# What-if: without threads, or with more timer slack.


def _build_what_if(
    capture: Capture,
    request: DeepRequest,
    periods: _Periods,
    bursts: Array,
    build: Callable[[Array, bool], list[DeepScope]],
) -> DeepWhatIf | None:
    if not request.without and not request.slack_ns:
        return None
    names, exits = _names_by_thread(capture, periods.exits), periods.exits
    tids, _ = blamed_threads(exits)
    by_task = (exits["flags"] & np.uint32(Flag.WAKER) != 0) & (exits["waker_context"] == WakerContext.TASK)
    own_timer = (periods.ended_by == TIMER) & (exits["next_tid"] != 0)
    unmatched = []

    def ended_by(word: str, *, by_timer: bool) -> Array:
        """Return whether each exit is by this thread: by its own timer, or also by its wakings of other threads."""
        ids = [tid for tid, known in names.items() if word in known]
        labels = [word in (label[1], label[2], label[4]) for label in periods.groups.labels]
        mine: Array = np.isin(tids, ids) | np.append(labels, False)[periods.groups.of_exit].astype(bool)
        mine = mine & own_timer if by_timer else mine | (by_task & np.isin(exits["waker_tid"], ids))
        if not mine.any():
            unmatched.append(word)
        return mine

    removed = np.zeros(len(exits), dtype=bool)
    for word in request.without:
        removed |= ended_by(word, by_timer=False)
    slack_ns = np.zeros(len(exits), dtype=np.int64)
    for word, nanoseconds in request.slack_ns.items():
        slack_ns[ended_by(word, by_timer=True) & ~removed] = nanoseconds
    kept = _leave_out(bursts, removed)
    moved, moved_count = delay_bursts(kept, exits["next_tid"], slack_ns)
    return DeepWhatIf(
        without=list(request.without),
        slack_ms={word: nanoseconds / 1e6 for word, nanoseconds in request.slack_ns.items()},
        unmatched=unmatched,
        removed_count=len(bursts) - len(kept),
        moved_count=moved_count,
        scopes=build(moved, False),
    )


def _names_by_thread(capture: Capture, exits: Array) -> dict[int, set[str]]:
    """Return the words that mean each thread: its id and its names, and the name of its process."""
    names: dict[int, set[str]] = defaultdict(set)
    for prefix in ("next", "waker"):
        for tid, comm in set(exits[[f"{prefix}_tid", f"{prefix}_comm"]].tolist()):
            names[tid] |= {str(tid), comm.decode("utf-8", "replace")}
    for task in capture.tasks:
        names[task.tid] |= {str(task.tid), task.comm, task.process}
    for tid, name in capture.server_names.items():
        names[tid] |= {name.removeprefix("thread/"), name.rpartition("/")[2]}
    names.pop(0, None)
    return {tid: known - {""} for tid, known in names.items()}


_BURST, _DUE, _LATEST = range(3)


def delay_bursts(bursts: Array, tids: Array, slack_ns: Array) -> tuple[Array, int]:
    """Return the bursts if the sleeps of some threads ended later, and the number of bursts that moved.

    `tids`, `slack_ns`: the thread and the added slack of each exit; 0 for exits that stay. A sleep ends with the next
    burst of its CPU within the slack, else at the end of the slack. Sleeps are relative: a later end of one delays all
    later ones of the thread. The kernel can end a sleep later, but no earlier (`diagnosis.thread_pace`).
    """
    slack = np.append(slack_ns, 0)[np.maximum(bursts["record"], -1)]
    if not slack.any():
        return bursts, 0
    tid_of = np.append(tids, 0)[np.maximum(bursts["record"], -1)]
    queues: dict[int, deque[int]] = defaultdict(deque)
    moves = np.flatnonzero(slack)
    for number in moves[np.argsort(bursts["start"][moves], kind="stable")].tolist():
        queues[int(tid_of[number])].append(number)
    start, end, cpus = (bursts[name].tolist() for name in ("start", "end", "cpu"))
    last = max(end)
    events = [(start[number], _BURST, number) for number in np.flatnonzero(slack == 0).tolist()]
    events += [(start[queue[0]], _DUE, queue[0]) for queue in queues.values()]
    heapq.heapify(events)
    new = bursts.copy()
    new["start"][moves] = new["end"][moves] = last
    busy_until: dict[int, int] = defaultdict(int)
    waiting: dict[int, list[int]] = defaultdict(list)

    def begin(at: int, number: int) -> None:
        cpu = cpus[number]
        busy_until[cpu] = max(at, busy_until[cpu]) + end[number] - start[number]
        new["start"][number], new["end"][number] = at, busy_until[cpu]
        if slack[number]:
            queue = queues[int(tid_of[number])]
            queue.popleft()
            if queue:
                later = busy_until[cpu] - end[number]
                heapq.heappush(events, (start[queue[0]] + later, _DUE, queue[0]))

    while events and events[0][0] < last:
        at, kind, number = heapq.heappop(events)
        cpu = cpus[number]
        if kind == _DUE and busy_until[cpu] <= at:
            waiting[cpu].append(number)
            heapq.heappush(events, (at + int(slack[number]), _LATEST, number))
        elif kind != _LATEST or number in waiting[cpu]:
            others = [other for other in waiting.pop(cpu, []) if other != number]
            for each in (number, *others):
                begin(at, each)
    kept = new[new["start"] < last]
    kept["end"] = np.minimum(kept["end"], last)
    return kept, int(np.count_nonzero(new["start"][moves] != bursts["start"][moves]))
