# SPDX-License-Identifier: Apache-2.0
"""Shares of a whole that was sampled: a percentage and its interval, from the same counts."""

from __future__ import annotations

import math
from typing import NamedTuple

_Z95 = 1.959964


class Proportion(NamedTuple):
    """A share of a whole and its 95 % interval, all in percent: `low_percent` <= `percent` <= `high_percent` <= 100."""

    percent: float
    low_percent: float
    high_percent: float


def proportion(count: int, whole: int, of: int | None = None) -> Proportion:
    """`count` of the `whole` samples among which it was met, as a share of `of`, which are the whole and others too.

    The score interval (E. B. Wilson, JASA 22, 1927), sound near 0 and 100 too: of all or none, the share is its end,
    to the last bit. Without samples nothing is known: 0, from 0 to 100.
    """
    among = whole if of is None else of
    if not whole:
        return Proportion(0.0, 0.0, 100.0)
    share, square = count / whole, _Z95 * _Z95 / whole
    middle = (share + square / 2) / (1 + square)
    half = _Z95 * math.sqrt((share * (1 - share) + square / 4) / whole) / (1 + square)
    percent, most = 100 * count / among, 100 * whole / among
    return Proportion(
        percent, min(max(middle - half, 0.0) * most, percent), max(min(middle + half, 1.0) * most, percent)
    )
