# SPDX-License-Identifier: Apache-2.0
"""What the exports take: weighted stacks and the idle exits of a timeline, as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Frames = tuple[str, ...]
WeightedStack = tuple[Frames, float]
"""Frames outermost first, and a weight: idle exits, milliseconds of C0, or another count."""


@dataclass(frozen=True)
class TimelineExit:
    """One idle period of a CPU and what ended it; `next_ns` is when the CPU idled again, None if it did not.

    `thread` is who ran after it, `cause` who or what is to blame, in words.
    """

    cpu: int
    enter_ns: int
    exit_ns: int
    next_ns: int | None
    state: str
    mechanism: str
    cause: str
    thread: str | None


def merged(stacks: Iterable[WeightedStack]) -> list[WeightedStack]:
    """Equal stacks added up, those without weight left out, in the order of their frames."""
    sums: dict[Frames, float] = {}
    for frames, value in stacks:
        if value > 0:
            sums[frames] = sums.get(frames, 0) + value
    return sorted(sums.items())
