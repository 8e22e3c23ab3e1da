# SPDX-License-Identifier: Apache-2.0
"""When intervals end: at even distances, whatever naming and asking took in between. Pure."""

from __future__ import annotations


class IntervalClock:
    """Ends of intervals `interval_s` apart, in seconds of a clock that only rises.

    What is done after an interval's end (naming, blaming, asking) is in the time of the next one, which ends when it
    would have ended without. One that is late by half an interval or more begins a new row of ends.
    """

    def __init__(self, interval_s: float, now_s: float) -> None:
        self._interval_s, self._end_s = interval_s, now_s

    def next_end_s(self, now_s: float) -> float:
        """When the next interval ends; never less than half an interval from now."""
        self._end_s += self._interval_s
        if self._end_s - now_s < self._interval_s / 2:
            self._end_s = now_s + self._interval_s / 2
        return self._end_s
