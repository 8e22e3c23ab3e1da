# SPDX-License-Identifier: Apache-2.0
"""Estimate the figures of a whole window from its slices, if only slices were traced.

The kernel's own counters of the window are exact: idle exits, CPU time of the target, idle states. Causes, threads and
stacks are the slices' shares of these totals.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from powerprof.attribution.capture import Capture
from powerprof.model.attribution import Slicing
from powerprof.statistics.slices import Estimate, SlicedCounts, bound_of_unseen
from powerprof.tracing.captures import Array
from powerprof.tracing.idle_data import SUMS
from powerprof.tracing.slices import SLICE_COUNT, SlicedTrace


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
        self._own_pids = sorted(capture.own_pids())
        self._waking_factors = wakings @ self._wakings.weights / np.maximum(wakings.sum(axis=1), 1)

    def scale_exits(self, entries: Array) -> Array:
        """Return the sums by cause (CAUSE) of the whole window.

        powerprof's own idle exits stay as they are: it runs at the edges of slices, and hardly between slices.
        """
        scaled = entries.copy()
        factors = self._causes @ self._exits.weights / np.maximum(self._causes.sum(axis=1), 1)
        factors[np.isin(entries["next_tgid"], self._own_pids)] = 1.0
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
