# SPDX-License-Identifier: Apache-2.0
"""Estimate the figures of a whole window from its slices, if only slices were traced.

The kernel's own counters of the window are exact: idle exits, CPU time of the target, idle states. Causes, threads and
stacks are the slices' shares of these totals.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from msgspec.structs import replace

from powerprof.attribution.capture import Capture
from powerprof.model.attribution import Slicing
from powerprof.statistics.slices import Estimate, SlicedCounts, bound_of_unseen
from powerprof.tracing.bpf.shared_numbers import RunKind
from powerprof.tracing.captures import Array
from powerprof.tracing.idle_data import RUN_TIME, SUMS, RunTimes
from powerprof.tracing.slices import SLICE_COUNT, SlicedTrace, TracedSlice


def _count_by_slice(data: bytes, entries: int, slices: int) -> Array:
    """Return the events of each entry (rows) in each slice (columns)."""
    counts = np.frombuffer(data, dtype=SLICE_COUNT)
    table = np.zeros((entries, slices))
    inside = (counts["entry"] < entries) & (counts["slice"] < slices)
    np.add.at(table, (counts["entry"][inside], counts["slice"][inside]), counts["count"][inside])
    return table


class SliceEstimates:
    """The estimates of one sliced capture."""

    def __init__(self, capture: Capture, sliced: SlicedTrace) -> None:
        self._slices, self._window_s = sliced.slices, capture.window_s
        weights, lengths_s = [part.weight for part in sliced.slices], [part.traced_s for part in sliced.slices]
        whole = _whole_count(sliced)
        self._exits = SlicedCounts(weights, lengths_s, [part.exits_count for part in sliced.slices], whole)
        self._causes = _count_by_slice(sliced.causes, len(capture.cause_entries()), len(sliced.slices))
        wakings = _count_by_slice(sliced.wakings, len(capture.wakings), len(sliced.slices))
        self._wakings = SlicedCounts(weights, lengths_s, wakings.sum(axis=0).tolist(), None)
        self._waking_factors = wakings @ self._wakings.weights / np.maximum(wakings.sum(axis=1), 1)

    def scale_exits(self, entries: Array) -> Array:
        """Return the sums by cause (CAUSE) of the whole window."""
        scaled = entries.copy()
        factors = self._causes @ self._exits.weights / np.maximum(self._causes.sum(axis=1), 1)
        for name in SUMS:
            values = factors[:, np.newaxis] * entries[name] if entries[name].ndim > 1 else factors * entries[name]
            scaled[name] = np.rint(values)
        return scaled

    def scale_wakings(self, capture: Capture) -> Capture:
        """Return the capture with the wakings of the whole window."""
        pairs = zip(capture.wakings, self._waking_factors.tolist(), strict=True)
        return replace(
            capture, wakings=[replace(waking, count=round(factor * waking.count)) for waking, factor in pairs]
        )

    def estimate(self, entries: Sequence[int] | Array) -> Estimate:
        """Return the idle exits of these causes together, by their numbers, in the whole window."""
        return self._exits.estimate(self._causes[entries].sum(axis=0))

    def describe(self, target: Sequence[int] | Array) -> Slicing:
        """Return the facts about the slices that a report prints. `target`: the causes of the target, by number."""
        traced_s = sum(part.traced_s for part in self._slices)
        of_target = self.estimate(target)
        everything = self._exits.estimate(self._causes.sum(axis=0))
        return Slicing(
            slices_count=len(self._slices),
            traced_s=traced_s,
            traced_percent=min(100.0, 100.0 * traced_s / self._window_s) if self._window_s else 0.0,
            exits_count=round(everything.count),
            target_low_hz=of_target.low / self._window_s,
            target_high_hz=of_target.high / self._window_s,
            unseen_below_hz=bound_of_unseen(traced_s),
        )


def _whole_count(sliced: SlicedTrace) -> float | None:
    """Return the idle exits of the window on the trace's scale; None without the kernel's count.

    The trace and the kernel's counter may differ by a few exits in the slices.
    """
    counted = [part.reference_count for part in sliced.slices]
    known = [count for count in counted if count is not None]
    if sliced.whole_count is None or len(known) < len(counted) or not sum(known):
        return None
    return sliced.whole_count * sum(part.exits_count for part in sliced.slices) / sum(known)


def scale_run_times(
    parts: Sequence[RunTimes], slices: Sequence[TracedSlice], used_s: float | None, pids: Collection[int] | None
) -> RunTimes:
    """Return the running time of the whole window.

    `used_s`: the target's CPU time by the kernel's clock, which its threads add up to. `pids`: the target's processes,
    None for the whole system.
    """
    threads = np.concatenate([part.threads for part in parts])
    unseen = np.concatenate([np.full(len(part.threads), slices[at].weight - 1.0) for at, part in enumerate(parts)])
    extra = np.array([part.weight - 1.0 for part in slices])
    others, target = np.array([part.others_ns for part in parts]), np.array([part.target_ns for part in parts])
    if pids is None:
        of_target = np.ones(len(threads), dtype=bool)
    else:
        of_target = (threads["kind"] == RunKind.TARGET) | np.isin(threads["pid"], list(pids))
    others_ns, target_ns = float(others.sum() + extra @ others), float(target.sum() + extra @ target)
    seen_ns = float(threads["ns"][of_target].sum() + target.sum())
    expected_ns = float(unseen[of_target] @ threads["ns"][of_target] + extra @ target)
    scale = 1.0
    if used_s is not None and expected_ns > 0:
        scale = max(0.0, 1e9 * used_s - seen_ns) / expected_ns
        target_ns = float(target.sum() + scale * (extra @ target))
    whole_ns = threads["ns"] * (1.0 + np.where(of_target, scale, 1.0) * unseen)
    sums: dict[tuple[int, int, int], float] = {}
    who = zip(threads["tid"].tolist(), threads["pid"].tolist(), threads["kind"].tolist(), strict=True)
    for key, ns in zip(who, whole_ns.tolist(), strict=True):
        sums[key] = sums.get(key, 0.0) + ns
    ran = np.zeros(len(sums), dtype=RUN_TIME)
    for number, ((tid, pid, kind), ns) in enumerate(sums.items()):
        ran[number] = (tid, pid, round(ns), kind)
    return RunTimes(ran, round(others_ns), round(target_ns))
