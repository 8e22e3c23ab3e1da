# SPDX-License-Identifier: Apache-2.0
"""Sum the traced pieces of an interval to figures of the whole interval, if only slices of it were traced.

Each piece stands for its part of the interval by time, and the kernel's count of idle exits scales the part that no
piece saw.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from powerprof.statistics.slices import SlicedCounts
from powerprof.tracing.captures import Array
from powerprof.tracing.idle_data import CAUSE_KEY, SUMS, RunTimes, sum_by_key
from powerprof.tracing.slices import TracedSlice, scale_run_times

_TOTALS = ("count", "idle_ns", "unplaced_ns")


class Piece(msgspec.Struct, frozen=True):
    """The causes (CAUSE), sums by CPU (CPU_TOTAL) and running times of a traced part of an interval.

    `from_ns`, `to_ns`: CLOCK_MONOTONIC.
    """

    from_ns: int
    to_ns: int
    causes: Array
    totals: Array
    ran: RunTimes


class WholeInterval(msgspec.Struct, frozen=True):
    """The estimates of a whole interval. `traced_share`: the traced part of its length."""

    causes: Array
    totals: Array
    ran: RunTimes
    traced_share: float


def sum_pieces(
    pieces: Sequence[Piece], start_ns: int, end_ns: int, whole_count: int | None, own_pids: Collection[int] = ()
) -> WholeInterval:
    """Return the estimates of an interval from at least one piece.

    `whole_count`: the kernel's count of idle exits. `own_pids`: powerprof's, whose figures stay as they are.
    """
    bounds = [start_ns, *((one.to_ns + other.from_ns) // 2 for one, other in pairwise(pieces)), end_ns]
    slices = [
        TracedSlice(
            (piece.from_ns - start_ns) / 1e9,
            (piece.to_ns - piece.from_ns) / 1e9,
            max(until_ns - since_ns, piece.to_ns - piece.from_ns) / 1e9,
            int(piece.totals["count"].sum()),
            None,
        )
        for piece, (since_ns, until_ns) in zip(pieces, pairwise(bounds), strict=True)
    ]
    lengths_s, exits = [part.traced_s for part in slices], [part.exits_count for part in slices]
    weights = SlicedCounts([part.weight for part in slices], lengths_s, exits, whole_count).weights
    scaled = []
    for piece, weight in zip(pieces, weights.tolist(), strict=True):
        is_own = np.isin(piece.causes["next_tgid"], list(own_pids))
        scaled += [_scale(piece.causes[~is_own], SUMS, weight), piece.causes[is_own]]
    totals = pieces[-1].totals.copy()
    parts = [_scale(piece.totals, _TOTALS, weight) for piece, weight in zip(pieces, weights.tolist(), strict=True)]
    for name in _TOTALS:
        totals[name] = sum(part[name] for part in parts)
    return WholeInterval(
        sum_by_key(np.concatenate(scaled), CAUSE_KEY.names or (), SUMS, "gaps"),
        totals,
        scale_run_times([piece.ran for piece in pieces], slices, None, None, own_pids),
        min(1.0, 1e9 * sum(lengths_s) / max(1, end_ns - start_ns)),
    )


def _scale(entries: Array, names: Sequence[str], weight: float) -> Array:
    scaled = entries.copy()
    for name in names:
        scaled[name] = np.rint(weight * entries[name])
    return scaled
