# SPDX-License-Identifier: Apache-2.0
"""The line of progress of a measurement: the step, its figures so far, the time that is left, and the end."""

from __future__ import annotations

import math
import time

from powerprof.model.text import Say, approximate_time


class Countdown:
    """Print lines of progress with the time that is left.

    The plan is the estimate until the first step ends. Then the pace of the measured steps replaces it. The time of
    day of the end stays true during a window: powerprof does not wake up to count.
    """

    def __init__(self, say: Say, seconds: float) -> None:
        self._say, self._ends_s = say, time.monotonic() + seconds
        self._total, self._first, self._first_s = 0, 0, 0.0

    def __call__(self, text: str) -> None:
        """Print a line. After the estimated end it has no time."""
        left_s = self._ends_s - time.monotonic()
        self._say(f"{text} · {_format_remaining(left_s)} left, until {_format_clock(left_s)}" if left_s > 0 else text)

    def part(self, text: str, left_s: float) -> None:
        """Print the line of a part of the plan that begins now, if this and the later parts take `left_s` seconds."""
        self._ends_s = time.monotonic() + left_s
        self(text)

    def step(self, text: str, done: int, total: int, each_s: float, rest_s: float = 0.0) -> None:
        """Print the line of a step after `done` of `total` equal steps.

        Each is planned to take `each_s` seconds, and the work after all of them `rest_s`.
        """
        now = time.monotonic()
        if total != self._total or done <= self._first:
            self._total, self._first, self._first_s = total, done, now
        pace_s = (now - self._first_s) / (done - self._first) if done > self._first else each_s
        self._ends_s = now + pace_s * (total - done) + rest_s
        self(text)


def join_parts(*parts: str) -> str:
    """Return the parts of a line, without empty ones."""
    return " · ".join(filter(None, parts))


def announce(say: Say, text: str, seconds: float) -> None:
    """Print the line of a single window that begins now."""
    Countdown(say, seconds)(text)


def _format_clock(seconds: float) -> str:
    """Return the time of day in `seconds` from now: `14:03:27`."""
    return time.strftime("%H:%M:%S", time.localtime(time.time() + seconds))


def _format_remaining(seconds: float) -> str:
    return f"{math.ceil(seconds)} s" if seconds < 90 else approximate_time(seconds)
