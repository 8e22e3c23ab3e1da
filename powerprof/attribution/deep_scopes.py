# SPDX-License-Identifier: Apache-2.0
"""Sum the stretches of the host and of each package by length, by idle state and by breaker."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from powerprof.attribution.bursts import LOST, OPEN, Periods, Stretches, View
from powerprof.measure.idle_counters import StateInfo
from powerprof.model.deep_idle import Breaker, DeepScope, LengthBin, StateShare
from powerprof.tracing.captures import Array

_BINS_US = (0, 10, 100, 1000, 10_000, 100_000)
_MOST_BREAKERS = 50


def build_scope(view: View, bursts: Array, periods: Periods | None = None) -> DeepScope:
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
        states=[_sum_state_share(state, lengths) for state in view.states if not state.polling],
        breakers=[] if periods is None else _find_breakers(periods, view.cpus, found),
    )


def _sum_state_share(state: StateInfo, lengths: Array) -> StateShare:
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


def _find_breakers(periods: Periods, cpus: Sequence[int], found: Stretches) -> list[Breaker]:
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
