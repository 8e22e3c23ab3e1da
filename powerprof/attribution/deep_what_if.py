# SPDX-License-Identifier: Apache-2.0
"""Predict the time in which all CPUs idle together without some threads, or with more timer slack.

A sleep with slack has two limits (`diagnosis.thread_pace`): its end, or the first timer interrupt of its CPU that is
not earlier than without the slack. Sleeps are relative: a later end delays all later sleeps of the thread.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from powerprof.attribution.bursts import Periods, Stretches, View, leave_out, read_by_burst
from powerprof.attribution.capture import Capture
from powerprof.attribution.causes import TICK, TIMER, blamed_threads
from powerprof.attribution.deep_scopes import build_scope
from powerprof.measure.idle_counters import StateInfo
from powerprof.model.deep_idle import DeepWhatIf, ExpectedScope
from powerprof.statistics.distributions import student_quantile
from powerprof.statistics.intervals import LEVEL
from powerprof.statistics.scatter import effective_freedom, serial_factor
from powerprof.tracing.bpf.shared_numbers import Flag, WakerContext
from powerprof.tracing.captures import Array


class DeepRequest(msgspec.Struct, frozen=True):
    """The questions about deep idle. `states`: the idle states of the CPU `table`; empty for this host's own.

    `without`: threads that are left out; `slack_ns`: threads with more timer slack. Both by name, process or id.
    """

    table: str | None = None
    states: tuple[StateInfo, ...] = ()
    without: tuple[str, ...] = ()
    slack_ns: Mapping[str, int] = msgspec.field(default_factory=dict)


def build_what_if(
    capture: Capture, request: DeepRequest, periods: Periods, bursts: Array, views: Sequence[View], lost_count: int
) -> DeepWhatIf | None:
    """Return the prediction of a request; None if it changes no thread."""
    if not request.without and not request.slack_ns:
        return None
    names, exits = _name_threads(capture, periods.exits), periods.exits
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
    kept = leave_out(bursts, removed)
    # The kernel stops the tick only if it expects a long idle period: with fewer breakers, fewer ticks end one.
    calm = leave_out(kept, (periods.ended_by == TICK) & (exits["next_tid"] == 0))
    tids, timers = exits["next_tid"], np.isin(periods.ended_by, (TIMER, TICK))
    # Sleeps that end with a timer interrupt end no stretch, so each limit of the sleeps is combined with each of ticks.
    models = [move_bursts(rows, tids, slack_ns, timers & joins) for joins in (False, True) for rows in (calm, kept)]
    return DeepWhatIf(
        without=list(request.without),
        slack_ms={word: nanoseconds / 1e6 for word, nanoseconds in request.slack_ns.items()},
        unmatched=unmatched,
        removed_count=len(bursts) - len(kept),
        moved_count=int(np.count_nonzero(read_by_burst(kept, slack_ns, 0))),
        scopes=[build_scope(view, models[0]) for view in views],
        expected=[_expect(view, models) for view in views if not lost_count and view.window[1] > view.window[0]],
    )


def _name_threads(capture: Capture, exits: Array) -> dict[int, set[str]]:
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


def move_bursts(bursts: Array, tids: Array, slack_ns: Array, timers: Array) -> Array:
    """Return the bursts if each sleep ends later, by at most the slack of its exit.

    It ends with the first burst of its CPU by one of `timers`, or while the CPU runs. `tids`, `slack_ns`, `timers`: of
    each exit.
    """
    tids, slack, is_timer = (
        read_by_burst(bursts, tids, 0),
        read_by_burst(bursts, slack_ns, 0),
        read_by_burst(bursts, timers, False),
    )
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


def _expect(view: View, models: Sequence[Array]) -> ExpectedScope:
    """Return the intervals of a later window: from the lowest end of all models to the highest."""
    each = [_expect_from_model(view, view.find_stretches(bursts)) for bursts in models]
    ends = {key: (min(row[key][0] for row in each), max(row[key][1] for row in each)) for key in each[0]}
    states = {state.name: ends[state.name] for state in view.states if state.name in ends}
    return ExpectedScope(
        name=view.name, together_s=ends["/time"], count=ends["/count"], half_us=ends["/half"], states_s=states
    )


def _expect_from_model(view: View, found: Stretches) -> dict[str, tuple[float, float]]:
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
        reach, total = _estimate_reach(blocks), float(blocks.sum())
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
    halves = [
        length for length, rest in zip(lengths, balances, strict=True) if abs(rest.sum()) <= _estimate_reach(rest)
    ]
    halves += found.lengths_holding(0.5)
    return ends | {"/half": (min(halves) / 1e3, max(halves) / 1e3)}


def _estimate_reach(blocks: Array) -> float:
    """Return half of the interval of the difference between the sums of two windows with such blocks."""
    values = blocks.tolist()
    error = float(np.std(blocks, ddof=1)) * math.sqrt(2 * len(blocks))
    return error * serial_factor(values) * student_quantile(LEVEL, effective_freedom(values)) if error else 0.0
