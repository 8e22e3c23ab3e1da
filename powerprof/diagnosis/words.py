# SPDX-License-Identifier: Apache-2.0
"""Figures as they stand in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof.diagnosis.evidence import ThreadWakeups
from powerprof.text import number

_SHOWN = 16


def each_second(hertz: float, what: str) -> str:
    """`320 connections/s`, `2.5 idle periods/s`."""
    return rate(hertz).replace("times/s", f"{what}/s")


def rate(hertz: float) -> str:
    """`320 times/s`, `2.5 times/s`, `0.07 times/s`."""
    digits = 0 if hertz >= 20 else 1 if hertz >= 1 else 2
    return f"{number(hertz, digits)} times/s"


def seconds(value: float) -> str:
    """`0.3 s`, `12 s`, `10 min`."""
    if value >= 120:
        return f"{value / 60:.0f} min"
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


def stack_of(rows: Sequence[ThreadWakeups]) -> list[str]:
    """The stack that most of these wake-ups came from, innermost first, without the arguments of C++ functions.

    Wakings decide where they were counted: a client on the same CPU ends the idle period itself, so that few idle
    exits fall on the thread it wakes, and by chance on another place than where that thread waits.
    """
    with_stack = [row for row in rows if row.stack]
    if not with_stack:
        return []
    most = max(with_stack, key=lambda row: (row.wakings_hz or 0.0, row.rate_hz))
    return [frame.partition("(")[0] or frame for frame in most.stack[:_SHOWN]]
