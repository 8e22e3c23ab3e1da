# SPDX-License-Identifier: Apache-2.0
"""Time in which all CPUs idled together, its breakers, and predictions without some threads; pure, over a capture.

A CPU runs in bursts: from an idle exit until it idles again. All CPUs idle together between the bursts of all. If
periods of a CPU are lost, its state is unknown from the last known idle entry to the next known one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from powerprof.attribution.blame import task_finder
from powerprof.attribution.capture import Capture, IdleCpu
from powerprof.attribution.causes import (
    TICK,
    TIMER,
    CauseGroups,
    are_ended_polls,
    blamed_threads,
    classify_exits,
    label_exits,
)
from powerprof.measure.window import StateInfo, is_polling
from powerprof.model.deep_idle import (
    Breaker,
    DeepIdle,
    DeepScope,
    DeepWhatIf,
    ExpectedScope,
    GovernorCheck,
    LengthBin,
    StateShare,
)
from powerprof.statistics.intervals import LEVEL, effective_freedom, serial_factor, student_quantile
from powerprof.tracing.bpf.shared_numbers import Flag, WakerContext
from powerprof.tracing.captures import Array, CpuEdge, select_in_window
from powerprof.tracing.idle_data import CAUSE, CAUSE_KEY, build_cause_keys

# `record` is the number of the exit that began the burst, or one of these. OPEN: no burst ended the stretch.
RAN, LOST, OPEN = -1, -2, -3
BURST = np.dtype([("cpu", "<i8"), ("start", "<i8"), ("end", "<i8"), ("record", "<i8")])
_BINS_US = (0, 10, 100, 1000, 10_000, 100_000)
_MOST_BREAKERS = 50


class DeepRequest(msgspec.Struct, frozen=True):
    """The questions about deep idle. `states`: the idle states of the CPU `table`; empty for this host's own.

    `without`: threads that are left out; `slack_ns`: threads with more timer slack. Both by name, process or id.
    """

    table: str | None = None
    states: tuple[StateInfo, ...] = ()
    without: tuple[str, ...] = ()
    slack_ns: Mapping[str, int] = msgspec.field(default_factory=dict)


class _Periods(msgspec.Struct, frozen=True):
    """Single idle periods in order of their exits, with their causes (CAUSE), groups and wrong choices."""

    exits: Array
    causes: Array
    ended_by: Array
    groups: CauseGroups
    above: Array
    below: Array


class _Stretches(msgspec.Struct, frozen=True):
    """Stretches in which all CPUs idled: starts and lengths in ns, and the record of the burst that ended each."""

    starts: Array
    lengths: Array
    records: Array

    @property
    def total_ns(self) -> int:
        """The time of all stretches."""
        return int(self.lengths.sum())

    def lengths_holding(self, *shares: float) -> list[float]:
        """Return the lengths in ns from which stretches hold these shares of the time; 0 without stretches."""
        ordered = np.append(np.sort(self.lengths)[::-1], 0)
        places = np.searchsorted(np.cumsum(ordered), self.total_ns * np.array(shares))
        lengths: list[float] = ordered[places].astype(float).tolist()
        return lengths


class _View(msgspec.Struct, frozen=True):
    """CPUs in the window that all CPUs share, the idle states for questions, and the periods in a polling state."""

    name: str
    cpus: Sequence[int]
    window: tuple[int, int]
    states: Sequence[StateInfo]
    polls: Array

    def find_stretches(self, *spans: Array) -> _Stretches:
        """Return the stretches of these CPUs between the spans (BURST)."""
        bursts = np.concatenate(spans)
        bursts = bursts[np.isin(bursts["cpu"], self.cpus)]
        bursts = bursts[np.lexsort((bursts["record"] < 0, bursts["start"]))]
        first, last = self.window
        starts = np.maximum.accumulate(np.append(first, np.minimum(bursts["end"], last)))
        lengths = np.append(np.clip(bursts["start"], first, last), last) - starts
        is_stretch = lengths > 0
        return _Stretches(starts[is_stretch], lengths[is_stretch], np.append(bursts["record"], OPEN)[is_stretch])


def build_deep_idle(capture: Capture, request: DeepRequest) -> DeepIdle:
    """Return the deep idle of a capture."""
    periods = _label_periods(capture)
    bursts, window, lost_count = read_bursts(capture, periods.exits)
    # The kernel chooses a state again after a poll that reached its time limit: no program ran.
    bursts = _leave_out(bursts, are_ended_polls(periods.causes, capture.states))
    states = request.states or next((tuple(cpu.states) for cpu in capture.idle_cpus), ())
    polls = _list_polls(capture, periods.exits)
    views = [_View(name, cpus, window, states, polls) for name, cpus in _name_scopes(capture).items()]
    return DeepIdle(
        table=request.table,
        periods_count=len(periods.exits),
        lost_count=lost_count,
        scopes=[_build_scope(view, bursts, periods) for view in views],
        governor=_check_governor(capture, periods, lost_count),
        what_if=_build_what_if(capture, request, periods, bursts, views, lost_count),
    )


def _label_periods(capture: Capture) -> _Periods:
    exits = select_in_window(capture.exit_records(), capture.cpu_edges())
    exits = exits[np.lexsort((exits["sequence"], exits["exit_ns"]))]
    causes, keys = np.zeros(len(exits), dtype=CAUSE), build_cause_keys(exits)
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
    above, below = np.zeros((2, len(exits)), dtype=bool)
    lengths_ns = exits["exit_ns"].astype(np.int64) - exits["enter_ns"].astype(np.int64)
    for idle_cpu in capture.idle_cpus:
        mine = exits["cpu"] == idle_cpu.cpu
        above[mine], below[mine] = count_misses(idle_cpu, exits["state"][mine], lengths_ns[mine])
    return _Periods(exits, causes, ended_by, groups, above, below)


def _name_scopes(capture: Capture) -> dict[str, list[int]]:
    """Return the CPUs of the host and, if there are several, of each package."""
    online = sorted(capture.cpu_edges())
    packages: dict[str, list[int]] = {}
    for cpu in sorted(capture.idle_cpus, key=lambda cpu: (-1 if cpu.package is None else cpu.package, cpu.cpu)):
        if cpu.package is not None and cpu.cpu in online:
            packages.setdefault(f"package {cpu.package}", []).append(cpu.cpu)
    return {"host": online} | (packages if len(packages) > 1 else {})


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
        parts.append(bursts[(bursts["start"] < last) & (bursts["end"] > first)])
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
    missing = np.append((exits["sequence"][1:] - exits["sequence"][:-1] - np.uint32(1)).astype(np.int64), 0)
    inside = int(missing.sum())
    lost = inside if traced is None else max(inside, traced - len(exits))
    is_lost = missing > 0
    is_lost[-1] = not is_open[-1]
    gaps = np.zeros(int(is_lost.sum()), dtype=BURST)
    gaps["cpu"], gaps["record"], gaps["start"] = edge.cpu, LOST, until[is_lost]
    gaps["end"] = np.maximum(until, np.append(enter[1:], edge.end_ns))[is_lost]
    before = LOST if traced is not None and traced - len(exits) > inside else RAN
    head = np.array([(edge.cpu, edge.start_ns, max(edge.start_ns, int(enter[0])), before)], dtype=BURST)
    return np.concatenate([head, bursts, gaps]), lost


def _exit_of(bursts: Array, of_exit: Array, other: Any) -> Array:
    """Return the value of each burst's exit; `other` for bursts without a known exit."""
    values: Array = np.append(of_exit, np.asarray([other], dtype=of_exit.dtype))[np.maximum(bursts["record"], -1)]
    return values


def _leave_out(bursts: Array, is_removed: Array) -> Array:
    """Return the bursts except those of the removed exits: the idle periods around them become one."""
    kept: Array = bursts[~_exit_of(bursts, is_removed, False)]
    return kept


def _list_polls(capture: Capture, exits: Array) -> Array:
    """Return the periods in a polling state as spans (BURST)."""
    is_poll = np.zeros(len(exits), dtype=bool)
    for cpu, states in capture.states.items():
        numbers = [number for number, name in enumerate(states) if is_polling(name, "")]
        is_poll |= (exits["cpu"] == cpu) & np.isin(exits["state"], numbers)
    spans = np.zeros(int(is_poll.sum()), dtype=BURST)
    spans["record"], spans["cpu"] = RAN, exits["cpu"][is_poll]
    spans["start"], spans["end"] = exits["enter_ns"][is_poll], exits["exit_ns"][is_poll]
    return spans


def _build_scope(view: _View, bursts: Array, periods: _Periods | None = None) -> DeepScope:
    """Return the stretches of a view; with `periods` also their breakers."""
    found = view.find_stretches(bursts)
    lengths, total_ns, window_ns = found.lengths, found.total_ns, view.window[1] - view.window[0]
    idle_ns = view.find_stretches(bursts[bursts["record"] != LOST]).total_ns
    edges = 1000.0 * np.array([*_BINS_US, math.inf])
    bins = zip(
        _BINS_US,
        (*_BINS_US[1:], None),
        *(np.histogram(lengths, edges, weights=by)[0] for by in (None, lengths)),
        strict=True,
    )
    open_ns = int(lengths[found.records == OPEN].sum())
    return DeepScope(
        name=view.name,
        cpus=len(view.cpus),
        window_s=window_ns / 1e9,
        ended_s=(total_ns - open_ns) / 1e9,
        open_s=open_ns / 1e9,
        running_s=(window_ns - idle_ns) / 1e9,
        unknown_s=(idle_ns - total_ns) / 1e9,
        polling_s=(total_ns - view.find_stretches(bursts, view.polls).total_ns) / 1e9,
        count=len(lengths),
        half_us=found.lengths_holding(0.5)[0] / 1e3 if total_ns else None,
        longest_us=float(lengths.max()) / 1e3 if total_ns else None,
        lengths=[
            LengthBin(from_us=low, below_us=high, count=int(count), time_s=float(ns) / 1e9)
            for low, high, count, ns in bins
        ],
        states=[_share_of_state(state, lengths) for state in view.states if not state.polling],
        breakers=[] if periods is None else _find_breakers(periods, view.cpus, found),
    )


def _share_of_state(state: StateInfo, lengths: Array) -> StateShare:
    """Return the stretches that were long enough for a state."""
    enough = None if state.target_us is None else lengths[lengths >= state.target_us * 1000]
    return StateShare(
        name=state.name,
        latency_us=state.latency_us,
        target_us=state.target_us,
        disabled=state.disabled,
        count=None if enough is None else len(enough),
        time_s=None if enough is None else float(enough.sum()) / 1e9,
        percent=None if enough is None or not len(lengths) else 100.0 * float(enough.sum()) / float(lengths.sum()),
    )


def _find_breakers(periods: _Periods, cpus: Sequence[int], found: _Stretches) -> list[Breaker]:
    """Return the causes of stretches and misses, the longest time first; the least of many causes are one row."""
    of_exit, size = periods.groups.of_exit, len(periods.groups.labels) + 1
    here, ended = np.isin(periods.exits["cpu"], cpus), found.records != OPEN
    groups = np.append(of_exit, size - 1)[np.maximum(found.records[ended], -1)]
    counts, above, below = (
        np.bincount(numbers, minlength=size)
        for numbers in (groups, of_exit[here & periods.above], of_exit[here & periods.below])
    )
    times = np.zeros(size, dtype=np.int64)
    np.add.at(times, groups, found.lengths[ended])
    sums = np.stack([counts, times, above, below], axis=1)
    weights = (sums / np.maximum(sums.sum(axis=0), 1)).sum(axis=1)
    labels: list[tuple[Any, ...]] = [*periods.groups.labels, ("lost", None, None, None, None)]
    ordered = sorted(np.flatnonzero(weights).tolist(), key=lambda number: (-weights[number], str(labels[number])))
    rows = [(labels[number], sums[number]) for number in ordered[:_MOST_BREAKERS]]
    if rest := ordered[_MOST_BREAKERS:]:
        rows.append((("other", None, None, None, None), sums[rest].sum(axis=0)))
    return [
        Breaker(
            **dict(zip(("mechanism", "name", "process", "pid", "thread"), label, strict=True)),
            count=int(row[0]),
            stretch_s=float(row[1]) / 1e9,
            above_count=int(row[2]),
            below_count=int(row[3]),
        )
        for label, row in sorted(rows, key=lambda row: -row[1][1])
    ]


# The governor's misses, as cpuidle_enter_state() counts them (drivers/cpuidle/cpuidle.c).


def count_misses(cpu: IdleCpu, states: Array, lengths_ns: Array) -> tuple[Array, Array]:
    """Return whether each idle period of a CPU ended too early for its state, or was long enough for the next one."""
    above, below = np.zeros((2, len(states)), dtype=bool)
    for number, state in enumerate(cpu.states):
        chosen = states == number
        too_short = chosen & (lengths_ns < (state.target_us or 0) * 1000)
        above |= too_short & any(not other.disabled for other in cpu.states[:number])
        deeper = next((other for other in cpu.states[number + 1 :] if not other.disabled), None)
        if deeper is not None:
            rest = lengths_ns - (state.latency_us or 0) * 1000
            below |= chosen & ~too_short & (rest > 0) & (rest >= (deeper.target_us or 0) * 1000)
    return above, below


def _check_governor(capture: Capture, periods: _Periods, lost_count: int) -> GovernorCheck | None:
    """Return the governor's misses; None if a latency or a target residency is unknown."""
    states = [state for cpu in capture.idle_cpus for state in cpu.states]
    if not states or any(state.target_us is None or state.latency_us is None for state in states):
        return None

    def kernel(name: str) -> int | None:
        counts = [count for cpu in capture.idle_cpus for count in getattr(cpu, name)]
        return None if None in counts else sum(counts)

    return GovernorCheck(
        above_count=int(periods.above.sum()),
        below_count=int(periods.below.sum()),
        kernel_above_count=kernel("above"),
        kernel_below_count=kernel("below"),
        is_complete=lost_count == 0,
    )


# What-if: without threads, or with more timer slack.


def _build_what_if(
    capture: Capture, request: DeepRequest, periods: _Periods, bursts: Array, views: Sequence[_View], lost_count: int
) -> DeepWhatIf | None:
    if not request.without and not request.slack_ns:
        return None
    names, exits = _names_by_thread(capture, periods.exits), periods.exits
    by_task = (exits["flags"] & np.uint32(Flag.WAKER) != 0) & (exits["waker_context"] == WakerContext.TASK)
    own_timer = (periods.ended_by == TIMER) & (exits["next_tid"] != 0)
    unmatched = []

    def ended_by(word: str, *, by_timer: bool) -> Array:
        """Return whether each exit is by this thread: by its own timer, or also by its wakings of other threads."""
        ids = [tid for tid, known in names.items() if word in known]
        labels = np.array([word in (label[1], label[2], label[4]) for label in periods.groups.labels], dtype=bool)
        mine: Array = np.isin(blamed_threads(exits)[0], ids) | labels[periods.groups.of_exit]
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
    # The kernel stops the tick only if it expects a long idle period: with fewer breakers, fewer ticks end one.
    calm = _leave_out(kept, (periods.ended_by == TICK) & (exits["next_tid"] == 0))
    tids, timers = exits["next_tid"], np.isin(periods.ended_by, (TIMER, TICK))
    # Sleeps that end with a timer interrupt end no stretch, so each limit of the sleeps is combined with each of ticks.
    models = [move_bursts(rows, tids, slack_ns, timers & joins) for joins in (False, True) for rows in (calm, kept)]
    return DeepWhatIf(
        without=list(request.without),
        slack_ms={word: nanoseconds / 1e6 for word, nanoseconds in request.slack_ns.items()},
        unmatched=unmatched,
        removed_count=len(bursts) - len(kept),
        moved_count=int(np.count_nonzero(_exit_of(kept, slack_ns, 0))),
        scopes=[_build_scope(view, models[0]) for view in views],
        expected=[_expect(view, models) for view in views if not lost_count and view.window[1] > view.window[0]],
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


# Two limits of a sleep with slack (`diagnosis.thread_pace`): its end, or the first timer interrupt of its CPU that is
# not earlier than without the slack. Sleeps are relative: a later end delays all later sleeps of the thread.


def move_bursts(bursts: Array, tids: Array, slack_ns: Array, timers: Array) -> Array:
    """Return the bursts if each sleep ends later, by at most the slack of its exit.

    It ends with the first burst of its CPU by one of `timers`, or while the CPU runs. `tids`, `slack_ns`, `timers`: of
    each exit.
    """
    tids, slack, is_timer = _exit_of(bursts, tids, 0), _exit_of(bursts, slack_ns, 0), _exit_of(bursts, timers, False)
    if not slack.any():
        return bursts
    new, last = bursts.copy(), int(bursts["end"].max())
    for tid in np.unique(tids[slack > 0]):
        others = np.sort(new[(tids != tid) & is_timer], order="start")
        by_cpu = {cpu: others[["start", "end"]][others["cpu"] == cpu].tolist() for cpu in np.unique(bursts["cpu"])}
        mine, later = np.flatnonzero((tids == tid) & (slack > 0)), 0
        mine = mine[np.argsort(bursts["start"][mine], kind="stable")]
        columns = (part[mine].tolist() for part in (bursts["cpu"], bursts["start"], slack))
        moved = []
        for cpu, start, most in zip(*columns, strict=True):
            due = start + later
            place = bisect_right(by_cpu[cpu], (due, 0))
            before, after = (by_cpu[cpu][max(0, at) : at + 1] for at in (place - 1, place))
            wait = 0 if before and before[0][1] > due else most
            later += after[0][1] - due if wait and after and after[0][0] < due + most else wait
            moved.append(later)
        new["start"][mine] += moved
        new["end"][mine] += moved
    new["end"] = np.minimum(new["end"], last)
    kept: Array = new[new["start"] < last]
    return kept


# The window is cut into blocks. Their scatter gives the interval of another window of the same length.
_BLOCKS = 20


def _expect(view: _View, models: Sequence[Array]) -> ExpectedScope:
    """Return the intervals of a later window: from the lowest end of all models to the highest."""
    each = [_expect_model(view, view.find_stretches(bursts)) for bursts in models]
    ends = {key: (min(row[key][0] for row in each), max(row[key][1] for row in each)) for key in each[0]}
    states = {state.name: ends[state.name] for state in view.states if state.name in ends}
    return ExpectedScope(
        name=view.name, together_s=ends["/time"], count=ends["/count"], half_us=ends["/half"], states_s=states
    )


def _expect_model(view: _View, found: _Stretches) -> dict[str, tuple[float, float]]:
    first, last = view.window
    edges = np.linspace(first, last, _BLOCKS + 1)

    def time_by_block(least_ns: float) -> Array:
        """Return the time of the stretches of at least this length in each block."""
        starts, lengths = (part[found.lengths >= least_ns] for part in (found.starts, found.lengths))
        times = np.stack([starts, starts + lengths], axis=1).ravel()
        sums = np.cumsum(np.stack([np.zeros_like(lengths), lengths], axis=1).ravel())
        blocks: Array = np.diff(np.interp(edges, times, sums)) if len(times) else np.zeros(_BLOCKS)
        return blocks

    def ends_of(blocks: Array, most: float, scale: float) -> tuple[float, float]:
        reach, total = _reach(blocks), float(blocks.sum())
        return max(0.0, total - reach) / scale, min(most, total + reach) / scale

    whole = time_by_block(0)
    counts = np.histogram(found.starts, edges)[0].astype(float)
    ends = {"/time": ends_of(whole, last - first, 1e9), "/count": ends_of(counts, math.inf, 1)}
    for state in view.states:
        if state.target_us is not None and not state.polling:
            ends[state.name] = ends_of(time_by_block(state.target_us * 1000), last - first, 1e9)
    # A length can be the half if the time of longer stretches differs from half of all by no more than chance.
    lengths = sorted(found.lengths_holding(*(percent / 100 for percent in range(2, 100, 2))))
    balances = [time_by_block(length) - whole / 2 for length in lengths]
    halves = [length for length, rest in zip(lengths, balances, strict=True) if abs(rest.sum()) <= _reach(rest)]
    halves += found.lengths_holding(0.5)
    return ends | {"/half": (min(halves) / 1e3, max(halves) / 1e3)}


def _reach(blocks: Array) -> float:
    """Return half of the interval of the difference between the sums of two windows with such blocks."""
    values = blocks.tolist()
    error = float(np.std(blocks, ddof=1)) * math.sqrt(2 * len(blocks))
    return error * serial_factor(values) * student_quantile(LEVEL, effective_freedom(values)) if error else 0.0
