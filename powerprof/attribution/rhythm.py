# SPDX-License-Identifier: Apache-2.0
"""Pure: whether something comes regularly, by the intervals that its entries counted."""

from __future__ import annotations

import numpy as np

from powerprof.tracing.captures.edges import Array

_MOST = 0.8
_GAPS = 5


def regular_ms(
    count: int, total: int, gaps: int, fitting_gaps: int, fitting_ns: int, fitting_periods: int
) -> float | None:
    """The period of one cause, or of several that are shown as one; None for what is not regular.

    Regular means: of at least five intervals four in five are the period or, since a wake-up that finds its CPU
    running ends no idle period, twice or three times it (each within a tenth). Of several entries the figures are those
    of the most frequent, which has to hold four in five of the `total` exits: the intervals of the others say nothing
    of the whole.
    """
    if gaps < _GAPS or fitting_gaps < _MOST * gaps or count < _MOST * total:
        return None
    return fitting_ns / fitting_periods / 1e6


def period_ms(entries: Array) -> float | None:
    """As `regular_ms`, of entries of layout.CAUSE."""
    if not len(entries):
        return None
    main = entries[int(np.argmax(entries["count"]))]
    of_gaps = (int(main[name]) for name in ("gaps", "fitting_gaps", "fitting_ns", "fitting_periods"))
    return regular_ms(int(main["count"]), int(entries["count"].sum()), *of_gaps)
