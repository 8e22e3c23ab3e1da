# SPDX-License-Identifier: Apache-2.0
"""Pure: whether something comes regularly, by the intervals that its entries counted."""

from __future__ import annotations

import numpy as np

from powerprof.tracing.edge import Array

_MOST = 0.8
_GAPS = 5


def period_ms(entries: Array) -> float | None:
    """The period of one cause, or of several that are shown as one; None for what is not regular.

    Regular means: of at least five intervals four in five are the period or, since a wake-up that finds its CPU
    running ends no idle period, twice or three times it (each within a tenth). Of several entries one has to hold four
    in five of the exits: the intervals of the others say nothing of the whole.
    """
    if not len(entries):
        return None
    one = entries[int(np.argmax(entries["count"]))]
    gaps, fitting = int(one["gaps"]), int(one["fitting_gaps"])
    if gaps < _GAPS or fitting < _MOST * gaps or int(one["count"]) < _MOST * int(entries["count"].sum()):
        return None
    return float(one["fitting_ns"]) / float(one["fitting_periods"]) / 1e6
